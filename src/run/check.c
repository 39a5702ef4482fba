/* Options that make no sense, by name and value. */
#include <math.h>

#include "run/internal.h"

/* ---- numbers --------------------------------------------------------------------------------- */

typedef struct number {
    const char *name;
    double value;
} number;

static car_status refuse(car_context *context, const char *name, double value, const char *wanted) {
    return car_context_fail(context, CAR_ERROR_ARGUMENT, "options.%s is %.15g: it must be %s", name, value, wanted);
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
                              {"schedule.lr", o->schedule.lr},
                              {"schedule.warmup", (double)o->schedule.warmup},
                              {"schedule.every", (double)o->schedule.every},
                              {"schedule.total", (double)o->schedule.total}};
    for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; n++) {
        if (!(numbers[n].value >= 0)) { /* nor NaN */
            return refuse(context, numbers[n].name, numbers[n].value, "a number not below zero");
        }
    }
    return CAR_OK;
}

static car_status check_schedule(car_context *context, const car_schedule *s) {
    bool known = s->kind == CAR_SCHEDULE_CONSTANT || s->kind == CAR_SCHEDULE_STEP || s->kind == CAR_SCHEDULE_COSINE;
    bool steps = s->kind == CAR_SCHEDULE_STEP && !s->own;
    if (!known) {
        return refuse(context, "schedule.kind", s->kind, "a car_schedule_kind");
    }
    if (!isfinite(s->lr)) {
        return refuse(context, "schedule.lr", s->lr, "finite");
    }
    if (steps && s->every == 0) {
        return refuse(context, "schedule.every", 0, "the steps between two drops of the rate, with CAR_SCHEDULE_STEP");
    }
    if (steps && !(s->gamma > 0 && isfinite(s->gamma))) {
        return refuse(context, "schedule.gamma", s->gamma, "what the rate is multiplied by, above zero");
    }
    return CAR_OK;
}

/* ---- what goes together ----------------------------------------------------------------------- */

car_status car_run_check_options(car_context *context, const car_run_options *o) {
    car_status status = CAR_OK;
    if ((o->model != NULL) == (o->graph != NULL)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a run wants a model by its name, or a graph: one of the two");
    }
    if ((o->data != NULL) + (o->dataset != NULL) + (o->feed != NULL) > 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a run wants data by its name, a dataset or a feed: one of the three");
    }
    if (o->graph && !o->data && !o->dataset && !o->feed) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "a graph of one's own wants data, a dataset or a feed: nobody knows what it learns from");
    }
    if (o->optimizer && o->settings) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a run wants an optimizer by its name, or its settings: one of the two");
    }
    CAR_TRY(check_numbers(context, o));
    CAR_TRY(check_schedule(context, &o->schedule));
    if (!o->directory && (o->resume || o->checkpoint_every)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "checkpoints, and going on from them, want a directory: options.directory");
    }
    if (!o->eval_every && (o->best || o->patience)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "the best weights, and patience, compare evaluations on the way: options.eval_every");
    }
    if (o->feed && o->epochs > 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a feed has no epochs: say how long with steps");
    }
done:
    return status;
}
