/* Stages of one's own: the runtime against plain calls, over rules, threads, placements and ranks; their memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/evaluate.h"
#include "carousel/predict.h"
#include "engine/toy_run.h"

static void expect_serial(const car_toy_run *m) {
    assert_memory_equal(m->gradient, m->serial, (size_t)m->count * sizeof(double));
    assert_true(m->loss == m->serial_loss);
    assert_true(m->evaluated == m->serial_loss);
}

/* ---- equality ---------------------------------------------------------------------------------------- */

static void gradient_is_the_serial_one(void **state) {
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_ACCUMULATE, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    (void)state;
    for (int r = 0; r < 4; r++) {
        for (int threads = 1; threads <= 3; threads += 2) {
            car_toy_run m = car_toy_shared(rules[r], 3, 6, threads, threads == 1 ? 0 : 3);
            car_toy_train(&m);
            expect_serial(&m);
        }
    }
}

/* Central differences of the loss, by every parameter of the model and one of a stage. */
static void gradient_is_the_derivative(void **state) {
    const car_toy_config config = {.stages = 4, .workers = 2, .segments = 2};
    car_plan_config plan = {.rule = CAR_RULE_ACCUMULATE, .placement = CAR_PLACEMENT_SHARED, .threads = 1};
    double values[CAR_TOY_MOST], gradient[CAR_TOY_MOST], loss = 0, up = 0, down = 0;
    car_toy toy;
    (void)state;
    car_toy_open(&toy, &config, plan, false);
    for (int n = 0; n < car_toy_count(&toy); n++) {
        values[n] = (float)(0.3 * sin(n));
    }
    car_toy_serial(&toy, 0, values, &loss, gradient);
    for (int n = 0; n <= CAR_TOY_SIZE; n++) {
        const double before = values[n], step = n < CAR_TOY_SIZE ? 1e-5 : 0x1p-10, unused = gradient[n];
        double other[CAR_TOY_MOST];
        values[n] = before + step;
        car_toy_serial(&toy, 0, values, &up, other);
        values[n] = before - step;
        car_toy_serial(&toy, 0, values, &down, other);
        values[n] = before;
        assert_true(fabs((up - down) / (2 * step) - unused) < 1e-5);
    }
    car_toy_close(&toy);
}

static void questions_change_nothing(void **state) {
    static const car_rule rules[] = {CAR_RULE_ACCUMULATE, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    (void)state;
    for (int r = 0; r < 3; r++) {
        car_toy_run plain = car_toy_shared(rules[r], 2, 4, 2, 0), asking;
        plain.clips = r > 0;
        asking = plain;
        asking.asks = true;
        car_toy_train(&plain);
        car_toy_train(&asking);
        assert_int_equal(asking.steps, 2);
        assert_memory_equal(plain.end, asking.end, (size_t)plain.count * sizeof(double));
    }
}

static void placements_agree(void **state) {
    static const struct {
        car_placement placement;
        int workers, stages, ranks;
    } cases[] = {
        {CAR_PLACEMENT_REPLICA, 6, 6, 2},  {CAR_PLACEMENT_REPLICA, 6, 6, 3}, {CAR_PLACEMENT_PIPELINE, 3, 6, 0},
        {CAR_PLACEMENT_PIPELINE, 4, 4, 0}, {CAR_PLACEMENT_ZERO, 3, 6, 0},    {CAR_PLACEMENT_GRID, 2, 4, 0},
    };
    static const car_rule rules[] = {CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    (void)state;
    for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) {
        for (int r = 0; r < 2; r++) {
            car_toy_run one = car_toy_shared(rules[r], cases[c].workers, cases[c].stages, 1, 2), many = one;
            many.plan.placement = cases[c].placement;
            many.plan.ranks = cases[c].ranks;
            one.clips = many.clips = c % 2 == 0;
            many.asks = r == 1;
            car_toy_train(&one);
            car_toy_train(&many);
            expect_serial(&many);
            if (memcmp(one.end, many.end, (size_t)one.count * sizeof(double)) != 0) {
                fail_msg("case %d under %s: other weights than in one process", c, car_rule_text(rules[r]));
            }
        }
    }
}

/* Collectives add in any order. */
static void collectives_add_doubles(void **state) {
    static const car_placement placements[] = {CAR_PLACEMENT_REPLICA, CAR_PLACEMENT_ZERO};
    (void)state;
    for (int p = 0; p < 2; p++) {
        car_toy_run m = car_toy_shared(CAR_RULE_DP, 3, 3, 1, 0);
        m.config.bare = true;
        m.plan.placement = placements[p];
        car_toy_train(&m);
        assert_true(fabs(m.loss - m.serial_loss) < 1e-14 * m.serial_loss);
        for (int n = 0; n < m.count; n++) {
            assert_true(fabs(m.gradient[n] - m.serial[n]) < 1e-13);
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------------------- */

/* One micro-batch at a time needs what the curve says, to the byte, with and without what is rebuilt. */
static void memory_is_as_predicted(void **state) {
    (void)state;
    for (int segments = 0; segments <= 3; segments += 3) {
        const car_toy_config config = {.stages = 4, .workers = 2, .segments = segments};
        car_plan_config plan = {.rule = CAR_RULE_ACCUMULATE, .placement = CAR_PLACEMENT_SHARED, .threads = 1};
        car_toy toy;
        car_trainer *trainer = NULL;
        car_toy_open(&toy, &config, plan, false);
        const car_trainer_config training = car_toy_configure(&toy, 1);
        car_toy_must(&toy, car_trainer_create(toy.plan, toy.program, toy.arena, &training, &trainer));
        car_toy_must(&toy, car_trainer_initialize(trainer, CAR_TOY_SEED));
        car_toy_must(&toy, car_trainer_run(trainer, 2));
        assert_int_equal(car_arena_peak(toy.arena, CAR_MEMORY_ACTIVATIONS), toy.partition->curve.peak);
        car_trainer_destroy(trainer);
        car_toy_close(&toy);
    }
}

/* With a thread for each worker: not above the prediction, which is what evenly spaced workers need. */
static void memory_keeps_to_the_budget(void **state) {
    const car_toy_config config = {.stages = 12, .workers = 2};
    car_plan_config plan = {.rule = CAR_RULE_STAGGER, .placement = CAR_PLACEMENT_SHARED, .accumulate = 3, .threads = 2};
    car_toy toy;
    car_trainer *trainer = NULL;
    car_simulation predicted;
    (void)state;
    car_toy_open(&toy, &config, plan, false);
    const car_trainer_config training = car_toy_configure(&toy, 2);
    car_toy_must(&toy, car_trainer_create(toy.plan, toy.program, toy.arena, &training, &trainer));
    car_toy_must(&toy, car_trainer_initialize(trainer, CAR_TOY_SEED));
    car_toy_must(&toy, car_trainer_run(trainer, 2));
    car_toy_must(&toy, car_plan_predict_timed(toy.plan, 2, &predicted));
    double even = 2 * car_predict_free_running(toy.partition, 2) * (double)toy.partition->curve.peak;
    double peak = (double)car_arena_peak(toy.arena, CAR_MEMORY_ACTIVATIONS);
    print_message("peak over the predicted: %.3f\n", peak / (double)predicted.peak);
    assert_true(fabs((double)predicted.peak / even - 1) < 1e-6);
    assert_true(peak <= 1.001 * (double)predicted.peak);
    car_trainer_destroy(trainer);
    car_toy_close(&toy);
}

/* ---- losses that are not finite ------------------------------------------------------------------------ */

static void a_loss_that_is_not_finite_is_skipped(void **state) {
    static const struct {
        car_rule rule;
        car_placement placement;
    } cases[] = {{CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED},  {CAR_RULE_CDP_V2, CAR_PLACEMENT_PIPELINE},
                 {CAR_RULE_CDP_V1, CAR_PLACEMENT_SHARED},  {CAR_RULE_CDP_V1, CAR_PLACEMENT_PIPELINE},
                 {CAR_RULE_STAGGER, CAR_PLACEMENT_SHARED}, {CAR_RULE_STAGGER, CAR_PLACEMENT_REPLICA}};
    car_toy_run before;
    (void)state;
    for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) {
        car_toy_run m = car_toy_shared(cases[c].rule, 2, 4, 1, 0);
        m.config.ends_bare = true;
        m.config.fault = CAR_TOY_INFINITE_ONCE;
        m.plan.placement = cases[c].placement;
        m.skips = true;
        car_toy_train(&m);
        if (m.skipped != 1) {
            fail_msg("case %d: %d steps were skipped", c, m.skipped);
        }
        if (c % 2 == 1) {
            assert_memory_equal(m.end, before.end, (size_t)m.count * sizeof(double));
        }
        for (int n = 0; n < m.count; n++) {
            assert_true(isfinite(m.end[n]) && fabs(m.end[n]) < 10);
        }
        before = m;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_is_the_derivative), cmocka_unit_test(gradient_is_the_serial_one),
        cmocka_unit_test(questions_change_nothing),   cmocka_unit_test(placements_agree),
        cmocka_unit_test(collectives_add_doubles),    cmocka_unit_test(memory_is_as_predicted),
        cmocka_unit_test(memory_keeps_to_the_budget), cmocka_unit_test(a_loss_that_is_not_finite_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
