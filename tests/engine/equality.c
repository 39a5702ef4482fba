/* Engine and sequential trainer side by side; see equality.h. */
#include "engine/equality.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int thread_counts[] = CAR_EQUALITY_THREADS;

/* ---- what to train with ---------------------------------------------------------------------- */

car_equality_setting car_equality_sgd(car_rule rule, int workers, int per_worker) {
    car_equality_setting s = {.rule = rule, .workers = workers, .per_worker = per_worker, .schedule = {.lr = 0.05}};
    s.optimizer = car_optimizer_config_default();
    s.optimizer.weight_decay = 5e-4;
    for (int t = 0; t < CAR_EQUALITY_STEPS; t++) {
        s.lr[t] = s.schedule.lr;
    }
    return s;
}

car_equality_setting car_equality_adamw(car_rule rule, int workers, int per_worker) {
    car_equality_setting s = car_equality_sgd(rule, workers, per_worker);
    s.optimizer.kind = CAR_OPTIMIZER_ADAMW;
    s.optimizer.weight_decay = 0.01;
    s.schedule.lr = 1e-3;
    for (int t = 0; t < CAR_EQUALITY_STEPS; t++) {
        s.lr[t] = s.schedule.lr;
    }
    return s;
}

static const char *describe(const car_equality_setting *s, int threads) {
    static char text[160];
    snprintf(text, sizeof text, "%s, %s, N = %d, k = %d, M = %d%s, P = %d, slack %d, clip %g, pause %d",
             car_rule_text(s->rule), car_optimizer_text(s->optimizer.kind), s->workers, s->per_worker, s->accumulate,
             s->by_worker ? " by worker" : "", threads, s->slack, s->clip_norm, s->pause);
    return text;
}

car_sequential *car_equality_sequential(car_world *w, const car_equality_setting *s) {
    const car_sequential_config config = {.rule = s->rule,
                                          .workers = s->workers,
                                          .per_worker = s->per_worker,
                                          .accumulate = s->accumulate,
                                          .by_worker = s->by_worker,
                                          .freshness_slack = s->slack,
                                          .steps = CAR_EQUALITY_STEPS,
                                          .lr = s->lr,
                                          .optimizer = s->optimizer,
                                          .clip_norm = s->clip_norm,
                                          .seed = CAR_WORLD_SEED,
                                          .feed = car_world_feed,
                                          .feed_user = w};
    car_sequential *sequential = NULL;
    car_world_must(w, car_sequential_create(w->program, w->arena, &config, &sequential));
    car_world_start(w, car_sequential_weights(sequential, 0));
    car_world_must(w, car_sequential_run(sequential));
    return sequential;
}

/* ---- comparing ------------------------------------------------------------------------------- */

int car_equality_difference(const car_world *w, const car_weights *a, const car_weights *b) {
    int found = CAR_NONE;
    for (int p = 0; found == CAR_NONE && p < car_graph_param_count(w->graph); p++) {
        size_t count = (size_t)car_shape_elements(car_graph_param(w->graph, p)->shape);
        float *left = malloc(count * sizeof *left), *right = malloc(count * sizeof *right);
        assert_true(left && right);
        car_world_must(w, car_weights_get(a, p, left));
        car_world_must(w, car_weights_get(b, p, right));
        if (memcmp(left, right, count * sizeof *left) != 0) {
            found = p;
        }
        free(right);
        free(left);
    }
    return found;
}

typedef struct losses {
    double loss[CAR_EQUALITY_STEPS];
    int64_t next;
} losses;

static void note_loss(void *user, const car_step_report *report) {
    losses *l = user;
    if (report->step == l->next && report->step < CAR_EQUALITY_STEPS) {
        l->loss[l->next++] = report->loss;
    }
}

static void expect_same_stages(const car_world *w, const car_partition *partition, const car_sequential *sequential) {
    for (int j = 0; j < partition->stage_count; j++) {
        for (int l = partition->stages[j].first; l < partition->stages[j].end; l++) {
            if (car_sequential_stage(sequential, l) != j) {
                fail_msg("%s is in stage %d of the engine, but in %d by definition", car_graph_op(w->graph, l)->name, j,
                         car_sequential_stage(sequential, l));
            }
        }
    }
}

static void train(car_world *w, const car_equality_setting *s, int threads, car_trainer *trainer,
                  const car_sequential *expected, const losses *got) {
    car_world_start(w, car_trainer_weights(trainer));
    if (s->pause > 0) {
        car_world_must(w, car_trainer_run(trainer, s->pause));
        assert_int_equal(car_trainer_steps(trainer), s->pause);
        int cut = car_equality_difference(w, car_trainer_weights(trainer), car_sequential_weights(expected, s->pause));
        if (cut != CAR_NONE) {
            fail_msg("%s: %s differs at the pause", describe(s, threads), car_graph_param(w->graph, cut)->name);
        }
    }
    car_world_must(w, car_trainer_run(trainer, CAR_EQUALITY_STEPS));
    assert_int_equal(car_trainer_steps(trainer), CAR_EQUALITY_STEPS);
    assert_int_equal(got->next, CAR_EQUALITY_STEPS);
    for (int t = 0; t < CAR_EQUALITY_STEPS; t++) {
        double loss = car_sequential_loss(expected, t);
        if (memcmp(&got->loss[t], &loss, sizeof loss) != 0) {
            fail_msg("%s: the loss of step %d is %.9g, not %.9g", describe(s, threads), t, got->loss[t], loss);
        }
    }
    int param =
        car_equality_difference(w, car_trainer_weights(trainer), car_sequential_weights(expected, CAR_EQUALITY_STEPS));
    if (param != CAR_NONE) {
        fail_msg("%s: %s differs", describe(s, threads), car_graph_param(w->graph, param)->name);
    }
}

void car_equality_expect(car_world *w, const car_equality_setting *s, int threads, const car_sequential *expected) {
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_trainer *trainer = NULL;
    losses got = {.next = 0};
    const car_plan_config plan_config = {.workers = s->workers,
                                         .accumulate = s->accumulate,
                                         .sum_order = s->by_worker ? CAR_SUM_ORDER_WORKER : CAR_SUM_ORDER_MICRO_BATCH,
                                         .rule = s->rule,
                                         .threads = threads,
                                         .freshness_slack = s->slack};
    car_trainer_config config = car_trainer_config_default();
    config.threads = threads;
    config.seed = CAR_WORLD_SEED;
    config.optimizer = s->optimizer;
    config.schedule = s->schedule;
    config.clip_norm = s->clip_norm;
    config.shared_update_bytes = s->shared_update_bytes;
    config.feed = car_world_feed;
    config.feed_user = w;
    config.report = note_loss;
    config.report_user = &got;
    const car_partition_config cut = {.stages = s->workers * s->per_worker, .recompute = s->recompute};
    car_world_must(w, car_partition_create(w->graph, &cut, &partition));
    assert_true(s->recompute.how == CAR_RECOMPUTE_OFF || partition->recomputation.operations > 0);
    expect_same_stages(w, partition, expected);
    car_world_must(w, car_plan_create(w->context, partition, &plan_config, &plan));
    car_world_must(w, car_plan_validate(plan, 4));
    car_world_must(w, car_trainer_create(plan, w->program, w->arena, &config, &trainer));
    train(w, s, threads, trainer, expected, &got);
    if (s->helped) {
        *s->helped += car_trainer_time(trainer).helped;
    }
    car_trainer_destroy(trainer);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
}

void car_equality_check(car_world *w, const car_equality_setting *s) {
    car_sequential *expected = car_equality_sequential(w, s);
    for (int c = 0; c < CAR_COUNT(thread_counts); c++) {
        car_equality_expect(w, s, thread_counts[c], expected);
        if (s->rule == CAR_RULE_DP) {
            car_equality_setting accumulate = *s;
            accumulate.rule = CAR_RULE_ACCUMULATE;
            car_equality_expect(w, &accumulate, thread_counts[c], expected);
        }
    }
    car_sequential_destroy(expected);
}

/* Rules without a delay are one mathematics; dp's workers add their own first. */
static void check_without_delay(car_world *w, const car_equality_setting *s, int threads,
                                const car_sequential *expected) {
    static const car_rule all[] = {CAR_RULE_DP, CAR_RULE_ACCUMULATE, CAR_RULE_STAGGER};
    car_equality_setting of_rule = *s;
    for (int r = 0; r < CAR_COUNT(all); r++) {
        of_rule.rule = all[r];
        if (all[r] != CAR_RULE_DP || s->by_worker) {
            car_equality_expect(w, &of_rule, threads, expected);
        }
    }
}

void car_equality_check_several(car_world *w, car_equality_setting s) {
    for (int by_worker = 0; by_worker < 2; by_worker++) {
        s.by_worker = by_worker;
        car_sequential *expected = car_equality_sequential(w, &s);
        for (int threads = 1; threads <= s.workers; threads += 2) {
            if (s.rule == CAR_RULE_DP) {
                check_without_delay(w, &s, threads, expected);
            } else {
                car_equality_expect(w, &s, threads, expected);
            }
        }
        car_sequential_destroy(expected);
    }
}
