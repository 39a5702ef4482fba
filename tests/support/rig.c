/* Opening, feeding and stepping a rig. */
#include "support/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "support/expect.h"

enum { NAN_BYTE = 0xFF, FIRST_TOKENS = 4 };

_Static_assert(FIRST_TOKENS <= (int)CAR_NET_CLASSES, "labels must be classes of every network");

/* ---- opening and closing ------------------------------------------------------------------------------- */

static car_status open_graph(car_rig *rig, const car_rig_config *config) {
    if (config->model) {
        return car_model_build(rig->context, config->model, &config->model_config, &rig->graph);
    }
    car_status status = car_graph_create(rig->context, &rig->graph);
    if (status != CAR_OK) {
        return status;
    }
    int loss = config->build ? config->build(rig->graph) : car_wild_build(rig->graph, config->wild);
    return car_graph_finish(rig->graph, loss);
}

car_status car_rig_try_open(car_rig *rig, const car_rig_config *config) {
    car_context_config context = car_context_config_default();
    car_program_config program = {.kernels = config->kernels, .threads = 1};
    car_status status = CAR_OK;
    *rig = (car_rig){0};
    if (config->allocator) {
        context.allocator = *config->allocator;
    }
    CAR_TRY(car_context_create(&context, &rig->context));
    CAR_TRY(open_graph(rig, config));
    CAR_TRY(car_program_create(rig->graph, &program, &rig->program));
    CAR_TRY(car_arena_create(rig->context, config->limit, &rig->arena));
    CAR_TRY(car_weights_create(rig->program, rig->arena, &rig->weights));
    CAR_TRY(car_weights_initialize(rig->weights, config->seed));
    CAR_TRY(car_gradients_create(rig->program, rig->arena, &rig->gradients));
    CAR_TRY(car_lane_create(rig->program, rig->arena, &rig->lane));
    CAR_TRY(car_tape_create(rig->program, rig->arena, &rig->tape));
done:
    return status;
}

void car_rig_open(car_rig *rig, const car_rig_config *config) {
    car_status status = car_rig_try_open(rig, config);
    car_expect_ok(rig->context, status);
}

void car_rig_close(car_rig *rig) {
    car_tape_destroy(rig->tape);
    car_lane_destroy(rig->lane);
    car_gradients_destroy(rig->gradients);
    car_weights_destroy(rig->weights);
    car_arena_destroy(rig->arena);
    car_program_destroy(rig->program);
    car_graph_destroy(rig->graph);
    car_context_destroy(rig->context);
    *rig = (car_rig){0};
}

void car_rig_expect_ok(const car_rig *rig, car_status status) {
    car_expect_ok(rig->context, status);
}

void car_rig_expect_failure(const car_rig *rig, car_status status, car_status expected, const char *part) {
    car_expect_failure(rig->context, status, expected, part);
}

void car_rig_soil(const car_rig *rig, size_t bytes) {
    void *block = NULL;
    car_rig_expect_ok(rig, car_arena_allocate(rig->arena, CAR_MEMORY_MESSAGES, bytes, &block));
    memset(block, NAN_BYTE, bytes);
    car_arena_release(rig->arena, block);
}

/* ---- running ------------------------------------------------------------------------------------------- */

static car_status feed_input(const car_rig *rig, car_tape *tape, int tensor, uint64_t sample) {
    const car_tensor *input = car_graph_tensor(rig->graph, tensor);
    uint64_t key = car_random_key(sample, input->name);
    int64_t count = car_shape_elements(input->shape);
    int32_t *values = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(rig->context, (size_t)count, sizeof *values, &values));
    for (int64_t i = 0; i < count; i++) {
        float number = (float)car_random_normal(key, (uint64_t)i);
        values[i] = (int32_t)(car_random_u64(key, (uint64_t)i) % FIRST_TOKENS);
        if (input->dtype == CAR_F32) {
            memcpy(&values[i], &number, sizeof number);
        }
    }
    CAR_TRY(car_tape_feed(tape, tensor, values));
done:
    car_context_release(rig->context, values, (size_t)count, sizeof *values);
    return status;
}

car_status car_rig_feed(const car_rig *rig, car_tape *tape, uint64_t sample, bool training) {
    car_status status = CAR_OK;
    car_tape_begin(tape, sample, training);
    for (int v = 0; status == CAR_OK && v < car_graph_tensor_count(rig->graph); v++) {
        if (car_graph_tensor(rig->graph, v)->producer == CAR_NONE) {
            status = feed_input(rig, tape, v, sample);
        }
    }
    return status;
}

car_status car_rig_step(const car_rig *rig, uint64_t sample) {
    int operations = car_graph_op_count(rig->graph);
    car_status status = CAR_OK;
    CAR_TRY(car_rig_feed(rig, rig->tape, sample, true));
    CAR_TRY(car_tape_forward(rig->tape, rig->lane, rig->weights, 0, operations));
    CAR_TRY(car_tape_backward(rig->tape, rig->lane, rig->weights, rig->gradients, 0, operations));
done:
    return status;
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

static size_t use_bytes(const car_rig *rig, int use) {
    return car_program_param_bytes(rig->program, car_graph_use_param(rig->graph, use));
}

size_t car_rig_gradient_bytes(const car_rig *rig) {
    size_t bytes = 0;
    for (int use = 0; use < car_graph_use_count(rig->graph); use++) {
        bytes += use_bytes(rig, use);
    }
    return bytes;
}

unsigned char *car_rig_copy_gradients(const car_rig *rig) {
    unsigned char *copy = malloc(car_rig_gradient_bytes(rig)), *to = copy;
    assert_non_null(copy);
    for (int use = 0; use < car_graph_use_count(rig->graph); use++) {
        memcpy(to, car_gradients_data(rig->gradients, use), use_bytes(rig, use));
        to += use_bytes(rig, use);
    }
    return copy;
}

void car_rig_spoil_gradients(const car_rig *rig) {
    for (int use = 0; use < car_graph_use_count(rig->graph); use++) {
        memset(car_gradients_data(rig->gradients, use), NAN_BYTE, use_bytes(rig, use));
    }
}
