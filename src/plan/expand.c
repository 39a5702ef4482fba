/* Generates the tasks of one device in one window of slots. The clock gives the forwards and backwards, the
 * placement attaches messages, sums and updates to each, and order.c sorts them inside every slot. */
#include "plan/placement.h"
#include "plan/script.h"

/* ---- the list -------------------------------------------------------------------------------- */

/* The window that begins at slot 0 also takes the slots before it. */
static bool is_inside(const car_window *window, int64_t slot) {
    return (slot >= window->begin && slot < window->end) || (slot < 0 && window->begin == 0);
}

void car_window_add(car_window *window, car_task task) {
    const car_plan *plan = window->plan;
    car_task_list *list = window->list;
    if (window->status != CAR_OK || !is_inside(window, task.slot)) {
        return;
    }
    window->status =
        car_context_grow(plan->context, &list->tasks, &list->capacity, list->count + 1, sizeof *list->tasks);
    if (window->status == CAR_OK) {
        list->tasks[list->count++] = task;
    }
}

void car_task_list_release(const car_plan *plan, car_task_list *list) {
    car_context_release(plan->context, list->tasks, (size_t)list->capacity, sizeof *list->tasks);
    *list = (car_task_list){0};
}

bool car_window_runs(const car_window *window, int64_t n) {
    return n >= 0 && car_plan_step_of(window->plan, n) < window->steps;
}

/* Messages with one tag between two devices arrive in order, so the tag need not contain the step. */
static int tag_of(const car_plan *plan, const car_task *task) {
    int thing = task->cargo == CAR_CARGO_ACTIVATION || task->cargo == CAR_CARGO_GRADIENT ? task->stage : task->bundle;
    int parity =
        car_cargo_is_weights(task->cargo) ? (int)(task->version % 2) : 0; /* versions may overtake each other */
    return task->cargo + CAR_CARGOS * (parity + 2 * (thing + plan->partition->bundle_count * (task->micro_batch + 1)));
}

void car_window_message(car_window *window, car_task what, int from, int64_t sent, int to, int64_t used) {
    bool sends = from == window->device && is_inside(window, sent),
         receives = to == window->device && is_inside(window, used);
    if (from == to || !(sends || receives)) {
        return;
    }
    what.tag = tag_of(window->plan, &what);
    bool sum = what.cargo == CAR_CARGO_PARTIAL || what.cargo == CAR_CARGO_FINISHED;
    int pieces = sum ? car_plan_pieces(window->plan, what.bundle) : 1;
    for (what.piece = 0; what.piece < pieces; what.piece++) {
        if (sends) {
            car_task send = what;
            send.kind = CAR_TASK_SEND;
            send.peer = to;
            send.slot = sent;
            send.due = used;
            car_window_add(window, send);
        }
        if (receives) {
            car_task receive = what;
            receive.kind = CAR_TASK_RECEIVE;
            receive.peer = from;
            receive.slot = used;
            car_window_add(window, receive);
        }
    }
}

/* ---- compute tasks --------------------------------------------------------------------------- */

static int64_t tied_version(const car_plan *plan, int64_t n, int stage) {
    for (int b = plan->stages; b < plan->partition->bundle_count; b++) {
        if (plan->partition->bundles[b].stage == stage) {
            return car_plan_version(plan, n, plan->partition->bundles[b].home);
        }
    }
    return CAR_NONE;
}

/* Adds one forward or backward of micro-batch n and everything that the placement attaches to it. */
static void add_compute(car_window *window, int64_t n, int stage, bool backward) {
    const car_plan *plan = window->plan;
    if (!car_window_runs(window, n) || car_plan_device_of(plan, n, stage) != window->device) {
        return;
    }
    int64_t slot = backward ? car_plan_backward_slot_of(plan, n, stage) : car_plan_forward_slot_of(plan, n, stage);
    if (!is_inside(window, slot)) {
        return;
    }
    car_task task = {
        .kind = backward ? CAR_TASK_BACKWARD : CAR_TASK_FORWARD,
        .micro_batch = car_plan_number_of(plan, n),
        .stage = stage,
        .bundle = stage,
        .step = car_plan_step_of(plan, n),
        .version = car_plan_version(plan, n, stage),
        .tied_version = tied_version(plan, n, stage),
        .peer = CAR_NONE,
        .tag = CAR_NONE,
        .slot = slot,
    };
    car_window_add(window, task);
    plan->placement->attach(window, &task, n);
}

/* The distance from n to the first micro-batch from n on that equals `residue` mod `modulus`. */
static int64_t after(int64_t n, int64_t modulus, int64_t residue) {
    return ((residue - n) % modulus + modulus) % modulus;
}

/* Adds all micro-batches n = residue mod modulus whose forward (or backward) of a stage is in the window. */
static void visit_stage(car_window *window, int stage, int64_t modulus, int64_t residue, bool backward) {
    const car_plan *plan = window->plan;
    if (!car_plan_is_cyclic(plan)) {
        /* Steps do not overlap, so each lies in one window. */
        int64_t first = window->begin / plan->period * plan->batches;
        for (int64_t n = first + after(first, modulus, residue); n < first + plan->batches; n += modulus) {
            add_compute(window, n, stage, backward);
        }
        return;
    }
    /* F(n) = 2k*n + j and B(n) = 2k*n + 2S-1-j: the micro-batches of a window are consecutive, M*N for a whole one. */
    int64_t spacing = 2 * (int64_t)plan->per_worker;
    int64_t offset = backward ? 2 * (int64_t)plan->stages - 1 - stage : stage;
    int64_t first = -car_plan_floor_div(-(window->begin - offset), spacing);
    for (int64_t n = first + after(first, modulus, residue); spacing * n + offset < window->end; n += modulus) {
        add_compute(window, n, stage, backward);
    }
}

/* In the cycle a worker has one task in each slot: from slot 2k*n on, S forwards and then S backwards of micro-batch
 * n. */
static void visit_slots(car_window *window, int worker) {
    const car_plan *plan = window->plan;
    int64_t start = 2 * (int64_t)plan->per_worker * worker, tasks = 2 * (int64_t)plan->stages;
    for (int64_t slot = window->begin > start ? window->begin : start; slot < window->end; slot++) {
        int64_t n = worker + (slot - start) / tasks * plan->config.workers, at = (slot - start) % tasks;
        bool backward = at >= plan->stages;
        add_compute(window, n, (int)(backward ? tasks - 1 - at : at), backward);
    }
}

void car_window_visit_worker(car_window *window, int worker) {
    if (car_plan_is_cyclic(window->plan)) {
        visit_slots(window, worker);
        return;
    }
    for (int j = 0; j < window->plan->stages; j++) {
        visit_stage(window, j, window->plan->config.workers, worker, false);
        visit_stage(window, j, window->plan->config.workers, worker, true);
    }
}

void car_window_visit_group(car_window *window, int group, int64_t modulus, int64_t residue) {
    int k = window->plan->per_worker;
    for (int j = group * k; j < (group + 1) * k; j++) {
        visit_stage(window, j, modulus, residue, false);
        visit_stage(window, j, modulus, residue, true);
    }
}

/* ---- windows -------------------------------------------------------------------------------- */

int64_t car_plan_windows(const car_plan *plan, int64_t steps) {
    /* In the cycle the last worker finishes a step one window later, and zero's owners update after that. */
    return steps < 1                  ? 0
           : plan->script             ? car_script_windows(plan, steps)
           : car_plan_is_cyclic(plan) ? steps + 1
                                      : steps;
}

car_status car_plan_expand_slots(const car_plan *plan, int device, int64_t begin, int64_t end, int64_t steps,
                                 car_task_list *list) {
    car_window w = {.plan = plan, .device = device, .begin = begin, .end = end, .steps = steps, .list = list};
    list->count = 0;
    if (plan->script) {
        return car_script_expand(plan, device, begin, end, steps, list);
    }
    plan->placement->visit(&w);
    if (plan->placement->besides) {
        plan->placement->besides(&w);
    }
    return w.status == CAR_OK ? car_task_list_sort(plan, list) : w.status;
}

car_status car_plan_expand(const car_plan *plan, int device, int64_t window, int64_t steps, car_task_list *list) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), list);
    list->count = 0;
    if (device < 0 || device >= plan->devices || window < 0) {
        return car_context_fail(plan->context, CAR_ERROR_ARGUMENT, "this plan has no device %d or no window %lld",
                                device, (long long)window);
    }
    return car_plan_expand_slots(plan, device, window * plan->period, (window + 1) * plan->period, steps, list);
}

int car_plan_ranks(const car_plan *plan) {
    return plan->placement->info.one_process ? 1 : plan->devices;
}

int car_plan_rank_of(const car_plan *plan, int device) {
    return plan->placement->info.one_process ? 0 : device;
}

/* Merges the tasks of all devices of one process into one order. */
static car_status expand_all(const car_plan *plan, int64_t begin, int64_t end, int64_t steps, car_task_list *list) {
    car_task_list one = {0};
    car_status status = CAR_OK;
    list->count = 0;
    for (int device = 0; device < plan->devices; device++) {
        CAR_TRY(car_plan_expand_slots(plan, device, begin, end, steps, &one));
        CAR_TRY(car_context_grow(plan->context, &list->tasks, &list->capacity, list->count + one.count,
                                 sizeof *list->tasks));
        for (int k = 0; k < one.count; k++) {
            list->tasks[list->count++] = one.tasks[k];
        }
    }
    CAR_TRY(car_task_list_sort(plan, list));
done:
    car_task_list_release(plan, &one);
    return status;
}

car_status car_plan_expand_rank_slots(const car_plan *plan, int rank, int64_t begin, int64_t end, int64_t steps,
                                      car_task_list *list) {
    return car_plan_ranks(plan) == plan->devices ? car_plan_expand_slots(plan, rank, begin, end, steps, list)
                                                 : expand_all(plan, begin, end, steps, list);
}

int64_t car_plan_stretch_end(const car_plan *plan, int64_t slot) {
    enum { TASKS = 16 }; /* forwards and backwards per stretch: the lists of all ranks should fit into a cache */
    int64_t tasks = 2 * (int64_t)plan->batches * plan->stages / car_plan_ranks(plan);
    int64_t begin = slot / plan->period * plan->period;
    int64_t length = tasks > TASKS ? (plan->period * TASKS + tasks - 1) / tasks : plan->period;
    int64_t end = begin + ((slot - begin) / length + 1) * length;
    return end < begin + plan->period ? end : begin + plan->period;
}

car_status car_plan_expand_rank(const car_plan *plan, int rank, int64_t window, int64_t steps, car_task_list *list) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), list);
    return car_plan_ranks(plan) == plan->devices
               ? car_plan_expand(plan, rank, window, steps, list)
               : expand_all(plan, window * plan->period, (window + 1) * plan->period, steps, list);
}

size_t car_plan_task_bytes(const car_plan *plan, const car_task *task) {
    const car_partition *partition = plan->partition;
    size_t offset = 0, bytes = 0;
    switch (task->cargo) {
    case CAR_CARGO_ACTIVATION:
    case CAR_CARGO_GRADIENT:
        return partition->stages[task->stage].boundary_bytes;
    case CAR_CARGO_PARTIAL:
    case CAR_CARGO_FINISHED:
        car_plan_piece_range(plan, task->bundle, task->piece, &offset, &bytes);
        return bytes;
    case CAR_CARGO_WEIGHTS:
    case CAR_CARGO_BACKWARD_WEIGHTS:
        return partition->bundles[task->bundle].copy_bytes;
    default:
        return task->kind == CAR_TASK_REDUCE      ? partition->bundles[task->bundle].bytes
               : task->kind == CAR_TASK_BROADCAST ? partition->bundles[task->bundle].copy_bytes
                                                  : 0;
    }
}
