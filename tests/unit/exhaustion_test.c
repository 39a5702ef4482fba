/* Running out of memory, everywhere: graph, program, weights, tape and a step, with an allocator that fails at its
 * first, second, third ... call, and with an arena whose limit rises from nothing. Each time it is a status and a
 * message, and everything goes back to where it came from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/allocator.h"
#include "support/rig.h"

/* Everything that allocates: building, a step, reading results. */
static car_status do_everything(car_rig *rig, const car_rig_config *config) {
    static float values[1 << 16];
    car_status status = car_rig_try_open(rig, config);
    if (status == CAR_OK) {
        status = car_rig_step(rig, 1);
    }
    for (int p = 0; status == CAR_OK && p < car_graph_param_count(rig->graph); p++) {
        assert_true(car_shape_elements(car_graph_param(rig->graph, p)->shape) <=
                    (int64_t)(sizeof values / sizeof *values));
        status = car_gradients_get(rig->gradients, p, values);
        status = status == CAR_OK ? car_weights_get(rig->weights, p, values) : status;
    }
    return status;
}

/* ---- the context's allocator ----------------------------------------------------------------------------- */

/* Returns whether everything went well, that is, nothing failed. */
static bool survive(car_rig_config config, long fail_at, bool onwards) {
    car_checking checking = {.fail_at = fail_at, .fail_onwards = onwards};
    car_allocator hooks = car_checking_hooks(&checking);
    car_rig rig;
    config.allocator = &hooks;
    car_status status = do_everything(&rig, &config);
    if (checking.failures == 0) {
        car_rig_expect_ok(&rig, status);
    } else if (status != CAR_ERROR_MEMORY) {
        fail_msg("call %ld failed, but the status was \"%s\"", fail_at, car_status_text(status));
    } else if (rig.context && strstr(car_context_error(rig.context), "out of memory") == NULL) {
        fail_msg("call %ld failed, but the message was \"%s\"", fail_at, car_context_error(rig.context));
    }
    car_rig_close(&rig);
    if (checking.live_blocks != 0 || checking.live_bytes != 0 || checking.wrong_sizes != 0) {
        fail_msg("call %ld failed: %ld blocks of %zu bytes were not released, %ld with a wrong size", fail_at,
                 checking.live_blocks, checking.live_bytes, checking.wrong_sizes);
    }
    return checking.failures == 0;
}

static void sweep_calls(car_rig_config config, long stride) {
    long calls = 1;
    while (!survive(config, calls, false)) {
        calls++;
    }
    assert_true(calls > 50);
    for (long fail_at = 1; fail_at < calls; fail_at += stride) {
        assert_false(survive(config, fail_at, true));
    }
}

static void convolutions_survive_a_failing_allocator(void **state) {
    (void)state;
    sweep_calls((car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_ONEDNN}, 7);
    sweep_calls((car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_REFERENCE}, 7);
}

static void transformers_survive_a_failing_allocator(void **state) {
    (void)state;
    sweep_calls((car_rig_config){.build = car_net_language, .kernels = CAR_KERNELS_ONEDNN}, 7);
    sweep_calls((car_rig_config){.build = car_net_patches, .kernels = CAR_KERNELS_ONEDNN}, 7);
}

static void models_survive_a_failing_allocator(void **state) {
    (void)state;
    car_model_config images = {.batch = 1, .image_size = 8, .channels = 1, .width = 4, .depth = 1, .classes = 5};
    car_model_config tokens = {.batch = 1, .seq_len = 4, .vocabulary = 7, .width = 4, .depth = 1, .heads = 2};
    sweep_calls((car_rig_config){.model = "mlp", .model_config = images, .kernels = CAR_KERNELS_REFERENCE}, 5);
    sweep_calls((car_rig_config){.model = "gpt2-nano", .model_config = tokens, .kernels = CAR_KERNELS_ONEDNN}, 5);
}

/* ---- the arena's limit ----------------------------------------------------------------------------------- */

enum { SHARES = 40 };

typedef struct usage {
    size_t opened; /* bytes in use when a rig has been opened */
    size_t peak;   /* not less than what a step takes at once */
} usage;

static usage measure(car_rig_config config) {
    car_rig rig;
    usage found = {0};
    car_rig_open(&rig, &config);
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        found.opened += car_arena_live(rig.arena, (car_memory)c);
    }
    car_rig_expect_ok(&rig, car_rig_step(&rig, 1));
    found.peak = found.opened + car_arena_peak(rig.arena, CAR_MEMORY_ACTIVATIONS);
    car_rig_close(&rig);
    return found;
}

/* Opens and steps under a limit; returns whether it was enough. */
static bool fits(car_rig_config config, size_t limit) {
    car_rig rig;
    config.limit = limit;
    car_status status = car_rig_try_open(&rig, &config);
    bool opened = status == CAR_OK;
    for (int twice = 0; opened && twice < 2; twice++) { /* the second time shows that the first left nothing behind */
        car_context_clear_error(rig.context);
        status = car_rig_step(&rig, 1);
    }
    if (status != CAR_OK) {
        assert_int_equal(status, CAR_ERROR_MEMORY);
        assert_non_null(strstr(car_context_error(rig.context), "out of memory"));
    }
    if (opened) {
        car_tape_begin(rig.tape, 0, true);
        assert_int_equal(car_arena_live(rig.arena, CAR_MEMORY_ACTIVATIONS), 0);
        car_tape_destroy(rig.tape);
        rig.tape = NULL;
    }
    car_lane_destroy(rig.lane);
    car_gradients_destroy(rig.gradients);
    car_weights_destroy(rig.weights);
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        assert_int_equal(car_arena_live(rig.arena, (car_memory)c), 0);
    }
    rig.lane = NULL;
    rig.gradients = NULL;
    rig.weights = NULL;
    car_rig_close(&rig);
    return status == CAR_OK;
}

static void sweep_limits(car_rig_config config) {
    usage use = measure(config);
    assert_true(fits(config, use.peak));
    assert_false(fits(config, 1));
    for (size_t i = 1; i < SHARES; i++) { /* weights, gradients, workspace: not even opened */
        assert_false(fits(config, use.opened * i / SHARES));
    }
    assert_false(fits(config, use.opened));
    bool before = false;
    for (size_t i = 1; i < SHARES; i++) { /* forward, backward, enough */
        bool now = fits(config, use.opened + (use.peak - use.opened) * i / SHARES);
        assert_true(now || !before);
        before = now;
    }
}

static void convolutions_survive_a_limit(void **state) {
    (void)state;
    sweep_limits((car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_ONEDNN});
}

static void transformers_survive_a_limit(void **state) {
    (void)state;
    sweep_limits((car_rig_config){.build = car_net_language, .kernels = CAR_KERNELS_ONEDNN});
    sweep_limits((car_rig_config){.build = car_net_patches, .kernels = CAR_KERNELS_REFERENCE});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_survive_a_failing_allocator),
        cmocka_unit_test(transformers_survive_a_failing_allocator),
        cmocka_unit_test(models_survive_a_failing_allocator),
        cmocka_unit_test(convolutions_survive_a_limit),
        cmocka_unit_test(transformers_survive_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
