/* Whether a run fits: the memory that it is predicted to need, against what there is for it, before it takes any.
 *
 * In one process everything but the activations is known to the byte; those are what `carousel plan` predicts. Over ranks
 * the plan says what each of them holds, and the sum of a machine's ranks is compared with that machine. */
#include <math.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/available.h"
#include "base/base.h"
#include "carousel/predict.h"
#include "engine/arithmetic.h"
#include "plan.h"
#include "train.h"
#include "transport/transport.h"

/* Workers times stages that are simulated; beyond that would delay the start. */
static const int64_t few_enough = 4096;
/* Of the least that evenly spaced workers hold, what is taken for certain where there is no simulation. */
static const double certain_share = 0.8;

/* Bytes. */
typedef struct need {
    double activations, weights, gradients, optimizer, workspace;
    double planned;  /* activations while training */
    double snapshot; /* the copy that checkpoints on the way are written from */
    double tasks;    /* the plan itself: what each worker has to do in a step */
} need;

static double total(const need *n) {
    return n->activations + n->weights + n->gradients + n->optimizer + n->workspace + n->snapshot + n->tasks;
}

/* ---- what is there --------------------------------------------------------------------------- */

/* The smallest of what there is, and what it is. */
typedef struct room {
    double bytes;
    const char *source;
} room;

static room smallest_room(const car_available *available, const car_arena *arena) {
    room r = {(double)available->machine, "free on this machine"};
    if ((double)available->group < r.bytes) {
        r = (room){(double)available->group, "left by the control group's limit"};
    }
    if (arena && (double)car_arena_reserved(arena) < r.bytes) {
        r = (room){(double)car_arena_reserved(arena), "of addresses, see ulimit -v"};
    }
    return r;
}

/* ---- what one process needs ------------------------------------------------------------------ */

/* A worker's list has room for a power of two of tasks: two for each stage. */
static double task_bytes(double workers, double stages) {
    return workers * exp2(ceil(log2(2 * stages))) * (double)sizeof(car_task);
}

car_status car_train_check_tasks(car_train_run *run, int workers, int stages) {
    double ranks = run->transport ? car_transport_size(run->transport) : 1;
    double here = run->transport ? car_transport_local_size(run->transport) : 1;
    double bytes = fmin((double)run->available.machine, (double)run->available.group);
    int fewer = workers, each = stages / workers > 0 ? stages / workers : 1;
    double each_takes = run->options.accumulate * here / ranks;
    if (task_bytes(workers, stages) * each_takes <= bytes || run->options.force) {
        return CAR_OK;
    }
    while (fewer > 1 && task_bytes(fewer, (double)fewer * each) * each_takes > bytes) {
        fewer--;
    }
    return car_context_fail(run->context, CAR_ERROR_MEMORY,
                            "the plan of %d workers and %d stages alone needs %s of memory, and %s are available; "
                            "--workers %d --stages %d would fit; --force goes on all the same",
                            workers, stages, car_cli_bytes(task_bytes(workers, stages) * each_takes).text,
                            car_cli_bytes(bytes).text, fewer, fewer * each);
}

/* Of all workers together, as the trainer runs them. */
static car_status predict_activations(const car_plan *plan, double *out) {
    const car_plan_config *config = car_plan_config_of(plan);
    const car_partition *partition = car_plan_partition(plan);
    double workers = config->workers, together = config->threads < config->workers ? config->threads : config->workers;
    car_simulation timed;
    car_status status = CAR_OK;
    if (config->rule == CAR_RULE_CUSTOM) { /* every worker has at most one micro-batch */
        *out = workers * (double)partition->held_bytes;
    } else if ((int64_t)car_plan_micro_batches(plan) * partition->stage_count <= few_enough) {
        CAR_TRY(car_plan_predict_timed(plan, 0, &timed));
        *out = (double)timed.peak;
    } else if (car_plan_is_spaced(plan)) {
        *out = certain_share * partition->limit * workers * (double)partition->held_bytes;
    } else {
        *out = (car_rule_info_of(config->rule)->in_turns ? together : workers) * (double)partition->held_bytes;
    }
done:
    return status;
}

/* Sums of gradients, one for each use of a weight. In the cycle those that wait for others need a second place: sums of
 * weights that are used in several stages, and all of them where the norm of all decides. */
static double gradient_bytes(const car_plan *plan, double weights, bool deferred) {
    const car_plan_config *config = car_plan_config_of(plan);
    const car_partition *partition = car_plan_partition(plan);
    double tied = 0;
    for (int b = partition->stage_count; b < partition->bundle_count; b++) {
        tied += (double)partition->bundles[b].bytes;
    }
    bool by_worker = config->sum_order == CAR_SUM_ORDER_WORKER;
    if (car_plan_is_spaced(plan)) {
        double waiting = !car_plan_is_cyclic(plan) ? 0 : deferred ? weights + tied : tied;
        return (by_worker ? config->workers : 1) * (weights + tied) + waiting;
    }
    /* A custom plan has a sum for each step under way. */
    const car_rule_info *rule = car_rule_info_of(config->rule);
    return (rule->in_turns && !by_worker ? 1 : rule->from_file ? 2 : config->workers) * (weights + tied);
}

/* What a thread has for itself. */
static double lane_bytes(const car_program *program, bool adds) {
    int ops = car_graph_op_count(car_program_graph(program));
    return (double)car_program_scratch_bytes(program) + (adds ? (double)car_engine_addend_bytes(program, 0, ops) : 0);
}

/* Forms of the weights that kernels want beside them, for one version. */
static double derived_bytes(const car_program *program) {
    double bytes = 0;
    for (int l = 0; l < car_graph_op_count(car_program_graph(program)); l++) {
        bytes += (double)car_program_derived_bytes(program, l);
    }
    return bytes;
}

/* As the trainer allocates it. Without the program, before that is there, a little less. */
static car_status predict(const car_train_run *run, const car_plan *plan, int states, need *out) {
    const car_train_options *o = &run->options;
    const car_plan_config *config = car_plan_config_of(plan);
    double weights = (double)car_graph_param_bytes(run->graph), versions = car_plan_delay(plan, 0, 0) > 0 ? 2 : 1;
    bool ring = !car_rule_info_of(config->rule)->together;
    bool deferred = (o->clip_norm > 0 || o->skip_nonfinite) && !car_rule_updates_early(config->rule);
    double optimizer = run->optimizer.rule_count > 0 ? (double)car_optimizer_state_bytes(&run->optimizer, run->graph)
                                                     : states * weights;
    double snapshot = o->out && o->keep ? versions * weights + optimizer : 0;
    car_status status = CAR_OK;
    double copies = (double)car_graph_copy_bytes(run->graph), master = copies < weights ? weights : 0;
    *out = (need){.weights = versions * copies + master,
                  .gradients = gradient_bytes(plan, weights, deferred),
                  .optimizer = optimizer,
                  .tasks = task_bytes(car_plan_micro_batches(plan), car_plan_partition(plan)->stage_count)};
    CAR_TRY(predict_activations(plan, &out->planned));
    out->activations = out->planned;
    if (o->checkpoint_every) {
        out->snapshot = snapshot;
    } else { /* it is made when the activations are gone */
        out->activations = fmax(out->activations, snapshot);
    }
    if (run->program) {
        out->weights += versions * derived_bytes(run->program);
        out->workspace = o->threads * lane_bytes(run->program, ring && car_plan_micro_batches(plan) > 1);
    }
done:
    return status;
}

/* ---- what would fit -------------------------------------------------------------------------- */

/* Whether the run fits with another plan. What cannot be planned does not. */
static bool fits_with(car_train_run *run, const car_plan_config *config, const car_partition_config *cut, int states,
                      double bytes) {
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    need n = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_partition_create(run->graph, cut, &partition));
    CAR_TRY(car_plan_create(run->context, partition, config, &plan));
    CAR_TRY(predict(run, plan, states, &n));
done:
    if (status != CAR_OK) {
        car_context_clear_error(run->context);
    }
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    return status == CAR_OK && total(&n) <= bytes;
}

/* The most workers with which it fits, 0 if not even one does. */
static int most_workers(car_train_run *run, const car_plan_config *config, int states, double bytes) {
    int fits = 0, most = config->workers - 1, per_worker = run->options.stages / config->workers;
    while (fits < most) {
        car_plan_config fewer = *config;
        fewer.ranks = 0; /* as many */
        fewer.workers = fits + (most - fits + 1) / 2;
        const car_partition_config cut = {.stages = fewer.workers * per_worker, .recompute = run->recompute};
        if (fits_with(run, &fewer, &cut, states, bytes)) {
            fits = fewer.workers;
        } else {
            most = fewer.workers - 1;
        }
    }
    return fits;
}

static void add_way(char *text, size_t capacity, const char *option, int number) {
    size_t used = strlen(text);
    if (used < capacity) {
        snprintf(text + used, capacity - used, "%s%s %d", used ? ", or " : "", option, number);
    }
}

/* If making some activations again would be enough, the option that does it. */
static void add_recompute(car_train_run *run, const car_plan_config *config, int states, double bytes, char *text,
                          size_t capacity) {
    static const struct {
        const char *text;
        car_recompute_config config;
    } choices[] = {{"auto", {.how = CAR_RECOMPUTE_AUTO}},
                   {"0.5", {.how = CAR_RECOMPUTE_SHARE, .share = 0.5}},
                   {"0.3", {.how = CAR_RECOMPUTE_SHARE, .share = 0.3}}};
    size_t used = strlen(text);
    for (size_t c = 0; c < sizeof choices / sizeof choices[0] && run->recompute.how == CAR_RECOMPUTE_OFF; c++) {
        const car_partition_config cut = {.stages = run->options.stages, .recompute = choices[c].config};
        if (used < capacity && fits_with(run, config, &cut, states, bytes)) {
            snprintf(text + used, capacity - used, "%s--recompute %s", used ? ", or " : "", choices[c].text);
            return;
        }
    }
}

/* Options with which the run would fit, one after the other. */
static void find_ways(car_train_run *run, const car_plan_config *config, int states, const need *n, double bytes,
                      char *text, size_t capacity) {
    const car_train_options *o = &run->options;
    double others = total(n) - n->activations;
    int batch = n->activations > 0 ? (int)(o->shape.batch * (bytes - others) / n->activations) : 0;
    int workers = most_workers(run, config, states, bytes);
    text[0] = '\0';
    if (batch >= 1 && batch < o->shape.batch) { /* activations grow with it */
        add_way(text, capacity, "--batch", batch);
    }
    if (workers >= 1) {
        add_way(text, capacity, "--workers", workers);
    }
    add_recompute(run, config, states, bytes, text, capacity);
    const car_partition_config cut = {.stages = o->stages, .recompute = run->recompute};
    for (int threads = o->threads; threads >= 1 && !car_rule_info_of(config->rule)->in_turns; threads /= 2) {
        car_plan_config other = *config;
        other.rule = CAR_RULE_ACCUMULATE;
        other.threads = threads;
        other.freshness_slack = other.zero_copies = other.zero_ahead = 0;
        if (fits_with(run, &other, &cut, states, bytes)) {
            add_way(text, capacity, "--rule accumulate --threads", threads);
            break;
        }
    }
    if (text[0] == '\0') {
        snprintf(text, capacity, "no other batch, workers or rule on this machine, see carousel plan --compare");
    }
}

/* ---- one process ----------------------------------------------------------------------------- */

static void describe(const need *n, char *text, size_t capacity) {
    const struct {
        const char *name;
        double bytes;
    } parts[] = {{"activations", n->activations}, {"weights", n->weights},     {"gradients", n->gradients},
                 {"optimizer", n->optimizer},     {"workspace", n->workspace}, {"checkpoints", n->snapshot},
                 {"the plan", n->tasks}};
    size_t used = 0;
    for (size_t p = 0; p < sizeof parts / sizeof parts[0] && used < capacity; p++) {
        if (parts[p].bytes >= 0.005 * total(n)) {
            used += (size_t)snprintf(text + used, capacity - used, "%s%s %s", used ? ", " : "", parts[p].name,
                                     car_cli_bytes(parts[p].bytes).text);
        }
    }
}

car_status car_train_check_memory(car_train_run *run, int states) {
    const car_plan_config *config = car_plan_config_of(run->plan);
    const char *how = run->program ? "about" : "at least";
    room r = smallest_room(&run->available, run->arena);
    char parts[256], ways[160];
    need n;
    car_status status = CAR_OK;
    CAR_TRY(predict(run, run->plan, states, &n));
    /* What is not simulated is a bound, not a prediction to be shown. */
    run->planned = (int64_t)car_plan_micro_batches(run->plan) * car_plan_partition(run->plan)->stage_count <= few_enough
                       ? n.planned
                       : 0;
    if (total(&n) <= r.bytes) {
        return CAR_OK;
    }
    describe(&n, parts, sizeof parts);
    if (run->options.force) {
        car_context_log(run->context, CAR_LOG_WARNING, "the run needs %s %s of memory (%s), and %s are %s", how,
                        car_cli_bytes(total(&n)).text, parts, car_cli_bytes(r.bytes).text, r.source);
        return CAR_OK;
    }
    find_ways(run, config, states, &n, r.bytes, ways, sizeof ways);
    status = car_context_fail(run->context, CAR_ERROR_MEMORY,
                              "the run needs %s %s of memory (%s), and %s are %s; what would fit: %s; --force goes on "
                              "all the same",
                              how, car_cli_bytes(total(&n)).text, parts, car_cli_bytes(r.bytes).text, r.source, ways);
done:
    return status;
}

/* ---- the disk -------------------------------------------------------------------------------- */

void car_train_check_disk(car_train_run *run, int states) {
    const car_train_options *o = &run->options;
    struct statvfs disk;
    if (!o->out || statvfs(o->out, &disk) != 0) {
        return;
    }
    double weights = (double)car_graph_param_bytes(run->graph),
           free_bytes = (double)disk.f_bavail * (double)disk.f_frsize;
    double checkpoint = (1 + car_plan_delay(run->plan, 0, 0) + states) * weights;
    /* A new one is written before the oldest goes; a run that goes on has its earlier ones already. */
    int64_t written = o->checkpoint_every ? (o->steps - run->first_step) / o->checkpoint_every + 1 : 1;
    bool resumed = o->resume || o->resume_step != CAR_NONE;
    double most = o->keep == 0 ? 0 : resumed ? 1 : fmin(o->keep + 1.0, (double)written);
    if (free_bytes < weights + most * checkpoint) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "%s has %s free, and the weights with %.0f %s at a time take about %s: make room, or keep "
                        "fewer with --keep",
                        o->out, car_cli_bytes(free_bytes).text, most, most == 1 ? "checkpoint" : "checkpoints",
                        car_cli_bytes(weights + most * checkpoint).text);
    }
}
