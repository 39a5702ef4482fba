/* Converts the options of `carousel train` to those of a car_run. */
#include <stdio.h>
#include <string.h>

#include "carousel/convention.h"
#include "correction.h"
#include "recompute.h"
#include "train.h"

/* Reads --lr-schedule. The run converts epochs to steps. */
static car_status read_schedule(car_context *context, const car_train_options *o, car_run_options *out) {
    double every = 0, gamma = 0;
    car_schedule *schedule = &out->schedule;
    *schedule = (car_schedule){.lr = o->lr, .kind = CAR_SCHEDULE_CONSTANT};
    if (strcmp(o->schedule, "cosine") == 0) {
        schedule->kind = CAR_SCHEDULE_COSINE;
    } else if (strncmp(o->schedule, "step:", 5) == 0 && car_cli_read_pair(o->schedule + 5, ':', &every, &gamma) &&
               every >= 1 && every < 1e15 && gamma > 0) {
        schedule->kind = CAR_SCHEDULE_STEP;
        schedule->gamma = gamma;
        out->schedule_epochs = every;
    } else if (strcmp(o->schedule, "const") != 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--lr-schedule %s: it must be const, cosine or step:EPOCHS:GAMMA, e.g. step:30:0.1",
                                o->schedule);
    }
    return CAR_OK;
}

static car_status read_optimizer(car_context *context, const car_train_options *o, const car_plan_config *plan,
                                 car_optimizer_config *out) {
    car_status status = CAR_OK;
    *out = car_optimizer_config_default();
    out->momentum = o->momentum;
    out->adamw_ratio = o->lr > 0 ? o->adamw_lr / o->lr : 1;
    out->nesterov = o->nesterov;
    out->weight_decay = o->weight_decay;
    out->decay_weights_only = o->decay_weights_only;
    out->rules = o->rules;
    out->rule_count = o->rule_count;
    out->average = o->ema;
    if (!car_cli_read_pair(o->betas, ',', &out->beta1, &out->beta2) || !(out->beta1 >= 0 && out->beta1 < 1) ||
        !(out->beta2 >= 0 && out->beta2 < 1)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--betas %s: it must be two numbers, at least 0 and below 1, e.g. 0.9,0.999", o->betas);
    }
    if (o->nesterov && o->momentum == 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "--nesterov needs a --momentum above 0");
    }
    CAR_TRY(car_optimizer_find(context, o->optimizer, out));
    if (o->nesterov && !car_optimizer_info_of(out->kind)->has_nesterov) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--nesterov is only for sgd; with %s use --delay-correction C,A", o->optimizer);
    }
    if (car_optimizer_info_of(out->kind)->two_rates && o->lr == 0 && o->adamw_lr > 0) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "--optimizer %s: --adamw-lr %g needs an --lr above 0, because it follows the schedule of --lr",
            o->optimizer, o->adamw_lr);
    }
    CAR_TRY(car_cli_read_correction(context, o->delay_correction, plan, out));
done:
    return status;
}

/* `--pace-links on` is an error where pacing would have no effect. */
static car_status read_pacing(car_context *context, const car_train_options *o, const car_plan_config *plan,
                              car_link_pacing *out) {
    const car_placement_info *placement = car_placement_info_of(plan->placement);
    car_status status = car_link_pacing_find(context, o->pace_links, out);
    if (status == CAR_OK && *out == CAR_LINKS_PACED && placement->one_process) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--pace-links on: placement %s has no ranks that send to each other", placement->name);
    }
    if (status == CAR_OK && *out == CAR_LINKS_PACED && !car_rule_info_of(plan->rule)->cyclic) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "--pace-links on: under rule %s no message has time to spare; use it with the cyclic rules",
            car_rule_text(plan->rule));
    }
    return status;
}

/* Looks up names that the run does not look up itself, or that other settings depend on. */
static car_status read_plan_config(car_train_run *t) {
    const car_train_options *o = &t->options;
    car_plan_config *plan = &t->planning;
    car_status status = CAR_OK;
    *plan = car_plan_config_default();
    if (o->plan_text && strcmp(o->rule, car_rule_text(CAR_RULE_CUSTOM)) == 0) {
        plan->rule = CAR_RULE_CUSTOM;
    } else {
        CAR_TRY(car_rule_find(t->context, o->rule, &plan->rule));
    }
    CAR_TRY(car_placement_find(t->context, o->placement, &plan->placement));
    CAR_TRY(car_sum_order_find(t->context, o->sum_order, &plan->sum_order));
    plan->workers = o->workers;
    plan->accumulate = o->accumulate;
    plan->freshness_slack = o->freshness_slack;
    plan->zero_copies = o->zero_copies;
    plan->zero_ahead = o->zero_ahead;
    plan->piece_bytes = (int64_t)o->piece_bytes;
done:
    return status;
}

static car_status read_engine(car_train_run *t, car_run_options *out) {
    const car_train_options *o = &t->options;
    car_status status = CAR_OK;
    t->kernels = car_program_config_default();
    t->execution = car_trainer_config_default();
    CAR_TRY(car_convolutions_find(t->context, o->convolutions, &t->kernels.convolutions));
    CAR_TRY(car_convolutions_find_memory(t->context, o->memory, &t->kernels.tight));
    CAR_TRY(read_pacing(t->context, o, &t->planning, &t->execution.link_pacing));
    t->execution.unpaced = o->unpaced;
    t->execution.step_seconds = o->step_seconds;
    t->execution.step_jitter = o->step_jitter;
    CAR_TRY(car_cli_read_recompute(t->context, o->recompute, &out->recompute));
    CAR_TRY(car_cli_read_memory_limit(t->context, o->memory_limit, &out->memory_limit));
done:
    return status;
}

static car_status check_files(car_train_run *t) {
    const car_train_options *o = &t->options;
    const struct {
        bool given;
        const char *message;
    } wishes[] = {{o->tensorboard, "--tensorboard requires --out DIR, where its files are written"},
                  {o->keep_best, "--keep-best requires --out DIR to save the weights in"}};
    if (strcmp(o->order, "shuffled") != 0 && strcmp(o->order, "sequential") != 0) {
        return car_context_fail(t->context, CAR_ERROR_ARGUMENT, "--order %s: it must be shuffled or sequential",
                                o->order);
    }
    if (o->keep_best && strcmp(o->keep_best, "accuracy") != 0 && strcmp(o->keep_best, "loss") != 0) {
        return car_context_fail(t->context, CAR_ERROR_ARGUMENT, "--keep-best %s: it must be accuracy or loss",
                                o->keep_best);
    }
    for (size_t w = 0; w < sizeof wishes / sizeof wishes[0] && !o->out; w++) {
        if (wishes[w].given) {
            return car_context_fail(t->context, CAR_ERROR_ARGUMENT, "%s", wishes[w].message);
        }
    }
    return o->keep_best ? car_train_path(t->context, o->out, "best.safetensors", t->best) : CAR_OK;
}

/* The options that must be equal on all ranks. Of --out only its presence counts: rank 0 alone writes, but all ranks
 * pause for it. */
static car_status describe_options(car_train_run *t) {
    cJSON *json = car_train_config_of(&t->options);
    cJSON_DeleteItemFromObjectCaseSensitive(json, "out");
    cJSON_DeleteItemFromObjectCaseSensitive(json, "threads");
    t->configuration =
        json && cJSON_AddBoolToObject(json, "out", t->options.out != NULL) ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    return t->configuration ? CAR_OK
                            : car_context_fail(t->context, CAR_ERROR_MEMORY, "out of memory for the configuration");
}

/* The options that only have another name in a car_run. */
static car_run_options translate(car_train_run *t) {
    const car_train_options *o = &t->options;
    bool kept = o->out != NULL;
    return (car_run_options){.model = o->model,
                             .shape = o->shape,
                             .data = o->data,
                             .sequential = strcmp(o->order, "sequential") == 0,
                             .threads = o->threads,
                             .data_threads = o->data_threads > 0 ? o->data_threads : -1,
                             .most_ranks = CAR_TRAIN_LOCAL_RANKS,
                             .kernels = &t->kernels,
                             .execution = &t->execution,
                             .force = o->force,
                             .steps = o->steps,
                             .epochs = o->epochs,
                             .settings = &t->optimizer,
                             .zero_lr = true,
                             .clip_norm = o->clip_norm,
                             .skip_nonfinite = o->skip_nonfinite,
                             .seed = o->seed,
                             .eval_every = o->eval_every,
                             .eval_batches = o->eval_batches,
                             .eval_at_end = true,
                             .eval_beside = true,
                             .confusion = t->domain == CAR_DOMAIN_IMAGES,
                             .best = o->keep_best ? t->best : NULL,
                             .by_accuracy = strcmp(car_train_metric(t), "accuracy") == 0,
                             .patience = o->patience,
                             .directory = o->out,
                             .run_directory = kept,
                             .no_checkpoints = o->keep == 0,
                             .checkpoint_every = kept ? o->checkpoint_every : 0,
                             .keep = o->keep > 0 ? o->keep : 1,
                             .save_precision = o->saves_as,
                             .resume = o->resume,
                             .resume_step = o->resume_step != CAR_NONE ? o->resume_step : 0,
                             .other_optimizer = true,
                             .configuration = t->configuration,
                             .record = o->trace || kept,
                             .record_memory = o->trace != NULL,
                             .on_step = car_train_on_step,
                             .on_evaluation = car_train_on_evaluation,
                             .on_activity = car_train_on_activity,
                             .user = t,
                             .dashes = true};
}

/* A plan from a file sets all of these itself. */
static void name_plan(const car_train_run *t, car_run_options *out) {
    const car_train_options *o = &t->options;
    if (o->plan_text) {
        out->plan = o->plan_text;
        out->plan_name = o->plan;
        return;
    }
    out->rule = o->rule;
    out->placement = o->placement;
    out->mapping = o->mapping ? o->mapping : "auto";
    out->workers = o->workers;
    out->stages = o->stages;
    out->accumulate = o->accumulate;
    out->planning = &t->planning;
}

car_status car_train_configure(car_train_run *t, car_run_options *out) {
    car_train_options *o = &t->options;
    car_run_options texts = {0};
    car_status status = CAR_OK;
    car_placement placement = CAR_PLACEMENTS;
    bool known = car_placement_is_known(o->placement, &placement); /* an unknown one fails below */
    t->has_ranks = known && !car_placement_info_of(placement)->one_process;
    t->launched = t->has_ranks && car_transport_is_launched();
    t->domain = car_model_find(o->model)->domain;
    t->evaluated_step = CAR_NONE;
    CAR_TRY(car_train_read_rules(t->context, o));
    CAR_TRY(car_train_read_precision(t->context, o));
    CAR_TRY(read_plan_config(t));
    CAR_TRY(read_schedule(t->context, o, &texts));
    CAR_TRY(read_optimizer(t->context, o, &t->planning, &t->optimizer));
    CAR_TRY(read_engine(t, &texts));
    CAR_TRY(car_train_read_augmentation(t->context, o, &texts.no_augment, &texts.augmentation));
    CAR_TRY(check_files(t));
    CAR_TRY(car_train_check_trace(t));
    CAR_TRY(describe_options(t));
    *out = translate(t);
    name_plan(t, out);
    out->schedule = texts.schedule;
    out->schedule_epochs = texts.schedule_epochs;
    out->recompute = texts.recompute;
    out->memory_limit = texts.memory_limit;
    out->no_augment = texts.no_augment;
    out->augmentation = texts.augmentation;
    bool by_rule = o->warmup == CAR_NONE && car_cli_correction_is_auto(o->delay_correction, &t->optimizer);
    out->schedule.warmup = by_rule ? CAR_NONE : o->warmup > 0 ? o->warmup : 0;
    o->warmup_by_rule = by_rule;
done:
    return status;
}

void car_train_take_over(car_train_run *t) {
    car_train_options *o = &t->options;
    const car_plan_config *plan = car_plan_config_of(car_run_plan(t->run));
    o->shape = car_run_shape(t->run);
    o->threads = car_run_threads(t->run);
    o->stages = o->stages ? o->stages : o->workers;
    o->steps = (int)car_run_total_steps(t->run);
    o->warmup = (int)car_run_schedule(t->run)->warmup;
    o->warmup_by_rule = o->warmup_by_rule && o->warmup > 0;
    if (o->accumulate > 1) { /* a resumed run must keep it, on any placement */
        o->sum_order = car_sum_order_text(plan->sum_order);
    }
    if (t->has_ranks && car_placement_maps_workers(plan->placement)) {
        o->mapping = car_mapping_text(plan->mapping);
    }
}
