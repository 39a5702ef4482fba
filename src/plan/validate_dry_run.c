/* The validator: the dry run. Devices that walk their lists, sending without waiting and waiting where they receive or
 * meet, must all come to the end. It needs no slots: it is what an executor will do. */
#include "plan/validate_internal.h"

/* Devices that meet in collectives are neighbours in number: first .. first + size - 1. */
typedef struct party {
    int first, size, arrived;
} party;

typedef struct walk {
    car_validation *v;
    int *at;    /* device -> the task it is at */
    bool *done; /* SEND -> it has happened */
    int *queue; /* devices that may be able to go on */
    bool *queued;
    int head, length;
    int *arrived;   /* device -> the collective at which it was counted */
    party *parties; /* kept at the party's first device */
} walk;

static void enqueue(walk *w, int device) {
    if (!w->queued[device]) {
        w->queued[device] = true;
        w->queue[(w->head + w->length++) % w->v->devices] = device;
    }
}

static party *party_of(const walk *w, int device) {
    const car_validation *v = w->v;
    int first = 0, size = v->devices;
    if (v->config.placement == CAR_PLACEMENT_GRID) {
        car_validate_group(v, v->groups[device], &first, &size);
    }
    w->parties[first].first = first;
    w->parties[first].size = size;
    return &w->parties[first];
}

/* The last one to come lets all go on. What they meet for must be one thing: collectives are matched by their order. */
static car_status meet(walk *w, int device) {
    const car_validation *v = w->v;
    party *p = party_of(w, device);
    w->arrived[device] = w->at[device];
    p->arrived++;
    if (p->arrived < p->size) {
        return CAR_OK;
    }
    const car_task *task = &v->tasks[w->at[device]];
    for (int d = p->first; d < p->first + p->size; d++) {
        const car_task *other = &v->tasks[w->at[d]];
        if (other->kind != task->kind || other->bundle != task->bundle || other->step != task->step ||
            other->version != task->version || other->peer != task->peer || other->slot != task->slot) {
            char text[192];
            car_task_format(v->plan, task, text, sizeof text);
            return car_validate_fail(v, w->at[d], "device %d comes to the same collective with %s", device, text);
        }
    }
    p->arrived = 0;
    for (int d = p->first; d < p->first + p->size; d++) {
        w->at[d]++;
        enqueue(w, d);
    }
    return CAR_OK;
}

/* Walks until the device is done or has to wait. */
static car_status advance(walk *w, int device) {
    const car_validation *v = w->v;
    for (; w->at[device] < v->first[device + 1]; w->at[device]++) {
        int index = w->at[device];
        const car_task *task = &v->tasks[index];
        if (task->kind == CAR_TASK_SEND) {
            w->done[index] = true;
            enqueue(w, task->peer);
        } else if (task->kind == CAR_TASK_RECEIVE && !w->done[v->partner[index]]) {
            return CAR_OK;
        } else if (car_validate_is_collective(task)) {
            return meet(w, device);
        }
    }
    return CAR_OK;
}

static car_status run(walk *w) {
    const car_validation *v = w->v;
    car_status status = CAR_OK;
    for (int device = 0; device < v->devices; device++) {
        w->arrived[device] = CAR_NONE;
        w->at[device] = v->first[device];
        enqueue(w, device);
    }
    while (w->length > 0) {
        int device = w->queue[w->head];
        w->head = (w->head + 1) % v->devices;
        w->length--;
        w->queued[device] = false;
        if (w->arrived[device] != w->at[device]) {
            CAR_TRY(advance(w, device));
        }
    }
done:
    return status;
}

static car_status check_ends(const walk *w) {
    const car_validation *v = w->v;
    for (int device = 0; device < v->devices; device++) {
        int index = w->at[device];
        if (index == v->first[device + 1]) {
            continue;
        }
        if (car_validate_is_collective(&v->tasks[index])) {
            return car_validate_fail(v, index, "deadlock: device %d waits for others that never come", device);
        }
        int peer = v->tasks[index].peer;
        char text[192] = "its end";
        if (w->at[peer] < v->first[peer + 1]) {
            car_task_format(v->plan, &v->tasks[w->at[peer]], text, sizeof text);
        }
        return car_validate_fail(v, index, "deadlock: device %d waits for device %d, which is at %s", device, peer,
                                 text);
    }
    return CAR_OK;
}

car_status car_validate_dry_run(car_validation *v) {
    walk w = {.v = v};
    car_status status = CAR_OK;
    size_t devices = (size_t)v->devices, count = (size_t)v->count;
    CAR_TRY(car_context_allocate(v->context, devices, sizeof *w.at, &w.at));
    CAR_TRY(car_context_allocate(v->context, count, sizeof *w.done, &w.done));
    CAR_TRY(car_context_allocate(v->context, devices, sizeof *w.queue, &w.queue));
    CAR_TRY(car_context_allocate(v->context, devices, sizeof *w.queued, &w.queued));
    CAR_TRY(car_context_allocate(v->context, devices, sizeof *w.parties, &w.parties));
    CAR_TRY(car_context_allocate(v->context, devices, sizeof *w.arrived, &w.arrived));
    CAR_TRY(run(&w));
    CAR_TRY(check_ends(&w));
done:
    car_context_release(v->context, w.arrived, devices, sizeof *w.arrived);
    car_context_release(v->context, w.parties, devices, sizeof *w.parties);
    car_context_release(v->context, w.queued, devices, sizeof *w.queued);
    car_context_release(v->context, w.queue, devices, sizeof *w.queue);
    car_context_release(v->context, w.done, count, sizeof *w.done);
    car_context_release(v->context, w.at, devices, sizeof *w.at);
    return status;
}
