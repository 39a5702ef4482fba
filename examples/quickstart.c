/* Quickstart: trains a small network with cyclic data parallelism, and checks that the loss went down. Build it with
 * an installed Carousel:
 *
 *     cc quickstart.c $(pkg-config --cflags --libs carousel) -o quickstart */
#include <stdio.h>

#include <carousel/carousel.h>

static void on_step(void *user, const car_step_report *report) {
    double *losses = user;
    losses[report->step > 0] = report->loss; /* keep the first and the last */
}

int main(void) {
    double losses[2];
    car_context *context = NULL;
    car_run *run = NULL;
    car_evaluation result = {0};
    /* Everything else has a default: 4 workers with cdp-v2, SGD, all cores. Use "cifar10:DIR" or "imagefolder:DIR"
     * for real data; synthetic samples need no files. */
    const car_run_options options = {.model = "mlp",
                                     .shape = {.batch = 8, .image_size = 16, .classes = 4, .width = 64},
                                     .data = "synthetic",
                                     .steps = 80,
                                     .on_step = on_step,
                                     .user = losses};
    car_status status = car_context_create(NULL, &context);
    status = status == CAR_OK ? car_run_create(context, &options, &run) : status;
    status = status == CAR_OK ? car_run_train(run) : status;
    status = status == CAR_OK ? car_run_evaluate(run, &result) : status;
    if (status == CAR_OK) {
        printf("loss %.3f -> %.3f, then %.1f %% right of %lld samples; %.1f kB of activations at most\n", losses[0],
               losses[1], 100 * result.top1, (long long)result.rows,
               (double)car_run_peak(run, CAR_MEMORY_ACTIVATIONS) / 1e3);
    } else { /* the library never prints: it leaves a message */
        fprintf(stderr, "quickstart: %s: %s\n", car_status_text(status), context ? car_context_error(context) : "");
    }
    car_run_destroy(run);
    car_context_destroy(context);
    return status == CAR_OK && losses[1] < losses[0] ? 0 : 1;
}
