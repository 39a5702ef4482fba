/* A trained model: found in a run, evaluated as its run evaluates it, images classified, bad use refused. */
#include "carousel/trained.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/run.h"
#include "support/jpegs.h"

enum { SIZE = 8, CLASSES = 3, BATCH = 4, BATCHES = 2, FILES = 7, BROKEN = 3 };

static const car_feeder_evaluation how = {.threads = 2, .batches = BATCHES};

/* Trains a small model on synthetic images. Returns its evaluation; its weights are in DIRECTORY/run. */
static car_evaluation train(const car_scratch *scratch, const char *directory) {
    const car_run_options options = {.model = "mlp",
                                     .shape = {.batch = BATCH, .image_size = SIZE, .classes = CLASSES, .width = 16},
                                     .workers = 2,
                                     .threads = 2,
                                     .steps = 4,
                                     .seed = 5,
                                     .eval_batches = BATCHES,
                                     .directory = directory,
                                     .run_directory = true};
    car_run *run = NULL;
    car_evaluation result;
    assert_int_equal(car_run_create(scratch->context, &options, &run), CAR_OK);
    assert_int_equal(car_run_train(run), CAR_OK);
    assert_int_equal(car_run_evaluate(run, &result), CAR_OK);
    car_run_destroy(run);
    return result;
}

static void expect_error(const car_scratch *scratch, car_status status, car_status wanted, const char *text) {
    assert_int_equal(status, wanted);
    assert_non_null(strstr(car_context_error(scratch->context), text));
}

static void run_and_trained_model_agree(void **state) {
    const car_scratch *scratch = *state;
    const car_scratch_path directory = car_scratch_in(scratch, "run");
    const car_evaluation wanted = train(scratch, directory.text);
    const car_trained_options options = {.shape = {.batch = BATCH}, .data = "synthetic", .data_threads = 1, .seed = 5};
    car_trained *trained = NULL;
    car_evaluation found;
    assert_int_equal(car_trained_open(scratch->context, directory.text, &options, &trained), CAR_OK);
    assert_string_equal(car_trained_model(trained)->name, "mlp");
    assert_int_equal(car_trained_shape(trained).width, 16);
    assert_int_equal(car_trained_shape(trained).classes, CLASSES);
    assert_string_equal(car_trained_path(trained), car_scratch_in(scratch, "run/weights.safetensors").text);
    assert_int_equal(car_trained_report(trained)->left_over, 0);
    assert_non_null(car_trained_data(trained));
    assert_int_equal(car_trained_evaluate(trained, &how, &found), CAR_OK);
    assert_memory_equal(&found.loss, &wanted.loss, sizeof found.loss);
    assert_memory_equal(&found.top1, &wanted.top1, sizeof found.top1);
    assert_int_equal(found.rows, BATCH * BATCHES);
    const car_trained_options again = {.shape = {.batch = BATCH}, .dataset = car_trained_data(trained), .seed = 5};
    car_trained *other = NULL;
    assert_int_equal(car_trained_open(scratch->context, directory.text, &again, &other), CAR_OK);
    assert_int_equal(car_trained_evaluate(other, NULL, &found), CAR_OK);
    assert_int_equal(found.rows, BATCH * 8); /* of endless data */
    car_trained_close(other);
    car_trained_close(trained);
}

/* Writes images of different colours. One of them is not an image. */
static void write_images(const car_scratch *scratch, car_scratch_path *paths, const char **names) {
    for (int f = 0; f < FILES; f++) {
        const car_jpegs_config image = {
            .width = 20, .height = 16, .tint = {(uint8_t)(30 * f), 100, (uint8_t)(250 - 30 * f)}, .slope = 1};
        char name[32];
        snprintf(name, sizeof name, "%d.jpg", f);
        car_jpegs_write(scratch, name, &image);
        paths[f] = car_scratch_in(scratch, "%s", name);
        names[f] = paths[f].text;
    }
    car_scratch_write(paths[BROKEN].text, "no image", 8);
}

/* The answers do not depend on threads, on the batch, or on which images are classified together. */
static void images_are_classified(void **state) {
    const car_scratch *scratch = *state;
    const car_scratch_path directory = car_scratch_in(scratch, "run");
    static const int batches[] = {1, 1, BATCH, 16}, threads[] = {1, 3, 2, 1};
    car_class_answer first[FILES][CLASSES], answers[FILES][CLASSES];
    car_classification results[FILES];
    car_scratch_path paths[FILES];
    const char *names[FILES];
    train(scratch, directory.text);
    write_images(scratch, paths, names);
    for (int n = 0; n < 4; n++) {
        const car_trained_options options = {.shape = {.batch = batches[n]}};
        const car_classify_config config = {.threads = threads[n], .top = CLASSES};
        car_trained *trained = NULL;
        assert_int_equal(car_trained_open(scratch->context, directory.text, &options, &trained), CAR_OK);
        for (int f = 0; f < FILES; f++) {
            results[f] = (car_classification){.answers = n == 0 ? first[f] : answers[f]};
        }
        assert_int_equal(car_trained_classify(trained, names, FILES, &config, results), CAR_OK);
        for (int f = 0; f < FILES; f++) {
            assert_int_equal(results[f].file.readable, f != BROKEN);
            for (int k = 0; k < CLASSES && f != BROKEN; k++) {
                assert_int_equal(results[f].answers[k].index, first[f][k].index);
                assert_float_equal(results[f].answers[k].probability, first[f][k].probability, 1e-6);
            }
        }
        car_trained_close(trained);
    }
    assert_float_equal(first[0][0].probability + first[0][1].probability + first[0][2].probability, 1, 1e-9);
    assert_true(first[0][0].probability >= first[0][1].probability);
    assert_non_null(strstr(results[BROKEN].file.problem, "3.jpg"));
}

static void bad_use_is_refused(void **state) {
    const car_scratch *scratch = *state;
    const car_scratch_path directory = car_scratch_in(scratch, "run"), nothing = car_scratch_in(scratch, "nothing");
    const car_trained_options unknown = {.model = "resnet19"}, planned = {.model = "gpt3-175b"},
                              other = {.model = "resnet20"};
    const car_classify_config many = {.top = CLASSES + 1};
    car_trained *trained = NULL;
    car_evaluation result;
    car_context *c = scratch->context;
    train(scratch, directory.text);
    expect_error(scratch, car_trained_open(c, nothing.text, NULL, &trained), CAR_ERROR_IO, "nothing");
    assert_null(trained);
    expect_error(scratch, car_trained_open(c, scratch->directory, NULL, &trained), CAR_ERROR_IO, "checkpoints/step-T");
    expect_error(scratch, car_trained_open(c, NULL, NULL, &trained), CAR_ERROR_ARGUMENT, "place is NULL");
    expect_error(scratch, car_trained_open(c, directory.text, &unknown, &trained), CAR_ERROR_UNKNOWN_NAME, "resnet19");
    expect_error(scratch, car_trained_open(c, directory.text, &planned, &trained), CAR_ERROR_ARGUMENT, "gpt3-175b");
    expect_error(scratch, car_trained_open(c, directory.text, &other, &trained), CAR_ERROR_FORMAT, "weight");
    assert_null(trained);
    assert_int_equal(car_trained_open(c, directory.text, NULL, &trained), CAR_OK);
    expect_error(scratch, car_trained_evaluate(trained, &how, &result), CAR_ERROR_ARGUMENT, "without data");
    expect_error(scratch, car_trained_classify(trained, NULL, 1, &many, NULL), CAR_ERROR_ARGUMENT, "paths is NULL");
    expect_error(scratch, car_trained_classify(trained, NULL, 0, &many, NULL), CAR_ERROR_ARGUMENT, "3 classes");
    const char *const names[] = {"x.jpg"}, *const none[] = {NULL};
    car_classification results[1] = {{.answers = NULL}};
    expect_error(scratch, car_trained_classify(trained, names, 1, NULL, results), CAR_ERROR_ARGUMENT,
                 "answers is NULL");
    expect_error(scratch, car_trained_classify(trained, none, 1, NULL, results), CAR_ERROR_ARGUMENT, "path is NULL");
    assert_int_equal(car_trained_classify(NULL, NULL, 0, &many, NULL), CAR_ERROR_ARGUMENT);
    assert_int_equal(car_trained_evaluate(NULL, NULL, &result), CAR_ERROR_ARGUMENT);
    assert_null(car_trained_path(NULL));
    assert_null(car_trained_model(NULL));
    assert_null(car_trained_report(NULL));
    assert_int_equal(car_trained_shape(NULL).batch, 0);
    car_trained_close(trained);
    car_trained_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(run_and_trained_model_agree, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(images_are_classified, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(bad_use_is_refused, car_scratch_set_up, car_scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
