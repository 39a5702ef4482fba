/* The optimizer in `carousel plan`: what state it keeps, and what Muon computes. */
#include <cjson/cJSON.h>

#include "carousel/convention.h"
#include "carousel/muon.h"
#include "correction.h"
#include "plan.h"

car_status car_cli_plan_read_optimizer(car_plan_subject *s, const car_plan_config *plan) {
    car_status status = CAR_OK;
    s->optimizer = car_optimizer_config_default();
    s->optimizer.average = s->options->ema;
    CAR_TRY(car_optimizer_find(s->context, s->options->optimizer, &s->optimizer));
    CAR_TRY(car_cli_read_correction(s->context, s->options->delay_correction, plan, &s->optimizer));
done:
    return status;
}

/* `auto` depends on the rule, and --compare shows all rules. */
car_optimizer_config car_cli_plan_optimizer(const car_plan_subject *s, const car_plan_config *plan) {
    car_optimizer_config optimizer = s->optimizer;
    if (car_cli_correction_is_auto(s->options->delay_correction, &optimizer)) {
        optimizer.correction = car_correction_choose(plan, &optimizer);
    }
    return optimizer;
}

int car_cli_plan_states(const car_plan_subject *s, const car_plan_config *plan) {
    car_optimizer_config optimizer = car_cli_plan_optimizer(s, plan);
    return car_optimizer_config_states(&optimizer);
}

/* ---- memory ---------------------------------------------------------------------------------- */

car_status car_cli_plan_predict(const car_plan_subject *s, const car_plan *plan, car_prediction *out) {
    car_optimizer_config optimizer = car_cli_plan_optimizer(s, car_plan_config_of(plan));
    return car_plan_predict_optimizer(plan, &optimizer, out);
}

car_status car_cli_plan_predict_rank(const car_plan_subject *s, const car_plan *plan, int rank,
                                     car_device_prediction *out) {
    car_optimizer_config optimizer = car_cli_plan_optimizer(s, car_plan_config_of(plan));
    return car_plan_predict_device_optimizer(plan, rank, &optimizer, out);
}

/* ---- Muon ------------------------------------------------------------------------------------ */

typedef struct muon_work {
    double plain, done; /* operations per update of all parameters: as plain products, and as actually computed */
    double share;       /* share of a step's operations, on the device where it is largest */
} muon_work;

static double stage_flops(const car_partition *p, int stage) {
    double sum = 0;
    for (int l = p->stages[stage].first; l < p->stages[stage].end; l++) {
        sum += car_graph_op(p->graph, l)->flops_forward + car_graph_op(p->graph, l)->flops_backward;
    }
    return sum;
}

/* Muon's share on a device that updates stages first .. end - 1 and computes stages from .. to - 1 for `passes`
 * micro-batches per step. */
static double share_of(const car_partition *p, int first, int end, int from, int to, double passes) {
    double update = 0, work = 0;
    for (int j = first; j < end; j++) {
        update += car_muon_flops(p, j, true);
    }
    for (int j = from; j < to; j++) {
        work += passes * stage_flops(p, j);
    }
    return update > 0 ? update / (update + work) : 0;
}

static double largest_share(const car_partition *p, const car_plan *plan) {
    const car_plan_config *c = car_plan_config_of(plan);
    const car_placement_info *placement = car_placement_info_of(c->placement);
    int stages = p->stage_count, k = car_plan_per_worker(plan);
    bool divided = placement->by_stage || placement->owned; /* each device updates some stages */
    double most = 0;
    for (int first = 0; first < stages; first += divided ? k : stages) {
        double passes = (double)c->workers / car_plan_stage_ranks(plan, first);
        double share = share_of(p, first, divided ? first + k : stages, placement->by_stage ? first : 0,
                                placement->by_stage ? first + k : stages, passes);
        most = share > most ? share : most;
    }
    return most;
}

static bool find_muon(const car_plan_subject *s, const car_plan *plan, muon_work *out) {
    *out = (muon_work){0};
    if (s->optimizer.kind != CAR_OPTIMIZER_MUON) {
        return false;
    }
    for (int j = 0; j < s->partition->stage_count; j++) {
        out->plain += car_muon_flops(s->partition, j, false);
        out->done += car_muon_flops(s->partition, j, true);
    }
    out->share = largest_share(s->partition, plan);
    return true;
}

/* "1.20 TFLOP". */
typedef struct flops_text {
    char text[24];
} flops_text;

static flops_text flops_of(double flops) {
    static const char *const units[] = {"MFLOP", "GFLOP", "TFLOP", "PFLOP"};
    flops_text out;
    int unit = 0;
    for (flops /= 1e6; unit < 3 && flops >= 999.5; flops /= 1000) {
        unit++;
    }
    snprintf(out.text, sizeof out.text,
             flops >= 99.5   ? "%.0f %s"
             : flops >= 9.95 ? "%.1f %s"
                             : "%.2f %s",
             flops, units[unit]);
    return out;
}

void car_cli_plan_print_muon(const car_plan_subject *s, const car_plan *plan, FILE *stream) {
    const car_plan_config *c = car_plan_config_of(plan);
    muon_work muon;
    if (!find_muon(s, plan, &muon)) {
        return;
    }
    const car_placement_info *placement = car_placement_info_of(c->placement);
    bool alone = car_plan_devices(plan) == 1 || placement->one_process;
    fprintf(
        stream,
        "\nMuon\n  an update takes %s of matrix products (%s without using symmetry), %.1f %% of a step's FLOPs%s\n",
        flops_of(muon.done).text, flops_of(muon.plain).text, 100 * muon.share,
        alone ? "" : " on the device with the largest share");
    if (placement->repeated && !placement->by_stage && c->ranks > 1) {
        fprintf(stream, "  every rank repeats it: %s in all; under zero and pipeline each updates its own stages\n",
                flops_of(c->ranks * muon.done).text);
    }
    if (placement->repeated && placement->by_stage) {
        fprintf(stream, "  every rank of a group repeats its stages' part\n");
    }
}

double car_cli_plan_muon_share(const car_plan_subject *s, const car_plan *plan) {
    muon_work muon;
    return find_muon(s, plan, &muon) ? muon.share : 0;
}

void car_cli_plan_json_muon(const car_plan_subject *s, const car_plan *plan, cJSON *root, bool *ok) {
    muon_work muon;
    if (!find_muon(s, plan, &muon)) {
        return;
    }
    cJSON *object = cJSON_AddObjectToObject(root, "muon");
    car_cli_plan_json_number(object, "flops", muon.done, ok);
    car_cli_plan_json_number(object, "flops_without_symmetry", muon.plain, ok);
    car_cli_plan_json_number(object, "share_of_step", muon.share, ok);
    car_cli_plan_json_number(object, "scratch_bytes", (double)car_muon_scratch_bytes(s->graph), ok);
}
