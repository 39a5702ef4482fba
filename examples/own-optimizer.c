/* Your own optimizer: Lion, which follows the sign of a mix of momentum and gradient. The runtime keeps its
 * momentum, in memory and in checkpoints, and calls it for every parameter and step.
 *
 *     cc own-optimizer.c $(pkg-config --cflags --libs carousel) -o own-optimizer
 *     ./own-optimizer [DIRECTORY FOR CHECKPOINTS] */
#include <stdio.h>

#include <carousel/carousel.h>

typedef struct settings {
    float beta1, beta2;
} settings;

/* Works on any part of a parameter, so the class is `elementwise`, and threads share large parameters. */
static car_status lion(const car_optimizer_io *io) {
    const settings *s = io->user;
    const float *g = io->gradient, lr = (float)io->lr, decay = (float)io->weight_decay;
    float *w = io->weights, *m = io->states[0];
    for (int64_t i = 0; i < io->count; i++) {
        float mix = s->beta1 * m[i] + (1 - s->beta1) * g[i];
        float sign = (float)((mix > 0) - (mix < 0));
        w[i] -= lr * (sign + decay * w[i]);
        m[i] = s->beta2 * m[i] + (1 - s->beta2) * g[i];
    }
    return CAR_OK;
}

static const settings betas = {0.9f, 0.99f};
static const car_optimizer_class lion_class = {.name = "lion",
                                               .update = lion,
                                               .state_count = 1,
                                               .state_names = {"momentum"}, /* optimizer.momentum.* in checkpoints */
                                               .elementwise = true,
                                               .user = &betas};

/* Trains up to a step, or continues the run in the directory, and evaluates the loss. */
static car_status train(car_context *context, const char *directory, int64_t steps, double *loss, char *digest) {
    car_run *run = NULL;
    car_evaluation result = {0};
    const car_run_options options = {.model = "mlp",
                                     .shape = {.batch = 8, .image_size = 16, .classes = 4, .width = 32},
                                     .optimizer = "lion", /* its registered name */
                                     .schedule = {.lr = 0.001},
                                     .steps = 60,
                                     .directory = directory,
                                     .resume = directory != NULL};
    car_status status = car_run_create(context, &options, &run);
    status = status == CAR_OK ? car_run_train_to(run, steps) : status;
    status = status == CAR_OK ? car_run_evaluate(run, &result) : status;
    status = status == CAR_OK ? car_run_digest(run, digest) : status;
    *loss = result.loss;
    car_run_destroy(run);
    return status;
}

int main(int argc, char **argv) {
    const char *directory = argc > 1 ? argv[1] : NULL;
    char digest[65] = "";
    double before = 0, after = 0;
    car_context *context = NULL;
    car_status status = car_context_create(NULL, &context);
    status = status == CAR_OK ? car_optimizer_register(context, &lion_class) : status;
    status = status == CAR_OK ? train(context, directory, 0, &before, digest) : status;
    status = status == CAR_OK && directory ? train(context, directory, 30, &after, digest) : status;
    status = status == CAR_OK ? train(context, directory, 60, &after, digest) : status;
    if (status != CAR_OK) {
        fprintf(stderr, "own-optimizer: %s: %s\n", car_status_text(status), context ? car_context_error(context) : "");
    } else {
        printf("loss %.4f -> %.4f with lion; weights %.16s\n", before, after, digest);
    }
    car_context_destroy(context);
    return status == CAR_OK && after < before ? 0 : 1;
}
