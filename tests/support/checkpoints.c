/* A rig, a snapshot of its state, and a directory to save it in: see checkpoints.h. */
#include "support/checkpoints.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

int car_checkpoints_set_up(void **state, car_kernels kernels, int states, const char *directory) {
    car_checkpoints *c = calloc(1, sizeof *c);
    assert_non_null(c);
    car_allocator hooks = car_checking_hooks(&c->checking);
    car_rig_open(&c->rig, &(car_rig_config){.build = car_net_residual, .kernels = kernels, .allocator = &hooks});
    car_scratch_open(&c->scratch);
    c->directory = car_scratch_in(&c->scratch, "%s", directory);
    c->snapshot = car_sample_snapshot_make(&c->rig, true, states, 0);
    *state = c;
    return 0;
}

int car_checkpoints_tear_down(void **state) {
    car_checkpoints *c = *state;
    car_snapshot_destroy(c->snapshot);
    car_scratch_close(&c->scratch);
    car_rig_close(&c->rig);
    assert_int_equal(c->checking.live_blocks, 0);
    assert_int_equal(c->checking.wrong_sizes, 0);
    free(c);
    return 0;
}

car_status car_checkpoints_try(const car_checkpoints *c, int64_t step, int keep, const char *run) {
    const car_checkpoint_config config = {.directory = c->directory.text, .keep = keep};
    car_snapshot_set_numbers(c->snapshot, &(car_snapshot_numbers){.step = step, .updates = step, .norm = NAN});
    return car_checkpoint_write(c->rig.context, &config, c->snapshot, run);
}

void car_checkpoints_write(const car_checkpoints *c, int64_t step, int keep, const char *run) {
    car_sample_snapshot_fill(&c->rig, c->snapshot, (uint64_t)step);
    car_rig_expect_ok(&c->rig, car_checkpoints_try(c, step, keep, run));
}

void car_checkpoints_expect(const car_checkpoints *c, int64_t step, uint64_t key) {
    car_checkpoint *checkpoint = NULL;
    bool exact = false;
    car_rig_expect_ok(&c->rig, car_checkpoint_open(c->rig.context, c->directory.text, step, &checkpoint));
    assert_int_equal(car_checkpoint_step(checkpoint), step);
    car_rig_expect_ok(&c->rig, car_checkpoint_read(checkpoint, c->snapshot, &exact));
    assert_true(exact);
    assert_true(car_sample_snapshot_is(&c->rig, c->snapshot, key));
    car_checkpoint_close(checkpoint);
}

int64_t car_checkpoints_newest(const car_checkpoints *c) {
    int64_t step = 0;
    car_rig_expect_ok(&c->rig, car_checkpoint_newest(c->rig.context, c->directory.text, &step));
    return step;
}
