/* A run in a run directory: one at a time, what it leaves there, how it goes on, and what it tells of itself. Each in one
 * process and over ranks. */
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

enum { STEPS = 6, SIZE = 8, CLASSES = 3, DIGEST = 65, MOST = 8 };

static const char *const placements[] = {"shared", "replica", "zero"};
enum { PLACEMENTS = 3 };

/* What callbacks have seen. */
typedef struct seen {
    car_run *run;
    int evaluations;
    int64_t steps[MOST];
    double losses[MOST], averages[MOST];
    int64_t confused; /* rows in the matrix of the last one */
    bool saved;       /* it was told that files are written */
} seen;

static void on_evaluation(void *user, int64_t step, const car_evaluation *evaluation) {
    seen *s = user;
    const car_evaluation *average = car_run_average(s->run);
    const int64_t *counts = car_run_confusion(s->run);
    assert_true(s->evaluations < MOST);
    s->steps[s->evaluations] = step;
    s->losses[s->evaluations] = evaluation->loss;
    s->averages[s->evaluations++] = average ? average->loss : 0;
    s->confused = 0;
    for (int c = 0; counts && c < CLASSES * CLASSES; c++) {
        s->confused += counts[c];
    }
}

static void on_activity(void *user, car_run_activity activity) {
    seen *s = user;
    s->saved = s->saved || activity == CAR_RUN_SAVING;
}

typedef struct place {
    char above[64], directory[96], best[128];
} place;

static place make_place(void) {
    place p = {.above = "/tmp/carousel-run-XXXXXX"};
    assert_non_null(mkdtemp(p.above));
    snprintf(p.directory, sizeof p.directory, "%s/run", p.above);
    snprintf(p.best, sizeof p.best, "%s/best.safetensors", p.directory);
    return p;
}

static void remove_place(const place *p) {
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", p->above);
    assert_int_equal(system(command), 0);
}

static bool has_file(const place *p, const char *name) {
    char path[160];
    struct stat entry;
    snprintf(path, sizeof path, "%s/%s", p->directory, name);
    return stat(path, &entry) == 0;
}

static car_run_options small(const char *placement, const place *p, seen *s) {
    return (car_run_options){.model = "mlp",
                             .shape = {.batch = 4, .image_size = SIZE, .classes = CLASSES, .width = 16},
                             .placement = placement,
                             .workers = 2,
                             .threads = 1,
                             .steps = STEPS,
                             .seed = 7,
                             .eval_every = 2,
                             .eval_batches = 2,
                             .eval_at_end = true,
                             .confusion = true,
                             .directory = p->directory,
                             .run_directory = true,
                             .on_evaluation = on_evaluation,
                             .on_activity = on_activity,
                             .user = s,
                             .dashes = true};
}

static car_context *open_context(void) {
    car_context *context = NULL;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    return context;
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

static car_run *open_run(car_context *context, const car_run_options *options, seen *s) {
    car_run *run = NULL;
    must(context, car_run_create(context, options, &run));
    s->run = run;
    return run;
}

/* ---- files ------------------------------------------------------------------------------------- */

/* Weights, their average and the best ones are the same wherever ranks are, and beside training as in pauses. */
static void test_files(void **state) {
    char digests[3][DIGEST] = {"", "", ""};
    seen first = {0};
    (void)state;
    for (int form = 0; form < 2 * PLACEMENTS; form++) {
        static const char *const names[] = {"weights.safetensors", "average.safetensors", "best.safetensors"};
        place p = make_place();
        seen s = {0};
        car_context *context = open_context();
        car_optimizer_config settings = car_optimizer_config_default();
        car_run_options options = small(placements[form % PLACEMENTS], &p, &s);
        settings.average = 0.5;
        options.settings = &settings;
        options.eval_beside = form >= PLACEMENTS;
        options.best = p.best;
        car_run *run = open_run(context, &options, &s);
        must(context, car_run_train(run));
        assert_true(car_run_has_ended(run) && car_run_is_complete(run) && car_run_has_result(run));
        assert_true(s.saved);
        assert_int_equal(s.evaluations, 3);
        assert_int_equal(s.confused, 8); /* two micro-batches of four */
        first = form == 0 ? s : first;
        assert_memory_equal(s.steps, first.steps, sizeof s.steps);
        assert_memory_equal(s.losses, first.losses, sizeof s.losses);
        assert_memory_equal(s.averages, first.averages, sizeof s.averages);
        assert_true(s.averages[2] != s.losses[2]);
        must(context, car_run_train(run)); /* there is nothing left, not even an evaluation */
        assert_int_equal(s.evaluations, 3);
        car_run_destroy(run);
        assert_true(has_file(&p, "checkpoints/step-00000006"));
        assert_false(has_file(&p, "lock"));
        for (int n = 0; n < 3; n++) {
            char path[160], digest[DIGEST];
            place other = make_place();
            car_run_options fresh = small("shared", &other, &s);
            snprintf(path, sizeof path, "%s/%s", p.directory, names[n]);
            run = open_run(context, &fresh, &s);
            must(context, car_run_load(run, path));
            must(context, car_run_digest(run, digest));
            car_run_destroy(run);
            remove_place(&other);
            if (form == 0) {
                memcpy(digests[n], digest, DIGEST);
            }
            assert_string_equal(digest, digests[n]);
        }
        car_context_destroy(context);
        remove_place(&p);
    }
    assert_string_not_equal(digests[0], digests[1]);
}

/* One run at a time; one that was refused leaves nothing. */
static void test_lock(void **state) {
    place p = make_place();
    seen s = {0};
    char who[64];
    car_context *context = open_context();
    car_run_options options = small("shared", &p, &s);
    car_run *run = open_run(context, &options, &s), *second = NULL;
    (void)state;
    assert_int_equal(car_run_create(context, &options, &second), CAR_ERROR_IO);
    snprintf(who, sizeof who, "is in use by another run, process %ld", (long)getpid());
    expect(context, who);
    expect(context, "another --out");
    car_run_destroy(run);
    assert_int_equal(access(p.directory, F_OK), -1); /* nothing was written there */
    options.stages = 3;
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
    assert_int_equal(access(p.directory, F_OK), -1);
    options.stages = 0;
    options.resume = true;
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_IO);
    expect(context, "--resume: there is no checkpoint in");
    car_context_destroy(context);
    remove_place(&p);
}

/* The directory is removed while the run goes on: it ends, and does not write elsewhere. */
static void remove_in_step(void *user, const car_step_report *report) {
    char command[128];
    if (report->step == 1) {
        snprintf(command, sizeof command, "rm -rf %s", ((const place *)user)->directory);
        assert_int_equal(system(command), 0);
    }
}

static void test_removed(void **state) {
    (void)state;
    for (int n = 0; n < 2; n++) {
        place p = make_place();
        car_context *context = open_context();
        car_run_options options = small(placements[n], &p, NULL);
        car_run *run = NULL;
        options.on_evaluation = NULL;
        options.on_activity = NULL;
        options.on_step = remove_in_step;
        options.user = &p;
        must(context, car_run_create(context, &options, &run));
        assert_int_equal(car_run_train(run), CAR_ERROR_IO);
        expect(context, "was removed during the run");
        assert_false(car_run_has_ended(run));
        assert_false(car_run_is_broken(run));
        car_run_destroy(run);
        assert_false(has_file(&p, "weights.safetensors"));
        car_context_destroy(context);
        remove_place(&p);
    }
}

/* ---- going on ---------------------------------------------------------------------------------- */

/* What was configured and evaluated before counts; an evaluation that is owed is made first. */
static void test_goes_on(void **state) {
    (void)state;
    for (int n = 0; n < PLACEMENTS; n++) {
        place p = make_place();
        seen s = {0}, rest = {0};
        car_context *context = open_context();
        car_run_options options = small(placements[n], &p, &s);
        options.eval_beside = true;
        options.configuration = "{\"optimizer\": \"sgd\", \"mine\": 1}";
        options.best = p.best;
        car_run *run = open_run(context, &options, &s);
        must(context, car_run_train_to(run, 2));
        assert_int_equal(car_run_first_step(run), 0);
        assert_null(car_run_then(run));
        must(context, car_run_set_configuration(run, "{\"optimizer\": \"sgd\", \"mine\": 2}"));
        must(context, car_run_train_to(run, 4));
        car_run_destroy(run);
        options.user = &rest;
        options.resume = true;
        run = open_run(context, &options, &rest);
        assert_int_equal(car_run_first_step(run), 4);
        assert_non_null(strstr(car_run_then(run), "\"mine\": 2"));
        assert_true(car_run_goes_on_exactly(run));
        const car_past_evaluation past[] = {{2, s.losses[0]}};
        must(context, car_run_recall(run, past, 1));
        must(context, car_run_train(run));
        assert_int_equal(rest.evaluations, 2); /* of step 4, which is not among those that were made, and at the end */
        assert_int_equal(rest.steps[0], 4);
        assert_true(rest.losses[0] == s.losses[1]);
        assert_int_equal(rest.steps[1], STEPS);
        car_run_destroy(run);
        car_context_destroy(context);
        remove_place(&p);
    }
}

/* A file of the best weights that is not of the best evaluation is not trusted; patience goes on counting. */
static void test_recall(void **state) {
    const car_past_evaluation past[] = {{1, 0.001}, {2, NAN}, {3, 5}};
    place p = make_place();
    seen s = {0};
    car_context *context = open_context();
    car_run_options options = small("shared", &p, &s);
    (void)state;
    options.patience = 4;
    car_run *run = open_run(context, &options, &s);
    must(context, car_run_recall(run, past, 3));
    assert_int_equal(car_run_best_step(run), 1);
    assert_true(car_run_best_value(run) == 0.001);
    assert_int_equal(car_run_worse(run), 2);
    must(context, car_run_train(run));
    assert_true(car_run_lost_patience(run) && car_run_is_complete(run));
    assert_int_equal(car_run_steps(run), 4);
    car_run_destroy(run);
    remove_place(&p);
    p = make_place();
    options = small("shared", &p, &s);
    options.best = p.best;
    run = open_run(context, &options, &s);
    must(context, car_run_recall(run, past, 3));
    assert_int_equal(car_run_best_step(run), CAR_NONE);
    assert_int_equal(car_run_worse(run), 0);
    car_run_destroy(run);
    car_context_destroy(context);
    remove_place(&p);
}

/* The state of another optimizer is left behind, if the caller wants that. */
static void test_other_optimizer(void **state) {
    place p = make_place();
    seen s = {0};
    car_context *context = open_context();
    car_run_options options = small("shared", &p, &s);
    (void)state;
    car_run *run = open_run(context, &options, &s);
    must(context, car_run_train_to(run, 2));
    car_run_destroy(run);
    options.optimizer = "adamw";
    options.resume = true;
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
    options.other_optimizer = true;
    run = open_run(context, &options, &s);
    must(context, car_run_train(run));
    car_run_destroy(run);
    car_context_destroy(context);
    remove_place(&p);
}

/* ---- what it tells ----------------------------------------------------------------------------- */

static void test_accounts(void **state) {
    (void)state;
    for (int n = 0; n < PLACEMENTS; n++) {
        place p = make_place();
        seen s = {0};
        const car_rank_account *accounts = NULL;
        car_recorder *recorder = NULL;
        car_context *context = open_context();
        car_run_options options = small(placements[n], &p, &s);
        options.record = true;
        car_run *run = open_run(context, &options, &s);
        must(context, car_run_record(run, 1, 3));
        must(context, car_run_train(run));
        must(context, car_run_account(run, &accounts));
        assert_int_equal(car_run_ranks(run), n ? 2 : 1);
        for (int r = 0; r < car_run_ranks(run); r++) {
            assert_true(accounts[r].memory[CAR_MEMORY_ACTIVATIONS] > 0 && accounts[r].rss > 0);
            assert_int_equal(accounts[r].traffic.messages > 0, n > 0);
        }
        must(context, car_run_gather_record(run, &recorder));
        assert_non_null(recorder);
        assert_int_equal(car_recorder_lost(recorder), 0);
        assert_true(car_run_planned(run) > 0);
        assert_int_equal(car_run_threads(run), 1);
        assert_int_equal(car_run_shape(run).classes, CLASSES);
        assert_non_null(car_run_engine(run));
        assert_non_null(car_run_feeder(run));
        assert_int_equal(car_transport_size(car_run_transport(run)), n ? 2 : 1);
        car_run_destroy(run);
        car_context_destroy(context);
        remove_place(&p);
    }
}

/* Settings are named as their user knows them. */
static void test_names(void **state) {
    place p = make_place();
    seen s = {0};
    car_context *context = open_context();
    const car_run_options good = small("shared", &p, &s);
    car_run_options options = good;
    car_run *run = NULL;
    (void)state;
    options.eval_every = 0;
    options.patience = 1;
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
    expect(context, "--patience needs evaluations during training: set --eval-every");
    options.dashes = false;
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
    expect(context, "options.patience needs evaluations");
    options = good;
    options.placement = "replica";
    options.most_ranks = 1;
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
    expect(context, "--placement replica with 2 workers needs more than 1 ranks, which is too many for one process");
    options.most_ranks = 0;
    options.mapping = "diagonal";
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_UNKNOWN_NAME);
    expect(context, "diagonal");
    options.mapping = NULL;
    options.refused = "it is Sunday";
    assert_int_equal(car_run_create(context, &options, &run), CAR_ERROR_ARGUMENT);
    assert_string_equal(car_context_error(context), "it is Sunday");
    car_context_destroy(context);
    remove_place(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),    cmocka_unit_test(test_lock),   cmocka_unit_test(test_removed),
        cmocka_unit_test(test_goes_on),  cmocka_unit_test(test_recall), cmocka_unit_test(test_other_optimizer),
        cmocka_unit_test(test_accounts), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
