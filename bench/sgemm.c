/* Which SGEMM is faster here, oneDNN's or OpenBLAS's, on the matrix products of our transformers? One thread, the
 * best of several calls in turn. docs/kernels.md has a result. */
#include <cblas.h>
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

extern void omp_set_num_threads(int count); /* GNU OpenMP's, which oneDNN uses */

enum { ROUNDS = 5 };

typedef struct product {
    const char *what;
    int m, n, k;
} product;

static const product products[] = {
    {"ViT-B/16, 2 images: queries, keys, values", 394, 2304, 768},
    {"ViT-B/16, 2 images: first of the MLP", 394, 3072, 768},
    {"ViT-B/16, 2 images: second of the MLP", 394, 768, 3072},
    {"GPT-2, 1024 tokens: queries, keys, values", 1024, 2304, 768},
    {"GPT-2, 1024 tokens: head", 1024, 50257, 768},
    {"attention, 197 tokens: scores times values", 197, 64, 197},
    {"attention, a tile", 64, 64, 64},
};

enum { PRODUCTS = sizeof products / sizeof products[0] };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void multiply(int onednn, const product *p, const float *a, const float *b, float *c) {
    if (onednn) {
        dnnl_sgemm('N', 'N', p->m, p->n, p->k, 1.0f, a, p->k, b, p->n, 0.0f, c, p->n);
    } else {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, p->m, p->n, p->k, 1.0f, a, p->k, b, p->n, 0.0f, c, p->n);
    }
}

/* GFLOP/s of both, measured in turn. */
static void measure(const product *p, const float *a, const float *b, float *c, double rate[2]) {
    double flops = 2.0 * p->m * p->n * p->k;
    int calls = flops < 2e8 ? (int)(2e8 / flops) + 1 : 1;
    for (int round = 0; round <= ROUNDS; round++) { /* the first round warms up */
        for (int onednn = 0; onednn < 2; onednn++) {
            double start = now();
            for (int call = 0; call < calls; call++) {
                multiply(onednn, p, a, b, c);
            }
            double reached = flops * calls / (now() - start) / 1e9;
            rate[onednn] = round > 0 && reached > rate[onednn] ? reached : rate[onednn];
        }
    }
}

int main(void) {
    size_t most = (size_t)1024 * 50257;
    float *a = malloc(most * sizeof *a), *b = malloc(most * sizeof *b), *c = malloc(most * sizeof *c);
    if (!a || !b || !c) {
        fputs("sgemm: not enough memory\n", stderr);
        return 1;
    }
    for (size_t i = 0; i < most; i++) {
        a[i] = (float)(i % 7) * 0.1f;
        b[i] = (float)(i % 5) * 0.1f;
    }
    omp_set_num_threads(1);
    openblas_set_num_threads(1);
    printf("SGEMM, one thread, best of %d, GFLOP/s\n%-44s %18s %8s %9s\n", ROUNDS, "", "M x N x K", "oneDNN",
           "OpenBLAS");
    for (int p = 0; p < PRODUCTS; p++) {
        char size[32];
        double rate[2] = {0, 0};
        measure(&products[p], a, b, c, rate);
        snprintf(size, sizeof size, "%d x %d x %d", products[p].m, products[p].n, products[p].k);
        printf("%-44s %18s %8.1f %9.1f\n", products[p].what, size, rate[1], rate[0]);
    }
    free(c);
    free(b);
    free(a);
    return 0;
}
