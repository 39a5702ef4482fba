/* The gradients that a tape computes on wild graphs: of the reference against finite differences of the loss, and of
 * oneDNN's table against the reference. Where a gradient is shared, added to or written in place, the kernels must
 * bear it; lifetime_test.c shows that the derivation is right, this that the tape and the kernels follow it.
 *
 * A derivative along a random direction is checked for each parameter. ReLU and maximum have kinks, which ask for
 * small steps, and a float loss has rounding, which asks for large ones: so several are tried, and one must agree.
 * A wrong gradient agrees with none. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "support/rig.h"

enum { SEEDS = 25, STEPS = 5, SAMPLE = 5, SOIL = 1 << 20 };

static const double steps[STEPS] = {4e-3, 1e-3, 2.5e-4, 6e-5, 1.5e-5};
static const double relative_rounding = 3e-7; /* of the difference of two losses */

/* One graph with what was checked on it. */
typedef struct trial {
    car_rig rig;
    car_wild wild;
    int checked, telling; /* derivatives, and those among them that are not small */
} trial;

/* ---- weights -------------------------------------------------------------------------------------------- */

/* Scales near 1 and small shifts, so that nothing dies and nothing explodes on the way. */
static void set_weights(const car_rig *rig, uint64_t seed) {
    for (int p = 0; p < car_graph_param_count(rig->graph); p++) {
        const car_param *param = car_graph_param(rig->graph, p);
        int64_t count = car_shape_elements(param->shape);
        uint64_t key = car_random_key(seed, param->name);
        bool scale = param->role == CAR_PARAM_NORM && strstr(param->name, ".weight") != NULL;
        float *values = malloc((size_t)count * sizeof *values);
        assert_non_null(values);
        for (int64_t i = 0; i < count; i++) {
            values[i] = (float)((scale ? 1 : 0) + 0.4 * car_random_normal(key, (uint64_t)i));
        }
        car_rig_expect_ok(rig, car_weights_set(rig->weights, p, values));
        free(values);
    }
}

static double loss_at(const car_rig *rig, int param, const float *values) {
    car_rig_expect_ok(rig, car_weights_set(rig->weights, param, values));
    car_rig_expect_ok(rig, car_rig_feed(rig, rig->tape, SAMPLE, true));
    car_rig_expect_ok(rig, car_tape_forward(rig->tape, rig->lane, rig->weights, 0, car_graph_op_count(rig->graph)));
    return (double)car_tape_loss(rig->tape);
}

/* ---- finite differences --------------------------------------------------------------------------------- */

static void check_param(trial *t, int p) {
    const car_rig *rig = &t->rig;
    const car_param *param = car_graph_param(rig->graph, p);
    int64_t count = car_shape_elements(param->shape);
    uint64_t key = car_random_key(t->wild.seed, "direction");
    float *base = malloc((size_t)count * sizeof *base), *moved = malloc((size_t)count * sizeof *moved);
    float *gradient = malloc((size_t)count * sizeof *gradient);
    double along = 0, square = 0, measured[STEPS];
    double rounding = relative_rounding * fmax(1, (double)car_tape_loss(rig->tape));
    bool agrees = false;
    assert_true(base && moved && gradient);
    car_rig_expect_ok(rig, car_weights_get(rig->weights, p, base));
    car_rig_expect_ok(rig, car_gradients_get(rig->gradients, p, gradient));
    for (int64_t i = 0; i < count; i++) {
        along += (car_random_u64(key, (uint64_t)i) & 1 ? 1.0 : -1.0) * (double)gradient[i];
        square += (double)gradient[i] * (double)gradient[i];
    }
    for (int s = 0; s < STEPS && !agrees; s++) {
        double losses[2];
        for (int side = 0; side < 2; side++) {
            for (int64_t i = 0; i < count; i++) {
                double sign = (car_random_u64(key, (uint64_t)i) & 1) == (side == 0) ? 1 : -1;
                moved[i] = (float)((double)base[i] + sign * steps[s]);
            }
            losses[side] = loss_at(rig, p, moved);
        }
        measured[s] = (losses[0] - losses[1]) / (2 * steps[s]);
        /* A step is too small for a gradient that drowns in the rounding. */
        bool fits = s == 0 || rounding / steps[s] <= 0.1 * sqrt(square);
        agrees = agrees || (fits && fabs(measured[s] - along) <= 0.01 * sqrt(square) + rounding / steps[s]);
    }
    if (!agrees) {
        fail_msg("family %d, seed %d, %s: %g along a direction, finite differences give %g, %g, %g, %g and %g",
                 (int)t->wild.family, (int)t->wild.seed, param->name, along, measured[0], measured[1], measured[2],
                 measured[3], measured[4]);
    }
    t->checked++;
    t->telling += sqrt(square) > 1e-2;
    car_rig_expect_ok(rig, car_weights_set(rig->weights, p, base));
    free(base);
    free(moved);
    free(gradient);
}

static void differentiate(car_wild_family family) {
    int checked = 0, telling = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        trial t = {.wild = {.family = family, .seed = 1000 + (uint64_t)seed, .operations = 2 + seed % 10}};
        car_rig_open(&t.rig, &(car_rig_config){.wild = &t.wild, .kernels = CAR_KERNELS_REFERENCE});
        set_weights(&t.rig, t.wild.seed);
        car_rig_soil(&t.rig, SOIL);
        car_rig_spoil_gradients(&t.rig);
        car_rig_expect_ok(&t.rig, car_rig_step(&t.rig, SAMPLE));
        for (int p = 0; p < car_graph_param_count(t.rig.graph); p++) {
            if (car_graph_param(t.rig.graph, p)->role != CAR_PARAM_STATISTIC) {
                check_param(&t, p);
            }
        }
        checked += t.checked;
        telling += t.telling;
        car_rig_close(&t.rig);
    }
    assert_true(checked > 3 * SEEDS && 2 * telling > checked);
}

static void rows_differentiate(void **state) {
    (void)state;
    differentiate(CAR_WILD_ROWS);
}

static void sequences_differentiate(void **state) {
    (void)state;
    differentiate(CAR_WILD_SEQUENCES);
}

static void images_differentiate(void **state) {
    (void)state;
    differentiate(CAR_WILD_IMAGES);
}

/* ---- one table against the other ------------------------------------------------------------------------- */

/* The largest difference between the gradients of a parameter in two rigs; *largest is raised to the largest gradient
 * that was met. */
static double difference_of(const car_rig rigs[2], int param, double *largest) {
    size_t count = (size_t)car_shape_elements(car_graph_param(rigs[0].graph, param)->shape);
    float *values[2];
    double difference = 0;
    for (int k = 0; k < 2; k++) {
        values[k] = malloc(count * sizeof(float));
        assert_non_null(values[k]);
        car_rig_expect_ok(&rigs[k], car_gradients_get(rigs[k].gradients, param, values[k]));
    }
    for (size_t i = 0; i < count; i++) {
        double here = fabs((double)values[0][i] - (double)values[1][i]);
        difference = isnan(here) ? INFINITY : fmax(difference, here);
        *largest = fmax(*largest, fabs((double)values[0][i]));
    }
    free(values[0]);
    free(values[1]);
    return difference;
}

/* Differences are taken relative to the largest gradient of all, for a parameter's own may be nothing but rounding.
 * One graph may stray: two tables can round to different sides of a kink. */
static void compare_tables(car_wild_family family) {
    int strays = 0;
    for (int seed = 0; seed < 2 * SEEDS; seed++) {
        car_wild wild = {.family = family, .seed = 2000 + (uint64_t)seed, .operations = 2 + seed % 16};
        car_rig rigs[2];
        double losses[2], largest = 0, difference = 0;
        for (int k = 0; k < 2; k++) {
            car_kernels kernels = k == 0 ? CAR_KERNELS_REFERENCE : CAR_KERNELS_ONEDNN;
            car_rig_open(&rigs[k], &(car_rig_config){.wild = &wild, .kernels = kernels});
            set_weights(&rigs[k], wild.seed);
            car_rig_soil(&rigs[k], SOIL);
            car_rig_spoil_gradients(&rigs[k]);
            car_rig_expect_ok(&rigs[k], car_rig_step(&rigs[k], SAMPLE));
            losses[k] = (double)car_tape_loss(rigs[k].tape);
        }
        for (int p = 0; p < car_graph_param_count(rigs[0].graph); p++) {
            difference = fmax(difference, difference_of(rigs, p, &largest));
        }
        if (!(fabs(losses[0] - losses[1]) <= 2e-5 * (1 + fabs(losses[0]))) || !(difference <= 1e-4 * largest)) {
            print_message("family %d, seed %d: losses %g and %g; gradients up to %g differ by %g\n", (int)family, seed,
                          losses[0], losses[1], largest, difference);
            strays++;
        }
        car_rig_close(&rigs[0]);
        car_rig_close(&rigs[1]);
    }
    assert_true(strays <= 1);
}

static void rows_agree(void **state) {
    (void)state;
    compare_tables(CAR_WILD_ROWS);
}

static void sequences_agree(void **state) {
    (void)state;
    compare_tables(CAR_WILD_SEQUENCES);
}

static void images_agree(void **state) {
    (void)state;
    compare_tables(CAR_WILD_IMAGES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_differentiate),   cmocka_unit_test(sequences_differentiate),
        cmocka_unit_test(images_differentiate), cmocka_unit_test(rows_agree),
        cmocka_unit_test(sequences_agree),      cmocka_unit_test(images_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
