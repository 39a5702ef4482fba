/* The ranks of this process. If they are threads, each call that all ranks make together starts a thread for every rank
 * but the first. The threads end with the call:
 *
 *   caller    ── rank 0 ──┬── ...
 *   thread    ── rank 1 ──┤
 *   thread    ── rank 2 ──┘   joined
 */
#include <stdio.h>
#include <string.h>

#include "run/internal.h"
#include "transport/transport.h"

/* ---- calls by all members -------------------------------------------------------------------- */

typedef struct call {
    car_member *member;
    car_member_function function;
    void *user;
} call;

static void *make_call(void *argument) {
    const call *c = argument;
    car_member *member = c->member;
    member->status = c->function(member, c->user);
    if (member->status != CAR_OK && !member->settled && member->run->member_count > 1) {
        car_hub_give_up_for(member->run->hub, member->status); /* others may be waiting for it; the run cannot go on */
    }
    return NULL;
}

static car_status call_all(car_run *run, car_member_function function, void *user) {
    size_t count = (size_t)run->member_count;
    call *calls = NULL;
    car_status status = car_context_allocate(run->context, count, sizeof *calls, &calls);
    if (status != CAR_OK) {
        return status;
    }
    for (int m = run->member_count - 1; m >= 0; m--) {
        car_member *member = &run->members[m];
        calls[m] = (call){member, function, user};
        member->status = CAR_OK;
        member->settled = false;
        member->started = m > 0 && pthread_create(&member->thread, NULL, make_call, &calls[m]) == 0;
        if (m > 0 && !member->started) {
            status = car_context_fail(run->context, CAR_ERROR_MEMORY, "could not start a thread for rank %d", m);
            car_hub_give_up_for(run->hub, status);
        }
    }
    make_call(&calls[0]);
    for (int m = 0; m < run->member_count; m++) {
        if (run->members[m].started) {
            pthread_join(run->members[m].thread, NULL);
            run->members[m].started = false;
        }
        status = status == CAR_OK ? run->members[m].status : status;
    }
    car_context_release(run->context, calls, count, sizeof *calls);
    return status;
}

/* True if the failures left the run as it was. */
static bool can_go_on(const car_run *run) {
    bool can = true;
    for (int m = 0; m < run->member_count; m++) {
        can = can && (run->members[m].status == CAR_OK || run->members[m].settled);
    }
    return can;
}

static car_status repeat_failure(const car_run *run) {
    return car_context_fail(run->context, run->broken, "%s", run->why);
}

car_status car_run_together(car_run *run, car_member_function function, void *user) {
    if (run->broken != CAR_OK && run->member_count > 1) {
        return repeat_failure(run);
    }
    car_status status = call_all(run, function, user);
    bool ends = status != CAR_OK && !can_go_on(run);
    car_status reason = ends && run->hub ? car_hub_reason(run->hub) : CAR_OK;
    status = reason != CAR_OK ? reason : status;
    const char *message = car_context_error(run->context);
    if (status != CAR_OK && run->broken != CAR_OK && !message[0]) {
        return repeat_failure(run);
    }
    if (ends) {
        run->broken = status;
        snprintf(run->why, sizeof run->why, "%s", message);
    }
    return status;
}

/* ---- sharing failures ------------------------------------------------------------------------ */

/* A rank's status and message, for the others. */
typedef struct outcome {
    int32_t status;
    char message[508];
} outcome;

static outcome outcome_of(const car_run *run, car_status status) {
    outcome o = {.status = (int32_t)status};
    if (status != CAR_OK) {
        strncpy(o.message, car_context_error(run->context), sizeof o.message - 1);
    }
    return o;
}

static car_status fail_like(const car_run *run, int rank, const outcome *o) {
    car_status status = (car_status)o->status;
    return car_context_fail(run->context, status, "rank %d: %s", rank,
                            o->message[0] ? o->message : car_status_text(status));
}

car_status car_member_settle(car_member *member, car_status own) {
    const car_run *run = member->run;
    if (!run->launched) {
        return own;
    }
    car_status status = own;
    for (int r = 0; r < car_transport_size(member->transport); r++) { /* one at a time, to save memory */
        outcome theirs = outcome_of(run, own);
        car_status told = car_transport_broadcast(member->transport, r, &theirs, sizeof theirs);
        if (status == CAR_OK) {
            status = told != CAR_OK ? told : theirs.status != CAR_OK ? fail_like(run, r, &theirs) : CAR_OK;
        }
    }
    return status;
}

car_status car_member_follow_first(car_member *member, car_status own) {
    const car_run *run = member->run;
    outcome first = outcome_of(run, own);
    car_status status = CAR_OK;
    CAR_TRY(car_transport_broadcast(member->transport, 0, &first, sizeof first));
    if (first.status != CAR_OK) {
        member->settled = true;
        status = car_member_is_first(member) ? own : fail_like(run, 0, &first);
    }
done:
    return status;
}

/* ---- members --------------------------------------------------------------------------------- */

static car_status create_feeder(car_member *member) {
    const car_run *run = member->run;
    const car_feeder_config config = {.workers = run->options.workers,
                                      .accumulate = run->options.accumulate,
                                      .threads = run->options.data_threads,
                                      .sequential = run->options.sequential,
                                      .seed = run->options.seed};
    return run->dataset ? car_feeder_create(run->graph, run->dataset, &config, &member->feeder) : CAR_OK;
}

/* Creates what the rank computes with, and checks that memory suffices before using it. */
static car_status create_arena(car_member *member) {
    car_run *run = member->run;
    car_status status = CAR_OK;
    CAR_TRY(car_arena_create_reserving(run->context, 0, run->addresses, &member->arena));
    if (!car_run_has_ranks(run)) {
        CAR_TRY(car_run_check_memory(run, member->arena)); /* now with the kernels' needs */
    }
    CAR_TRY(create_feeder(member));
    CAR_TRY(car_member_open_recorder(member));
done:
    return status;
}

static car_status create_rank(car_member *member) {
    const car_run *run = member->run;
    car_trainer_config training = run->training;
    training.recorder = member->recorder;
    training.feed = member->feeder ? car_feeder_feed : run->options.feed;
    training.feed_user = member->feeder ? member->feeder : run->options.feed_user;
    if (!car_member_is_first(member)) {
        training.on_snapshot = NULL;
    }
    return car_rank_create(run->plan, run->program, member->arena, member->transport, &training, &member->rank);
}

static car_status begin(car_member *member) {
    const car_run *run = member->run;
    car_status status = CAR_OK;
    CAR_TRY(car_member_begin(member));
    if (car_member_is_first(member)) {
        car_run_check_disk(run);
    }
    if (member->feeder) {
        const car_rank *reads_for = car_transport_size(member->transport) > 1 ? member->rank : NULL;
        CAR_TRY(car_feeder_start(member->feeder, reads_for, car_rank_steps(member->rank), run->steps));
    }
done:
    return status;
}

static car_status create(car_member *member, void *user) {
    const car_run *run = member->run;
    car_status status = CAR_OK;
    (void)user;
    if (run->hub) {
        CAR_TRY(car_hub_join(run->hub, run->context, member->index, &member->transport));
    }
    CAR_TRY(car_member_agree(member));
    bool mapped = car_placement_maps_workers(run->plan_config.placement);
    CAR_TRY(car_transport_renumber(member->transport,
                                   mapped && car_plan_config_of(run->plan)->mapping == CAR_MAPPING_INTERLEAVED));
    CAR_TRY(car_member_settle(member, create_arena(member)));
    if (car_run_has_ranks(run)) {
        CAR_TRY(car_member_settle(member, car_rank_check_size(run->plan, member->transport)));
        CAR_TRY(car_member_check_memory(member));
    }
    CAR_TRY(car_member_settle(member, create_rank(member)));
    CAR_TRY(car_member_settle(member, begin(member)));
done:
    return status;
}

car_status car_run_create_members(car_run *run) {
    return car_run_together(run, create, NULL);
}

/* Closing a transport waits for the other ranks, so all close at the same time. */
static car_status destroy(car_member *member, void *user) {
    (void)user;
    car_weights_destroy(member->average);
    car_weights_destroy(member->gathered);
    car_rank_destroy(member->rank);
    car_recorder_destroy(member->recorder);
    car_transport_close(member->transport);
    car_feeder_destroy(member->feeder);
    car_arena_destroy(member->arena);
    return CAR_OK;
}

void car_run_destroy_members(car_run *run) {
    if (run->members) {
        call_all(run, destroy, NULL);
    }
}

/* ---- work on rank 0 -------------------------------------------------------------------------- */

/* A snapshot to gather into. An average needs a complete snapshot; otherwise weights are enough. */
static car_status create_snapshot(const car_member *member, car_snapshot **out) {
    return car_run_average_decay(member->run) > 0
               ? car_rank_create_snapshot(member->rank, out)
               : car_snapshot_create(member->run->program, member->arena, false, 0, out);
}

static car_status copy_gathered(car_member *member, const car_snapshot *snapshot) {
    car_run *run = member->run;
    car_status status = CAR_OK;
    if (!member->gathered) {
        CAR_TRY(car_weights_create(run->program, member->arena, &member->gathered));
    }
    CAR_TRY(car_snapshot_get_weights(snapshot, member->gathered));
    car_weights_destroy(member->average);
    member->average = NULL;
    car_subject subject = {.weights = member->gathered};
    status = car_run_copy_average(run, snapshot, member->arena, &subject);
    member->average = subject.average;
done:
    return status;
}

/* With one rank, which has all workers, nothing needs to be gathered. */
static car_status take_own(car_member *member, car_subject *out) {
    out->weights = car_rank_weights(member->rank);
    return car_run_copy_average(member->run, NULL, member->arena, out);
}

car_status car_member_gather(car_member *member, car_subject *out) {
    car_snapshot *snapshot = NULL;
    car_status status = CAR_OK;
    *out = (car_subject){.step = car_rank_steps(member->rank)};
    if (car_transport_size(member->transport) == 1) {
        status = take_own(member, out);
        member->settled = status != CAR_OK;
        return status;
    }
    if (member->gathered_step != out->step) { /* the same on all ranks */
        bool first = car_member_is_first(member);
        car_member_note_peaks(member);
        CAR_TRY(car_member_follow_first(member, first ? create_snapshot(member, &snapshot) : CAR_OK));
        CAR_TRY(car_rank_gather(member->rank, snapshot));
        CAR_TRY(car_member_follow_first(member, first ? copy_gathered(member, snapshot) : CAR_OK));
        member->gathered_step = out->step;
    }
    out->weights = member->gathered;
    out->average = member->average;
done:
    car_snapshot_destroy(snapshot);
    return status;
}

void car_member_drop(const car_member *member, car_subject *subject) {
    if (subject->average != member->average) {
        car_weights_destroy(subject->average);
    }
    subject->average = NULL;
}

typedef struct first_work {
    car_member *member;
    car_member_function function;
    void *user;
    car_status status;
} first_work;

/* A failure here fails the call, but not the rank: the run can go on. */
static car_status work_first(void *user) {
    first_work *work = user;
    work->status = work->function(work->member, work->user);
    return CAR_OK;
}

car_status car_member_work_first(car_member *member, car_member_function function, void *user, void *result,
                                 size_t bytes) {
    first_work work = {member, function, user, CAR_OK};
    car_status status = CAR_OK;
    if (car_transport_size(member->transport) == 1) {
        status = function(member, user);
        member->settled = status != CAR_OK;
        return status;
    }
    CAR_TRY(car_rank_attend(member->rank, work_first, &work));
    CAR_TRY(car_member_follow_first(member, work.status));
    if (bytes > 0 && member->run->launched) { /* ranks of one process share the result */
        CAR_TRY(car_transport_broadcast(member->transport, 0, result, bytes));
    }
done:
    return status;
}
