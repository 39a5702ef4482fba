/* What a run of the library does when it is stopped, when a rank of it fails and when it cannot write; the same wherever its ranks
 * are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "carousel/convention.h"
#include "carousel/run.h"

enum { SIZE = 8, BATCH = 4, CLASSES = 3 };

static const char *const placements[] = {"shared", "replica", "zero", "pipeline", "grid"};
enum { PLACEMENTS = 5 };

static car_context *open_context(void) {
    car_context *context = NULL;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    return context;
}

static car_run_options small(const char *placement) {
    return (car_run_options){.model = "mlp",
                             .shape = {.batch = BATCH, .image_size = SIZE, .classes = CLASSES, .width = 16},
                             .placement = placement,
                             .workers = 2,
                             .threads = 1,
                             .steps = 40};
}

static car_run *open_run(car_context *context, const car_run_options *options) {
    car_run *run = NULL;
    if (car_run_create(context, options, &run) != CAR_OK) {
        fail_msg("%s", car_context_error(context));
    }
    return run;
}

static void must(car_context *context, car_status status) {
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), car_context_error(context));
    }
}

static void expect(const car_context *context, const char *text) {
    if (!strstr(car_context_error(context), text)) {
        fail_msg("'%s' does not say '%s'", car_context_error(context), text);
    }
}

/* ---- stopped ----------------------------------------------------------------------------------- */

typedef struct stopper {
    car_run *run;
    int64_t after; /* steps */
} stopper;

static void stop_in_step(void *user, const car_step_report *report) {
    const stopper *s = user;
    if (report->step + 1 >= s->after) {
        car_run_stop(s->run);
    }
}

static void stop_in_evaluation(void *user, int64_t step, const car_evaluation *evaluation) {
    (void)step;
    (void)evaluation;
    car_run_stop(((const stopper *)user)->run);
}

/* For good: no call makes a step after it, and a loop around single steps ends. */
static void test_stop(void **state) {
    (void)state;
    for (int p = 0; p < PLACEMENTS; p++) {
        car_context *context = open_context();
        stopper s = {.after = 3};
        car_run_options options = small(placements[p]);
        car_evaluation evaluation;
        options.on_step = stop_in_step;
        options.user = &s;
        options.eval_batches = 1;
        car_run *run = s.run = open_run(context, &options);
        assert_false(car_run_is_stopped(run));
        int calls = 0;
        while (!car_run_is_stopped(run) && car_run_steps(run) < car_run_total_steps(run)) {
            must(context, car_run_train_to(run, car_run_steps(run) + 1));
            calls++;
        }
        assert_int_equal(calls, 3);
        assert_int_equal(car_run_steps(run), 3);
        must(context, car_run_train(run));
        must(context, car_run_train_to(run, 4));
        assert_int_equal(car_run_steps(run), 3);
        must(context, car_run_evaluate(run, &evaluation));
        car_run_destroy(run);
        car_context_destroy(context);
    }
}

/* Before the first step, and by a callback between two parts of a training. */
static void test_stop_between(void **state) {
    (void)state;
    for (int p = 0; p < PLACEMENTS; p++) {
        car_context *context = open_context();
        stopper s = {0};
        car_run_options options = small(placements[p]);
        car_run *run = open_run(context, &options);
        car_run_stop(run);
        must(context, car_run_train(run));
        assert_int_equal(car_run_steps(run), 0);
        assert_true(car_run_is_stopped(run));
        car_run_destroy(run);
        options.eval_every = 5;
        options.eval_batches = 1;
        options.on_evaluation = stop_in_evaluation;
        options.user = &s;
        run = s.run = open_run(context, &options);
        must(context, car_run_train(run));
        assert_int_equal(car_run_steps(run), 5);
        assert_true(car_run_is_stopped(run));
        car_run_destroy(run);
        car_context_destroy(context);
    }
}

/* ---- failed ------------------------------------------------------------------------------------ */

typedef enum fault { FAULT_CALLBACK, FAULT_LABEL, FAULT_NAN, FAULTS } fault;

typedef struct source {
    fault fault;
} source;

/* From the third step on. */
static car_status read_sample(const car_sample_io *io) {
    const source *s = io->user;
    float *image = io->input;
    bool bad = io->sample >= 2 * BATCH * 2;
    for (int i = 0; i < 3 * SIZE * SIZE; i++) {
        image[i] = bad && s->fault == FAULT_NAN ? (float)NAN : (float)((io->sample + i) % 3) - 1;
    }
    io->labels[0] = bad && s->fault == FAULT_LABEL ? 1000 : (int32_t)(io->sample % CLASSES);
    return bad && s->fault == FAULT_CALLBACK
               ? car_callback_fail(io->context, "sample %lld is gone", (long long)io->sample)
               : CAR_OK;
}

static const struct {
    car_status status;
    const char *says;
} outcomes[FAULTS] = {
    [FAULT_CALLBACK] = {CAR_ERROR_CALLBACK, "is gone"},
    [FAULT_LABEL] = {CAR_ERROR_ARGUMENT, "1000"},
    [FAULT_NAN] = {CAR_ERROR_NOT_FINITE, "finite"},
};

static void check_fault(const char *placement, fault fault) {
    source from = {fault};
    const car_dataset_class class = {.name = "shelf",
                                     .read = read_sample,
                                     .user = &from,
                                     .samples = {640, 16},
                                     .input_bytes = 3 * SIZE * SIZE * sizeof(float),
                                     .label_count = 1,
                                     .classes = CLASSES};
    car_context *context = open_context();
    car_run_options options = small(placement);
    must(context, car_dataset_create(context, &class, &options.dataset));
    options.sequential = true;
    options.data_threads = -1;
    car_run *run = open_run(context, &options);
    assert_int_equal(car_run_train(run), outcomes[fault].status);
    expect(context, outcomes[fault].says);
    for (int again = 0; again < 2; again++) {
        car_context_clear_error(context);
        assert_int_equal(car_run_train(run), outcomes[fault].status);
        expect(context, outcomes[fault].says);
    }
    car_run_destroy(run);
    car_dataset_close(options.dataset);
    car_context_destroy(context);
}

/* What went wrong on one rank is the status of all, and later calls repeat it. */
static void test_faults(void **state) {
    (void)state;
    for (int p = 0; p < PLACEMENTS; p++) {
        for (int f = 0; f < FAULTS; f++) {
            check_fault(placements[p], (fault)f);
        }
    }
}

/* The message is that of the last failure, also if nobody has cleared the one before. */
static void test_messages(void **state) {
    car_context *context = open_context();
    car_run_options options = small("shared");
    car_run *run = NULL;
    (void)state;
    options.rule = "fast";
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_UNKNOWN_NAME);
    expect(context, "fast");
    options.rule = NULL;
    options.placement = "moon";
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_UNKNOWN_NAME);
    expect(context, "moon");
    options.placement = "replica";
    run = open_run(context, &options);
    assert_string_equal(car_context_error(context), "");
    assert_int_equal(car_run_save(run, "/nowhere/one"), CAR_ERROR_IO);
    expect(context, "/nowhere/one");
    assert_int_equal(car_run_load(run, "/nowhere/two"), CAR_ERROR_IO);
    expect(context, "/nowhere/two");
    car_run_destroy(run);
    car_context_destroy(context);
}

/* ---- files that cannot be written -------------------------------------------------------------- */

static void test_paths(void **state) {
    car_context *context = open_context();
    car_run *run = NULL;
    (void)state;
    for (int p = 0; p < 2; p++) {
        car_run_options options = small(placements[p]);
        options.directory = "/proc/nope";
        assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_IO);
        expect(context, "/proc/nope: cannot create this directory");
        options.directory = NULL;
        options.best = "/nonexistent/best";
        options.eval_every = 10;
        assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_IO);
        expect(context, "/nonexistent/best");
    }
    car_context_destroy(context);
}

typedef struct spoiler {
    const char *directory, *moved;
} spoiler;

/* Takes the directory away, and puts a file in its place. */
static void spoil(void *user, int64_t step, const car_evaluation *evaluation) {
    const spoiler *s = user;
    (void)evaluation;
    if (step == 20) {
        assert_int_equal(rename(s->directory, s->moved), 0);
        FILE *file = fopen(s->directory, "w");
        assert_non_null(file);
        fclose(file);
    }
}

/* The training makes all steps, and says at its end what is not there. */
static void test_lost_files(void **state) {
    (void)state;
    for (int p = 0; p < 2; p++) {
        char above[] = "/tmp/carousel-run-XXXXXX", directory[64], moved[64], best[96], command[96];
        assert_non_null(mkdtemp(above));
        snprintf(directory, sizeof directory, "%s/kept", above);
        snprintf(moved, sizeof moved, "%s/moved", above);
        snprintf(best, sizeof best, "%s/best.safetensors", directory);
        assert_int_equal(mkdir(directory, 0777), 0);
        spoiler s = {directory, moved};
        car_context *context = open_context();
        car_run_options options = small(placements[p]);
        car_evaluation evaluation;
        options.eval_every = 10;
        options.eval_batches = 2;
        options.best = best;
        options.on_evaluation = spoil;
        options.user = &s;
        car_run *run = open_run(context, &options);
        assert_int_equal(car_run_train(run), CAR_ERROR_IO);
        expect(context, "could not be written, but training continued");
        assert_int_equal(car_run_steps(run), options.steps);
        assert_int_equal(car_run_best_step(run), 10);
        must(context, car_run_evaluate(run, &evaluation));
        must(context, car_run_train(run)); /* it was told once */
        car_run_destroy(run);
        assert_int_equal(unlink(directory), 0);
        options.best = NULL;
        options.directory = directory;
        options.checkpoint_every = 5;
        run = open_run(context, &options);
        snprintf(command, sizeof command, "rm -rf %s", moved);
        assert_int_equal(system(command), 0);
        assert_int_equal(car_run_train(run), CAR_ERROR_IO);
        expect(context, directory);
        assert_int_equal(car_run_steps(run), options.steps);
        car_run_destroy(run);
        car_context_destroy(context);
        snprintf(command, sizeof command, "rm -r %s", above);
        assert_int_equal(system(command), 0);
    }
}

/* ---- options that make no sense ----------------------------------------------------------------- */

static void refuse(const car_run_options *options, const char *reason) {
    car_context *context = open_context();
    car_run *run = NULL;
    assert_int_equal(car_run_create(context, options, &run), CAR_ERROR_ARGUMENT);
    assert_null(run);
    expect(context, reason);
    car_context_destroy(context);
}

static void test_numbers(void **state) {
    const car_run_options good = small("shared");
    car_run_options o = good;
    (void)state;
    o.workers = -1, refuse(&o, "options.workers is -1");
    o = good, o.keep = -2, refuse(&o, "options.keep is -2");
    o = good, o.epochs = NAN, refuse(&o, "options.epochs is nan");
    o = good, o.memory_limit = NAN, refuse(&o, "options.memory_limit is nan");
    o = good, o.clip_norm = NAN, refuse(&o, "options.clip_norm is nan");
    o = good, o.clip_norm = -1, refuse(&o, "options.clip_norm is -1");
    o = good, o.schedule.lr = NAN, refuse(&o, "options.schedule.lr is nan");
    o = good, o.schedule.lr = -0.1, refuse(&o, "options.schedule.lr is -0.1");
    o = good, o.schedule.lr = INFINITY, refuse(&o, "options.schedule.lr is inf");
    o = good, o.schedule.warmup = -5, refuse(&o, "options.schedule.warmup is -5");
    o = good, o.schedule.kind = (car_schedule_kind)77, refuse(&o, "options.schedule.kind is 77");
    o = good, o.schedule.kind = CAR_SCHEDULE_STEP, refuse(&o, "options.schedule.every is 0");
    o.schedule.every = 10, refuse(&o, "options.schedule.gamma is 0");
    o = good, o.stages = 1000, refuse(&o, "options.stages is 1000, but the graph has only");
}

static void test_steps(void **state) {
    char directory[] = "/tmp/carousel-run-XXXXXX", command[64];
    car_context *context = open_context();
    car_run_options options = small("replica");
    car_run *run = NULL;
    (void)state;
    assert_non_null(mkdtemp(directory));
    options.directory = directory;
    run = open_run(context, &options);
    assert_int_equal(car_run_train_to(run, -1), CAR_ERROR_ARGUMENT);
    expect(context, "-1");
    must(context, car_run_train_to(run, 3));
    car_run_destroy(run);
    options.resume = true;
    options.steps = 2;
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
    expect(context, "has a run of 3 steps, but this run has only 2");
    options.steps = 3; /* nothing left to do */
    run = open_run(context, &options);
    must(context, car_run_train(run));
    car_run_destroy(run);
    car_context_destroy(context);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

/* ---- a graph of one's own ----------------------------------------------------------------------- */

enum { POINTS = 4 };

static car_status feed(void *user, int64_t step, int worker, car_tape *tape) {
    const int *inputs = user; /* labels, points */
    const float points[POINTS][2] = {{1, 0}, {0, 1}, {-1, (float)worker}, {0, (float)(step % 3)}};
    const int32_t labels[POINTS] = {0, 1, 2, 1};
    car_status status = car_tape_feed(tape, inputs[0], labels);
    return status == CAR_OK ? car_tape_feed(tape, inputs[1], points) : status;
}

/* With the labels as the first input. */
static int build(car_graph *graph, int *inputs) {
    const car_linear_config layer = {.out_features = CLASSES, .bias = true};
    inputs[0] = car_graph_input(graph, "labels", (car_shape){1, {POINTS}}, CAR_I32);
    inputs[1] = car_graph_input(graph, "points", (car_shape){2, {POINTS, 2}}, CAR_F32);
    int x = car_graph_linear(graph, "first", inputs[1], &layer);
    x = car_graph_relu(graph, "relu", x);
    x = car_graph_linear(graph, "last", x, &layer);
    return car_graph_cross_entropy(graph, "loss", x, inputs[0], 0);
}

static void test_own_graph(void **state) {
    static const float points[POINTS][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, 0}};
    float logits[POINTS * CLASSES];
    int inputs[2];
    car_context *context = open_context();
    car_graph *graph = NULL;
    car_run *run = NULL;
    (void)state;
    must(context, car_graph_create(context, &graph));
    int loss = build(graph, inputs);
    const car_run_options options = {
        .graph = graph, .feed = feed, .feed_user = inputs, .workers = 2, .threads = 1, .steps = 3};
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
    expect(context, "car_graph_finish");
    must(context, car_graph_finish(graph, loss));
    run = open_run(context, &options);
    must(context, car_run_train(run));
    must(context, car_run_predict(run, points, logits));
    assert_true(isfinite(logits[0]) && logits[0] != 0);
    car_run_destroy(run);
    car_graph_destroy(graph);
    car_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop),     cmocka_unit_test(test_stop_between), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_paths),        cmocka_unit_test(test_lost_files),
        cmocka_unit_test(test_numbers),  cmocka_unit_test(test_steps),        cmocka_unit_test(test_own_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
