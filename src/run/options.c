/* The options of a run: names looked up, zeroes filled in. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/sha256.h"
#include "carousel/correction.h"
#include "run/internal.h"

enum { DEFAULT_BATCH = 32, DEFAULT_STEPS = 100, DEFAULT_KEEP = 2 };
static const double default_lr = 0.05;

/* ---- names ------------------------------------------------------------------------------------- */

static car_status resolve_optimizer(car_run *run) {
    const car_run_options *o = &run->options;
    car_optimizer_config *config = &run->training.optimizer;
    car_status status = CAR_OK;
    if (o->settings) {
        *config = *o->settings;
        return CAR_OK;
    }
    *config = car_optimizer_config_default();
    CAR_TRY(car_optimizer_find(run->context, o->optimizer ? o->optimizer : "sgd", config));
    config->momentum = config->own ? config->momentum : car_optimizer_info_of(config->kind)->momentum;
    config->correction = car_correction_choose(&run->plan_config, config);
done:
    return status;
}

/* A plan that is given answers for the options. */
static car_status read_plan(car_run *run) {
    car_run_options *o = &run->options;
    car_plan_header header;
    car_status status = CAR_OK;
    if (o->rule || o->placement || o->workers || o->stages || o->accumulate || o->planning) {
        return car_context_fail(
            run->context, CAR_ERROR_ARGUMENT,
            "options.plan says what rule, placement, workers, stages, micro-batches and planning are: "
            "leave them out");
    }
    CAR_TRY(car_plan_read_header(run->context, "options.plan", o->plan, &header));
    run->plan_config = header.config;
    run->devices = header.devices;
    o->rule = car_rule_text(header.config.rule);
    o->placement = car_placement_text(header.config.placement);
    o->workers = header.config.workers;
    o->stages = header.stages;
    o->accumulate = header.config.accumulate;
    o->threads = car_rule_info_of(header.config.rule)->in_turns ? header.config.threads : o->threads;
done:
    return status;
}

static car_status resolve_plan(car_run *run) {
    car_run_options *o = &run->options;
    car_status status = CAR_OK;
    if (o->plan) {
        return read_plan(run);
    }
    o->rule = o->rule ? o->rule : "cdp-v2";
    o->placement = o->placement ? o->placement : "shared";
    o->workers = o->workers ? o->workers : 4;
    run->stages_given = o->stages > 0;
    o->stages = o->stages ? o->stages : o->workers;
    o->accumulate = o->accumulate ? o->accumulate : 1;
    run->plan_config = o->planning ? *o->planning : car_plan_config_default();
    CAR_TRY(car_rule_find(run->context, o->rule, &run->plan_config.rule));
    CAR_TRY(car_placement_find(run->context, o->placement, &run->plan_config.placement));
    run->plan_config.workers = o->workers;
    run->plan_config.accumulate = o->accumulate;
    run->devices = car_plan_config_devices(&run->plan_config);
done:
    return status;
}

car_status car_run_resolve(car_run *run, const car_run_options *options) {
    car_run_options *o = &run->options;
    car_status status = CAR_OK;
    *o = *options;
    CAR_TRY(car_run_check_options(run->context, o));
    o->data = o->model && !o->data && !o->dataset && !o->feed ? "synthetic" : o->data;
    o->data_threads = o->data_threads == 0 ? 1 : o->data_threads > 0 ? o->data_threads : 0;
    o->shape.batch = o->shape.batch ? o->shape.batch : DEFAULT_BATCH;
    o->keep = o->keep ? o->keep : DEFAULT_KEEP;
    CAR_TRY(resolve_plan(run));
    run->training = car_trainer_config_default();
    CAR_TRY(resolve_optimizer(run));
    run->training.schedule = o->schedule;
    run->training.schedule.lr = o->schedule.lr != 0 ? o->schedule.lr : default_lr;
    run->training.seed = o->seed;
    run->training.clip_norm = o->clip_norm;
    run->training.skip_nonfinite = o->skip_nonfinite;
    run->training.report = o->on_step;
    run->training.report_user = o->user;
done:
    return status;
}

/* ---- what the data decides ---------------------------------------------------------------------- */

car_status car_run_find_sizes(car_run *run) {
    car_run_options *o = &run->options;
    const car_model_info *model = car_model_find(o->model);
    if (o->data) {
        return car_feeder_find_sizes(run->context, o->model, o->data, &o->shape);
    }
    if (o->dataset && model) { /* one's own may be anything */
        const car_dataset_info info = car_dataset_get_info(o->dataset);
        bool small = info.width == info.height && info.width > 0 && info.width <= CAR_FEEDER_SMALL_IMAGE;
        int *classes = model->domain == CAR_DOMAIN_TOKENS ? &o->shape.vocabulary : &o->shape.classes;
        *classes = *classes ? *classes : info.classes;
        o->shape.image_size = o->shape.image_size || !small ? o->shape.image_size : info.width;
    }
    return CAR_OK;
}

car_status car_run_count_steps(car_run *run) {
    const car_run_options *o = &run->options;
    double wanted = ceil(o->epochs * (double)run->epoch_steps);
    if (o->epochs > 0 && run->epoch_steps == 0) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "data %s has no epochs, being endless or less than one step of samples: say how long "
                                "with steps",
                                car_dataset_name(run->dataset));
    }
    if (wanted > 1e15) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "%g epochs are more steps than a run can have",
                                o->epochs);
    }
    run->steps = wanted > 0 && (o->steps == 0 || wanted < (double)o->steps) ? (int64_t)wanted : o->steps;
    int64_t most = car_plan_most_steps(run->plan); /* of a plan from outside without a period */
    run->steps = run->steps ? run->steps : most < DEFAULT_STEPS ? most : DEFAULT_STEPS;
    if (run->steps > most) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "the plan has %lld steps and no period that repeats, so it cannot be run for %lld",
                                (long long)most, (long long)run->steps);
    }
    car_schedule *schedule = &run->training.schedule;
    schedule->total = schedule->total ? schedule->total : run->steps;
    if (schedule->warmup == 0 && !schedule->own && !o->settings) {
        schedule->warmup = car_correction_warmup(run->plan_config.rule, &run->training.optimizer, run->steps);
    }
    return CAR_OK;
}

/* ---- what ranks must have the same of ------------------------------------------------------------ */

static void add_text(car_sha256 *sha, const char *text) {
    car_sha256_add(sha, text ? text : "", text ? strlen(text) + 1 : 1);
}

static void add_optimizer(car_sha256 *sha, const car_optimizer_config *c) {
    const int64_t counts[] = {c->decay_weights_only, c->nesterov, c->rule_count};
    const double numbers[] = {c->weight_decay, c->momentum,     c->beta1,        c->beta2,  c->eps,
                              c->adamw_ratio,  c->correction.c, c->correction.a, c->average};
    add_text(sha, car_optimizer_config_name(c));
    car_sha256_add(sha, counts, sizeof counts);
    car_sha256_add(sha, numbers, sizeof numbers);
    for (int r = 0; r < c->rule_count; r++) {
        const double rule[] = {c->rules[r].frozen, c->rules[r].lr_scale};
        add_text(sha, c->rules[r].pattern);
        car_sha256_add(sha, rule, sizeof rule);
    }
}

/* All options but those of rank 0 alone (where and how many checkpoints it keeps, callbacks) and threads. */
static void digest_options(const car_run *run, char text[CAR_SHA256_TEXT]) {
    const car_run_options *o = &run->options;
    const car_schedule *s = &run->training.schedule;
    const car_plan_config *p = &run->plan_config;
    const int64_t counts[] = {o->workers,
                              o->stages,
                              o->accumulate,
                              run->steps,
                              (int64_t)o->seed,
                              o->skip_nonfinite,
                              o->no_augment,
                              o->eval_every,
                              o->eval_batches,
                              o->metric != NULL,
                              o->feed != NULL,
                              o->evaluation_feed != NULL,
                              o->resume,
                              o->directory != NULL,
                              o->checkpoint_every,
                              s->kind,
                              s->warmup,
                              s->every,
                              s->total,
                              s->own != NULL,
                              o->sequential,
                              o->augmentation,
                              o->best != NULL,
                              o->patience,
                              o->by_accuracy,
                              o->recompute.how,
                              o->recompute.tensors,
                              p->sum_order,
                              p->freshness_slack,
                              p->zero_copies,
                              p->zero_ahead,
                              p->piece_bytes};
    const double numbers[] = {s->lr, s->gamma, o->clip_norm, o->recompute.share, o->memory_limit};
    car_sha256 sha = car_sha256_begin();
    add_text(&sha, o->plan);
    add_text(&sha, o->rule);
    add_text(&sha, o->placement);
    car_sha256_add(&sha, counts, sizeof counts);
    car_sha256_add(&sha, numbers, sizeof numbers);
    add_optimizer(&sha, &run->training.optimizer);
    car_sha256_end(&sha, text);
}

/* Fingerprints come first: what is compared may be cut off behind them. */
void car_run_describe(const car_run *run, car_run_fact facts[CAR_RUN_FACTS]) {
    const car_run_options *o = &run->options;
    const car_trainer_config *t = &run->training;
    char several[48] = "", data[CAR_SHA256_TEXT] = "none", options[CAR_SHA256_TEXT];
    facts[0] = (car_run_fact){.what = "graph"};
    snprintf(facts[0].text, sizeof facts[0].text, "%016llx (%d operations, %d parameters)",
             (unsigned long long)car_graph_fingerprint(run->graph), car_graph_op_count(run->graph),
             car_graph_param_count(run->graph));
    if (run->dataset && car_dataset_digest(run->dataset, data) != CAR_OK) {
        snprintf(data, sizeof data, "unreadable");
    }
    facts[1] = (car_run_fact){.what = "dataset"};
    snprintf(facts[1].text, sizeof facts[1].text, "%.16s", data);
    facts[2] = (car_run_fact){.what = "set of kernels (kind of processor)"};
    snprintf(facts[2].text, sizeof facts[2].text, "%016llx", (unsigned long long)car_program_fingerprint(run->program));
    if (o->accumulate > 1) {
        snprintf(several, sizeof several, " M=%d", o->accumulate);
    }
    digest_options(run, options);
    facts[3] = (car_run_fact){.what = "set of options"};
    snprintf(facts[3].text, sizeof facts[3].text, "%.16s (%s/%s N=%d%s S=%d %s lr=%g steps=%lld seed=%llu)", options,
             o->rule, o->placement, o->workers, several, o->stages, car_optimizer_config_name(&t->optimizer),
             t->schedule.lr, (long long)run->steps, (unsigned long long)o->seed);
}
