/* Reads every image of a dataset: sizes, mean and deviation. */
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "carousel/convention.h"
#include "data.h"

enum { MOST_THREADS = 8, CHANNELS = 3, TAKE = 16, PROGRESS_EVERY = 64 };

/* Integers, so that the result does not depend on which thread read which image. */
typedef struct sums {
    uint64_t pixels, values[CHANNELS], squares[CHANNELS];
    int least_width, least_height, most_width, most_height;
} sums;

typedef struct scan {
    car_dataset *dataset;
    int64_t train, samples;
    bool show;
    pthread_mutex_t lock; /* guards the fields below */
    int64_t next;
    sums total;
    car_status status;
} scan;

void car_cli_show_progress(const char *what, int64_t done, int64_t all) {
    if (isatty(STDERR_FILENO) == 1) {
        fprintf(stderr, "\r\033[K%s %lld of %lld", what, (long long)done, (long long)all);
        fputs(done == all ? "\r\033[K" : "", stderr);
    }
}

/* ---- one image, one thread ------------------------------------------------------------------- */

static void add_size(sums *s, int width, int height) {
    if (s->most_width == 0) {
        s->least_width = width;
        s->least_height = height;
    }
    s->least_width = width < s->least_width ? width : s->least_width;
    s->least_height = height < s->least_height ? height : s->least_height;
    s->most_width = width > s->most_width ? width : s->most_width;
    s->most_height = height > s->most_height ? height : s->most_height;
}

static void add_pixels(sums *s, const car_image *image) {
    uint64_t pixels = (uint64_t)image->width * (uint64_t)image->height;
    uint64_t values[CHANNELS] = {0}, squares[CHANNELS] = {0};
    for (uint64_t i = 0; i < pixels; i++) {
        for (int c = 0; c < CHANNELS; c++) {
            uint32_t value = image->pixels[CHANNELS * i + (uint64_t)c];
            values[c] += value;
            squares[c] += (uint64_t)value * value;
        }
    }
    for (int c = 0; c < CHANNELS; c++) {
        s->values[c] += values[c];
        s->squares[c] += squares[c];
    }
    s->pixels += pixels;
}

/* Takes the next few samples; false if there are none. */
static bool take(scan *s, int64_t *first, int64_t *end) {
    pthread_mutex_lock(&s->lock);
    bool more = s->status == CAR_OK && s->next < s->samples;
    *first = s->next;
    *end = s->next + TAKE < s->samples ? s->next + TAKE : s->samples;
    s->next = more ? *end : s->next;
    if (more && s->show && *first % (TAKE * PROGRESS_EVERY) == 0) {
        car_cli_show_progress("reading images:", *first, s->samples);
    }
    pthread_mutex_unlock(&s->lock);
    return more;
}

static void *look(void *user) {
    scan *s = user;
    car_reader *reader = NULL;
    sums own = {0};
    int64_t first = 0, end = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_reader_create(s->dataset, &reader));
    while (take(s, &first, &end)) {
        for (int64_t n = first; n < end; n++) {
            bool train = n < s->train;
            car_image image;
            CAR_TRY(car_reader_image(reader, train ? CAR_SPLIT_TRAIN : CAR_SPLIT_EVALUATION, train ? n : n - s->train,
                                     &image));
            if (image.pixels) {
                add_size(&own, image.width, image.height);
            }
            if (image.pixels && train) {
                add_pixels(&own, &image);
            }
        }
    }
done:
    car_reader_destroy(reader);
    pthread_mutex_lock(&s->lock);
    s->status = s->status == CAR_OK ? status : s->status;
    s->total.pixels += own.pixels;
    for (int c = 0; c < CHANNELS; c++) {
        s->total.values[c] += own.values[c];
        s->total.squares[c] += own.squares[c];
    }
    if (own.most_width > 0) {
        add_size(&s->total, own.least_width, own.least_height);
        add_size(&s->total, own.most_width, own.most_height);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void finish(const sums *s, car_cli_scan *out) {
    double pixels = s->pixels > 0 ? (double)s->pixels : 1;
    for (int c = 0; c < CHANNELS; c++) {
        double mean = (double)s->values[c] / pixels, square = (double)s->squares[c] / pixels;
        out->mean[c] = mean / 255;
        out->deviation[c] = sqrt(fmax(square - mean * mean, 0)) / 255;
    }
    out->least_width = s->least_width;
    out->least_height = s->least_height;
    out->most_width = s->most_width;
    out->most_height = s->most_height;
}

car_status car_cli_scan_images(car_context *context, car_dataset *dataset, car_cli_scan *out) {
    car_dataset_info info = car_dataset_get_info(dataset);
    scan s = {.dataset = dataset,
              .train = info.samples[CAR_SPLIT_TRAIN],
              .samples = info.samples[CAR_SPLIT_TRAIN] + info.samples[CAR_SPLIT_EVALUATION],
              .show = isatty(STDERR_FILENO) == 1};
    pthread_t ids[MOST_THREADS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int wanted = cores < 1 ? 1 : cores > MOST_THREADS ? MOST_THREADS : (int)cores, started = 0;
    pthread_mutex_init(&s.lock, NULL);
    while (started < wanted && pthread_create(&ids[started], NULL, look, &s) == 0) {
        started++;
    }
    if (started == 0) {
        s.status = car_context_fail(context, CAR_ERROR_MEMORY, "could not start a thread");
    }
    while (started > 0) {
        pthread_join(ids[--started], NULL);
    }
    pthread_mutex_destroy(&s.lock);
    if (s.show) {
        car_cli_show_progress("reading images:", s.samples, s.samples);
    }
    finish(&s.total, out);
    return s.status;
}
