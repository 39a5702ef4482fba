/* Predictions for one rank.
 *
 * A rank that has only some stages holds for backward what their operations save: what they make, and also what comes
 * from the rank before. The partition counts a tensor where it is made; here it counts where it is needed.
 *
 *   stage 0 | stage 1          q is made in stage 0, and only the attention's backward reads it:
 *    ... q  | attention ...    with a rank for each stage, stage 1's rank holds it */
#include "plan/predict_internal.h"

/* ---- activations ----------------------------------------------------------------------------- */

static bool saves(const car_op *op, int tensor) {
    bool saved = (op->saves_output && op->output == tensor) || op->aux == tensor;
    for (int q = 0; q < op->input_count; q++) {
        saved = saved || (op->saves_input[q] && op->inputs[q] == tensor);
    }
    return saved;
}

/* Whether the backward of operations first .. end-1 reads a tensor. */
static bool is_saved(const car_graph *graph, int first, int end, int tensor) {
    bool saved = false;
    for (int l = first; l < end && !saved; l++) {
        const car_op *op = car_graph_op(graph, l);
        saved = car_graph_tensor(graph, op->output)->grad_slot != CAR_NONE && saves(op, tensor);
    }
    return saved;
}

/* The stage of a rank whose forward brings a tensor: where it is made, or the first. */
static int stage_of(const car_partition *partition, const car_tensor *tensor, int first, int end) {
    int stage = first;
    for (int j = first; j < end; j++) {
        const car_stage *s = &partition->stages[j];
        stage = tensor->producer >= s->first && tensor->producer < s->end ? j : stage;
    }
    return stage;
}

/* What the forwards of stages first .. end-1 leave held on a rank that has no others. */
static void hold_apart(const car_partition *partition, int first, int end, size_t *held) {
    const car_graph *graph = partition->graph;
    int first_op = partition->stages[first].first, end_op = partition->stages[end - 1].end;
    for (int j = first; j < end; j++) {
        held[j] = graph ? 0 : partition->stages[j].held_bytes;
    }
    for (int v = 0; graph && v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        if (tensor->last_backward != CAR_NONE && is_saved(graph, first_op, end_op, v)) {
            held[stage_of(partition, tensor, first, end)] += tensor->bytes;
        }
    }
}

/* What goes to the next rank and is not held here: it is there until it was packed. */
static size_t leaving_bytes(const car_partition *partition, int first, int end) {
    const car_graph *graph = partition->graph;
    int first_op = partition->stages[first].first, end_op = partition->stages[end - 1].end;
    size_t bytes = 0;
    for (int v = 0; graph && v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        bool crosses = tensor->producer != CAR_NONE && tensor->producer < end_op && tensor->last_forward >= end_op;
        bytes += crosses && !is_saved(graph, first_op, end_op, v) ? tensor->bytes : 0;
    }
    return bytes;
}

/* A rank of a pipeline or a grid: stages first .. end-1 and no others. */
static car_status predict_apart(const car_plan *plan, int device, int first, int end, size_t *out) {
    size_t *held = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, (size_t)plan->stages, sizeof *held, &held));
    hold_apart(plan->partition, first, end, held);
    *out = 0;
    if (plan->config.placement == CAR_PLACEMENT_PIPELINE) {
        CAR_TRY(car_predict_device_slots(plan, device, held, out));
    } else {
        for (int j = first; j < end; j++) {
            *out += held[j]; /* one micro-batch; at its turn from forward to backward all stages are alive */
        }
    }
    *out += leaving_bytes(plan->partition, first, end);
done:
    car_context_release(plan->context, held, held ? (size_t)plan->stages : 0, sizeof *held);
    return status;
}

static car_status predict_activations(const car_plan *plan, int device, size_t *out) {
    bool grid = plan->config.placement == CAR_PLACEMENT_GRID;
    int last = plan->config.workers - 1, group = device < last ? device : last;
    if (!grid && plan->config.placement != CAR_PLACEMENT_PIPELINE) {
        return car_predict_device_slots(plan, device, NULL, out);
    }
    while (grid && group > 0 && car_plan_group_first(plan, group) > device) {
        group--;
    }
    return predict_apart(plan, device, group * plan->per_worker, (group + 1) * plan->per_worker, out);
}

/* ---- all ------------------------------------------------------------------------------------- */

car_status car_plan_predict_device(const car_plan *plan, int device, int optimizer_states, car_device_prediction *out) {
    car_status status = CAR_OK;
    *out = (car_device_prediction){0};
    if (plan->config.placement == CAR_PLACEMENT_SHARED) {
        return car_context_fail(plan->context, CAR_ERROR_UNSUPPORTED, "placement shared has no memory for each device");
    }
    if (device < 0 || device >= plan->devices) {
        return car_context_fail(plan->context, CAR_ERROR_ARGUMENT, "there is no device %d: the plan has %d", device,
                                plan->devices);
    }
    CAR_TRY(car_predict_device_table(plan, device, optimizer_states, out));
    CAR_TRY(predict_activations(plan, device, &out->activations));
done:
    return status;
}
