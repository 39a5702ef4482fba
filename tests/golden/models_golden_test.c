/* Every model against PyTorch: logits, loss, the gradient of every parameter, the running statistics
 * and an evaluation, for the same weights and inputs, with both tables of kernels.
 *
 * The files hold small variants of the models; make_golden.py made them and says what is in them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/model.h"
#include "carousel/safetensors.h"
#include "carousel/tape.h"

static const double tolerance = 1e-4;      /* relative error of a tensor, by Euclidean norms */
static const double bf16_tolerance = 3e-2; /* rows are short here; of whole models tests/torch asks for 2e-2 */
static const double negligible = 1e-6;     /* of all gradients' norm: smaller ones are compared with this */

typedef struct golden_case {
    const char *file;
    car_kernels kernels;
    car_convolutions convolutions;
    car_precision precision;
} golden_case;

/* One case while it runs. */
typedef struct session {
    const golden_case *which;
    car_context *context;
    car_arena *arena;
    car_safetensors *file;
    car_graph *graph;
    car_program *program;
    car_lane *lane;
    car_weights *weights;
    car_gradients *gradients;
    car_tape *tape;
} session;

static void must(const session *s, car_status status, const char *what) {
    if (status != CAR_OK) {
        fail_msg("%s: %s: %s: %s", s->which->file, what, car_status_text(status), car_context_error(s->context));
    }
}

/* ---- the file -------------------------------------------------------------------------------- */

static int setting(const session *s, const char *key) {
    const char *text = car_safetensors_metadata(s->file, key);
    return text != NULL ? atoi(text) : 0;
}

static const car_safetensors_tensor *stored(const session *s, const char *prefix, const char *name) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const car_safetensors_tensor *tensor = car_safetensors_find(s->file, full);
    if (tensor == NULL) {
        fail_msg("%s has no '%s'", s->which->file, full);
    }
    return tensor;
}

/* A copy, since data in the file need not be aligned. To be freed. */
static float *stored_floats(const session *s, const char *prefix, const char *name, int64_t elements) {
    const car_safetensors_tensor *tensor = stored(s, prefix, name);
    float *copy = malloc(tensor->bytes);
    assert_non_null(copy);
    assert_int_equal(tensor->dtype, CAR_SAFETENSORS_F32);
    assert_int_equal(tensor->elements, elements);
    memcpy(copy, tensor->data, tensor->bytes);
    return copy;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static double norm_of(const float *values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)values[i] * values[i];
    }
    return sqrt(sum);
}

/* Fails unless ||ours - theirs|| <= tolerance * max(||theirs||, floor). */
static void compare(const session *s, const char *prefix, const char *name, const float *ours, int64_t count,
                    double floor) {
    float *theirs = stored_floats(s, prefix, name, count);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double difference = (double)ours[i] - theirs[i];
        sum += difference * difference;
    }
    double scale = fmax(norm_of(theirs, count), floor), error = sqrt(sum) / scale;
    free(theirs);
    if (!(error <= (s->which->precision == CAR_PRECISION_BF16 ? bf16_tolerance : tolerance))) {
        fail_msg("%s: %s%s: relative error %.2e of norm %.3g", s->which->file, prefix, name, error, scale);
    }
}

/* The norm of all gradients together, as PyTorch has them. */
static double total_gradient_norm(const session *s) {
    double sum = 0;
    for (int i = 0; i < car_safetensors_count(s->file); i++) {
        const car_safetensors_tensor *tensor = car_safetensors_at(s->file, i);
        if (strncmp(tensor->name, "grad:", 5) == 0) {
            float *values = stored_floats(s, "", tensor->name, tensor->elements);
            double norm = norm_of(values, tensor->elements);
            sum += norm * norm;
            free(values);
        }
    }
    return sqrt(sum);
}

/* ---- the steps of a case --------------------------------------------------------------------- */

static void open_session(session *s) {
    char path[512];
    snprintf(path, sizeof path, "%s/golden_%s.safetensors", CAR_TEST_DATA_DIR, s->which->file);
    assert_int_equal(car_context_create(NULL, &s->context), CAR_OK);
    must(s, car_safetensors_open(s->context, path, &s->file), "open");
    const char *model = car_safetensors_metadata(s->file, "model");
    const char *smoothing = car_safetensors_metadata(s->file, "label_smoothing");
    assert_non_null(model);
    car_model_config config = {
        .batch = setting(s, "batch"),
        .classes = setting(s, "classes"),
        .image_size = setting(s, "image_size"),
        .seq_len = setting(s, "seq_len"),
        .vocabulary = setting(s, "vocabulary"),
        .width = setting(s, "width"),
        .depth = setting(s, "depth"),
        .heads = setting(s, "heads"),
        .label_smoothing = smoothing != NULL ? atof(smoothing) : 0,
        .precision = s->which->precision,
    };
    car_program_config program_config = car_program_config_default();
    program_config.kernels = s->which->kernels;
    program_config.convolutions = s->which->convolutions;
    must(s, car_model_build(s->context, model, &config, &s->graph), "build");
    must(s, car_arena_create(s->context, 0, &s->arena), "arena");
    must(s, car_program_create(s->graph, &program_config, &s->program), "program");
    must(s, car_lane_create(s->program, s->arena, &s->lane), "lane");
    must(s, car_weights_create(s->program, s->arena, &s->weights), "weights");
    must(s, car_gradients_create(s->program, s->arena, &s->gradients), "gradients");
    must(s, car_tape_create(s->program, s->arena, &s->tape), "tape");
}

static void close_session(session *s) {
    car_tape_destroy(s->tape);
    car_gradients_destroy(s->gradients);
    car_weights_destroy(s->weights);
    car_lane_destroy(s->lane);
    car_program_destroy(s->program);
    car_arena_destroy(s->arena);
    car_graph_destroy(s->graph);
    car_safetensors_close(s->file);
    car_context_destroy(s->context);
}

/* Every parameter of ours is in the file with the same shape, and no other. */
static void load_weights(const session *s) {
    int in_file = 0;
    for (int i = 0; i < car_safetensors_count(s->file); i++) {
        in_file += strncmp(car_safetensors_at(s->file, i)->name, "param:", 6) == 0;
    }
    assert_int_equal(in_file, car_graph_param_count(s->graph));
    for (int i = 0; i < car_graph_param_count(s->graph); i++) {
        const car_param *param = car_graph_param(s->graph, i);
        const car_safetensors_tensor *tensor = stored(s, "param:", param->name);
        assert_int_equal(tensor->rank, param->shape.rank);
        assert_memory_equal(tensor->shape, param->shape.dim, sizeof(int64_t) * (size_t)tensor->rank);
        float *values = stored_floats(s, "param:", param->name, car_shape_elements(param->shape));
        must(s, car_weights_set(s->weights, i, values), param->name);
        free(values);
    }
}

static void feed(const session *s, const char *tensor, const char *name) {
    const car_safetensors_tensor *values = stored(s, "", name);
    int id = car_graph_find_tensor(s->graph, tensor);
    assert_int_equal(values->bytes, car_graph_tensor(s->graph, id)->bytes);
    must(s, car_tape_feed(s->tape, id, values->data), tensor);
}

static void forward(const session *s, bool training) {
    bool images = car_graph_find_tensor(s->graph, "images") != CAR_NONE;
    car_tape_begin(s->tape, 1, training);
    feed(s, images ? "images" : "tokens", "input");
    feed(s, "labels", "labels");
    must(s, car_tape_forward(s->tape, s->lane, s->weights, 0, car_graph_op_count(s->graph)), "forward");
}

static void compare_logits(const session *s, const char *name) {
    if (s->which->precision == CAR_PRECISION_BF16) {
        return; /* they are read in fp32 only; loss and gradients tell as much */
    }
    const car_op *loss = car_graph_op(s->graph, car_graph_op_count(s->graph) - 1);
    int64_t rows = car_shape_elements(car_graph_tensor(s->graph, loss->inputs[1])->shape);
    int64_t count = rows * car_graph_classes(s->graph);
    float *logits = malloc((size_t)count * sizeof *logits);
    assert_non_null(logits);
    must(s, car_tape_logits(s->tape, s->weights, 0, rows, logits), "logits");
    compare(s, "", name, logits, count, 0);
    free(logits);
}

/* A statistic's "gradient" is what this batch contributes to it; applying it is the update's job, done here. */
static void compare_statistic(const session *s, const car_param *param, float *batch_value) {
    const double momentum = 0.1;
    int64_t count = car_shape_elements(param->shape);
    float *before = stored_floats(s, "param:", param->name, count);
    for (int64_t i = 0; i < count; i++) {
        batch_value[i] = (float)((1 - momentum) * before[i] + momentum * batch_value[i]);
    }
    free(before);
    compare(s, "after:", param->name, batch_value, count, 0);
}

static void compare_gradients(const session *s) {
    double floor = negligible * total_gradient_norm(s);
    for (int i = 0; i < car_graph_param_count(s->graph); i++) {
        const car_param *param = car_graph_param(s->graph, i);
        int64_t count = car_shape_elements(param->shape);
        float *ours = malloc((size_t)count * sizeof *ours);
        assert_non_null(ours);
        must(s, car_gradients_get(s->gradients, i, ours), param->name);
        if (param->role == CAR_PARAM_STATISTIC) {
            compare_statistic(s, param, ours);
        } else {
            compare(s, "grad:", param->name, ours, count, floor);
        }
        free(ours);
    }
}

static void test_against_pytorch(void **state) {
    session s = {.which = *state};
    open_session(&s);
    load_weights(&s);
    /* Twice: what the first step leaves behind must not show in the second. */
    for (int step = 0; step < 2; step++) {
        forward(&s, true);
        float loss = car_tape_loss(s.tape);
        compare(&s, "", "loss", &loss, 1, 0);
        compare_logits(&s, "logits"); /* before backward, which may write over them */
        must(&s, car_tape_backward(s.tape, s.lane, s.weights, s.gradients, 0, car_graph_op_count(s.graph)), "backward");
        compare_gradients(&s);
        forward(&s, false);
        compare_logits(&s, "eval_logits");
    }
    close_session(&s);
}

/* Names of the tests, and so what `ctest -V` shows, say file and kernels. */
#define BOTH(name)                                                         \
    {"reference " name, test_against_pytorch, NULL, NULL,                  \
     &(golden_case){.file = name, .kernels = CAR_KERNELS_REFERENCE}},      \
    {                                                                      \
        "onednn " name, test_against_pytorch, NULL, NULL, &(golden_case) { \
            .file = name, .kernels = CAR_KERNELS_ONEDNN                    \
        }                                                                  \
    }

/* Every convolution that can be, by Winograd's algorithm, whether it pays or not. */
#define WINOGRAD(name)                                                                             \
    {                                                                                              \
        "winograd " name, test_against_pytorch, NULL, NULL, &(golden_case) {                       \
            .file = name, .kernels = CAR_KERNELS_ONEDNN, .convolutions = CAR_CONVOLUTIONS_WINOGRAD \
        }                                                                                          \
    }

/* Transformers only: a residual network's gradients are far from PyTorch's for reasons of their own (a ReLU's kink, a batch
 * normalisation of few values), which bf16 multiplies. Its accuracy is compared instead: bench/claims/precision.py. */
#define BF16(name)                                                                       \
    {                                                                                    \
        "bf16 " name, test_against_pytorch, NULL, NULL, &(golden_case) {                 \
            .file = name, .kernels = CAR_KERNELS_ONEDNN, .precision = CAR_PRECISION_BF16 \
        }                                                                                \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        BOTH("mlp"),
        BOTH("resnet20"),
        BOTH("resnet18_small"),
        BOTH("resnet18_large"),
        BOTH("resnet50"),
        BOTH("vit_tiny"),
        BOTH("vit_b16"),
        BOTH("gpt2_nano"),
        BOTH("gpt2"),
        WINOGRAD("resnet20"),
        WINOGRAD("resnet18_small"),
        WINOGRAD("resnet18_large"),
        WINOGRAD("resnet50"),
        BF16("vit_tiny"),
        BF16("vit_b16"),
        BF16("gpt2_nano"),
        BF16("gpt2"),
    };
    return cmocka_run_group_tests_name("models against PyTorch", tests, NULL, NULL);
}
