/* The Newton-Schulz iteration, with SGEMM.
 *
 * It squares the smaller side of the matrix, so nothing is transposed: for a tall X the square is X^T X and
 * multiplies from the right. Squares are symmetric. They are computed in strips of rows, each up to the diagonal,
 * and mirrored:
 *
 *   [# . .]
 *   [# # .]     with q strips, (1 + 1/q) / 2 of the work
 *   [# # #] */
#include "kernels/orthogonal.h"

#include <math.h>
#include <string.h>

#include "kernels/kernel.h"
#include "kernels/vector/vector.h"

enum { TILE = 32 };

static const float linear = 3.4445f, cubic = -4.7750f, quintic = 2.0315f;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Rows of a strip: a quarter of the side, in whole vectors, and enough for SGEMM to be about as fast as on whole
 * matrices. */
static int64_t strip_of(int64_t side) {
    enum { LEAST = 48, VECTOR = 16 };
    int64_t rows = (side / 4 + VECTOR - 1) / VECTOR * VECTOR;
    return rows < LEAST ? LEAST : rows;
}

size_t car_orthogonal_scratch(int64_t rows, int64_t columns) {
    int64_t side = smaller(rows, columns);
    return (size_t)(rows * columns + 2 * side * side);
}

double car_orthogonal_flops(int64_t rows, int64_t columns) {
    double side = (double)smaller(rows, columns), all = (double)rows * (double)columns;
    return CAR_ORTHOGONAL_STEPS * (2 * side * all + 2 * side * side * side + 2 * side * all);
}

/* The share of a symmetric product that is computed. */
static double symmetric_share(int64_t side) {
    int64_t strip = strip_of(side);
    double done = 0;
    for (int64_t first = 0; first < side; first += strip) {
        int64_t end = smaller(first + strip, side);
        done += (double)(end - first) * (double)end;
    }
    return done / ((double)side * (double)side);
}

double car_orthogonal_flops_done(int64_t rows, int64_t columns) {
    double side = (double)smaller(rows, columns), all = (double)rows * (double)columns;
    double share = symmetric_share(smaller(rows, columns));
    return CAR_ORTHOGONAL_STEPS * (share * (2 * side * all + 2 * side * side * side) + 2 * side * all);
}

/* Copies the lower triangle to the upper one, tile by tile, since one of the two is accessed across rows. */
static void mirror(float *c, int64_t side) {
    for (int64_t top = 0; top < side; top += TILE) {
        for (int64_t left = top; left < side; left += TILE) {
            int64_t bottom = smaller(top + TILE, side), right = smaller(left + TILE, side);
            for (int64_t i = top; i < bottom; i++) {
                for (int64_t j = left > i ? left : i + 1; j < right; j++) {
                    c[i * side + j] = c[j * side + i];
                }
            }
        }
    }
}

/* C = alpha op(X) op(X)^T + beta C, where op(X), X itself or its transpose, has `side` rows. */
static bool square(bool tall, int64_t side, int64_t length, float alpha, const float *x, int64_t stride, float beta,
                   float *c) {
    int64_t strip = strip_of(side);
    bool done = true;
    for (int64_t first = 0; done && first < side; first += strip) {
        int64_t end = smaller(first + strip, side);
        const float *rows = x + (tall ? first : first * stride);
        done = car_kernels_multiply(tall ? 'T' : 'N', tall ? 'N' : 'T', end - first, end, length, alpha, rows, stride,
                                    x, stride, beta, c + first * side, side);
    }
    mirror(c, side);
    return done;
}

static void scale_to_norm_1(float *x, int64_t count) {
    float inverse = (float)(1.0 / (sqrt(car_vector_select()->square_sum(x, count)) + 1e-7));
    car_vector_select()->blend(x, x, 0, inverse, count);
}

bool car_orthogonalize(float *x, int64_t rows, int64_t columns, float *scratch) {
    bool tall = rows > columns, done = true;
    int64_t side = smaller(rows, columns), length = tall ? rows : columns;
    float *from = x, *to = scratch, *a = scratch + rows * columns, *b = a + side * side;
    scale_to_norm_1(x, rows * columns);
    for (int step = 0; done && step < CAR_ORTHOGONAL_STEPS; step++) {
        done = square(tall, side, length, 1, from, columns, 0, a);
        memcpy(b, a, (size_t)(side * side) * sizeof *b); /* scratch may hold NaNs, which a factor of 0 would keep */
        car_vector_select()->blend(b, b, 0, cubic, side * side);
        done = done && square(false, side, side, quintic, a, side, 1, b);
        for (int64_t d = 0; d < side; d++) {
            b[d * side + d] += linear;
        }
        const float *left = tall ? from : b, *right = tall ? b : from;
        done = done && car_kernels_multiply('N', 'N', rows, columns, side, 1, left, tall ? columns : side, right,
                                            columns, 0, to, columns);
        float *swap = from;
        from = to;
        to = swap;
    }
    return done; /* the number of steps is odd, so the result is in scratch */
}

_Static_assert(CAR_ORTHOGONAL_STEPS % 2 == 1, "the result is to be in scratch");
