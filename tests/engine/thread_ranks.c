/* See thread_ranks.h. */
#include "engine/thread_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "engine/session.h"
#include "engine/snapshots.h"
#include "transport/transport.h"

bool car_thread_ranks_run(int ranks, const car_thread_rank *like, const car_trouble *trouble, void *(*function)(void *),
                          car_thread_rank *out, bool *struck) {
    car_thread_rank members[CAR_THREAD_RANKS_MOST];
    pthread_t threads[CAR_THREAD_RANKS_MOST];
    car_context *context = NULL;
    car_hub *hub = NULL;
    bool good = ranks <= CAR_THREAD_RANKS_MOST && car_context_create(NULL, &context) == CAR_OK &&
                car_hub_create(context, ranks, &hub) == CAR_OK;
    if (good) {
        car_hub_make_trouble(hub, trouble);
    }
    for (int r = 0; good && r < ranks; r++) {
        members[r] = *like;
        members[r].hub = hub;
        members[r].rank = r;
        if (pthread_create(&threads[r], NULL, function, &members[r]) != 0) {
            fputs("could not start a thread\n", stderr);
            abort(); /* the others would wait for it */
        }
    }
    for (int r = 0, started = good ? ranks : 0; r < started; r++) {
        pthread_join(threads[r], NULL);
        good = good && members[r].good;
        if (out) {
            out[r] = members[r];
        }
    }
    if (hub && struck) {
        *struck = car_hub_was_struck(hub);
    }
    car_hub_destroy(hub);
    car_context_destroy(context);
    return good;
}

/* ---- runs that come to their end --------------------------------------------------------------------------- */

static void *train(void *argument) {
    car_thread_rank *m = argument;
    car_context *context = NULL;
    car_transport *transport = NULL;
    if (car_context_create(NULL, &context) == CAR_OK && car_hub_join(m->hub, context, m->rank, &transport) == CAR_OK) {
        m->good = m->stop_step == CAR_NONE ? car_placement_run(transport, m->setting, m->model, m->rule, m->guarded)
                                           : car_placement_stop(transport, m->setting, m->model, m->rule, m->stop_step,
                                                                m->stopper, m->guarded);
        car_transport_close(transport);
    }
    car_context_destroy(context);
    return NULL;
}

bool car_thread_ranks_train(const car_thread_rank *like, const car_trouble *trouble) {
    return car_thread_ranks_run(car_placement_ranks(like->setting, like->rule), like, trouble, train, NULL, NULL);
}

/* ---- runs that lose a rank --------------------------------------------------------------------------------- */

static car_status train_twice(const car_thread_rank *m, car_rank *rank, car_transport *transport) {
    char own = 0, all[CAR_THREAD_RANKS_MOST];
    car_snapshot *snapshot = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_rank_initialize(rank, 7));
    CAR_TRY(car_rank_run(rank, 3));
    CAR_TRY(car_rank_run(rank, 6));
    if (m->rank == 0) {
        CAR_TRY(car_rank_create_snapshot(rank, &snapshot));
    }
    CAR_TRY(car_rank_gather(rank, snapshot));
    CAR_TRY(car_transport_all_gather(transport, &own, 1, all)); /* so that nobody ends well while another does not */
done:
    car_snapshot_destroy(snapshot);
    return status;
}

static car_status open_and_train(car_thread_rank *m, car_session *session, car_transport *transport, car_arena *arena) {
    car_plan_config config = car_placement_plan(m->setting, &session->config.plan);
    car_trainer_config training = session->config.training;
    car_plan *plan = NULL;
    car_rank *rank = NULL;
    car_snapshot_keeper keeper;
    car_status status = CAR_OK;
    car_snapshots_open(&keeper, m->setting, false, &training);
    training.threads = m->setting->threads;
    training.feed = car_session_feed;
    training.feed_user = session;
    training.watchdog_seconds = m->patience;
    CAR_TRY(car_plan_create(session->context, session->partition, &config, &plan));
    CAR_TRY(car_plan_validate(plan, 4));
    CAR_TRY(car_rank_create(plan, session->program, arena, transport, &training, &rank));
    keeper.rank = rank;
    CAR_TRY(train_twice(m, rank, transport));
done:
    if (status != CAR_OK) {
        car_hub_give_up(m->hub); /* as the program does: the others wait for it */
    }
    car_snapshots_close(&keeper);
    car_rank_destroy(rank);
    car_plan_destroy(plan);
    return status;
}

static void *endure(void *argument) {
    car_thread_rank *m = argument;
    car_session_config config = car_placement_configure(m->setting, m->model, m->rule, m->guarded);
    car_session session;
    car_transport *transport = NULL;
    car_arena *arena = NULL;
    if (m->feed_fails) {
        config.fault = (car_fault){.kind = CAR_FAULT_ERROR, .step = 1, .worker = m->setting->workers - 1};
    }
    config.log = NULL;
    m->good = car_session_open(&session, &config) == CAR_OK && car_arena_create(session.context, 0, &arena) == CAR_OK;
    m->status = m->good ? car_hub_join(m->hub, session.context, m->rank, &transport) : CAR_ERROR_INTERNAL;
    if (m->status == CAR_OK) { /* or another has failed by now */
        m->status = open_and_train(m, &session, transport, arena);
    } else {
        car_hub_give_up(m->hub);
    }
    snprintf(m->error, sizeof m->error, "%s", car_context_error(session.context));
    car_transport_close(transport);
    for (int c = 0; arena && c < CAR_MEMORY_CATEGORIES; c++) {
        m->good = m->good && car_arena_live(arena, (car_memory)c) == 0;
    }
    car_arena_destroy(arena);
    car_session_close(&session);
    return NULL;
}

bool car_thread_ranks_lose(const car_thread_rank *like, const car_trouble *trouble, car_thread_rank *ended) {
    car_thread_rank members[CAR_THREAD_RANKS_MOST];
    int ranks = car_placement_ranks(like->setting, like->rule), said = 0, failed = 0, otherwise = 0;
    bool struck = false;
    bool good = car_thread_ranks_run(ranks, like, trouble, endure, members, &struck);
    for (int r = 0; r < ranks; r++) {
        failed += members[r].status == CAR_ERROR_IO;
        otherwise += members[r].status != CAR_OK && members[r].status != CAR_ERROR_IO;
        said += members[r].error[0] != '\0';
        if (ended) {
            ended[r] = members[r];
        }
    }
    struck = struck || like->feed_fails;
    bool right = good && otherwise == 0 && (struck ? failed == ranks && said > 0 : failed == 0);
    for (int r = 0; r < ranks && !right; r++) {
        printf("  rank %d: %s%s%s%s\n", r, car_status_text(members[r].status), members[r].error[0] ? ": " : "",
               members[r].error, members[r].good ? "" : " (memory is left)");
    }
    return right;
}
