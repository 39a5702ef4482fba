/* How fast is each kernel? One thread, forward and backward, beside the rate of SGEMM.
 *
 *     kernels [PART OF A NAME]
 *
 * The cases are those of tests/kernels that are marked for speed, so that what is timed is also checked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/cases.h"
#include "kernels/harness.h"
#include "rates.h"

enum { SAMPLES = 5 };
static const double sample_seconds = 0.02, sgemm_seconds = 0.3;

static car_status run_pass(car_trial *trial, bool backward) {
    return backward ? car_trial_backward(trial) : car_trial_forward(trial, true);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over samples of the time that one call takes; short calls are repeated to fill a sample. */
static car_status time_pass(car_trial *trial, bool backward, double *seconds) {
    car_status status = CAR_OK;
    double samples[SAMPLES];
    double begin = car_clock_seconds();
    CAR_TRY(run_pass(trial, backward)); /* the warm-up, and how many calls make a sample */
    double once = car_clock_seconds() - begin;
    int calls = (int)fmax(1, ceil(sample_seconds / once));
    for (int s = 0; s < SAMPLES; s++) {
        begin = car_clock_seconds();
        for (int i = 0; i < calls; i++) {
            CAR_TRY(run_pass(trial, backward));
        }
        samples[s] = (car_clock_seconds() - begin) / calls;
        calls = (int)fmax(1, ceil(sample_seconds / samples[s]));
    }
    qsort(samples, SAMPLES, sizeof samples[0], compare);
    *seconds = samples[SAMPLES / 2];
done:
    return status;
}

/* As a finished graph would count them: a case's graph is not finished. */
static double backward_flops(const car_trial *trial) {
    const car_op *op = &trial->op;
    bool by_weights_only = op->grad_mode[0] == CAR_GRAD_NONE && (op->kind == CAR_OP_CONV || op->kind == CAR_OP_LINEAR);
    return by_weights_only ? op->flops_backward / 2 : op->flops_backward;
}

/* The share of the SGEMM rate is of interest where the work is matrix products of some kind. */
static void print_pass(car_op_kind kind, double flops, double seconds, double sgemm) {
    bool products = kind == CAR_OP_CONV || kind == CAR_OP_LINEAR || kind == CAR_OP_ATTENTION;
    double rate = flops / seconds / 1e9;
    printf(" %10.0f %8.1f", seconds * 1e6, rate);
    if (products) {
        printf(" %4.0f %%", 100 * rate / sgemm);
    } else {
        printf(" %6s", "");
    }
}

static car_status time_case(car_context *context, const car_trial_table *table, const car_case *test, double sgemm) {
    car_status status = CAR_OK;
    car_trial *trial = NULL;
    double forward = 0, backward = 0;
    car_trial_config config = car_trial_config_default(table, test);
    CAR_TRY(car_trial_create(context, table, test, &config, &trial));
    CAR_TRY(car_trial_load(trial));
    CAR_TRY(time_pass(trial, false, &forward));
    CAR_TRY(time_pass(trial, true, &backward));
    printf("%-36s %-18s", test->name, trial->kernel.name ? trial->kernel.name : "-");
    print_pass(test->kind, trial->op.flops_forward, forward, sgemm);
    print_pass(test->kind, backward_flops(trial), backward, sgemm);
    printf("\n");
    fflush(stdout);
done:
    car_trial_destroy(trial);
    return status;
}

static car_status time_all(car_context *context, const char *part, double sgemm) {
    car_status status = CAR_OK;
    car_trial_table table = {0};
    car_kernel_mode mode = car_kernels_enter(1);
    CAR_TRY(car_trial_open_onednn(context, &table));
    printf("%-36s %-18s %10s %8s %6s %10s %8s %6s\n", "case", "kernel", "forward us", "GFLOP/s", "SGEMM", "back us",
           "GFLOP/s", "SGEMM");
    for (int i = 0; i < car_case_count(); i++) {
        const car_case *test = car_case_at(i);
        if (test->speed && strstr(test->name, part)) {
            CAR_TRY(time_case(context, &table, test, sgemm));
        }
    }
done:
    car_trial_close(&table);
    car_kernels_leave(mode);
    return status;
}

int main(int count, char **arguments) {
    static sgemm_rate rate;
    car_context *context = NULL;
    car_status status = CAR_OK;
    double before = measure_sgemm(&rate, 1, sgemm_seconds);
    printf("Kernels on one thread. SGEMM of OpenBLAS, %d x %d, one thread: %.1f GFLOP/s\n", SGEMM_SIZE, SGEMM_SIZE,
           before);
    CAR_TRY(car_context_create(NULL, &context));
    CAR_TRY(time_all(context, count > 1 ? arguments[1] : "", before));
    printf("SGEMM afterwards: %.1f GFLOP/s\n", measure_sgemm(&rate, 1, sgemm_seconds));
done:
    if (status != CAR_OK) {
        fprintf(stderr, "kernels: %s: %s\n", car_status_text(status), context ? car_context_error(context) : "");
    }
    car_context_destroy(context);
    release_sgemm(&rate);
    return status == CAR_OK ? 0 : 1;
}
