/* Writes a plan as text: single tasks, and the table of a run.
 *
 *     carousel-plan 2 rule=cdp-v2 placement=replica ... steps=4
 *     device 1
 *     7: Rp1.0<0 F2.1@1 Sw2@1>2
 *
 * A line is one slot of a device, with its tasks in order. The notation is short, because people read it, and
 * complete, because the reader must get the same tasks back. What it leaves out follows from the slot
 * (car_task_derive); where it does not follow, a task carries it in braces. docs/plan.md explains the notation. */
#include "plan/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "plan/placement.h"
#include "plan/script.h"

bool car_task_names_bundle(const car_task *task) {
    return !car_task_computes(task) && task->cargo != CAR_CARGO_ACTIVATION && task->cargo != CAR_CARGO_GRADIENT;
}

bool car_task_equals(const car_task *a, const car_task *b) {
    return a->kind == b->kind && a->cargo == b->cargo && a->micro_batch == b->micro_batch && a->stage == b->stage &&
           a->bundle == b->bundle && a->step == b->step && a->version == b->version &&
           a->tied_version == b->tied_version && a->peer == b->peer && a->tag == b->tag && a->piece == b->piece &&
           a->slot == b->slot;
}

/* ---- fields that follow from the rest ----------------------------------------------------------- */

static int64_t floor_divide(int64_t value, int64_t by) {
    return value / by - (value % by < 0);
}

/* The last step whose forward (or backward) of a stage by a micro-batch is not after `slot`. */
static int64_t last_step(const car_plan *plan, int64_t slot, int micro_batch, int stage, bool backward) {
    if (stage < 0 || stage >= car_plan_partition(plan)->stage_count) {
        return 0;
    }
    int last = car_plan_micro_batches(plan) - 1;
    int who = micro_batch < 0 || micro_batch > last ? last : micro_batch;
    int64_t first = backward ? car_plan_backward_slot(plan, 0, who, stage) : car_plan_forward_slot(plan, 0, who, stage);
    return floor_divide(slot - first, car_plan_period(plan));
}

static bool is_custom(const car_plan *plan) {
    return car_plan_config_of(plan)->rule == CAR_RULE_CUSTOM;
}

/* True if the text names the task's step, because it does not follow from slot or version: a finished sum may travel
 * for longer than a step, and a custom plan has no clock. */
static bool says_step(const car_plan *plan, const car_task *task) {
    bool versioned = task->kind == CAR_TASK_UPDATE || car_cargo_is_weights(task->cargo);
    return task->cargo == CAR_CARGO_FINISHED || (is_custom(plan) && !versioned);
}

static int64_t step_of(const car_plan *plan, const car_task *task) {
    if (task->kind == CAR_TASK_UPDATE || car_cargo_is_weights(task->cargo)) {
        return task->version - 1;
    }
    if (task->kind == CAR_TASK_BROADCAST) {
        return task->version;
    }
    if (says_step(plan, task)) {
        return task->step;
    }
    if (task->cargo == CAR_CARGO_ACTIVATION) {
        return last_step(plan, task->slot, task->micro_batch, task->stage - 1, false);
    }
    return last_step(plan, task->slot, task->micro_batch, task->stage, task->kind != CAR_TASK_FORWARD);
}

void car_task_derive(const car_plan *plan, car_task *task) {
    const car_partition *partition = car_plan_partition(plan);
    if (!car_task_names_bundle(task)) {
        task->bundle = car_task_computes(task) ? task->stage : CAR_NONE;
    } else {
        bool known = task->bundle >= 0 && task->bundle < partition->bundle_count;
        task->stage = known ? partition->bundles[task->bundle].stage : CAR_NONE;
    }
    task->step = step_of(plan, task);
    bool message = task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_RECEIVE;
    int thing = car_task_names_bundle(task) ? task->bundle : task->stage;
    int parity = car_cargo_is_weights(task->cargo) ? (int)(task->version % 2) : 0;
    int64_t tag =
        task->cargo + CAR_CARGOS * (parity + 2 * (thing + (int64_t)partition->bundle_count * (task->micro_batch + 1)));
    task->tag = message ? (int)tag : CAR_NONE;
}

/* True if the text names the piece: only for sums that are cut. */
static bool has_piece(const car_plan *plan, const car_task *task) {
    bool known = task->bundle >= 0 && task->bundle < car_plan_partition(plan)->bundle_count;
    bool sum = task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
    return task->piece != 0 || (sum && known && car_plan_pieces(plan, task->bundle) > 1);
}

/* ---- one task -------------------------------------------------------------------------------- */

typedef struct writer {
    char text[CAR_TASK_TEXT];
    int length;
} writer;

static void add(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(writer *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int room = (int)sizeof w->text - w->length,
        length = vsnprintf(w->text + w->length, (size_t)room, format, arguments);
    w->length += length < room ? length : room - 1;
    va_end(arguments);
}

/* A tied bundle is "~0", "~1", ...; others are named by their stage. */
static void add_name(writer *w, const car_plan *plan, const car_task *task) {
    int stages = car_plan_partition(plan)->stage_count;
    bool tied = car_task_names_bundle(task) && task->bundle >= stages;
    add(w, tied ? "~%d" : "%d",
        !car_task_names_bundle(task) ? task->stage
        : tied                       ? task->bundle - stages
                                     : task->bundle);
}

static void add_difference(writer *w, const char *name, int64_t value, int64_t derived, int *count) {
    if (value != derived) {
        add(w, "%c%s=%lld", (*count)++ ? ',' : '{', name, (long long)value);
    }
}

static void add_differences(writer *w, const car_plan *plan, const car_task *task) {
    car_task derived = *task;
    int count = 0;
    car_task_derive(plan, &derived);
    add_difference(w, "stage", task->stage, derived.stage, &count);
    add_difference(w, "bundle", task->bundle, derived.bundle, &count);
    add_difference(w, "step", task->step, derived.step, &count);
    add_difference(w, "tag", task->tag, derived.tag, &count);
    if (count > 0) {
        add(w, "}");
    }
}

static const char kind_letters[] = {
#define LETTER(code, text) text[0],
    CAR_TASK_LIST(LETTER)};
static const char cargo_letters[] = {CAR_CARGO_LIST(LETTER)
#undef LETTER
};

int car_task_format(const car_plan *plan, const car_task *task, char *text, size_t capacity) {
    writer w = {.length = 0};
    add(&w, "%c", (unsigned)task->kind < CAR_TASK_KINDS ? kind_letters[task->kind] : '?');
    if (task->cargo != CAR_CARGO_NONE) {
        add(&w, "%c", (unsigned)task->cargo < CAR_CARGOS ? cargo_letters[task->cargo] : '?');
    }
    add_name(&w, plan, task);
    if (task->micro_batch != CAR_NONE) {
        add(&w, ".%d", task->micro_batch);
    }
    if (task->version != CAR_NONE) {
        add(&w, "@%lld", (long long)task->version);
    }
    if (task->tied_version != CAR_NONE) {
        add(&w, "~%lld", (long long)task->tied_version);
    }
    if (says_step(plan, task)) {
        add(&w, "/%lld", (long long)task->step);
    }
    if (has_piece(plan, task)) {
        add(&w, ":%d", task->piece);
    }
    if (task->peer != CAR_NONE) {
        bool inward = task->kind == CAR_TASK_RECEIVE || task->kind == CAR_TASK_BROADCAST;
        add(&w, "%c%d", inward ? '<' : '>', task->peer);
    }
    add_differences(&w, plan, task);
    return snprintf(text, capacity, "%s", w.text);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Writes the piece size, unless it is the default and cuts nothing. */
static void format_pieces(const car_plan *plan, char *text, size_t capacity) {
    bool cut = plan->config.piece_bytes != car_plan_default_piece_bytes(plan->partition);
    for (int b = 0; b < plan->partition->bundle_count; b++) {
        cut = cut || car_plan_pieces(plan, b) > 1;
    }
    snprintf(text, capacity, "%s", "");
    if (cut) {
        snprintf(text, capacity, "piece-bytes=%lld ", (long long)plan->config.piece_bytes);
    }
}

int car_plan_format_header(const car_plan *plan, int64_t steps, char *text, size_t capacity) {
    const car_plan_config *c = car_plan_config_of(plan);
    char period[96] = "", more[64] = "", pieces[48], zero[64] = "";
    format_pieces(plan, pieces, sizeof pieces);
    if (c->zero_copies > 0) {
        snprintf(zero, sizeof zero, " zero-copies=%d zero-ahead=%d", c->zero_copies, c->zero_ahead);
    }
    if (plan->script && plan->script->end > 0) {
        snprintf(period, sizeof period, " period=%lld:%lld max-delay=%lld", (long long)plan->script->begin,
                 (long long)plan->script->end, (long long)plan->script->max_delay);
    } else if (plan->script) {
        snprintf(period, sizeof period, " max-delay=%lld", (long long)plan->script->max_delay);
    }
    if (c->accumulate > 1) {
        snprintf(more, sizeof more, " accumulate=%d sum-order=%s", c->accumulate, car_sum_order_text(c->sum_order));
    }
    return snprintf(text, capacity,
                    "carousel-plan 2 rule=%s placement=%s workers=%d stages=%d bundles=%d devices=%d mapping=%s "
                    "threads=%d slack=%d%s %ssteps=%lld%s%s",
                    car_rule_text(c->rule), car_placement_text(c->placement), c->workers,
                    car_plan_partition(plan)->stage_count, car_plan_partition(plan)->bundle_count,
                    car_plan_devices(plan), car_mapping_text(c->mapping), c->threads, c->freshness_slack, zero, pieces,
                    (long long)steps, more, period);
}

/* Explains tied parameters, so that "~0" is clear without the model. */
static void add_ties(car_text *text, const car_partition *partition) {
    for (int b = partition->stage_count; b < partition->bundle_count; b++) {
        const car_bundle *bundle = &partition->bundles[b];
        const char *name = partition->graph ? car_graph_param(partition->graph, bundle->param)->name : "a parameter";
        car_text_add(text, "# ~%d: %s of stage %d, used again in stage %d\n", b - partition->stage_count, name,
                     bundle->home, bundle->stage);
    }
}

static void add_tasks(car_text *text, const car_plan *plan, const car_task_list *list) {
    char task[CAR_TASK_TEXT];
    for (int n = 0; n < list->count; n++) {
        if (n == 0 || list->tasks[n].slot != list->tasks[n - 1].slot) {
            car_text_add(text, "%s%lld:", n ? "\n" : "", (long long)list->tasks[n].slot);
        }
        car_task_format(plan, &list->tasks[n], task, sizeof task);
        car_text_add(text, " %s", task);
    }
    car_text_add(text, "%s", list->count ? "\n" : "");
}

car_status car_plan_print(const car_plan *plan, int64_t steps, char **out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), out);
    car_text text = {.context = car_plan_context(plan)};
    car_task_list list = {0};
    char header[CAR_HEADER_TEXT];
    car_status status = CAR_OK;
    car_plan_format_header(plan, steps, header, sizeof header);
    car_text_add(&text, "%s\n", header);
    add_ties(&text, car_plan_partition(plan));
    for (int device = 0; device < car_plan_devices(plan); device++) {
        car_text_add(&text, "device %d\n", device);
        for (int64_t window = 0; window < car_plan_windows(plan, steps); window++) {
            CAR_TRY(car_plan_expand(plan, device, window, steps, &list));
            add_tasks(&text, plan, &list);
        }
    }
done:
    car_task_list_release(plan, &list);
    text.status = status == CAR_OK ? text.status : status;
    return car_text_finish(&text, out);
}

enum { MOST_TASKS = 200000 }; /* of a custom plan's text: nobody would edit more */

static car_status fail_too_long(const car_plan *plan) {
    return car_context_fail(
        plan->context, CAR_ERROR_UNSUPPORTED,
        "a custom plan of this size would have more than %d tasks; start from fewer workers, stages or micro-batches",
        MOST_TASKS);
}

/* The number of steps after which every device repeats itself. */
static car_status common_pattern(const car_plan *plan, int64_t *out) {
    *out = 1;
    for (int device = 0; device < plan->devices; device++) {
        int64_t own = car_plan_pattern_steps(plan, car_plan_rank_of(plan, device)), times = 1;
        while (times * *out % own != 0) {
            times++;
        }
        *out *= times;
        if (*out > MOST_TASKS) {
            return fail_too_long(plan);
        }
    }
    return CAR_OK;
}

enum { LONG_RUN = 1000 }; /* steps beyond those that are examined */

/* True if a device does in a window what it does one period later. */
static car_status repeats(const car_plan *plan, int device, int64_t window, int64_t pattern, bool *out) {
    const car_script period = {.end = pattern * plan->period, .repeated = pattern};
    car_task_list now = {0}, later = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_plan_expand(plan, device, window, pattern + LONG_RUN, &now));
    CAR_TRY(car_plan_expand(plan, device, window + pattern, pattern + LONG_RUN, &later));
    *out = now.count == later.count;
    for (int n = 0; *out && n < now.count; n++) {
        car_task again = car_script_repeat(&period, &now.tasks[n], 1);
        *out = car_task_equals(&again, &later.tasks[n]);
    }
done:
    car_task_list_release(plan, &later);
    car_task_list_release(plan, &now);
    return status;
}

/* The first window from which all devices repeat themselves. */
static car_status find_steady(const car_plan *plan, int64_t pattern, int64_t *out) {
    enum { LATEST = 8 }; /* in the cycle, the last worker first uses a steady version in the third */
    car_status status = CAR_OK;
    for (*out = 1; *out < LATEST; ++*out) {
        bool steady = true;
        for (int device = 0; steady && device < plan->devices; device++) {
            CAR_TRY(repeats(plan, device, *out, pattern, &steady));
        }
        if (steady) {
            return CAR_OK;
        }
    }
    status = car_context_fail(
        plan->context, CAR_ERROR_UNSUPPORTED,
        "rule %s in placement %s with %d workers does not repeat within %d steps, so it has no period to write",
        car_rule_text(plan->config.rule), plan->placement->info.name, plan->config.workers, LATEST);
done:
    return status;
}

car_status car_plan_print_custom(const car_plan *plan, char **out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), out);
    car_text text = {.context = car_plan_context(plan)};
    car_plan custom = *plan; /* a copy marked as custom, so that the text includes what follows from the clock */
    car_task_list list = {0};
    char header[CAR_HEADER_TEXT];
    int64_t pattern = 1, steady = 1, tasks = 0;
    car_status status = CAR_OK;
    *out = NULL;
    if (car_plan_reduces(plan) || plan->script) {
        return car_context_fail(
            plan->context, CAR_ERROR_UNSUPPORTED, "rule %s in placement %s cannot be the start of a custom plan: %s",
            car_rule_text(plan->config.rule), plan->placement->info.name,
            plan->script ? "it is already a custom plan" : "it uses collectives, which a custom plan cannot have");
    }
    custom.config.rule = CAR_RULE_CUSTOM;
    custom.config.freshness_slack = 0;
    CAR_TRY(common_pattern(plan, &pattern));
    CAR_TRY(find_steady(plan, pattern, &steady));
    car_plan_format_header(&custom, steady + pattern, header, sizeof header);
    car_text_add(&text, "%s period=%lld:%lld\n", header, (long long)steady * plan->period,
                 (long long)(steady + pattern) * plan->period);
    add_ties(&text, car_plan_partition(plan));
    for (int device = 0; device < car_plan_devices(plan); device++) {
        car_text_add(&text, "device %d\n", device);
        for (int64_t window = 0; window < steady + pattern; window++) {
            CAR_TRY(car_plan_expand(plan, device, window, steady + pattern + LONG_RUN, &list));
            tasks += list.count;
            CAR_TRY(tasks > MOST_TASKS ? fail_too_long(plan) : CAR_OK);
            add_tasks(&text, &custom, &list);
        }
    }
done:
    car_task_list_release(plan, &list);
    text.status = status == CAR_OK ? text.status : status;
    return car_text_finish(&text, out);
}

void car_plan_release_text(const car_plan *plan, char *text) {
    car_context_release_text(car_plan_context(plan), text);
}
