/* Predictions for one rank over a whole short run.
 *
 * Memory is followed to the byte in the plan's order. That is how a rank with one thread works as long as no message
 * is late. A rank that has only some stages holds what its operations save for backward, whether its own operations
 * made it or it came from the rank before:
 *
 *   stage 0 | stage 1          q is made in stage 0, and only the attention's backward reads it:
 *    ... q  | attention ...    with one rank per stage, stage 1's rank holds it */
#include "plan/life.h"
#include "plan/predict_internal.h"

/* The micro-batches that are alive on a rank. */
typedef struct room {
    const car_plan *plan;
    car_usage *usage;
    int device, first_stage, end_stage;
    car_graph_range *range;
    car_life *lives;
    int count;
    size_t live, peak;
} room;

/* The number of steps of a run in which everything happens: filling, one whole pattern of steady state, draining. */
static int64_t steps_of(const car_plan *plan, int device) {
    return car_plan_pattern_steps(plan, device) + 4;
}

static void find_stages(room *r) {
    r->first_stage = 0;
    while (!car_usage_has_stage(r->usage, r->first_stage)) {
        r->first_stage++;
    }
    r->end_stage = r->first_stage;
    while (r->end_stage < r->plan->stages && car_usage_has_stage(r->usage, r->end_stage)) {
        r->end_stage++;
    }
}

static car_status open_room(room *r) {
    const car_plan *plan = r->plan;
    const car_stage *stages = plan->partition->stages;
    car_status status = CAR_OK;
    CAR_TRY(car_usage_create(plan, r->device, &r->usage));
    find_stages(r);
    r->count = car_usage_tapes(r->usage);
    CAR_TRY(car_graph_range_create(plan->partition->graph, stages[r->first_stage].first, stages[r->end_stage - 1].end,
                                   plan->partition->recompute, &r->range));
    CAR_TRY(car_context_allocate(plan->context, (size_t)r->count, sizeof *r->lives, &r->lives));
    for (int t = 0; t < r->count; t++) {
        CAR_TRY(car_life_open(plan->partition->graph, r->range, &r->lives[t]));
    }
done:
    return status;
}

static void close_room(room *r) {
    for (int t = 0; r->lives && t < r->count; t++) {
        car_life_release(&r->lives[t]);
    }
    car_context_release(r->plan->context, r->lives, r->lives ? (size_t)r->count : 0, sizeof *r->lives);
    car_graph_range_destroy(r->plan->partition->graph, r->range);
    car_usage_destroy(r->usage);
}

/* Follows what a task does to its micro-batch; the bytes of the others do not change. */
static void follow(room *r, const car_task *task) {
    const car_stage *stage = &r->plan->partition->stages[task->stage];
    bool forward = task->kind == CAR_TASK_FORWARD, backward = task->kind == CAR_TASK_BACKWARD;
    bool gradient = task->cargo == CAR_CARGO_GRADIENT;
    if (!forward && !backward && task->cargo != CAR_CARGO_ACTIVATION && !gradient) {
        return;
    }
    car_life *life = &r->lives[car_usage_tape_of(r->usage, task)];
    size_t others = r->live - life->live, most = 0;
    bool begins = (forward && task->stage == 0) || (task->kind == CAR_TASK_RECEIVE && !gradient);
    if (begins) {
        car_life_clear(life);
        car_life_feed(life);
    }
    if (task->kind == CAR_TASK_RECEIVE) {
        car_life_import(life, gradient);
    } else if (task->kind == CAR_TASK_SEND) {
        car_life_export(life, gradient);
    }
    for (int e = 0; (forward || backward) && e < stage->end - stage->first; e++) {
        size_t during =
            forward ? car_life_forward(life, stage->first + e) : car_life_backward_whole(life, stage->end - 1 - e);
        most = during > most ? during : most;
    }
    most = life->live > most ? life->live : most;
    r->live = others + life->live;
    r->peak = others + most > r->peak ? others + most : r->peak;
}

static car_status predict_activations(const car_plan *plan, int device, size_t *out) {
    room r = {.plan = plan, .device = device};
    car_task_list list = {0};
    int64_t steps = steps_of(plan, device);
    car_status status = CAR_OK;
    CAR_TRY(open_room(&r));
    for (int64_t window = 0; window < car_plan_windows(plan, steps); window++) {
        CAR_TRY(car_plan_expand(plan, device, window, steps, &list));
        for (int k = 0; k < list.count; k++) {
            follow(&r, &list.tasks[k]);
        }
    }
    *out = r.peak;
done:
    close_room(&r);
    car_task_list_release(plan, &list);
    return status;
}

/* ---- the whole prediction ------------------------------------------------------------------------ */

car_status car_plan_predict_device(const car_plan *plan, int device, int optimizer_states, car_device_prediction *out) {
    return car_plan_predict_device_sized(plan, device, &(car_optimizer_sizes){.states = optimizer_states}, out);
}

car_status car_plan_predict_device_sized(const car_plan *plan, int device, const car_optimizer_sizes *optimizer,
                                         car_device_prediction *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(NULL, optimizer);
    CAR_REQUIRE(NULL, out);
    car_status status = CAR_OK;
    *out = (car_device_prediction){0};
    if (plan->placement->info.one_process || !plan->partition->graph) {
        return car_context_fail(plan->context, CAR_ERROR_UNSUPPORTED,
                                "the memory of a rank can only be predicted for a model's plan over ranks");
    }
    if (device < 0 || device >= plan->devices) {
        return car_context_fail(plan->context, CAR_ERROR_ARGUMENT, "there is no device %d; the plan has %d", device,
                                plan->devices);
    }
    CAR_TRY(car_predict_device_table(plan, device, steps_of(plan, device), optimizer, out));
    CAR_TRY(predict_activations(plan, device, &out->activations));
done:
    return status;
}
