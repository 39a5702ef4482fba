/* A run of the library: the same weights wherever its ranks are, and after any pause; and its callbacks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "carousel/convention.h"
#include "carousel/run.h"

enum { STEPS = 6, SAMPLES = 64, SIZE = 8, DIGEST = 65 };

typedef struct seen {
    car_run *run;
    int steps, evaluations, stop_after;
    double accuracy;
} seen;

static void on_step(void *user, const car_step_report *report) {
    seen *s = user;
    assert_int_equal(report->step, s->steps++);
    if (s->stop_after == s->steps) {
        car_run_stop(s->run); /* callbacks may call back */
    }
}

static void on_evaluation(void *user, int64_t step, const car_evaluation *evaluation) {
    seen *s = user;
    assert_int_equal(step % 3, 0);
    s->evaluations++;
    s->accuracy = evaluation->top1;
}

static car_run_options small(seen *s) {
    return (car_run_options){.model = "mlp",
                             .shape = {.batch = 4, .image_size = SIZE, .classes = 3, .width = 16},
                             .workers = 2,
                             .threads = 2,
                             .steps = STEPS,
                             .seed = 7,
                             .eval_every = 3,
                             .eval_batches = 2,
                             .on_step = on_step,
                             .on_evaluation = on_evaluation,
                             .user = s};
}

static void must(car_context *context, car_status status) {
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), car_context_error(context));
    }
}

static car_context *open_context(void) {
    car_context *context = NULL;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    return context;
}

/* Trains to the end; the weights' digest, the evaluation and a prediction. */
typedef struct outcome {
    char digest[DIGEST];
    car_evaluation evaluation;
    float logits[4 * 3];
} outcome;

static outcome finish(car_context *context, const car_run_options *options, seen *s) {
    static const float images[4 * 3 * SIZE * SIZE] = {1, 2, 3};
    outcome o;
    car_run *run = NULL;
    must(context, car_run_create(context, options, &run));
    s->run = run;
    must(context, car_run_train(run));
    assert_int_equal(car_run_steps(run), STEPS);
    must(context, car_run_evaluate(run, &o.evaluation));
    must(context, car_run_predict(run, images, o.logits));
    must(context, car_run_digest(run, o.digest));
    assert_true(car_run_peak(run, CAR_MEMORY_WEIGHTS) > 0);
    car_run_destroy(run);
    return o;
}

static void test_placements(void **state) {
    static const char *const placements[] = {"shared", "replica", "zero", "pipeline", "grid"};
    outcome first = {0};
    (void)state;
    for (int p = 0; p < 5; p++) {
        seen s = {0};
        car_run_options options = small(&s);
        car_context *context = open_context();
        options.placement = placements[p];
        outcome o = finish(context, &options, &s);
        first = p == 0 ? o : first;
        assert_string_equal(o.digest, first.digest);
        assert_true(o.evaluation.loss == first.evaluation.loss && o.evaluation.rows == 8);
        assert_memory_equal(o.logits, first.logits, sizeof o.logits);
        assert_int_equal(s.steps, STEPS);
        assert_int_equal(s.evaluations, 2);
        car_context_destroy(context);
    }
}

/* The best weights of the evaluations on the way are kept, and a run without better ones ends; over ranks as in one process.
 * Recomputation and finer choices of the plan leave the bits alone. */
static void test_best_and_patience(void **state) {
    static const char *const placements[] = {"shared", "zero"};
    char directory[] = "/tmp/carousel-run-XXXXXX", path[64], digest[2][DIGEST];
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/best.safetensors", directory);
    for (size_t p = 0; p < sizeof placements / sizeof placements[0]; p++) {
        seen s = {0};
        car_context *context = open_context();
        car_run_options options = small(&s);
        car_run *run = NULL;
        options.placement = placements[p];
        options.steps = 30;
        options.schedule.lr = 1e-12; /* it does not get better */
        options.patience = 2;
        options.best = path;
        must(context, car_run_create(context, &options, &run));
        s.run = run;
        must(context, car_run_train(run));
        assert_int_equal(car_run_best_step(run) % 3, 0);
        assert_true(car_run_steps(run) < 30);
        assert_int_equal(car_run_steps(run), car_run_best_step(run) + 2 * options.eval_every);
        assert_int_equal(s.evaluations * 3, car_run_steps(run));
        car_run_destroy(run);
        options.best = NULL;
        must(context, car_run_create(context, &options, &run));
        must(context, car_run_load(run, path));
        must(context, car_run_digest(run, digest[p]));
        car_run_destroy(run);
        assert_int_equal(unlink(path), 0);
        options.eval_every = 0;
        assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
        car_context_destroy(context);
    }
    assert_string_equal(digest[0], digest[1]);
    assert_int_equal(rmdir(directory), 0);
}

/* A schedule from outside: that of a rule has the rule's bits, and says all about itself. */
static void test_plan_from_text(void **state) {
    seen s = {0};
    car_context *context = open_context();
    car_run_options options = small(&s);
    car_run *run = NULL;
    char *text = NULL;
    (void)state;
    outcome plain = finish(context, &options, &s);
    must(context, car_run_create(context, &options, &run));
    must(context, car_plan_print(car_run_plan(run), 3, &text));
    car_run_destroy(run);
    s = (seen){0};
    options.plan = text;
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT); /* it says the workers, too */
    car_context_clear_error(context);
    options.workers = 0;
    outcome again = finish(context, &options, &s);
    assert_string_equal(again.digest, plain.digest);
    car_context_release_text(context, text);
    car_context_destroy(context);
}

static void test_finer_choices(void **state) {
    car_plan_config planning = car_plan_config_default();
    seen s = {0};
    car_context *context = open_context();
    car_run_options options = small(&s);
    (void)state;
    outcome plain = finish(context, &options, &s);
    s = (seen){0};
    planning.piece_bytes = 64;
    options.planning = &planning;
    options.placement = "replica";
    options.recompute = (car_recompute_config){.how = CAR_RECOMPUTE_SHARE, .share = 0.9};
    outcome finer = finish(context, &options, &s);
    assert_string_equal(finer.digest, plain.digest);
    car_run *run = NULL;
    options.recompute = (car_recompute_config){0};
    options.memory_limit = 10;
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_MEMORY);
    assert_non_null(strstr(car_context_error(context), "the run needs at least"));
    car_context_clear_error(context);
    options.placement = "shared";
    options.memory_limit = 0;
    options.planning = NULL;
    options.shape.width = 1 << 15;
    options.shape.depth = 1000; /* 4 TB */
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_MEMORY);
    assert_non_null(strstr(car_context_error(context), "options.force runs it anyway"));
    car_context_destroy(context);
}

/* Stopped by a callback in the middle, and gone on elsewhere from the checkpoint: as if nothing had been. */
static void test_resume(void **state) {
    char directory[] = "/tmp/carousel-run-XXXXXX", command[64];
    seen whole = {0}, half = {.stop_after = 2}, rest = {0};
    car_context *context = open_context();
    car_run_options options = small(&whole);
    car_run *run = NULL;
    (void)state;
    assert_non_null(mkdtemp(directory));
    options.optimizer = "adamw";
    outcome expected = finish(context, &options, &whole);
    options.directory = directory;
    options.checkpoint_every = 1;
    options.user = &half;
    must(context, car_run_create(context, &options, &run));
    half.run = run;
    must(context, car_run_train(run));
    int64_t made = car_run_steps(run);
    assert_true(made >= 2 && made < STEPS);
    car_run_destroy(run);
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_IO); /* it holds a run */
    assert_non_null(strstr(car_context_error(context), "continue it with options.resume"));
    car_context_clear_error(context);
    options.resume = true;
    options.optimizer = "sgd";
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
    assert_non_null(strstr(car_context_error(context), "has the state of optimizer adamw, but this run uses sgd"));
    car_context_clear_error(context);
    options.optimizer = "adamw";
    options.placement = "zero";
    rest.steps = (int)made;
    options.user = &rest;
    outcome o = finish(context, &options, &rest);
    assert_string_equal(o.digest, expected.digest);
    assert_int_equal(rest.steps, STEPS);
    car_context_destroy(context);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

/* Weights as a file, and from it. */
static void test_files(void **state) {
    char path[] = "/tmp/carousel-run-XXXXXX", saved[DIGEST], loaded[DIGEST];
    seen s = {0};
    car_context *context = open_context();
    car_run_options options = small(&s);
    car_run *run = NULL;
    (void)state;
    close(mkstemp(path));
    options.placement = "replica";
    must(context, car_run_create(context, &options, &run));
    s.run = run;
    must(context, car_run_train(run));
    must(context, car_run_save(run, path));
    must(context, car_run_digest(run, saved));
    assert_int_equal(car_run_load(run, path), CAR_ERROR_ARGUMENT); /* it has begun */
    car_context_clear_error(context);
    car_run_destroy(run);
    options.seed = 8;
    must(context, car_run_create(context, &options, &run));
    must(context, car_run_load(run, path));
    must(context, car_run_digest(run, loaded));
    assert_string_equal(saved, loaded);
    car_run_destroy(run);
    unlink(path);
    car_context_destroy(context);
}

/* A call that fails leaves the run as it was: it trains as if nothing had been. */
static void test_failed_calls(void **state) {
    static const char *const placements[] = {"shared", "replica"};
    (void)state;
    for (int p = 0; p < 2; p++) {
        char expected[DIGEST], digest[DIGEST];
        seen s = {0}, again = {0};
        car_context *context = open_context();
        car_run_options options = small(&s);
        car_run *run = NULL;
        options.placement = placements[p];
        memcpy(expected, finish(context, &options, &s).digest, DIGEST);
        options.user = &again;
        must(context, car_run_create(context, &options, &run));
        assert_int_equal(car_run_load(run, "/nowhere/weights.safetensors"), CAR_ERROR_IO);
        assert_non_null(strstr(car_context_error(context), "/nowhere/weights.safetensors"));
        car_context_clear_error(context);
        assert_int_equal(car_run_save(run, "/nowhere/weights.safetensors"), CAR_ERROR_IO);
        car_context_clear_error(context);
        assert_int_equal(car_run_save(run, NULL), CAR_ERROR_ARGUMENT);
        assert_int_equal(car_run_load(run, NULL), CAR_ERROR_ARGUMENT);
        car_context_clear_error(context);
        must(context, car_run_train(run));
        must(context, car_run_digest(run, digest));
        assert_string_equal(digest, expected);
        car_run_destroy(run);
        car_context_destroy(context);
    }
    assert_string_equal(car_context_error(NULL), "");
}

/* A checkpoint of the same step as the last one, with other weights, is written. */
static void test_checkpoint_after_load(void **state) {
    char directory[] = "/tmp/carousel-run-XXXXXX", path[64], command[64], drawn[DIGEST], found[DIGEST];
    seen s = {0};
    car_context *context = open_context();
    car_run_options options = small(&s);
    car_run *run = NULL;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/weights.safetensors", directory);
    must(context, car_run_create(context, &options, &run));
    must(context, car_run_save(run, path));
    must(context, car_run_digest(run, drawn));
    car_run_destroy(run);
    options.seed = 8;
    options.directory = directory;
    must(context, car_run_create(context, &options, &run));
    must(context, car_run_checkpoint(run));
    must(context, car_run_load(run, path));
    must(context, car_run_checkpoint(run));
    car_run_destroy(run);
    options.resume = true;
    must(context, car_run_create(context, &options, &run));
    must(context, car_run_digest(run, found));
    assert_string_equal(found, drawn);
    car_run_destroy(run);
    car_context_destroy(context);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

/* ---- data of one's own ----------------------------------------------------------------------- */

typedef struct source {
    int64_t broken; /* a sample that cannot be read */
} source;

static car_status read_sample(const car_sample_io *io) {
    const source *s = io->user;
    float *image = io->input;
    if (io->split == CAR_SPLIT_TRAIN && io->sample == s->broken) {
        return car_callback_fail(io->context, "sample %lld fell off the shelf", (long long)io->sample);
    }
    for (int i = 0; i < 3 * SIZE * SIZE; i++) {
        image[i] = (float)((io->sample + i) % 3) - 1;
    }
    io->labels[0] = (int32_t)(io->sample % 3);
    return CAR_OK;
}

static void test_own_data(void **state) {
    source from = {.broken = -1};
    car_dataset_class class = {.name = "shelf",
                               .read = read_sample,
                               .user = &from,
                               .samples = {SAMPLES, 10},
                               .input_bytes = 3 * SIZE * SIZE * sizeof(float),
                               .label_count = 1,
                               .classes = 3};
    outcome first = {0};
    (void)state;
    for (int r = 0; r < 2; r++) {
        seen s = {0};
        car_context *context = open_context();
        car_run_options options = small(&s);
        must(context, car_dataset_create(context, &class, &options.dataset));
        options.placement = r ? "pipeline" : "shared";
        options.data_threads = r ? -1 : 2;
        options.eval_batches = 0;
        outcome o = finish(context, &options, &s);
        first = r ? first : o;
        assert_string_equal(o.digest, first.digest);
        assert_int_equal(o.evaluation.rows, 10);
        car_dataset_close(options.dataset);
        car_context_destroy(context);
    }
    from.broken = 5;
    seen s = {0};
    car_context *context = open_context();
    car_run_options options = small(&s);
    car_run *run = NULL;
    must(context, car_dataset_create(context, &class, &options.dataset));
    options.steps = SAMPLES / 8; /* an epoch */
    must(context, car_run_create(context, &options, &run));
    assert_int_equal(car_run_epoch_steps(run), SAMPLES / 8);
    assert_int_equal(car_run_train(run), CAR_ERROR_CALLBACK);
    assert_string_equal(car_context_error(context), "sample 5 fell off the shelf");
    car_run_destroy(run);
    car_dataset_close(options.dataset);
    car_context_clear_error(context);
    class.input_bytes = 12;
    must(context, car_dataset_create(context, &class, &options.dataset));
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_SHAPE);
    assert_non_null(
        strstr(car_context_error(context), "has 3072 bytes for 4 samples, but the data has 12 bytes for each"));
    car_dataset_close(options.dataset);
    car_context_clear_error(context);
    class.read = NULL;
    assert_int_equal(car_dataset_create(context, &class, &options.dataset), CAR_ERROR_ARGUMENT);
    car_context_destroy(context);
}

/* The model takes the number of classes from the data, and refuses more than it has. */
static void test_classes(void **state) {
    source from = {.broken = -1};
    car_dataset_class class = {.name = "shelf",
                               .read = read_sample,
                               .user = &from,
                               .samples = {SAMPLES, 0},
                               .input_bytes = 3 * SIZE * SIZE * sizeof(float),
                               .label_count = 1,
                               .classes = 3};
    seen s = {0};
    car_context *context = open_context();
    car_run_options options = small(&s);
    car_run *run = NULL;
    (void)state;
    must(context, car_dataset_create(context, &class, &options.dataset));
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
    assert_non_null(strstr(car_context_error(context), "data shelf has no samples to evaluate on"));
    car_context_clear_error(context);
    options.eval_every = 0;
    options.shape.classes = 0;
    must(context, car_run_create(context, &options, &run));
    assert_int_equal(car_graph_classes(car_run_graph(run)), 3);
    car_run_destroy(run);
    options.shape.classes = 2;
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_SHAPE);
    assert_non_null(strstr(car_context_error(context), "data shelf has 3 classes, but the model only 2"));
    car_dataset_close(options.dataset);
    car_context_destroy(context);
}

/* ---- an optimizer of one's own ---------------------------------------------------------------- */

static car_status halve(const car_optimizer_io *io) {
    const float *g = io->gradient;
    float *w = io->weights, *kept = io->states[0];
    for (int64_t i = 0; i < io->count; i++) {
        kept[i] = kept[i] / 2 + g[i];
        w[i] -= (float)io->lr * kept[i];
    }
    return CAR_OK;
}

/* Whole or in pieces, in one process and over ranks: to the bit. */
static void test_own_optimizer(void **state) {
    static const char *const placements[] = {"shared", "shared", "zero", "pipeline"};
    outcome first = {0};
    (void)state;
    for (int p = 0; p < 4; p++) {
        const car_optimizer_class own = {
            .name = "halves", .update = halve, .state_count = 1, .state_names = {"kept"}, .elementwise = p % 2};
        seen s = {0};
        car_context *context = open_context();
        car_run_options options = small(&s);
        must(context, car_optimizer_register(context, &own));
        options.optimizer = "halves";
        options.placement = placements[p];
        outcome o = finish(context, &options, &s);
        first = p == 0 ? o : first;
        assert_string_equal(o.digest, first.digest);
        car_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_placements),     cmocka_unit_test(test_best_and_patience),
        cmocka_unit_test(test_plan_from_text), cmocka_unit_test(test_finer_choices),
        cmocka_unit_test(test_resume),         cmocka_unit_test(test_files),
        cmocka_unit_test(test_failed_calls),   cmocka_unit_test(test_checkpoint_after_load),
        cmocka_unit_test(test_own_data),       cmocka_unit_test(test_classes),
        cmocka_unit_test(test_own_optimizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
