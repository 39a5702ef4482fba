/* Checkpoints of a run: written by a thread of their own while training goes on, and resumed from. Over ranks that thread
 * evaluates, too. */
#include <stdlib.h>
#include <string.h>

#include "carousel/checkpoint.h"
#include "carousel/convention.h"
#include "train.h"

struct car_train_writer {
    car_train_run *run;
    char *config; /* what the run is configured with, as JSON */
    car_card *card;
    car_snapshot_thread *thread;
};

static car_status directory_of(const car_train_run *run, char *path) {
    return car_train_path(run->context, run->options.out, "checkpoints", path);
}

static car_status config_text(car_train_run *run, char **out) {
    cJSON *json = car_train_config_of(&run->options);
    *out = json ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    return *out ? CAR_OK : car_context_fail(run->context, CAR_ERROR_MEMORY, "out of memory for the configuration");
}

static car_status write_snapshot(car_train_run *run, const car_snapshot *snapshot, const char *config,
                                 const car_card *card) {
    char directory[CAR_TRAIN_PATH];
    car_status status = directory_of(run, directory);
    if (status == CAR_OK) {
        const car_checkpoint_config where = {.directory = directory, .keep = run->options.keep, .card = card};
        status = car_checkpoint_write(run->context, &where, snapshot, config);
    }
    return status;
}

/* ---- on the way ------------------------------------------------------------------------------ */

/* A checkpoint that cannot be written does not end the run: the older ones are there, and the next may succeed. */
static void write_or_warn(car_train_writer *writer, const car_snapshot *snapshot) {
    car_train_run *run = writer->run;
    car_status status = car_card_set(writer->card, "step", "%lld", (long long)car_snapshot_get_numbers(snapshot).step);
    if (status == CAR_OK && write_snapshot(run, snapshot, writer->config, writer->card) == CAR_OK) {
        run->saved_step = car_snapshot_get_numbers(snapshot).step; /* read only after this thread has ended */
    } else {
        car_context_log(run->context, CAR_LOG_WARNING, "no checkpoint of step %lld: %s; training goes on",
                        (long long)car_snapshot_get_numbers(snapshot).step, car_context_error(run->context));
        car_context_clear_error(run->context);
    }
}

static bool is_due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

static bool saves_on_the_way(const car_train_options *o) {
    return o->out && o->keep > 0 && o->checkpoint_every > 0;
}

/* The weights of a snapshot, and their average. Both are to be destroyed. */
static car_status copy_subject(car_train_run *run, const car_snapshot *snapshot, car_arena *arena,
                               car_train_subject *out) {
    car_status status = CAR_OK;
    out->step = car_snapshot_get_numbers(snapshot).step;
    CAR_TRY(car_train_copy_weights(run, snapshot, arena, &out->weights));
    CAR_TRY(car_train_add_average(run, snapshot, arena, out));
done:
    return status;
}

/* The last evaluation is made at the end. */
static bool is_evaluated(const car_train_run *run, int64_t step) {
    const car_train_options *o = &run->options;
    return run->rank && !car_train_pauses(o) && is_due(step, o->eval_every) && step < o->steps &&
           !car_train_is_interrupted();
}

static void return_snapshot(const car_train_run *run) {
    if (run->rank) {
        car_rank_return_snapshot(run->rank);
    } else {
        car_trainer_return_snapshot(run->trainer);
    }
}

/* In an arena of its own: what training holds is counted apart. The snapshot is given back before the evaluation, so that the
 * next one need not wait for it. A failure ends the run, in order. */
static void evaluate_snapshot(car_train_run *run, const car_snapshot *snapshot) {
    car_train_subject subject = {0};
    car_arena *arena = NULL;
    car_status status = car_arena_create_reserving(run->context, 0, run->addresses, &arena);
    status = status == CAR_OK ? copy_subject(run, snapshot, arena, &subject) : status;
    return_snapshot(run);
    status = status == CAR_OK ? car_train_evaluate_subject(run, &subject, arena) : status;
    car_weights_destroy(subject.average);
    car_weights_destroy(subject.weights);
    car_arena_destroy(arena);
    if (status != CAR_OK && car_train_is_interrupted()) {
        car_context_clear_error(run->context); /* it was broken off */
    } else if (!car_train_remember(run, status)) {
        car_rank_stop(run->rank);
    }
}

static void take_snapshot(void *user, const car_snapshot *snapshot) {
    car_train_writer *writer = user;
    car_train_run *run = writer->run;
    int64_t step = car_snapshot_get_numbers(snapshot).step;
    if (saves_on_the_way(&run->options) && is_due(step, run->options.checkpoint_every)) {
        write_or_warn(writer, snapshot);
    }
    if (is_evaluated(run, step)) {
        evaluate_snapshot(run, snapshot);
    } else {
        return_snapshot(run);
    }
}

static void destroy_writer(car_train_writer *writer) {
    car_context *context = writer->run->context;
    car_snapshot_thread_destroy(writer->thread);
    car_card_destroy(writer->card);
    cJSON_free(writer->config);
    car_context_release(context, writer, 1, sizeof *writer);
}

car_status car_train_open_writer(car_train_run *run, car_trainer_config *trainer) {
    const car_train_options *o = &run->options;
    car_train_writer *writer = NULL;
    trainer->snapshot_every = saves_on_the_way(o) ? o->checkpoint_every : 0;
    /* One process is drained for evaluations, and ranks are if these decide whether to go on. */
    trainer->weights_every = run->transport && !car_train_pauses(o) ? o->eval_every : 0;
    if ((trainer->snapshot_every == 0 && trainer->weights_every == 0) || !car_train_is_first(run)) {
        return CAR_OK;
    }
    car_status status = car_context_allocate(run->context, 1, sizeof *writer, &writer);
    if (status != CAR_OK) {
        return status;
    }
    writer->run = run;
    CAR_TRY(config_text(run, &writer->config));
    CAR_TRY(car_train_make_card(run, 0, &writer->card));
    CAR_TRY(car_snapshot_thread_create(run->context, take_snapshot, writer, &writer->thread));
    trainer->on_snapshot = car_snapshot_thread_hand_over;
    trainer->snapshot_user = writer->thread;
    run->writer = writer;
done:
    if (status != CAR_OK) {
        destroy_writer(writer);
    }
    return status;
}

void car_train_close_writer(car_train_run *run) {
    if (run->writer) {
        destroy_writer(run->writer);
        run->writer = NULL;
    }
}

/* ---- at the end ------------------------------------------------------------------------------ */

car_status car_train_write_snapshot(car_train_run *run, const car_snapshot *snapshot) {
    char *config = NULL;
    car_card *card = NULL;
    car_status status = CAR_OK;
    CAR_TRY(config_text(run, &config));
    CAR_TRY(car_train_make_card(run, car_snapshot_get_numbers(snapshot).step, &card));
    CAR_TRY(write_snapshot(run, snapshot, config, card));
done:
    car_card_destroy(card);
    cJSON_free(config);
    return status;
}

car_status car_train_write_checkpoint(car_train_run *run) {
    car_snapshot *snapshot = NULL;
    car_status status = CAR_OK;
    if (!run->options.out || run->options.keep == 0 || run->saved_step == car_trainer_steps(run->trainer)) {
        return CAR_OK;
    }
    CAR_TRY(car_trainer_create_snapshot(run->trainer, &snapshot));
    CAR_TRY(car_trainer_take_snapshot(run->trainer, snapshot));
    CAR_TRY(car_train_write_snapshot(run, snapshot));
done:
    car_snapshot_destroy(snapshot);
    return status;
}

/* ---- the beginning --------------------------------------------------------------------------- */

car_status car_train_check_directory(car_train_run *run) {
    char directory[CAR_TRAIN_PATH];
    int64_t newest = -1;
    car_status status = CAR_OK;
    bool resume = run->options.resume || run->options.resume_step != CAR_NONE;
    if (!run->options.out) {
        return resume ? car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                         "--resume wants --out DIR, the directory of the run that is to go on")
                      : CAR_OK;
    }
    CAR_TRY(directory_of(run, directory));
    CAR_TRY(car_checkpoint_newest(run->context, directory, &newest));
    if (!resume && newest >= 0) {
        return car_context_fail(run->context, CAR_ERROR_IO,
                                "%s holds a run that was saved after step %lld: go on with --resume, or choose another "
                                "--out",
                                run->options.out, (long long)newest);
    }
    if (resume && newest < 0) {
        return car_context_fail(run->context, CAR_ERROR_IO, "--resume: there is no checkpoint in %s", directory);
    }
done:
    return status;
}

/* What the bits depend on besides the state; threads and paths are not among it. */
static const char *const decisive[] = {"model",
                                       "data",
                                       "rule",
                                       "workers",
                                       "accumulate",
                                       "sum-order",
                                       "stages",
                                       "batch",
                                       "seed",
                                       "optimizer",
                                       "lr",
                                       "momentum",
                                       "nesterov",
                                       "betas",
                                       "weight-decay",
                                       "decay-weights-only",
                                       "lr-schedule",
                                       "warmup",
                                       "clip-norm",
                                       "skip-nonfinite",
                                       "freshness-slack",
                                       "order",
                                       "no-augment",
                                       "classes",
                                       "image-size",
                                       "seq-len",
                                       "convolutions",
                                       "memory",
                                       "width",
                                       "depth",
                                       "steps",
                                       "epochs",
                                       "placement",
                                       "adamw-lr",
                                       "delay-correction",
                                       "heads",
                                       "vocabulary",
                                       "plan",
                                       "label-smoothing",
                                       "dropout",
                                       "augment",
                                       "freeze",
                                       "lr-scale",
                                       "ema",
                                       "precision"};

/* What a run from before an option existed is taken to have. */
static void default_options(cJSON *then) {
    static const char *const numbers[] = {"label-smoothing", "dropout", "ema"};
    for (size_t n = 0; then && n < sizeof numbers / sizeof *numbers; n++) {
        if (!cJSON_GetObjectItemCaseSensitive(then, numbers[n])) {
            cJSON_AddNumberToObject(then, numbers[n], 0);
        }
    }
    if (then && !cJSON_GetObjectItemCaseSensitive(then, "augment")) {
        cJSON_AddStringToObject(then, "augment", "auto");
    }
    if (then && !cJSON_GetObjectItemCaseSensitive(then, "precision")) {
        cJSON_AddStringToObject(then, "precision", "fp32");
    }
    if (then && !cJSON_GetObjectItemCaseSensitive(then, "accumulate")) {
        cJSON_AddNumberToObject(then, "accumulate", 1);
        cJSON_AddStringToObject(then, "sum-order", "auto");
    }
    car_train_default_correction(then);
}

static bool is_same(const cJSON *then, const cJSON *now, const char *name) {
    const cJSON *a = cJSON_GetObjectItemCaseSensitive(then, name), *b = cJSON_GetObjectItemCaseSensitive(now, name);
    return (!a && !b) || cJSON_Compare(a, b, true);
}

static bool has_value(const cJSON *json, const char *name, const char *value) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));
    return text && strcmp(text, value) == 0;
}

/* A cosine ends with the run; ranks of dp add in another order. */
static bool decides_now(const cJSON *now, const char *name) {
    bool length = strcmp(name, "steps") == 0 || strcmp(name, "epochs") == 0, place = strcmp(name, "placement") == 0;
    if (strcmp(name, "adamw-lr") == 0) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(now, "optimizer"));
        car_optimizer_kind kind;
        return name && car_optimizer_is_known(name, &kind) && car_optimizer_info_of(kind)->two_rates;
    }
    return (!length || has_value(now, "lr-schedule", "cosine")) && (!place || has_value(now, "rule", "dp"));
}

/* The names of decisive options that differ, separated by commas; "" if none does. */
static void find_differences(const cJSON *then, const cJSON *now, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t d = 0; d < sizeof decisive / sizeof decisive[0]; d++) {
        if (decides_now(now, decisive[d]) && !is_same(then, now, decisive[d]) && used < capacity) {
            used += (size_t)snprintf(text + used, capacity - used, "%s--%s", used ? ", " : "", decisive[d]);
        }
    }
}

/* Another optimizer's state means something else: begins without one, as at the first step. */
static car_status forget_state(car_train_run *run, car_snapshot *snapshot) {
    size_t most = car_graph_param_bytes(run->graph);
    car_snapshot_numbers numbers = car_snapshot_get_numbers(snapshot);
    float *zeros = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(run->context, most, 1, &zeros));
    memset(zeros, 0, most);
    for (int p = 0; p < car_graph_param_count(run->graph); p++) {
        for (int part = CAR_SNAPSHOT_STATE_0; part < CAR_SNAPSHOT_PARTS; part++) {
            if (car_snapshot_has(snapshot, (car_snapshot_part)part, p)) {
                CAR_TRY(car_snapshot_set(snapshot, (car_snapshot_part)part, p, zeros));
            }
        }
    }
    numbers.updates = numbers.since = 0;
    car_snapshot_set_numbers(snapshot, &numbers);
    car_context_log(run->context, CAR_LOG_WARNING, "the optimizer begins anew: its state was of another one");
done:
    car_context_release(run->context, zeros, zeros ? most : 0, 1);
    return status;
}

/* Returns whether the state is another optimizer's. */
static bool tell_what_differs(car_train_run *run, const car_checkpoint *checkpoint, bool complete) {
    char names[512];
    cJSON *then = cJSON_Parse(car_checkpoint_run(checkpoint)), *now = car_train_config_of(&run->options);
    bool foreign = then && !has_value(then, "optimizer", run->options.optimizer);
    default_options(then);
    find_differences(then, now, names, sizeof names);
    if (names[0] || !complete) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "going on from the weights of step %lld, but not exactly as that run would have: %s%s",
                        (long long)car_checkpoint_step(checkpoint), names[0] ? "other " : "", names);
    }
    if (!complete) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "the checkpoint lacks the previous version of the weights or a state of the optimizer");
    }
    car_train_tell_correction(run, then, complete);
    cJSON_Delete(now);
    cJSON_Delete(then);
    return foreign;
}

car_status car_train_read_snapshot(car_train_run *run, car_snapshot *snapshot) {
    char directory[CAR_TRAIN_PATH];
    car_checkpoint *checkpoint = NULL;
    int64_t step = run->options.resume_step;
    bool complete = true;
    car_status status = CAR_OK;
    CAR_TRY(directory_of(run, directory));
    if (step == CAR_NONE) {
        CAR_TRY(car_checkpoint_newest(run->context, directory, &step));
    }
    CAR_TRY(car_checkpoint_open(run->context, directory, step, &checkpoint));
    CAR_TRY(car_checkpoint_read(checkpoint, snapshot, &complete));
    if (tell_what_differs(run, checkpoint, complete)) {
        CAR_TRY(forget_state(run, snapshot));
    }
    run->averaged = car_snapshot_get_numbers(snapshot).updates > car_snapshot_get_numbers(snapshot).since;
done:
    car_checkpoint_close(checkpoint);
    return status;
}

car_status car_train_resume(car_train_run *run) {
    car_snapshot *snapshot = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_trainer_create_snapshot(run->trainer, &snapshot));
    CAR_TRY(car_train_read_snapshot(run, snapshot));
    CAR_TRY(car_trainer_restore(run->trainer, snapshot));
    run->first_step = run->saved_step = car_trainer_steps(run->trainer);
done:
    car_snapshot_destroy(snapshot);
    return status;
}

static void tell_names(const char *what, int count, const char *names) {
    if (count > 0) {
        printf("  %d %s: %s\n", count, what, names);
    }
}

car_status car_train_load(car_train_run *run, car_weights *weights) {
    const car_train_options *o = &run->options;
    const car_weights_load_config config = {.reset_head = o->reset_head};
    car_weights_load_report report;
    car_status status = CAR_OK;
    CAR_TRY(car_weights_load(weights, o->init, &config, &report));
    printf("%s: %d parameters loaded\n", o->init, report.loaded);
    tell_names("missing", report.missing, report.missing_names);
    tell_names("left over", report.left_over, report.left_over_names);
    tell_names("of the head, drawn anew", report.reset, report.reset_names);
done:
    return status;
}

car_status car_train_initialize(car_train_run *run) {
    car_status status = car_trainer_initialize(run->trainer, run->options.seed);
    return status == CAR_OK && run->options.init ? car_train_load(run, car_trainer_weights(run->trainer)) : status;
}
