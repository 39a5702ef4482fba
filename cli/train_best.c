/* What evaluations decide: the best weights (--keep-best), the end (--patience); and the moving average (--ema), which is
 * evaluated and saved beside the weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carousel/checkpoint.h"
#include "carousel/convention.h"
#include "train.h"
#include "weights.h"

/* ---- what is evaluated ----------------------------------------------------------------------- */

/* Of a snapshot, or in one process of the optimizer. What has no average, because it is frozen or because no update was made, is
 * the weights' own. */
static car_status copy_average(car_train_run *run, const car_snapshot *snapshot, int param, float *values,
                               const car_train_subject *subject) {
    const float *stored =
        run->trainer ? car_optimizer_state(car_trainer_optimizer(run->trainer), CAR_OPTIMIZER_AVERAGE, param) : NULL;
    bool begun = snapshot ? car_snapshot_get_numbers(snapshot).updates > car_snapshot_get_numbers(snapshot).since
                          : run->averaged;
    car_status status = CAR_OK;
    if (begun && snapshot && car_snapshot_has(snapshot, CAR_SNAPSHOT_AVERAGE, param)) {
        CAR_TRY(car_snapshot_get(snapshot, CAR_SNAPSHOT_AVERAGE, param, values));
    } else if (begun && !snapshot && stored) {
        CAR_TRY(car_program_export_param(run->program, param, stored, values));
    } else {
        CAR_TRY(car_weights_get(subject->weights, param, values));
    }
    CAR_TRY(car_weights_set(subject->average, param, values));
done:
    return status;
}

car_status car_train_add_average(car_train_run *run, const car_snapshot *snapshot, car_arena *arena,
                                 car_train_subject *subject) {
    size_t most = car_graph_param_bytes(run->graph);
    float *values = NULL;
    car_status status = CAR_OK;
    if (run->options.ema == 0) {
        return CAR_OK;
    }
    CAR_TRY(car_weights_create(run->program, arena, &subject->average));
    CAR_TRY(car_context_allocate(run->context, most, 1, &values));
    for (int p = 0; p < car_graph_param_count(run->graph); p++) {
        CAR_TRY(copy_average(run, snapshot, p, values, subject));
    }
done:
    car_context_release(run->context, values, values ? most : 0, 1);
    return status;
}

/* Where the run stands; its average, if it has one, is to be destroyed. */
static car_status describe_now(car_train_run *run, car_train_subject *out) {
    *out = (car_train_subject){.step = car_train_steps(run), .weights = car_train_weights(run)};
    return car_train_add_average(run, run->snapshot, run->arena, out);
}

static void judge(car_train_run *run, const car_train_subject *subject);

car_status car_train_evaluate_subject(car_train_run *run, const car_train_subject *subject, car_arena *arena) {
    car_status status = CAR_OK;
    CAR_TRY(car_train_create_confusion(run));
    CAR_TRY(car_train_evaluate(&run->data, &run->options, run->program, arena, subject->weights, run->confusion.counts,
                               &run->evaluation));
    if (subject->average) {
        CAR_TRY(car_train_evaluate(&run->data, &run->options, run->program, arena, subject->average, NULL,
                                   &run->average_evaluation));
    }
    car_train_show_evaluation(run, subject->step);
    judge(run, subject);
done:
    return status;
}

car_status car_train_evaluate_here(car_train_run *run) {
    car_train_subject subject;
    car_status status = CAR_OK;
    CAR_TRY(describe_now(run, &subject));
    CAR_TRY(car_train_evaluate_subject(run, &subject, run->arena));
done:
    car_weights_destroy(subject.average);
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
static car_status write_weights(car_train_run *run, const char *name, const car_train_subject *subject, bool average,
                                bool best) {
    char path[CAR_TRAIN_PATH];
    car_card *card = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_train_path(run->context, run->options.out, name, path));
    CAR_TRY(car_train_make_card(run, subject->step, &card));
    if (average) {
        CAR_TRY(car_card_set(card, "average", "%g", run->options.ema));
    }
    if (best) {
        CAR_TRY(car_card_set(card, car_train_metric(run), "%.9g", run->best_value));
    }
    CAR_TRY(car_weights_save_with(average ? subject->average : subject->weights, path, card, run->options.saves_as));
done:
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
    car_train_subject subject = {0};
    car_status status = CAR_OK;
    if (!run->options.out) {
        return CAR_OK;
    }
    CAR_TRY(describe_now(run, &subject));
    CAR_TRY(write_weights(run, "weights.safetensors", &subject, false, false));
    run->weights_written = true;
    if (subject.average) {
        CAR_TRY(write_weights(run, "average.safetensors", &subject, true, false));
    } else {
        remove_file(run, "average.safetensors"); /* of an earlier start that had one */
    }
done:
    car_weights_destroy(subject.average);
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

static void save_best(car_train_run *run, const car_train_subject *subject) {
    bool saved = write_weights(run, "best.safetensors", subject, subject->average, true) == CAR_OK;
    if (!saved) {
        car_context_log(run->context, CAR_LOG_WARNING, "the best weights, of step %lld, are not saved: %s",
                        (long long)run->best_step, car_context_error(run->context));
        car_context_clear_error(run->context);
    }
}

/* Keeps the best weights, and decides whether the run has waited long enough for better ones. */
static void judge(car_train_run *run, const car_train_subject *subject) {
    const car_train_options *o = &run->options;
    const car_evaluation *e = subject->average ? &run->average_evaluation : &run->evaluation;
    if (!o->keep_best && !o->patience) {
        return;
    }
    double value = strcmp(car_train_metric(run), "loss") == 0 ? e->loss : e->top1;
    if (count_value(run, value, subject->step) && o->keep_best) {
        save_best(run, subject);
    }
    if (o->patience > 0 && run->worse >= o->patience && subject->step < o->steps) {
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
