/* Checks that a run fits: compares its predicted memory with what is available, before it takes any.
 *
 * In one process everything except the activations is known to the byte; `carousel plan` predicts the activations the
 * same way. Over ranks the plan gives each rank's memory, and the sum over a machine's ranks is compared with that
 * machine: fit_ranks.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "carousel/predict.h"
#include "run/internal.h"

/* ---- available memory ------------------------------------------------------------------------ */

/* The tightest limit, and what it is. */
typedef struct room {
    double bytes;
    const char *source;
} room;

static room smallest_room(const car_available *available, const car_arena *arena) {
    room r = {(double)available->machine, "free on this machine"};
    if ((double)available->group < r.bytes) {
        r = (room){(double)available->group, "left within the limit of the control group"};
    }
    if (arena && (double)car_arena_reserved(arena) < r.bytes) {
        r = (room){(double)car_arena_reserved(arena), "available as address space (see ulimit -v)"};
    }
    return r;
}

/* ---- memory of one process ------------------------------------------------------------------- */

car_status car_run_check_tasks(const car_run *run) {
    const car_run_options *o = &run->options;
    double ranks = run->launched ? car_transport_size(run->members[0].transport) : run->member_count;
    double here = run->launched ? car_transport_local_size(run->members[0].transport) : run->member_count;
    double bytes = fmin((double)run->available.machine, (double)run->available.group);
    int fewer = o->workers, each = o->stages / o->workers > 0 ? o->stages / o->workers : 1;
    double each_takes = o->accumulate * here / ranks;
    if (car_need_task_bytes(o->workers, o->stages) * each_takes <= bytes || o->force) {
        return CAR_OK;
    }
    while (fewer > 1 && car_need_task_bytes(fewer, (double)fewer * each) * each_takes > bytes) {
        fewer--;
    }
    return car_context_fail(run->context, CAR_ERROR_MEMORY,
                            "the plan for %d workers and %d stages alone needs %s of memory, but only %s are "
                            "available; %s %d %s %d would fit; %s runs it anyway",
                            o->workers, o->stages,
                            car_size_shown(car_need_task_bytes(o->workers, o->stages) * each_takes).text,
                            car_size_shown(bytes).text, car_run_name(o, "workers").text, fewer,
                            car_run_name(o, "stages").text, fewer * each, car_run_name(o, "force").text);
}

static car_status predict(const car_run *run, const car_plan *plan, car_need *out) {
    car_trainer_config training = run->training;
    training.snapshot_every = run->options.checkpoint_every;
    return car_need_predict(plan, run->program, &training, car_run_saves(run), out);
}

/* ---- settings that would fit ----------------------------------------------------------------- */

/* True if the run fits with another plan. A plan that cannot be made does not fit. */
static bool fits_with(const car_run *run, const car_plan_config *config, const car_partition_config *cut,
                      double bytes) {
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_need n = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_partition_create(run->graph, cut, &partition));
    CAR_TRY(car_plan_create(run->context, partition, config, &plan));
    CAR_TRY(predict(run, plan, &n));
done:
    if (status != CAR_OK) {
        car_context_clear_error(run->context);
    }
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    return status == CAR_OK && car_need_total(&n) <= bytes;
}

/* The largest number of workers that fits, or 0. */
static int most_workers(const car_run *run, const car_plan_config *config, double bytes) {
    int fits = 0, most = config->workers - 1, per_worker = run->options.stages / config->workers;
    while (fits < most) {
        car_plan_config fewer = *config;
        fewer.ranks = 0; /* as many as workers */
        fewer.workers = fits + (most - fits + 1) / 2;
        const car_partition_config cut = {.stages = fewer.workers * per_worker, .recompute = run->recompute};
        if (fits_with(run, &fewer, &cut, bytes)) {
            fits = fewer.workers;
        } else {
            most = fewer.workers - 1;
        }
    }
    return fits;
}

static void add_way(char *text, size_t capacity, const char *setting, int number) {
    size_t used = strlen(text);
    if (used < capacity) {
        snprintf(text + used, capacity - used, "%s%s %d", used ? ", or " : "", setting, number);
    }
}

/* If recomputing some activations would be enough, adds the option for it. */
static void add_recompute(const car_run *run, const car_plan_config *config, double bytes, char *text,
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
        if (used < capacity && fits_with(run, config, &cut, bytes)) {
            snprintf(text + used, capacity - used, "%s%s %s", used ? ", or " : "",
                     car_run_name(&run->options, "recompute").text, choices[c].text);
            return;
        }
    }
}

/* Lists options with which the run would fit. */
static void find_ways(const car_run *run, const car_plan_config *config, const car_need *n, double bytes, char *text,
                      size_t capacity) {
    const car_run_options *o = &run->options;
    double others = car_need_total(n) - n->activations;
    int samples = o->model ? o->shape.batch : 0; /* the batch of a custom graph is fixed */
    int batch = n->activations > 0 ? (int)(samples * (bytes - others) / n->activations) : 0;
    char turns[128];
    int workers = most_workers(run, config, bytes);
    text[0] = '\0';
    if (batch >= 1 && batch < samples) { /* activations are proportional to the batch */
        add_way(text, capacity, car_run_name(o, o->dashes ? "batch" : "shape.batch").text, batch);
    }
    if (workers >= 1) {
        add_way(text, capacity, car_run_name(o, "workers").text, workers);
    }
    add_recompute(run, config, bytes, text, capacity);
    const car_partition_config cut = {.stages = o->stages, .recompute = run->recompute};
    snprintf(turns, sizeof turns, "%s accumulate %s", car_run_name(o, "rule").text, car_run_name(o, "threads").text);
    for (int threads = run->training.threads; threads >= 1 && !car_rule_info_of(config->rule)->in_turns; threads /= 2) {
        car_plan_config other = *config;
        other.rule = CAR_RULE_ACCUMULATE;
        other.threads = threads;
        other.freshness_slack = other.zero_copies = other.zero_ahead = 0;
        if (fits_with(run, &other, &cut, bytes)) {
            add_way(text, capacity, turns, threads);
            break;
        }
    }
    if (text[0] == '\0') {
        snprintf(text, capacity, "no other batch, workers or rule on this machine (see carousel plan --compare)");
    }
}

/* ---- the check ------------------------------------------------------------------------------- */

static void describe(const car_need *n, char *text, size_t capacity) {
    const struct {
        const char *name;
        double bytes;
    } parts[] = {{"activations", n->activations}, {"weights", n->weights},     {"gradients", n->gradients},
                 {"optimizer", n->optimizer},     {"workspace", n->workspace}, {"checkpoints", n->snapshot},
                 {"the plan", n->tasks}};
    size_t used = 0;
    for (size_t p = 0; p < sizeof parts / sizeof parts[0] && used < capacity; p++) {
        if (parts[p].bytes >= 0.005 * car_need_total(n)) {
            used += (size_t)snprintf(text + used, capacity - used, "%s%s %s", used ? ", " : "", parts[p].name,
                                     car_size_shown(parts[p].bytes).text);
        }
    }
}

car_status car_run_check_memory(car_run *run, const car_arena *arena) {
    const car_run_options *o = &run->options;
    const car_plan_config *config = car_plan_config_of(run->plan);
    const char *how = run->program ? "about" : "at least";
    room r = smallest_room(&run->available, arena);
    char parts[256], ways[224];
    car_need n;
    car_status status = CAR_OK;
    CAR_TRY(predict(run, run->plan, &n));
    /* Without simulation it is only a bound, so it is not shown as a prediction. */
    run->planned = n.simulated ? n.planned : 0;
    if (car_need_total(&n) <= r.bytes) {
        return CAR_OK;
    }
    describe(&n, parts, sizeof parts);
    if (o->force) {
        car_context_log(run->context, CAR_LOG_WARNING, "the run needs %s %s of memory (%s), but only %s are %s", how,
                        car_size_shown(car_need_total(&n)).text, parts, car_size_shown(r.bytes).text, r.source);
        return CAR_OK;
    }
    find_ways(run, config, &n, r.bytes, ways, sizeof ways);
    status = car_context_fail(
        run->context, CAR_ERROR_MEMORY,
        "the run needs %s %s of memory (%s), but only %s are %s; what would fit: %s; %s runs it anyway", how,
        car_size_shown(car_need_total(&n)).text, parts, car_size_shown(r.bytes).text, r.source, ways,
        car_run_name(o, "force").text);
done:
    return status;
}

/* ---- disk space ------------------------------------------------------------------------------ */

void car_run_check_disk(const car_run *run) {
    const car_run_options *o = &run->options;
    struct statvfs disk;
    if (!o->run_directory || statvfs(o->directory, &disk) != 0) {
        return;
    }
    double weights = (double)car_graph_param_bytes(run->graph),
           free_bytes = (double)disk.f_bavail * (double)disk.f_frsize;
    int states = car_optimizer_config_states(&run->training.optimizer);
    double checkpoint = (1 + car_plan_delay(run->plan, 0, 0) + states) * weights;
    /* A new checkpoint is written before the oldest is removed. A resumed run already has its earlier ones. */
    int64_t written = o->checkpoint_every ? (run->steps - run->first_step) / o->checkpoint_every + 1 : 1;
    double most = o->no_checkpoints ? 0 : run->first_step > 0 ? 1 : fmin(o->keep + 1.0, (double)written);
    if (free_bytes < weights + most * checkpoint) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "%s has %s free, but the weights and up to %.0f %s at a time need about %s: free some space, "
                        "or keep fewer checkpoints with %s",
                        o->directory, car_size_shown(free_bytes).text, most, most == 1 ? "checkpoint" : "checkpoints",
                        car_size_shown(weights + most * checkpoint).text, car_run_name(o, "keep").text);
    }
}
