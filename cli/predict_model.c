/* The model of `carousel predict`. Each thread classifies one image at a time. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "carousel/convention.h"
#include "predict.h"

/* ---- the model ------------------------------------------------------------------------------- */

/* Runs that are older than cards have a config.json instead. */
static car_status read_run(car_predict_run *run) {
    const car_cli_command command = {.name = "predict"};
    char path[CAR_CLI_PATH];
    struct stat entry;
    int length = snprintf(path, sizeof path, "%s/config.json", run->place), threads = run->options.threads;
    if (length >= (int)sizeof path || stat(path, &entry) != 0) {
        return CAR_OK;
    }
    car_model_config typed = run->options.shape;
    const char *model = run->options.model;
    if (car_train_read_config(&command, path, &run->options) != CAR_CLI_GO_ON) {
        return car_context_fail(run->context, CAR_ERROR_FORMAT, "%s cannot be read", path);
    }
    run->options.threads = threads;
    run->options.model = model ? model : run->options.model;
    run->options.shape.classes = typed.classes ? typed.classes : run->options.shape.classes;
    run->options.shape.image_size = typed.image_size ? typed.image_size : run->options.shape.image_size;
    return CAR_OK;
}

static car_status find_model(car_predict_run *run, const char *path) {
    car_train_options *o = &run->options;
    car_status status = CAR_OK;
    const char *named = car_card_get(run->card, "model");
    if (!named) {
        CAR_TRY(read_run(run));
    } else if (!o->model || strcmp(o->model, named) == 0) {
        o->model = car_card_model(run->card, &o->shape);
    }
    const car_model_info *info = o->model ? car_model_find(o->model) : NULL;
    if (!info) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                o->model ? "%s is of a model that is not known, '%s'"
                                         : "%s does not say which model it is of: give --model NAME",
                                path, o->model);
    }
    if (info->domain != CAR_DOMAIN_IMAGES) {
        CAR_TRY(car_context_fail(run->context, CAR_ERROR_ARGUMENT, "%s is of %s, which is not a model of images", path,
                                 o->model));
    }
done:
    return status;
}

car_status car_predict_open(car_predict_run *run) {
    char path[CAR_CLI_PATH];
    car_status status = CAR_OK;
    CAR_TRY(car_cli_find_weights(run->context, run->place, path));
    CAR_TRY(car_card_read(run->context, path, &run->card));
    CAR_TRY(find_model(run, path));
    run->options.shape.batch = 1;
    CAR_TRY(car_model_resolve(run->context, run->options.model, &run->options.shape, &run->model));
    run->recipe = car_image_recipe_for(run->model.image_size);
    CAR_TRY(car_card_recipe(run->card, &run->recipe));
    CAR_TRY(car_model_build(run->context, run->options.model, &run->model, &run->graph));
    CAR_TRY(car_program_create(run->graph, NULL, &run->program));
    CAR_TRY(car_arena_create(run->context, 0, &run->arena));
    CAR_TRY(car_weights_create(run->program, run->arena, &run->weights));
    CAR_TRY(car_cli_load_weights(run->weights, path, run->options.model));
    run->top = run->top < run->model.classes ? run->top : run->model.classes;
done:
    return status;
}

void car_predict_close(car_predict_run *run) {
    car_weights_destroy(run->weights);
    car_arena_destroy(run->arena);
    car_program_destroy(run->program);
    car_graph_destroy(run->graph);
    car_card_destroy(run->card);
}

/* ---- images ---------------------------------------------------------------------------------- */

typedef struct task {
    car_predict_run *run;
    atomic_int next; /* index of the next file */
    int first, end;
    car_predict_result *results; /* from `first` on */
    atomic_int status;
} task;

/* Finds the best classes and their softmax probabilities. Returns false if the logits are not finite. */
static bool choose(const float *logits, int classes, int top, car_predict_answer *answers) {
    double most = -INFINITY, sum = 0;
    for (int c = 0; c < classes; c++) {
        most = fmax(most, (double)logits[c]);
    }
    for (int c = 0; c < classes; c++) {
        sum += exp((double)logits[c] - most);
    }
    if (!isfinite(sum)) {
        return false;
    }
    for (int count = 0, c = 0; c < classes; c++) {
        car_predict_answer answer = {c, exp((double)logits[c] - most) / sum};
        int place = count;
        while (place > 0 && answers[place - 1].probability < answer.probability) {
            place--;
        }
        if (place < top) {
            int moved = (count < top ? count : top - 1) - place;
            memmove(&answers[place + 1], &answers[place], (size_t)moved * sizeof *answers);
            answers[place] = answer;
            count += count < top;
        }
    }
    return true;
}

static car_status predict_one(const car_predict_run *run, const char *path, car_image_opener *opener, car_tape *tape,
                              car_lane *lane, float *sample, car_predict_result *out) {
    int ops = car_graph_op_count(run->graph);
    car_status status = CAR_OK;
    CAR_TRY(car_image_open(opener, path, sample, &out->file));
    if (!out->file.readable) {
        return CAR_OK;
    }
    car_tape_begin(tape, 0, false);
    CAR_TRY(car_tape_feed(tape, car_graph_find_tensor(run->graph, "images"), sample));
    CAR_TRY(car_tape_forward(tape, lane, run->weights, 0, ops - 1)); /* all but the loss */
    const float *logits = car_tape_tensor(tape, car_graph_logits(run->graph));
    if (!choose(logits, run->model.classes, run->top, out->answers)) {
        out->file.readable = false;
        snprintf(out->file.problem, sizeof out->file.problem, "%.200s: the model's answer is not a number", path);
    }
done:
    return status;
}

static car_status predict_some(task *t) {
    car_predict_run *run = t->run;
    size_t floats = 3 * (size_t)run->recipe.size * (size_t)run->recipe.size;
    car_image_opener *opener = NULL;
    car_tape *tape = NULL;
    car_lane *lane = NULL;
    float *sample = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_image_opener_create(run->context, &run->recipe, &opener));
    CAR_TRY(car_tape_create(run->program, run->arena, &tape));
    CAR_TRY(car_lane_create(run->program, run->arena, &lane));
    CAR_TRY(car_context_allocate(run->context, floats, sizeof *sample, &sample));
    for (int f = atomic_fetch_add(&t->next, 1); f < t->end; f = atomic_fetch_add(&t->next, 1)) {
        CAR_TRY(predict_one(run, run->files[f], opener, tape, lane, sample, &t->results[f - t->first]));
    }
done:
    car_context_release(run->context, sample, sample ? floats : 0, sizeof *sample);
    car_lane_destroy(lane);
    car_tape_destroy(tape);
    car_image_opener_destroy(opener);
    return status;
}

static void *predict_thread(void *argument) {
    task *t = argument;
    int none = CAR_OK;
    car_status status = predict_some(t);
    if (status != CAR_OK) {
        atomic_compare_exchange_strong(&t->status, &none, (int)status);
    }
    return NULL;
}

car_status car_predict_files(car_predict_run *run, int first, int end, car_predict_result *results) {
    task t = {.run = run, .first = first, .end = end, .results = results};
    int threads = run->options.threads < end - first ? run->options.threads : end - first, started = 0;
    pthread_t *handles = NULL;
    car_status status = CAR_OK;
    atomic_store(&t.next, first);
    CAR_TRY(car_context_allocate(run->context, (size_t)threads, sizeof *handles, &handles));
    while (started < threads - 1 && pthread_create(&handles[started], NULL, predict_thread, &t) == 0) {
        started++;
    }
    predict_thread(&t); /* the caller's thread works too */
    while (started > 0) {
        pthread_join(handles[--started], NULL);
    }
    status = (car_status)atomic_load(&t.status);
done:
    car_context_release(run->context, handles, handles ? (size_t)threads : 0, sizeof *handles);
    return status;
}
