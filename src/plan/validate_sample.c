/* The validator: samples of plans that are too large to prove completely. For one device and three consecutive
 * windows it checks every task by itself, both ends of some messages, and that the edges allow no race. It cannot
 * show what needs the whole table: that each gradient is summed once, and that there is no deadlock. */
#include <string.h>

#include "plan/validate_internal.h"

enum { WINDOWS = 3, MESSAGES = 24, WINDOWS_UNDER_WAY = 4 };

static bool is_other_end(const car_task *task, int device, const car_task *other) {
    bool ends = (task->kind == CAR_TASK_SEND && other->kind == CAR_TASK_RECEIVE) ||
                (task->kind == CAR_TASK_RECEIVE && other->kind == CAR_TASK_SEND);
    return ends && other->peer == device && other->tag == task->tag && other->cargo == task->cargo &&
           other->micro_batch == task->micro_batch && other->stage == task->stage && other->bundle == task->bundle &&
           other->step == task->step && other->version == task->version && other->piece == task->piece;
}

/* Looks for the other end where it can be: a message is received after it was sent, and not many windows later. */
static car_status check_message(const car_validation *v, int index, car_task_list *list) {
    const car_task *task = &v->tasks[index];
    bool sends = task->kind == CAR_TASK_SEND;
    int64_t own = task->slot < 0 ? 0 : task->slot / v->period;
    int64_t first = sends ? own : own > WINDOWS_UNDER_WAY ? own - WINDOWS_UNDER_WAY : 0;
    int64_t last = sends ? own + WINDOWS_UNDER_WAY : own;
    car_status status = CAR_OK;
    for (int64_t window = first; window <= last; window++) {
        CAR_TRY(car_plan_expand(v->plan, task->peer, window, v->steps, list));
        for (int n = 0; n < list->count; n++) {
            const car_task *other = &list->tasks[n];
            if (is_other_end(task, v->device_of[index], other) &&
                (sends ? other->slot > task->slot : other->slot < task->slot)) {
                return CAR_OK;
            }
        }
    }
    status = car_validate_fail(v, index, "its counterpart on the other device is missing");
done:
    return status;
}

static car_status check_tasks(const car_validation *v) {
    car_task_list list = {0};
    int messages = 0;
    car_status status = CAR_OK;
    for (int n = 0; n < v->count; n++) {
        const car_task *task = &v->tasks[n];
        CAR_TRY(car_validate_task(v, n));
        if (car_task_computes(task)) {
            CAR_TRY(car_validate_compute_task(v, n));
            CAR_TRY(car_validate_rule(v, n));
        } else if (task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_RECEIVE) {
            CAR_TRY(messages++ < MESSAGES ? check_message(v, n, &list) : CAR_OK);
        }
    }
done:
    car_task_list_release(v->plan, &list);
    return status;
}

car_status car_validate_sample(car_plan *plan, int device, int64_t window) {
    car_validation v = car_validate_begin(plan, window + 3 * WINDOWS, NULL);
    car_task_list list = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_validate_open(&v));
    for (int64_t w = window; w < window + WINDOWS; w++) {
        CAR_TRY(car_plan_expand(plan, device, w, v.steps, &list));
        CAR_TRY(car_context_grow(v.context, &v.tasks, &v.capacity, v.count + list.count, sizeof *v.tasks));
        if (list.count > 0) {
            memcpy(v.tasks + v.count, list.tasks, (size_t)list.count * sizeof *v.tasks);
        }
        v.count += list.count;
    }
    for (int d = device; d < v.devices; d++) {
        v.first[d + 1] = v.count;
    }
    CAR_TRY(car_validate_arrange(&v));
    CAR_TRY(check_tasks(&v));
    /* The devices of one process form one rank, so a single one tells nothing about edges. */
    CAR_TRY(v.ranks == v.devices ? car_validate_uses(&v) : CAR_OK);
    CAR_TRY(v.ranks == v.devices ? car_validate_edges(&v, false) : CAR_OK);
done:
    car_task_list_release(plan, &list);
    car_validate_close(&v);
    return status;
}
