/* How fast is each kernel? One thread, forward and backward, compared with the rate of SGEMM.
 *
 *     kernels [PART OF A NAME]
 *
 * The cases are those of tests/kernels that are marked for speed, so everything timed is also tested. A convolution
 * that can use Winograd's algorithm is timed both ways; its FLOPs are those of the direct one. Every case is timed
 * in fp32 and in bf16, against the same SGEMM. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/cases.h"
#include "kernels/harness.h"
#include "rates.h"

enum { MAX_SAMPLES = 5 };
static const double sample_seconds = 0.02, pass_seconds = 1.0;

static car_status run_pass(car_trial *trial, bool backward) {
    return backward ? car_trial_backward(trial) : car_trial_forward(trial, true);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of one call. Short calls are repeated to fill a sample. */
static car_status time_pass(car_trial *trial, bool backward, double *seconds) {
    car_status status = CAR_OK;
    double samples[MAX_SAMPLES];
    int count = 0;
    CAR_TRY(run_pass(trial, backward)); /* warm-up */
    double begin = car_clock_seconds();
    CAR_TRY(run_pass(trial, backward)); /* finds how many calls make a sample */
    double start = car_clock_seconds();
    int calls = (int)fmax(1, ceil(sample_seconds / (start - begin)));
    while (count < MAX_SAMPLES && (count == 0 || car_clock_seconds() - start < pass_seconds)) {
        begin = car_clock_seconds();
        for (int i = 0; i < calls; i++) {
            CAR_TRY(run_pass(trial, backward));
        }
        samples[count++] = (car_clock_seconds() - begin) / calls;
    }
    qsort(samples, (size_t)count, sizeof samples[0], compare);
    *seconds = samples[count / 2];
done:
    return status;
}

/* As a finished graph would count them, since a case's graph is not finished. */
static double backward_flops(const car_trial *trial) {
    const car_op *op = &trial->op;
    bool by_weights_only = op->grad_mode[0] == CAR_GRAD_NONE && (op->kind == CAR_OP_CONV || op->kind == CAR_OP_LINEAR);
    return by_weights_only ? op->flops_backward / 2 : op->flops_backward;
}

/* The share of the SGEMM rate is only meaningful for matrix products. */
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

/* Widened: a kernel for floats between conversions. */
static const char *type_of(const car_trial *trial) {
    return trial->kernel.widened ? "widened" : trial->table->precision == CAR_PRECISION_BF16 ? "bf16   " : "fp32   ";
}

static car_status time_case(car_context *context, const car_trial_table *table, const car_case *test, double *sgemm) {
    static sgemm_rate rate;
    car_status status = CAR_OK;
    car_trial *trial = NULL;
    double forward = 0, backward = 0;
    car_trial_config config = car_trial_config_default(table, test);
    CAR_TRY(car_trial_create(context, table, test, &config, &trial));
    CAR_TRY(car_trial_load(trial));
    CAR_TRY(time_pass(trial, false, &forward));
    CAR_TRY(time_pass(trial, true, &backward));
    /* The speed of a shared machine changes from second to second, so an SGEMM is timed before and after each case. */
    double before = *sgemm;
    *sgemm = measure_sgemm(&rate, 1, 0);
    double around = (before > 0 ? before + *sgemm : 2 * *sgemm) / 2;
    printf("%-36s %-28s %s", test->name, trial->kernel.name ? trial->kernel.name : "-", type_of(trial));
    print_pass(test->kind, trial->op.flops_forward, forward, around);
    print_pass(test->kind, backward_flops(trial), backward, around);
    printf(" %8.1f\n", around);
    fflush(stdout);
done:
    car_trial_destroy(trial);
    return status;
}

/* Whether the table's convolution for a case is Winograd's rather than oneDNN's. */
static car_status is_winograd(car_context *context, const car_trial_table *table, const car_case *test, bool *out) {
    car_trial *trial = NULL;
    car_trial_config config = car_trial_config_default(table, test);
    config.batch = 1;
    *out = false;
    if (test->kind != CAR_OP_CONV) {
        return CAR_OK;
    }
    car_status status = car_trial_create(context, table, test, &config, &trial);
    *out = status == CAR_OK && trial->kernel.class == &car_winograd_conv;
    car_trial_destroy(trial);
    return status;
}

/* Times one precision: the default and, if possible, Winograd's algorithm. */
static car_status time_both(car_context *context, const car_trial_table *table, const car_trial_table *winograd,
                            const car_case *test, double *sgemm) {
    bool both = false;
    car_status status = CAR_OK;
    CAR_TRY(time_case(context, table, test, sgemm));
    CAR_TRY(is_winograd(context, winograd, test, &both));
    if (both) {
        CAR_TRY(time_case(context, winograd, test, sgemm));
    }
done:
    return status;
}

static car_status time_all(car_context *context, const char *part) {
    car_status status = CAR_OK;
    car_trial_table table = {0}, winograd = {0};
    double sgemm = 0;
    car_kernel_mode mode = car_kernels_enter(1);
    CAR_TRY(car_trial_open_onednn(context, &table));
    CAR_TRY(car_trial_open_winograd(context, table.block, &winograd));
    const car_trial_table table_bf16 = car_trial_in_bf16(&table), winograd_bf16 = car_trial_in_bf16(&winograd);
    printf("%-36s %-28s %-7s %26s %26s %8s\n", "", "", "", "forward", "backward", "SGEMM");
    printf("%-36s %-28s %-7s %10s %8s %6s %10s %8s %6s %8s\n", "case", "kernel", "type", "us", "GFLOP/s", "SGEMM", "us",
           "GFLOP/s", "SGEMM", "GFLOP/s");
    for (int i = 0; i < car_case_count(); i++) {
        const car_case *test = car_case_at(i);
        if (test->speed && strstr(test->name, part)) {
            CAR_TRY(time_both(context, &table, &winograd, test, &sgemm));
            CAR_TRY(time_both(context, &table_bf16, &winograd_bf16, test, &sgemm));
        }
    }
done:
    car_trial_close(&winograd);
    car_trial_close(&table);
    car_kernels_leave(mode);
    return status;
}

int main(int count, char **arguments) {
    car_context *context = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_create(NULL, &context));
    CAR_TRY(time_all(context, count > 1 ? arguments[1] : ""));
done:
    if (status != CAR_OK) {
        fprintf(stderr, "kernels: %s: %s\n", car_status_text(status), context ? car_context_error(context) : "");
    }
    car_context_destroy(context);
    return status == CAR_OK ? 0 : 1;
}
