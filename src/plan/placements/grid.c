/* grid: group r of stages is on N-r ranks, which take micro-batches in turn. At most N-r consecutive micro-batches
 * are alive in group r, so no two meet on a rank. Under dp every worker has its own rank in each group.
 *
 * As in a pipeline, activations and their gradients cross between groups. Partial sums go to the rank of the next
 * micro-batch. The rank that finishes a sum changes from step to step, and each rank needs the previous version to
 * make the next. So the finished sum goes round the ring of the group's ranks, one hop every 2k slots, and each rank
 * updates for itself. */
#include "plan/placement.h"

/* ---- which device ---------------------------------------------------------------------------- */

static int64_t devices(const car_plan_config *config, bool spaced) {
    int64_t workers = config->workers;
    return spaced ? workers * (workers + 1) / 2 : workers * workers;
}

int car_plan_group_ranks(const car_plan *plan, int group) {
    return car_plan_passes_sums(plan) ? plan->config.workers - group : plan->config.workers;
}

int car_plan_group_first(const car_plan *plan, int group) {
    int64_t workers = plan->config.workers, before = group;
    return (int)(car_plan_passes_sums(plan) ? before * workers - before * (before - 1) / 2 : before * workers);
}

static int group_of_device(const car_plan *plan, int device) {
    int low = 0, high = plan->config.workers - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (car_plan_group_first(plan, middle) <= device) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

static int device(const car_plan *plan, int64_t n, int stage) {
    int group = car_plan_group(plan, stage);
    return car_plan_group_first(plan, group) + (int)(n % car_plan_group_ranks(plan, group));
}

static int stage_ranks(const car_plan *plan, int stage) {
    return car_plan_group_ranks(plan, car_plan_group(plan, stage));
}

static void visit(car_window *window) {
    const car_plan *plan = window->plan;
    int group = group_of_device(plan, window->device);
    car_window_visit_group(window, group, car_plan_group_ranks(plan, group),
                           window->device - car_plan_group_first(plan, group));
}

static int tapes(const car_plan *plan, int rank) {
    (void)plan, (void)rank;
    return 1;
}

/* The greatest common divisor, at least 1. */
static int common_divisor(int a, int b) {
    while (b > 0) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a > 0 ? a : 1;
}

/* The number of steps after which the ranks of a group take the same turns again. */
static int pattern_steps(const car_plan *plan, int rank) {
    int ranks = car_plan_group_ranks(plan, group_of_device(plan, rank));
    return ranks / common_divisor(plan->batches, ranks);
}

/* Ranks of a group whose distance is a multiple of `apart` take the same turns over the steps. */
static int like(const car_plan *plan, int rank) {
    int group = group_of_device(plan, rank), first = car_plan_group_first(plan, group);
    int apart = common_divisor(plan->batches, car_plan_group_ranks(plan, group));
    return car_plan_passes_sums(plan) ? first + (rank - first) % apart : first;
}

/* ---- sums and updates ------------------------------------------------------------------------ */

static void attach(car_window *window, const car_task *task, int64_t n) {
    const car_plan *plan = window->plan;
    car_window_boundaries(window, task, n);
    car_window_ties(window, task, n);
    if (car_plan_reduces(plan)) {
        car_window_reduce(window, task, n);
        return;
    }
    car_window_pass_sums(window, task, n);
    car_window_make(window, task);
}

/* A trip round the ring of a group's ranks. It starts at the rank of micro-batch `start` in slot `slot` and makes
 * one hop every 2k slots. Where the next step waits for the end of this one, the sum instead reaches each rank with
 * its first forward that needs it.
 *
 * For a stage's own bundle, the finished sum travels, starting at the rank that finished it; the last version of a
 * run stays there. For a tied bundle (`tied`), new weights travel, starting at the rank that uses them first. */
typedef struct ring {
    int bundle, ranks, first_rank;
    int64_t version, start, slot, first_user;
    bool tied;
} ring;

static int ring_device(const ring *r, int64_t offset) {
    return r->first_rank + (int)((r->start + offset) % r->ranks);
}

/* The number of hops from the first rank of the trip to a device. */
static int64_t ring_offset(const ring *r, int device) {
    return ((device - r->first_rank - r->start) % r->ranks + r->ranks) % r->ranks;
}

/* True if the rank at `offset`, or one after it, uses a tied version in this run. */
static bool tie_is_wanted(const car_window *window, const ring *r, int64_t offset) {
    for (int64_t o = offset; o < r->ranks; o++) {
        int64_t n = r->first_user + ((r->start + o - r->first_user) % r->ranks + r->ranks) % r->ranks;
        /* Each rank's first user is enough: a group has no more ranks than a version has users. */
        if (car_window_runs(window, n)) {
            return true;
        }
    }
    return false;
}

/* The slot in which the rank at `offset` gets the message. */
static int64_t hop_slot(const car_plan *plan, const ring *r, int64_t offset) {
    int stage = plan->partition->bundles[r->bundle].stage;
    bool waits = !car_plan_is_cyclic(plan) && !r->tied && offset > 0;
    return waits ? car_plan_forward_slot_of(plan, r->start + offset, stage)
                 : r->slot + 2 * (int64_t)plan->per_worker * offset;
}

static void add_hops(car_window *window, const ring *r) {
    const car_plan *plan = window->plan;
    int64_t mine = ring_offset(r, window->device);
    car_task what = r->tied ? car_window_weights_message(plan, r->bundle, r->version, CAR_NONE)
                            : car_window_finished_sum(plan, r->bundle, r->version);
    /* The hop to this device and the hop from it. */
    for (int64_t o = mine > 0 ? mine : 1; o <= mine + 1 && o < r->ranks; o++) {
        if (!r->tied || tie_is_wanted(window, r, o)) {
            car_window_message(window, what, ring_device(r, o - 1), hop_slot(plan, r, o - 1), ring_device(r, o),
                               hop_slot(plan, r, o));
        }
    }
    if (!r->tied && mine > 0) {
        car_window_update(window, r->bundle, r->version, hop_slot(plan, r, mine));
    }
}

static ring ring_of(const car_plan *plan, int bundle, int group) {
    return (ring){
        .bundle = bundle, .ranks = car_plan_group_ranks(plan, group), .first_rank = car_plan_group_first(plan, group)};
}

/* The last rank on the trip does not pass the sum on, and neither does the maker of the run's last version. */
static bool passes_sum_on(const car_plan *plan, int device, const car_task *task, int64_t steps) {
    if (task->kind != CAR_TASK_UPDATE || !car_plan_is_spaced(plan) || task->version >= steps) {
        return false;
    }
    ring r = ring_of(plan, task->bundle, car_plan_group(plan, task->stage));
    r.start = task->version * plan->batches - 1;
    return ring_offset(&r, device) + 1 < r.ranks;
}

static void relay_bundle(car_window *window, int bundle, int group) {
    const car_plan *plan = window->plan;
    const car_bundle *b = &plan->partition->bundles[bundle];
    ring r = ring_of(plan, bundle, group);
    int64_t around = window->begin / plan->period;
    r.tied = b->home != b->stage;
    if (r.tied && group == car_plan_group(plan, b->home)) {
        return; /* every rank of the group makes them with the home's update */
    }
    /* A trip takes less than a period and begins at most two periods after its step. */
    for (int64_t version = around - 3; version <= around + 1; version++) {
        if (version < 1 || version >= window->steps) {
            continue;
        }
        r.version = version;
        r.first_user = car_plan_first_user(plan, version, b->home);
        r.start = r.tied ? r.first_user : version * plan->batches - 1;
        r.slot = r.tied ? car_plan_forward_slot_of(plan, r.start, b->stage)
                        : car_plan_backward_slot_of(plan, r.start, b->stage);
        add_hops(window, &r);
    }
}

static void relay(car_window *window) {
    const car_plan *plan = window->plan;
    if (!car_plan_is_spaced(plan)) {
        return;
    }
    /* First the group's own stages, then the ties. */
    int group = group_of_device(plan, window->device), k = plan->per_worker;
    for (int b = group * k; b < plan->partition->bundle_count; b = b + 1 == (group + 1) * k ? plan->stages : b + 1) {
        const car_bundle *bundle = &plan->partition->bundles[b];
        if (bundle->bytes > 0 && car_plan_group(plan, bundle->stage) == group) {
            relay_bundle(window, b, group);
        }
    }
}

const car_placement_class car_placement_grid = {
    .info = {.name = "grid",
             .summary = "group r of stages on N-r ranks (dp: on N), micro-batches in turn",
             .by_stage = true,
             .repeated = true},
    .devices = devices,
    .device = device,
    .stage_ranks = stage_ranks,
    .pattern_steps = pattern_steps,
    .visit = visit,
    .attach = attach,
    .besides = relay,
    .passes_sum_on = passes_sum_on,
    .tapes = tapes,
    .like = like,
    .group_of_device = group_of_device,
    .roams = true,
};
