/* Predictions that are read off the table: what versions and sums are alive where, and what is sent.
 *
 * A few windows of steady state are walked, device by device; the middle one is what traffic is counted in. Moments
 * are finer than slots, since an update that makes a version in the place of the last needs no second place:
 *
 *   moment = 2 * (slot * phases + phase), and what is over right before it has the odd number below.
 *
 * Where there are very many devices a sample stands for all. In dp those that it stands for do the same at the same
 * time. In the cycle they do the same one after another: so what they have together at any moment is taken to be what
 * one has on average, times their number, and what they send together repeats with every micro-batch, after 2k
 * slots. */
#include "plan/predict_internal.h"

enum {
    FIRST_WINDOW = 3,
    TRAFFIC_WINDOW = 4,
    END_WINDOW = 6,
    WINDOWS = END_WINDOW - FIRST_WINDOW,
    STEPS = 1000, /* of a run so long that all these are steady */
    PHASES = CAR_PHASE_SEND + 1,
    MOMENTS = 2 * PHASES, /* in a slot */
    MANY_RANKS = 40000,   /* of a grid */
    MANY_TASKS = 1 << 22  /* devices times stages, elsewhere */
};

typedef struct survey {
    const car_plan *plan;
    car_prediction *out;
    bool shared, sampled;
    bool in_turn;          /* sampled, and the devices that one stands for are at other places of the cycle */
    int64_t units, sample; /* what there is to walk, and how much of it is walked */
    bool groups;           /* units are a grid's groups, not devices */
    const car_optimizer_sizes *sizes;
    int group;                               /* ranks of a collective */
    int device;                              /* that is walked */
    int64_t first_window, end_window, steps; /* of a run of so many steps */
    double weight;                           /* how many devices it stands for */
    car_task_list tasks;
    car_usage *usage; /* of the device's rank; it may borrow from `like`, that of `like_rank` */
    car_usage *like;
    int like_rank;
    car_use_list uses;
    car_ledger weights, sums;
    double *weights_changes, *sums_changes; /* of all devices, by moment; not if memory is shared, or in turn */
    double weights_total, sums_total, sums_device, weights_places;
    int64_t beat;       /* slots after which traffic repeats */
    double *slot_bytes; /* sent in each of them */
    double part;        /* of the windows that traffic is counted in, that one is */
    double sent;        /* by this device */
    int *updated_by;    /* by bundle: the last device that made an update of it, plus 1 */
    double optimizer;   /* bytes of this device */
    double optimizer_device, optimizer_total;
    double masters, masters_total; /* bf16: floats of the weights where they are updated; of this device, of all */
    int64_t send_slot;             /* of the last send */
    int sends;                     /* in that slot */
} survey;

/* ---- states ---------------------------------------------------------------------------------- */

static int64_t moment_of(const car_task *task) {
    static const car_phase phases[CAR_TASK_KINDS] = {
        [CAR_TASK_RECEIVE] = CAR_PHASE_RECEIVE, [CAR_TASK_BROADCAST] = CAR_PHASE_BROADCAST,
        [CAR_TASK_FORWARD] = CAR_PHASE_COMPUTE, [CAR_TASK_BACKWARD] = CAR_PHASE_COMPUTE,
        [CAR_TASK_REDUCE] = CAR_PHASE_REDUCE,   [CAR_TASK_UPDATE] = CAR_PHASE_UPDATE_LAST,
        [CAR_TASK_SEND] = CAR_PHASE_SEND,
    };
    bool early = task->kind == CAR_TASK_UPDATE && task->worker == CAR_NONE;
    return 2 * (task->slot * PHASES + (early ? CAR_PHASE_UPDATE_FIRST : phases[task->kind]));
}

/* Copies of a version are told apart. */
static int64_t span_of(const survey *s, const car_use *use) {
    return car_plan_has_chains(s->plan) ? use->id * CAR_COPIES + use->copy : use->id;
}

/* Weights that a task uses. What it makes, or what comes with it, begins; what an update is made of may end with it. */
static car_status account_weights(survey *s, const car_task *task, const car_use *use, int64_t moment) {
    bool comes = task->kind == CAR_TASK_RECEIVE || task->kind == CAR_TASK_BROADCAST;
    bool update = task->kind == CAR_TASK_UPDATE, made = update && use->id == task->version;
    int64_t span = span_of(s, use);
    car_status status = CAR_OK;
    if (comes || made) {
        return car_ledger_begin(&s->weights, use->bundle, span, moment);
    }
    if (update) {
        CAR_TRY(car_ledger_renew(&s->weights, use->bundle, span, moment));
    } else if (car_task_computes(task) || use->id == 0) { /* initial weights are there to be sent */
        CAR_TRY(car_ledger_use(&s->weights, use->bundle, span, moment));
    }
    car_ledger_touch(&s->weights, use->bundle, span, update ? moment - 1 : moment, use->last);
done:
    return status;
}

/* By worker each has a sum of its own, besides that over all. */
static int parts_of_sums(const car_plan *plan) {
    return car_plan_sums_by_worker(plan) ? plan->config.workers + 1 : 1;
}

/* A backward begins its sums, or adds to them; a tied one's only meets its home's there. */
static car_status account_sum(survey *s, const car_task *task, const car_use *use, int64_t moment) {
    bool adds = task->kind == CAR_TASK_BACKWARD && s->plan->partition->bundles[use->bundle].stage == task->stage;
    int64_t id = use->id * parts_of_sums(s->plan) + use->part;
    car_status status = CAR_OK;
    if (adds || task->kind == CAR_TASK_RECEIVE) {
        CAR_TRY(car_ledger_begin(&s->sums, use->bundle, id, moment));
    }
    if (use->last || !adds) {
        car_ledger_touch(&s->sums, use->bundle, id, moment, use->last);
    }
done:
    return status;
}

static car_status account_optimizer(survey *s, const car_task *task) {
    const car_partition *partition = s->plan->partition;
    if (task->kind == CAR_TASK_UPDATE && s->updated_by[task->bundle] != s->device + 1) {
        s->updated_by[task->bundle] = s->device + 1;
        const car_bundle *bundle = &partition->bundles[task->bundle];
        s->masters += bundle->copy_bytes != bundle->bytes ? (double)bundle->bytes : 0;
        s->optimizer += s->sizes->stage ? (double)s->sizes->stage[task->bundle]
                                        : (double)s->sizes->states * (double)partition->bundles[task->bundle].bytes;
    }
    return CAR_OK;
}

static car_status account(survey *s, const car_task *task) {
    int64_t moment = moment_of(task);
    car_status status = CAR_OK;
    CAR_TRY(account_optimizer(s, task));
    CAR_TRY(car_usage_list(s->usage, task, &s->uses));
    for (int u = 0; u < s->uses.count; u++) {
        const car_use *use = &s->uses.uses[u];
        car_resource_kind kind = car_use_kind(use);
        bool source = kind == CAR_RESOURCE_SOURCE && use->mode == CAR_USE_READ;
        if (kind == CAR_RESOURCE_WEIGHTS || source) {
            CAR_TRY(account_weights(s, task, use, moment));
        } else if (kind == CAR_RESOURCE_SUM || kind == CAR_RESOURCE_OWN) {
            CAR_TRY(account_sum(s, task, use, moment));
        }
    }
done:
    return status;
}

/* ---- traffic --------------------------------------------------------------------------------- */

static void count_bytes(survey *s, const car_task *task, double bytes) {
    s->sent += s->part * bytes;
    s->slot_bytes[task->slot % s->beat] += s->part * s->weight * bytes;
}

/* A collective of b bytes over g ranks makes each send b * (g-1)/g, to all twice that: the least there is. */
static void count_traffic(survey *s, const car_task *task) {
    double bytes = (double)car_plan_task_bytes(s->plan, task), others = (double)(s->group - 1) / s->group;
    bool to_all = task->kind == CAR_TASK_REDUCE && task->peer == CAR_NONE;
    switch (task->kind) {
    case CAR_TASK_SEND:
        count_bytes(s, task, bytes);
        s->out->messages += s->part * s->weight;
        s->sends = task->slot == s->send_slot ? s->sends + 1 : 1;
        s->send_slot = task->slot;
        s->out->max_messages_per_slot =
            s->sends > s->out->max_messages_per_slot ? s->sends : s->out->max_messages_per_slot;
        break;
    case CAR_TASK_REDUCE:
    case CAR_TASK_BROADCAST:
        count_bytes(s, task, bytes * others * (to_all ? 2 : 1));
        s->out->collectives += s->group > 1 ? s->part * s->weight : 0;
        break;
    default:
        break;
    }
}

/* ---- devices --------------------------------------------------------------------------------- */

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Everything that a device, or all that share a memory, had alive goes into the result. */
static car_status close_ledgers(survey *s) {
    car_balance weights, sums;
    car_status status = CAR_OK;
    CAR_TRY(car_ledger_close(&s->weights, s->weight, s->weights_changes, &weights));
    CAR_TRY(car_ledger_close(&s->sums, s->weight, s->sums_changes, &sums));
    s->weights_total += s->weight * weights.mean;
    s->sums_total += s->weight * sums.mean;
    s->sums_device = larger(s->sums_device, sums.peak);
    s->weights_places = weights.places + s->masters;
    s->masters_total += s->weight * s->masters;
    s->out->weights_device = (size_t)larger((double)s->out->weights_device, weights.peak + s->masters);
    s->out->versions = weights.most > s->out->versions ? weights.most : s->out->versions;
done:
    return status;
}

static car_status walk_window(survey *s, int64_t window) {
    bool counts = s->sampled || window == TRAFFIC_WINDOW;
    car_status status = CAR_OK;
    s->send_slot = CAR_NONE;
    CAR_TRY(car_plan_expand(s->plan, s->device, window, s->steps, &s->tasks));
    for (int k = 0; k < s->tasks.count; k++) {
        CAR_TRY(account(s, &s->tasks.tasks[k]));
        if (counts) {
            count_traffic(s, &s->tasks.tasks[k]);
        }
    }
done:
    return status;
}

/* What the device's rank uses; ranks that hold the same share it as long as they follow each other. */
static car_status open_usage(survey *s) {
    int rank = car_plan_rank_of(s->plan, s->device), like = car_plan_rank_like(s->plan, rank);
    car_usage *usage = NULL;
    car_status status = CAR_OK;
    if (!s->like || s->like_rank != like) {
        car_usage_destroy(s->like);
        s->like = NULL;
        CAR_TRY(car_usage_create(s->plan, like, &s->like));
        s->like_rank = like;
    }
    CAR_TRY(car_usage_create_like(s->plan, rank, s->like, &usage));
    car_usage_set_steps(usage, s->steps);
    car_usage_destroy(s->usage);
    s->usage = usage;
done:
    return status;
}

static void close_usage(survey *s) {
    car_usage_destroy(s->usage);
    car_usage_destroy(s->like);
    car_use_list_release(s->plan, &s->uses);
}

/* Where stages are owned: what an owner has at the end of a run. */
static car_status keep_last_versions(survey *s) {
    const car_plan *plan = s->plan;
    int64_t end = s->end_window * plan->period * MOMENTS - 1;
    car_status status = CAR_OK;
    for (int b = 0; plan->placement->info.owned && b < plan->partition->bundle_count; b++) {
        const car_use newest = {.bundle = b, .id = s->steps};
        if (car_usage_holding(s->usage, b)->owned) {
            CAR_TRY(car_ledger_use(&s->weights, b, span_of(s, &newest), end));
        }
    }
done:
    return status;
}

static car_status walk_device(survey *s) {
    car_status status = CAR_OK;
    s->sent = s->optimizer = 0;
    s->masters = s->shared ? s->masters : 0;
    CAR_TRY(open_usage(s));
    for (int64_t window = s->first_window; window < s->end_window; window++) {
        CAR_TRY(walk_window(s, window));
    }
    if (s->steps != STEPS) {
        CAR_TRY(keep_last_versions(s));
    }
    if (!s->shared) {
        CAR_TRY(close_ledgers(s));
    }
    s->out->bytes_sent += s->weight * s->sent;
    s->out->bytes_sent_device = larger(s->out->bytes_sent_device, s->sent);
    s->optimizer += s->shared ? 0 : (double)s->sizes->scratch;
    s->optimizer_total += s->weight * s->optimizer;
    s->optimizer_device = larger(s->optimizer_device, s->optimizer);
done:
    return status;
}

/* Of a large grid the first rank of each group, of very many devices some at equal distances. */
static void choose_sample(survey *s) {
    const car_plan *plan = s->plan;
    bool grouped = plan->placement->group_of_device != NULL;
    s->groups = grouped && plan->devices > MANY_RANKS;
    s->units = s->groups ? plan->config.workers : plan->devices;
    s->sample = MANY_TASKS / plan->stages;
    s->sample = s->sample < 64 ? 64 : s->sample;
    if (s->sample > s->units || (grouped && !s->groups)) {
        s->sample = s->units;
    }
    s->sampled = s->groups || s->sample < s->units;
    s->part = s->sampled ? 1.0 / WINDOWS : 1;
    s->in_turn = s->sampled && car_plan_is_spaced(plan);
    s->beat = s->in_turn ? 2 * plan->per_worker : plan->period;
}

/* The last comes first: where memory is shared, it is the one that makes all versions. */
static car_status walk_devices(survey *s) {
    car_status status = CAR_OK;
    for (int64_t u = s->sample - 1; u >= 0; u--) {
        int unit = s->sample > 1 ? (int)(u * (s->units - 1) / (s->sample - 1)) : 0;
        s->device = s->groups ? car_plan_group_first(s->plan, unit) : unit;
        s->weight = (double)s->units / (double)s->sample * (s->groups ? car_plan_group_ranks(s->plan, unit) : 1);
        CAR_TRY(walk_device(s));
    }
    if (s->shared) {
        CAR_TRY(close_ledgers(s));
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

/* One memory: without the ring's order every micro-batch under way needs gradients of its own until they are added. */
static void conclude_shared(survey *s) {
    const car_plan_config *config = &s->plan->config;
    bool all_apart = s->plan->rule->info.together || config->threads > config->workers;
    int apart = all_apart ? config->workers : config->threads;
    size_t all = 0;
    for (int b = 0; b < s->plan->partition->bundle_count; b++) {
        all += s->plan->partition->bundles[b].bytes;
    }
    s->optimizer_total += (double)s->sizes->scratch;
    s->optimizer_device = s->optimizer_total;
    if (car_plan_delay(s->plan, 0, 0) > 0) {
        /* The trainer keeps both stores for good, though a second version is not always alive everywhere. */
        size_t own = 0;
        for (int b = 0; b < s->plan->partition->stage_count; b++) {
            own += s->plan->partition->bundles[b].copy_bytes;
        }
        s->out->weights_device = 2 * own + (size_t)s->masters;
    }
    s->weights_total = (double)s->out->weights_device;
    bool follows = car_plan_is_spaced(s->plan) || (car_plan_sums_by_worker(s->plan) && !s->plan->rule->info.together);
    s->sums_device = follows ? s->sums_device : (double)apart * (double)all;
    s->sums_total = s->sums_device;
}

static void conclude(survey *s, size_t moments) {
    car_prediction *out = s->out;
    if (s->shared) {
        conclude_shared(s);
    } else if (!s->in_turn) {
        s->weights_total = highest(s->weights_changes, moments);
        s->sums_total = highest(s->sums_changes, moments);
    }
    s->weights_total += s->shared ? 0 : s->masters_total;
    double most = 0;
    for (int64_t slot = 0; slot < s->beat; slot++) {
        most = larger(most, s->slot_bytes[slot]);
    }
    out->burst = out->bytes_sent > 0 ? most * (double)s->beat / out->bytes_sent : 0;
    out->weights_total = (size_t)(s->weights_total + 0.5);
    out->gradients_device = (size_t)s->sums_device;
    out->gradients_total = (size_t)(s->sums_total + 0.5);
    out->optimizer_device = (size_t)s->optimizer_device;
    out->optimizer_total = (size_t)(s->optimizer_total + 0.5);
}

static int ranks_of_collective(const car_plan *plan) {
    return plan->placement->info.by_stage ? plan->config.workers : plan->devices;
}

car_status car_predict_table(const car_plan *plan, const car_optimizer_sizes *optimizer, car_prediction *out) {
    car_context *context = plan->context;
    bool shared = plan->placement->info.one_process;
    survey s = {.plan = plan,
                .out = out,
                .shared = shared,
                .sizes = optimizer,
                .group = ranks_of_collective(plan),
                .first_window = FIRST_WINDOW,
                .end_window = END_WINDOW,
                .steps = STEPS};
    size_t bundles = (size_t)plan->partition->bundle_count;
    int64_t begin = FIRST_WINDOW * plan->period * MOMENTS;
    car_status status = CAR_OK;
    choose_sample(&s);
    size_t moments = shared || s.in_turn ? 0 : (size_t)(WINDOWS * plan->period * MOMENTS + 2), beat = (size_t)s.beat;
    CAR_TRY(car_ledger_open(plan, begin, plan->period * MOMENTS, WINDOWS, 1, shared, &s.weights));
    s.weights.copies = true;
    CAR_TRY(car_ledger_open(plan, begin, plan->period * MOMENTS, WINDOWS, parts_of_sums(plan), shared, &s.sums));
    CAR_TRY(car_context_allocate(context, moments, sizeof *s.weights_changes, &s.weights_changes));
    CAR_TRY(car_context_allocate(context, moments, sizeof *s.sums_changes, &s.sums_changes));
    CAR_TRY(car_context_allocate(context, beat, sizeof *s.slot_bytes, &s.slot_bytes));
    CAR_TRY(car_context_allocate(context, bundles, sizeof *s.updated_by, &s.updated_by));
    CAR_TRY(walk_devices(&s));
    conclude(&s, moments);
done:
    car_context_release(context, s.updated_by, bundles, sizeof *s.updated_by);
    car_context_release(context, s.slot_bytes, beat, sizeof *s.slot_bytes);
    car_context_release(context, s.sums_changes, moments, sizeof *s.sums_changes);
    car_context_release(context, s.weights_changes, moments, sizeof *s.weights_changes);
    car_ledger_release(&s.sums);
    car_ledger_release(&s.weights);
    close_usage(&s);
    car_task_list_release(plan, &s.tasks);
    return status;
}

car_status car_predict_device_table(const car_plan *plan, int device, int64_t steps,
                                    const car_optimizer_sizes *optimizer, car_device_prediction *out) {
    car_context *context = plan->context;
    car_prediction whole = {0};
    survey s = {.plan = plan,
                .out = &whole,
                .sizes = optimizer,
                .group = ranks_of_collective(plan),
                .device = device,
                .end_window = car_plan_windows(plan, steps),
                .steps = steps,
                .weight = 1,
                .part = 1,
                .beat = plan->period};
    size_t bundles = (size_t)plan->partition->bundle_count, beat = (size_t)s.beat;
    int64_t begin = -plan->period * MOMENTS; /* a run begins in slot -1 */
    car_status status = CAR_OK;
    CAR_TRY(car_ledger_open(plan, begin, plan->period * MOMENTS, WINDOWS, 1, false, &s.weights));
    s.weights.copies = true;
    CAR_TRY(car_ledger_open(plan, begin, plan->period * MOMENTS, WINDOWS, parts_of_sums(plan), false, &s.sums));
    CAR_TRY(car_context_allocate(context, beat, sizeof *s.slot_bytes, &s.slot_bytes));
    CAR_TRY(car_context_allocate(context, bundles, sizeof *s.updated_by, &s.updated_by));
    CAR_TRY(walk_device(&s));
    bool moves = plan->placement->info.owned;
    out->weights = moves ? whole.weights_device : (size_t)s.weights_places;
    out->gradients = (size_t)s.sums_device;
    out->optimizer = (size_t)s.optimizer_device;
done:
    car_context_release(context, s.updated_by, bundles, sizeof *s.updated_by);
    car_context_release(context, s.slot_bytes, beat, sizeof *s.slot_bytes);
    car_ledger_release(&s.sums);
    car_ledger_release(&s.weights);
    close_usage(&s);
    car_task_list_release(plan, &s.tasks);
    return status;
}
