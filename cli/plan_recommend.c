/* `carousel plan --recommend`: which plan to take. The library searches (carousel/recommend.h). This file calls it,
 * and writes the result as JSON and as a configuration for `carousel train`. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carousel/available.h"
#include "carousel/convention.h"
#include "carousel/file.h"
#include "correction.h"
#include "plan.h"
#include "recompute.h"

/* The share of the available memory that a run may use; the rest is for kernels, data and the system. */
static const double usable = 0.8;

/* ---- options --------------------------------------------------------------------------------- */

car_choice_fixed car_cli_plan_typed(int argc, char **argv, const car_plan_options *o) {
    return (car_choice_fixed){.rule = car_cli_peek(argc, argv, "rule"),
                              .placement = car_cli_peek(argc, argv, "placement"),
                              .workers = car_cli_peek(argc, argv, "workers"),
                              .accumulate = car_cli_peek(argc, argv, "accumulate"),
                              .sum_order = car_cli_peek(argc, argv, "sum-order"),
                              .stages = car_cli_peek(argc, argv, "stages"),
                              .batch = car_cli_peek(argc, argv, "batch"),
                              .ranks = car_cli_peek(argc, argv, "ranks"),
                              .mapping = car_cli_peek(argc, argv, "mapping"),
                              .slack = car_cli_peek(argc, argv, "freshness-slack"),
                              .recompute = car_cli_peek(argc, argv, "recompute"),
                              .precision = car_cli_peek(argc, argv, "precision"),
                              .zero_copies = car_cli_peek(argc, argv, "zero-copies"),
                              .zero_ahead = car_cli_peek(argc, argv, "zero-ahead") && o->zero_ahead > 0};
}

static int check_without(const car_plan_options *o) {
    const char *alone = o->global_batch ? "--global-batch" : o->exact ? "--exact" : o->out ? "--out" : NULL;
    return alone ? car_cli_fail(CAR_CLI_USAGE, "plan: %s requires --recommend", alone) : CAR_CLI_GO_ON;
}

int car_cli_plan_check_recommend(int argc, char **argv, const car_plan_options *o) {
    static const char *const others[] = {"compare",   "dump",  "svg",          "machines",
                                         "partition", "steps", "memory-limit", "piece-bytes"};
    const car_model_info *model = car_model_find(o->model);
    car_choice_fixed fixed = car_cli_plan_typed(argc, argv, o);
    int64_t product = (int64_t)o->workers * o->shape.batch * (fixed.accumulate ? o->accumulate : 1);
    if (!o->recommend) {
        return check_without(o);
    }
    for (size_t n = 0; n < sizeof others / sizeof others[0]; n++) {
        if (car_cli_peek(argc, argv, others[n])) {
            return car_cli_fail(CAR_CLI_USAGE, "plan: --recommend and --%s cannot be used together", others[n]);
        }
    }
    if (o->cluster && o->threads) {
        return car_cli_fail(CAR_CLI_USAGE, "plan: --threads is for this machine; it cannot be used with --cluster");
    }
    bool right = fixed.accumulate ? product == o->global_batch : o->global_batch % product == 0;
    if (o->global_batch && fixed.workers && fixed.batch && !right) {
        return car_cli_fail(CAR_CLI_USAGE, "plan: --workers %d with --batch %d make %lld samples, %s --global-batch %d",
                            o->workers, o->shape.batch, (long long)product,
                            fixed.accumulate ? "with this --accumulate, not" : "which do not divide", o->global_batch);
    }
    if (o->out && model && model->on_paper) {
        return car_cli_fail(CAR_CLI_USAGE, "plan: --out: %s can only be planned, so there is nothing to train",
                            o->model);
    }
    return CAR_CLI_GO_ON;
}

/* The default number of samples per step: an ordinary micro-batch for each device. */
static int64_t default_global_batch(const car_plan_subject *s, const car_choice_fixed *fixed, int64_t devices) {
    const car_plan_options *o = s->options;
    const car_model_info *model = car_model_find(o->model);
    int64_t batch = fixed->batch || !model || model->domain == CAR_DOMAIN_IMAGES ? o->shape.batch : 1;
    return (fixed->workers ? o->workers : devices) * (fixed->accumulate ? o->accumulate : 1) * batch;
}

/* ---- progress -------------------------------------------------------------------------------- */

/* Progress: a line on a terminal; otherwise a line every few seconds, for logs. */
typedef struct progress_state {
    bool terminal, shown;
    bool seconds; /* true if steps have a length in seconds; without a cluster or a profile they are only compared */
    double begun, last;
} progress_state;

static void show_progress(void *user, bool listing, int timed, int candidates, double best) {
    static const double patience = 1, pause = 10; /* seconds */
    progress_state *t = user;
    double now = car_clock_seconds();
    if (now - t->begun < patience || now - t->last < (t->terminal ? 0.1 : pause)) {
        return;
    }
    t->last = now;
    t->shown = true;
    fputs(t->terminal ? "\r\033[K" : "carousel: ", stderr);
    if (listing) {
        fprintf(stderr, "%d plans listed", candidates);
    } else {
        fprintf(stderr, "%d plans timed, at most %d to go", timed, candidates - timed);
    }
    if (best > 0 && t->seconds) {
        fprintf(stderr, "; the best step so far: %s", car_cli_seconds(best).text);
    }
    fputs(t->terminal ? "" : "\n", stderr);
}

/* ---- the configuration ----------------------------------------------------------------------- */

static void add_size(cJSON *object, const char *name, int value, bool *ok) {
    if (value > 0) {
        car_cli_plan_json_number(object, name, value, ok);
    }
}

static void add_text(cJSON *object, const char *name, const char *value, bool *ok) {
    *ok = cJSON_AddStringToObject(object, name, value) && *ok;
}

/* The options for `carousel train`. What is left out has the same default there. */
static cJSON *config_of(const car_plan_subject *s, const car_choice *choice) {
    const car_plan_options *o = s->options;
    const car_plan_config *p = &choice->plan;
    cJSON *object = cJSON_CreateObject();
    bool ok = object != NULL;
    add_text(object, "model", o->model, &ok);
    add_text(object, "precision", car_precision_text(choice->precision), &ok);
    add_text(object, "rule", car_rule_text(p->rule), &ok);
    add_text(object, "placement", car_placement_text(p->placement), &ok);
    add_size(object, "workers", p->workers, &ok);
    if (p->accumulate > 1) {
        add_size(object, "accumulate", p->accumulate, &ok);
    }
    if (p->sum_order != CAR_SUM_ORDER_AUTO) {
        add_text(object, "sum-order", car_sum_order_text(p->sum_order), &ok);
    }
    add_size(object, "stages", choice->stages, &ok);
    add_size(object, "batch", choice->batch, &ok);
    add_size(object, "freshness-slack", p->freshness_slack, &ok);
    add_size(object, "zero-copies", p->zero_copies, &ok);
    add_size(object, "zero-ahead", p->zero_ahead, &ok);
    if (car_placement_maps_workers(p->placement)) {
        add_text(object, "mapping", car_mapping_text(p->mapping), &ok);
    }
    if (!car_placement_info_of(p->placement)->one_process && p->piece_bytes > 0) {
        car_cli_plan_json_number(object, "piece-bytes", (double)p->piece_bytes, &ok);
    }
    add_size(object, "threads", car_placement_info_of(p->placement)->one_process ? p->threads : 0, &ok);
    if (choice->recompute.how != CAR_RECOMPUTE_OFF) {
        add_text(object, "recompute", car_cli_recompute_text(&choice->recompute).text, &ok);
    }
    add_text(object, "optimizer", o->optimizer, &ok);
    add_text(object, "delay-correction", o->delay_correction, &ok);
    if (o->ema > 0) {
        car_cli_plan_json_number(object, "ema", o->ema, &ok);
    }
    add_text(object, "convolutions", o->convolutions, &ok);
    add_text(object, "memory", o->memory, &ok);
    add_size(object, "classes", o->shape.classes, &ok);
    add_size(object, "image-size", o->shape.image_size, &ok);
    add_size(object, "seq-len", o->shape.seq_len, &ok);
    add_size(object, "width", o->shape.width, &ok);
    add_size(object, "depth", o->shape.depth, &ok);
    add_size(object, "heads", o->shape.heads, &ok);
    add_size(object, "vocabulary", o->shape.vocabulary, &ok);
    if (!ok) {
        cJSON_Delete(object);
    }
    return ok ? object : NULL;
}

static car_status write_config(const car_plan_subject *s, const car_choice *choice) {
    cJSON *config = config_of(s, choice);
    char *text = config ? cJSON_Print(config) : NULL;
    car_file *file = NULL;
    car_status status = CAR_OK;
    if (!text) {
        status = car_context_fail(s->context, CAR_ERROR_MEMORY, "out of memory for %s", s->options->out);
        goto done;
    }
    CAR_TRY(car_file_create(s->context, s->options->out, &file));
    CAR_TRY(car_file_write(file, text, strlen(text)));
    CAR_TRY(car_file_write(file, "\n", 1));
    CAR_TRY(car_file_finish(file));
done:
    car_file_close(file);
    free(text);
    cJSON_Delete(config);
    return status;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static const char *reason_text(car_reason reason) {
    static const char *const texts[] = {"best",  "late",  "equal",  "computes", "links",
                                        "waits", "idles", "memory", "skipped"};
    return texts[reason];
}

static cJSON *row_object(const car_plan_subject *s, const car_recommend_config *config, const car_recommendation *r,
                         int row, bool *ok) {
    const car_recommended *found = &r->rows[row];
    const car_plan_config *p = &found->choice.plan;
    bool timed = s->options->cluster || s->measured;
    char why[512];
    cJSON *object = cJSON_CreateObject();
    add_text(object, "rule", car_rule_text(p->rule), ok);
    add_text(object, "placement", car_placement_text(p->placement), ok);
    car_cli_plan_json_number(object, "workers", p->workers, ok);
    car_cli_plan_json_number(object, "accumulate", p->accumulate, ok);
    add_text(object, "sum_order", car_sum_order_text(p->sum_order), ok);
    car_cli_plan_json_number(object, "stages", found->choice.stages, ok);
    car_cli_plan_json_number(object, "batch", found->choice.batch, ok);
    car_cli_plan_json_number(object, "freshness_slack", p->freshness_slack, ok);
    car_cli_plan_json_number(object, "zero_copies", p->zero_copies, ok);
    car_cli_plan_json_number(object, "zero_ahead", p->zero_ahead, ok);
    add_text(object, "mapping", car_mapping_text(p->mapping), ok);
    add_text(object, "precision", car_precision_text(found->choice.precision), ok);
    add_text(object, "recompute", car_cli_recompute_text(&found->choice.recompute).text, ok);
    car_cli_plan_json_number(object, "devices", (double)found->devices, ok);
    car_cli_plan_json_number(object, "gradient_delay", found->gradient_delay, ok);
    *ok = cJSON_AddBoolToObject(object, "timed", found->timed) && *ok;
    if (timed) {
        car_cli_plan_json_number(object, "step_s", found->step, ok);
        car_cli_plan_json_number(object, "samples_per_s", (double)config->global_batch / found->step, ok);
    }
    car_cli_plan_json_number(object, "step_over_compute", found->step / found->computes, ok);
    car_cli_plan_json_number(object, "memory_device_bytes", found->memory, ok);
    *ok = cJSON_AddBoolToObject(object, "memory_predicted", found->whole) && *ok;
    car_cli_plan_json_number(object, "bytes_sent_device", found->bytes_sent, ok);
    car_cli_plan_json_number(object, "busiest_link", found->busiest, ok);
    car_cli_plan_json_number(object, "candidates", (double)found->candidates, ok);
    add_text(object, "reason", reason_text(found->reason), ok);
    car_cli_plan_explain(s, r, row, why, sizeof why);
    add_text(object, "why", why, ok);
    return object;
}

static car_status print_json(const car_plan_subject *s, const car_recommend_config *config, const car_recommendation *r,
                             FILE *stream) {
    cJSON *root = cJSON_CreateObject();
    bool ok = root != NULL;
    add_text(root, "model", s->options->model, &ok);
    car_cli_plan_json_number(root, "global_batch", (double)config->global_batch, &ok);
    ok = cJSON_AddBoolToObject(root, "exact", config->exact) && ok;
    if (s->options->cluster) {
        cJSON *cluster = car_cli_plan_json_cluster(s);
        ok = cluster && cJSON_AddItemToObject(root, "cluster", cluster) && ok;
    } else {
        car_cli_plan_json_number(root, "threads", config->threads, &ok);
    }
    car_cli_plan_json_number(root, "memory_available_bytes", r->available, &ok);
    cJSON *searched = cJSON_AddObjectToObject(root, "searched");
    car_cli_plan_json_number(searched, "candidates", (double)r->candidates, &ok);
    car_cli_plan_json_number(searched, "over_memory", (double)r->over_memory, &ok);
    car_cli_plan_json_number(searched, "timed", (double)r->timed, &ok);
    car_cli_plan_json_number(searched, "skipped", (double)r->skipped, &ok);
    ok = cJSON_AddBoolToObject(searched, "cut_short", r->cut_short) && ok;
    ok = cJSON_AddBoolToObject(searched, "bf16_not_timed", r->bf16_not_timed) && ok;
    ok = cJSON_AddBoolToObject(searched, "bf16_guessed", r->bf16_guessed) && ok;
    ok = cJSON_AddItemToObject(root, "recommended", row_object(s, config, r, 0, &ok)) && ok;
    cJSON *others = cJSON_AddArrayToObject(root, "others");
    for (int row = 1; row < r->count && ok; row++) {
        ok = cJSON_AddItemToArray(others, row_object(s, config, r, row, &ok)) && ok;
    }
    cJSON *train = config_of(s, &r->rows[0].choice);
    ok = train && cJSON_AddItemToObject(root, "config", train) && ok;
    if (!ok) {
        cJSON_Delete(root);
    }
    return car_cli_plan_print_json(s->context, ok ? root : NULL, stream);
}

/* ---- all ------------------------------------------------------------------------------------- */

/* The library names the smallest plan; this says by how much it does not fit. */
static car_status refuse(const car_plan_subject *s, const car_recommendation *r) {
    const car_recommended *least = &r->rows[0];
    const car_plan_config *p = &least->choice.plan;
    if (least->reason != CAR_REASON_MEMORY) {
        return car_context_fail(s->context, CAR_ERROR_UNSUPPORTED, "every plan that may fit is too large to be timed");
    }
    return car_context_fail(s->context, CAR_ERROR_MEMORY,
                            "no plan fits: of %lld plans the smallest needs %s%s per device (rule %s, placement %s, %d "
                            "workers with %d micro-batch%s of %d each), %s more than the available %s; use more "
                            "devices, a smaller --global-batch or a smaller model",
                            (long long)r->candidates, least->whole ? "" : "at least ",
                            car_size_shown(least->memory).text, car_rule_text(p->rule),
                            car_placement_text(p->placement), p->workers, p->accumulate, p->accumulate > 1 ? "es" : "",
                            least->choice.batch, car_size_shown(least->memory - r->available).text,
                            car_size_shown(r->available).text);
}

static car_status configure(car_plan_subject *s, const car_plan_config *given, const car_choice_fixed *fixed,
                            car_recommend_config *out) {
    const car_plan_options *o = s->options;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    car_available available = car_available_find();
    car_status status = CAR_OK;
    *out = car_recommend_config_default();
    out->model = o->model;
    out->shape = o->shape;
    out->threads = o->threads ? o->threads : cores > 0 ? (int)cores : 1;
    double free_bytes = fmin((double)available.machine, (double)available.group);
    out->memory = available.machine == UINT64_MAX && available.group == UINT64_MAX ? 0 : usable * free_bytes;
    out->optimizer = s->optimizer;
    out->correction_by_rule = car_cli_correction_is_auto(o->delay_correction, &s->optimizer);
    out->exact = o->exact;
    out->fixed = *fixed;
    out->given = (car_choice){.plan = *given, .stages = o->stages, .batch = o->shape.batch};
    CAR_TRY(car_cli_read_recompute(s->context, o->recompute, &out->given.recompute));
    out->costs = s->measured ? &s->costs : NULL;
    if (o->cluster) {
        CAR_TRY(car_cluster_load(s->context, o->cluster, &s->cluster));
        out->cluster = &s->cluster;
    }
    int64_t devices = o->cluster ? s->cluster.devices : out->threads;
    out->global_batch = o->global_batch ? o->global_batch : default_global_batch(s, fixed, devices > 0 ? devices : 1);
done:
    return status;
}

car_status car_cli_plan_recommend(car_plan_subject *s, const car_plan_config *given, const car_choice_fixed *fixed,
                                  FILE *stream) {
    car_recommend_config config;
    car_recommendation found = {0};
    double now = car_clock_seconds();
    progress_state progress = {.terminal = isatty(STDERR_FILENO) == 1, .begun = now, .last = now};
    car_status status = CAR_OK;
    CAR_TRY(configure(s, given, fixed, &config));
    progress.seconds = s->options->cluster || s->measured;
    config.progress = show_progress;
    config.user = &progress;
    status = car_recommend(s->context, &config, &found);
    if (progress.terminal && progress.shown) {
        fputs("\r\033[K", stderr);
    }
    CAR_TRY(status);
    if (!found.fits) {
        CAR_TRY(refuse(s, &found));
    }
    if (s->options->out) {
        CAR_TRY(write_config(s, &found.rows[0].choice));
    }
    if (s->options->json) {
        CAR_TRY(print_json(s, &config, &found, stream));
    } else {
        car_cli_plan_print_recommendation(s, &config, &found, stream);
    }
done:
    car_recommendation_release(&found);
    return status;
}
