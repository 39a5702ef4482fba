/* `carousel plan --compare`: every rule and placement for one model and number of workers. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "plan.h"

enum { MOST_ROWS = CAR_RULES * CAR_PLACEMENTS };

typedef struct row {
    car_rule rule;
    car_placement placement;
    car_prediction predicted;
    car_timing timing; /* on the cluster, if there is one; not for shared */
    int ahead;         /* the chosen --zero-ahead on the cluster; 0: none was chosen */
} row;

/* A rule and placement that go together in general, but not with these sizes or options. */
typedef struct missing {
    car_rule rule;
    car_placement placement;
    char why[256];
} missing;

typedef struct table {
    row rows[MOST_ROWS];
    missing left_out[MOST_ROWS];
    int count, left_out_count;
} table;

static bool is_one_process(car_placement placement) {
    return car_placement_info_of(placement)->one_process;
}

/* The threads of a process share their memory, so there one device holds everything. */
static double per_device(const row *r) {
    return (double)(is_one_process(r->placement) ? r->predicted.timed.peak : r->predicted.timed.device_peak);
}

static double weights_per_device(const row *r) {
    return (double)(is_one_process(r->placement) ? r->predicted.weights_total : r->predicted.weights_device);
}

static int devices(const row *r) {
    return is_one_process(r->placement) ? 1 : r->predicted.devices;
}

/* ---- collecting ------------------------------------------------------------------------------ */

/* Leaves out options that a rule or placement does not use. Options that it uses stay, even if it refuses their
 * value. */
static car_plan_config config_of(const car_plan_config *base, car_rule rule, car_placement placement) {
    car_plan_config config = *base;
    bool moves = car_placement_info_of(placement)->owned && car_rule_info_of(rule)->spaced;
    config.rule = rule;
    config.placement = placement;
    config.ranks = 0;
    config.threads = is_one_process(placement) ? base->threads : 0;
    config.freshness_slack = car_rule_info_of(rule)->has_slack ? base->freshness_slack : 0;
    config.zero_copies = moves ? base->zero_copies : 0;
    config.zero_ahead = moves ? base->zero_ahead : 0;
    return config;
}

/* Keeps the context's message as the reason, unless these two never go together. */
static void leave_out(const car_plan_subject *s, const car_plan_config *config, table *t) {
    const car_plan_config plain = {.workers = config->workers, .rule = config->rule, .placement = config->placement};
    missing *m = &t->left_out[t->left_out_count];
    car_plan *plan = NULL;
    *m = (missing){.rule = config->rule, .placement = config->placement};
    snprintf(m->why, sizeof m->why, "%s", car_context_error(s->context));
    car_context_clear_error(s->context);
    t->left_out_count += car_plan_create(s->context, s->partition, &plain, &plan) != CAR_ERROR_ARGUMENT;
    car_context_clear_error(s->context);
    car_plan_destroy(plan);
}

static car_status add_row(const car_plan_subject *s, const car_plan_config *base, car_rule rule,
                          car_placement placement, table *t) {
    car_plan_config config = config_of(base, rule, placement);
    car_ahead_choice ahead = {0};
    car_plan *plan = NULL;
    row *r = &t->rows[t->count];
    car_status status = car_plan_create(s->context, s->partition, &config, &plan);
    if (status == CAR_ERROR_ARGUMENT || status == CAR_ERROR_UNSUPPORTED) {
        leave_out(s, &config, t);
        return CAR_OK;
    }
    *r = (row){.rule = rule, .placement = placement};
    CAR_TRY(status);
    CAR_TRY(car_cli_plan_choose_ahead(s, &config, &ahead));
    if (ahead.ahead > 0) {
        car_plan_destroy(plan);
        CAR_TRY(car_plan_create(s->context, s->partition, &config, &plan));
        r->ahead = ahead.ahead;
    }
    CAR_TRY(car_cli_plan_predict(s, plan, &r->predicted));
    if (s->options->cluster && !is_one_process(placement)) {
        CAR_TRY(car_plan_time(plan, &s->cluster, s->compute, &r->timing));
    }
    t->count++;
done:
    car_plan_destroy(plan);
    return status;
}

static car_status add_rules(const car_plan_subject *s, const car_plan_config *base, car_placement placement,
                            car_lateness late, table *t) {
    car_status status = CAR_OK;
    for (int r = 0; r < CAR_RULES && status == CAR_OK; r++) {
        if (car_rule_info_of((car_rule)r)->late == late) {
            status = add_row(s, base, (car_rule)r, placement, t);
        }
    }
    return status;
}

/* Rows are sorted by placement, and within each the baselines come first. */
static car_status collect(const car_plan_subject *s, const car_plan_config *base, table *t) {
    static const car_lateness order[] = {CAR_LATE_NEVER, CAR_LATE_EVERYWHERE, CAR_LATE_PARTLY};
    car_status status = CAR_OK;
    for (int p = 0; p < CAR_PLACEMENTS * 3 && status == CAR_OK; p++) {
        status = add_rules(s, base, (car_placement)(p / 3), order[p % 3], t);
    }
    return status;
}

/* ---- as a table ------------------------------------------------------------------------------ */

static void print_row(const row *r, FILE *stream) {
    const car_prediction *p = &r->predicted;
    char rounds[16] = "-";
    if (p->rounds_between_slots > 0) {
        snprintf(rounds, sizeof rounds, "%d", p->rounds_between_slots);
    }
    fprintf(stream, "%-9s %-10s  %7d  %9s  %9s  %5.2f  %9s %2d  %9s  %7s  %5d  %4.0f %%  %5.2f\n",
            car_placement_text(r->placement), car_rule_text(r->rule), devices(r), car_size_shown(per_device(r)).text,
            car_size_shown((double)p->timed.peak).text, p->peak_ratio_to_dp, car_size_shown(weights_per_device(r)).text,
            p->versions, p->bytes_sent_device > 0 ? car_size_shown(p->bytes_sent_device).text : "-", rounds,
            p->gradient_delay, 100 * p->timed.idle, p->timed.step_time);
}

/* The second table: times on the cluster. */
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
        if (is_one_process(r->placement)) {
            continue;
        }
        fprintf(stream, "%-9s %-10s  %7d%c %9s%c  %10s  %9s  %6.1f %%  %9s  %9s  %4.0f %%\n",
                car_placement_text(r->placement), car_rule_text(r->rule), devices(r),
                car_cli_plan_fits_devices(s, &r->predicted) ? ' ' : '+',
                car_size_shown(car_cli_plan_memory(&r->predicted)).text,
                car_cli_plan_fits_memory(s, &r->predicted) ? ' ' : '*', car_cli_seconds(timing->free_step).text,
                car_cli_seconds(timing->step).text, 100 * timing->exposed / timing->step,
                car_size_shown(timing->mean_rate).text, car_size_shown(timing->peak_rate).text, 100 * timing->busiest);
    }
    for (int n = 0; n < t->count; n++) {
        if (t->rows[n].ahead > 0) {
            fprintf(stream, "%s over %s: copies of weights are sent on up to %d slots before their use.\n",
                    car_rule_text(t->rows[n].rule), car_placement_text(t->rows[n].placement), t->rows[n].ahead);
        }
    }
    fputs("Devices: + means more than the cluster has. Memory: activations, weights, sums and optimizer of the device "
          "that needs\n"
          "most; * means more than a device has. Exposed: what the network adds to a step. Sent: by all devices "
          "together.\n",
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

/* The first row of a rule under a placement with some property. */
static const row *find_where(const table *t, car_rule rule, bool (*is)(car_placement placement)) {
    for (int n = 0; n < t->count; n++) {
        if (t->rows[n].rule == rule && is(t->rows[n].placement)) {
            return &t->rows[n];
        }
    }
    return NULL;
}

/* True if each device has its own stages. */
static bool is_pipeline(car_placement placement) {
    const car_placement_info *info = car_placement_info_of(placement);
    return info->by_stage && !info->repeated;
}

/* True if each device has all weights and its own workers. */
static bool is_copy(car_placement placement) {
    const car_placement_info *info = car_placement_info_of(placement);
    return !info->by_stage && info->repeated;
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

/* ---- where the cycle loses ----------------------------------------------------------------------- */

/* A number as shown in the table. */
typedef struct shown {
    const char *what, *after; /* "a step takes", " a device" */
    double value;
    char text[24];
} shown;

enum { SHOWN_STEP, SHOWN_TIME, SHOWN_DEVICE, SHOWN_TOTAL, SHOWN_WEIGHTS, SHOWN_MEMORY, SHOWN_NUMBERS };

static shown show_bytes(const char *what, const char *after, double bytes) {
    shown s = {.what = what, .after = after, .value = bytes};
    snprintf(s.text, sizeof s.text, "%s", car_size_shown(bytes).text);
    return s;
}

/* Lists the columns for step time and memory. Columns that the table does not have are 0. */
static void list_shown(const car_plan_subject *s, const row *r, shown out[SHOWN_NUMBERS]) {
    bool timed = s->options->cluster && !is_one_process(r->placement);
    const char *where = is_one_process(r->placement) ? "" : " a device";
    out[SHOWN_STEP] = (shown){.what = "a step takes", .after = "", .value = timed ? r->timing.step : 0};
    snprintf(out[SHOWN_STEP].text, sizeof out->text, "%s", car_cli_seconds(out[SHOWN_STEP].value).text);
    out[SHOWN_TIME] = (shown){.what = "the time is", .after = "", .value = r->predicted.timed.step_time};
    snprintf(out[SHOWN_TIME].text, sizeof out->text, "%.2f", r->predicted.timed.step_time);
    out[SHOWN_DEVICE] = show_bytes("activations are", where, per_device(r));
    out[SHOWN_TOTAL] = show_bytes("activations are", " in total", *where ? (double)r->predicted.timed.peak : 0);
    out[SHOWN_WEIGHTS] = show_bytes("weights are", where, weights_per_device(r));
    out[SHOWN_MEMORY] = show_bytes("memory is", where, timed ? car_cli_plan_memory(&r->predicted) : 0);
}

/* Lists everything for which the table shows more for the cycle than for dp: "a step takes 3.23 s, not 740 ms; ...". */
static void list_drawbacks(const car_plan_subject *s, const row *cycle, const row *dp, char *text, size_t capacity) {
    shown ours[SHOWN_NUMBERS], theirs[SHOWN_NUMBERS];
    size_t used = 0;
    bool slower = false;
    list_shown(s, cycle, ours);
    list_shown(s, dp, theirs);
    text[0] = '\0';
    for (int n = 0; n < SHOWN_NUMBERS && used < capacity; n++) {
        bool more = ours[n].value > theirs[n].value && strcmp(ours[n].text, theirs[n].text) != 0;
        if (!more || (n == SHOWN_TIME && slower)) {
            continue;
        }
        slower |= n == SHOWN_STEP;
        used += (size_t)snprintf(text + used, capacity - used, "%s%s %s%s, not %s", used ? "; " : "", ours[n].what,
                                 ours[n].text, ours[n].after, theirs[n].text);
    }
}

/* Prints a line for each placement and cyclic rule that the table shows slower or hungrier than dp in that
 * placement. Rules with the same numbers share a line. Returns the number of lines. */
static int print_drawbacks(const car_plan_subject *s, const table *t, FILE *stream) {
    char text[CAR_RULES][384], names[128];
    int said = 0;
    for (int placement = 0; placement < CAR_PLACEMENTS; placement++) {
        const row *dp = find(t, CAR_RULE_DP, (car_placement)placement);
        for (int r = 0; r < CAR_RULES; r++) {
            const car_rule_info *rule = car_rule_info_of((car_rule)r);
            const row *cycle = find(t, (car_rule)r, (car_placement)placement);
            text[r][0] = '\0';
            if (dp && cycle && rule->cyclic && rule->anywhere) {
                list_drawbacks(s, cycle, dp, text[r], sizeof text[r]);
            }
        }
        for (int r = 0; r < CAR_RULES; r++) {
            size_t used = 0;
            for (int other = r; text[r][0] && other < CAR_RULES && used < sizeof names; other++) {
                if (other > r && strcmp(text[other], text[r]) != 0) {
                    continue;
                }
                used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? " and " : "",
                                         car_rule_text((car_rule)other));
                text[other][0] = other > r ? '\0' : text[other][0];
            }
            said += used > 0 && fprintf(stream, "- %s, %s, beside dp: %s.\n",
                                        car_placement_text((car_placement)placement), names, text[r]) > 0;
        }
    }
    return said;
}

/* Says where the cycle is not the best choice, from the numbers of the table. */
static void print_judgement(const car_plan_subject *s, const car_plan_config *base, const table *t, FILE *stream) {
    const row *accumulate = find_where(t, CAR_RULE_ACCUMULATE, is_one_process);
    const row *cycle = find_where(t, CAR_RULE_CDP_V2, is_one_process);
    const row *one_f = find_where(t, CAR_RULE_1F1B, is_pipeline);
    const row *piped = find_where(t, CAR_RULE_CDP_V2, is_pipeline);
    const row *dp = find_where(t, CAR_RULE_DP, is_copy), *ring = find_where(t, CAR_RULE_CDP_V2, is_copy);
    fputs("\nWhere cyclic data parallelism is not the best choice here:\n", stream);
    int said = print_drawbacks(s, t, stream);
    double one = (double)s->partition->curve.peak;
    if (base->threads != 1) {
        said += fprintf(
            stream, "- on one thread or device, accumulate (--threads 1) holds one micro-batch, %s, without delay.\n",
            car_size_shown(one).text);
    }
    if (accumulate && cycle && accumulate->predicted.timed.peak < cycle->predicted.timed.peak) {
        int threads = base->threads ? base->threads : base->workers;
        said += fprintf(stream,
                        "- in one process with %d %s, accumulate holds %s where cdp-v2 holds %s, without delay, at "
                        "%.2f x its time.\n",
                        threads, threads == 1 ? "thread" : "threads",
                        car_size_shown((double)accumulate->predicted.timed.peak).text,
                        car_size_shown((double)cycle->predicted.timed.peak).text,
                        accumulate->predicted.timed.step_time / cycle->predicted.timed.step_time);
    }
    if (one_f && piped && (double)one_f->predicted.timed.peak <= 1.05 * (double)piped->predicted.timed.peak) {
        said +=
            fprintf(stream,
                    "- in a pipeline, 1f1b holds %s, about as much as cdp-v2 with %s, but one version and no delay; it "
                    "idles %.0f %%.\n",
                    car_size_shown((double)one_f->predicted.timed.peak).text,
                    car_size_shown((double)piped->predicted.timed.peak).text, 100 * one_f->predicted.timed.idle);
    }
    if (dp && ring && per_device(ring) >= 0.99 * per_device(dp)) {
        said += fprintf(stream,
                        "- with a device for each worker, a device's own peak under replica stays %s: only the sum and "
                        "the burst fall.\n",
                        car_size_shown(per_device(ring)).text);
    }
    if (dp && ring && ring->predicted.bytes_sent_device > 1.01 * dp->predicted.bytes_sent_device) {
        said += fprintf(stream,
                        "- replica sends %s per step and device, dp's all-reduce %s: it spreads the traffic, but does "
                        "not reduce it.\n",
                        car_size_shown(ring->predicted.bytes_sent_device).text,
                        car_size_shown(dp->predicted.bytes_sent_device).text);
    }
    if (said == 0) {
        fputs("- nowhere, by these numbers.\n", stream);
    }
}

/* Those with the same reason share a line. */
static void print_left_out(const table *t, FILE *stream) {
    bool said[MOST_ROWS] = {false};
    for (int n = 0; n < t->left_out_count; n++) {
        const char *before = "";
        if (said[n]) {
            continue;
        }
        fprintf(stream, "%sLeft out: ", n == 0 ? "\n" : "");
        for (int other = n; other < t->left_out_count; other++) {
            const missing *m = &t->left_out[other];
            if (strcmp(m->why, t->left_out[n].why) == 0) {
                fprintf(stream, "%s%s %s", before, car_placement_text(m->placement), car_rule_text(m->rule));
                before = ", ";
                said[other] = true;
            }
        }
        fprintf(stream, ": %s\n", t->left_out[n].why);
    }
}

static void print_table(const car_plan_subject *s, const car_plan_config *base, const table *t, FILE *stream) {
    fprintf(stream,
            "%s: %d workers of %d, %d stages; a micro-batch holds %s for backward, weights are %s; limit %.2f\n\n",
            s->options->model, base->workers, s->options->shape.batch, s->partition->stage_count,
            car_size_shown((double)s->partition->held_bytes).text,
            car_size_shown((double)car_graph_param_bytes(s->graph)).text, s->partition->limit);
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
    print_left_out(t, stream);
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
              cJSON_AddNumberToObject(object, "devices", devices(r)) &&
              (r->ahead == 0 || cJSON_AddNumberToObject(object, "zero_ahead", r->ahead));
    ok = ok && cJSON_AddItemToObject(object, "predictions", predicted);
    if (ok && s->options->cluster && !is_one_process(r->placement)) {
        predicted = car_cli_plan_json_timing(s, &r->predicted, &r->timing);
        ok = cJSON_AddItemToObject(object, "timing", predicted);
    }
    if (!ok) {
        cJSON_Delete(predicted);
        cJSON_Delete(object);
    }
    return ok ? object : NULL;
}

static bool add_left_out(const table *t, cJSON *root) {
    cJSON *list = cJSON_AddArrayToObject(root, "left_out");
    bool ok = list != NULL;
    for (int n = 0; ok && n < t->left_out_count; n++) {
        const missing *m = &t->left_out[n];
        cJSON *object = cJSON_CreateObject();
        ok = object && cJSON_AddItemToArray(list, object) &&
             cJSON_AddStringToObject(object, "rule", car_rule_text(m->rule)) &&
             cJSON_AddStringToObject(object, "placement", car_placement_text(m->placement)) &&
             cJSON_AddStringToObject(object, "why", m->why);
    }
    return ok;
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
    ok = ok && add_left_out(t, root);
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
