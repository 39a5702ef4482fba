/* The same training in one process, and over ranks: a pipeline whose ranks are threads of this process or, under
 * mpirun, the processes that it started. The weights are the same, to the bit.
 *
 *     cc over-ranks.c $(pkg-config --cflags --libs carousel) -o over-ranks
 *     ./over-ranks shared
 *     ./over-ranks pipeline
 *     mpirun -n 4 ./over-ranks pipeline */
#include <stdio.h>

#include <carousel/carousel.h>

int main(int argc, char **argv) {
    char digest[65] = "";
    car_context *context = NULL;
    car_run *run = NULL;
    car_evaluation result = {0};
    const car_run_options options = {.model = "mlp",
                                     .shape = {.batch = 8, .image_size = 16, .classes = 4, .width = 64},
                                     .placement = argc > 1 ? argv[1] : "replica",
                                     .optimizer = "adamw",
                                     .schedule = {.lr = 0.003, .kind = CAR_SCHEDULE_COSINE},
                                     .steps = 40};
    car_status status = car_context_create(NULL, &context);
    status = status == CAR_OK ? car_run_create(context, &options, &run) : status;
    status = status == CAR_OK ? car_run_train(run) : status;
    status = status == CAR_OK ? car_run_evaluate(run, &result) : status;
    status = status == CAR_OK ? car_run_digest(run, digest) : status;
    if (status != CAR_OK) {
        fprintf(stderr, "over-ranks: %s: %s\n", car_status_text(status), context ? car_context_error(context) : "");
        /* No car_run_destroy: over MPI it waits for ranks that may be waiting for this one. mpirun ends them. */
        return 1;
    }
    if (car_run_rank(run) == 0) {
        printf("%d ranks: loss %.4f, weights %.16s\n", car_run_ranks(run), result.loss, digest);
    }
    car_run_destroy(run);
    car_context_destroy(context);
    return 0;
}
