/* A table of kernels against the reference. See check.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/check.h"

enum { MAX_CONFIGS = 24, EVALUATED = CAR_TRIAL_TENSORS, RESULTS };

static const double default_tolerance = 1e-5;

/* What a trial computed, in canonical layout: results of training by CAR_TRIAL_*, and the output in evaluation. */
typedef struct outcome {
    float *values[RESULTS]; /* NULL: not computed */
    size_t elements[RESULTS];
    char name[RESULTS][24];
    bool adds; /* gradients have what was there before in them */
} outcome;

static car_status keep(car_context *context, const car_trial *trial, int tensor, int result, outcome *out) {
    const car_trial_tensor *from = &trial->tensors[tensor];
    out->elements[result] = from->elements;
    snprintf(out->name[result], sizeof out->name[result], "%s%s", from->name, result == EVALUATED ? " (eval)" : "");
    car_status status = car_context_allocate(context, from->elements, sizeof(float), &out->values[result]);
    return status == CAR_OK ? car_trial_read(trial, tensor, out->values[result]) : status;
}

static void release(car_context *context, outcome *out) {
    for (int r = 0; r < RESULTS; r++) {
        car_context_release(context, out->values[r], out->elements[r], sizeof(float));
    }
    *out = (outcome){0};
}

/* Evaluation, then forward and backward in training. `fault` says whether the kernel broke the rules. */
static car_status run(car_context *context, car_trial *trial, outcome *out, char *fault, size_t capacity) {
    car_status status = CAR_OK;
    fault[0] = '\0';
    CAR_TRY(car_trial_load(trial));
    CAR_TRY(car_trial_forward(trial, false));
    CAR_TRY(keep(context, trial, CAR_TRIAL_OUT, EVALUATED, out));
    CAR_TRY(car_trial_load(trial));
    CAR_TRY(car_trial_forward(trial, true));
    CAR_TRY(keep(context, trial, CAR_TRIAL_OUT, CAR_TRIAL_OUT, out));
    car_trial_soil_scratch(trial);
    CAR_TRY(car_trial_backward(trial));
    for (int i = CAR_TRIAL_GRAD_IN; i < CAR_TRIAL_TENSORS; i++) {
        if (trial->tensors[i].values) {
            CAR_TRY(keep(context, trial, i, i, out));
        }
    }
    car_trial_inspect(trial, fault, capacity);
done:
    return status;
}

/* ---- modes --------------------------------------------------------------------------------------------- */

static const char *mode_text(const car_trial_config *config, char *text, size_t capacity) {
    static const char *const names[] = {
        [CAR_GRAD_NONE] = "none", [CAR_GRAD_WRITE] = "write", [CAR_GRAD_ADD] = "add", [CAR_GRAD_SHARED] = "shared"};
    snprintf(text, capacity, "%s %s%s%s", names[config->grad_mode[0]], names[config->grad_mode[1]],
             config->in_place == 0 ? " (first in place)" : "", config->in_place == 1 ? " (second in place)" : "");
    return text;
}

/* Every way in which a graph can ask for the gradients. */
static int list_configs(const car_trial_table *table, const car_case *test, car_trial_config *configs) {
    const car_trial_config plain = car_trial_config_default(table, test);
    bool shares = test->kind == CAR_OP_ADD;
    int count = 0;
    for (int first = CAR_GRAD_NONE; first <= CAR_GRAD_SHARED; first++) {
        for (int second = CAR_GRAD_NONE; second <= CAR_GRAD_SHARED; second++) {
            const car_grad_mode mode[CAR_CASE_INPUTS] = {(car_grad_mode)first, (car_grad_mode)second};
            bool possible = true;
            for (int q = 0; q < CAR_CASE_INPUTS; q++) {
                bool has_gradient = plain.grad_mode[q] == CAR_GRAD_WRITE;
                possible =
                    possible && (has_gradient || mode[q] == CAR_GRAD_NONE) && (shares || mode[q] != CAR_GRAD_SHARED);
            }
            for (int in_place = CAR_NONE; possible && in_place < CAR_CASE_INPUTS; in_place++) {
                if (in_place == CAR_NONE ||
                    (mode[in_place] == CAR_GRAD_WRITE && car_trial_works_in_place(test, in_place))) {
                    configs[count++] = (car_trial_config){.grad_mode = {mode[0], mode[1]}, .in_place = in_place};
                }
            }
        }
    }
    return count;
}

/* ---- comparison ---------------------------------------------------------------------------------------- */

/* Where the kernel added, what was there before belongs to what is expected. */
static double before(const car_trial *trial, const outcome *expected, int result, size_t i) {
    int q = result - CAR_TRIAL_GRAD_IN;
    bool added = q >= 0 && q < CAR_CASE_INPUTS && trial->op.grad_mode[q] == CAR_GRAD_ADD &&
                 car_kernel_adds_grad(&trial->kernel) && !expected->adds;
    return added ? (double)trial->tensors[result].values[i] : 0;
}

/* A batch's mean is as exact as its values are large, however close to zero it is itself. */
static double scale_of_mean(const car_trial *trial, const outcome *expected, int result, size_t i) {
    bool mean = trial->op.kind == CAR_OP_BATCHNORM && result == CAR_TRIAL_GRAD_PARAM + 2;
    return mean ? (double)expected->values[CAR_TRIAL_GRAD_PARAM + 3][i] : 0;
}

/* Root of the mean square error over that of what is expected (where that is all zero: as it is). */
static double relative_error(const car_trial *trial, const outcome *expected, const outcome *found, int result) {
    double errors = 0, squares = 0;
    for (size_t i = 0; i < expected->elements[result]; i++) {
        double wanted = (double)expected->values[result][i] + before(trial, expected, result, i);
        double error = (double)found->values[result][i] - wanted;
        errors += error * error;
        squares += wanted * wanted + scale_of_mean(trial, expected, result, i);
    }
    return squares > 0 ? sqrt(errors / squares) : sqrt(errors);
}

static bool compare(const car_trial *trial, const char *mode, const outcome *expected, const outcome *found,
                    double tolerance) {
    bool right = true;
    for (int r = 0; r < RESULTS; r++) {
        if (!found->values[r]) {
            continue;
        }
        double error = relative_error(trial, expected, found, r);
        if (!(error <= tolerance)) {
            print_error("%s, %s, %s: %s: relative error %.3g, %.1g allowed\n", trial->test->name, trial->table->name,
                        mode, found->name[r], error, tolerance);
            right = false;
        }
    }
    return right;
}

static bool same_bits(const car_trial *trial, const char *mode, const outcome *first, const outcome *second) {
    bool right = true;
    for (int r = 0; r < RESULTS; r++) {
        if (first->values[r] && memcmp(first->values[r], second->values[r], first->elements[r] * sizeof(float)) != 0) {
            print_error("%s, %s, %s: %s: a second call computed other bits\n", trial->test->name, trial->table->name,
                        mode, first->name[r]);
            right = false;
        }
    }
    return right;
}

static car_status check_config(car_context *context, const car_trial_table *table, const car_case *test,
                               const car_trial_config *config, const outcome *expected, double tolerance, bool *right) {
    car_trial *trial = NULL;
    outcome first = {0}, second = {0};
    char mode[64], fault[128];
    car_status status = CAR_OK;
    mode_text(config, mode, sizeof mode);
    CAR_TRY(car_trial_create(context, table, test, config, &trial));
    CAR_TRY(run(context, trial, &first, fault, sizeof fault));
    if (fault[0]) {
        print_error("%s, %s, %s: %s\n", test->name, table->name, mode, fault);
        *right = false;
    }
    *right = compare(trial, mode, expected, &first, tolerance) && *right;
    CAR_TRY(run(context, trial, &second, fault, sizeof fault));
    *right = same_bits(trial, mode, &first, &second) && *right;
done:
    if (status != CAR_OK) {
        print_error("%s, %s, %s: %s: %s\n", test->name, table->name, mode, car_status_text(status),
                    car_context_error(context));
        car_context_clear_error(context);
        *right = false;
    }
    release(context, &second);
    release(context, &first);
    car_trial_destroy(trial);
    return status;
}

/* Against a reference that rounds at the same points, an element differs where the last bits of a sum decide how it is
 * rounded; attention and a head with its loss also round what
 * enters their next product. Against floats every element is rounded, what
 * is given as well, by up to 2^-9 of itself. */
static double bf16_tolerance(const car_case *test, const car_trial_table *reference) {
    bool rounds_inside = test->kind == CAR_OP_ATTENTION || test->kind == CAR_OP_HEAD_LOSS;
    double near = test->offset != 0 ? 0.1 : 2e-2; /* what is far from zero loses more of what it differs by */
    return reference->precision == CAR_PRECISION_FP32 ? near : rounds_inside ? 1e-2 : 5e-4;
}

bool car_check_table(car_context *context, const car_trial_table *table, const car_trial_table *reference,
                     const car_case *test) {
    car_trial_config configs[MAX_CONFIGS], plain = car_trial_config_default(reference, test);
    car_trial *trial = NULL;
    outcome expected = {0};
    char fault[128];
    bool right = true;
    /* The reference against itself: no way of asking may change a bit. */
    double tolerance = table->precision == CAR_PRECISION_BF16 ? bf16_tolerance(test, reference)
                       : table->classes == reference->classes ? 0
                       : test->tolerance > 0                  ? test->tolerance
                                                              : default_tolerance;
    plain.batch = test->speed ? test->check_batch : 0;
    car_status status = CAR_OK;
    CAR_TRY(car_trial_create(context, reference, test, &plain, &trial));
    CAR_TRY(run(context, trial, &expected, fault, sizeof fault));
    int count = list_configs(table, test, configs);
    for (int i = 0; i < count; i++) {
        configs[i].batch = plain.batch;
        if (reference->precision == CAR_PRECISION_BF16) { /* a sum is rounded, so it is expected as one */
            car_trial_config alike = configs[i];
            alike.in_place = CAR_NONE;
            car_trial_destroy(trial);
            release(context, &expected);
            CAR_TRY(car_trial_create(context, reference, test, &alike, &trial));
            CAR_TRY(run(context, trial, &expected, fault, sizeof fault));
            expected.adds = true;
        }
        CAR_TRY(check_config(context, table, test, &configs[i], &expected, tolerance, &right));
    }
done:
    if (status != CAR_OK) {
        print_error("%s: %s: %s\n", test->name, car_status_text(status), car_context_error(context));
        car_context_clear_error(context);
    }
    release(context, &expected);
    car_trial_destroy(trial);
    return right && status == CAR_OK;
}
