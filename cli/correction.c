/* The option --delay-correction: reads it, prints it, and compares it when a run is resumed. */
#include "correction.h"

#include <math.h>
#include <string.h>

#include "carousel/convention.h"
#include "cli.h"
#include "train.h"

static const double largest = 10; /* larger values are typing errors */

bool car_cli_correction_is_auto(const char *text, const car_optimizer_config *optimizer) {
    return strcmp(text, "auto") == 0 && !optimizer->nesterov;
}

car_status car_cli_read_correction(car_context *context, const char *text, const car_plan_config *plan,
                                   car_optimizer_config *optimizer) {
    double c = 0, a = 0;
    optimizer->correction = (car_correction){0};
    if (strcmp(text, "off") == 0 || (strcmp(text, "auto") == 0 && optimizer->nesterov)) {
        return CAR_OK;
    }
    if (strcmp(text, "auto") == 0) {
        optimizer->correction = car_correction_choose(plan, optimizer);
        return CAR_OK;
    }
    if (!car_cli_read_pair(text, ',', &c, &a) || !(c >= 0 && c <= largest) || !(a >= 0 && a <= largest)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--delay-correction %s: it must be auto, off or C,A, two numbers from 0 to %g, e.g. "
                                "0.9,1",
                                text, largest);
    }
    if (optimizer->nesterov) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--nesterov is the same as --delay-correction %g,0; leave one of the two out",
                                optimizer->momentum);
    }
    if (!car_optimizer_can_correct(optimizer)) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "--delay-correction %s: %s without --momentum cannot be corrected; set --momentum, or use off", text,
            car_optimizer_text(optimizer->kind));
    }
    optimizer->correction = (car_correction){.c = c, .a = a};
    return CAR_OK;
}

/* ---- of a run -------------------------------------------------------------------------------- */

void car_train_describe_correction(const car_train_run *t, char *text, size_t capacity) {
    const car_train_options *o = &t->options;
    const car_optimizer_config *optimizer = &t->optimizer;
    bool late = car_plan_delay(car_run_plan(t->run), 0, 0) > 0;
    char what[80];
    if (optimizer->nesterov) {
        snprintf(text, capacity, "; Nesterov momentum");
    } else if (car_correction_is_on(&optimizer->correction)) {
        car_correction_text(&optimizer->correction, what, sizeof what);
        snprintf(text, capacity, "; delay corrected by %s%s", what,
                 strcmp(o->delay_correction, "auto") == 0 ? " (auto)" : "");
    } else {
        snprintf(text, capacity, "%s", late ? "; delay not corrected" : "");
    }
    if (o->warmup_by_rule) {
        size_t used = strlen(text);
        snprintf(text + used, capacity - used, ", warm-up of %d steps (auto)", o->warmup);
    }
}

static const char in_use[] = "delay-correction-in-use"; /* in a checkpoint: what auto chose, or Nesterov */

static void write_correction(const car_train_run *t, char *text, size_t capacity) {
    if (t->optimizer.nesterov) {
        snprintf(text, capacity, "Nesterov momentum");
    } else {
        car_correction_text(&t->optimizer.correction, text, capacity);
    }
}

void car_train_add_correction(const car_train_run *t, cJSON *configuration) {
    char text[80];
    write_correction(t, text, sizeof text);
    cJSON_AddStringToObject(configuration, in_use, text);
}

/* Runs older than the option had no correction. */
static const char *option_then(const cJSON *then) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(then, "delay-correction"));
    return text ? text : "off";
}

void car_train_compare_correction(const car_train_run *t, cJSON *then) {
    const char *used = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(then, in_use));
    char now[80];
    write_correction(t, now, sizeof now);
    bool same = used && strcmp(used, now) == 0; /* auto may have chosen what is now given, or the reverse */
    const char *option = same ? t->options.delay_correction : option_then(then);
    if (then) {
        cJSON *value = cJSON_CreateString(option);
        cJSON_DeleteItemFromObjectCaseSensitive(then, "delay-correction");
        if (!value || !cJSON_AddItemToObject(then, "delay-correction", value)) {
            cJSON_Delete(value);
        }
    }
}

void car_train_tell_correction(const car_train_run *t, const cJSON *then, bool has_last) {
    const char *used = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(then, in_use));
    char now[80];
    write_correction(t, now, sizeof now);
    /* Older checkpoints hold only the option. */
    if (!then || (used ? strcmp(used, now) : strcmp(option_then(then), t->options.delay_correction)) == 0) {
        return;
    }
    car_context_log(
        t->context, CAR_LOG_WARNING, "the delay correction was %s; from here on it is %s%s",
        used ? used : option_then(then), now,
        t->optimizer.correction.a != 0 && !has_last
            ? "; the change of the gradient counts from the second step on, because the last gradient was not saved"
            : "");
}

static double number_of(const cJSON *json, const char *name) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, name);
    return cJSON_IsNumber(value) ? value->valuedouble : 0;
}

/* With --steps and --epochs, whichever ends first counts. */
static int64_t steps_of(const car_train_run *t, const cJSON *configuration) {
    double steps = number_of(configuration, "steps"), epochs = number_of(configuration, "epochs");
    double passes = ceil(epochs * (double)car_run_epoch_steps(t->run));
    return (int64_t)(passes > 0 && (steps == 0 || passes < steps) ? passes : steps);
}

void car_train_tell_warmup(const car_train_run *t, const cJSON *then) {
    car_rule rule = car_plan_config_of(car_run_plan(t->run))->rule;
    int64_t steps = car_run_total_steps(t->run), before = steps_of(t, then);
    int64_t kept = car_run_schedule(t->run)->warmup, usual = car_correction_warmup(rule, &t->optimizer, steps);
    bool was_auto = car_cli_correction_is_auto(t->options.delay_correction, &t->optimizer) &&
                    kept == car_correction_warmup(rule, &t->optimizer, before);
    if (was_auto && kept != usual) {
        car_context_log(t->context, CAR_LOG_WARNING,
                        "the warm-up was chosen for %lld steps and stays at %lld; a new run of %lld steps would "
                        "begin with %lld",
                        (long long)before, (long long)kept, (long long)steps, (long long)usual);
    }
}
