/* `carousel plan --compare`: every rule and placement for one model and number of workers. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "plan.h"

enum { MOST_ROWS = CAR_RULES * CAR_PLACEMENTS };

typedef struct row {
    car_rule rule;
    car_placement placement;
    car_prediction predicted;
    car_timing timing; /* on the cluster, if there is one; not of shared */
} row;

typedef struct table {
    row rows[MOST_ROWS];
    int count;
} table;

/* A process's threads share their memory, so there the whole is what one device holds. */
static double per_device(const row *r) {
    return (double)(r->placement == CAR_PLACEMENT_SHARED ? r->predicted.timed.peak : r->predicted.timed.device_peak);
}

static double weights_per_device(const row *r) {
    return (double)(r->placement == CAR_PLACEMENT_SHARED ? r->predicted.weights_total : r->predicted.weights_device);
}

static int devices(const row *r) {
    return r->placement == CAR_PLACEMENT_SHARED ? 1 : r->predicted.devices;
}

/* ---- collecting ------------------------------------------------------------------------------ */

/* Rows stand in the order of placements, and in each the baselines first. */
static const car_rule order[] = {CAR_RULE_DP,     CAR_RULE_ACCUMULATE, CAR_RULE_GPIPE, CAR_RULE_1F1B,
                                 CAR_RULE_CDP_V1, CAR_RULE_2BW,        CAR_RULE_CDP_V2};

static car_status add_row(const car_plan_subject *s, const car_plan_config *base, car_rule rule,
                          car_placement placement, table *t) {
    car_plan_config config = *base;
    car_plan *plan = NULL;
    config.rule = rule;
    config.placement = placement;
    config.ranks = 0;
    config.threads = placement == CAR_PLACEMENT_SHARED ? base->threads : 0;
    config.freshness_slack = rule == CAR_RULE_CDP_V2 ? base->freshness_slack : 0;
    car_status status = car_plan_create(s->context, s->partition, &config, &plan);
    if (status == CAR_ERROR_ARGUMENT || status == CAR_ERROR_UNSUPPORTED) {
        car_context_clear_error(s->context); /* these two do not go together */
        return CAR_OK;
    }
    row *r = &t->rows[t->count];
    *r = (row){.rule = rule, .placement = placement};
    status = status == CAR_OK ? car_plan_predict(plan, s->optimizer_states, &r->predicted) : status;
    if (status == CAR_OK && s->options->cluster && placement != CAR_PLACEMENT_SHARED) {
        status = car_plan_time(plan, &s->cluster, s->compute, &r->timing);
    }
    t->count += status == CAR_OK;
    car_plan_destroy(plan);
    return status;
}

static car_status collect(const car_plan_subject *s, const car_plan_config *base, table *t) {
    for (int placement = 0; placement < CAR_PLACEMENTS; placement++) {
        for (int n = 0; n < CAR_RULES; n++) {
            car_status status = add_row(s, base, order[n], (car_placement)placement, t);
            if (status != CAR_OK) {
                return status;
            }
        }
    }
    return CAR_OK;
}

/* ---- as a table ------------------------------------------------------------------------------ */

static void print_row(const row *r, FILE *stream) {
    const car_prediction *p = &r->predicted;
    char rounds[16] = "-";
    if (p->rounds_between_slots > 0) {
        snprintf(rounds, sizeof rounds, "%d", p->rounds_between_slots);
    }
    fprintf(stream, "%-9s %-10s  %7d  %9s  %9s  %5.2f  %9s %2d  %9s  %7s  %5d  %4.0f %%  %5.2f\n",
            car_placement_text(r->placement), car_rule_text(r->rule), devices(r), car_cli_bytes(per_device(r)).text,
            car_cli_bytes((double)p->timed.peak).text, p->peak_ratio_to_dp, car_cli_bytes(weights_per_device(r)).text,
            p->versions, p->bytes_sent_device > 0 ? car_cli_bytes(p->bytes_sent_device).text : "-", rounds,
            p->gradient_delay, 100 * p->timed.idle, p->timed.step_time);
}

/* The second table: what the cluster makes of it. */
static void print_timings(const car_plan_subject *s, const table *t, FILE *stream) {
    fputc('\n', stream);
    car_cli_plan_describe_cluster(s, stream);
    fputs(
        "                                  memory           without              exposed    sent a second    busiest\n"
        "placement rule        devices   a device       network       step     share     mean      peak      link\n",
        stream);
    for (int n = 0; n < t->count; n++) {
        const row *r = &t->rows[n];
        const car_timing *timing = &r->timing;
        if (r->placement == CAR_PLACEMENT_SHARED) {
            continue;
        }
        fprintf(stream, "%-9s %-10s  %7d  %9s%c  %10s  %9s  %6.1f %%  %9s  %9s  %4.0f %%\n",
                car_placement_text(r->placement), car_rule_text(r->rule), devices(r),
                car_cli_bytes(car_cli_plan_memory(&r->predicted)).text, car_cli_plan_fits(s, &r->predicted) ? ' ' : '*',
                car_cli_seconds(timing->free_step).text, car_cli_seconds(timing->step).text,
                100 * timing->exposed / timing->step, car_cli_bytes(timing->mean_rate).text,
                car_cli_bytes(timing->peak_rate).text, 100 * timing->busiest);
    }
    fputs("Memory: activations, weights, sums and optimizer of the device that needs most; * does not fit. Exposed: "
          "what the\nnetwork adds to a step. Sent: by all devices together.\n",
          stream);
}

static const row *find(const table *t, car_rule rule, car_placement placement) {
    for (int n = 0; n < t->count; n++) {
        if (t->rows[n].rule == rule && t->rows[n].placement == placement) {
            return &t->rows[n];
        }
    }
    return NULL;
}

static void print_legend(FILE *stream) {
    fputs("\nActivations are self-timed peaks: of the device that needs most, and of all devices together, also as a "
          "share of\n"
          "dp's. Weights are those of the device that holds most, with the number of versions. Sent: by the busiest "
          "device in a\n"
          "step. Rounds: messages that must follow each other between two slots. Delay: age of gradients in steps. "
          "Time: of a\n"
          "step, where one worker's forwards and backwards take 1.\n",
          stream);
}

/* Where the cycle is not the best choice, from the numbers of the table. */
static void print_judgement(const car_plan_subject *s, const car_plan_config *base, const table *t, FILE *stream) {
    const row *accumulate = find(t, CAR_RULE_ACCUMULATE, CAR_PLACEMENT_SHARED);
    const row *cycle = find(t, CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED);
    const row *one_f = find(t, CAR_RULE_1F1B, CAR_PLACEMENT_PIPELINE);
    const row *piped = find(t, CAR_RULE_CDP_V2, CAR_PLACEMENT_PIPELINE);
    const row *dp = find(t, CAR_RULE_DP, CAR_PLACEMENT_REPLICA),
              *ring = find(t, CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA);
    fputs("\nWhere cyclic data parallelism is not the best choice here:\n", stream);
    int said = 0;
    double one = (double)s->partition->curve.peak;
    if (base->threads != 1) {
        said += fprintf(
            stream, "- on one thread or device, accumulate (--threads 1) holds one micro-batch, %s, without delay.\n",
            car_cli_bytes(one).text);
    }
    if (accumulate && cycle && accumulate->predicted.timed.peak < cycle->predicted.timed.peak) {
        said += fprintf(
            stream, "- in one process, accumulate holds %s where cdp-v2 holds %s, without delay, at %.2f x its time.\n",
            car_cli_bytes((double)accumulate->predicted.timed.peak).text,
            car_cli_bytes((double)cycle->predicted.timed.peak).text,
            accumulate->predicted.timed.step_time / cycle->predicted.timed.step_time);
    }
    if (one_f && piped && (double)one_f->predicted.timed.peak <= 1.05 * (double)piped->predicted.timed.peak) {
        said +=
            fprintf(stream,
                    "- in a pipeline, 1f1b holds %s, about as much as cdp-v2 with %s, but one version and no delay; it "
                    "idles %.0f %%.\n",
                    car_cli_bytes((double)one_f->predicted.timed.peak).text,
                    car_cli_bytes((double)piped->predicted.timed.peak).text, 100 * one_f->predicted.timed.idle);
    }
    if (dp && ring && per_device(ring) >= 0.99 * per_device(dp)) {
        said += fprintf(stream,
                        "- with a device for each worker, a device's own peak under replica stays %s: only the sum and "
                        "the burst fall.\n",
                        car_cli_bytes(per_device(ring)).text);
    }
    if (dp && ring && ring->predicted.bytes_sent_device > 1.01 * dp->predicted.bytes_sent_device) {
        said += fprintf(
            stream,
            "- replica sends %s a step and device, dp's all-reduce %s: it spreads traffic, it does not save it.\n",
            car_cli_bytes(ring->predicted.bytes_sent_device).text, car_cli_bytes(dp->predicted.bytes_sent_device).text);
    }
    if (said == 0) {
        fputs("- nowhere, by these numbers.\n", stream);
    }
}

static void print_table(const car_plan_subject *s, const car_plan_config *base, const table *t, FILE *stream) {
    fprintf(stream,
            "%s: %d workers of %d, %d stages; a micro-batch holds %s for backward, weights are %s; limit %.2f\n\n",
            s->options->model, base->workers, s->options->shape.batch, s->partition->stage_count,
            car_cli_bytes((double)s->partition->held_bytes).text,
            car_cli_bytes((double)car_graph_param_bytes(s->graph)).text, s->partition->limit);
    fputs("                                activations             of       weights        sent   rounds\n"
          "placement rule        devices   a device      total     dp      a device v    a device  between  delay  "
          "idle   time\n",
          stream);
    for (int n = 0; n < t->count; n++) {
        if (n > 0 && t->rows[n].placement != t->rows[n - 1].placement) {
            fputc('\n', stream);
        }
        print_row(&t->rows[n], stream);
    }
    print_legend(stream);
    if (s->options->cluster) {
        print_timings(s, t, stream);
    }
    print_judgement(s, base, t, stream);
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static cJSON *row_object(const car_plan_subject *s, const row *r) {
    cJSON *object = cJSON_CreateObject(), *predicted = car_cli_plan_json_prediction(&r->predicted);
    bool ok = object && predicted && cJSON_AddStringToObject(object, "rule", car_rule_text(r->rule)) &&
              cJSON_AddStringToObject(object, "placement", car_placement_text(r->placement)) &&
              cJSON_AddNumberToObject(object, "devices", devices(r));
    ok = ok && cJSON_AddItemToObject(object, "predictions", predicted);
    if (ok && s->options->cluster && r->placement != CAR_PLACEMENT_SHARED) {
        predicted = car_cli_plan_json_timing(s, &r->predicted, &r->timing);
        ok = cJSON_AddItemToObject(object, "timing", predicted);
    }
    if (!ok) {
        cJSON_Delete(predicted);
        cJSON_Delete(object);
    }
    return ok ? object : NULL;
}

static car_status print_json(const car_plan_subject *s, const car_plan_config *base, const table *t, FILE *stream) {
    cJSON *root = cJSON_CreateObject();
    bool ok = root && cJSON_AddStringToObject(root, "model", s->options->model) &&
              cJSON_AddNumberToObject(root, "workers", base->workers) &&
              cJSON_AddNumberToObject(root, "stage_count", s->partition->stage_count) &&
              cJSON_AddNumberToObject(root, "batch", s->options->shape.batch) &&
              cJSON_AddNumberToObject(root, "limit", s->partition->limit);
    if (ok && s->options->cluster) {
        ok = cJSON_AddItemToObject(root, "cluster", car_cli_plan_json_cluster(s));
    }
    cJSON *rows = cJSON_AddArrayToObject(root, "plans");
    for (int n = 0; ok && n < t->count; n++) {
        ok = cJSON_AddItemToArray(rows, row_object(s, &t->rows[n]));
    }
    if (!ok) {
        cJSON_Delete(root);
        root = NULL;
    }
    return car_cli_plan_print_json(s->context, root, stream);
}

car_status car_cli_plan_compare(const car_plan_subject *s, const car_plan_config *base, FILE *stream) {
    table t = {.count = 0};
    car_status status = collect(s, base, &t);
    if (status == CAR_OK && s->options->json) {
        return print_json(s, base, &t, stream);
    }
    if (status == CAR_OK) {
        print_table(s, base, &t, stream);
    }
    return status;
}
