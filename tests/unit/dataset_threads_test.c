/* Several threads with a reader each get what one gets alone, bit for bit, and count each broken file once. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/data.h"
#include "support/jpegs.h"

enum { THREADS = 4, FILES = 40, EPOCHS = 3, SIZE = 72, ELEMENTS = 3 * SIZE * SIZE };

typedef struct shared {
    car_dataset *dataset;
    float (*expected)[FILES][ELEMENTS];
    int32_t labels[EPOCHS][FILES];
} shared;

typedef struct job {
    shared *all;
    pthread_t thread;
    int first, failures, differences;
} job;

/* Every thread goes through all samples, beginning elsewhere. */
static void *read_all(void *user) {
    job *j = user;
    float *sample = malloc(ELEMENTS * sizeof *sample);
    car_reader *reader = NULL;
    if (!sample || car_reader_create(j->all->dataset, &reader) != CAR_OK) {
        j->failures++;
    }
    for (int i = 0; i < EPOCHS * FILES && j->failures == 0; i++) {
        int at = (i + j->first) % (EPOCHS * FILES), epoch = at / FILES, file = at % FILES;
        int32_t label;
        j->failures += car_reader_sample(reader, CAR_SPLIT_TRAIN, epoch, file, sample, &label) != CAR_OK;
        j->differences += label != j->all->labels[epoch][file] ||
                          memcmp(sample, j->all->expected[epoch][file], ELEMENTS * sizeof *sample) != 0;
    }
    car_reader_destroy(reader);
    free(sample);
    return NULL;
}

static void write_files(const car_scratch *folder) {
    for (int i = 0; i < FILES; i++) {
        char name[64];
        car_jpegs_config config = {.width = 60 + 3 * i, .height = 150 - 2 * i, .slope = 1};
        config.tint[0] = (uint8_t)(3 * i);
        config.progressive = i % 5 == 0;
        config.colours = i % 7 == 0 ? CAR_JPEGS_GREY : CAR_JPEGS_RGB;
        car_jpegs_file file = car_jpegs_encode(&config);
        snprintf(name, sizeof name, "train/%c/%02d.jpg", 'a' + i / 10, i);
        if (i % 8 == 3) {
            file.bytes = 20; /* 3, 11, 19, 27, 35 */
        } else if (i % 8 == 4) {
            file.bytes = file.bytes * 9 / 10; /* 4, 12, 20 (progressive), 28, 36 */
        }
        car_scratch_put(folder, name, file.data, file.bytes);
        free(file.data);
    }
    car_jpegs_write(folder, "val/a/1.jpg", &(car_jpegs_config){.width = 9, .height = 9});
}

static void threads_read_the_same(void **state) {
    car_dataset_config config = {.model = {.classes = 4, .image_size = SIZE, .channels = 3}, .augment = true};
    const car_scratch *folder = *state;
    car_context *context = folder->context;
    char name[300];
    shared all = {.expected = calloc(EPOCHS, sizeof *all.expected)};
    car_reader *reader = NULL;
    assert_non_null(all.expected);
    write_files(folder);
    snprintf(name, sizeof name, "imagefolder:%s", folder->directory);
    car_dataset_problems alone, together;
    assert_int_equal(car_dataset_open(context, name, &config, &all.dataset), CAR_OK);
    assert_int_equal(car_reader_create(all.dataset, &reader), CAR_OK);
    for (int i = 0; i < EPOCHS * FILES; i++) {
        int epoch = i / FILES, file = i % FILES;
        assert_int_equal(car_reader_sample(reader, CAR_SPLIT_TRAIN, epoch, file, all.expected[epoch][file],
                                           &all.labels[epoch][file]),
                         CAR_OK);
    }
    car_dataset_get_problems(all.dataset, &alone);
    assert_int_equal(alone.unreadable, 5);
    assert_int_equal(alone.damaged, 5);
    car_reader_destroy(reader);
    car_dataset_close(all.dataset);

    assert_int_equal(car_dataset_open(context, name, &config, &all.dataset), CAR_OK);
    job jobs[THREADS];
    for (int t = 0; t < THREADS; t++) {
        jobs[t] = (job){.all = &all, .first = 7 * t};
        assert_int_equal(pthread_create(&jobs[t].thread, NULL, read_all, &jobs[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(jobs[t].thread, NULL);
        assert_int_equal(jobs[t].failures, 0);
        assert_int_equal(jobs[t].differences, 0);
    }
    car_dataset_get_problems(all.dataset, &together);
    assert_int_equal(together.unreadable, alone.unreadable);
    assert_int_equal(together.damaged, alone.damaged);
    assert_int_equal(together.name_count, 8);
    car_dataset_close(all.dataset);
    free(all.expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(threads_read_the_same, car_scratch_set_up, car_scratch_tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
