/* Whether a run fits: the memory that it is predicted to need, against what there is for it, before it takes any.
 *
 * In one process everything but the activations is known to the byte; those are what `carousel plan` predicts. Over ranks
 * the plan says what each of them holds, and the sum of a machine's ranks is compared with that machine. */
#include <math.h>
#include <string.h>
#include <sys/statvfs.h>

#include "carousel/convention.h"
#include "carousel/fit.h"
#include "carousel/predict.h"
#include "plan.h"
#include "train.h"

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

car_status car_train_check_tasks(car_train_run *run, int workers, int stages) {
    double ranks = run->transport ? car_transport_size(run->transport) : 1;
    double here = run->transport ? car_transport_local_size(run->transport) : 1;
    double bytes = fmin((double)run->available.machine, (double)run->available.group);
    int fewer = workers, each = stages / workers > 0 ? stages / workers : 1;
    double each_takes = run->options.accumulate * here / ranks;
    if (car_need_task_bytes(workers, stages) * each_takes <= bytes || run->options.force) {
        return CAR_OK;
    }
    while (fewer > 1 && car_need_task_bytes(fewer, (double)fewer * each) * each_takes > bytes) {
        fewer--;
    }
    return car_context_fail(run->context, CAR_ERROR_MEMORY,
                            "the plan of %d workers and %d stages alone needs %s of memory, and %s are available; "
                            "--workers %d --stages %d would fit; --force goes on all the same",
                            workers, stages, car_cli_bytes(car_need_task_bytes(workers, stages) * each_takes).text,
                            car_cli_bytes(bytes).text, fewer, fewer * each);
}

static car_status predict(const car_train_run *run, const car_plan *plan, car_need *out) {
    const car_train_options *o = &run->options;
    car_trainer_config config = car_trainer_config_default();
    config.threads = o->threads;
    config.optimizer = run->optimizer;
    config.clip_norm = o->clip_norm;
    config.skip_nonfinite = o->skip_nonfinite;
    config.snapshot_every = o->checkpoint_every;
    return car_need_predict(plan, run->program, &config, o->out && o->keep, out);
}

/* ---- what would fit -------------------------------------------------------------------------- */

/* Whether the run fits with another plan. What cannot be planned does not. */
static bool fits_with(car_train_run *run, const car_plan_config *config, const car_partition_config *cut,
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

/* The most workers with which it fits, 0 if not even one does. */
static int most_workers(car_train_run *run, const car_plan_config *config, double bytes) {
    int fits = 0, most = config->workers - 1, per_worker = run->options.stages / config->workers;
    while (fits < most) {
        car_plan_config fewer = *config;
        fewer.ranks = 0; /* as many */
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

static void add_way(char *text, size_t capacity, const char *option, int number) {
    size_t used = strlen(text);
    if (used < capacity) {
        snprintf(text + used, capacity - used, "%s%s %d", used ? ", or " : "", option, number);
    }
}

/* If making some activations again would be enough, the option that does it. */
static void add_recompute(car_train_run *run, const car_plan_config *config, double bytes, char *text,
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
            snprintf(text + used, capacity - used, "%s--recompute %s", used ? ", or " : "", choices[c].text);
            return;
        }
    }
}

/* Options with which the run would fit, one after the other. */
static void find_ways(car_train_run *run, const car_plan_config *config, const car_need *n, double bytes, char *text,
                      size_t capacity) {
    const car_train_options *o = &run->options;
    double others = car_need_total(n) - n->activations;
    int batch = n->activations > 0 ? (int)(o->shape.batch * (bytes - others) / n->activations) : 0;
    int workers = most_workers(run, config, bytes);
    text[0] = '\0';
    if (batch >= 1 && batch < o->shape.batch) { /* activations grow with it */
        add_way(text, capacity, "--batch", batch);
    }
    if (workers >= 1) {
        add_way(text, capacity, "--workers", workers);
    }
    add_recompute(run, config, bytes, text, capacity);
    const car_partition_config cut = {.stages = o->stages, .recompute = run->recompute};
    for (int threads = o->threads; threads >= 1 && !car_rule_info_of(config->rule)->in_turns; threads /= 2) {
        car_plan_config other = *config;
        other.rule = CAR_RULE_ACCUMULATE;
        other.threads = threads;
        other.freshness_slack = other.zero_copies = other.zero_ahead = 0;
        if (fits_with(run, &other, &cut, bytes)) {
            add_way(text, capacity, "--rule accumulate --threads", threads);
            break;
        }
    }
    if (text[0] == '\0') {
        snprintf(text, capacity, "no other batch, workers or rule on this machine, see carousel plan --compare");
    }
}

/* ---- one process ----------------------------------------------------------------------------- */

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
                                     car_cli_bytes(parts[p].bytes).text);
        }
    }
}

car_status car_train_check_memory(car_train_run *run) {
    const car_plan_config *config = car_plan_config_of(run->plan);
    const char *how = run->program ? "about" : "at least";
    room r = smallest_room(&run->available, run->arena);
    char parts[256], ways[160];
    car_need n;
    car_status status = CAR_OK;
    CAR_TRY(predict(run, run->plan, &n));
    /* What is not simulated is a bound, not a prediction to be shown. */
    run->planned = n.simulated ? n.planned : 0;
    if (car_need_total(&n) <= r.bytes) {
        return CAR_OK;
    }
    describe(&n, parts, sizeof parts);
    if (run->options.force) {
        car_context_log(run->context, CAR_LOG_WARNING, "the run needs %s %s of memory (%s), and %s are %s", how,
                        car_cli_bytes(car_need_total(&n)).text, parts, car_cli_bytes(r.bytes).text, r.source);
        return CAR_OK;
    }
    find_ways(run, config, &n, r.bytes, ways, sizeof ways);
    status = car_context_fail(run->context, CAR_ERROR_MEMORY,
                              "the run needs %s %s of memory (%s), and %s are %s; what would fit: %s; --force goes on "
                              "all the same",
                              how, car_cli_bytes(car_need_total(&n)).text, parts, car_cli_bytes(r.bytes).text, r.source,
                              ways);
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
