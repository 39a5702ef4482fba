/* How fast is Muon's Newton-Schulz iteration compared with SGEMM, on the matrices of our models? One thread, the
 * best of several rounds in turn. The first rate counts operations of plain products, so using symmetry counts as
 * speed; the second counts those actually computed. */
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "kernels/kernel.h"
#include "kernels/orthogonal.h"

enum { ROUNDS = 7 };

typedef struct matrix {
    const char *what;
    int64_t rows, columns;
} matrix;

static const matrix matrices[] = {
    {"GPT-2: queries, keys, values", 768, 2304},
    {"GPT-2: projection of attention", 768, 768},
    {"GPT-2: first of the MLP", 768, 3072},
    {"GPT-2: second of the MLP", 3072, 768},
    {"gpt2-nano: first of the MLP", 192, 768},
    {"resnet18: 3x3 convolution, 256 channels", 256, 2304},
    {"resnet20: 3x3 convolution, 64 channels", 64, 576},
};

enum { MATRICES = sizeof matrices / sizeof matrices[0] };

/* Seconds of one call of each, the best of several rounds. */
static void measure(const matrix *m, const float *source, float *x, float *scratch, double best[2]) {
    int64_t count = m->rows * m->columns, side = m->rows < m->columns ? m->rows : m->columns;
    int calls = count < 200000 ? 10 : 1;
    for (int round = 0; round <= ROUNDS; round++) { /* the first round warms up */
        double seconds[2] = {0, 0};
        for (int call = 0; call < calls; call++) {
            for (int64_t i = 0; i < count; i++) {
                x[i] = source[i];
            }
            double start = car_clock_seconds();
            car_orthogonalize(x, m->rows, m->columns, scratch);
            double middle = car_clock_seconds();
            car_kernels_multiply('N', 'N', side, count / side, side, 1, source, side, source, count / side, 0, x,
                                 count / side);
            seconds[0] += (middle - start) / calls;
            seconds[1] += (car_clock_seconds() - middle) / calls;
        }
        for (int s = 0; s < 2; s++) {
            best[s] = round == 1 || (round > 1 && seconds[s] < best[s]) ? seconds[s] : best[s];
        }
    }
}

int main(void) {
    size_t most = (size_t)3072 * 768, extra = car_orthogonal_scratch(3072, 768);
    float *source = malloc(most * sizeof *source), *x = malloc(most * sizeof *x);
    float *scratch = malloc(extra * sizeof *scratch);
    if (!source || !x || !scratch) {
        fputs("muon: not enough memory\n", stderr);
        return 1;
    }
    for (size_t i = 0; i < most; i++) {
        source[i] = (float)car_random_normal(1, i);
    }
    car_kernel_mode mode = car_kernels_enter(1);
    printf("Newton-Schulz beside SGEMM, one thread, best of %d, GFLOP/s\n%-40s %12s %8s %9s %7s %7s\n", ROUNDS, "",
           "matrix", "ours", "computed", "SGEMM", "share");
    for (int k = 0; k < MATRICES; k++) {
        const matrix *m = &matrices[k];
        double best[2] = {0, 0}, side = (double)(m->rows < m->columns ? m->rows : m->columns);
        char size[32];
        measure(m, source, x, scratch, best);
        double rate = car_orthogonal_flops(m->rows, m->columns) / best[0] / 1e9;
        double done = car_orthogonal_flops_done(m->rows, m->columns) / best[0] / 1e9;
        double sgemm = 2 * side * (double)m->rows * (double)m->columns / best[1] / 1e9;
        snprintf(size, sizeof size, "%lld x %lld", (long long)m->rows, (long long)m->columns);
        printf("%-40s %12s %8.1f %9.1f %7.1f %7.2f\n", m->what, size, rate, done, sgemm, rate / sgemm);
    }
    car_kernels_leave(mode);
    free(scratch);
    free(x);
    free(source);
    return 0;
}
