/* The transforms of F(4x4, 3x3), one vector of channels at a time. Part of loops.c.
 *
 * They evaluate polynomials at 0, +-A, +-B and infinity. A = 5/8 and B = 3/2 halve the error of the usual 1 and 2,
 * and are exact as floats, as are their squares. */
#ifndef CAR_WINOGRAD_TRANSFORMS_H
#define CAR_WINOGRAD_TRANSFORMS_H

#include "kernels/winograd/vec.h"

static const double point_a = 5.0 / 8, point_b = 3.0 / 2;
#define A1 ((float)point_a)
#define A2 ((float)(point_a * point_a))
#define A3 ((float)(point_a * point_a * point_a))
#define B1 ((float)point_b)
#define B2 ((float)(point_b * point_b))
#define B3 ((float)(point_b * point_b * point_b))
#define A2_PLUS_B2 ((float)(point_a * point_a + point_b * point_b))
#define A2_TIMES_B2 ((float)(point_a * point_a * point_b * point_b))
/* Reciprocals of the products of differences of the points. */
#define NORM_0 (1 / (point_a * point_a * point_b * point_b))
#define NORM_A (1 / (2 * point_a * point_a * (point_a * point_a - point_b * point_b)))
#define NORM_B (1 / (2 * point_b * point_b * (point_b * point_b - point_a * point_a)))

/* Transforms six inputs; value i goes to to[i * step]. */
static inline void transform_inputs(const vec *d, vec *to, ptrdiff_t step) {
    vec even_a = d[4] - B2 * d[2], odd_a = d[3] - B2 * d[1];
    vec even_b = d[4] - A2 * d[2], odd_b = d[3] - A2 * d[1];
    to[0] = d[4] - A2_PLUS_B2 * d[2] + A2_TIMES_B2 * d[0];
    to[step] = even_a + A1 * odd_a;
    to[2 * step] = even_a - A1 * odd_a;
    to[3 * step] = even_b + B1 * odd_b;
    to[4 * step] = even_b - B1 * odd_b;
    to[5 * step] = d[5] - A2_PLUS_B2 * d[3] + A2_TIMES_B2 * d[1];
}

/* Transforms six products to four outputs. */
static inline void transform_outputs(const vec *m, vec *to, ptrdiff_t step) {
    vec sum_a = m[1] + m[2], sum_b = m[3] + m[4];
    vec difference_a = m[1] - m[2], difference_b = m[3] - m[4];
    to[0] = m[0] + sum_a + sum_b;
    to[step] = A1 * difference_a + B1 * difference_b;
    to[2 * step] = A2 * sum_a + B2 * sum_b;
    to[3 * step] = m[5] + A3 * difference_a + B3 * difference_b;
}

/* Its transpose: four gradients of outputs to six values. */
static inline void transform_gradients(const vec *g, vec *to, ptrdiff_t step) {
    vec even_a = g[0] + A2 * g[2], odd_a = g[1] + A2 * g[3];
    vec even_b = g[0] + B2 * g[2], odd_b = g[1] + B2 * g[3];
    to[0] = g[0];
    to[step] = even_a + A1 * odd_a;
    to[2 * step] = even_a - A1 * odd_a;
    to[3 * step] = even_b + B1 * odd_b;
    to[4 * step] = even_b - B1 * odd_b;
    to[5 * step] = g[3];
}

/* Transforms three weights to six values. */
static inline void transform_filters(const vec *w, vec *to, ptrdiff_t step) {
    const float norm_0 = (float)NORM_0, norm_a = (float)NORM_A, norm_b = (float)NORM_B;
    const float first_a = (float)(point_a * NORM_A), first_b = (float)(point_b * NORM_B);
    const float second_a = (float)(point_a * point_a * NORM_A), second_b = (float)(point_b * point_b * NORM_B);
    vec even_a = norm_a * w[0] + second_a * w[2], even_b = norm_b * w[0] + second_b * w[2];
    to[0] = norm_0 * w[0];
    to[step] = even_a + first_a * w[1];
    to[2 * step] = even_a - first_a * w[1];
    to[3 * step] = even_b + first_b * w[1];
    to[4 * step] = even_b - first_b * w[1];
    to[5 * step] = w[2];
}

/* Its transpose: six values to the gradients of three weights. */
static inline void transform_filter_gradients(const vec *z, vec *to, ptrdiff_t step) {
    const float norm_0 = (float)NORM_0, norm_a = (float)NORM_A, norm_b = (float)NORM_B;
    const float first_a = (float)(point_a * NORM_A), first_b = (float)(point_b * NORM_B);
    const float second_a = (float)(point_a * point_a * NORM_A), second_b = (float)(point_b * point_b * NORM_B);
    vec sum_a = z[1] + z[2], sum_b = z[3] + z[4];
    to[0] = norm_0 * z[0] + norm_a * sum_a + norm_b * sum_b;
    to[step] = first_a * (z[1] - z[2]) + first_b * (z[3] - z[4]);
    to[2 * step] = second_a * sum_a + second_b * sum_b + z[5];
}

#endif
