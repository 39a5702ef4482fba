/* Opening, feeding and starting a world. */
#include "engine/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"

enum { MAX_INPUT = 1024, MAX_LABELS = 64 };

void car_world_must(const car_world *w, car_status status) {
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), car_context_error(w->context));
    }
}

/* Initial weights without the zeros that some layers begin with, which would hide what is before them. */
static void draw_start(car_world *w) {
    car_weights *weights = NULL;
    car_world_must(w, car_weights_create(w->program, w->arena, &weights));
    car_world_must(w, car_weights_initialize(weights, CAR_WORLD_SEED));
    w->start = malloc((size_t)car_graph_param_count(w->graph) * sizeof *w->start);
    assert_non_null(w->start);
    for (int p = 0; p < car_graph_param_count(w->graph); p++) {
        const car_param *param = car_graph_param(w->graph, p);
        size_t count = (size_t)car_shape_elements(param->shape);
        uint64_t key = car_random_key(CAR_WORLD_SEED, param->name);
        float *values = w->start[p] = malloc(count * sizeof *values);
        assert_non_null(values);
        car_world_must(w, car_weights_get(weights, p, values));
        for (size_t k = 0; param->role != CAR_PARAM_STATISTIC && k < count; k++) {
            values[k] += 0.1f * (float)car_random_normal(key, k);
        }
    }
    car_weights_destroy(weights);
}

void car_world_open(car_world *w, const car_small_model *model) {
    *w = (car_world){.input_scale = 1};
    const car_model_info *info = car_model_find(model->name);
    assert_int_equal(car_context_create(NULL, &w->context), CAR_OK);
    car_world_must(w, car_model_build(w->context, model->name, &model->config, &w->graph));
    car_program_config program = car_program_config_default();
    program.convolutions = model->convolutions;
    car_world_must(w, car_program_create(w->graph, &program, &w->program));
    car_world_must(w, car_arena_create(w->context, 0, &w->arena));
    w->source = (car_synthetic){.seed = CAR_WORLD_SEED, .domain = info->domain};
    car_world_must(w, car_model_resolve(w->context, model->name, &model->config, &w->source.config));
    w->input = car_graph_find_tensor(w->graph, info->domain == CAR_DOMAIN_IMAGES ? "images" : "tokens");
    w->labels = car_graph_find_tensor(w->graph, "labels");
    assert_true(car_graph_tensor(w->graph, w->input)->bytes <= MAX_INPUT * sizeof(float));
    assert_true(car_graph_tensor(w->graph, w->labels)->bytes <= MAX_LABELS * sizeof(int32_t));
    draw_start(w);
}

void car_world_close(car_world *w) {
    for (int p = 0; p < car_graph_param_count(w->graph); p++) {
        free(w->start[p]);
    }
    free(w->start);
    car_arena_destroy(w->arena);
    car_program_destroy(w->program);
    car_graph_destroy(w->graph);
    car_context_destroy(w->context);
}

/* Samples that no other micro-batch has. */
car_status car_world_feed(void *user, int64_t step, int worker, car_tape *tape) {
    const car_world *w = user;
    float input[MAX_INPUT] = {0};
    int32_t labels[MAX_LABELS];
    car_synthetic_batch(&w->source, (uint64_t)(step * 64 + worker) * (uint64_t)w->source.config.batch, input, labels);
    for (int k = 0; w->input_scale != 1 && k < MAX_INPUT; k++) {
        input[k] *= w->input_scale;
    }
    car_status status = car_tape_feed(tape, w->input, input);
    return status == CAR_OK ? car_tape_feed(tape, w->labels, labels) : status;
}

void car_world_start(const car_world *w, car_weights *weights) {
    for (int p = 0; p < car_graph_param_count(w->graph); p++) {
        car_world_must(w, car_weights_set(weights, p, w->start[p]));
    }
}
