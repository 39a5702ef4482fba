/* Turns a device's part of the table into what it does one after the other, and beside it.
 *
 *   slot s     body:   receives, waits, needs | compute | job: partial sums that come, and what they are added to goes on
 *                                             | collectives | sends
 *              early:  jobs of versions: a finished sum comes, the update is made, the sum or the weights go on.
 *                      Begun 2k slots before, as long as the plan gives a message.
 *              ahead:  broadcasts, begun a slot before
 *
 * A job waits for its messages beside what is computed: a backward does not wait for the sum that it adds to, and
 * what only passes through a device holds up nothing there. */
#include <limits.h>

#include "plan/timing_internal.h"

/* ---- lists ----------------------------------------------------------------------------------- */

static car_status append(const car_plan *plan, car_deed_list *list, car_deed deed) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(plan->context, &list->deeds, &list->capacity, list->count + 1, sizeof *list->deeds));
    list->deeds[list->count++] = deed;
done:
    return status;
}

static void release_list(const car_plan *plan, car_deed_list *list) {
    car_context_release(plan->context, list->deeds, (size_t)list->capacity, sizeof *list->deeds);
    *list = (car_deed_list){0};
}

/* ---- groups and buckets ---------------------------------------------------------------------- */

static bool has_groups(const car_plan *plan) {
    return plan->config.placement == CAR_PLACEMENT_GRID && plan->clock == CAR_RULE_DP;
}

int car_timing_groups(const car_plan *plan) {
    return has_groups(plan) ? plan->config.workers : 1;
}

int car_timing_group(const car_plan *plan, int device) {
    return has_groups(plan) ? device / plan->config.workers : 0;
}

/* All ranks of a group reduce the same bundles in the same order, so any one of them tells. */
static car_status fill_buckets(car_compiler *c, int group, double bucket) {
    const car_plan *plan = c->plan;
    int last = CAR_NONE;
    double bytes = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_plan_expand(plan, has_groups(plan) ? group * plan->config.workers : 0, 0, 1, &c->tasks));
    for (int t = 0; t < c->tasks.count; t++) {
        const car_task *task = &c->tasks.tasks[t];
        if (task->kind != CAR_TASK_REDUCE || task->peer != CAR_NONE) {
            continue;
        }
        bytes += (double)car_plan_task_bytes(plan, task);
        last = task->bundle;
        c->bucket_of[last] = c->per_step[group];
        if (bytes >= bucket) {
            c->closes[last] = bytes;
            c->per_step[group]++;
            bytes = 0;
        }
    }
    if (bytes > 0) {
        c->closes[last] = bytes;
        c->per_step[group]++;
    }
done:
    return status;
}

car_status car_compiler_create(const car_plan *plan, double bucket, car_compiler *out) {
    car_compiler *c = out;
    size_t bundles = (size_t)plan->partition->bundle_count;
    car_status status = CAR_OK;
    *c = (car_compiler){.plan = plan, .groups = car_timing_groups(plan)};
    CAR_TRY(car_context_allocate(plan->context, (size_t)c->groups, sizeof *c->per_step, &c->per_step));
    CAR_TRY(car_context_allocate(plan->context, bundles, sizeof *c->bucket_of, &c->bucket_of));
    CAR_TRY(car_context_allocate(plan->context, bundles, sizeof *c->closes, &c->closes));
    CAR_TRY(car_context_allocate(plan->context, (size_t)plan->devices, sizeof *c->asked, &c->asked));
    for (int group = 0; plan->clock == CAR_RULE_DP && group < c->groups; group++) {
        CAR_TRY(fill_buckets(c, group, bucket));
    }
done:
    return status;
}

void car_compiler_release(car_compiler *c) {
    if (!c->plan) {
        return;
    }
    car_context *context = c->plan->context;
    size_t bundles = (size_t)c->plan->partition->bundle_count;
    car_context_release(context, c->parts, (size_t)c->part_capacity, 1);
    car_context_release(context, c->marks, (size_t)c->mark_capacity, sizeof *c->marks);
    release_list(c->plan, &c->body);
    release_list(c->plan, &c->ahead);
    release_list(c->plan, &c->early);
    car_task_list_release(c->plan, &c->tasks);
    car_context_release(context, c->asked, (size_t)c->plan->devices, sizeof *c->asked);
    car_context_release(context, c->closes, bundles, sizeof *c->closes);
    car_context_release(context, c->bucket_of, bundles, sizeof *c->bucket_of);
    car_context_release(context, c->per_step, (size_t)c->groups, sizeof *c->per_step);
}

/* ---- tasks into deeds ------------------------------------------------------------------------ */

/* The tasks of one slot. */
typedef struct slot_tasks {
    const car_task *tasks;
    const unsigned char *parts; /* of each */
    int count;
} slot_tasks;

/* Where a device counts the versions of a stage. It makes those of all stages, or of one group's. */
static int place_of(const car_plan *plan, int stage) {
    return plan->config.placement == CAR_PLACEMENT_REPLICA ? stage : stage % plan->per_worker;
}

/* How many places versions have; there are as many for sums. */
static int version_places(const car_plan *plan) {
    return plan->config.placement == CAR_PLACEMENT_REPLICA ? plan->stages : plan->per_worker;
}

/* Where a device counts the sums of a stage that it finishes itself and updates with later. */
static int sum_place_of(const car_plan *plan, int stage) {
    return version_places(plan) + place_of(plan, stage);
}

int car_timing_places(const car_plan *plan) {
    return 2 * version_places(plan);
}

static bool is_message(const car_task *task) {
    return task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_RECEIVE;
}

/* What a task is done with. */
typedef enum part {
    PART_BODY,  /* in the table's order */
    PART_ADDED, /* beside, when the slot's backward is done: its sum with those that come */
    PART_MADE   /* beside, when a finished sum comes */
} part;

/* A sum's way and what becomes of it: part of the backward that adds to it, or of a version's way from user to user. */
static part part_of(const car_plan *plan, const slot_tasks *slot, const car_task *task) {
    bool sum = task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
    bool weights = task->cargo == CAR_CARGO_WEIGHTS;
    if (car_task_computes(task) || plan->clock == CAR_RULE_DP || !(sum || weights || task->kind == CAR_TASK_UPDATE)) {
        return PART_BODY;
    }
    const car_bundle *bundle = &plan->partition->bundles[task->bundle];
    for (int t = 0; t < slot->count; t++) {
        const car_task *c = &slot->tasks[t];
        if (!car_task_computes(c) || (c->stage != bundle->stage && c->stage != bundle->home)) {
            continue;
        }
        bool uses = weights && (c->version == task->version || c->tied_version == task->version);
        bool adds = c->kind == CAR_TASK_BACKWARD && c->step == task->step;
        if (uses || adds) {
            return uses ? PART_BODY : PART_ADDED;
        }
    }
    return PART_MADE;
}

static car_deed message_deed(const car_plan *plan, const car_task *task) {
    bool send = task->kind == CAR_TASK_SEND;
    car_deed deed = {.kind = send ? CAR_DEED_SEND : CAR_DEED_RECEIVE, .a = task->peer, .b = task->tag};
    if (send) {
        deed.of.bytes = (double)car_plan_task_bytes(plan, task);
    }
    return deed;
}

static car_deed issue_deed(double bytes, bool to_all) {
    return (car_deed){.kind = CAR_DEED_ISSUE, .b = to_all, .of.bytes = bytes};
}

/* What a forward or backward waits for, besides messages. */
static car_status add_waits(car_compiler *c, int device, const slot_tasks *slot, const car_task *task) {
    const car_plan *plan = c->plan;
    bool zero = plan->config.placement == CAR_PLACEMENT_ZERO;
    if (plan->partition->bundles[task->stage].bytes == 0) {
        return CAR_OK;
    }
    if (plan->clock == CAR_RULE_DP) {
        if (zero || task->kind == CAR_TASK_BACKWARD || task->step == 0) {
            return CAR_OK;
        }
        int64_t number = (task->step - 1) * c->per_step[car_timing_group(plan, device)] + c->bucket_of[task->stage];
        return append(plan, &c->body, (car_deed){.kind = CAR_DEED_WAIT, .of.number = number});
    }
    bool brought = zero && car_plan_owner(plan, task->step, task->stage) != device;
    for (int t = 0; t < slot->count; t++) {
        const car_task *other = &slot->tasks[t];
        brought |= other->kind == CAR_TASK_RECEIVE && other->cargo == CAR_CARGO_WEIGHTS && other->bundle == task->stage;
    }
    return brought ? CAR_OK
                   : append(plan, &c->body,
                            (car_deed){
                                .kind = CAR_DEED_NEED, .a = place_of(plan, task->stage), .of.number = task->version});
}

static car_status add_task(car_compiler *c, int device, const slot_tasks *slot, const car_task *task) {
    const car_plan *plan = c->plan;
    double bytes = (double)car_plan_task_bytes(plan, task);
    car_status status = CAR_OK;
    switch (task->kind) {
    case CAR_TASK_FORWARD:
    case CAR_TASK_BACKWARD:
        CAR_TRY(add_waits(c, device, slot, task));
        return append(plan, &c->body,
                      (car_deed){.kind = CAR_DEED_COMPUTE,
                                 .a = task->stage,
                                 .b = task->kind == CAR_TASK_BACKWARD,
                                 .of.step = task->step,
                                 .slot = task->slot});
    case CAR_TASK_BROADCAST: {
        /* It is begun before the body of the slot before this one. */
        int64_t number = c->asked[device] + c->ahead.count + c->reduced_before;
        CAR_TRY(append(plan, &c->ahead, issue_deed(bytes, false)));
        return append(plan, &c->body, (car_deed){.kind = CAR_DEED_WAIT, .of.number = number});
    }
    case CAR_TASK_REDUCE:
        if (task->peer == CAR_NONE && c->closes[task->bundle] <= 0) {
            return CAR_OK; /* the bucket is not full */
        }
        c->reduced++;
        return append(plan, &c->body,
                      task->peer != CAR_NONE ? issue_deed(bytes, false) : issue_deed(c->closes[task->bundle], true));
    case CAR_TASK_UPDATE:
        return CAR_OK; /* dp's: whoever needs it waits for the collective */
    default:
        return append(plan, &c->body, message_deed(plan, task));
    }
done:
    return status;
}

/* The tasks of one part as a job: receives, then what they allow. In the table receives come first, too. */
static car_status add_job(car_compiler *c, const slot_tasks *slot, part which, car_deed_list *list) {
    const car_plan *plan = c->plan;
    int size = 0;
    car_status status = CAR_OK;
    for (int t = 0; t < slot->count; t++) {
        size += slot->parts[t] == which;
    }
    c->job = size > 0 ? list->count : CAR_NONE;
    if (size > 0) {
        CAR_TRY(append(plan, list, (car_deed){.kind = CAR_DEED_JOB, .a = size}));
    }
    for (int t = 0; size > 0 && t < slot->count; t++) {
        const car_task *task = &slot->tasks[t];
        if (slot->parts[t] == which) {
            car_deed made = {.kind = CAR_DEED_MADE, .of.number = task->version};
            if (!is_message(task)) {
                made.a = place_of(plan, task->bundle);
            }
            CAR_TRY(append(plan, list, is_message(task) ? message_deed(plan, task) : made));
        }
    }
done:
    return status;
}

/* Whether the device that finishes a stage's sum updates with it in a later slot, so that no message tells it to: the
 * last replica, and an owner in zero. */
static bool keeps_sum(const car_plan *plan, int device, const car_task *backward) {
    return backward->worker == plan->config.workers - 1 && plan->clock != CAR_RULE_DP &&
           (plan->config.placement == CAR_PLACEMENT_REPLICA ||
            (plan->config.placement == CAR_PLACEMENT_ZERO &&
             car_plan_owner(plan, backward->step, backward->stage) == device));
}

static car_status add_own_sum(car_compiler *c, int device, const slot_tasks *slot) {
    const car_plan *plan = c->plan;
    car_status status = CAR_OK;
    for (int t = 0; t < slot->count; t++) {
        const car_task *task = &slot->tasks[t];
        if (task->kind == CAR_TASK_BACKWARD && keeps_sum(plan, device, task)) {
            car_deed made = {.kind = CAR_DEED_MADE, .a = sum_place_of(plan, task->stage), .of.number = task->step + 1};
            if (c->job >= 0) {
                c->body.deeds[c->job].a++;
            }
            CAR_TRY(append(plan, &c->body, made));
        }
    }
done:
    return status;
}

static car_status add_slot(car_compiler *c, int device, const slot_tasks *slot) {
    bool comes = false, sum_comes = false;
    const car_task *update = NULL;
    car_status status = CAR_OK;
    c->reduced_before = c->reduced_here;
    c->reduced_here = c->reduced;
    for (int t = 0; t < slot->count; t++) {
        const car_task *task = &slot->tasks[t];
        if (slot->parts[t] == PART_MADE) {
            comes |= task->kind == CAR_TASK_RECEIVE;
            sum_comes |= task->kind == CAR_TASK_RECEIVE && task->cargo == CAR_CARGO_FINISHED;
            update = task->kind == CAR_TASK_UPDATE ? task : update;
        }
    }
    /* What comes is waited for early; but the update of a sum that the device has finished itself is made in its slot. */
    bool own = update && !sum_comes && c->plan->clock != CAR_RULE_DP;
    if (own) {
        CAR_TRY(append(c->plan, &c->body,
                       (car_deed){.kind = CAR_DEED_NEED,
                                  .a = sum_place_of(c->plan, update->bundle),
                                  .of.number = update->version}));
    }
    CAR_TRY(add_job(c, slot, PART_MADE, comes && !own ? &c->early : &c->body));
    for (int t = 0; t < slot->count; t++) {
        if (slot->parts[t] == PART_BODY && slot->tasks[t].kind != CAR_TASK_SEND) {
            CAR_TRY(add_task(c, device, slot, &slot->tasks[t]));
        }
    }
    CAR_TRY(add_job(c, slot, PART_ADDED, &c->body));
    CAR_TRY(add_own_sum(c, device, slot));
    for (int t = 0; t < slot->count; t++) {
        if (slot->parts[t] == PART_BODY && slot->tasks[t].kind == CAR_TASK_SEND) {
            CAR_TRY(add_task(c, device, slot, &slot->tasks[t]));
        }
    }
done:
    return status;
}

/* ---- a window -------------------------------------------------------------------------------- */

/* By how many slots jobs of versions begin early; dp has none. */
static int lead_of(const car_plan *plan) {
    return plan->clock == CAR_RULE_DP ? 0 : 2 * plan->per_worker;
}

static int smaller(int a, int b) {
    return a < b ? a : b;
}

/* What a slot's lists hold from where on. */
static car_status mark(car_compiler *c) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(c->plan->context, &c->marks, &c->mark_capacity, c->mark_count + 1, sizeof *c->marks));
    c->marks[c->mark_count++] = (car_slot_mark){c->early.count, c->ahead.count, c->body.count};
done:
    return status;
}

static car_status copy(car_compiler *c, const car_deed_list *from, int first, int end, car_deed_list *to) {
    car_status status = CAR_OK;
    for (int d = first; status == CAR_OK && d < end; d++) {
        status = append(c->plan, to, from->deeds[d]);
    }
    return status;
}

/* Each slot's body, behind what later slots begin early: `slots` of the window, and behind them those of the next one
 * that begin early in it. The window before has begun the early jobs of this one's first `lead` slots. */
static car_status arrange(car_compiler *c, int64_t window, int slots, car_deed_list *out) {
    const car_slot_mark *m = c->marks;
    int known = c->mark_count - 1, lead = lead_of(c->plan), early = window > 0 ? smaller(lead, slots) : 0, ahead = 0;
    car_status status = CAR_OK;
    for (int q = 0; q < slots; q++) {
        int early_end = smaller(q + lead + 1, known), ahead_end = smaller(q + 2, slots);
        early_end = early_end > early ? early_end : early;
        CAR_TRY(copy(c, &c->early, m[early].early, m[early_end].early, out));
        CAR_TRY(copy(c, &c->ahead, m[ahead].ahead, m[ahead_end].ahead, out));
        CAR_TRY(copy(c, &c->body, m[q].body, m[q + 1].body, out));
        early = early_end;
        ahead = ahead_end;
    }
done:
    return status;
}

/* The window's first slots, at most `most` of them. */
static car_status add_slots(car_compiler *c, int device, int64_t window, int64_t steps, int most) {
    car_status status = CAR_OK;
    CAR_TRY(car_plan_expand(c->plan, device, window, steps, &c->tasks));
    for (int first = 0, end = 0; first < c->tasks.count && most > 0; first = end, most--) {
        const car_task *tasks = c->tasks.tasks;
        while (end < c->tasks.count && tasks[end].slot == tasks[first].slot) {
            end++;
        }
        CAR_TRY(car_context_grow(c->plan->context, &c->parts, &c->part_capacity, end - first, 1));
        const slot_tasks slot = {tasks + first, c->parts, end - first};
        for (int t = 0; t < slot.count; t++) {
            c->parts[t] = (unsigned char)part_of(c->plan, &slot, &slot.tasks[t]);
        }
        CAR_TRY(add_slot(c, device, &slot));
        CAR_TRY(mark(c));
    }
done:
    return status;
}

car_status car_compiler_window(car_compiler *c, int device, int64_t window, int64_t steps, car_deed_list *out) {
    car_status status = CAR_OK;
    out->count = c->early.count = c->ahead.count = c->body.count = c->mark_count = 0;
    c->reduced = c->reduced_here = c->reduced_before = 0;
    CAR_TRY(mark(c));
    CAR_TRY(add_slots(c, device, window, steps, INT_MAX));
    int slots = c->mark_count - 1;
    if (lead_of(c->plan) > 0 && window + 1 < car_plan_windows(c->plan, steps)) {
        CAR_TRY(add_slots(c, device, window + 1, steps, lead_of(c->plan)));
    }
    CAR_TRY(arrange(c, window, slots, out));
    c->asked[device] += c->ahead.count + c->reduced;
done:
    return status;
}
