/* `carousel plan --placement zero`: chooses how early copies are sent on, and compares its two forms, with one copy
 * of a version or two. */
#include <cjson/cJSON.h>
#include <math.h>

#include "carousel/convention.h"
#include "plan.h"
#include "recompute.h"

/* Limits on micro-batches per step times stages: up to `few` the other form is planned, too; up to `some` weights
 * are counted. Beyond that the page would take too long. */
static const int64_t few = 1 << 14, some = 1 << 17;

static int64_t size_of(const car_plan_subject *s, const car_plan_config *config) {
    return (int64_t)config->workers * (config->accumulate > 1 ? config->accumulate : 1) * s->partition->stage_count;
}

static bool moves_weights(const car_plan_config *config) {
    return car_placement_info_of(config->placement)->owned && car_rule_info_of(config->rule)->spaced &&
           config->workers > 1;
}

/* ---- how early ------------------------------------------------------------------------------- */

car_status car_cli_plan_choose_ahead(const car_plan_subject *s, car_plan_config *config, car_ahead_choice *out) {
    const car_plan_options *o = s->options;
    double memory = s->cluster.memory, limit = 0;
    car_optimizer_config optimizer = car_cli_plan_optimizer(s, config);
    car_status status = CAR_OK;
    *out = (car_ahead_choice){0};
    if (!o->cluster || !moves_weights(config) || config->zero_copies == 1 || config->zero_ahead != 0) {
        return CAR_OK;
    }
    CAR_TRY(car_cli_read_memory_limit(s->context, o->memory_limit, &limit));
    memory = limit > 0 && (memory <= 0 || limit < memory) ? limit : memory;
    CAR_TRY(car_plan_choose_ahead(s->context, s->partition, config, &s->cluster, s->compute, &optimizer, memory, out));
    config->zero_ahead = out->ahead;
done:
    return status;
}

/* ---- both forms ------------------------------------------------------------------------------ */

static car_status look_at(const car_plan_subject *s, const car_plan *plan, const car_prediction *prediction,
                          const car_timing *timing, car_cli_zero_form *out) {
    const car_plan_config *config = car_plan_config_of(plan);
    car_status status = CAR_OK;
    *out = (car_cli_zero_form){.shown = true,
                               .copies = config->zero_copies,
                               .ahead = config->zero_ahead,
                               .step = s->options->cluster ? timing->step : prediction->timed.step_time,
                               .memory = car_cli_plan_memory(prediction),
                               .sent = prediction->bytes_sent_device};
    if (size_of(s, config) <= some) {
        CAR_TRY(car_plan_count_weights(plan, &out->weights));
        out->counted = true;
    }
done:
    return status;
}

static car_status plan_other(const car_plan_subject *s, const car_plan_config *shown, car_cli_zero_form *out) {
    car_plan_config config = *shown;
    car_plan *plan = NULL;
    car_prediction prediction;
    car_timing timing = {0};
    car_status status = CAR_OK;
    config.zero_copies = shown->zero_copies == 1 ? 2 : 1;
    config.zero_ahead = 0;
    CAR_TRY(car_plan_create(s->context, s->partition, &config, &plan));
    CAR_TRY(car_cli_plan_predict(s, plan, &prediction));
    if (s->options->cluster) {
        CAR_TRY(car_plan_time(plan, &s->cluster, s->compute, &timing));
    }
    CAR_TRY(look_at(s, plan, &prediction, &timing, out));
done:
    car_plan_destroy(plan);
    return status;
}

/* The bytes that a device sends under dp over zero: weights for each forward and backward, and its part of the sums. */
static double sent_by_dp(const car_plan_subject *s, const car_plan_config *config) {
    double bytes = 0;
    for (int b = 0; b < s->partition->bundle_count; b++) {
        const car_bundle *bundle = &s->partition->bundles[b];
        bytes += 2.0 * config->accumulate * (double)bundle->copy_bytes + (double)bundle->bytes;
    }
    return bytes * (config->workers - 1) / config->workers;
}

/* The most that a rank sends with two copies: each stage's copies along both chains and its sum, once per
 * micro-batch, and the beginnings of the chains that it owns. */
static double most_sent(const car_plan_subject *s, const car_plan_config *config, const car_weights_ledger *weights) {
    double copies = 0, sums = 0;
    for (int b = 0; b < s->partition->bundle_count; b++) {
        copies += (double)s->partition->bundles[b].copy_bytes;
        sums += (double)s->partition->bundles[b].bytes;
    }
    double rounds = config->sum_order == CAR_SUM_ORDER_WORKER ? 1 : config->accumulate;
    return 2 * config->accumulate * copies + rounds * sums + 2 * (double)weights->owned;
}

/* True if a copy has left by the end of the forward or backward during which it is sent, on links of its own. Also
 * finds the copy that takes longest relative to what is computed meanwhile. */
static bool leaves_in_time(const car_plan_subject *s, const car_plan *plan, double *takes, double *lasts) {
    const car_cluster *c = &s->cluster;
    bool between = car_plan_devices(plan) > c->devices_per_node;
    double bandwidth = between ? c->between.bandwidth : c->inside.bandwidth;
    if (between && c->devices_per_node > 1) {
        bandwidth = fmin(bandwidth, c->inside.bandwidth);
    }
    *takes = 0;
    *lasts = 1;
    for (int j = 0; j < s->partition->stage_count; j++) {
        const car_stage *stage = &s->partition->stages[j];
        double seconds = (between ? c->between : c->inside).latency + (double)stage->copy_bytes / bandwidth;
        double computed = s->compute * fmin(stage->forward, stage->backward);
        if (stage->copy_bytes > 0 && seconds * *lasts > *takes * computed) {
            *takes = seconds;
            *lasts = computed;
        }
    }
    return *takes <= *lasts;
}

car_status car_cli_plan_weigh_zero(const car_plan_subject *s, const car_plan *plan, const car_prediction *prediction,
                                   const car_timing *timing, car_cli_zero *out) {
    const car_plan_config *config = car_plan_config_of(plan);
    car_cli_zero_form *own = &out->forms[config->zero_copies == 2], *other = &out->forms[config->zero_copies != 2];
    car_status status = CAR_OK;
    *out = (car_cli_zero){0};
    if (!moves_weights(config)) {
        return CAR_OK;
    }
    out->shown = true;
    CAR_TRY(look_at(s, plan, prediction, timing, own));
    if (size_of(s, config) <= few) {
        CAR_TRY(plan_other(s, config, other));
    }
    out->sent_by_dp = sent_by_dp(s, config);
    if (out->forms[1].counted) {
        out->most_sent = most_sent(s, config, &out->forms[1].weights);
    }
    if (s->options->cluster) {
        out->in_time = leaves_in_time(s, plan, &out->takes, &out->lasts);
    }
done:
    return status;
}

/* ---- for people ------------------------------------------------------------------------------ */

static car_size_text times_parameters(const car_cli_zero_form *form, size_t bytes) {
    car_size_text text = {"-"};
    if (form->shown && form->counted) {
        snprintf(text.text, sizeof text.text, "%.2f x",
                 (double)bytes / (double)(form->weights.parameters ? form->weights.parameters : 1));
    }
    return text;
}

static void print_row(const char *what, car_size_text one, car_size_text two, FILE *stream) {
    fprintf(stream, "  %-48s  %10s  %10s\n", what, one.text, two.text);
}

static car_size_text step_text(const car_plan_subject *s, const car_cli_zero_form *form) {
    car_size_text text = {"-"};
    if (form->shown && s->options->cluster) {
        return car_cli_seconds(form->step);
    }
    if (form->shown) {
        snprintf(text.text, sizeof text.text, "%.2f", form->step);
    }
    return text;
}

static car_size_text bytes_text(const car_cli_zero_form *form, double bytes) {
    return form->shown ? car_size_shown(bytes) : (car_size_text){"-"};
}

static void print_choice(const car_plan_subject *s, FILE *stream) {
    const car_ahead_choice *c = &s->ahead;
    if (c->ahead == 0) {
        return;
    }
    fprintf(stream, "  L = %d was chosen", c->ahead);
    for (int t = 0; t < c->count; t++) {
        fprintf(stream, "%s %d: %s", t ? "," : "; step times with L =", c->trials[t].ahead,
                car_cli_seconds(c->trials[t].step).text);
        if (c->trials[t].memory > 0) {
            fprintf(stream, " (%s)", car_size_shown(c->trials[t].memory).text);
        }
    }
    fputs(c->count ? "\n" : " without timing others: the plan is large\n", stream);
}

/* Prints the weights to the byte, beside the bounds. The bounds hold where copies are sent on in the slot of their
 * use: L = 2k. */
static void print_ledger(const car_plan_subject *s, const car_plan *plan, const car_cli_zero *z, FILE *stream) {
    const car_cli_zero_form *form = &z->forms[car_plan_config_of(plan)->zero_copies == 2];
    const car_weights_ledger *w = &form->weights;
    bool bounded = form->copies == 2 && form->ahead == 2 * car_plan_per_worker(plan);
    if (!form->counted) {
        return;
    }
    fprintf(stream,
            "  All ranks together hold at most %zu bytes of weights if copies have left by the end of their slot%s,\n",
            w->left, bounded ? " (bound: 4 x)" : "");
    fprintf(stream, "  and %zu if sends last until they are due%s", w->lasting, bounded ? " (bound: 5 x)" : "");
    if (w->tied > 0) {
        fprintf(stream, "; tied parameters, %s, add at most %zu and %zu", car_size_shown((double)w->tied).text,
                w->left_tied, w->lasting_tied);
    }
    fputs(".\n", stream);
    if (form->copies == 2) {
        fprintf(stream, "  A rank sends at most %s (its bound), dp over zero %s.\n", car_size_shown(z->most_sent).text,
                car_size_shown(z->sent_by_dp).text);
    }
    if (s->options->cluster) {
        fprintf(stream, "  On this cluster %s: a copy takes up to %s on its own link, during %s of computing.\n",
                z->in_time ? "copies leave in time" : "sends last", car_cli_seconds(z->takes).text,
                car_cli_seconds(z->lasts).text);
    }
}

void car_cli_plan_print_zero(const car_plan_subject *s, const car_plan *plan, const car_cli_zero *z, FILE *stream) {
    const car_cli_zero_form *one = &z->forms[0], *two = &z->forms[1];
    const car_cli_zero_form *any = one->counted ? one : two;
    char title[64] = "two copies", all[64];
    if (!z->shown) {
        return;
    }
    if (two->shown) {
        snprintf(title, sizeof title, "two, L = %d", two->ahead);
    }
    fprintf(stream, "\nWeights that go round, in both forms (--zero-copies)  %8s  %10s\n", "one copy", title);
    print_row(s->options->cluster ? "a step on the cluster" : "a step, if messages took no time", step_text(s, one),
              step_text(s, two), stream);
    print_row("memory of the device that needs most", bytes_text(one, one->memory), bytes_text(two, two->memory),
              stream);
    print_row("sent by a rank in a step, at most", bytes_text(one, one->sent), bytes_text(two, two->sent), stream);
    if (any->counted) {
        snprintf(all, sizeof all,
                 "all ranks' at once, of all parameters' %s:", car_size_shown((double)any->weights.parameters).text);
        fprintf(stream, "  %s\n", all);
        print_row("  copies have left by the end of their slot", times_parameters(one, one->weights.left),
                  times_parameters(two, two->weights.left), stream);
        print_row("  sends last until they are due", times_parameters(one, one->weights.lasting),
                  times_parameters(two, two->weights.lasting), stream);
    }
    print_ledger(s, plan, z, stream);
    print_choice(s, stream);
    if (!one->shown || !two->shown) {
        fprintf(stream, "  The other form is planned for up to %lld micro-batches times stages.\n", (long long)few);
    }
}

/* ---- for machines ---------------------------------------------------------------------------- */

static cJSON *form_object(const car_plan_subject *s, const car_cli_zero_form *form, bool *ok) {
    cJSON *object = cJSON_CreateObject();
    car_cli_plan_json_number(object, "copies", form->copies, ok);
    car_cli_plan_json_number(object, "ahead", form->ahead, ok);
    car_cli_plan_json_number(object, s->options->cluster ? "step_s" : "step_time", form->step, ok);
    car_cli_plan_json_number(object, "memory_device_bytes", form->memory, ok);
    car_cli_plan_json_number(object, "bytes_sent_device", form->sent, ok);
    if (form->counted) {
        const car_weights_ledger *w = &form->weights;
        car_cli_plan_json_number(object, "weights_left_bytes", (double)w->left, ok);
        car_cli_plan_json_number(object, "weights_lasting_bytes", (double)w->lasting, ok);
        car_cli_plan_json_number(object, "tied_left_bytes", (double)w->left_tied, ok);
        car_cli_plan_json_number(object, "tied_lasting_bytes", (double)w->lasting_tied, ok);
    }
    return object;
}

static void add_trials(const car_plan_subject *s, cJSON *object, bool *ok) {
    cJSON *trials = cJSON_AddArrayToObject(object, "tried");
    for (int t = 0; t < s->ahead.count; t++) {
        const car_ahead_trial *trial = &s->ahead.trials[t];
        cJSON *item = cJSON_CreateObject();
        car_cli_plan_json_number(item, "ahead", trial->ahead, ok);
        car_cli_plan_json_number(item, "step_s", trial->step, ok);
        if (trial->memory > 0) {
            car_cli_plan_json_number(item, "memory_device_bytes", trial->memory, ok);
        }
        *ok = cJSON_AddItemToArray(trials, item) && *ok;
    }
}

void car_cli_plan_json_zero(const car_plan_subject *s, const car_cli_zero *z, cJSON *root, bool *ok) {
    const car_cli_zero_form *any = z->forms[0].counted ? &z->forms[0] : &z->forms[1];
    if (!z->shown) {
        return;
    }
    cJSON *object = cJSON_AddObjectToObject(root, "zero");
    *ok = cJSON_AddBoolToObject(object, "ahead_chosen", s->ahead.ahead > 0) && *ok;
    add_trials(s, object, ok);
    if (any->counted) {
        car_cli_plan_json_number(object, "parameters_bytes", (double)any->weights.parameters, ok);
        car_cli_plan_json_number(object, "tied_bytes", (double)any->weights.tied, ok);
    }
    if (z->most_sent > 0) {
        car_cli_plan_json_number(object, "bytes_sent_bound", z->most_sent, ok);
    }
    car_cli_plan_json_number(object, "bytes_sent_by_dp", z->sent_by_dp, ok);
    if (s->options->cluster) {
        *ok = cJSON_AddBoolToObject(object, "copies_leave_in_time", z->in_time) && *ok;
    }
    cJSON *forms = cJSON_AddArrayToObject(object, "forms");
    for (int f = 0; f < 2; f++) {
        if (z->forms[f].shown) {
            *ok = cJSON_AddItemToArray(forms, form_object(s, &z->forms[f], ok)) && *ok;
        }
    }
}
