/* Pacing of the links to other ranks: tells the transport (transport/pace.h) which messages may be held back, and how
 * long.
 *
 * A message that the plan gives time to arrive may be held back until this many slots before its use:
 *
 *   partial sums    k to -3k   The receiver does not wait: it keeps its own gradient apart until the sum comes. So a
 *                   (zero -k)  sum may be late by up to 3k if the finished sum has more than 6k slots until its first
 *                              use, as most sums have under cdp-v1. Otherwise it leaves k slots before its use.
 *   finished sums   2k or 3k   Forwards wait for them, and most of the weights may queue up. 3k if the sum does not
 *                              have more than 6k slots as above.
 *   zero's weights  k          A copy is passed on up to 2k slots ahead.
 *
 * Activations and their gradients are used in the next slot, so they are never held back.
 *
 * A message leaves when its receive is posted. With pacing, receives of finished sums are posted a whole period ahead,
 * so that these sums can leave at any time after they were made. Where ranks compute for less than half of a step,
 * receives of partial sums are posted in the slot of their use. Posted earlier, they would share the link into the rank with
 * finished sums, which the rank waits for. At half the rate the longest loop of messages takes longer than the link
 * needs to carry them. */
#include "engine/rank_internal.h"
#include "plan/names.h"
#include "plan/placement.h"

static const char *const names[] = {"auto", "on", "off"};

static const char *name_at(int n) {
    return names[n];
}

car_status car_link_pacing_find(car_context *context, const char *name, car_link_pacing *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, out);
    int found = 0;
    car_status status = car_names_find(context, "pacing of links", name_at, CAR_LINKS_UNPACED + 1, name, &found);
    if (status == CAR_OK) {
        *out = (car_link_pacing)found;
    }
    return status;
}

static bool has_time(const car_rank *rank, const car_task *send) {
    return car_task_moves_sum(send) || (rank->chains && car_cargo_is_weights(send->cargo));
}

/* How many slots more than 6k lie between the last gradient of a sum and the first use of its version; 0 if there are
 * none. A sum needs about 6k slots to go round without haste. For a custom plan this is not known, so it is 0. */
static int64_t room_of(const car_rank *rank, const car_task *send) {
    const car_plan *plan = rank->plan;
    if (plan->script) {
        return 0;
    }
    int64_t version = send->step + 1, made = version * rank->batches - 1; /* the micro-batch that finishes the sum */
    int64_t first = car_plan_first_user(plan, version, send->stage);
    int64_t room = car_plan_forward_slot_of(plan, first, send->stage) -
                   car_plan_backward_slot_of(plan, made, send->stage) - 6 * (int64_t)rank->per_worker;
    return room > 0 ? room : 0;
}

int64_t car_rank_latest(const car_rank *rank, const car_task *send) {
    int64_t k = rank->per_worker;
    if (!rank->paced || !has_time(rank, send)) {
        return 0;
    }
    if (!car_task_moves_sum(send)) {
        return send->due - k;
    }
    int64_t room = room_of(rank, send), late = rank->chains ? k : 3 * k;
    if (send->cargo == CAR_CARGO_PARTIAL && room > 0) { /* the finished sum keeps 4k slots */
        return send->due + (room + 2 * k < late ? room + 2 * k : late);
    }
    if (send->cargo == CAR_CARGO_PARTIAL) {
        return send->due - k;
    }
    return send->due - (room > 0 ? 2 : 3) * k;
}

int64_t car_rank_slots_ahead(const car_rank *rank, const car_task *task) {
    int64_t ahead = car_plan_slots_ahead(rank->plan, task), period = car_plan_period(rank->plan);
    if (!rank->paced || task->kind != CAR_TASK_RECEIVE) {
        return ahead;
    }
    if (task->cargo == CAR_CARGO_PARTIAL && rank->saturated) {
        return 0;
    }
    return task->cargo == CAR_CARGO_FINISHED && ahead < period ? period : ahead;
}

void car_rank_note_slot(car_rank *rank, const car_task *task) {
    bool first = task->step > rank->step_begun;
    car_transport_note_slot(rank->transport, task->slot);
    if (first) {
        rank->step_begun = task->step;
        rank->saturated = car_transport_note_step(rank->transport, rank->computing / rank->config.threads);
    }
}

/* Counts the bytes that a step sends to each rank, in steady state, in messages that may be held back. */
static car_status count_bytes(const car_rank *rank, double *bytes) {
    enum { STEADY = 2 }; /* the first window after filling, and the number of windows that drain */
    int pattern = car_plan_pattern_steps(rank->plan, rank->device);
    car_task_list list = {0};
    car_status status = CAR_OK;
    for (int w = 0; w < pattern; w++) {
        CAR_TRY(car_plan_expand_rank(rank->plan, rank->device, STEADY + w, 2 * STEADY + pattern, &list));
        for (int n = 0; n < list.count; n++) {
            const car_task *task = &list.tasks[n];
            if (task->kind == CAR_TASK_SEND && has_time(rank, task)) {
                bytes[task->peer] += (double)car_plan_task_bytes(rank->plan, task) / pattern;
            }
        }
    }
done:
    car_task_list_release(rank->plan, &list);
    return status;
}

car_status car_rank_create_links(car_rank *rank) {
    bool several = car_transport_machines(rank->transport) > 1;
    car_link_pacing pacing = rank->config.link_pacing;
    size_t ranks = (size_t)rank->devices;
    double *bytes = NULL;
    car_status status = CAR_OK;
    rank->paced = rank->saturated = false;
    if (rank->alone || pacing == CAR_LINKS_UNPACED || (pacing == CAR_LINKS_PACED_BETWEEN_MACHINES && !several)) {
        return car_transport_pace(rank->transport, NULL);
    }
    CAR_TRY(car_context_allocate(rank->context, ranks, sizeof *bytes, &bytes));
    CAR_TRY(count_bytes(rank, bytes));
    CAR_TRY(car_transport_pace(rank->transport, bytes));
    rank->paced = true;
done:
    car_context_release(rank->context, bytes, bytes ? ranks : 0, sizeof *bytes);
    return status;
}
