/* A directory for a dataset's files, and the dataset: see data_rig.h. */
#include "support/data_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/allocator.h"
#include "support/expect.h"

int car_data_rig_set_up(void **state, const char *kind) {
    car_data_rig *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    car_scratch_open(&rig->scratch);
    rig->context = rig->scratch.context;
    snprintf(rig->name, sizeof rig->name, "%s:%s", kind, rig->scratch.directory);
    *state = rig;
    return 0;
}

int car_data_rig_tear_down(void **state) {
    car_data_rig *rig = *state;
    car_data_rig_close(rig);
    car_scratch_close(&rig->scratch);
    free(rig);
    return 0;
}

void car_data_rig_open(car_data_rig *rig, const char *name, const car_dataset_config *config) {
    car_expect_ok(rig->context, car_dataset_open(rig->context, name, config, &rig->dataset));
    assert_int_equal(car_reader_create(rig->dataset, &rig->reader), CAR_OK);
}

void car_data_rig_close(car_data_rig *rig) {
    car_reader_destroy(rig->reader);
    car_dataset_close(rig->dataset);
    rig->reader = NULL;
    rig->dataset = NULL;
}

void car_data_rig_refuse(const car_data_rig *rig, const char *name, const car_dataset_config *config, car_status status,
                         const char *part) {
    car_dataset *dataset = (car_dataset *)rig->context; /* any pointer, which must be overwritten */
    car_status found = car_dataset_open(rig->context, name, config, &dataset);
    assert_null(dataset);
    car_expect_failure(rig->context, found, status, part);
}

void car_data_rig_exhaust(const car_data_rig *rig, const car_dataset_config *config, float *sample) {
    int32_t label;
    bool done = false;
    for (long fail_at = 1; !done; fail_at++) {
        car_checking checking = {0};
        car_context_config hooks = {.allocator = car_checking_hooks(&checking)};
        car_context *context = NULL;
        car_dataset *dataset = NULL;
        car_reader *reader = NULL;
        assert_int_equal(car_context_create(&hooks, &context), CAR_OK);
        checking.fail_at = checking.calls + fail_at;
        car_status status = car_dataset_open(context, rig->name, config, &dataset);
        if (status == CAR_OK) {
            status = car_reader_create(dataset, &reader);
        }
        if (status == CAR_OK) {
            status = car_reader_sample(reader, CAR_SPLIT_TRAIN, 0, 1, sample, &label);
        }
        done = checking.failures == 0;
        assert_int_equal(status, done ? CAR_OK : CAR_ERROR_MEMORY);
        car_reader_destroy(reader);
        car_dataset_close(dataset);
        car_context_destroy(context);
        assert_int_equal(checking.live_blocks, 0);
        assert_int_equal(checking.wrong_sizes, 0);
    }
}
