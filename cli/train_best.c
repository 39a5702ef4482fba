/* What evaluations decide: the best weights (--keep-best), the end (--patience); and the moving average (--ema), which is
 * evaluated and saved beside the weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "carousel/checkpoint.h"
#include "train.h"
#include "weights.h"

/* ---- the average ----------------------------------------------------------------------------- */

/* In stored layout of one process, or of what ranks have gathered; what is frozen has none, and is the weights' own. */
static car_status copy_average(car_train_run *run, int param, float *values, car_weights *to) {
    float *stored =
        run->trainer ? car_optimizer_state(car_trainer_optimizer(run->trainer), CAR_OPTIMIZER_AVERAGE, param) : NULL;
    bool gathered = run->cut && car_cut_has(run->cut, CAR_CUT_AVERAGE, param);
    car_status status = CAR_OK;
    if (run->averaged && stored) {
        CAR_TRY(car_program_export_param(run->program, param, stored, values));
    } else if (run->averaged && gathered) {
        CAR_TRY(car_cut_get(run->cut, CAR_CUT_AVERAGE, param, values));
    } else {
        CAR_TRY(car_weights_get(car_train_weights(run), param, values));
    }
    CAR_TRY(car_weights_set(to, param, values));
done:
    return status;
}

/* The averaged weights, to be destroyed. */
static car_status make_average(car_train_run *run, car_weights **out) {
    size_t most = car_graph_param_bytes(run->graph);
    car_weights *weights = NULL;
    float *values = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_weights_create(run->program, run->arena, &weights));
    CAR_TRY(car_context_allocate(run->context, most, 1, &values));
    for (int p = 0; p < car_graph_param_count(run->graph); p++) {
        CAR_TRY(copy_average(run, p, values, weights));
    }
    *out = weights;
    weights = NULL;
done:
    car_context_release(run->context, values, values ? most : 0, 1);
    car_weights_destroy(weights);
    return status;
}

car_status car_train_evaluate_average(car_train_run *run) {
    car_weights *average = NULL;
    car_status status = CAR_OK;
    if (run->options.ema == 0) {
        return CAR_OK;
    }
    CAR_TRY(make_average(run, &average));
    CAR_TRY(car_train_evaluate(&run->data, &run->options, run->program, run->arena, average, NULL,
                               &run->average_evaluation));
done:
    car_weights_destroy(average);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

car_status car_train_make_card(car_train_run *run, int64_t step, car_card **out) {
    car_status status = CAR_OK;
    CAR_TRY(car_card_create(run->context, out));
    CAR_TRY(car_cli_fill_card(*out, run->options.model, &run->data.model, run->data.set, step));
done:
    return status;
}

/* Weights or their average as a file of the run directory. `best`: with the metric that made them the best. */
static car_status write_weights(car_train_run *run, const char *name, bool average, bool best) {
    char path[CAR_TRAIN_PATH];
    car_weights *averaged = NULL;
    car_card *card = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_train_path(run->context, run->options.out, name, path));
    CAR_TRY(car_train_make_card(run, car_train_steps(run), &card));
    if (average) {
        CAR_TRY(make_average(run, &averaged));
        CAR_TRY(car_card_set(card, "average", "%g", run->options.ema));
    }
    if (best) {
        CAR_TRY(car_card_set(card, car_train_metric(run), "%.9g", run->best_value));
    }
    CAR_TRY(car_weights_save_with(averaged ? averaged : car_train_weights(run), path, card, run->options.saves_as));
done:
    car_weights_destroy(averaged);
    car_card_destroy(card);
    return status;
}

static void remove_file(const car_train_run *run, const char *name) {
    char path[CAR_TRAIN_PATH];
    if (car_train_path(run->context, run->options.out, name, path) == CAR_OK) {
        unlink(path);
    }
}

car_status car_train_write_weights(car_train_run *run) {
    car_status status = CAR_OK;
    if (!run->options.out) {
        return CAR_OK;
    }
    CAR_TRY(write_weights(run, "weights.safetensors", false, false));
    run->weights_written = true;
    if (run->options.ema > 0) {
        CAR_TRY(write_weights(run, "average.safetensors", true, false));
    } else {
        remove_file(run, "average.safetensors"); /* of an earlier start that had one */
    }
done:
    return status;
}

/* ---- the best -------------------------------------------------------------------------------- */

const char *car_train_metric(const car_train_run *run) {
    return run->options.keep_best ? run->options.keep_best : "loss";
}

car_status car_train_check_best(car_train_run *run) {
    const car_train_options *o = &run->options;
    if (o->keep_best && strcmp(o->keep_best, "accuracy") != 0 && strcmp(o->keep_best, "loss") != 0) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "--keep-best %s: it must be accuracy or loss",
                                o->keep_best);
    }
    if ((o->keep_best || o->patience) && !o->eval_every) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "%s compares evaluations: say how often there is one with --eval-every STEPS",
                                o->keep_best ? "--keep-best" : "--patience");
    }
    if (o->keep_best && !o->out) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "--keep-best wants --out DIR to keep them in");
    }
    return CAR_OK;
}

/* Counts one evaluation; whether it is the best so far. What is not a number never is. */
static bool count_value(car_train_run *run, double value, int64_t step) {
    bool lower = strcmp(car_train_metric(run), "loss") == 0;
    bool better = isfinite(value) && (!run->has_best || (lower ? value < run->best_value : value > run->best_value));
    run->worse = better ? 0 : run->worse + 1;
    if (better) {
        run->has_best = true;
        run->best_value = value;
        run->best_step = step;
    }
    return better;
}

static void save_best(car_train_run *run) {
    bool saved = write_weights(run, "best.safetensors", run->options.ema > 0, true) == CAR_OK;
    if (!saved) {
        car_context_log(run->context, CAR_LOG_WARNING, "the best weights, of step %lld, are not saved: %s",
                        (long long)run->best_step, car_context_error(run->context));
        car_context_clear_error(run->context);
    }
}

void car_train_judge(car_train_run *run) {
    const car_train_options *o = &run->options;
    const car_evaluation *e = o->ema > 0 ? &run->average_evaluation : &run->evaluation;
    if (!o->keep_best && !o->patience) {
        return;
    }
    double value = strcmp(car_train_metric(run), "loss") == 0 ? e->loss : e->top1;
    if (count_value(run, value, car_train_steps(run)) && o->keep_best) {
        save_best(run);
    }
    if (o->patience > 0 && run->worse >= o->patience && car_train_steps(run) < o->steps) {
        run->stopped_early = true;
        printf("stopping: %d evaluations without a better %s than %.4f after step %lld (--patience)\n", run->worse,
               car_train_metric(run), run->best_value, (long long)run->best_step);
    }
}

/* ---- a run that goes on ---------------------------------------------------------------------- */

static void count_line(car_train_run *run, const char *line, const char *key) {
    cJSON *json = cJSON_Parse(line);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, key);
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(json, "step");
    if (cJSON_IsNumber(step)) {
        count_value(run, cJSON_IsNumber(value) ? value->valuedouble : NAN, (int64_t)step->valuedouble);
    }
    cJSON_Delete(json);
}

/* Whether best.safetensors is of the best evaluation that is left. */
static bool has_file_of_best(car_train_run *run) {
    char path[CAR_TRAIN_PATH], step[32];
    car_card *card = NULL;
    snprintf(step, sizeof step, "%lld", (long long)run->best_step);
    bool read = car_train_path(run->context, run->options.out, "best.safetensors", path) == CAR_OK &&
                access(path, R_OK) == 0 && car_card_read(run->context, path, &card) == CAR_OK;
    const char *found = read ? car_card_get(card, "step") : NULL;
    bool same = found && strcmp(found, step) == 0;
    car_card_destroy(card);
    car_context_clear_error(run->context);
    return same;
}

/* After going back, or where the file is gone, the best is looked for among the evaluations to come. */
static void forget_lost_best(car_train_run *run) {
    if (run->options.keep_best && run->has_best && !has_file_of_best(run)) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "%s/best.safetensors is not of step %lld, the best so far: the best is looked for anew",
                        run->options.out, (long long)run->best_step);
        remove_file(run, "best.safetensors");
        run->has_best = false;
        run->worse = 0;
    }
}

car_status car_train_recall_best(car_train_run *run) {
    const car_train_options *o = &run->options;
    char path[CAR_TRAIN_PATH], key[64], *line = NULL;
    size_t capacity = 0;
    car_status status = CAR_OK;
    if ((!o->keep_best && !o->patience) || !o->out || run->first_step == 0) {
        return CAR_OK;
    }
    bool lower = strcmp(car_train_metric(run), "loss") == 0;
    snprintf(key, sizeof key, "%s%s", o->ema > 0 ? "average_" : "",
             lower ? "loss" : car_train_accuracy_name(run->data.domain));
    CAR_TRY(car_train_path(run->context, o->out, "evaluations.jsonl", path));
    FILE *file = fopen(path, "r"); /* what it lacks was never compared */
    while (file && getline(&line, &capacity, file) > 0) {
        count_line(run, line, key);
    }
    if (file) {
        fclose(file);
    }
    free(line);
    forget_lost_best(run);
done:
    return status;
}
