/* The validator: activations. A forward makes them and its backward, which comes later (validate_order.c), ends
 * them. Where the next stage is on another device, they cross to it in a message and their gradient comes back in
 * one. validate_touch.c checks which tape they are on, and until when. */
#include "plan/validate_internal.h"

/* What has happened so far to one stage of one micro-batch. */
enum {
    MADE = 1,
    OVER = 2,
    SENT_UP = 4,    /* activations were sent across the cut before this stage */
    ARRIVED_UP = 8, /* and have been received */
    SENT_DOWN = 16, /* their gradient was sent back */
    ARRIVED_DOWN = 32
};

typedef struct replay {
    const car_validation *v;
    unsigned char *state; /* [step][worker][stage] */
    int *alive;           /* pipelines and grids: [device][stage of its group]: number of micro-batches held */
} replay;

static unsigned char *state_of(const replay *r, int64_t step, int worker, int stage) {
    return &r->state[car_validate_compute(r->v, step, worker, stage, false) / 2];
}

/* Index of a device's stage in `alive`. */
static size_t local_stage(const car_validation *v, int index) {
    return (size_t)v->device_of[index] * (size_t)v->per_worker + (size_t)(v->tasks[index].stage % v->per_worker);
}

static bool crosses(const car_validation *v, const car_task *task, int stage) {
    return stage > 0 && stage < v->stages &&
           car_validate_device(v, task->step, task->micro_batch, stage - 1) !=
               car_validate_device(v, task->step, task->micro_batch, stage);
}

/* The most micro-batches that a rank may hold of a stage: this is the benefit of a pipeline schedule. */
static int most_alive(const car_validation *v, int group) {
    if (v->config.placement == CAR_PLACEMENT_GRID) {
        return 1;
    }
    bool one_by_one = v->config.rule == CAR_RULE_1F1B || v->config.rule == CAR_RULE_STAGGER;
    return v->cyclic || one_by_one ? v->workers - group : v->batches; /* gpipe holds the whole step */
}

static car_status hold(replay *r, int index, int change) {
    const car_validation *v = r->v;
    if (!car_validate_in_groups(v)) {
        return CAR_OK;
    }
    int device = v->device_of[index], most = most_alive(v, v->groups[device]);
    int *alive = &r->alive[local_stage(v, index)];
    *alive += change;
    return *alive > most
               ? car_validate_fail(v, index,
                                   "the device holds the activations of %d micro-batches, but has room for %d", *alive,
                                   most)
               : CAR_OK;
}

static car_status forward(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    unsigned char *state = state_of(r, task->step, task->micro_batch, task->stage);
    if (crosses(v, task, task->stage) && !(*state & ARRIVED_UP)) {
        return car_validate_fail(v, index, "the activations that it starts from have not arrived");
    }
    *state |= MADE;
    return hold(r, index, 1);
}

static car_status backward(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    unsigned char *state = state_of(r, task->step, task->micro_batch, task->stage);
    if (crosses(v, task, task->stage + 1) && !(state[1] & ARRIVED_DOWN)) {
        return car_validate_fail(v, index, "the gradient that it starts from has not arrived");
    }
    *state |= OVER;
    return hold(r, index, -1);
}

/* Activations are sent after the forward below the cut, their gradient after the backward above it. */
static car_status message(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    bool up = task->cargo == CAR_CARGO_ACTIVATION, sends = task->kind == CAR_TASK_SEND;
    if (!crosses(v, task, task->stage)) {
        return car_validate_fail(v, index, "nothing crosses from one device to another before stage %d", task->stage);
    }
    unsigned char *state = state_of(r, task->step, task->micro_batch, task->stage);
    int source = up ? task->stage - 1 : task->stage, goal = up ? task->stage : task->stage - 1;
    bool ready = up ? state[-1] & MADE : *state & OVER;
    int event = sends ? (up ? SENT_UP : SENT_DOWN) : (up ? ARRIVED_UP : ARRIVED_DOWN);
    if (v->device_of[index] != car_validate_device(v, task->step, task->micro_batch, sends ? source : goal) ||
        task->peer != car_validate_device(v, task->step, task->micro_batch, sends ? goal : source)) {
        return car_validate_fail(v, index, "it goes between the wrong devices");
    }
    if (sends && !ready) {
        return car_validate_fail(v, index, "it is sent before it is computed");
    }
    if (*state & event) {
        return car_validate_fail(v, index, "it happens a second time");
    }
    *state |= (unsigned char)event;
    return CAR_OK;
}

static car_status step_replay(replay *r, int index) {
    const car_task *task = &r->v->tasks[index];
    if (task->kind == CAR_TASK_FORWARD) {
        return forward(r, index);
    }
    if (task->kind == CAR_TASK_BACKWARD) {
        return backward(r, index);
    }
    return task->cargo == CAR_CARGO_ACTIVATION || task->cargo == CAR_CARGO_GRADIENT ? message(r, index) : CAR_OK;
}

car_status car_validate_activations(car_validation *v) {
    replay r = {.v = v};
    size_t states = car_validate_compute(v, v->steps, 0, 0, false) / 2;
    size_t stages = car_validate_in_groups(v) ? (size_t)v->devices * (size_t)v->per_worker : 0;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(v->context, states, sizeof *r.state, &r.state));
    CAR_TRY(car_context_allocate(v->context, stages, sizeof *r.alive, &r.alive));
    for (int n = 0; n < v->count; n++) {
        CAR_TRY(step_replay(&r, v->order[n]));
    }
done:
    car_context_release(v->context, r.alive, stages, sizeof *r.alive);
    car_context_release(v->context, r.state, states, sizeof *r.state);
    return status;
}
