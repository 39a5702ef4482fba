/* The theory of docs/delay.md: how large a rate is stable with gradients of the step before, with every correction, by
 * the loops that train; that a correction is the same as gradients at predicted weights; and what `auto` chooses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/correction.h"
#include "kernels/vector/vector.h"

/* ---- stability ------------------------------------------------------------------------------- */

/* One parameter for each product of rate and curvature, GRID of them for 1. */
enum { GRID = 250, COUNT = 4 * GRID, STEPS = 1500 };

static const double momentum = 0.9;

typedef struct quadratics {
    float now[COUNT], before[COUNT], next[COUNT], sum[COUNT];
    float first[COUNT], second[COUNT], last[COUNT];
    bool gone[COUNT];
} quadratics;

static float curvature(int i) {
    return (float)(i + 1) / GRID;
}

/* The gradient of x^2 times half the curvature, averaged over workers of which a share uses the weights before. */
static void compute_gradients(quadratics *q, double stale) {
    for (int i = 0; i < COUNT; i++) {
        q->sum[i] = curvature(i) * (float)((1 - stale) * q->now[i] + stale * q->before[i]);
    }
}

static void note_step(quadratics *q) {
    memcpy(q->before, q->now, sizeof q->now);
    memcpy(q->now, q->next, sizeof q->now);
    for (int i = 0; i < COUNT; i++) { /* infinities are slow, and prove no more */
        q->gone[i] = q->gone[i] || fabsf(q->now[i]) > 1e6f;
        if (q->gone[i]) {
            q->now[i] = q->before[i] = q->first[i] = q->last[i] = 0;
        }
    }
}

static void step_sgd(quadratics *q, double c, double a, int t) {
    const car_vector_sgd_corrected config = {
        .lr = 1, .scale = 1, .momentum = (float)momentum, .c = (float)c, .a = t > 0 ? (float)a : 0};
    car_vector_select()->sgd_corrected(q->next, q->now, q->first, q->last, q->sum, &config, COUNT);
}

/* So large an eps that nothing is normalised, and no bias to correct: SGD with a momentum of 1 - beta1 times the sum. */
static void step_adamw(quadratics *q, double c, double a, int t) {
    const float eps = 1e4f, rest = (float)(1 - momentum), lr = eps / rest;
    const car_vector_adamw_corrected config = {.plain = {.shrink = 1,
                                                         .scale = 1,
                                                         .beta1 = (float)momentum,
                                                         .rest1 = rest,
                                                         .beta2 = 0,
                                                         .rest2 = 1,
                                                         .root = 0,
                                                         .eps = eps},
                                               .moved = lr * (float)(1 + c),
                                               .before = -lr * (float)c,
                                               .a = t > 0 ? lr * rest * (float)a : 0};
    car_vector_select()->adamw_corrected(q->next, q->now, q->first, q->second, q->last, q->sum, &config, COUNT);
}

/* The largest product of rate and curvature below which every quadratic comes to rest. */
static double find_limit(void (*step)(quadratics *, double, double, int), double stale, double c, double a) {
    static quadratics q;
    memset(&q, 0, sizeof q);
    for (int i = 0; i < COUNT; i++) {
        q.now[i] = q.before[i] = 1;
    }
    for (int t = 0; t < STEPS; t++) {
        compute_gradients(&q, stale);
        step(&q, c, a, t);
        note_step(&q);
    }
    for (int i = 0; i < COUNT; i++) {
        if (q.gone[i] || fabsf(q.now[i]) > 1) {
            return curvature(i);
        }
    }
    return 4;
}

static const struct { double c, a; } columns[] = {{0, 0}, {0.9, 0}, {1, 0}, {0.9, 1}, {1, 1.5}, {1, 2}};

/* As docs/delay.md has them, to two digits. */
static const struct {
    double stale, limits[6];
} rows[] = {
    {1, {0.10, 0.25, 0.27, 0.50, 0.42, 0.36}},
    {0.75, {0.13, 0.42, 0.43, 0.64, 0.53, 0.45}},
    {0.5, {0.20, 0.77, 0.77, 0.90, 0.73, 0.63}},
};

static void expect_limit(const char *who, double stale, double c, double a, double found, double expected) {
    if (fabs(found - expected) > 0.01) {
        fail_msg("%s, %g of the workers stale, c %g, a %g: stable below %.3f, not %.2f", who, stale, c, a, found,
                 expected);
    }
}

static void test_limits(void **state) {
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
            double c = columns[k].c, a = columns[k].a, stale = rows[r].stale;
            expect_limit("sgd", stale, c, a, find_limit(step_sgd, stale, c, a), rows[r].limits[k]);
            expect_limit("adamw", stale, c, a, find_limit(step_adamw, stale, c, a), rows[r].limits[k]);
        }
    }
    expect_limit("sgd", 0, 0, 0, find_limit(step_sgd, 0, 0, 0), 3.80); /* 2 (1 + momentum) */
    expect_limit("sgd", 0, 0.9, 0, find_limit(step_sgd, 0, 0.9, 0), 1.36);
}

/* a times the share of stale workers allows more than the same a for all. */
static void test_limits_by_share(void **state) {
    static const struct {
        double stale, limit;
    } expected[] = {{1, 0.50}, {0.75, 0.68}, {0.5, 1.03}, {0.25, 2.03}, {0, 1.36}};
    (void)state;
    for (size_t e = 0; e < sizeof expected / sizeof *expected; e++) {
        double stale = expected[e].stale, by_share = find_limit(step_sgd, stale, 0.9, stale);
        expect_limit("sgd", stale, 0.9, stale, by_share, expected[e].limit);
        assert_true(by_share >= find_limit(step_sgd, stale, 0.9, 1));
    }
}

/* What `auto` chooses for M micro-batches a worker under cdp-v1, of whose gradients 1/M are late. */
static void test_limits_by_accumulation(void **state) {
    static const struct {
        int several;
        double limit;
    } expected[] = {{1, 0.36}, {2, 0.85}, {4, 1.83}, {8, 1.46}};
    (void)state;
    for (size_t e = 0; e < sizeof expected / sizeof *expected; e++) {
        car_optimizer_config config = car_optimizer_config_default();
        const car_plan_config plan = {.rule = CAR_RULE_CDP_V1, .accumulate = expected[e].several};
        car_correction correction = car_correction_choose(&plan, &config);
        double stale = 1.0 / plan.accumulate, found = find_limit(step_sgd, stale, correction.c, correction.a);
        expect_limit("sgd", stale, correction.c, correction.a, found, expected[e].limit);
        assert_true(found >= find_limit(step_sgd, stale, correction.c, 1)); /* more than as if all were late */
    }
}

/* ---- the equivalence ------------------------------------------------------------------------- */

enum { DIMENSIONS = 3, LATE_STEPS = 200 };

/* The gradient of a function that is no quadratic, and couples its variables. */
static void gradient_at(const double *x, double *g) {
    for (int i = 0; i < DIMENSIONS; i++) {
        double other = x[(i + 1) % DIMENSIONS];
        g[i] = x[i] * x[i] * x[i] - 0.7 * x[i] + 0.3 * sin(other + i) + 0.1;
    }
}

/* What both sides know: the ordinary step u = lr (v + decay x), and the prediction of the next,
 * p = lr (c v + a g). */
typedef struct optimizer {
    double v[DIMENSIONS];
} optimizer;

static const double lr = 0.02, decay = 0.01, weight_c = 0.9, weight_a = 1.1;

static void advance(optimizer *o, const double *g, const double *x, double *u, double *p) {
    for (int i = 0; i < DIMENSIONS; i++) {
        o->v[i] = momentum * o->v[i] + g[i];
        u[i] = lr * (o->v[i] + decay * x[i]);
        p[i] = lr * (weight_c * o->v[i] + weight_a * g[i]);
    }
}

/* Gradients at x_{t-1}; x_{t+1} = x_t - u_t - (p_t - p_{t-1}). */
static void run_corrected(double *x) {
    optimizer o = {{0}};
    double before[DIMENSIONS], last[DIMENSIONS] = {0}, g[DIMENSIONS], u[DIMENSIONS], p[DIMENSIONS];
    memcpy(before, x, sizeof before);
    for (int t = 0; t < LATE_STEPS; t++) {
        gradient_at(before, g);
        advance(&o, g, x, u, p);
        for (int i = 0; i < DIMENSIONS; i++) {
            before[i] = x[i];
            x[i] = x[i] - u[i] - (p[i] - last[i]);
            last[i] = p[i];
        }
    }
}

/* A master copy y without a correction, y_{t+1} = y_t - u_t; forwards run at the prediction x = y - p, one step late.
 * Decay acts on x. Returns the last x. */
static void run_predicted(double *x) {
    optimizer o = {{0}};
    double y[DIMENSIONS], before[DIMENSIONS], g[DIMENSIONS], u[DIMENSIONS], p[DIMENSIONS];
    memcpy(y, x, sizeof y); /* nothing is predicted before the first step: p_{-1} = 0 */
    memcpy(before, x, sizeof before);
    for (int t = 0; t < LATE_STEPS; t++) {
        gradient_at(before, g);
        advance(&o, g, x, u, p);
        for (int i = 0; i < DIMENSIONS; i++) {
            before[i] = x[i];
            y[i] -= u[i];
            x[i] = y[i] - p[i];
        }
    }
}

static void test_equivalence(void **state) {
    (void)state;
    double corrected[DIMENSIONS] = {1.3, -0.4, 0.8}, predicted[DIMENSIONS] = {1.3, -0.4, 0.8};
    run_corrected(corrected);
    run_predicted(predicted);
    for (int i = 0; i < DIMENSIONS; i++) {
        assert_true(isfinite(corrected[i]) && fabs(corrected[i]) > 0.05);
        assert_true(fabs(corrected[i] - predicted[i]) < 1e-12);
    }
}

/* And the loop that trains does what run_corrected does: (c, a) there is (c, a) here, but for a's first term. */
static void test_loop_is_the_correction(void **state) {
    (void)state;
    double x[DIMENSIONS] = {1.3, -0.4, 0.8}, before[DIMENSIONS], g[DIMENSIONS];
    float w[DIMENSIONS] = {1.3f, -0.4f, 0.8f}, m[DIMENSIONS] = {0}, last[DIMENSIONS] = {0}, sum[DIMENSIONS];
    const car_vector_sgd_corrected config = {
        .lr = (float)lr, .scale = 1, .momentum = (float)momentum, .c = (float)weight_c, .a = (float)weight_a};
    memcpy(before, x, sizeof before);
    run_corrected(x);
    for (int t = 0; t < LATE_STEPS; t++) {
        gradient_at(before, g);
        for (int i = 0; i < DIMENSIONS; i++) {
            before[i] = w[i];
            sum[i] = (float)(g[i]);
            w[i] -= (float)(lr * decay) * w[i]; /* here decay is decoupled, as `advance` has it */
        }
        car_vector_select()->sgd_corrected(w, w, m, last, sum, &config, DIMENSIONS);
    }
    for (int i = 0; i < DIMENSIONS; i++) {
        assert_true(fabs(w[i] - x[i]) < 1e-5);
    }
}

/* ---- auto ------------------------------------------------------------------------------------ */

static void test_auto(void **state) {
    static const car_rule late[] = {CAR_RULE_CDP_V1, CAR_RULE_CDP_V2}, prompt[] = {CAR_RULE_DP, CAR_RULE_ACCUMULATE};
    char text[80];
    (void)state;
    for (int r = 0; r < 2; r++) {
        for (int k = 0; k < CAR_OPTIMIZERS; k++) {
            car_optimizer_config config = car_optimizer_config_default();
            config.kind = (car_optimizer_kind)k;
            config.correction = car_correction_choose(&(car_plan_config){.rule = late[r]}, &config);
            double c = config.correction.c;
            assert_true(c > 0 && config.correction.a == 1);
            config.correction = car_correction_choose(&(car_plan_config){.rule = late[r], .accumulate = 4}, &config);
            bool ahead = late[r] == CAR_RULE_CDP_V1 && k == CAR_OPTIMIZER_SGD; /* as far as Nesterov's momentum */
            double fewer = ahead ? config.momentum * (1 + config.momentum / 4) : c / 4;
            assert_true(config.correction.c == fewer && config.correction.a == 0.25);
            assert_true(!ahead || c == config.momentum * (1 + config.momentum));
            config.correction = car_correction_choose(&(car_plan_config){.rule = prompt[r]}, &config);
            assert_false(car_correction_is_on(&config.correction));
            assert_int_equal(car_correction_warmup(prompt[r], &config, 1000), 0);
            assert_int_equal(car_correction_warmup(CAR_RULE_CDP_V2, &config, 1000), 0);
            int64_t warmup = car_correction_warmup(CAR_RULE_CDP_V1, &config, 1000);
            assert_true(warmup > 100 && warmup < 500);
            assert_int_equal(car_correction_warmup(CAR_RULE_CDP_V1, &config, 1000000), 2000);
        }
    }
    car_optimizer_config plain = car_optimizer_config_default();
    plain.momentum = 0;
    plain.correction = car_correction_choose(&(car_plan_config){.rule = CAR_RULE_CDP_V1}, &plain);
    assert_false(car_correction_is_on(&plain.correction));
    assert_int_equal(car_correction_warmup(CAR_RULE_CDP_V1, &plain, 1000), 0);
    car_correction_text(&plain.correction, text, sizeof text);
    assert_string_equal(text, "off");
    plain.momentum = 0.5; /* too short to gain from a correction */
    plain.correction = car_correction_choose(&(car_plan_config){.rule = CAR_RULE_CDP_V1}, &plain);
    assert_false(car_correction_is_on(&plain.correction));
    assert_true(car_correction_warmup(CAR_RULE_CDP_V1, &plain, 1000) > 0);
    car_correction_text(&(car_correction){.c = 0.9, .a = 1}, text, sizeof text);
    assert_string_equal(text, "c 0.9, a 1");
}

static void test_states(void **state) {
    (void)state;
    car_optimizer_config config = car_optimizer_config_default();
    config.correction = (car_correction){.c = 0.9};
    assert_int_equal(car_optimizer_config_states(&config), 1);
    config.correction.a = 1;
    assert_int_equal(car_optimizer_config_states(&config), 2);
    config.kind = CAR_OPTIMIZER_ADAMW;
    assert_int_equal(car_optimizer_config_states(&config), 3);
    config.kind = CAR_OPTIMIZER_SGD;
    config.nesterov = true; /* takes the correction's place */
    assert_int_equal(car_optimizer_config_states(&config), 1);
    config.nesterov = false;
    config.momentum = 0; /* nothing to correct with */
    assert_int_equal(car_optimizer_config_states(&config), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_limits_by_share),
        cmocka_unit_test(test_limits_by_accumulation),
        cmocka_unit_test(test_equivalence),
        cmocka_unit_test(test_loop_is_the_correction),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_states),

    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
