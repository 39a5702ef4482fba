/* Runs of the toy stages; see toy_run.h. */
#include "engine/toy_run.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

car_trainer_config car_toy_configure(const car_toy *toy, int threads) {
    car_trainer_config config = car_trainer_config_default();
    config.threads = threads;
    config.feed = car_toy_feed;
    config.feed_user = (void *)(uintptr_t)toy;
    return config;
}

static void count_skipped(void *user, const car_step_report *report) {
    ((car_toy_run *)user)->skipped += report->skipped;
}

/* The loss and gradient of the first step; then some steps, with questions on the way if wanted. */
static void *train(void *argument) {
    car_toy_run *m = argument;
    car_toy toy;
    car_transport *transport = NULL;
    car_rank *rank = NULL;
    car_toy_open(&toy, &m->config, m->plan, true);
    m->count = car_toy_count(&toy);
    car_toy_must(&toy, car_hub_join(m->hub, toy.context, m->rank, &transport));
    car_trainer_config config = car_toy_configure(&toy, m->threads);
    config.clip_norm = m->clips ? 0.5 : 0;
    config.skip_nonfinite = m->clips || m->skips;
    config.report = count_skipped;
    config.report_user = m;
    car_toy_must(&toy, car_rank_create(toy.plan, toy.program, toy.arena, transport, &config, &rank));
    car_toy_must(&toy, car_rank_initialize(rank, CAR_TOY_SEED));
    car_toy_must(&toy, car_toy_read(&toy, rank, m->start));
    car_toy_must(&toy, car_rank_evaluate(rank, &m->evaluated));
    car_toy_must(&toy, car_toy_gradient(&toy, rank, &m->loss, m->gradient));
    car_toy_serial(&toy, 0, m->start, &m->serial_loss, m->serial);
    car_toy_must(&toy, car_rank_run(rank, m->asks ? 2 : CAR_TOY_RUN));
    if (m->asks) {
        double loss, nothing[CAR_TOY_MOST];
        car_toy_must(&toy, car_rank_evaluate(rank, &loss));
        car_toy_must(&toy, car_toy_gradient(&toy, rank, &loss, nothing));
        m->steps = car_rank_steps(rank);
        car_toy_must(&toy, car_rank_run(rank, CAR_TOY_RUN));
    }
    car_toy_must(&toy, car_toy_read(&toy, rank, m->end));
    car_rank_destroy(rank);
    car_transport_close(transport);
    car_toy_close(&toy);
    return NULL;
}

void car_toy_train(car_toy_run *m) {
    static car_toy_run members[CAR_THREAD_RANKS_MOST];
    pthread_t threads[CAR_THREAD_RANKS_MOST];
    car_context *context = NULL;
    int64_t devices = 0;
    car_plan_config plan = m->plan;
    plan.workers = m->config.workers;
    devices = car_plan_config_devices(&plan);
    int ranks = plan.placement == CAR_PLACEMENT_SHARED ? 1 : plan.ranks > 0 ? plan.ranks : (int)devices;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    assert_int_equal(car_hub_create(context, ranks, &m->hub), CAR_OK);
    for (int r = 0; r < ranks; r++) {
        members[r] = *m;
        members[r].rank = r;
        assert_int_equal(pthread_create(&threads[r], NULL, train, &members[r]), 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        size_t bytes = (size_t)members[0].count * sizeof(double);
        assert_memory_equal(members[r].gradient, members[0].gradient, bytes);
        assert_memory_equal(members[r].end, members[0].end, bytes);
        assert_true(members[r].loss == members[0].loss && members[r].evaluated == members[0].evaluated);
    }
    *m = members[0];
    car_hub_destroy(m->hub);
    car_context_destroy(context);
}

car_toy_run car_toy_shared(car_rule rule, int workers, int stages, int threads, int segments) {
    return (car_toy_run){.config = {.stages = stages, .workers = workers, .segments = segments},
                         .plan = {.rule = rule, .placement = CAR_PLACEMENT_SHARED, .threads = threads},
                         .threads = threads};
}
