/* `carousel plan --json`: the content of the page as JSON. */
#include <cjson/cJSON.h>

#include "carousel/convention.h"
#include "plan.h"

void car_cli_plan_json_number(cJSON *object, const char *name, double value, bool *ok) {
    *ok = cJSON_AddNumberToObject(object, name, value) && *ok;
}

static void add_text(cJSON *object, const char *name, const char *value, bool *ok) {
    *ok = cJSON_AddStringToObject(object, name, value) && *ok;
}

/* ---- the partition --------------------------------------------------------------------------- */

static cJSON *stage_object(const car_plan_subject *s, int j, bool *ok) {
    const car_stage *stage = &s->partition->stages[j];
    cJSON *object = cJSON_CreateObject();
    bool empty = stage->end <= stage->first;
    car_cli_plan_json_number(object, "stage", j, ok);
    car_cli_plan_json_number(object, "first", stage->first, ok);
    car_cli_plan_json_number(object, "end", stage->end, ok);
    if (!empty) {
        add_text(object, "first_operation", car_graph_op(s->graph, stage->first)->name, ok);
        add_text(object, "last_operation", car_graph_op(s->graph, stage->end - 1)->name, ok);
    }
    car_cli_plan_json_number(object, "forward_share", stage->forward, ok);
    car_cli_plan_json_number(object, "backward_share", stage->backward, ok);
    car_cli_plan_json_number(object, "held_bytes", (double)stage->held_bytes, ok);
    if (stage->again_bytes > 0) {
        car_cli_plan_json_number(object, "again_bytes", (double)stage->again_bytes, ok);
    }
    car_cli_plan_json_number(object, "boundary_bytes", (double)stage->boundary_bytes, ok);
    car_cli_plan_json_number(object, "weight_bytes", (double)stage->weight_bytes, ok);
    return object;
}

static void add_stages(const car_plan_subject *s, cJSON *root, bool *ok) {
    cJSON *stages = cJSON_AddArrayToObject(root, "stages");
    for (int j = 0; *ok && j < s->partition->stage_count; j++) {
        *ok = cJSON_AddItemToArray(stages, stage_object(s, j, ok)) && *ok;
    }
}

static int stage_of_op(const car_partition *partition, int op) {
    for (int j = 0; j < partition->stage_count; j++) {
        if (op >= partition->stages[j].first && op < partition->stages[j].end) {
            return j;
        }
    }
    return CAR_NONE;
}

/* The home of a parameter: the lowest stage that uses it. */
static int stage_of_param(const car_plan_subject *s, int param) {
    for (int l = 0; l < car_graph_op_count(s->graph); l++) {
        const car_op *op = car_graph_op(s->graph, l);
        for (int p = 0; p < op->param_count; p++) {
            if (op->params[p] == param) {
                return stage_of_op(s->partition, l);
            }
        }
    }
    return CAR_NONE;
}

static void add_parameters(const car_plan_subject *s, cJSON *root, bool *ok) {
    cJSON *parameters = cJSON_AddArrayToObject(root, "parameters");
    for (int p = 0; *ok && p < car_graph_param_count(s->graph); p++) {
        const car_param *param = car_graph_param(s->graph, p);
        cJSON *object = cJSON_CreateObject();
        add_text(object, "name", param->name, ok);
        car_cli_plan_json_number(object, "stage", stage_of_param(s, p), ok);
        car_cli_plan_json_number(object, "bytes", 4 * (double)car_shape_elements(param->shape), ok);
        *ok = cJSON_AddItemToArray(parameters, object) && *ok;
    }
}

static void add_convolutions(const car_plan_subject *s, cJSON *root, bool *ok) {
    add_text(root, "convolutions_mode", car_convolutions_text(s->program.convolutions), ok);
    cJSON *convolutions = cJSON_AddArrayToObject(root, "convolutions");
    for (int l = 0; *ok && l < car_graph_op_count(s->graph); l++) {
        if (car_graph_op(s->graph, l)->kind != CAR_OP_CONV) {
            continue;
        }
        cJSON *object = cJSON_CreateObject();
        add_text(object, "operation", car_graph_op(s->graph, l)->name, ok);
        add_text(object, "algorithm", car_program_uses_winograd(s->graph, &s->program, l) ? "winograd" : "direct", ok);
        *ok = cJSON_AddItemToArray(convolutions, object) && *ok;
    }
}

/* ---- predictions ----------------------------------------------------------------------------- */

static cJSON *timed_object(const car_simulation *timed, bool *ok) {
    cJSON *object = cJSON_CreateObject();
    car_cli_plan_json_number(object, "step_time", timed->step_time, ok);
    car_cli_plan_json_number(object, "idle", timed->idle, ok);
    car_cli_plan_json_number(object, "peak_bytes", (double)timed->peak, ok);
    car_cli_plan_json_number(object, "mean_bytes", (double)timed->mean, ok);
    car_cli_plan_json_number(object, "device_peak_bytes", (double)timed->device_peak, ok);
    return object;
}

cJSON *car_cli_plan_json_prediction(const car_prediction *p) {
    cJSON *object = cJSON_CreateObject();
    bool ok = object != NULL;
    car_cli_plan_json_number(object, "peak_ratio_to_dp", p->peak_ratio_to_dp, &ok);
    car_cli_plan_json_number(object, "stale_share", p->stale_share, &ok);
    car_cli_plan_json_number(object, "free_running_ratio_to_dp", p->free_running, &ok);
    car_cli_plan_json_number(object, "limit", p->limit, &ok);
    car_cli_plan_json_number(object, "above_limit", p->above_limit, &ok);
    car_cli_plan_json_number(object, "activations_peak_bytes", (double)p->timed.peak, &ok);
    car_cli_plan_json_number(object, "activations_mean_bytes", (double)p->timed.mean, &ok);
    car_cli_plan_json_number(object, "activations_device_peak_bytes", (double)p->timed.device_peak, &ok);
    car_cli_plan_json_number(object, "dp_peak_bytes", (double)p->dp_peak, &ok);
    car_cli_plan_json_number(object, "slots_peak_bytes", (double)p->slots_peak, &ok);
    car_cli_plan_json_number(object, "slots_mean_bytes", (double)p->slots_mean, &ok);
    car_cli_plan_json_number(object, "slots_device_peak_bytes", (double)p->slots_device_peak, &ok);
    ok = cJSON_AddItemToObject(object, "timed", timed_object(&p->timed, &ok)) && ok;
    car_cli_plan_json_number(object, "devices", p->devices, &ok);
    car_cli_plan_json_number(object, "versions", p->versions, &ok);
    car_cli_plan_json_number(object, "weights_device_bytes", (double)p->weights_device, &ok);
    car_cli_plan_json_number(object, "weights_total_bytes", (double)p->weights_total, &ok);
    car_cli_plan_json_number(object, "gradients_device_bytes", (double)p->gradients_device, &ok);
    car_cli_plan_json_number(object, "gradients_total_bytes", (double)p->gradients_total, &ok);
    car_cli_plan_json_number(object, "optimizer_device_bytes", (double)p->optimizer_device, &ok);
    car_cli_plan_json_number(object, "optimizer_total_bytes", (double)p->optimizer_total, &ok);
    car_cli_plan_json_number(object, "bytes_sent", p->bytes_sent, &ok);
    car_cli_plan_json_number(object, "bytes_sent_device", p->bytes_sent_device, &ok);
    car_cli_plan_json_number(object, "messages", p->messages, &ok);
    car_cli_plan_json_number(object, "collectives", p->collectives, &ok);
    car_cli_plan_json_number(object, "max_messages_per_slot", p->max_messages_per_slot, &ok);
    car_cli_plan_json_number(object, "rounds_between_slots", p->rounds_between_slots, &ok);
    car_cli_plan_json_number(object, "burst", p->burst, &ok);
    car_cli_plan_json_number(object, "gradient_delay", p->gradient_delay, &ok);
    if (!ok) {
        cJSON_Delete(object);
    }
    return ok ? object : NULL;
}

/* Nobody reads a list of more ranks. */
enum { MOST_RANKS = 64 };

static car_status add_ranks(const car_plan_subject *s, const car_plan *plan, cJSON *root, bool *ok) {
    int ranks = car_placement_info_of(car_plan_config_of(plan)->placement)->one_process ? 0 : car_plan_devices(plan);
    cJSON *list = cJSON_AddArrayToObject(root, "rank_predictions");
    car_status status = CAR_OK;
    for (int r = 0; *ok && ranks <= MOST_RANKS && r < ranks; r++) {
        car_device_prediction p;
        CAR_TRY(car_cli_plan_predict_rank(s, plan, r, &p));
        cJSON *object = cJSON_CreateObject();
        car_cli_plan_json_number(object, "rank", r, ok);
        car_cli_plan_json_number(object, "weights_bytes", (double)p.weights, ok);
        car_cli_plan_json_number(object, "gradients_bytes", (double)p.gradients, ok);
        car_cli_plan_json_number(object, "optimizer_bytes", (double)p.optimizer, ok);
        car_cli_plan_json_number(object, "activations_bytes", (double)p.activations, ok);
        *ok = cJSON_AddItemToArray(list, object) && *ok;
    }
done:
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

car_status car_cli_plan_print_json(car_context *context, cJSON *json, FILE *stream) {
    char *text = json ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    if (!text) {
        return car_context_fail(context, CAR_ERROR_MEMORY, "out of memory for the answer");
    }
    fprintf(stream, "%s\n", text);
    cJSON_free(text);
    return CAR_OK;
}

static void add_config(const car_plan_subject *s, const car_plan *plan, cJSON *root, bool *ok) {
    const car_plan_config *c = car_plan_config_of(plan);
    add_text(root, "model", s->options->model, ok);
    add_text(root, "precision", s->options->precision, ok);
    add_text(root, "rule", car_rule_text(c->rule), ok);
    add_text(root, "placement", car_placement_text(c->placement), ok);
    car_cli_plan_json_number(root, "workers", c->workers, ok);
    car_cli_plan_json_number(root, "accumulate", c->accumulate, ok);
    if (c->accumulate > 1) {
        add_text(root, "sum_order", car_sum_order_text(c->sum_order), ok);
    }
    car_cli_plan_json_number(root, "stage_count", s->partition->stage_count, ok);
    car_cli_plan_json_number(root, "batch", s->options->shape.batch, ok);
    add_text(root, "partition", car_measure_text(s->partition->measure), ok);
    add_text(root, "costs", s->measured ? "seconds" : "flops", ok);
    car_cli_plan_json_number(root, "threads", c->threads, ok);
    car_cli_plan_json_number(root, "ranks", car_plan_devices(plan), ok);
    car_cli_plan_json_number(root, "machines", s->machines.count, ok);
    add_text(root, "mapping", car_mapping_text(c->mapping), ok);
    car_cli_plan_json_number(root, "freshness_slack", c->freshness_slack, ok);
    car_cli_plan_json_number(root, "zero_copies", c->zero_copies, ok);
    car_cli_plan_json_number(root, "zero_ahead", c->zero_ahead, ok);
    car_cli_plan_json_number(root, "piece_bytes", (double)c->piece_bytes, ok);
    add_text(root, "optimizer", s->options->optimizer, ok);
    car_cli_plan_json_number(root, "period_slots", (double)car_plan_period(plan), ok);
    car_cli_plan_json_number(root, "held_bytes", (double)s->partition->held_bytes, ok);
}

/* Compares with the same plan without recomputation; adds nothing if there is no recomputation. */
static void add_recomputation(const car_plan_subject *s, cJSON *root, bool *ok) {
    const car_recomputation *r = &s->partition->recomputation;
    if (!s->partition->recompute) {
        return;
    }
    cJSON *object = cJSON_AddObjectToObject(root, "recomputation");
    *ok = *ok && object;
    car_cli_plan_json_number(object, "tensors", r->tensors, ok);
    car_cli_plan_json_number(object, "most_tensors", r->most_tensors, ok);
    car_cli_plan_json_number(object, "operations", r->operations, ok);
    car_cli_plan_json_number(object, "flops", r->flops, ok);
    car_cli_plan_json_number(object, "cost_share", r->cost, ok);
    car_cli_plan_json_number(object, "held_bytes_without", (double)r->held_bytes, ok);
    car_cli_plan_json_number(object, "peak_bytes_without", (double)r->peak, ok);
    car_cli_plan_json_number(object, "limit_without", r->limit, ok);
}

static bool add_proof(const car_proof *proof, cJSON *root) {
    cJSON *object = cJSON_AddObjectToObject(root, "proof");
    bool ok = object != NULL;
    car_cli_plan_json_number(object, "period_steps", (double)proof->period, &ok);
    car_cli_plan_json_number(object, "steps", (double)proof->steps, &ok);
    car_cli_plan_json_number(object, "samples", proof->samples, &ok);
    return ok;
}

car_status car_cli_plan_json(const car_plan_subject *s, const car_plan *plan, FILE *stream) {
    car_prediction prediction;
    car_timing timing = {0};
    car_cli_zero zero;
    cJSON *root = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_cli_plan_predict(s, plan, &prediction));
    if (s->options->cluster) {
        CAR_TRY(car_plan_time(plan, &s->cluster, s->compute, &timing));
    }
    CAR_TRY(car_cli_plan_weigh_zero(s, plan, &prediction, &timing, &zero));
    root = cJSON_CreateObject();
    bool ok = root != NULL;
    add_config(s, plan, root, &ok);
    ok = cJSON_AddBoolToObject(root, "validated", s->proof.whole) && ok;
    add_recomputation(s, root, &ok);
    ok = add_proof(&s->proof, root) && ok;
    cJSON *predicted = car_cli_plan_json_prediction(&prediction);
    ok = predicted && cJSON_AddItemToObject(root, "predictions", predicted) && ok;
    status = add_ranks(s, plan, root, &ok);
    if (s->options->cluster) {
        ok = cJSON_AddItemToObject(root, "cluster", car_cli_plan_json_cluster(s)) && ok;
        ok = cJSON_AddItemToObject(root, "timing", car_cli_plan_json_timing(s, &prediction, &timing)) && ok;
    }
    car_cli_plan_json_zero(s, &zero, root, &ok);
    car_cli_plan_json_muon(s, plan, root, &ok);
    add_stages(s, root, &ok);
    add_parameters(s, root, &ok);
    add_convolutions(s, root, &ok);
    if (!ok || status != CAR_OK) {
        cJSON_Delete(root);
        root = NULL;
    }
    CAR_TRY(status);
    status = car_cli_plan_print_json(s->context, root, stream);
done:
    return status;
}
