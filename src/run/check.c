/* Checks the options of a run, and reports wrong ones by name and value. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "engine/optimizer_internal.h"
#include "run/internal.h"

/* ---- names ----------------------------------------------------------------------------------- */

car_setting_name car_run_name(const car_run_options *o, const char *setting) {
    static const struct {
        const char *here, *there;
    } others[] = {{"directory", "out"}, {"best", "keep-best"}, {"schedule", "lr-schedule"}};
    car_setting_name name;
    if (!o->dashes) {
        snprintf(name.text, sizeof name.text, "options.%s", setting);
        return name;
    }
    for (size_t n = 0; n < sizeof others / sizeof others[0]; n++) {
        setting = strcmp(setting, others[n].here) == 0 ? others[n].there : setting;
    }
    snprintf(name.text, sizeof name.text, "--%s", setting);
    for (char *c = name.text; *c; c++) {
        *c = *c == '_' ? '-' : *c;
    }
    return name;
}

/* ---- numbers --------------------------------------------------------------------------------- */

typedef struct number {
    const char *name;
    double value;
} number;

static car_status refuse(car_context *context, const car_run_options *o, const char *name, double value,
                         const char *wanted) {
    return car_context_fail(context, CAR_ERROR_ARGUMENT, "%s is %.15g, but must be %s", car_run_name(o, name).text,
                            value, wanted);
}

static car_status check_numbers(car_context *context, const car_run_options *o) {
    const number numbers[] = {{"workers", o->workers},
                              {"stages", o->stages},
                              {"accumulate", o->accumulate},
                              {"threads", o->threads},
                              {"steps", (double)o->steps},
                              {"epochs", o->epochs},
                              {"patience", o->patience},
                              {"memory_limit", o->memory_limit},
                              {"clip_norm", o->clip_norm},
                              {"eval_every", (double)o->eval_every},
                              {"eval_batches", (double)o->eval_batches},
                              {"checkpoint_every", (double)o->checkpoint_every},
                              {"keep", o->keep},
                              {"most_ranks", o->most_ranks},
                              {"resume_step", (double)o->resume_step},
                              {"schedule_epochs", o->schedule_epochs},
                              {"schedule.lr", o->schedule.lr},
                              {"schedule.warmup", o->schedule.warmup == CAR_NONE ? 0 : (double)o->schedule.warmup},
                              {"schedule.every", (double)o->schedule.every},
                              {"schedule.total", (double)o->schedule.total}};
    for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; n++) {
        if (!(numbers[n].value >= 0)) { /* also catches NaN */
            return refuse(context, o, numbers[n].name, numbers[n].value, "a number of at least 0");
        }
    }
    return CAR_OK;
}

static car_status check_optimizer(car_context *context, const car_run_options *o) {
    car_optimizer_mistake mistake;
    char name[32];
    if (!o->settings || !car_optimizer_find_mistake(o->settings, &mistake)) {
        return CAR_OK;
    }
    snprintf(name, sizeof name, "settings.%s", mistake.field);
    return refuse(context, o, name, mistake.value, mistake.wanted);
}

static car_status check_names(car_context *context, const car_run_options *o) {
    if ((unsigned)o->shape.precision > CAR_PRECISION_BF16) {
        return refuse(context, o, "shape.precision", (double)o->shape.precision, "a car_precision");
    }
    if ((unsigned)o->save_precision > CAR_PRECISION_BF16) {
        return refuse(context, o, "save_precision", (double)o->save_precision, "a car_precision");
    }
    return o->configuration ? car_manifest_check_run(context, o->configuration) : CAR_OK;
}

static car_status check_schedule(car_context *context, const car_run_options *o) {
    const car_schedule *s = &o->schedule;
    bool known = s->kind == CAR_SCHEDULE_CONSTANT || s->kind == CAR_SCHEDULE_STEP || s->kind == CAR_SCHEDULE_COSINE;
    bool steps = s->kind == CAR_SCHEDULE_STEP && !s->own;
    if (!known) {
        return refuse(context, o, "schedule.kind", s->kind, "a car_schedule_kind");
    }
    if (!isfinite(s->lr)) {
        return refuse(context, o, "schedule.lr", s->lr, "finite");
    }
    if (steps && s->every == 0 && o->schedule_epochs == 0) {
        return refuse(context, o, "schedule.every", 0,
                      "the number of steps between two drops of the learning rate, for CAR_SCHEDULE_STEP");
    }
    if (steps && !(s->gamma > 0 && isfinite(s->gamma))) {
        return refuse(context, o, "schedule.gamma", s->gamma, "the factor for the learning rate, above 0");
    }
    return CAR_OK;
}

/* ---- combinations ---------------------------------------------------------------------------- */

car_status car_run_check_options(car_context *context, const car_run_options *o) {
    car_status status = CAR_OK;
    if (o->refused) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "%s", o->refused);
    }
    if ((o->model != NULL) == (o->graph != NULL)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                o->model ? "a run takes only one of options.model and options.graph"
                                         : "a run needs options.model or options.graph");
    }
    if ((o->data != NULL) + (o->dataset != NULL) + (o->feed != NULL) > 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a run takes only one of options.data, options.dataset and options.feed");
    }
    if (o->graph && !o->data && !o->dataset && !o->feed) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "a run of options.graph needs data to train on: set options.data, options.dataset or options.feed");
    }
    if (o->optimizer && o->settings) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a run takes only one of options.optimizer and options.settings");
    }
    CAR_TRY(check_numbers(context, o));
    CAR_TRY(check_schedule(context, o));
    CAR_TRY(check_optimizer(context, o));
    CAR_TRY(check_names(context, o));
    if (!o->directory && (o->resume || o->resume_step || o->checkpoint_every || o->run_directory)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "checkpoints need a directory, both to write them and to resume from them: set %s",
                                car_run_name(o, "directory").text);
    }
    if (!o->eval_every && (o->best || o->patience)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "%s needs evaluations during training: set %s",
                                car_run_name(o, o->best ? "best" : "patience").text,
                                car_run_name(o, "eval_every").text);
    }
    if (o->feed && o->epochs > 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a feed has no epochs: set options.steps instead");
    }
done:
    return status;
}
