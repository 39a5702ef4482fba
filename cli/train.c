/* carousel train: sets a run up, executes it, and ends it in order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "recompute.h"
#include "train.h"

static void log_line(void *user, car_log_level level, const char *line) {
    (void)user;
    car_cli_say(level == CAR_LOG_WARNING ? "warning: " : "", line);
}

/* ---- setting up ------------------------------------------------------------------------------ */

enum { MOST_CONFUSED = 2000 }; /* classes: the matrix has the square of it */

/* Model, plan and program. */
static car_status build(car_train_run *run, car_plan_config *plan, const car_program_config *program,
                        int optimizer_states) {
    car_train_options *o = &run->options;
    car_status status = CAR_OK;
    o->stages = o->stages ? o->stages : o->workers;
    car_partition_config partition = {.stages = o->stages};
    run->available = car_available_find();
    CAR_TRY(car_train_check_tasks(run, plan->workers, partition.stages));
    CAR_TRY(car_model_build(run->context, o->model, &o->shape, &run->graph));
    CAR_TRY(car_optimizer_check(&run->optimizer, run->graph));
    if (o->memory_limit) { /* what a rank holds depends on its workers, so these are chosen first */
        CAR_TRY(car_cli_cut_graph(run->graph, NULL, NULL, plan, &run->optimizer, &partition, &run->partition));
        CAR_TRY(car_train_choose_mapping(run, plan, optimizer_states));
        car_partition_destroy(run->partition);
        run->partition = NULL;
    }
    CAR_TRY(car_cli_cut_graph(run->graph, o->recompute, o->memory_limit, plan, &run->optimizer, &partition,
                              &run->partition));
    run->recompute = partition.recompute;
    if (!o->memory_limit) {
        CAR_TRY(car_train_choose_mapping(run, plan, optimizer_states));
    }
    CAR_TRY(car_train_make_plan(run, plan));
    if (o->accumulate > 1) { /* the run keeps it, wherever it goes on */
        o->sum_order = car_sum_order_text(car_plan_config_of(run->plan)->sum_order);
    }
    if (!run->transport) {
        CAR_TRY(car_train_check_memory(run));
    }
    CAR_TRY(car_program_create(run->graph, program, &run->program));
    CAR_TRY(car_arena_create_reserving(run->context, 0, run->addresses, &run->arena));
    if (!run->transport) {
        CAR_TRY(car_train_check_memory(run)); /* now with all that kernels want */
    }
done:
    return status;
}

/* How many steps there are, from --steps and --epochs. */
static car_status count_steps(car_train_run *run) {
    car_train_options *o = &run->options;
    enum { DEFAULT_STEPS = 100 };
    run->epoch_steps = car_feeder_epoch_steps(run->data.feeder);
    if (o->epochs > 0 && run->epoch_steps == 0) {
        bool endless = car_dataset_get_info(run->data.set).samples[CAR_SPLIT_TRAIN] == CAR_DATASET_ENDLESS;
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                endless ? "--epochs: %s data has no end; say how long with --steps"
                                        : "--epochs: data %s has fewer samples than one global batch",
                                o->data);
    }
    double wanted = ceil(o->epochs * (double)run->epoch_steps);
    if (wanted > 1e9) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "--epochs %g are %g steps, more than a run can have",
                                o->epochs, wanted);
    }
    o->steps = wanted > 0 && (o->steps == 0 || wanted < o->steps) ? (int)wanted : o->steps;
    o->steps = o->steps ? o->steps : DEFAULT_STEPS;
    return CAR_OK;
}

/* Found out at the end it would be too late. */
static car_status check_evaluation(car_train_run *run) {
    const car_train_options *o = &run->options;
    int64_t samples = car_dataset_get_info(run->data.set).samples[CAR_SPLIT_EVALUATION];
    car_status status = car_train_check_best(run);
    if (status != CAR_OK) {
        return status;
    }
    run->evaluates = run->epoch_steps > 0 && samples != 0;
    if (samples == 0 && o->eval_every) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "data %s has no samples to evaluate on: leave --eval-every out", o->data);
    }
    if (samples == 0 && car_train_is_first(run)) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "data %s has no samples to evaluate on: the run will end without an evaluation", o->data);
    }
    return CAR_OK;
}

/* What every process does for itself: all up to the one who trains. */
static car_status set_up_own(car_train_run *run, car_trainer_config *trainer) {
    car_train_options *o = &run->options;
    car_plan_config plan;
    car_program_config program;
    car_status status = CAR_OK;
    CAR_TRY(car_train_read_rules(run->context, o));
    CAR_TRY(car_train_read_precision(run->context, o));
    CAR_TRY(car_train_configure(run->context, o, &plan, &program, trainer));
    run->optimizer = trainer->optimizer;
    plan.ranks =
        run->transport && car_placement_info_of(plan.placement)->fewer_ranks ? car_transport_size(run->transport) : 0;
    if (car_train_is_first(run)) {
        CAR_TRY(car_train_lock(run));
        CAR_TRY(car_train_check_directory(run));
    }
    CAR_TRY(car_train_check_trace(run));
    CAR_TRY(car_train_find_sizes(run->context, o));
    CAR_TRY(build(run, &plan, &program, car_optimizer_config_states(&trainer->optimizer)));
    CAR_TRY(car_train_open_data(&run->data, run->context, o, run->graph));
    CAR_TRY(count_steps(run));
    CAR_TRY(car_train_check_plan_steps(run));
    car_train_choose_warmup(o, plan.rule, &trainer->optimizer);
    CAR_TRY(check_evaluation(run));
    CAR_TRY(car_train_read_schedule(run->context, o, run->epoch_steps ? run->epoch_steps : 1, &trainer->schedule));
    trainer->feed = car_feeder_feed;
    trainer->feed_user = run->data.feeder;
    trainer->report = run->report ? run->report : car_train_on_step;
    trainer->report_user = run;
    CAR_TRY(car_train_open_recorder(run, trainer));
done:
    return status;
}

car_status car_train_set_up(car_train_run *run) {
    car_train_options *o = &run->options;
    bool resume = o->resume || o->resume_step != CAR_NONE;
    car_context_config context = car_context_config_default();
    car_trainer_config trainer;
    car_status status = CAR_OK;
    context.log = log_line;
    CAR_TRY(car_context_create(&context, &run->context));
    CAR_TRY(car_train_join(run));
    CAR_TRY(car_train_agree(run, set_up_own(run, &trainer)));
    if (run->transport) {
        CAR_TRY(car_train_check_rank_memory(run, car_optimizer_config_states(&trainer.optimizer)));
    }
    CAR_TRY(car_train_open_writer(run, &trainer));
    if (run->transport) {
        CAR_TRY(car_train_open_rank(run, &trainer));
    } else {
        CAR_TRY(car_trainer_create(run->plan, run->program, run->arena, &trainer, &run->trainer));
        CAR_TRY(resume ? car_train_resume(run) : car_train_initialize(run));
    }
    CAR_TRY(car_feeder_start(run->data.feeder, run->rank, run->first_step, o->steps));
    if (car_train_is_first(run)) {
        CAR_TRY(car_train_open_output(run));
        car_train_check_disk(run, car_optimizer_config_states(&trainer.optimizer));
    }
    CAR_TRY(car_train_start_recorder(run));
done:
    return status;
}

void car_train_tear_down(car_train_run *run) {
    if (run->context) {
        car_train_close_writer(run); /* may be using the trainer */
        car_train_close_output(run);
        car_train_close_rank(run);
        car_trainer_destroy(run->trainer);
        car_recorder_destroy(run->recorder);
        car_train_close_data(&run->data);
        car_cli_destroy_confusion(&run->confusion);
        car_arena_destroy(run->arena);
        car_program_destroy(run->program);
        car_plan_destroy(run->plan);
        car_partition_destroy(run->partition);
        car_graph_destroy(run->graph);
        car_train_unlock(run);
        car_context_destroy(run->context);
    }
    car_cli_release_config(run->options.config_texts);
    free(run->options.plan_text);
}

/* ---- running --------------------------------------------------------------------------------- */

car_status car_train_create_confusion(car_train_run *run) {
    car_cli_destroy_confusion(&run->confusion);
    bool wanted = run->data.domain == CAR_DOMAIN_IMAGES && run->data.model.classes <= MOST_CONFUSED;
    return wanted ? car_cli_create_confusion(run->context, run->data.model.classes, &run->confusion) : CAR_OK;
}

car_status car_train_evaluate_now(car_train_run *run) {
    double start = car_clock_seconds();
    car_train_enter(run, CAR_TRAIN_TRAINING); /* it need not be finished either */
    run->evaluated = false;
    car_status status = car_train_evaluate_here(run);
    if (status == CAR_OK) {
        run->evaluated = true;
    } else if (car_train_is_interrupted()) {
        car_context_clear_error(run->context);
        status = CAR_OK;
    }
    car_train_enter(run, CAR_TRAIN_SAVING);
    run->last_time = car_clock_seconds();
    run->aside += run->last_time - start;
    return status;
}

bool car_train_begins_at_evaluation(const car_train_run *run) {
    int every = run->options.eval_every;
    return every > 0 && run->first_step > 0 && run->first_step % every == 0 && run->first_step < run->options.steps;
}

void car_train_begin_part(void *user) {
    car_train_run *run = user;
    car_train_enter(run, CAR_TRAIN_TRAINING);
    run->evaluated = false;
}

static car_status end_part(void *user) {
    return car_train_find_directory(user);
}

static car_status pause_here(void *user, bool *ends) {
    car_train_run *run = user;
    car_status status = CAR_OK;
    if (!car_train_is_interrupted() && car_train_steps(run) != run->last_evaluated) {
        status = car_train_evaluate_now(run);
    }
    *ends = car_train_is_interrupted() || run->stopped_early;
    return status;
}

static car_status train(car_train_run *run) {
    const car_train_options *o = &run->options;
    const car_rank_loop loop = {.steps = o->steps,
                                .every = o->eval_every,
                                .pause_first = car_train_begins_at_evaluation(run),
                                .pause = pause_here,
                                .begin = car_train_begin_part,
                                .end = end_part,
                                .user = run};
    bool before = false;
    car_status status = CAR_OK;
    CAR_TRY(car_trainer_drive(run->trainer, &loop));
    car_train_enter(run, CAR_TRAIN_SAVING);
    /* What was trained is safe before anything else is tried: see train_end.c. */
    car_train_close_writer(run);
    bool over = car_trainer_steps(run->trainer) >= o->steps || run->stopped_early;
    CAR_TRY(car_train_was_over(run, &before));
    car_train_remember(run, before ? CAR_OK : car_train_write_weights(run));
    car_train_remember(run, car_train_write_checkpoint(run));
    bool evaluates = over && !before && !run->stopped_early && (o->eval_every || run->evaluates);
    if (evaluates) {
        CAR_TRY(car_train_evaluate_now(run));
    }
    run->interrupted = !over || (evaluates && !run->evaluated);
    CAR_TRY(car_train_summarize(run, run->interrupted));
    CAR_TRY(car_train_write_records(run));
done:
    return car_train_conclude(run, status);
}

int car_cli_train(int argc, char **argv) {
    car_train_run run = {0};
    int code = car_train_read_options(argc, argv, &run.options);
    bool resumes = run.options.out && (run.options.resume || run.options.resume_step != CAR_NONE);
    if (code == CAR_CLI_GO_ON && !run.options.model && resumes) {
        code = car_cli_fail(CAR_CLI_FAILED, "train: there is no run in %s to go on with: it has no config.json",
                            run.options.out);
    }
    if (code == CAR_CLI_GO_ON && !run.options.model) {
        code = car_cli_fail(CAR_CLI_USAGE, "train: --model NAME is missing; 'carousel train --help' lists the models");
    }
    code = code == CAR_CLI_GO_ON ? car_cli_check_model("train", run.options.model) : code;
    if (code != CAR_CLI_GO_ON) {
        car_train_tear_down(&run);
        return code;
    }
    car_train_listen(&run);
    if (car_train_is_local(&run.options)) {
        car_status ended = car_train_locally(&run);
        return ended == CAR_OK && run.interrupted ? CAR_CLI_INTERRUPTED : car_cli_code_of(ended);
    }
    car_status status = car_train_set_up(&run);
    if (status == CAR_OK && run.rank) {
        status = car_train_over_ranks(&run);
    } else if (status == CAR_OK) {
        car_train_show_model(&run);
        status = train(&run);
    }
    car_train_stop_listening();
    car_train_leave(&run, status);
    bool told = run.transport != NULL;
    bool early = run.interrupted && car_train_is_first(&run); /* mpirun ends all ranks after a code that is not 0 */
    code = status == CAR_OK ? (early ? CAR_CLI_INTERRUPTED : CAR_CLI_OK)
           : told           ? car_cli_code_of(status)
                            : car_cli_report(run.context, status);
    car_train_tear_down(&run);
    return code;
}
