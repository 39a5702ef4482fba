/* Pacing of the links to other ranks: what the transport must know for it (transport/pace.h).
 *
 * Messages that have time by the plan may be held back, until this many slots before their use:
 *
 *   partial sums    -k   the receiver does not wait for them: it keeps its own gradient apart until they come. With a
 *                        positive number, all sums of a rank that was late would be due at once, and leave at once
 *   finished sums   3k   forwards wait for them, and most of the weights may queue up; they are made at least 2k slots
 *                        before their use, most of them a good part of a step before
 *   zero's weights  k    a copy is passed on up to 2k slots ahead
 *
 * Activations and their gradients are used in the next slot and are never held back. */
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

int64_t car_rank_latest(const car_rank *rank, const car_task *send) {
    int64_t k = rank->per_worker;
    int64_t before = send->cargo == CAR_CARGO_PARTIAL ? -k : send->cargo == CAR_CARGO_FINISHED ? 3 * k : k;
    return has_time(rank, send) ? send->due - before : 0;
}

void car_rank_note_slot(car_rank *rank, const car_task *task) {
    bool first = task->step > rank->step_begun;
    rank->step_begun = first ? task->step : rank->step_begun;
    car_transport_note_slot(rank->transport, task->slot, first);
}

/* Counts the bytes that a step sends to each rank in messages that may be held back, in steady state. */
static car_status count_bytes(const car_rank *rank, double *bytes) {
    enum { STEADY = 2 }; /* the first window that neither fills nor drains, and how many drain */
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
    if (rank->alone || pacing == CAR_LINKS_UNPACED || (pacing == CAR_LINKS_PACED_BETWEEN_MACHINES && !several)) {
        return car_transport_pace(rank->transport, NULL);
    }
    CAR_TRY(car_context_allocate(rank->context, ranks, sizeof *bytes, &bytes));
    CAR_TRY(count_bytes(rank, bytes));
    CAR_TRY(car_transport_pace(rank->transport, bytes));
done:
    car_context_release(rank->context, bytes, bytes ? ranks : 0, sizeof *bytes);
    return status;
}
