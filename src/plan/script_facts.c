/* Derives the facts about the tasks of a custom plan from the tasks around them: see car_script_fact.
 *
 * The table is laid out for several periods, sends are matched with their receives, and two walks in slot order find
 * the rest:
 *
 *   forward    which sum a backward adds to, whether that sum was received, and who finishes it; whether weights are a
 *              copy that was received for this use
 *   back       which runs a task is part of, and whether its device uses the sum or the weights again
 *
 * Mistakes in the table are left to the validator. This refuses only what it cannot represent. */
#include <stdlib.h>
#include <string.h>

#include "plan/script.h"

/* UNDER_WAY: the most steps of a sum, or versions of a bundle, in progress at once. */
enum { UNDER_WAY = 8, CHAINS = 2, AFTER = 6 };

static const int64_t never = INT64_MAX;

/* ---- laying out ------------------------------------------------------------------------------ */

/* How many periods after the first are laid out: enough to see everything that follows from the second. */
static int64_t periods_behind(const car_script *script) {
    return script->end > 0 ? 2 + (script->max_delay + AFTER) / script->repeated : 0;
}

static int count_before(const car_script *script, int device) {
    const car_task_list *own = &script->devices[device];
    int count = 0;
    while (count < own->count && (script->end == 0 || own->tasks[count].slot < script->begin)) {
        count++;
    }
    return count;
}

static car_status lay_out(car_plan *plan, car_script_layout *out) {
    const car_script *script = plan->script;
    int64_t more = periods_behind(script), count = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, (size_t)plan->devices + 1, sizeof *out->first, &out->first));
    CAR_TRY(car_context_allocate(plan->context, (size_t)plan->devices, sizeof *out->before, &out->before));
    for (int d = 0; d < plan->devices; d++) {
        out->before[d] = count_before(script, d);
        count += script->devices[d].count + more * (script->devices[d].count - out->before[d]);
    }
    if (count > INT32_MAX) {
        return car_context_fail(plan->context, CAR_ERROR_UNSUPPORTED, "the plan has too many tasks");
    }
    out->count = (int)count;
    CAR_TRY(car_context_allocate(plan->context, (size_t)count, sizeof *out->tasks, &out->tasks));
    CAR_TRY(car_context_allocate(plan->context, (size_t)count, sizeof *out->facts, &out->facts));
    for (int d = 0, at = 0; d < plan->devices; d++) {
        const car_task_list *own = &script->devices[d];
        for (int64_t times = 0; times <= more; times++) {
            for (int n = times ? out->before[d] : 0; n < own->count; n++) {
                out->tasks[at++] = car_script_repeat(script, &own->tasks[n], times);
            }
        }
        out->first[d + 1] = at;
    }
done:
    return status;
}

void car_script_release_layout(car_plan *plan, car_script_layout *layout) {
    size_t count = (size_t)layout->count, devices = (size_t)plan->devices;
    car_context_release(plan->context, layout->facts, layout->facts ? count : 0, sizeof *layout->facts);
    car_context_release(plan->context, layout->tasks, layout->tasks ? count : 0, sizeof *layout->tasks);
    car_context_release(plan->context, layout->before, layout->before ? devices : 0, sizeof *layout->before);
    car_context_release(plan->context, layout->first, layout->first ? devices + 1 : 0, sizeof *layout->first);
    *layout = (car_script_layout){0};
}

/* ---- the order of slots, and messages -------------------------------------------------------- */

typedef struct entry {
    const car_task *task;
    int device, index;
} entry;

static int compare_slots(const void *left, const void *right) {
    const entry *a = left, *b = right;
    int order = car_task_compare_moments(a->task, b->task);
    return order ? order : a->index - b->index;
}

/* Compares what two messages carry, and between whom. */
static int compare_contents(const entry *a, const entry *b) {
    const car_task *x = a->task, *y = b->task;
    bool x_sends = x->kind == CAR_TASK_SEND, y_sends = y->kind == CAR_TASK_SEND;
    int order = (x_sends ? a->device : x->peer) - (y_sends ? b->device : y->peer);
    order = order ? order : (x_sends ? x->peer : a->device) - (y_sends ? y->peer : b->device);
    order = order ? order : x->tag - y->tag;
    order = order ? order : car_task_compare_numbers(x->step, y->step);
    order = order ? order : car_task_compare_numbers(x->version, y->version);
    return order ? order : x->piece - y->piece;
}

static int compare_messages(const void *left, const void *right) {
    const entry *a = left, *b = right;
    int order = compare_contents(a, b);
    return order ? order : a->index - b->index;
}

typedef struct sum {
    int64_t step;
    int legs, added;
    bool open, came; /* came: it was received and nobody has added to it here yet */
    int64_t again;   /* walking back: used later in runs of more steps than this */
} sum;

typedef struct weights {
    int64_t version, again;
    int64_t passed;    /* sent on in runs of more steps than this */
    bool used, before; /* used: by a later forward or backward; before: sent on before that */
} weights;

typedef struct copy {
    int64_t version;
    bool used, sent;
} copy;

typedef struct walk {
    car_plan *plan;
    car_script_layout *layout;
    entry *order;     /* sorted by slot */
    int *partner;     /* task -> the other end of the message; CAR_NONE: none */
    int *carried;     /* send -> number of gradients in the sum that it sends */
    sum *sums;        /* [device][bundle][UNDER_WAY] */
    weights *weights; /* [device][bundle][CAR_COPIES][UNDER_WAY] */
    copy *copies;     /* [device][bundle][CHAINS] */
    int64_t *made;    /* [device][bundle]: the last version made */
} walk;

static car_status join_messages(walk *w) {
    car_script_layout *layout = w->layout;
    car_context *context = w->plan->context;
    size_t room = (size_t)layout->count;
    entry *sends = NULL, *receives = NULL;
    int count[2] = {0, 0};
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, room, sizeof *sends, &sends));
    CAR_TRY(car_context_allocate(context, room, sizeof *receives, &receives));
    for (int n = 0; n < layout->count; n++) {
        const entry *e = &w->order[n];
        w->partner[e->index] = CAR_NONE;
        if (e->task->kind == CAR_TASK_SEND) {
            sends[count[0]++] = *e;
        } else if (e->task->kind == CAR_TASK_RECEIVE) {
            receives[count[1]++] = *e;
        }
    }
    car_sort(sends, (size_t)count[0], sizeof *sends, compare_messages);
    car_sort(receives, (size_t)count[1], sizeof *receives, compare_messages);
    for (int s = 0, r = 0; s < count[0] && r < count[1];) {
        int order = compare_contents(&sends[s], &receives[r]);
        if (order == 0) {
            w->partner[sends[s].index] = receives[r].index;
            w->partner[receives[r].index] = sends[s].index;
        }
        s += order <= 0;
        r += order >= 0;
    }
done:
    car_context_release(context, receives, receives ? room : 0, sizeof *receives);
    car_context_release(context, sends, sends ? room : 0, sizeof *sends);
    return status;
}

/* Steps and versions below 0 are mistakes, but they need a valid index. */
static size_t place_of(int64_t number) {
    return (size_t)((number % UNDER_WAY + UNDER_WAY) % UNDER_WAY);
}

static size_t row_of(const walk *w, int device, int bundle) {
    return (size_t)device * (size_t)w->plan->partition->bundle_count + (size_t)bundle;
}

static bool is_sum(const car_task *task) {
    return task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
}

static bool is_last_piece(const walk *w, const car_task *task) {
    return task->piece + 1 >= car_plan_pieces(w->plan, task->bundle);
}

/* ---- walking forward ------------------------------------------------------------------------- */

static sum *sum_of(const walk *w, int device, int bundle, int64_t step) {
    sum *s = &w->sums[row_of(w, device, bundle) * UNDER_WAY + place_of(step)];
    if (s->step != step) {
        *s = (sum){.step = step, .again = never};
    }
    return s;
}

static car_status refuse_ways(const walk *w, const car_task *task) {
    char text[CAR_TASK_TEXT];
    car_task_format(w->plan, task, text, sizeof text);
    return car_plan_fail_at(
        w->plan, INT32_MAX, task,
        "%s adds to the sums of its stage and of a tied parameter, but these sums take different paths", text);
}

/* All sums of a stage are at the same point, so one of them gives the facts. */
static car_status add_gradients(const walk *w, const entry *e) {
    const car_partition *partition = w->plan->partition;
    car_script_fact *fact = &w->layout->facts[e->index];
    bool first = true;
    for (int b = car_bundle_of_stage(partition, e->task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(partition, e->task->stage, b)) {
        sum *s = sum_of(w, e->device, b, e->task->step);
        bool begins = !s->open, late = s->came;
        if (begins) {
            *s = (sum){.step = s->step, .legs = s->legs + 1, .open = true, .again = never};
        }
        if (!first && (fact->leg != s->legs - 1 || fact->late != late || fact->begins != begins)) {
            return refuse_ways(w, e->task);
        }
        s->came = false;
        s->added++;
        fact->leg = s->legs - 1;
        fact->late = late;
        fact->begins = begins;
        fact->finishes = s->added == w->plan->batches;
        first = false;
    }
    return CAR_OK;
}

static void pass_sum(const walk *w, const entry *e) {
    const car_task *task = e->task;
    sum *s = sum_of(w, e->device, task->bundle, task->step);
    int other = w->partner[e->index];
    if (task->kind == CAR_TASK_SEND) {
        w->carried[e->index] = s->added;
        s->open = s->open && !(task->cargo == CAR_CARGO_PARTIAL && is_last_piece(w, task));
    } else if (task->piece == 0) {
        *s = (sum){.step = task->step,
                   .legs = s->legs + 1,
                   .added = other == CAR_NONE ? 0 : w->carried[other],
                   .open = true,
                   .came = task->cargo == CAR_CARGO_PARTIAL,
                   .again = never};
    }
    w->layout->facts[e->index].leg = s->legs > 0 ? s->legs - 1 : 0;
}

static int64_t version_of(const car_plan *plan, const car_task *task, int bundle) {
    return car_task_computes(task) && bundle >= plan->stages ? task->tied_version : task->version;
}

/* Which copy a task uses or sends: the received one, otherwise the one its owner keeps. */
static car_copy choose_copy(const walk *w, const entry *e, int bundle) {
    const car_task *task = e->task;
    bool backward = task->kind == CAR_TASK_BACKWARD || task->cargo == CAR_CARGO_BACKWARD_WEIGHTS;
    copy *c = &w->copies[row_of(w, e->device, bundle) * CHAINS + backward];
    int64_t version = version_of(w->plan, task, bundle);
    if (!car_plan_has_chains(w->plan)) {
        return CAR_COPY_KEPT;
    }
    if (task->kind == CAR_TASK_RECEIVE) {
        *c = (copy){.version = version};
    } else {
        bool *done = task->kind == CAR_TASK_SEND ? &c->sent : &c->used;
        if (c->version != version || *done) {
            return CAR_COPY_KEPT;
        }
        *done = true;
    }
    return backward ? CAR_COPY_BACKWARD : CAR_COPY_FORWARD;
}

static car_status walk_forward(walk *w) {
    const car_partition *partition = w->plan->partition;
    car_status status = CAR_OK;
    for (int n = 0; n < w->layout->count; n++) {
        const entry *e = &w->order[n];
        const car_task *task = e->task;
        car_script_fact *fact = &w->layout->facts[e->index];
        if (is_sum(task)) {
            pass_sum(w, e);
        } else if (car_cargo_is_weights(task->cargo)) {
            fact->copy[0] = choose_copy(w, e, task->bundle);
            fact->renewed = w->made[row_of(w, e->device, task->bundle)] > task->version;
        } else if (task->kind == CAR_TASK_UPDATE) {
            w->made[row_of(w, e->device, task->bundle)] = task->version;
        }
        for (int b = car_task_computes(task) ? car_bundle_of_stage(partition, task->stage, CAR_NONE) : CAR_NONE;
             b != CAR_NONE; b = car_bundle_of_stage(partition, task->stage, b)) {
            fact->copy[b >= w->plan->stages] = choose_copy(w, e, b);
        }
        CAR_TRY(task->kind == CAR_TASK_BACKWARD ? add_gradients(w, e) : CAR_OK);
    }
done:
    return status;
}

/* ---- walking back ---------------------------------------------------------------------------- */

static weights *weights_of(const walk *w, int device, int bundle, car_copy copy, int64_t version) {
    size_t row = row_of(w, device, bundle) * CAR_COPIES + (size_t)copy;
    weights *found = &w->weights[row * UNDER_WAY + place_of(version)];
    if (found->version != version) {
        *found = (weights){.version = version, .again = never, .passed = never};
    }
    return found;
}

static void note_least(int64_t *value, int64_t other) {
    *value = other < *value ? other : *value;
}

/* Records a use of weights: takes what later tasks noted, then notes itself. */
static void use_again(const walk *w, const entry *e, int bundle, int64_t version, int which) {
    car_script_fact *fact = &w->layout->facts[e->index];
    weights *found = weights_of(w, e->device, bundle, fact->copy[which], version);
    note_least(&fact->weights_again[which], found->again);
    note_least(&found->again, fact->needed);
    found->used = found->used || car_task_computes(e->task);
}

/* A message that nobody needs counts as part of every run that could have it, so that the validator can say what is
 * wrong with it. */
static void move_weights(const walk *w, const entry *e) {
    const car_task *task = e->task;
    car_script_fact *fact = &w->layout->facts[e->index];
    int other = w->partner[e->index];
    if (task->kind == CAR_TASK_SEND) {
        fact->needed = other == CAR_NONE ? task->version : w->layout->facts[other].needed;
        use_again(w, e, task->bundle, task->version, 0);
        weights *found = weights_of(w, e->device, task->bundle, fact->copy[0], task->version);
        found->passed = fact->needed;
        found->before = found->used;
        return;
    }
    weights *found = weights_of(w, e->device, task->bundle, fact->copy[0], task->version);
    fact->needed = found->again == never ? task->version : found->again;
    fact->passed = found->passed;
    fact->passed_before = found->before;
    *found = (weights){.version = task->version, .again = never, .passed = never};
}

static void use_sums_again(const walk *w, const entry *e) {
    const car_task *task = e->task;
    const car_partition *partition = w->plan->partition;
    car_script_fact *fact = &w->layout->facts[e->index];
    if (task->kind == CAR_TASK_BACKWARD) {
        for (int b = car_bundle_of_stage(partition, task->stage, CAR_NONE); b != CAR_NONE;
             b = car_bundle_of_stage(partition, task->stage, b)) {
            sum *s = sum_of(w, e->device, b, task->step);
            note_least(&s->again, fact->needed);
            s->again = fact->begins ? never : s->again;
        }
        return;
    }
    sum *s = sum_of(w, e->device, task->bundle, task->step);
    fact->sum_again = s->again;
    note_least(&s->again, fact->needed);
    s->again = task->kind == CAR_TASK_RECEIVE && task->piece == 0 ? never : s->again;
}

static void walk_back(walk *w) {
    const car_partition *partition = w->plan->partition;
    for (int n = w->layout->count - 1; n >= 0; n--) {
        const entry *e = &w->order[n];
        const car_task *task = e->task;
        car_script_fact *fact = &w->layout->facts[e->index];
        fact->needed = task->step;
        fact->sum_again = fact->weights_again[0] = fact->weights_again[1] = fact->passed = never;
        if (is_sum(task) || task->kind == CAR_TASK_UPDATE || task->kind == CAR_TASK_BACKWARD) {
            use_sums_again(w, e);
        }
        if (car_cargo_is_weights(task->cargo)) {
            move_weights(w, e);
        } else if (task->kind == CAR_TASK_UPDATE) {
            use_again(w, e, task->bundle, task->version - 1, 0);
        }
        for (int b = car_task_computes(task) ? car_bundle_of_stage(partition, task->stage, CAR_NONE) : CAR_NONE;
             b != CAR_NONE; b = car_bundle_of_stage(partition, task->stage, b)) {
            use_again(w, e, b, version_of(w->plan, task, b), b >= w->plan->stages);
        }
    }
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Fills in a step and version that match nothing. */
static void clear(const walk *w, size_t rows) {
    for (size_t s = 0; s < rows * UNDER_WAY; s++) {
        w->sums[s] = (sum){.step = CAR_VERSION_BEFORE};
    }
    for (size_t s = 0; s < rows * CAR_COPIES * UNDER_WAY; s++) {
        w->weights[s] = (weights){.version = CAR_VERSION_BEFORE};
    }
    for (size_t s = 0; s < rows * CHAINS; s++) {
        w->copies[s] = (copy){.version = CAR_VERSION_BEFORE};
    }
}

static void sort_tasks(const walk *w) {
    for (int d = 0; d < w->plan->devices; d++) {
        for (int n = w->layout->first[d]; n < w->layout->first[d + 1]; n++) {
            w->order[n] = (entry){&w->layout->tasks[n], d, n};
        }
    }
    car_sort(w->order, (size_t)w->layout->count, sizeof *w->order, compare_slots);
}

static void set_due(const walk *w) {
    const car_script *script = w->plan->script;
    for (int d = 0; d < w->plan->devices; d++) {
        for (int n = 0; n < script->devices[d].count; n++) {
            car_task *task = &script->devices[d].tasks[n];
            int other = w->partner[w->layout->first[d] + n];
            if (task->kind == CAR_TASK_SEND) {
                task->due = other == CAR_NONE ? task->slot + 1 : w->layout->tasks[other].slot;
            }
        }
    }
}

car_status car_script_find_facts(car_plan *plan) {
    walk w = {.plan = plan, .layout = &plan->script->layout};
    car_context *context = plan->context;
    size_t rows = (size_t)plan->devices * (size_t)plan->partition->bundle_count, count = 0;
    car_status status = CAR_OK;
    car_script_release_layout(plan, w.layout);
    CAR_TRY(lay_out(plan, w.layout));
    count = (size_t)w.layout->count;
    CAR_TRY(car_context_allocate(context, count, sizeof *w.order, &w.order));
    CAR_TRY(car_context_allocate(context, count, sizeof *w.partner, &w.partner));
    CAR_TRY(car_context_allocate(context, count, sizeof *w.carried, &w.carried));
    CAR_TRY(car_context_allocate(context, rows * UNDER_WAY, sizeof *w.sums, &w.sums));
    CAR_TRY(car_context_allocate(context, rows * CAR_COPIES * UNDER_WAY, sizeof *w.weights, &w.weights));
    CAR_TRY(car_context_allocate(context, rows * CHAINS, sizeof *w.copies, &w.copies));
    CAR_TRY(car_context_allocate(context, rows, sizeof *w.made, &w.made));
    sort_tasks(&w);
    CAR_TRY(join_messages(&w));
    clear(&w, rows);
    CAR_TRY(walk_forward(&w));
    clear(&w, rows);
    walk_back(&w);
    set_due(&w);
done:
    car_context_release(context, w.made, w.made ? rows : 0, sizeof *w.made);
    car_context_release(context, w.copies, w.copies ? rows * CHAINS : 0, sizeof *w.copies);
    car_context_release(context, w.weights, w.weights ? rows * CAR_COPIES * UNDER_WAY : 0, sizeof *w.weights);
    car_context_release(context, w.sums, w.sums ? rows * UNDER_WAY : 0, sizeof *w.sums);
    car_context_release(context, w.carried, w.carried ? count : 0, sizeof *w.carried);
    car_context_release(context, w.partner, w.partner ? count : 0, sizeof *w.partner);
    car_context_release(context, w.order, w.order ? count : 0, sizeof *w.order);
    return status;
}
