/* Newton and Schulz's iteration against the definition in double, on matrices of every form; and what it takes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/kernel.h"
#include "kernels/orthogonal.h"

static void *room(size_t floats, size_t size) {
    void *made = calloc(floats + 1, size);
    assert_non_null(made);
    return made;
}

/* C = A B (or A B^T), all row-major in double. */
static void multiply(const double *a, const double *b, bool transposed, int64_t m, int64_t n, int64_t k, double *c) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++) {
                sum += a[i * k + l] * (transposed ? b[j * k + l] : b[l * n + j]);
            }
            c[i * n + j] = sum;
        }
    }
}

/* X <- a X + (b A + c A A) X with A = X X^T, whichever side is smaller. */
static void iterate(double *x, int64_t rows, int64_t columns) {
    double *a = room((size_t)(rows * rows), sizeof *a), *square = room((size_t)(rows * rows), sizeof *square);
    double *moved = room((size_t)(rows * columns), sizeof *moved);
    multiply(x, x, true, rows, rows, columns, a);
    multiply(a, a, false, rows, rows, rows, square);
    for (int64_t i = 0; i < rows * rows; i++) {
        a[i] = -4.7750 * a[i] + 2.0315 * square[i];
    }
    multiply(a, x, false, rows, columns, rows, moved);
    for (int64_t i = 0; i < rows * columns; i++) {
        x[i] = 3.4445 * x[i] + moved[i];
    }
    free(moved);
    free(square);
    free(a);
}

static void check(int64_t rows, int64_t columns, float scale) {
    size_t count = (size_t)(rows * columns), extra = car_orthogonal_scratch(rows, columns);
    float *x = room(count, sizeof *x), *scratch = room(extra, sizeof *scratch);
    double *expected = room(count, sizeof *expected), square = 0, difference = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        x[i] = scale * (float)car_random_normal(7, i);
        square += (double)x[i] * x[i];
    }
    for (size_t i = 0; i < count; i++) {
        expected[i] = x[i] / (sqrt(square) + 1e-7);
    }
    for (int step = 0; step < 5; step++) {
        iterate(expected, rows, columns);
    }
    memset(scratch, 0xff, extra * sizeof *scratch); /* NaNs that an earlier gradient left there must not matter */
    scratch[extra] = 42;                            /* nobody may write behind it */
    car_kernel_mode mode = car_kernels_enter(1);
    assert_true(car_orthogonalize(x, rows, columns, scratch));
    car_kernels_leave(mode);
    assert_true(scratch[extra] == 42);
    for (size_t i = 0; i < count; i++) {
        difference += (scratch[i] - expected[i]) * (scratch[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    if (!(sqrt(difference) <= 1e-4 * sqrt(size))) {
        fail_msg("%lld x %lld: relative error %.2e", (long long)rows, (long long)columns, sqrt(difference / size));
    }
    /* Singular values are about 1, so the sum of their squares is about the smaller side. */
    double side = (double)(rows < columns ? rows : columns);
    assert_true(size > 0.4 * side && size < 1.5 * side);
    free(expected);
    free(scratch);
    free(x);
}

static void test_against_the_definition(void **state) {
    static const int64_t shapes[][2] = {{1, 1},   {1, 9},    {9, 1},   {16, 16},  {17, 40},  {40, 17},
                                        {48, 48}, {49, 150}, {97, 60}, {130, 33}, {200, 77}, {77, 200}};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        check(shapes[s][0], shapes[s][1], 1);
        check(shapes[s][0], shapes[s][1], 1e-4f);
        check(shapes[s][0], shapes[s][1], 1e4f);
    }
}

/* No gradient is no direction: not a division by zero. */
static void test_zero(void **state) {
    (void)state;
    float x[6 * 4] = {0}, scratch[6 * 4 + 2 * 4 * 4];
    assert_int_equal(car_orthogonal_scratch(6, 4), sizeof scratch / sizeof *scratch);
    assert_true(car_orthogonalize(x, 6, 4, scratch));
    for (int i = 0; i < 6 * 4; i++) {
        assert_true(scratch[i] == 0);
    }
}

/* Of gpt2's matrices, 1.5 TFLOP as plain products; symmetry saves a fifth. */
static void test_flops(void **state) {
    (void)state;
    double plain = 0, done = 0;
    static const int64_t shapes[][2] = {{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}};
    for (int s = 0; s < 4; s++) {
        plain += 12 * car_orthogonal_flops(shapes[s][0], shapes[s][1]);
        done += 12 * car_orthogonal_flops_done(shapes[s][0], shapes[s][1]);
    }
    assert_true(plain > 1.5e12 && plain < 1.55e12);
    assert_true(done > 0.75 * plain && done < 0.82 * plain);
    assert_true(car_orthogonal_flops_done(16, 16) <= car_orthogonal_flops(16, 16));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_the_definition),
        cmocka_unit_test(test_zero),
        cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
