/* The options of a run: looks up names and fills in defaults. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "carousel/correction.h"
#include "run/internal.h"

enum { DEFAULT_BATCH = 32, DEFAULT_STEPS = 100, DEFAULT_KEEP = 2, DEFAULT_RANKS = 1024 };
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

/* A given plan sets the options for rule, placement, workers, stages and micro-batches. */
static car_status read_plan(car_run *run) {
    car_run_options *o = &run->options;
    car_plan_header header;
    car_status status = CAR_OK;
    if (o->rule || o->placement || o->workers || o->stages || o->accumulate || o->planning) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "options.plan already defines rule, placement, workers, stages, accumulate and "
                                "planning: leave these options out");
    }
    CAR_TRY(car_plan_read_header(run->context, o->plan_name, o->plan, &header));
    run->plan_config = header.config;
    run->devices = header.devices;
    o->rule = car_rule_text(header.config.rule);
    o->placement = car_placement_text(header.config.placement);
    o->workers = header.config.workers;
    o->stages = header.stages;
    o->accumulate = header.config.accumulate;
    if (car_rule_info_of(header.config.rule)->in_turns) {
        if (o->threads && o->threads != header.config.threads) {
            return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "%s was made for %d threads: leave %s out",
                                    o->plan_name, header.config.threads, car_run_name(o, "threads").text);
        }
        o->threads = header.config.threads;
    }
done:
    return status;
}

static car_status resolve_mapping(car_run *run) {
    const char *name = run->options.mapping;
    run->chooses_mapping = name ? strcmp(name, "auto") == 0 : !run->options.planning;
    return name && !run->chooses_mapping ? car_mapping_find(run->context, name, &run->plan_config.mapping) : CAR_OK;
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
    o->stages = o->stages ? o->stages : o->workers;
    o->accumulate = o->accumulate ? o->accumulate : 1;
    run->plan_config = o->planning ? *o->planning : car_plan_config_default();
    CAR_TRY(car_rule_find(run->context, o->rule, &run->plan_config.rule));
    CAR_TRY(car_placement_find(run->context, o->placement, &run->plan_config.placement));
    CAR_TRY(resolve_mapping(run));
    run->plan_config.workers = o->workers;
    run->plan_config.accumulate = o->accumulate;
    run->devices = car_plan_config_devices(&run->plan_config);
done:
    return status;
}

bool car_run_has_ranks(const car_run *run) {
    return !car_placement_info_of(run->plan_config.placement)->one_process;
}

bool car_run_is_first(const car_run *run) {
    return !run->launched || car_transport_rank(run->members[0].transport) == 0;
}

/* Called after each step, on rank 0. */
static void on_step(void *user, const car_step_report *report) {
    car_run *run = user;
    run->judge.averaged = run->judge.averaged || !report->skipped;
    if (run->options.on_step) {
        run->options.on_step(run->options.user, report);
    }
    car_run_look_for_directory(run, report->when);
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
    o->most_ranks = o->most_ranks ? o->most_ranks : DEFAULT_RANKS;
    o->plan_name = o->plan_name ? o->plan_name : "options.plan";
    CAR_TRY(resolve_plan(run));
    run->training = o->execution ? *o->execution : car_trainer_config_default();
    CAR_TRY(resolve_optimizer(run));
    run->training.schedule = o->schedule;
    run->training.schedule.lr = o->schedule.lr != 0 || o->zero_lr ? o->schedule.lr : default_lr;
    run->training.seed = o->seed;
    run->training.clip_norm = o->clip_norm;
    run->training.skip_nonfinite = o->skip_nonfinite;
    run->training.report = on_step;
    run->training.report_user = run;
done:
    return status;
}

/* ---- values that depend on the data ---------------------------------------------------------- */

car_status car_run_find_sizes(car_run *run) {
    car_run_options *o = &run->options;
    const car_model_info *model = car_model_find(o->model);
    if (o->data) {
        return car_feeder_find_sizes(run->context, o->model, o->data, &o->shape);
    }
    if (o->dataset && model) { /* a custom dataset may be of any kind */
        const car_dataset_info info = car_dataset_get_info(o->dataset);
        bool small = info.width == info.height && info.width > 0 && info.width <= CAR_FEEDER_SMALL_IMAGE;
        int *classes = model->domain == CAR_DOMAIN_TOKENS ? &o->shape.vocabulary : &o->shape.classes;
        *classes = *classes ? *classes : info.classes;
        o->shape.image_size = o->shape.image_size || !small ? o->shape.image_size : info.width;
    }
    return CAR_OK;
}

/* A custom plan may have a last step, or delays that differ from step to step, so that a pause changes its schedule. */
static car_status check_plan_steps(const car_run *run) {
    const car_run_options *o = &run->options;
    int64_t most = car_plan_most_steps(run->plan);
    bool drains = run->begin_step >= 0 || (o->eval_every && !car_run_evaluates_beside(run));
    if (run->steps > most) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "%s has %lld steps and no period, so it cannot run for %lld: set %s to %lld, or mark a "
                                "period with period=A:B in its first line",
                                o->plan_name, (long long)most, (long long)run->steps, car_run_name(o, "steps").text,
                                (long long)most);
    }
    if (drains && !car_plan_drains_exactly(run->plan) && car_run_is_first(run)) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "the delays of %s differ from step to step: after a pause of the run (an evaluation, %s) its "
                        "schedule starts again with the newest weights",
                        o->plan_name, car_run_name(o, "resume").text);
    }
    return CAR_OK;
}

/* Sets the schedule's values that depend on the length of an epoch or of the run. */
static car_status fit_schedule(car_run *run) {
    const car_run_options *o = &run->options;
    car_schedule *schedule = &run->training.schedule;
    bool by_rule = schedule->warmup == CAR_NONE || (schedule->warmup == 0 && !schedule->own && !o->settings);
    double every = o->schedule_epochs * (double)(run->epoch_steps ? run->epoch_steps : 1);
    schedule->total = schedule->total ? schedule->total : run->steps;
    if (by_rule) {
        schedule->warmup = car_correction_warmup(run->plan_config.rule, &run->training.optimizer, run->steps);
    }
    if (o->schedule_epochs > 0 && !(every >= 1 && every < 1e15)) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "%s: %g epochs are %g steps, which is out of range",
                                car_run_name(o, "schedule").text, o->schedule_epochs, every);
    }
    schedule->every = o->schedule_epochs > 0 ? (int64_t)(every + 0.5) : schedule->every;
    return CAR_OK;
}

car_status car_run_count_steps(car_run *run) {
    const car_run_options *o = &run->options;
    double wanted = ceil(o->epochs * (double)run->epoch_steps);
    int64_t most = car_plan_most_steps(run->plan);
    car_status status = CAR_OK;
    if (o->epochs > 0 && run->epoch_steps == 0) {
        bool endless = car_dataset_get_info(run->dataset).samples[CAR_SPLIT_TRAIN] == CAR_DATASET_ENDLESS;
        return car_context_fail(
            run->context, CAR_ERROR_ARGUMENT,
            endless ? "%s: data %s is endless, so it has no epochs; use %s instead"
                    : "%s: data %s has fewer samples than one global batch, so it has no epochs; use %s instead",
            car_run_name(o, "epochs").text, car_dataset_name(run->dataset), car_run_name(o, "steps").text);
    }
    if (wanted > 1e15) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "%s: %g are %g steps, more than a run can have",
                                car_run_name(o, "epochs").text, o->epochs, wanted);
    }
    run->steps = wanted > 0 && (o->steps == 0 || wanted < (double)o->steps) ? (int64_t)wanted : o->steps;
    run->steps = run->steps ? run->steps : most < DEFAULT_STEPS ? most : DEFAULT_STEPS;
    CAR_TRY(check_plan_steps(run));
    CAR_TRY(fit_schedule(run));
done:
    return status;
}
