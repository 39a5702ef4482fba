/* Gradients against finite differences.
 *
 * Let f be the sum of r times output, r being the output's gradient, and d a direction of random signs in one input or
 * parameter. The slope of f along d, from the values at -2h, -h, h, 2h, must be the sum of gradient times d. With this
 * stencil the error of truncation is of the order h^4, so that h can be large enough for the rounding of a float
 * output not to matter. Each tensor has its own directions: a wrong gradient cannot hide behind a larger one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/check.h"

enum { DIRECTIONS = 3 };

static const double step = 0.02;
/* A slope is a sum with random signs: its scale is the norm of the gradient. One element of a thousand that is off by
 * a tenth moves it by 3e-3 of that. */
static const double tolerance = 2e-4;
/* Rounding of floats, relative: its deviation times three, times what the stencil makes of it. */
static const double rounding = 3 * 3.5e-8 * 0.95;

typedef struct probe {
    car_trial *trial;
    float *out, *start; /* of the output; of the tensor being moved */
    double spread;      /* norm of r times output */
} probe;

static car_status evaluate(probe *probe, double *value) {
    const car_trial_tensor *grad = &probe->trial->tensors[CAR_TRIAL_GRAD_OUT];
    car_status status = CAR_OK;
    double sum = 0, squares = 0;
    CAR_TRY(car_trial_load(probe->trial));
    CAR_TRY(car_trial_forward(probe->trial, true));
    CAR_TRY(car_trial_read(probe->trial, CAR_TRIAL_OUT, probe->out));
    for (size_t i = 0; i < grad->elements; i++) {
        double term = (double)grad->values[i] * (double)probe->out[i];
        sum += term;
        squares += term * term;
    }
    *value = sum;
    probe->spread = sqrt(squares);
done:
    return status;
}

static double sign_of(int direction, size_t i) {
    return car_random_u64((uint64_t)direction + 11, i) & 1 ? 1 : -1;
}

static car_status find_slope(probe *probe, car_trial_tensor *tensor, int direction, double *slope) {
    const struct {
        int steps;
        double weight;
    } stencil[] = {{-2, 1.0 / 12}, {-1, -8.0 / 12}, {1, 8.0 / 12}, {2, -1.0 / 12}};
    car_status status = CAR_OK;
    *slope = 0;
    memcpy(probe->start, tensor->values, tensor->elements * sizeof(float));
    for (int k = 0; k < 4; k++) {
        double value;
        for (size_t i = 0; i < tensor->elements; i++) {
            tensor->values[i] = (float)((double)probe->start[i] + stencil[k].steps * step * sign_of(direction, i));
        }
        CAR_TRY(evaluate(probe, &value));
        *slope += stencil[k].weight * value / step;
    }
done:
    memcpy(tensor->values, probe->start, tensor->elements * sizeof(float));
    return status;
}

static car_status check_tensor(probe *probe, int given, const float *gradient, bool *right) {
    car_trial_tensor *tensor = &probe->trial->tensors[given];
    car_status status = CAR_OK;
    for (int direction = 0; direction < DIRECTIONS; direction++) {
        double slope, expected = 0, norm = 0, moved = 0;
        CAR_TRY(find_slope(probe, tensor, direction, &slope));
        for (size_t i = 0; i < tensor->elements; i++) {
            double g = (double)gradient[i], x = (double)tensor->values[i];
            expected += g * sign_of(direction, i);
            norm += g * g;
            moved += g * g * x * x;
        }
        double allowed = tolerance * sqrt(norm) + rounding / step * (probe->spread + sqrt(moved));
        if (!(fabs(slope - expected) <= allowed)) {
            print_error("%s: gradient of %s: slope %.8g by differences, %.8g by backward, %.2g allowed\n",
                        probe->trial->test->name, tensor->name, slope, expected, allowed);
            *right = false;
        }
    }
done:
    return status;
}

/* The gradient of a running statistic is the statistic of the batch: mean (2) or unbiased variance (3). */
static bool check_statistics(const car_trial *trial, int p, const float *gradient) {
    const car_trial_tensor *x = &trial->tensors[CAR_TRIAL_IN];
    int64_t channels = x->shape.dim[1], pixels = x->shape.dim[2] * x->shape.dim[3], count = x->shape.dim[0] * pixels;
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < (int64_t)x->elements; i++) {
            bool mine = i / pixels % channels == c;
            sum += mine ? (double)x->values[i] : 0;
            squares += mine ? (double)x->values[i] * (double)x->values[i] : 0;
        }
        double variance = (squares - sum * sum / (double)count) / (double)(count > 1 ? count - 1 : 1);
        double expected = p == 2 ? sum / (double)count : variance;
        if (!(fabs((double)gradient[c] - expected) <= 1e-5 * (1 + fabs(expected)))) {
            print_error("%s: statistic %d of channel %d: %.8g, not %.8g\n", trial->test->name, p, (int)c,
                        (double)gradient[c], expected);
            return false;
        }
    }
    return true;
}

/* Every tensor that has a gradient, against the gradients in `gradients` (parallel to the trial's tensors). */
static car_status check_all(probe *probe, float *const *gradients, bool *right) {
    car_trial *trial = probe->trial;
    car_status status = CAR_OK;
    for (int q = 0; q < trial->op.input_count; q++) {
        if (gradients[CAR_TRIAL_GRAD_IN + q]) {
            CAR_TRY(check_tensor(probe, CAR_TRIAL_IN + q, gradients[CAR_TRIAL_GRAD_IN + q], right));
        }
    }
    for (int p = 0; p < trial->op.param_count; p++) {
        const float *gradient = gradients[CAR_TRIAL_GRAD_PARAM + p];
        if (car_graph_param(trial->graph, trial->op.params[p])->role == CAR_PARAM_STATISTIC) {
            *right = check_statistics(trial, p, gradient) && *right;
        } else {
            CAR_TRY(check_tensor(probe, CAR_TRIAL_PARAM + p, gradient, right));
        }
    }
done:
    return status;
}

bool car_check_gradients(car_context *context, const car_trial_table *table, const car_case *test) {
    car_trial_config config = car_trial_config_default(table, test);
    probe probe = {0};
    float *gradients[CAR_TRIAL_TENSORS] = {0};
    size_t largest = 0;
    bool right = true;
    car_status status = CAR_OK;
    CAR_TRY(car_trial_create(context, table, test, &config, &probe.trial));
    CAR_TRY(car_trial_load(probe.trial));
    CAR_TRY(car_trial_forward(probe.trial, true));
    CAR_TRY(car_trial_backward(probe.trial));
    for (int i = 0; i < CAR_TRIAL_TENSORS; i++) {
        const car_trial_tensor *tensor = &probe.trial->tensors[i];
        largest = tensor->elements > largest ? tensor->elements : largest;
        if (tensor->values && i >= CAR_TRIAL_GRAD_IN) {
            CAR_TRY(car_context_allocate(context, tensor->elements, sizeof(float), &gradients[i]));
            CAR_TRY(car_trial_read(probe.trial, i, gradients[i]));
        }
    }
    CAR_TRY(car_context_allocate(context, largest, sizeof(float), &probe.out));
    CAR_TRY(car_context_allocate(context, largest, sizeof(float), &probe.start));
    CAR_TRY(check_all(&probe, gradients, &right));
done:
    if (status != CAR_OK) {
        print_error("%s: %s: %s\n", test->name, car_status_text(status), car_context_error(context));
        car_context_clear_error(context);
    }
    car_context_release(context, probe.start, largest, sizeof(float));
    car_context_release(context, probe.out, largest, sizeof(float));
    for (int i = 0; i < CAR_TRIAL_TENSORS; i++) {
        car_context_release(context, gradients[i], gradients[i] ? probe.trial->tensors[i].elements : 0, sizeof(float));
    }
    car_trial_destroy(probe.trial);
    return right && status == CAR_OK;
}
