/* Classifies image files with a trained model. Each thread works on one batch at a time. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "run/trained.h"

/* What the threads share. */
typedef struct classify_job {
    const car_trained *trained;
    const char *const *paths;
    int count, top;
    car_classification *results;
    atomic_int next;   /* index of the next file */
    atomic_int status; /* of the first failure */
} classify_job;

/* What one thread works with. */
typedef struct classify_room {
    car_image_opener *opener;
    car_tape *tape;
    car_lane *lane;
    float *samples, *logits; /* of one batch */
} classify_room;

/* Finds the best classes and their softmax probabilities. Returns false if the logits are not finite. */
static bool choose(const float *logits, int classes, int top, car_class_answer *answers) {
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
        car_class_answer answer = {c, exp((double)logits[c] - most) / sum};
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

static size_t sample_floats(const car_trained *trained) {
    return 3 * (size_t)trained->recipe.size * (size_t)trained->recipe.size;
}

/* Classifies files first .. end - 1, at most one batch. An image that cannot be read leaves an unused place. */
static car_status classify_batch(classify_job *job, classify_room *room, int first, int end) {
    const car_trained *trained = job->trained;
    int ops = car_graph_op_count(trained->graph), classes = trained->shape.classes;
    car_status status = CAR_OK;
    for (int f = first; f < end; f++) {
        float *sample = room->samples + (size_t)(f - first) * sample_floats(trained);
        CAR_TRY(car_image_open(room->opener, job->paths[f], sample, &job->results[f].file));
    }
    car_tape_begin(room->tape, 0, false);
    CAR_TRY(car_tape_feed(room->tape, car_graph_find_tensor(trained->graph, "images"), room->samples));
    CAR_TRY(car_tape_forward(room->tape, room->lane, trained->weights, 0, ops - 1)); /* all but the loss */
    CAR_TRY(car_tape_logits(room->tape, trained->weights, 0, end - first, room->logits));
    for (int f = first; f < end; f++) {
        car_classification *result = &job->results[f];
        const float *logits = room->logits + (size_t)(f - first) * (size_t)classes;
        if (result->file.readable && !choose(logits, classes, job->top, result->answers)) {
            result->file.readable = false;
            snprintf(result->file.problem, sizeof result->file.problem, "%.200s: the model's answer is not a number",
                     job->paths[f]);
        }
    }
done:
    return status;
}

static car_status classify_some(classify_job *job) {
    const car_trained *trained = job->trained;
    car_context *context = trained->context;
    int batch = trained->shape.batch;
    size_t samples = (size_t)batch * sample_floats(trained), logits = (size_t)batch * (size_t)trained->shape.classes;
    classify_room room = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_image_opener_create(context, &trained->recipe, &room.opener));
    CAR_TRY(car_tape_create(trained->program, trained->arena, &room.tape));
    CAR_TRY(car_lane_create(trained->program, trained->arena, &room.lane));
    CAR_TRY(car_context_allocate(context, samples, sizeof *room.samples, &room.samples));
    CAR_TRY(car_context_allocate(context, logits, sizeof *room.logits, &room.logits));
    for (int f = atomic_fetch_add(&job->next, batch); f < job->count; f = atomic_fetch_add(&job->next, batch)) {
        CAR_TRY(classify_batch(job, &room, f, f + batch < job->count ? f + batch : job->count));
    }
done:
    car_context_release(context, room.logits, room.logits ? logits : 0, sizeof *room.logits);
    car_context_release(context, room.samples, room.samples ? samples : 0, sizeof *room.samples);
    car_lane_destroy(room.lane);
    car_tape_destroy(room.tape);
    car_image_opener_destroy(room.opener);
    return status;
}

static void *classify_thread(void *argument) {
    classify_job *job = argument;
    int none = CAR_OK;
    car_status status = classify_some(job);
    if (status != CAR_OK) {
        atomic_compare_exchange_strong(&job->status, &none, (int)status);
    }
    return NULL;
}

static car_status check_files(const car_trained *trained, const char *const *paths, int count,
                              const car_classification *results) {
    for (int f = 0; f < count; f++) {
        if (!paths[f] || !results[f].answers) {
            return car_context_fail(trained->context, CAR_ERROR_ARGUMENT, "%s is NULL for file %d",
                                    paths[f] ? "answers" : "the path", f);
        }
    }
    return CAR_OK;
}

static car_status check_arguments(const car_trained *trained, int count, const car_classify_config *config) {
    if (trained->model->domain != CAR_DOMAIN_IMAGES) {
        return car_context_fail(trained->context, CAR_ERROR_UNSUPPORTED, "%s is of %s, which is not a model of images",
                                trained->path, trained->model->name);
    }
    if (trained->shape.channels != 3) {
        return car_context_fail(trained->context, CAR_ERROR_UNSUPPORTED,
                                "image files have three channels, and this model's images have %d",
                                trained->shape.channels);
    }
    if (count < 0 || config->threads < 0 || config->top < 0 || config->top > trained->shape.classes) {
        return car_context_fail(trained->context, CAR_ERROR_ARGUMENT,
                                "%d files, %d threads, %d answers: none may be negative, and the model has %d classes",
                                count, config->threads, config->top, trained->shape.classes);
    }
    return CAR_OK;
}

car_status car_trained_classify(car_trained *trained, const char *const *paths, int count,
                                const car_classify_config *config, car_classification *results) {
    CAR_ENTER(trained, trained->context);
    const car_classify_config none = {0};
    config = config ? config : &none;
    if (count > 0) {
        CAR_REQUIRE(trained->context, paths);
        CAR_REQUIRE(trained->context, results);
    }
    classify_job job = {
        .trained = trained, .paths = paths, .count = count, .top = config->top ? config->top : 1, .results = results};
    int threads = config->threads < count ? config->threads : count, started = 0;
    pthread_t *handles = NULL;
    car_status status = CAR_OK;
    threads = threads > 0 ? threads : 1;
    CAR_TRY(check_arguments(trained, count, config));
    CAR_TRY(check_files(trained, paths, count, results));
    CAR_TRY(car_context_allocate(trained->context, (size_t)threads, sizeof *handles, &handles));
    while (started < threads - 1 && pthread_create(&handles[started], NULL, classify_thread, &job) == 0) {
        started++;
    }
    classify_thread(&job); /* the caller's thread works, too */
    while (started > 0) {
        pthread_join(handles[--started], NULL);
    }
    status = (car_status)atomic_load(&job.status);
done:
    car_context_release(trained->context, handles, handles ? (size_t)threads : 0, sizeof *handles);
    return status;
}

void car_trained_class_name(const car_trained *trained, int index, char *text, size_t capacity) {
    if (!trained || !car_card_list_item(trained->card, "class_names", index, text, capacity) || !text[0]) {
        snprintf(text, capacity, "class %d", index);
    }
}
