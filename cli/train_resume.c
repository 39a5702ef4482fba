/* Resumed runs: warns about changed options, reads the earlier evaluations, and finds out whether the run was finished.
 * Also loads initial weights from a file. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "train.h"

/* ---- changed options ------------------------------------------------------------------------- */

/* Options that change the result, bit for bit. Threads and paths do not. */
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

/* Adds the defaults of options that are newer than the checkpoint. */
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
}

static bool is_same(const cJSON *then, const cJSON *now, const char *name) {
    const cJSON *a = cJSON_GetObjectItemCaseSensitive(then, name), *b = cJSON_GetObjectItemCaseSensitive(now, name);
    return (!a && !b) || cJSON_Compare(a, b, true);
}

static bool has_value(const cJSON *json, const char *name, const char *value) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));
    return text && strcmp(text, value) == 0;
}

/* True if the option matters here: steps and epochs only to a cosine, the placement only to dp, whose ranks add in
 * another order. */
static bool decides_now(const cJSON *now, const char *name) {
    bool length = strcmp(name, "steps") == 0 || strcmp(name, "epochs") == 0, place = strcmp(name, "placement") == 0;
    if (strcmp(name, "adamw-lr") == 0) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(now, "optimizer"));
        car_optimizer_kind kind;
        return name && car_optimizer_is_known(name, &kind) && car_optimizer_info_of(kind)->two_rates;
    }
    return (!length || has_value(now, "lr-schedule", "cosine")) && (!place || has_value(now, "rule", "dp"));
}

/* Lists the options of `decisive` that differ, separated by commas, or "". */
static void find_differences(const cJSON *then, const cJSON *now, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t d = 0; d < sizeof decisive / sizeof decisive[0]; d++) {
        if (decides_now(now, decisive[d]) && !is_same(then, now, decisive[d]) && used < capacity) {
            used += (size_t)snprintf(text + used, capacity - used, "%s--%s", used ? ", " : "", decisive[d]);
        }
    }
}

void car_train_tell_differences(const car_train_run *t) {
    const char *kept = car_run_then(t->run);
    char names[512];
    if (!kept) {
        return;
    }
    cJSON *then = cJSON_Parse(kept), *now = car_train_config_of(&t->options);
    default_options(then);
    car_train_compare_correction(t, then);
    find_differences(then, now, names, sizeof names);
    if (names[0]) {
        car_context_log(
            t->context, CAR_LOG_WARNING,
            "resuming from the weights of step %lld, but not exactly as that run would have continued: different %s",
            (long long)car_run_first_step(t->run), names);
    }
    car_train_tell_correction(t, then, car_run_goes_on_exactly(t->run));
    car_train_tell_warmup(t, then);
    cJSON_Delete(now);
    cJSON_Delete(then);
}

/* ---- evaluations ------------------------------------------------------------------------------- */

/* Reads a line; returns false if it is damaged. */
static bool read_line(const char *line, const char *key, car_past_evaluation *out) {
    cJSON *json = cJSON_Parse(line);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, key);
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(json, "step");
    bool whole = cJSON_IsNumber(step);
    if (whole) {
        *out = (car_past_evaluation){(int64_t)step->valuedouble, cJSON_IsNumber(value) ? value->valuedouble : NAN};
    }
    cJSON_Delete(json);
    return whole;
}

car_status car_train_recall(car_train_run *t) {
    const car_train_options *o = &t->options;
    char path[CAR_TRAIN_PATH], key[64], *line = NULL;
    bool lower = strcmp(car_train_metric(t), "loss") == 0;
    int count = 0, capacity = 0;
    size_t bytes = 0;
    car_past_evaluation *list = NULL;
    car_status status = CAR_OK;
    if (car_run_first_step(t->run) == 0) {
        return CAR_OK;
    }
    snprintf(key, sizeof key, "%s%s", o->ema > 0 ? "average_" : "",
             lower ? "loss" : car_train_accuracy_name(t->domain));
    CAR_TRY(car_train_path(t->context, o->out, "evaluations.jsonl", path));
    FILE *file = fopen(path, "r"); /* evaluations that are missing do not count */
    while (file && status == CAR_OK && getline(&line, &bytes, file) > 0) {
        status = car_context_grow(t->context, &list, &capacity, count + 1, sizeof *list);
        count += status == CAR_OK && read_line(line, key, &list[count]);
    }
    if (file) {
        fclose(file);
    }
    free(line);
    CAR_TRY(status);
    CAR_TRY(car_run_recall(t->run, list, count));
done:
    car_context_release(t->context, list, (size_t)capacity, sizeof *list);
    return status;
}

/* ---- finished runs --------------------------------------------------------------------------- */

/* True if the directory has a summary of these weights, from a run that was not interrupted. */
static bool has_summary(const car_train_run *t, const char *digest) {
    char path[CAR_TRAIN_PATH], line[512];
    bool found = false, ended = true;
    FILE *file = car_train_path(t->context, t->options.out, "summary.json", path) == CAR_OK ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        found = found || (strstr(line, "weights_sha256") && strstr(line, digest));
        ended = ended && !(strstr(line, "\"interrupted\"") && strstr(line, "true"));
    }
    if (file) {
        fclose(file);
    }
    return found && ended;
}

car_status car_train_was_over(car_train_run *t, bool *out) {
    char digest[80];
    car_status status = CAR_OK;
    *out = false;
    if (!t->options.out || car_run_first_step(t->run) == 0 || car_run_steps(t->run) < car_run_total_steps(t->run)) {
        return CAR_OK;
    }
    CAR_TRY(car_run_digest(t->run, digest));
    *out = car_train_is_first(t) && has_summary(t, digest);
    if (t->launched) {
        CAR_TRY(car_transport_broadcast(car_run_transport(t->run), 0, out, sizeof *out));
    }
done:
    return status;
}

/* ---- weights from a file ----------------------------------------------------------------------- */

static void tell_names(const char *what, int count, const char *names) {
    if (count > 0) {
        printf("  %d %s: %s\n", count, what, names);
    }
}

car_status car_train_load(car_train_run *t) {
    const car_train_options *o = &t->options;
    const car_weights_load_config config = {.reset_head = o->reset_head};
    car_weights_load_report report = {0};
    car_status status = car_run_load_with(t->run, o->init, &config, &report);
    if (status == CAR_OK && car_train_is_first(t)) {
        printf("%s: %d parameters loaded\n", o->init, report.loaded);
        tell_names("missing", report.missing, report.missing_names);
        tell_names("not used", report.left_over, report.left_over_names);
        tell_names("of the head, initialized anew", report.reset, report.reset_names);
    }
    return status;
}
