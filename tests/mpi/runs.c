/* Several runs of the library in processes that joined MPI once.
 *
 *   mpirun -n 2 runs DIRECTORY      for its checkpoints
 *   mpirun -n 2 runs                one rank fails while it trains, and leaves */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/run.h"

enum { DIGEST = 65 };

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "FAILED: %s\n", what);
        _Exit(1);
    }
}

static void must(const car_context *context, car_status status, const char *what) {
    if (status != CAR_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, car_status_text(status), car_context_error(context));
        require(false, what);
    }
}

static car_run_options small(void) {
    return (car_run_options){.model = "mlp",
                             .shape = {.batch = 4, .image_size = 8, .classes = 3, .width = 16},
                             .placement = "replica",
                             .workers = 2,
                             .threads = 1,
                             .steps = 6};
}

static car_run *open_run(car_context *context, const car_run_options *options) {
    car_run *run = NULL;
    must(context, car_run_create(context, options, &run), "creating a run");
    return run;
}

static void finish(car_context *context, car_run *run, char *digest) {
    must(context, car_run_train(run), "training");
    require(car_run_steps(run) == 6, "all steps are made");
    must(context, car_run_digest(run, digest), "a digest");
    car_run_destroy(run);
}

/* Trained, destroyed and gone on: as if nothing had been. */
static void check_one_after_the_other(car_context *context, const char *directory) {
    char whole[DIGEST], resumed[DIGEST];
    car_run_options options = small();
    finish(context, open_run(context, &options), whole);
    options.directory = directory;
    car_run *run = open_run(context, &options);
    must(context, car_run_train_to(run, 2), "training a part");
    car_run_destroy(run);
    options.resume = true;
    run = open_run(context, &options);
    require(car_run_steps(run) == 2, "it goes on from the checkpoint");
    finish(context, run, resumed);
    require(strcmp(whole, resumed) == 0, "the same weights after a pause");
}

/* Two that live at once, in turns. */
static void check_two(car_context *context) {
    char one[DIGEST], other[DIGEST];
    car_run_options options = small();
    car_run *first = open_run(context, &options), *second = open_run(context, &options);
    for (int step = 1; step < 6; step++) {
        must(context, car_run_train_to(first, step), "the first one's step");
        must(context, car_run_train_to(second, step), "the second one's step");
    }
    finish(context, first, one);
    finish(context, second, other);
    require(strcmp(one, other) == 0, "two runs at once have the weights of one");
}

/* What was refused, by all ranks or by one of them, can be tried again. */
static void check_refused(car_context *context) {
    char digest[DIGEST];
    car_run_options options = small();
    car_run *run = NULL;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    options.workers = 3;
    require(car_run_create(context, &options, &run) == CAR_ERROR_ARGUMENT && !run, "3 workers on 2 ranks are refused");
    car_context_clear_error(context);
    options = small();
    options.optimizer = rank && strcmp(rank, "1") == 0 ? "nothing" : NULL;
    require(car_run_create(context, &options, &run) != CAR_OK && !run, "all refuse what one of them does");
    require(strstr(car_context_error(context), rank ? "nothing" : "") != NULL, "and say why");
    car_context_clear_error(context);
    options = small();
    finish(context, open_run(context, &options), digest);
}

/* Told on one rank, all stop, before a step or after one; a loop around single steps ends on all of them. */
static void check_stop(car_context *context) {
    for (int told = 0; told < 2; told++) {
        for (int before = 0; before < 3; before += 2) {
            car_run_options options = small();
            car_run *run = open_run(context, &options);
            int calls = 0;
            while (!car_run_is_stopped(run) && car_run_steps(run) < car_run_total_steps(run)) {
                if (car_run_rank(run) == told && car_run_steps(run) == before) {
                    car_run_stop(run);
                }
                must(context, car_run_train_to(run, car_run_steps(run) + 1), "a step");
                calls++;
            }
            require(calls == before + 1 && car_run_steps(run) == before, "no step is made after a stop");
            car_run_destroy(run);
        }
    }
}

static car_status read_sample(const car_sample_io *io) {
    const bool *fails = io->user;
    memset(io->input, 0, 3 * 8 * 8 * sizeof(float));
    io->labels[0] = (int32_t)(io->sample % 3);
    return *fails && io->sample >= 32 ? car_callback_fail(io->context, "sample %lld is gone", (long long)io->sample)
                                      : CAR_OK;
}

/* One rank fails: it can destroy its run and exit, and the launcher ends the other, which waits for it. A second run that it
 * has is not gone on with: the other rank will not come to it. */
static int fail_alone(car_context *context) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK");
    bool fails = rank && strcmp(rank, "1") == 0;
    const car_dataset_class class = {.name = "shelf",
                                     .read = read_sample,
                                     .user = &fails,
                                     .samples = {64, 0},
                                     .input_bytes = 3 * 8 * 8 * sizeof(float),
                                     .label_count = 1,
                                     .classes = 3};
    car_run_options options = small();
    car_run *second = open_run(context, &options);
    must(context, car_dataset_create(context, &class, &options.dataset), "a dataset");
    options.sequential = true;
    options.data_threads = -1;
    car_run *run = open_run(context, &options);
    car_status status = car_run_train(run);
    fprintf(stderr, "%d: %s\n", status == CAR_ERROR_CALLBACK, car_context_error(context));
    status = car_run_train(second);
    fprintf(stderr, "second: %d, %s\n", status == CAR_ERROR_IO, car_context_error(context));
    car_run_destroy(second);
    car_run_destroy(run);
    car_dataset_close(options.dataset);
    car_context_destroy(context);
    return 1;
}

int main(int argc, char **argv) {
    car_context *context = NULL;
    require(car_context_create(NULL, &context) == CAR_OK, "a context");
    if (argc < 2) {
        return fail_alone(context);
    }
    check_one_after_the_other(context, argv[1]);
    check_two(context);
    check_refused(context);
    check_stop(context);
    car_context_destroy(context);
    return 0;
}
