/* The validator: messages. Every SEND has a RECEIVE with the same cargo in a later slot. Between two devices,
 * messages with one tag are received in the order of sending. */
#include <stdlib.h>

#include "plan/validate_internal.h"

/* ---- matching the ends ---------------------------------------------------------------------------- */

/* One end of a message. On one channel, the ends of a kind keep the order of their device. */
typedef struct end {
    int sender, receiver, tag, index;
} end;

static int compare_ends(const void *left, const void *right) {
    const end *a = left, *b = right;
    if (a->sender != b->sender) {
        return a->sender < b->sender ? -1 : 1;
    }
    if (a->receiver != b->receiver) {
        return a->receiver < b->receiver ? -1 : 1;
    }
    if (a->tag != b->tag) {
        return a->tag < b->tag ? -1 : 1;
    }
    return a->index < b->index ? -1 : a->index > b->index;
}

static bool same_channel(const end *a, const end *b) {
    return a->sender == b->sender && a->receiver == b->receiver && a->tag == b->tag;
}

static int collect(const car_validation *v, car_task_kind kind, end *ends) {
    int count = 0;
    for (int n = 0; n < v->count; n++) {
        const car_task *task = &v->tasks[n];
        if (task->kind == kind) {
            bool sends = kind == CAR_TASK_SEND;
            ends[count++] = (end){.sender = sends ? v->device_of[n] : task->peer,
                                  .receiver = sends ? task->peer : v->device_of[n],
                                  .tag = task->tag,
                                  .index = n};
        }
    }
    car_sort(ends, (size_t)count, sizeof *ends, compare_ends);
    return count;
}

/* Checks that both ends carry the same thing, and that the message has time to travel. */
static car_status join(car_validation *v, int sent, int received) {
    const car_task *a = &v->tasks[sent], *b = &v->tasks[received];
    if (a->cargo != b->cargo || a->micro_batch != b->micro_batch || a->stage != b->stage || a->bundle != b->bundle ||
        a->step != b->step || a->version != b->version || a->piece != b->piece) {
        char text[192];
        car_task_format(v->plan, b, text, sizeof text);
        return car_validate_fail(v, sent, "its receiver expects %s", text);
    }
    if (b->slot <= a->slot) {
        return car_validate_fail(v, received, "it is received before it can arrive: it is sent in slot %lld",
                                 (long long)a->slot);
    }
    v->partner[sent] = received;
    v->partner[received] = sent;
    return CAR_OK;
}

static car_status join_all(car_validation *v, const end *sends, int send_count, const end *receives,
                           int receive_count) {
    car_status status = CAR_OK;
    for (int n = 0; n < send_count || n < receive_count; n++) {
        bool paired = n < send_count && n < receive_count && same_channel(&sends[n], &receives[n]);
        if (!paired) {
            /* Both lists are sorted, so the smaller end has no partner. */
            bool lone_send = n >= receive_count || (n < send_count && compare_ends(&sends[n], &receives[n]) < 0);
            return lone_send ? car_validate_fail(v, sends[n].index, "it is sent, but never received")
                             : car_validate_fail(v, receives[n].index, "it is awaited, but never sent");
        }
        CAR_TRY(join(v, sends[n].index, receives[n].index));
    }
done:
    return status;
}

car_status car_validate_messages(car_validation *v) {
    car_status status = CAR_OK;
    end *sends = NULL, *receives = NULL;
    size_t count = (size_t)v->count;
    CAR_TRY(car_context_allocate(v->context, count, sizeof *sends, &sends));
    CAR_TRY(car_context_allocate(v->context, count, sizeof *receives, &receives));
    for (int n = 0; n < v->count; n++) {
        v->partner[n] = CAR_NONE;
    }
    int send_count = collect(v, CAR_TASK_SEND, sends);
    int receive_count = collect(v, CAR_TASK_RECEIVE, receives);
    CAR_TRY(join_all(v, sends, send_count, receives, receive_count));
done:
    car_context_release(v->context, receives, count, sizeof *receives);
    car_context_release(v->context, sends, count, sizeof *sends);
    return status;
}
