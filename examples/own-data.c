/* Your own data, learning-rate schedule and metric: images of horizontal or vertical bars. The loader shuffles the
 * samples and its threads read them ahead.
 *
 *     cc own-data.c $(pkg-config --cflags --libs carousel) -lm -o own-data */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <carousel/carousel.h>

enum { SIZE = 16, CHANNELS = 3, TRAINED = 640, HELD_OUT = 100 };

/* Called by several threads at once. A sample depends on its number alone. */
static car_status read(const car_sample_io *io) {
    float *image = io->input;
    int64_t number = io->sample + (io->split == CAR_SPLIT_EVALUATION ? TRAINED : 0);
    int standing = (int)(number % 2), at = (int)(number / 2 % SIZE);
    if (number >= TRAINED + HELD_OUT) {
        return car_callback_fail(io->context, "there is no bar %lld", (long long)number);
    }
    memset(image, 0, sizeof(float) * CHANNELS * SIZE * SIZE);
    for (int c = 0; c < CHANNELS; c++) {
        for (int i = 0; i < SIZE; i++) {
            image[(c * SIZE + (standing ? i : at)) * SIZE + (standing ? at : i)] = 1 + 0.1f * (float)(number % 7);
        }
    }
    io->labels[0] = standing;
    return CAR_OK;
}

/* A warm-up, then a decay with the inverse square root. */
static double rate(const void *user, int64_t step) {
    const double *peak = user;
    return step < 10 ? *peak * (double)(step + 1) / 10 : *peak * sqrt(10.0 / (double)(step + 1));
}

/* The mean probability of the correct class. */
static car_status certainty(const car_metric_io *io) {
    for (int64_t r = 0; r < io->rows; r++) {
        const float *row = io->logits + r * io->classes;
        double sum = 0;
        for (int64_t c = 0; io->labels[r] >= 0 && c < io->classes; c++) {
            sum += exp((double)row[c] - (double)row[io->labels[r]]);
        }
        *io->sum += io->labels[r] >= 0 ? 1 / sum : 0;
        *io->weight += io->labels[r] >= 0;
    }
    return CAR_OK;
}

static void on_evaluation(void *user, int64_t step, const car_evaluation *evaluation) {
    (void)user;
    printf("after step %3lld: loss %.3f, certainty %.3f\n", (long long)step, evaluation->loss, evaluation->metric);
}

int main(void) {
    static const double peak = 0.2;
    const car_dataset_class bars = {.name = "bars",
                                    .read = read,
                                    .samples = {TRAINED, HELD_OUT},
                                    .input_bytes = sizeof(float) * CHANNELS * SIZE * SIZE,
                                    .label_count = 1,
                                    .classes = 2};
    car_context *context = NULL;
    car_dataset *dataset = NULL;
    car_run *run = NULL;
    car_evaluation result = {0};
    car_status status = car_context_create(NULL, &context);
    status = status == CAR_OK ? car_dataset_create(context, &bars, &dataset) : status;
    const car_run_options options = {.model = "mlp",
                                     .shape = {.batch = 8, .image_size = SIZE, .classes = 2, .width = 32},
                                     .dataset = dataset,
                                     .epochs = 6,
                                     .schedule = {.own = rate, .own_user = &peak},
                                     .eval_every = 40,
                                     .metric = certainty,
                                     .on_evaluation = on_evaluation};
    status = status == CAR_OK ? car_run_create(context, &options, &run) : status;
    status = status == CAR_OK ? car_run_train(run) : status;
    status = status == CAR_OK ? car_run_evaluate(run, &result) : status;
    if (status != CAR_OK) {
        fprintf(stderr, "own-data: %s: %s\n", car_status_text(status), context ? car_context_error(context) : "");
    } else {
        printf("%.1f %% right, certainty %.3f\n", 100 * result.top1, result.metric);
    }
    car_run_destroy(run);
    car_dataset_close(dataset);
    car_context_destroy(context);
    return status == CAR_OK && result.top1 > 0.9 && result.metric > 0.5 ? 0 : 1;
}
