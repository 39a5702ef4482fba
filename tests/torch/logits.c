/* Carousel's side of moving weights to and from PyTorch: what the model makes of a batch.
 *
 *     logits load WEIGHTS BATCH LOGITS    with the weights of a file
 *     logits save WEIGHTS BATCH LOGITS    with weights of its own, which it writes to the file
 *     logits gradients WEIGHTS BATCH GRADIENTS    one training step in bf16: the gradient of every parameter
 *
 * BATCH is what torch_weights.py makes; its metadata say which model it is for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "carousel/checkpoint.h"
#include "carousel/model.h"
#include "carousel/safetensors.h"

typedef struct session {
    car_context *context;
    car_safetensors *batch;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_weights *weights;
    car_lane *lane;
    car_tape *tape;
    car_gradients *gradients; /* or NULL */
} session;

static int setting(const session *s, const char *key) {
    const char *text = car_safetensors_metadata(s->batch, key);
    return text != NULL ? atoi(text) : 0;
}

static car_status open_session(session *s, const char *batch, car_precision precision) {
    car_status status = CAR_OK;
    CAR_TRY(car_safetensors_open(s->context, batch, &s->batch));
    const char *model = car_safetensors_metadata(s->batch, "model");
    const car_model_config config = {.batch = setting(s, "batch"),
                                     .classes = setting(s, "classes"),
                                     .image_size = setting(s, "image_size"),
                                     .seq_len = setting(s, "seq_len"),
                                     .precision = precision};
    CAR_TRY(car_model_build(s->context, model != NULL ? model : "", &config, &s->graph));
    CAR_TRY(car_program_create(s->graph, NULL, &s->program));
    CAR_TRY(car_arena_create(s->context, 0, &s->arena));
    CAR_TRY(car_weights_create(s->program, s->arena, &s->weights));
    CAR_TRY(car_lane_create(s->program, s->arena, &s->lane));
    CAR_TRY(car_tape_create(s->program, s->arena, &s->tape));
    if (precision == CAR_PRECISION_BF16) {
        CAR_TRY(car_gradients_create(s->program, s->arena, &s->gradients));
    }
done:
    return status;
}

static void close_session(session *s) {
    car_gradients_destroy(s->gradients);
    car_tape_destroy(s->tape);
    car_lane_destroy(s->lane);
    car_weights_destroy(s->weights);
    car_arena_destroy(s->arena);
    car_program_destroy(s->program);
    car_graph_destroy(s->graph);
    car_safetensors_close(s->batch);
    car_context_destroy(s->context);
}

/* Initial values would hide mistakes where they are zero or one, so all get some noise. */
static car_status make_weights(session *s) {
    car_status status = CAR_OK;
    CAR_TRY(car_weights_initialize(s->weights, 1));
    for (int p = 0; p < car_graph_param_count(s->graph); p++) {
        const car_param *param = car_graph_param(s->graph, p);
        size_t count = (size_t)car_shape_elements(param->shape);
        float *values = NULL;
        CAR_TRY(car_context_allocate(s->context, count, sizeof *values, &values));
        status = car_weights_get(s->weights, p, values);
        for (size_t i = 0; i < count; i++) {
            values[i] += 0.02F * (float)car_random_normal(car_random_key(2, param->name), i);
        }
        status = status == CAR_OK ? car_weights_set(s->weights, p, values) : status;
        car_context_release(s->context, values, count, sizeof *values);
        CAR_TRY(status);
    }
done:
    return status;
}

static car_status load_weights(session *s, const char *path) {
    car_weights_load_report report = {0};
    car_status status = car_weights_load(s->weights, path, NULL, &report);
    printf("%s: %d loaded, %d missing, %d left over%s%s\n", path, report.loaded, report.missing, report.left_over,
           report.left_over > 0 ? ": " : "", report.left_over_names);
    if (status == CAR_OK && report.left_over > 0) {
        return car_context_fail(s->context, CAR_ERROR_FORMAT, "nothing of it should be left over");
    }
    return status;
}

/* An evaluation of the batch, or a training step if there is room for gradients. */
static car_status run(session *s) {
    const car_safetensors_tensor *targets = car_safetensors_find(s->batch, "labels");
    const car_safetensors_tensor *input = car_safetensors_find(s->batch, "input");
    int images = car_graph_find_tensor(s->graph, "images"), labels = car_graph_find_tensor(s->graph, "labels");
    int fed = images != CAR_NONE ? images : car_graph_find_tensor(s->graph, "tokens");
    int ops = car_graph_op_count(s->graph);
    car_status status = CAR_OK;
    if (input == NULL || input->bytes != car_graph_tensor(s->graph, fed)->bytes || targets == NULL ||
        targets->bytes != car_graph_tensor(s->graph, labels)->bytes) {
        return car_context_fail(s->context, CAR_ERROR_FORMAT, "the batch has no input or labels of the right size");
    }
    car_tape_begin(s->tape, 1, s->gradients != NULL);
    CAR_TRY(car_tape_feed(s->tape, fed, input->data));
    CAR_TRY(car_tape_feed(s->tape, labels, targets->data));
    CAR_TRY(car_tape_forward(s->tape, s->lane, s->weights, 0, ops));
    if (s->gradients != NULL) {
        CAR_TRY(car_tape_backward(s->tape, s->lane, s->weights, s->gradients, 0, ops));
    }
done:
    return status;
}

static car_status write_gradients(session *s, const char *path) {
    int count = car_graph_param_count(s->graph);
    car_safetensors_entry *entries = NULL;
    car_safetensors_writer *writer = NULL;
    float *values = NULL;
    size_t room = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(s->context, (size_t)count, sizeof *entries, &entries));
    for (int p = 0; p < count; p++) {
        const car_param *param = car_graph_param(s->graph, p);
        size_t elements = (size_t)car_shape_elements(param->shape);
        entries[p] = (car_safetensors_entry){.name = param->name, .rank = param->shape.rank, .shape = param->shape.dim};
        room = elements > room ? elements : room;
    }
    CAR_TRY(car_context_allocate(s->context, room, sizeof *values, &values));
    CAR_TRY(car_safetensors_writer_create(s->context, path, entries, count, NULL, &writer));
    for (int p = 0; p < count; p++) {
        CAR_TRY(car_gradients_get(s->gradients, p, values));
        CAR_TRY(car_safetensors_writer_add(writer, values));
    }
    CAR_TRY(car_safetensors_writer_finish(writer, NULL));
done:
    car_context_release(s->context, values, room, sizeof *values);
    car_context_release(s->context, entries, (size_t)count, sizeof *entries);
    car_safetensors_writer_destroy(writer);
    return status;
}

static car_status write_logits(session *s, const char *path) {
    car_shape shape = car_graph_tensor(s->graph, car_graph_find_tensor(s->graph, "labels"))->shape;
    int64_t rows = car_shape_elements(shape);
    float *logits = NULL;
    shape.dim[shape.rank++] = car_graph_classes(s->graph);
    const car_safetensors_entry entry = {.name = "logits", .rank = shape.rank, .shape = shape.dim};
    car_safetensors_writer *writer = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(s->context, (size_t)car_shape_elements(shape), sizeof *logits, &logits));
    CAR_TRY(car_tape_logits(s->tape, s->weights, 0, rows, logits));
    CAR_TRY(car_safetensors_writer_create(s->context, path, &entry, 1, NULL, &writer));
    CAR_TRY(car_safetensors_writer_add(writer, logits));
    CAR_TRY(car_safetensors_writer_finish(writer, NULL));
done:
    car_context_release(s->context, logits, (size_t)car_shape_elements(shape), sizeof *logits);
    car_safetensors_writer_destroy(writer);
    return status;
}

int main(int argc, char **argv) {
    session s = {0};
    car_status status = CAR_OK;
    bool save = argc == 5 && strcmp(argv[1], "save") == 0, train = argc == 5 && strcmp(argv[1], "gradients") == 0;
    if (argc != 5 || (!save && !train && strcmp(argv[1], "load") != 0)) {
        fprintf(stderr, "usage: logits load|save WEIGHTS BATCH LOGITS | logits gradients WEIGHTS BATCH GRADIENTS\n");
        return 2;
    }
    CAR_TRY(car_context_create(NULL, &s.context));
    CAR_TRY(open_session(&s, argv[3], train ? CAR_PRECISION_BF16 : CAR_PRECISION_FP32));
    if (save) {
        CAR_TRY(make_weights(&s));
        CAR_TRY(car_weights_save(s.weights, argv[2]));
    } else {
        CAR_TRY(load_weights(&s, argv[2]));
    }
    CAR_TRY(run(&s));
    CAR_TRY(train ? write_gradients(&s, argv[4]) : write_logits(&s, argv[4]));
done:
    if (status != CAR_OK) {
        fprintf(stderr, "%s: %s\n", car_status_text(status), s.context ? car_context_error(s.context) : "");
    }
    close_session(&s);
    return status != CAR_OK;
}
