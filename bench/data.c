/* How fast is data read, without a model? The worker that data.py drives. It reads commands, one per line, and
 * answers each with one line of JSON: {"error": ...} if it failed.
 *
 *     check COUNT DATA                   mean and mean square of the first evaluation images
 *     run BATCH THREADS SECONDS DATA     reads augmented training images, for at least that long
 *
 * THREADS read ahead for the main thread, which reads whatever is not there yet: so THREADS + 1 threads read. Each
 * combination continues where its last run ended, through one shuffled epoch after the other. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/base.h"
#include "carousel/loader.h"
#include "rates.h"

enum { MOST_SESSIONS = 16, NAME_CAPACITY = 1024, SIDE = 32, CLASSES = 10 };

typedef struct session {
    char name[NAME_CAPACITY];
    int batch, threads;
    car_dataset *dataset;
    car_loader *loader;
    int64_t step; /* the next one */
} session;

typedef struct bench {
    car_context *context;
    session sessions[MOST_SESSIONS];
    int count;
} bench;

static car_status open_images(car_context *context, const char *name, car_dataset **out) {
    car_dataset_config config = {.domain = CAR_DOMAIN_IMAGES, .seed = 1, .augment = true};
    config.model = (car_model_config){.batch = 1, .classes = CLASSES, .image_size = SIDE, .channels = 3};
    return car_dataset_open(context, name, &config, out);
}

/* The session with these settings, created if necessary. */
static car_status find_session(bench *b, const char *name, int batch, int threads, session **out) {
    car_status status = CAR_OK;
    for (int i = 0; i < b->count; i++) {
        session *s = &b->sessions[i];
        if (s->batch == batch && s->threads == threads && strcmp(s->name, name) == 0) {
            *out = s;
            return CAR_OK;
        }
    }
    if (b->count == MOST_SESSIONS) {
        return car_context_fail(b->context, CAR_ERROR_ARGUMENT, "more than %d settings", MOST_SESSIONS);
    }
    session *s = &b->sessions[b->count];
    car_loader_config config = car_loader_config_default();
    *s = (session){.batch = batch, .threads = threads};
    snprintf(s->name, sizeof s->name, "%s", name);
    config.batch = batch;
    config.threads = threads;
    config.depth = 2 * threads + 2;
    CAR_TRY(open_images(b->context, name, &s->dataset));
    CAR_TRY(car_loader_create(s->dataset, &config, &s->loader));
    b->count++;
    *out = s;
    s = NULL;
done:
    if (s) {
        car_dataset_close(s->dataset);
    }
    return status;
}

static double processor_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           1e-6 * ((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec);
}

static car_status answer_run(bench *b, const char *name, int batch, int threads, double least_seconds) {
    car_status status = CAR_OK;
    session *s = NULL;
    CAR_TRY(find_session(b, name, batch, threads, &s));
    int64_t first = s->step;
    double begin = car_clock_seconds(), processor = processor_seconds(), seconds = 0;
    while (seconds < least_seconds || s->step == first) {
        const void *inputs = NULL;
        const int32_t *labels = NULL;
        CAR_TRY(car_loader_take(s->loader, s->step, 0, &inputs, &labels));
        car_loader_give_back(s->loader, s->step, 0);
        s->step++;
        seconds = car_clock_seconds() - begin;
    }
    double samples = (double)(s->step - first) * batch;
    printf("{\"seconds\": %.6g, \"samples\": %.0f, \"samples_per_s\": %.6g, \"processor_s\": %.6g}\n", seconds, samples,
           samples / seconds, processor_seconds() - processor);
done:
    return status;
}

static car_status answer_check(bench *b, const char *name, int count) {
    static float image[3 * SIDE * SIDE];
    car_status status = CAR_OK;
    car_dataset *dataset = NULL;
    car_reader *reader = NULL;
    double sum = 0, squares = 0, labels = 0;
    CAR_TRY(open_images(b->context, name, &dataset));
    CAR_TRY(car_reader_create(dataset, &reader));
    for (int i = 0; i < count; i++) {
        int32_t label = 0;
        CAR_TRY(car_reader_sample(reader, CAR_SPLIT_EVALUATION, 0, i, image, &label));
        labels += label;
        for (int p = 0; p < 3 * SIDE * SIDE; p++) {
            sum += image[p];
            squares += (double)image[p] * image[p];
        }
    }
    car_dataset_info info = car_dataset_get_info(dataset);
    double values = (double)count * 3 * SIDE * SIDE;
    printf("{\"samples\": %lld, \"labels\": %.0f, \"mean\": %.9g, \"square\": %.9g}\n",
           (long long)info.samples[CAR_SPLIT_TRAIN], labels, sum / values, squares / values);
done:
    car_reader_destroy(reader);
    car_dataset_close(dataset);
    return status;
}

static void answer(bench *b, const char *line) {
    int batch = 0, threads = 0, count = 0, at = 0;
    double seconds = 0;
    car_status status = CAR_OK;
    if (sscanf(line, "run %d %d %lf %n", &batch, &threads, &seconds, &at) == 3 && at > 0) {
        status = answer_run(b, line + at, batch, threads, seconds);
    } else if (sscanf(line, "check %d %n", &count, &at) == 1 && at > 0) {
        status = answer_check(b, line + at, count);
    } else {
        print_error("not a command; see the head of data.c");
    }
    if (status != CAR_OK) {
        print_error(car_context_error(b->context)[0] ? car_context_error(b->context) : car_status_text(status));
        car_context_clear_error(b->context);
    }
    fflush(stdout);
}

int main(void) {
    static bench b;
    static char line[NAME_CAPACITY];
    if (car_context_create(NULL, &b.context) != CAR_OK) {
        fprintf(stderr, "data: no context\n");
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        answer(&b, line);
    }
    for (int i = 0; i < b.count; i++) {
        car_loader_destroy(b.sessions[i].loader);
        car_dataset_close(b.sessions[i].dataset);
    }
    car_context_destroy(b.context);
    return 0;
}
