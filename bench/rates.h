/* Measuring tools for the programs of this folder: threads that start together, the two rates that show what the
 * machine can do (OpenBLAS's SGEMM and bare multiply-adds), and error output. */
#ifndef CAR_BENCH_RATES_H
#define CAR_BENCH_RATES_H

#include <cblas.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/base.h"

enum { MAX_THREADS = 64 };

/* Runs `steps` steps of one thread's work. */
typedef void work_function(void *state, int thread, int steps);

static inline void *allocate_or_exit(size_t bytes) {
    void *memory = aligned_alloc(64, car_round_up(bytes, 64));
    if (!memory) {
        fprintf(stderr, "bench: out of memory (%zu bytes)\n", bytes);
        exit(1);
    }
    return memory;
}

/* Prints an error as a line of JSON. The message may contain names and paths, so quotes and backslashes are
 * replaced. */
static inline void print_error(const char *text) {
    printf("{\"error\": \"");
    for (; *text; text++) {
        putchar(*text == '"' || *text == '\\' || (unsigned char)*text < ' ' ? '\'' : *text);
    }
    printf("\"}\n");
}

/* ---- threads ------------------------------------------------------------------------------------------- */

typedef struct runner {
    pthread_t id;
    pthread_barrier_t *start;
    work_function *work;
    void *state;
    int thread, steps;
    double begin, end;
} runner;

static inline void *run_one(void *argument) {
    runner *self = argument;
    pthread_barrier_wait(self->start);
    self->begin = car_clock_seconds();
    self->work(self->state, self->thread, self->steps);
    self->end = car_clock_seconds();
    return NULL;
}

/* Seconds from the common start until the last thread is done: the slowest counts. */
static inline double run_together(int threads, work_function *work, void *state, int steps) {
    runner runners[MAX_THREADS];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        runners[i] = (runner){.start = &start, .work = work, .state = state, .thread = i, .steps = steps};
        if (pthread_create(&runners[i].id, NULL, run_one, &runners[i]) != 0) {
            fprintf(stderr, "bench: no thread to be had\n");
            exit(1);
        }
    }
    double begin = INFINITY, end = -INFINITY;
    for (int i = 0; i < threads; i++) {
        pthread_join(runners[i].id, NULL);
        begin = fmin(begin, runners[i].begin);
        end = fmax(end, runners[i].end);
    }
    pthread_barrier_destroy(&start);
    return end - begin;
}

/* The known duration of a step; zero before the warm-up. */
typedef struct pace {
    double step_seconds;
} pace;

/* The first step touches memory for the first time; the second one is timed. */
static inline void warm_up(pace *known, int threads, work_function *work, void *state) {
    if (known->step_seconds == 0) {
        run_together(threads, work, state, 1);
        known->step_seconds = run_together(threads, work, state, 1);
    }
}

/* Runs for about `seconds`, at least one step, after a warm-up if necessary. All threads make the same number of
 * steps, so that none runs alone for long at the end. */
static inline double measure(pace *known, int threads, work_function *work, void *state, double seconds, int *steps) {
    warm_up(known, threads, work, state);
    *steps = (int)fmax(1, round(seconds / known->step_seconds));
    double elapsed = run_together(threads, work, state, *steps);
    known->step_seconds = elapsed / *steps;
    return elapsed;
}

/* ---- SGEMM --------------------------------------------------------------------------------------------- */

enum { SGEMM_SIZE = 2048 };

typedef struct sgemm_rate {
    float *a[MAX_THREADS], *b[MAX_THREADS], *c[MAX_THREADS];
    pace known[MAX_THREADS + 1]; /* for each number of threads */
} sgemm_rate;

static inline void sgemm_work(void *state, int thread, int steps) {
    const sgemm_rate *rate = state;
    const int n = SGEMM_SIZE;
    for (int s = 0; s < steps; s++) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, rate->a[thread], n, rate->b[thread], n,
                    0.0f, rate->c[thread], n);
    }
}

/* GFLOP/s of all threads together, each with its own matrices and single-threaded calls. */
static inline double measure_sgemm(sgemm_rate *rate, int threads, double seconds) {
    const size_t elements = (size_t)SGEMM_SIZE * SGEMM_SIZE;
    openblas_set_num_threads(1);
    for (int i = 0; i < threads; i++) {
        if (!rate->a[i]) {
            rate->a[i] = allocate_or_exit(elements * sizeof(float));
            rate->b[i] = allocate_or_exit(elements * sizeof(float));
            rate->c[i] = allocate_or_exit(elements * sizeof(float));
            for (size_t e = 0; e < elements; e++) {
                rate->a[i][e] = car_random_uniform(1, e) - 0.5f;
                rate->b[i][e] = car_random_uniform(2, e) - 0.5f;
                rate->c[i][e] = 0;
            }
        }
    }
    int steps = 0;
    double elapsed = measure(&rate->known[threads], threads, sgemm_work, rate, seconds, &steps);
    return 2.0 * pow(SGEMM_SIZE, 3) * steps * threads / elapsed / 1e9;
}

/* ---- multiply-adds ------------------------------------------------------------------------------------- */

/* Independent chains: enough to hide the latency of two units. */
enum { FMA_CHAINS = 12, FMA_ROUNDS = 1 << 20 };

typedef struct fma_rate {
    int width; /* floats per vector; 1: plain C, as compiled */
    pace known[MAX_THREADS + 1];
    float sink[MAX_THREADS]; /* keeps the compiler from removing the work */
} fma_rate;

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static inline float fma_chains_8(void) {
    const __m256 factor = _mm256_set1_ps(0.5f), term = _mm256_set1_ps(1.0f);
    __m256 chain[FMA_CHAINS];
    for (int k = 0; k < FMA_CHAINS; k++) {
        chain[k] = _mm256_set1_ps((float)k);
    }
    for (int i = 0; i < FMA_ROUNDS; i++) {
#pragma GCC unroll 12
        for (int k = 0; k < FMA_CHAINS; k++) {
            chain[k] = _mm256_fmadd_ps(chain[k], factor, term);
        }
    }
    for (int k = 1; k < FMA_CHAINS; k++) {
        chain[0] = _mm256_add_ps(chain[0], chain[k]);
    }
    return _mm256_cvtss_f32(chain[0]);
}

__attribute__((target("avx512f"))) static inline float fma_chains_16(void) {
    const __m512 factor = _mm512_set1_ps(0.5f), term = _mm512_set1_ps(1.0f);
    __m512 chain[FMA_CHAINS];
    for (int k = 0; k < FMA_CHAINS; k++) {
        chain[k] = _mm512_set1_ps((float)k);
    }
    for (int i = 0; i < FMA_ROUNDS; i++) {
#pragma GCC unroll 12
        for (int k = 0; k < FMA_CHAINS; k++) {
            chain[k] = _mm512_fmadd_ps(chain[k], factor, term);
        }
    }
    for (int k = 1; k < FMA_CHAINS; k++) {
        chain[0] = _mm512_add_ps(chain[0], chain[k]);
    }
    return _mm512_cvtss_f32(chain[0]);
}
#endif

static inline float fma_chains_1(void) {
    float chain[FMA_CHAINS];
    for (int k = 0; k < FMA_CHAINS; k++) {
        chain[k] = (float)k;
    }
    for (int i = 0; i < FMA_ROUNDS; i++) {
        for (int k = 0; k < FMA_CHAINS; k++) {
            chain[k] = chain[k] * 0.5f + 1.0f;
        }
    }
    for (int k = 1; k < FMA_CHAINS; k++) {
        chain[0] += chain[k];
    }
    return chain[0];
}

static inline int fma_width(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        return 16;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return 8;
    }
#endif
    return 1;
}

static inline void fma_work(void *state, int thread, int steps) {
    fma_rate *rate = state;
    float sum = 0;
    for (int s = 0; s < steps; s++) {
#if defined(__x86_64__)
        if (rate->width > 1) {
            sum += rate->width == 16 ? fma_chains_16() : fma_chains_8();
            continue;
        }
#endif
        sum += fma_chains_1();
    }
    rate->sink[thread] = sum;
}

static inline double measure_fma(fma_rate *rate, int threads, double seconds) {
    int steps = 0;
    rate->width = fma_width();
    double elapsed = measure(&rate->known[threads], threads, fma_work, rate, seconds, &steps);
    return 2.0 * FMA_CHAINS * FMA_ROUNDS * rate->width * steps * threads / elapsed / 1e9;
}

#endif
