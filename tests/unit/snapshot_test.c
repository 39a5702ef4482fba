/* Snapshots: which parts there are, what they take, and that values come back to the bit. */
#include "carousel/snapshot.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/snapshot_internal.h"
#include "support/allocator.h"
#include "support/rig.h"
#include "support/sample_snapshots.h"

static bool is_statistic(const car_rig *rig, int param) {
    return car_graph_param(rig->graph, param)->role == CAR_PARAM_STATISTIC;
}

static void test_parts(void **state) {
    (void)state;
    car_rig rig;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_ONEDNN});
    for (int shape = 0; shape < 6; shape++) {
        bool previous = shape % 2;
        int states = shape / 2;
        size_t bytes = 0;
        car_snapshot *snapshot = NULL;
        car_rig_expect_ok(&rig, car_snapshot_create(rig.program, rig.arena, previous, states, &snapshot));
        assert_ptr_equal(car_snapshot_program(snapshot), rig.program);
        for (int p = 0; p < car_graph_param_count(rig.graph); p++) {
            bool wanted[CAR_SNAPSHOT_PARTS] = {true, previous, states > 0 && !is_statistic(&rig, p),
                                               states > 1 && !is_statistic(&rig, p)};
            for (int part = 0; part < CAR_SNAPSHOT_PARTS; part++) {
                assert_int_equal(car_snapshot_has(snapshot, (car_snapshot_part)part, p), wanted[part]);
                assert_int_equal(car_snapshot_data(snapshot, (car_snapshot_part)part, p) != NULL, wanted[part]);
                bytes += wanted[part] ? car_program_param_bytes(rig.program, p) : 0;
            }
        }
        assert_int_equal(car_arena_live(rig.arena, CAR_MEMORY_SNAPSHOT), bytes);
        assert_false(car_snapshot_has(snapshot, CAR_SNAPSHOT_WEIGHTS, -1));
        assert_false(car_snapshot_has(snapshot, CAR_SNAPSHOT_WEIGHTS, car_graph_param_count(rig.graph)));
        assert_false(car_snapshot_has(snapshot, CAR_SNAPSHOT_PARTS, 0));
        car_snapshot_destroy(snapshot);
        assert_int_equal(car_arena_live(rig.arena, CAR_MEMORY_SNAPSHOT), 0);
    }
    car_snapshot_destroy(NULL);
    car_rig_close(&rig);
}

static void test_values(void **state) {
    (void)state;
    const car_net_function nets[] = {car_net_residual, car_net_language, car_net_patches};
    for (int n = 0; n < 6; n++) {
        car_rig rig;
        car_rig_open(&rig, &(car_rig_config){.build = nets[n / 2],
                                             .kernels = n % 2 ? CAR_KERNELS_ONEDNN : CAR_KERNELS_REFERENCE});
        car_snapshot *snapshot = car_sample_snapshot_make(&rig, true, 2, 1);
        assert_true(car_sample_snapshot_is(&rig, snapshot,
                                           1)); /* all were set before any was looked at: none touches another */
        assert_false(car_sample_snapshot_is(&rig, snapshot, 2));
        car_snapshot_destroy(snapshot);
        car_rig_close(&rig);
    }
}

/* What the trainer does: the stored form of weights, copied, is the same weights. */
static void test_stored_form(void **state) {
    (void)state;
    car_rig rig;
    car_snapshot *snapshot = NULL;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_ONEDNN, .seed = 5});
    car_rig_expect_ok(&rig, car_snapshot_create(rig.program, rig.arena, false, 0, &snapshot));
    for (int p = 0; p < car_graph_param_count(rig.graph); p++) {
        size_t bytes = (size_t)car_shape_elements(car_graph_param(rig.graph, p)->shape) * sizeof(float);
        float *wanted = malloc(bytes), *found = malloc(bytes);
        assert_true(wanted && found);
        memcpy(car_snapshot_data(snapshot, CAR_SNAPSHOT_WEIGHTS, p), car_weights_data(rig.weights, p),
               car_program_param_bytes(rig.program, p));
        car_rig_expect_ok(&rig, car_weights_get(rig.weights, p, wanted));
        car_rig_expect_ok(&rig, car_snapshot_get(snapshot, CAR_SNAPSHOT_WEIGHTS, p, found));
        assert_memory_equal(found, wanted, bytes);
        free(wanted);
        free(found);
    }
    car_snapshot_destroy(snapshot);
    car_rig_close(&rig);
}

static void test_numbers(void **state) {
    (void)state;
    car_rig rig;
    car_snapshot *snapshot = NULL;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_language, .kernels = CAR_KERNELS_REFERENCE});
    car_rig_expect_ok(&rig, car_snapshot_create(rig.program, rig.arena, false, 0, &snapshot));
    car_snapshot_numbers numbers = car_snapshot_get_numbers(snapshot);
    assert_int_equal(numbers.step, 0);
    assert_int_equal(numbers.updates, 0);
    assert_true(isnan(numbers.norm));
    numbers = (car_snapshot_numbers){.step = 1LL << 40, .updates = 7, .norm = 0.1};
    car_snapshot_set_numbers(snapshot, &numbers);
    numbers = car_snapshot_get_numbers(snapshot);
    assert_true(numbers.step == 1LL << 40 && numbers.updates == 7 && numbers.norm == 0.1);
    car_snapshot_destroy(snapshot);
    car_rig_close(&rig);
}

static void test_errors(void **state) {
    (void)state;
    car_rig rig;
    car_snapshot *snapshot = NULL;
    float value[1] = {0};
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_REFERENCE});
    car_rig_expect_failure(&rig, car_snapshot_create(rig.program, rig.arena, false, 4, &snapshot), CAR_ERROR_ARGUMENT,
                           "not 4");
    assert_null(snapshot);
    car_rig_expect_failure(&rig, car_snapshot_create(rig.program, rig.arena, false, -1, &snapshot), CAR_ERROR_ARGUMENT,
                           "not -1");
    car_rig_expect_ok(&rig, car_snapshot_create(rig.program, rig.arena, false, 0, &snapshot));
    car_rig_expect_failure(&rig, car_snapshot_get(snapshot, CAR_SNAPSHOT_PREVIOUS, 0, value), CAR_ERROR_ARGUMENT,
                           "no previous weights of parameter 0");
    car_rig_expect_failure(&rig, car_snapshot_set(snapshot, CAR_SNAPSHOT_STATE_1, 0, value), CAR_ERROR_ARGUMENT,
                           "no second state of the optimizer");
    car_rig_expect_failure(&rig, car_snapshot_set(snapshot, CAR_SNAPSHOT_WEIGHTS, -1, value), CAR_ERROR_ARGUMENT,
                           "parameter -1");
    car_snapshot_destroy(snapshot);
    car_rig_close(&rig);
}

/* Whichever allocation fails, of bookkeeping or of the arena, nothing stays behind. */
static void test_memory_runs_out(void **state) {
    (void)state;
    car_checking checking = {0};
    car_allocator hooks = car_checking_hooks(&checking);
    car_rig rig;
    car_snapshot *snapshot = NULL;
    car_rig_open(
        &rig, &(car_rig_config){
                  .build = car_net_residual, .kernels = CAR_KERNELS_REFERENCE, .allocator = &hooks, .limit = 1 << 20});
    car_rig_expect_ok(&rig, car_snapshot_create(rig.program, rig.arena, true, 2, &snapshot));
    size_t needed = car_arena_live(rig.arena, CAR_MEMORY_SNAPSHOT);
    car_snapshot_destroy(snapshot);
    long blocks = checking.live_blocks, before = checking.calls;
    car_rig_expect_ok(&rig, car_snapshot_create(rig.program, rig.arena, true, 2, &snapshot));
    long calls = checking.calls - before;
    car_snapshot_destroy(snapshot);
    for (long c = 1; c <= calls; c++) {
        checking.fail_at = checking.calls + c;
        car_rig_expect_failure(&rig, car_snapshot_create(rig.program, rig.arena, true, 2, &snapshot), CAR_ERROR_MEMORY,
                               "memory");
        assert_null(snapshot);
        assert_int_equal(checking.live_blocks, blocks);
        assert_int_equal(car_arena_live(rig.arena, CAR_MEMORY_SNAPSHOT), 0);
    }
    checking.fail_at = 0;
    void *filler = NULL;
    size_t used = 0;
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        used += car_arena_live(rig.arena, (car_memory)c);
    }
    assert_true(used + needed < 1 << 20);
    car_rig_expect_ok(&rig, car_arena_allocate(rig.arena, CAR_MEMORY_MESSAGES, (1 << 20) - used - needed / 2, &filler));
    car_rig_expect_failure(&rig, car_snapshot_create(rig.program, rig.arena, true, 2, &snapshot), CAR_ERROR_MEMORY,
                           "memory");
    assert_null(snapshot);
    assert_int_equal(car_arena_live(rig.arena, CAR_MEMORY_SNAPSHOT), 0);
    car_arena_release(rig.arena, filler);
    car_rig_close(&rig);
    assert_int_equal(checking.live_blocks, 0);
    assert_int_equal(checking.wrong_sizes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),   cmocka_unit_test(test_values), cmocka_unit_test(test_stored_form),
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_errors), cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
