/* See snapshots.h. */
#include "engine/snapshots.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "transport/transport.h"

enum { STEPS = 8 };

/* ---- rank 0's keeper ----------------------------------------------------------------------------- */

bool car_snapshots_is_whole(const car_placement_setting *s, const car_snapshot *snapshot) {
    return s->snapshot_every > 0 && car_snapshot_get_numbers(snapshot).step % s->snapshot_every == 0;
}

static void copy_snapshot(const car_graph *graph, const car_snapshot *from, car_snapshot *to, bool whole) {
    car_snapshot_numbers numbers = car_snapshot_get_numbers(from);
    car_snapshot_set_numbers(to, &numbers);
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        float *values = malloc((size_t)car_shape_elements(car_graph_param(graph, p)->shape) * sizeof *values);
        for (int part = 0; part < (whole ? CAR_SNAPSHOT_PARTS : 1); part++) {
            if (car_snapshot_has(from, (car_snapshot_part)part, p)) {
                car_snapshot_get(from, (car_snapshot_part)part, p, values);
                car_snapshot_set(to, (car_snapshot_part)part, p, values);
            }
        }
        free(values);
    }
}

static void keep(void *user, const car_snapshot *snapshot) {
    car_snapshot_keeper *k = user;
    const car_graph *graph = car_program_graph(car_snapshot_program(snapshot));
    if (k->count < CAR_SNAPSHOTS_MOST && car_rank_create_snapshot(k->rank, &k->snapshots[k->count]) == CAR_OK) {
        copy_snapshot(graph, snapshot, k->snapshots[k->count], car_snapshots_is_whole(k->setting, snapshot));
    }
    k->count++;
    if (!k->holds) {
        car_rank_return_snapshot(k->rank);
        return;
    }
    pthread_mutex_lock(&k->lock);
    k->held = car_snapshot_get_numbers(snapshot).step;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

/* Gives back what is held once a step has ended that the snapshot does not have. At the end of a run there is none. */
static void *give_back(void *argument) {
    car_snapshot_keeper *k = argument;
    pthread_mutex_lock(&k->lock);
    while (!k->ending) {
        if (k->held > 0 && (k->reported > k->held || k->held >= STEPS)) {
            k->held_while_reported += k->reported > k->held;
            k->held = 0;
            pthread_mutex_unlock(&k->lock);
            car_rank_return_snapshot(k->rank);
            pthread_mutex_lock(&k->lock);
        } else {
            pthread_cond_wait(&k->changed, &k->lock);
        }
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

void car_snapshots_note_report(car_snapshot_keeper *k, int64_t step) {
    pthread_mutex_lock(&k->lock);
    k->reported = step + 1;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

void car_snapshots_open(car_snapshot_keeper *k, const car_placement_setting *setting, bool holds,
                        car_trainer_config *training) {
    *k = (car_snapshot_keeper){.setting = setting, .holds = holds};
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, NULL);
    training->snapshot_every = setting->snapshot_every;
    training->weights_every = setting->weights_every;
    training->on_snapshot = keep;
    training->snapshot_user = k;
    if (holds && pthread_create(&k->thread, NULL, give_back, k) != 0) {
        abort();
    }
}

void car_snapshots_close(car_snapshot_keeper *k) {
    if (k->holds) {
        pthread_mutex_lock(&k->lock);
        k->ending = true;
        pthread_cond_signal(&k->changed);
        pthread_mutex_unlock(&k->lock);
        pthread_join(k->thread, NULL);
    }
    for (int c = 0; c < k->count && c < CAR_SNAPSHOTS_MOST; c++) {
        car_snapshot_destroy(k->snapshots[c]);
    }
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
}

/* ---- comparing ----------------------------------------------------------------------------------- */

int car_snapshots_expected(const car_placement_setting *s, int64_t steps) {
    int count = 0;
    for (int64_t v = 1; v <= steps; v++) {
        count += (s->snapshot_every > 0 && v % s->snapshot_every == 0) ||
                 (s->weights_every > 0 && v % s->weights_every == 0);
    }
    return count;
}

bool car_snapshots_are_equal(const car_graph *graph, const car_snapshot *a, const car_snapshot *b, bool whole) {
    car_snapshot_numbers left = car_snapshot_get_numbers(a), right = car_snapshot_get_numbers(b);
    bool same = left.step == right.step && left.updates == right.updates && left.since == right.since &&
                left.averaged == right.averaged && (left.norm == right.norm || (isnan(left.norm) && isnan(right.norm)));
    if (!same) {
        printf("   numbers differ: step %lld and %lld, updates %lld and %lld, norm %g and %g\n", (long long)left.step,
               (long long)right.step, (long long)left.updates, (long long)right.updates, left.norm, right.norm);
    }
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        size_t bytes = (size_t)car_shape_elements(car_graph_param(graph, p)->shape) * sizeof(float);
        float *x = malloc(bytes), *y = malloc(bytes);
        for (int part = 0; part < (whole ? CAR_SNAPSHOT_PARTS : 1); part++) {
            same = same &&
                   car_snapshot_has(a, (car_snapshot_part)part, p) == car_snapshot_has(b, (car_snapshot_part)part, p);
            if (same && car_snapshot_has(a, (car_snapshot_part)part, p)) {
                car_snapshot_get(a, (car_snapshot_part)part, p, x);
                car_snapshot_get(b, (car_snapshot_part)part, p, y);
                same = memcmp(x, y, bytes) == 0;
                if (!same) {
                    printf("   part %d of %s after step %lld differs\n", part, car_graph_param(graph, p)->name,
                           (long long)left.step);
                }
            }
        }
        free(y);
        free(x);
    }
    return same;
}

/* ---- both runs ----------------------------------------------------------------------------------- */

typedef struct world {
    car_transport *transport;
    car_session session;
    car_plan *plan;
    car_arena *arena;
    car_snapshot_keeper keeper;
} world;

static void note_report(void *user, const car_step_report *report) {
    car_snapshots_note_report(user, report->step);
}

static car_status run_through(world *w, car_trainer_config *training, int64_t *loops) {
    car_snapshot_keeper *k = &w->keeper;
    int64_t before = car_transport_loops(w->transport);
    car_status status = CAR_OK;
    training->report = k->holds ? note_report : NULL;
    training->report_user = k;
    CAR_TRY(car_rank_create(w->plan, w->session.program, w->arena, w->transport, training, &k->rank));
    CAR_TRY(car_rank_initialize(k->rank, 7));
    CAR_TRY(car_rank_run(k->rank, STEPS));
done:
    *loops = car_transport_loops(w->transport) - before;
    return status;
}

static car_status compare_drained(world *w, car_trainer_config *training, bool *good) {
    const car_snapshot_keeper *k = &w->keeper;
    bool first = car_transport_rank(w->transport) == 0;
    car_rank *rank = NULL;
    car_snapshot *snapshot = NULL;
    int at = 0;
    car_status status = CAR_OK;
    training->snapshot_every = training->weights_every = 0;
    CAR_TRY(car_rank_create(w->plan, w->session.program, w->arena, w->transport, training, &rank));
    CAR_TRY(car_rank_initialize(rank, 7));
    if (first) {
        CAR_TRY(car_rank_create_snapshot(rank, &snapshot));
    }
    for (int64_t v = 1; v <= STEPS; v++) {
        if (car_snapshots_expected(k->setting, v) > car_snapshots_expected(k->setting, v - 1)) {
            CAR_TRY(car_rank_run(rank, v));
            CAR_TRY(car_rank_gather(rank, snapshot));
            *good = *good &&
                    (!first ||
                     (at < k->count && car_snapshots_are_equal(w->session.graph, snapshot, k->snapshots[at],
                                                               car_snapshots_is_whole(k->setting, k->snapshots[at]))));
            at++;
        }
    }
done:
    car_snapshot_destroy(snapshot);
    car_rank_destroy(rank);
    return status;
}

/* The last snapshot may be given back right now. */
static int held_meanwhile(car_snapshot_keeper *k) {
    pthread_mutex_lock(&k->lock);
    int held = k->held_while_reported;
    pthread_mutex_unlock(&k->lock);
    return held;
}

bool car_placement_snapshots(car_transport *transport, const car_placement_setting *s, const char *model, car_rule rule,
                             bool guarded) {
    car_session_config config = car_placement_configure(s, model, rule, guarded);
    car_plan_config plan = car_placement_plan(s, &config.plan);
    world w = {.transport = transport};
    bool first = car_transport_rank(transport) == 0, good = true, holds = first && s->weights_every == 0;
    int64_t loops = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_session_open(&w.session, &config));
    CAR_TRY(car_plan_create(w.session.context, w.session.partition, &plan, &w.plan));
    CAR_TRY(car_plan_validate(w.plan, 4));
    CAR_TRY(car_arena_create(w.session.context, 0, &w.arena));
    car_trainer_config training = config.training;
    training.threads = s->threads;
    training.feed = car_session_feed;
    training.feed_user = &w.session;
    car_snapshots_open(&w.keeper, s, holds, &training);
    CAR_TRY(run_through(&w, &training, &loops));
    training.report = NULL;
    good = loops == 1 && w.keeper.count == (first ? car_snapshots_expected(s, STEPS) : 0);
    CAR_TRY(compare_drained(&w, &training, &good));
    good = good && (!holds || held_meanwhile(&w.keeper) > 0);
    if (first) {
        printf("%s snapshots of %s %s %s%s N=%d k=%d R=%d every %d, weights %d: %d, in %lld loop, %d held meanwhile\n",
               good ? "ok" : "FAILED", model, car_rule_text(rule), car_placement_text(s->placement),
               guarded ? ", guarded" : "", s->workers, s->per_worker, car_plan_devices(w.plan), s->snapshot_every,
               s->weights_every, w.keeper.count, (long long)loops, held_meanwhile(&w.keeper));
        fflush(stdout);
    }
done:
    if (status != CAR_OK) {
        fprintf(stderr, "rank %d: %s\n", car_transport_rank(transport), car_context_error(w.session.context));
        abort(); /* the others would wait */
    }
    car_snapshots_close(&w.keeper);
    car_rank_destroy(w.keeper.rank);
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        good = good && car_arena_live(w.arena, (car_memory)c) == 0;
    }
    car_arena_destroy(w.arena);
    car_plan_destroy(w.plan);
    car_session_close(&w.session);
    return good;
}
