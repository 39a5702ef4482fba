/* The engine against PyTorch: five steps under each rule and optimizer, from the same weights with the same
 * micro-batches; the loss of every step and all weights and running statistics after the last.
 *
 * golden/make_training.py made the files and says how: by the definition, with every version kept. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/model.h"
#include "carousel/safetensors.h"
#include "carousel/trainer.h"

enum { WORKERS = 3, STAGES = 3, STEPS = 5, SEVERAL_STEPS = 3, THREADS = 2 };

static const double tolerance = 1e-4;  /* relative error of a tensor, by Euclidean norms */
static const double negligible = 1e-3; /* root mean square: tensors of smaller elements are compared with this */

typedef struct golden {
    const char *model;
    car_context *context;
    car_safetensors *file;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_partition *partition;
    int input, labels; /* tensors */
    float loss[STEPS];
    int losses;
    int batches; /* micro-batches of a step */
} golden;

static void must(const golden *g, car_status status) {
    if (status != CAR_OK) {
        fail_msg("%s: %s: %s", g->model, car_status_text(status), car_context_error(g->context));
    }
}

/* ---- the file -------------------------------------------------------------------------------- */

static int number(const golden *g, const char *key) {
    const char *text = car_safetensors_metadata(g->file, key);
    return text != NULL ? atoi(text) : 0;
}

static const car_safetensors_tensor *stored(const golden *g, const char *prefix, const char *name) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const car_safetensors_tensor *tensor = car_safetensors_find(g->file, full);
    if (tensor == NULL) {
        fail_msg("%s has no '%s'", g->model, full);
    }
    return tensor;
}

/* A copy, since data in the file need not be aligned. To be freed. */
static void *copy_of(const car_safetensors_tensor *tensor) {
    void *copy = malloc(tensor->bytes);
    assert_non_null(copy);
    memcpy(copy, tensor->data, tensor->bytes);
    return copy;
}

/* The stages are data of the file, not what our partition happens to be. */
static void open_golden(golden *g) {
    char path[512];
    snprintf(path, sizeof path, "%s/training_%s.safetensors", CAR_TEST_DATA_DIR, g->model);
    assert_int_equal(car_context_create(NULL, &g->context), CAR_OK);
    must(g, car_safetensors_open(g->context, path, &g->file));
    const car_model_config config = {.batch = number(g, "batch"),
                                     .classes = number(g, "classes"),
                                     .image_size = number(g, "image_size"),
                                     .seq_len = number(g, "seq_len"),
                                     .vocabulary = number(g, "vocabulary"),
                                     .width = number(g, "width"),
                                     .depth = number(g, "depth"),
                                     .heads = number(g, "heads")};
    const int cuts[] = {number(g, "cut1"), number(g, "cut2")};
    assert_int_equal(number(g, "steps"), STEPS);
    assert_int_equal(number(g, "workers"), WORKERS);
    must(g, car_model_build(g->context, g->model, &config, &g->graph));
    must(g, car_program_create(g->graph, NULL, &g->program));
    must(g, car_arena_create(g->context, 0, &g->arena));
    must(g, car_partition_create(g->graph,
                                 &(car_partition_config){.stages = STAGES, .measure = CAR_MEASURE_CUTS, .cuts = cuts},
                                 &g->partition));
    g->input =
        car_graph_find_tensor(g->graph, car_graph_find_tensor(g->graph, "images") != CAR_NONE ? "images" : "tokens");
    g->labels = car_graph_find_tensor(g->graph, "labels");
}

static void close_golden(golden *g) {
    car_partition_destroy(g->partition);
    car_arena_destroy(g->arena);
    car_program_destroy(g->program);
    car_graph_destroy(g->graph);
    car_safetensors_close(g->file);
    car_context_destroy(g->context);
}

static int stage_of_param(const golden *g, int param) {
    for (int j = 0; j < STAGES; j++) {
        for (int l = g->partition->stages[j].first; l < g->partition->stages[j].end; l++) {
            const car_op *op = car_graph_op(g->graph, l);
            for (int p = 0; p < op->param_count; p++) {
                if (op->params[p] == param) {
                    return j;
                }
            }
        }
    }
    return CAR_NONE;
}

/* Every parameter belongs to the stage that PyTorch's run took it to be in. */
static void check_stages(const golden *g) {
    for (int p = 0; p < car_graph_param_count(g->graph); p++) {
        int32_t *stage = copy_of(stored(g, "stage:", car_graph_param(g->graph, p)->name));
        assert_int_equal(stage_of_param(g, p), *stage);
        free(stage);
    }
}

/* ---- training -------------------------------------------------------------------------------- */

static car_status feed_slice(const golden *g, const char *name, int tensor, int64_t micro_batch, car_tape *tape) {
    size_t bytes = car_graph_tensor(g->graph, tensor)->bytes;
    const car_safetensors_tensor *all = car_safetensors_find(g->file, name);
    return car_tape_feed(tape, tensor, (const char *)all->data + (size_t)micro_batch * bytes);
}

/* With several micro-batches a worker the samples come round again. */
static car_status feed(void *user, int64_t step, int worker, car_tape *tape) {
    const golden *g = user;
    int64_t n = (step * g->batches + worker) % (STEPS * WORKERS);
    car_status status = feed_slice(g, "inputs", g->input, n, tape);
    return status == CAR_OK ? feed_slice(g, "labels", g->labels, n, tape) : status;
}

static void check_batches(const golden *g) {
    size_t count = (size_t)STEPS * WORKERS;
    assert_int_equal(stored(g, "", "inputs")->bytes, count * car_graph_tensor(g->graph, g->input)->bytes);
    assert_int_equal(stored(g, "", "labels")->bytes, count * car_graph_tensor(g->graph, g->labels)->bytes);
}

static void note_loss(void *user, const car_step_report *report) {
    golden *g = user;
    if (g->losses < STEPS) {
        g->loss[g->losses++] = (float)report->loss;
    }
}

static void load(const golden *g, car_weights *weights) {
    for (int p = 0; p < car_graph_param_count(g->graph); p++) {
        const car_param *param = car_graph_param(g->graph, p);
        const car_safetensors_tensor *tensor = stored(g, "param:", param->name);
        assert_int_equal(tensor->elements, car_shape_elements(param->shape));
        float *values = copy_of(tensor);
        must(g, car_weights_set(weights, p, values));
        free(values);
    }
}

static car_trainer_config training(golden *g, car_optimizer_kind optimizer, bool corrected) {
    car_trainer_config config = car_trainer_config_default();
    config.threads = THREADS;
    config.feed = feed;
    config.feed_user = g;
    config.report = note_loss;
    config.report_user = g;
    config.optimizer.kind = optimizer;
    if (optimizer == CAR_OPTIMIZER_SGD) {
        config.schedule.lr = 0.05;
        config.optimizer.momentum = 0.9;
        config.optimizer.weight_decay = 5e-4;
    } else {
        bool muon = optimizer == CAR_OPTIMIZER_MUON;
        config.schedule.lr = muon ? 0.02 : 1e-3;
        config.optimizer.adamw_ratio = 1e-3 / config.schedule.lr;
        config.optimizer.momentum = 0.95;
        config.optimizer.weight_decay = 0.01;
        config.optimizer.eps = 1e-5;
    }
    if (corrected) {
        config.optimizer.correction = (car_correction){.c = 0.8, .a = 1.2};
    }
    return config;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Fails unless ||ours - theirs|| <= tolerance * ||theirs||. */
static void compare(const golden *g, const char *prefix, const char *name, const float *ours, int64_t count) {
    const car_safetensors_tensor *tensor = stored(g, prefix, name);
    assert_int_equal(tensor->elements, count);
    float *theirs = copy_of(tensor);
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)ours[i] - theirs[i]) * ((double)ours[i] - theirs[i]);
        size += (double)theirs[i] * theirs[i];
    }
    free(theirs);
    double error = sqrt(difference) / fmax(sqrt(size), negligible * sqrt((double)count));
    if (!(error <= tolerance)) {
        fail_msg("%s: %s%s: relative error %.2e of norm %.3g", g->model, prefix, name, error, sqrt(size));
    }
}

static void compare_losses(const golden *g, const char *run) {
    float *theirs = copy_of(stored(g, run, ".loss"));
    for (int t = 0; t < g->losses; t++) {
        if (!(fabsf(g->loss[t] - theirs[t]) <= (float)tolerance * theirs[t])) {
            fail_msg("%s: %s: the loss of step %d is %.7g, not %.7g", g->model, run, t, g->loss[t], theirs[t]);
        }
    }
    free(theirs);
}

static void compare_weights(const golden *g, const char *prefix, const car_weights *weights) {
    for (int p = 0; p < car_graph_param_count(g->graph); p++) {
        const car_param *param = car_graph_param(g->graph, p);
        int64_t count = car_shape_elements(param->shape);
        float *ours = malloc((size_t)count * sizeof *ours);
        assert_non_null(ours);
        must(g, car_weights_get(weights, p, ours));
        compare(g, prefix, param->name, ours, count);
        free(ours);
    }
}

/* `several` micro-batches a worker: by SGD, some steps. */
static void check_run(golden *g, car_rule rule, car_optimizer_kind optimizer, bool corrected, int several) {
    const car_plan_config plan_config = {.workers = WORKERS, .accumulate = several, .rule = rule, .threads = THREADS};
    const int steps = several > 1 ? SEVERAL_STEPS : STEPS;
    const car_trainer_config config = training(g, optimizer, corrected);
    car_plan *plan = NULL;
    car_trainer *trainer = NULL;
    char run[64], prefix[80];
    /* accumulate and stagger are dp's mathematics. */
    bool exact = rule == CAR_RULE_ACCUMULATE || rule == CAR_RULE_STAGGER;
    int length = snprintf(run, sizeof run, "%s.", car_rule_text(exact ? CAR_RULE_DP : rule));
    if (several > 1) {
        snprintf(run + length, sizeof run - (size_t)length, "x%d", several);
    } else {
        snprintf(run + length, sizeof run - (size_t)length, "%s%s", car_optimizer_text(optimizer),
                 corrected ? "-corrected" : "");
    }
    g->batches = WORKERS * several;
    snprintf(prefix, sizeof prefix, "%s:", run);
    g->losses = 0;
    must(g, car_plan_create(g->context, g->partition, &plan_config, &plan));
    must(g, car_plan_validate(plan, 4));
    must(g, car_trainer_create(plan, g->program, g->arena, &config, &trainer));
    must(g, car_trainer_initialize(trainer, 1));
    load(g, car_trainer_weights(trainer));
    must(g, car_trainer_run(trainer, steps));
    assert_int_equal(g->losses, steps);
    compare_losses(g, run);
    compare_weights(g, prefix, car_trainer_weights(trainer));
    car_trainer_destroy(trainer);
    car_plan_destroy(plan);
}

static void test_training(void **state) {
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_ACCUMULATE, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    golden g = {.model = *state};
    open_golden(&g);
    check_stages(&g);
    check_batches(&g);
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        for (int corrected = 0; corrected < 2; corrected++) {
            for (int optimizer = 0; optimizer < CAR_OPTIMIZERS; optimizer++) {
                check_run(&g, rules[r], (car_optimizer_kind)optimizer, corrected, 1);
            }
        }
    }
    static const car_rule of_several[] = {CAR_RULE_ACCUMULATE, CAR_RULE_STAGGER, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    for (int n = 0; n < 8; n++) {
        check_run(&g, of_several[n / 2], CAR_OPTIMIZER_SGD, false, 2 + n % 2);
    }
    close_golden(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"mlp", test_training, NULL, NULL, (void *)"mlp"},
        {"resnet20", test_training, NULL, NULL, (void *)"resnet20"},
        {"gpt2-nano", test_training, NULL, NULL, (void *)"gpt2-nano"},
    };
    return cmocka_run_group_tests_name("training against PyTorch", tests, NULL, NULL);
}
