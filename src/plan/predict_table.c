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
    int64_t send_slot; /* of the last send */
    int sends;         /* in that slot */
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

/* Where a forward or backward finds the weights of a bundle: those of a tied one at home, or in a copy. */
static int place_of(const survey *s, int b) {
    const car_plan *plan = s->plan;
    const car_bundle *bundle = &plan->partition->bundles[b];
    bool at_home = true;
    if (plan->config.placement == CAR_PLACEMENT_PIPELINE || plan->config.placement == CAR_PLACEMENT_GRID) {
        at_home = car_plan_group(plan, bundle->home) == car_plan_group(plan, bundle->stage);
    } else if (plan->config.placement == CAR_PLACEMENT_ZERO) {
        at_home = false; /* a tied one is a copy that travels on its own */
    }
    return at_home ? bundle->home : b;
}

/* A forward or backward uses weights; a backward adds to sums. */
static car_status account_compute(survey *s, const car_task *task, int64_t moment) {
    const car_partition *partition = s->plan->partition;
    /* In the cycle this is said of the stage's own; a tied bundle may have another last user. */
    bool frees = task->frees & CAR_FREES_WEIGHTS, frees_ties = frees && s->plan->clock == CAR_RULE_DP;
    car_status status = CAR_OK;
    for (int b = task->stage; b < partition->bundle_count; b = b < s->plan->stages ? s->plan->stages : b + 1) {
        const car_bundle *bundle = &partition->bundles[b];
        if (bundle->stage != task->stage || bundle->bytes == 0) {
            continue;
        }
        bool tied = b >= s->plan->stages;
        int64_t version = tied ? task->tied_version : task->version;
        int place = place_of(s, b);
        CAR_TRY(car_ledger_use(&s->weights, place, version, moment));
        if (place == b) {
            car_ledger_touch(&s->weights, b, version, moment, tied ? frees_ties : frees);
        }
        if (task->kind == CAR_TASK_BACKWARD) {
            CAR_TRY(car_ledger_begin(&s->sums, b, task->step, moment));
        }
    }
done:
    return status;
}

static car_status account_update(survey *s, const car_task *task, int64_t moment) {
    const car_partition *partition = s->plan->partition;
    car_status status = CAR_OK;
    if (s->updated_by[task->bundle] != s->device + 1) {
        s->updated_by[task->bundle] = s->device + 1;
        s->optimizer += s->sizes->stage ? (double)s->sizes->stage[task->bundle]
                                        : (double)s->sizes->states * (double)partition->bundles[task->bundle].bytes;
    }
    bool zero = s->plan->config.placement == CAR_PLACEMENT_ZERO, passes = zero && car_plan_is_cyclic(s->plan);
    CAR_TRY(car_ledger_update(&s->weights, task->bundle, task->version, moment, !passes));
    car_ledger_touch(&s->weights, task->bundle, task->version - 1, moment - 1, task->frees & CAR_FREES_WEIGHTS);
    car_ledger_touch(&s->sums, task->bundle, task->step, moment, task->frees & CAR_FREES_SUM);
    for (int b = s->plan->stages; b < partition->bundle_count; b++) {
        if (partition->bundles[b].home == task->bundle) {
            car_ledger_touch(&s->sums, b, task->step, moment, true);
            CAR_TRY(!zero    ? CAR_OK
                    : passes ? car_ledger_begin(&s->weights, b, task->version, moment)
                             : car_ledger_update(&s->weights, b, task->version, moment, true));
        }
    }
done:
    return status;
}

static car_status account_message(survey *s, const car_task *task, int64_t moment) {
    bool sum = task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
    bool arrives = task->kind == CAR_TASK_RECEIVE;
    car_status status = CAR_OK;
    if (!sum && task->cargo != CAR_CARGO_WEIGHTS) {
        return CAR_OK;
    }
    car_ledger *ledger = sum ? &s->sums : &s->weights;
    int64_t id = sum ? task->step : task->version;
    if (arrives) {
        return car_ledger_begin(ledger, task->bundle, id, moment);
    }
    if (!sum && id == 0) { /* there from the beginning */
        CAR_TRY(car_ledger_use(ledger, task->bundle, id, moment));
    }
    car_ledger_touch(ledger, task->bundle, id, moment, task->frees & (CAR_FREES_SUM | CAR_FREES_WEIGHTS));
done:
    return status;
}

static car_status account(survey *s, const car_task *task) {
    int64_t moment = moment_of(task);
    switch (task->kind) {
    case CAR_TASK_FORWARD:
    case CAR_TASK_BACKWARD:
        return account_compute(s, task, moment);
    case CAR_TASK_UPDATE:
        return account_update(s, task, moment);
    case CAR_TASK_BROADCAST:
        return car_ledger_begin(&s->weights, task->bundle, task->version, moment);
    case CAR_TASK_REDUCE:
        car_ledger_touch(&s->sums, task->bundle, task->step, moment, task->frees & CAR_FREES_SUM);
        return CAR_OK;
    default:
        return account_message(s, task, moment);
    }
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
    s->weights_places = weights.places;
    s->out->weights_device = (size_t)larger((double)s->out->weights_device, weights.peak);
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

/* zero: what an owner has at the end of a run. */
static car_status keep_last_versions(survey *s) {
    const car_plan *plan = s->plan;
    int64_t end = s->end_window * plan->period * MOMENTS - 1;
    car_status status = CAR_OK;
    for (int b = 0; plan->config.placement == CAR_PLACEMENT_ZERO && b < plan->partition->bundle_count; b++) {
        const car_bundle *bundle = &plan->partition->bundles[b];
        if (bundle->bytes > 0 && car_plan_owner(plan, s->steps, bundle->home) == s->device) {
            CAR_TRY(car_ledger_use(&s->weights, b, s->steps, end));
        }
    }
done:
    return status;
}

static car_status walk_device(survey *s) {
    car_status status = CAR_OK;
    s->sent = s->optimizer = 0;
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
    s->groups = plan->config.placement == CAR_PLACEMENT_GRID && plan->devices > MANY_RANKS;
    s->units = s->groups ? plan->config.workers : plan->devices;
    s->sample = MANY_TASKS / plan->stages;
    s->sample = s->sample < 64 ? 64 : s->sample;
    if (s->sample > s->units || (plan->config.placement == CAR_PLACEMENT_GRID && !s->groups)) {
        s->sample = s->units;
    }
    s->sampled = s->groups || s->sample < s->units;
    s->part = s->sampled ? 1.0 / WINDOWS : 1;
    s->in_turn = s->sampled && car_plan_is_cyclic(plan);
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
    int apart = config->rule == CAR_RULE_DP || config->threads > config->workers ? config->workers : config->threads;
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
            own += s->plan->partition->bundles[b].bytes;
        }
        s->out->weights_device = 2 * own;
    }
    s->weights_total = (double)s->out->weights_device;
    s->sums_device = car_plan_is_cyclic(s->plan) ? s->sums_device : (double)apart * (double)all;
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
    return plan->config.placement == CAR_PLACEMENT_REPLICA ? plan->config.ranks : plan->config.workers;
}

car_status car_predict_table(const car_plan *plan, const car_optimizer_sizes *optimizer, car_prediction *out) {
    car_context *context = plan->context;
    bool shared = plan->config.placement == CAR_PLACEMENT_SHARED;
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
    CAR_TRY(car_ledger_open(plan, begin, plan->period * MOMENTS, WINDOWS, shared, &s.weights));
    CAR_TRY(car_ledger_open(plan, begin, plan->period * MOMENTS, WINDOWS, shared, &s.sums));
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
    CAR_TRY(car_ledger_open(plan, begin, plan->period * MOMENTS, WINDOWS, false, &s.weights));
    CAR_TRY(car_ledger_open(plan, begin, plan->period * MOMENTS, WINDOWS, false, &s.sums));
    CAR_TRY(car_context_allocate(context, beat, sizeof *s.slot_bytes, &s.slot_bytes));
    CAR_TRY(car_context_allocate(context, bundles, sizeof *s.updated_by, &s.updated_by));
    CAR_TRY(walk_device(&s));
    bool moves = plan->config.placement == CAR_PLACEMENT_ZERO;
    out->weights = moves ? whole.weights_device : (size_t)s.weights_places;
    out->gradients = (size_t)s.sums_device;
    out->optimizer = (size_t)s.optimizer_device;
done:
    car_context_release(context, s.updated_by, bundles, sizeof *s.updated_by);
    car_context_release(context, s.slot_bytes, beat, sizeof *s.slot_bytes);
    car_ledger_release(&s.sums);
    car_ledger_release(&s.weights);
    car_task_list_release(plan, &s.tasks);
    return status;
}
