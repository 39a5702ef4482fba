/* Predictions read off the table: which versions and sums are alive where, and what is sent.
 *
 * This walks a few windows of steady state, device by device, and counts traffic in the middle one. Moments are
 * finer than slots, because an update that makes a version in place of the last one needs no second place:
 *
 *   moment = 2 * (slot * subslots + subslot); what ends right before it has the odd number below.
 *
 * Of very many devices only a sample is walked, and each stands for several. Under dp those do the same at the same
 * time. In the cycle they do the same one after another, so together they hold their number times one device's
 * average, and their traffic repeats every 2k slots, with every micro-batch. */
#include "plan/predict_internal.h"

enum {
    FIRST_WINDOW = 3,
    TRAFFIC_WINDOW = 4,
    END_WINDOW = 6,
    WINDOWS = END_WINDOW - FIRST_WINDOW,
    STEPS = 1000, /* a run so long that all these windows are steady */
    SUBSLOTS = CAR_SUBSLOT_SEND + 1,
    MOMENTS = 2 * SUBSLOTS, /* per slot */
    MANY_RANKS = 40000,     /* in a grid with more ranks, only one rank per group is walked */
    MANY_TASKS = 1 << 22    /* devices times stages; with more, only a sample is walked */
};

/* What is sent, counted in the traffic window. */
typedef struct traffic {
    int64_t repeat;     /* slots after which the traffic repeats */
    double *slot_bytes; /* bytes sent by all devices in each of those slots */
    double part;        /* one step's share of the counted windows */
    double sent;        /* bytes sent by this device */
    int group;          /* number of ranks in a collective */
    int64_t send_slot;  /* the slot of the last send */
    int sends;          /* number of sends in that slot */
} traffic;

/* The walk over the devices, and its results so far. */
typedef struct walk {
    const car_plan *plan;
    const car_optimizer_sizes *sizes;
    car_prediction *out;
    int64_t first_window, end_window, steps; /* the windows to walk, of a run of `steps` steps */
    bool shared;                             /* all devices share one memory */

    /* Which devices are walked. A unit is a device, or (`groups`) a group of a grid, of which the first rank is
     * walked. */
    int64_t units, sample; /* units: how many there are; sample: how many are walked */
    bool groups, sampled;
    bool in_turn; /* sampled, and the devices that one stands for are at other points of the cycle */

    /* The current device. */
    int device;
    double weight; /* how many devices it stands for */
    car_task_list tasks;
    car_usage *usage; /* of its rank; it may borrow from `like`, the usage of `like_rank` */
    car_usage *like;
    int like_rank;
    car_use_list uses;
    car_ledger weights, sums;
    double weights_places;
    double masters;   /* bf16: bytes of the fp32 weights that it updates */
    double optimizer; /* bytes */
    int *updated_by;  /* by bundle: 1 + the last device that made an update of it */

    /* Totals over all devices. */
    double *weights_changes, *sums_changes; /* by moment; unused if memory is shared, or in_turn */
    size_t moments;
    double weights_total, sums_total, masters_total, optimizer_total;
    double sums_device, optimizer_device; /* the most of any device */
    traffic traffic;
} walk;

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t moment_of(const car_task *task) {
    static const car_subslot subslots[CAR_TASK_KINDS] = {
        [CAR_TASK_RECEIVE] = CAR_SUBSLOT_RECEIVE, [CAR_TASK_BROADCAST] = CAR_SUBSLOT_BROADCAST,
        [CAR_TASK_FORWARD] = CAR_SUBSLOT_COMPUTE, [CAR_TASK_BACKWARD] = CAR_SUBSLOT_COMPUTE,
        [CAR_TASK_REDUCE] = CAR_SUBSLOT_REDUCE,   [CAR_TASK_UPDATE] = CAR_SUBSLOT_UPDATE_LAST,
        [CAR_TASK_SEND] = CAR_SUBSLOT_SEND,
    };
    bool early = task->kind == CAR_TASK_UPDATE && task->micro_batch == CAR_NONE;
    return 2 * (task->slot * SUBSLOTS + (early ? CAR_SUBSLOT_UPDATE_FIRST : subslots[task->kind]));
}

/* By worker, each worker has its own sum besides the one over all. */
static int parts_of_sums(const car_plan *plan) {
    return car_plan_sums_by_worker(plan) ? plan->config.workers + 1 : 1;
}

/* A backward begins its sums or adds to them. The sum of a tied bundle is only added to its home's there. */
static car_status account_sum(walk *w, const car_task *task, const car_use *use, int64_t moment) {
    bool adds = task->kind == CAR_TASK_BACKWARD && w->plan->partition->bundles[use->bundle].stage == task->stage;
    int64_t id = use->id * parts_of_sums(w->plan) + use->part;
    car_status status = CAR_OK;
    if (adds || task->kind == CAR_TASK_RECEIVE) {
        CAR_TRY(car_ledger_begin(&w->sums, use->bundle, id, moment));
    }
    if (use->last || !adds) {
        car_ledger_touch(&w->sums, use->bundle, id, moment, use->last);
    }
done:
    return status;
}

static car_status account_optimizer(walk *w, const car_task *task) {
    const car_partition *partition = w->plan->partition;
    if (task->kind == CAR_TASK_UPDATE && w->updated_by[task->bundle] != w->device + 1) {
        w->updated_by[task->bundle] = w->device + 1;
        const car_bundle *bundle = &partition->bundles[task->bundle];
        w->masters += bundle->copy_bytes != bundle->bytes ? (double)bundle->bytes : 0;
        w->optimizer += w->sizes->stage ? (double)w->sizes->stage[task->bundle]
                                        : (double)w->sizes->states * (double)partition->bundles[task->bundle].bytes;
    }
    return CAR_OK;
}

static car_status account(walk *w, const car_task *task) {
    int64_t moment = moment_of(task);
    car_status status = CAR_OK;
    CAR_TRY(account_optimizer(w, task));
    CAR_TRY(car_usage_list(w->usage, task, &w->uses));
    for (int u = 0; u < w->uses.count; u++) {
        const car_use *use = &w->uses.uses[u];
        car_resource_kind kind = car_use_kind(use);
        if (car_ledger_counts_weights(use)) {
            CAR_TRY(car_ledger_account_weights(&w->weights, task, use, moment, moment));
        } else if (kind == CAR_RESOURCE_SUM || kind == CAR_RESOURCE_OWN) {
            CAR_TRY(account_sum(w, task, use, moment));
        }
    }
done:
    return status;
}

/* ---- traffic --------------------------------------------------------------------------------- */

static void count_bytes(walk *w, const car_task *task, double bytes) {
    w->traffic.sent += w->traffic.part * bytes;
    w->traffic.slot_bytes[task->slot % w->traffic.repeat] += w->traffic.part * w->weight * bytes;
}

/* In a collective of b bytes over g ranks each rank sends b * (g-1)/g, twice that if all get the result: the
 * minimum. */
static void count_traffic(walk *w, const car_task *task) {
    double bytes = (double)car_plan_task_bytes(w->plan, task),
           others = (double)(w->traffic.group - 1) / w->traffic.group;
    bool to_all = task->kind == CAR_TASK_REDUCE && task->peer == CAR_NONE;
    switch (task->kind) {
    case CAR_TASK_SEND:
        count_bytes(w, task, bytes);
        w->out->messages += w->traffic.part * w->weight;
        w->traffic.sends = task->slot == w->traffic.send_slot ? w->traffic.sends + 1 : 1;
        w->traffic.send_slot = task->slot;
        w->out->max_messages_per_slot =
            w->traffic.sends > w->out->max_messages_per_slot ? w->traffic.sends : w->out->max_messages_per_slot;
        break;
    case CAR_TASK_REDUCE:
    case CAR_TASK_BROADCAST:
        count_bytes(w, task, bytes * others * (to_all ? 2 : 1));
        w->out->collectives += w->traffic.group > 1 ? w->traffic.part * w->weight : 0;
        break;
    default:
        break;
    }
}

/* ---- devices --------------------------------------------------------------------------------- */

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Adds what a device, or all devices that share a memory, had alive to the result. */
static car_status close_ledgers(walk *w) {
    car_balance weights, sums;
    car_status status = CAR_OK;
    CAR_TRY(car_ledger_close(&w->weights, w->weight, w->weights_changes, &weights));
    CAR_TRY(car_ledger_close(&w->sums, w->weight, w->sums_changes, &sums));
    w->weights_total += w->weight * weights.mean;
    w->sums_total += w->weight * sums.mean;
    w->sums_device = larger(w->sums_device, sums.peak);
    w->weights_places = weights.places + w->masters;
    w->masters_total += w->weight * w->masters;
    w->out->weights_device = (size_t)larger((double)w->out->weights_device, weights.peak + w->masters);
    w->out->versions = weights.most > w->out->versions ? weights.most : w->out->versions;
done:
    return status;
}

static car_status walk_window(walk *w, int64_t window) {
    bool counts = w->sampled || window == TRAFFIC_WINDOW;
    car_status status = CAR_OK;
    w->traffic.send_slot = CAR_NONE;
    CAR_TRY(car_plan_expand(w->plan, w->device, window, w->steps, &w->tasks));
    for (int k = 0; k < w->tasks.count; k++) {
        CAR_TRY(account(w, &w->tasks.tasks[k]));
        if (counts) {
            count_traffic(w, &w->tasks.tasks[k]);
        }
    }
done:
    return status;
}

/* Opens the usage of the device's rank. Consecutive ranks that hold the same share one. */
static car_status open_usage(walk *w) {
    int rank = car_plan_rank_of(w->plan, w->device), like = car_plan_rank_like(w->plan, rank);
    car_usage *usage = NULL;
    car_status status = CAR_OK;
    if (!w->like || w->like_rank != like) {
        car_usage_destroy(w->like);
        w->like = NULL;
        CAR_TRY(car_usage_create(w->plan, like, &w->like));
        w->like_rank = like;
    }
    CAR_TRY(car_usage_create_like(w->plan, rank, w->like, &usage));
    car_usage_set_steps(usage, w->steps);
    car_usage_destroy(w->usage);
    w->usage = usage;
done:
    return status;
}

/* For placements with owners: what an owner still has at the end of a run. */
static car_status keep_last_versions(walk *w) {
    const car_plan *plan = w->plan;
    int64_t end = w->end_window * plan->period * MOMENTS - 1;
    car_status status = CAR_OK;
    for (int b = 0; plan->placement->info.owned && b < plan->partition->bundle_count; b++) {
        const car_use newest = {.bundle = b, .id = w->steps};
        if (car_usage_holding(w->usage, b)->owned) {
            CAR_TRY(car_ledger_use(&w->weights, b, car_ledger_span(plan, &newest), end));
        }
    }
done:
    return status;
}

static car_status walk_device(walk *w) {
    car_status status = CAR_OK;
    w->traffic.sent = w->optimizer = 0;
    w->masters = w->shared ? w->masters : 0;
    CAR_TRY(open_usage(w));
    for (int64_t window = w->first_window; window < w->end_window; window++) {
        CAR_TRY(walk_window(w, window));
    }
    if (w->steps != STEPS) {
        CAR_TRY(keep_last_versions(w));
    }
    if (!w->shared) {
        CAR_TRY(close_ledgers(w));
    }
    w->out->bytes_sent += w->weight * w->traffic.sent;
    w->out->bytes_sent_device = larger(w->out->bytes_sent_device, w->traffic.sent);
    w->optimizer += w->shared ? 0 : (double)w->sizes->scratch;
    w->optimizer_total += w->weight * w->optimizer;
    w->optimizer_device = larger(w->optimizer_device, w->optimizer);
done:
    return status;
}

/* Chooses the first rank of each group of a large grid, or evenly spaced ones of very many devices. */
static void choose_sample(walk *w) {
    const car_plan *plan = w->plan;
    bool grouped = plan->placement->group_of_device != NULL;
    w->groups = grouped && plan->devices > MANY_RANKS;
    w->units = w->groups ? plan->config.workers : plan->devices;
    w->sample = MANY_TASKS / plan->stages;
    w->sample = w->sample < 64 ? 64 : w->sample;
    if (w->sample > w->units || (grouped && !w->groups)) {
        w->sample = w->units;
    }
    w->sampled = w->groups || w->sample < w->units;
    w->traffic.part = w->sampled ? 1.0 / WINDOWS : 1;
    w->in_turn = w->sampled && car_plan_is_spaced(plan);
    w->traffic.repeat = w->in_turn ? 2 * plan->per_worker : plan->period;
}

/* Starts with the last one: where memory is shared, it is the one that makes all versions. */
static car_status walk_devices(walk *w) {
    car_status status = CAR_OK;
    for (int64_t u = w->sample - 1; u >= 0; u--) {
        int unit = w->sample > 1 ? (int)(u * (w->units - 1) / (w->sample - 1)) : 0;
        w->device = w->groups ? car_plan_group_first(w->plan, unit) : unit;
        w->weight = (double)w->units / (double)w->sample * (w->groups ? car_plan_group_ranks(w->plan, unit) : 1);
        CAR_TRY(walk_device(w));
    }
    if (w->shared) {
        CAR_TRY(close_ledgers(w));
    }
done:
    return status;
}

/* ---- the result ------------------------------------------------------------------------------ */

static double highest(const double *changes, size_t count) {
    double sum = 0, most = 0;
    for (size_t c = 0; c < count; c++) {
        sum += changes[c];
        most = larger(most, sum);
    }
    return most;
}

/* One memory. Without ring order, every micro-batch in progress needs its own gradients until they are added. */
static void conclude_shared(walk *w) {
    const car_plan_config *config = &w->plan->config;
    bool all_apart = w->plan->rule->info.together || config->threads > config->workers;
    int apart = all_apart ? config->workers : config->threads;
    size_t all = 0;
    for (int b = 0; b < w->plan->partition->bundle_count; b++) {
        all += w->plan->partition->bundles[b].bytes;
    }
    w->optimizer_total += (double)w->sizes->scratch;
    w->optimizer_device = w->optimizer_total;
    if (car_plan_delay(w->plan, 0, 0) > 0) {
        /* The trainer always keeps both stores, although a second version is not always alive everywhere. */
        size_t own = 0;
        for (int b = 0; b < w->plan->partition->stage_count; b++) {
            own += w->plan->partition->bundles[b].copy_bytes;
        }
        w->out->weights_device = 2 * own + (size_t)w->masters;
    }
    w->weights_total = (double)w->out->weights_device;
    bool follows = car_plan_is_spaced(w->plan) || (car_plan_sums_by_worker(w->plan) && !w->plan->rule->info.together);
    w->sums_device = follows ? w->sums_device : (double)apart * (double)all;
    w->sums_total = w->sums_device;
}

static void conclude(walk *w) {
    car_prediction *out = w->out;
    if (w->shared) {
        conclude_shared(w);
    } else if (!w->in_turn) {
        w->weights_total = highest(w->weights_changes, w->moments);
        w->sums_total = highest(w->sums_changes, w->moments);
    }
    w->weights_total += w->shared ? 0 : w->masters_total;
    double most = 0;
    for (int64_t slot = 0; slot < w->traffic.repeat; slot++) {
        most = larger(most, w->traffic.slot_bytes[slot]);
    }
    out->burst = out->bytes_sent > 0 ? most * (double)w->traffic.repeat / out->bytes_sent : 0;
    out->weights_total = (size_t)(w->weights_total + 0.5);
    out->gradients_device = (size_t)w->sums_device;
    out->gradients_total = (size_t)(w->sums_total + 0.5);
    out->optimizer_device = (size_t)w->optimizer_device;
    out->optimizer_total = (size_t)(w->optimizer_total + 0.5);
}

static int ranks_of_collective(const car_plan *plan) {
    return plan->placement->info.by_stage ? plan->config.workers : plan->devices;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* Allocates the ledgers and arrays of a walk that begins at moment `begin`. With `sums_up`, keeps the changes over
 * all devices. */
static car_status open_walk(walk *w, int64_t begin, bool sums_up) {
    const car_plan *plan = w->plan;
    car_context *context = plan->context;
    int64_t length = plan->period * MOMENTS;
    car_status status = CAR_OK;
    w->moments = sums_up ? (size_t)(WINDOWS * length + 2) : 0;
    CAR_TRY(car_ledger_open(plan, begin, length, WINDOWS, 1, w->shared, &w->weights));
    w->weights.copies = true;
    CAR_TRY(car_ledger_open(plan, begin, length, WINDOWS, parts_of_sums(plan), w->shared, &w->sums));
    CAR_TRY(car_context_allocate(context, w->moments, sizeof *w->weights_changes, &w->weights_changes));
    CAR_TRY(car_context_allocate(context, w->moments, sizeof *w->sums_changes, &w->sums_changes));
    CAR_TRY(car_context_allocate(context, (size_t)w->traffic.repeat, sizeof *w->traffic.slot_bytes,
                                 &w->traffic.slot_bytes));
    CAR_TRY(
        car_context_allocate(context, (size_t)plan->partition->bundle_count, sizeof *w->updated_by, &w->updated_by));
done:
    return status;
}

static void close_walk(walk *w) {
    const car_plan *plan = w->plan;
    car_context *context = plan->context;
    car_context_release(context, w->updated_by, (size_t)plan->partition->bundle_count, sizeof *w->updated_by);
    car_context_release(context, w->traffic.slot_bytes, (size_t)w->traffic.repeat, sizeof *w->traffic.slot_bytes);
    car_context_release(context, w->sums_changes, w->moments, sizeof *w->sums_changes);
    car_context_release(context, w->weights_changes, w->moments, sizeof *w->weights_changes);
    car_ledger_release(&w->sums);
    car_ledger_release(&w->weights);
    car_usage_destroy(w->usage);
    car_usage_destroy(w->like);
    car_use_list_release(plan, &w->uses);
    car_task_list_release(plan, &w->tasks);
}

car_status car_predict_table(const car_plan *plan, const car_optimizer_sizes *optimizer, car_prediction *out) {
    walk w = {.plan = plan,
              .sizes = optimizer,
              .out = out,
              .first_window = FIRST_WINDOW,
              .end_window = END_WINDOW,
              .steps = STEPS,
              .shared = plan->placement->info.one_process,
              .traffic.group = ranks_of_collective(plan)};
    car_status status = CAR_OK;
    choose_sample(&w);
    CAR_TRY(open_walk(&w, FIRST_WINDOW * plan->period * MOMENTS, !w.shared && !w.in_turn));
    CAR_TRY(walk_devices(&w));
    conclude(&w);
done:
    close_walk(&w);
    return status;
}

car_status car_predict_device_table(const car_plan *plan, int device, int64_t steps,
                                    const car_optimizer_sizes *optimizer, car_device_prediction *out) {
    car_prediction whole = {0};
    walk w = {.plan = plan,
              .sizes = optimizer,
              .out = &whole,
              .end_window = car_plan_windows(plan, steps),
              .steps = steps,
              .device = device,
              .weight = 1,
              .traffic = {.repeat = plan->period, .part = 1, .group = ranks_of_collective(plan)}};
    car_status status = CAR_OK;
    CAR_TRY(open_walk(&w, -plan->period * MOMENTS, false)); /* a run begins in slot -1 */
    CAR_TRY(walk_device(&w));
    out->weights = plan->placement->info.owned ? whole.weights_device : (size_t)w.weights_places;
    out->gradients = (size_t)w.sums_device;
    out->optimizer = (size_t)w.optimizer_device;
done:
    close_walk(&w);
    return status;
}
