/* Evaluations of a run: between trainings, during a pause of training, or beside it. Those during training also decide
 * which weights are the best and whether the run ends early. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/internal.h"
#include "run/internal.h"

car_status car_run_check_evaluation(const car_run *run) {
    if (run->dataset && car_dataset_get_info(run->dataset).samples[CAR_SPLIT_EVALUATION] == 0) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "data %s has no samples to evaluate on",
                                car_dataset_name(run->dataset));
    }
    if (!run->dataset && (!run->options.evaluation_feed || run->options.eval_batches == 0)) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "to evaluate a run with a feed, set options.evaluation_feed and options.eval_batches");
    }
    return car_evaluate_check(run->graph, run->options.metric);
}

/* With patience, training waits for each evaluation, because the result decides whether the run goes on. */
bool car_run_evaluates_beside(const car_run *run) {
    const car_run_options *o = &run->options;
    return o->eval_beside && o->patience == 0 && car_run_has_ranks(run);
}

/* ---- the average of the weights ---------------------------------------------------------------- */

/* Frozen parameters, and all parameters before the first update, have no average: their weights are copied instead. */
static car_status copy_average(car_run *run, const car_snapshot *snapshot, int param, void *values,
                               const car_subject *subject) {
    const float *stored =
        snapshot ? NULL : car_optimizer_state(car_rank_optimizer(run->members[0].rank), CAR_OPTIMIZER_AVERAGE, param);
    bool begun = snapshot ? car_run_has_average(snapshot) : run->judge.averaged;
    car_status status = CAR_OK;
    if (begun && snapshot && car_snapshot_has(snapshot, CAR_SNAPSHOT_AVERAGE, param)) {
        CAR_TRY(car_snapshot_get(snapshot, CAR_SNAPSHOT_AVERAGE, param, values));
    } else if (begun && stored) {
        CAR_TRY(car_program_export_param(run->program, param, stored, values));
    } else {
        CAR_TRY(car_weights_get(subject->weights, param, values));
    }
    CAR_TRY(car_weights_set(subject->average, param, values));
done:
    return status;
}

car_status car_run_copy_average(car_run *run, const car_snapshot *snapshot, car_arena *arena, car_subject *subject) {
    size_t most = car_graph_param_bytes(run->graph);
    void *values = NULL;
    car_status status = CAR_OK;
    if (car_run_average_decay(run) == 0) {
        return CAR_OK;
    }
    CAR_TRY(car_weights_create(run->program, arena, &subject->average));
    CAR_TRY(car_context_allocate(run->context, most, 1, &values));
    for (int p = 0; p < car_graph_param_count(run->graph); p++) {
        CAR_TRY(copy_average(run, snapshot, p, values, subject));
    }
done:
    car_context_release(run->context, values, values ? most : 0, 1);
    return status;
}

/* ---- on rank 0 --------------------------------------------------------------------------------- */

/* After car_run_stop an evaluation need not finish. */
static bool is_stopped(void *user) {
    const car_run *run = user;
    return atomic_load(&run->stop);
}

/* on_the_way: an evaluation during training, which car_run_stop cancels. */
static car_status evaluate(car_run *run, car_arena *arena, const car_weights *weights, bool on_the_way, int64_t *counts,
                           car_evaluation *out) {
    const car_run_options *o = &run->options;
    int threads = run->training.threads;
    car_feeder *feeder = run->members[0].feeder;
    if (feeder) {
        /* No more micro-batches at once than in training, to limit memory. */
        const car_feeder_evaluation how = {.threads = threads < o->workers ? threads : o->workers,
                                           .batches = o->eval_batches,
                                           .counts = counts,
                                           .cancelled = on_the_way ? is_stopped : NULL,
                                           .cancelled_user = run,
                                           .metric = o->metric,
                                           .metric_user = o->user};
        return car_feeder_evaluate(feeder, run->program, arena, weights, &how, out);
    }
    const car_evaluate_config config = {.threads = threads,
                                        .batches = o->eval_batches,
                                        .feed = o->evaluation_feed,
                                        .feed_user = o->feed_user,
                                        .counts = counts,
                                        .metric = o->metric,
                                        .metric_user = o->user};
    return car_evaluate_with(run->program, arena, weights, &config, out);
}

/* Counts an evaluation. Returns true if it is the best so far; NaN and infinity never are. */
static bool count_value(car_run *run, double value, int64_t step) {
    car_run_judge *j = &run->judge;
    bool better = isfinite(value) && (j->best_step == CAR_NONE ||
                                      (run->options.by_accuracy ? value > j->best_value : value < j->best_value));
    j->worse = better ? 0 : j->worse + 1;
    if (better) {
        j->best_value = value;
        j->best_step = step;
    }
    return better;
}

/* If the new file cannot be written, the old one stays. */
static void save_best(car_run *run, const car_subject *subject) {
    car_status status = car_run_write_weights(run, run->options.best, subject, subject->average != NULL, true);
    if (status == CAR_OK) {
        run->judge.best_saved = subject->step;
    } else {
        car_run_note_loss(run, "could not write the best weights of step", subject->step, status, &run->lost_best);
    }
}

/* Evaluates, calls on_evaluation, saves the weights if they are the best so far, and checks the patience. */
static car_status evaluate_subject(car_run *run, car_arena *arena, const car_subject *subject) {
    const car_run_options *o = &run->options;
    size_t classes = run->judge.counts ? (size_t)car_graph_classes(run->graph) : 0;
    car_evaluation evaluation;
    car_status status = CAR_OK;
    if (run->judge.counts) {
        memset(run->judge.counts, 0, classes * classes * sizeof *run->judge.counts);
    }
    CAR_TRY(evaluate(run, arena, subject->weights, true, run->judge.counts, &evaluation));
    if (subject->average) {
        CAR_TRY(evaluate(run, arena, subject->average, true, NULL, &run->judge.average));
    }
    run->judge.evaluated_step = subject->step;
    const car_evaluation *judged = subject->average ? &run->judge.average : &evaluation;
    bool better = count_value(run, o->by_accuracy ? judged->top1 : judged->loss, subject->step);
    run->lost_patience = o->patience > 0 && run->judge.worse >= o->patience && subject->step < run->steps;
    if (o->on_evaluation) {
        o->on_evaluation(o->user, subject->step, &evaluation);
    }
    if (better && o->best) {
        save_best(run, subject);
    }
done:
    return status;
}

/* ---- beside training --------------------------------------------------------------------------- */

/* Copies a snapshot's weights and their average. The caller destroys both. */
static car_status copy_subject(car_run *run, const car_snapshot *snapshot, car_arena *arena, car_subject *out) {
    car_status status = CAR_OK;
    out->step = car_snapshot_get_numbers(snapshot).step;
    CAR_TRY(car_weights_create(run->program, arena, &out->weights));
    CAR_TRY(car_snapshot_get_weights(snapshot, out->weights));
    CAR_TRY(car_run_copy_average(run, snapshot, arena, out));
done:
    return status;
}

/* It uses its own arena, so that the memory of training is counted separately. It returns the snapshot before it
 * evaluates, so that the next snapshot need not wait. A failure stops the run; it is reported at the end. */
void car_run_evaluate_snapshot(car_run *run, const car_snapshot *snapshot) {
    car_subject subject = {0};
    car_arena *arena = NULL;
    car_rank *rank = run->members[0].rank;
    int64_t step = car_snapshot_get_numbers(snapshot).step;
    car_status status = car_arena_create_reserving(run->context, 0, run->addresses, &arena);
    status = status == CAR_OK ? copy_subject(run, snapshot, arena, &subject) : status;
    car_rank_return_snapshot(rank);
    status = status == CAR_OK ? evaluate_subject(run, arena, &subject) : status;
    car_weights_destroy(subject.average);
    car_weights_destroy(subject.weights);
    car_arena_destroy(arena);
    if (status != CAR_OK && !atomic_load(&run->stop)) {
        run->judge.failed = (car_kept_failure){.status = status, .step = step};
        snprintf(run->judge.failed.why, sizeof run->judge.failed.why, "%s", car_context_error(run->context));
        car_rank_stop(rank);
    }
    car_context_clear_error(run->context); /* it was cancelled, or is reported at the end */
}

/* ---- during pauses --------------------------------------------------------------------------- */

car_status car_member_agree_on_stop(car_member *member) {
    car_run *run = member->run;
    size_t ranks = (size_t)car_transport_size(member->transport);
    bool own = atomic_load(&run->stop), *all = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(run->context, ranks, sizeof *all, &all));
    CAR_TRY(car_transport_all_gather(member->transport, &own, sizeof own, all));
    for (size_t r = 0; r < ranks; r++) {
        member->stopped = member->stopped || all[r];
    }
done:
    car_context_release(run->context, all, all ? ranks : 0, sizeof *all);
    return status;
}

/* Rank 0 decides this for all ranks. */
typedef struct judgement {
    bool enough, broken_off;
} judgement;

typedef struct stop_over {
    car_subject subject;
    judgement out;
} stop_over;

static car_status evaluate_in_pause(car_member *member, void *user) {
    stop_over *p = user;
    car_run *run = member->run;
    car_status status = atomic_load(&run->stop) ? CAR_OK : evaluate_subject(run, member->arena, &p->subject);
    if (run->judge.evaluated_step != p->subject.step && atomic_load(&run->stop)) {
        car_context_clear_error(run->context);
        status = CAR_OK;
        p->out.broken_off = true;
    }
    p->out.enough = run->lost_patience;
    return status;
}

/* Training is drained, so all ranks have the weights of the same step. on_evaluation may call car_run_stop. */
car_status car_member_evaluate(car_member *member, bool *ends) {
    stop_over p = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_member_gather(member, &p.subject));
    CAR_TRY(car_member_work_first(member, evaluate_in_pause, &p, NULL, 0));
    CAR_TRY(car_transport_broadcast(member->transport, 0, &p.out, sizeof p.out));
    CAR_TRY(car_member_agree_on_stop(member));
    member->enough = p.out.enough;
    member->broken_off = p.out.broken_off;
    *ends = member->enough || member->stopped;
done:
    car_member_drop(member, &p.subject);
    return status;
}

/* ---- between trainings ----------------------------------------------------------------------- */

typedef struct question {
    car_subject subject;
    car_evaluation *out;
} question;

static car_status evaluate_first(car_member *member, void *user) {
    const question *q = user;
    return evaluate(member->run, member->arena, q->subject.weights, false, NULL, q->out);
}

static car_status evaluate_member(car_member *member, void *user) {
    question q = {.out = user}; /* ranks in one process share the first one's result */
    car_status status = CAR_OK;
    CAR_TRY(car_member_gather(member, &q.subject));
    CAR_TRY(car_member_work_first(member, evaluate_first, &q, q.out, sizeof *q.out));
done:
    car_member_drop(member, &q.subject);
    return status;
}

car_status car_run_evaluate(car_run *run, car_evaluation *out) {
    CAR_ENTER(run, run->context);
    CAR_REQUIRE(run->context, out);
    car_status status = car_run_check_evaluation(run);
    *out = (car_evaluation){0};
    return status == CAR_OK ? car_run_together(run, evaluate_member, out) : status;
}

/* ---- resumed runs ---------------------------------------------------------------------------- */

/* True if the file of the best weights is that of the best evaluation. */
static bool has_file_of_best(const car_run *run) {
    const char *path = run->options.best;
    char step[32];
    car_card *card = NULL;
    snprintf(step, sizeof step, "%lld", (long long)run->judge.best_step);
    bool read = access(path, R_OK) == 0 && car_card_read(run->context, path, &card) == CAR_OK;
    const char *found = read ? car_card_get(card, "step") : NULL;
    bool same = found && strcmp(found, step) == 0;
    car_card_destroy(card);
    car_context_clear_error(run->context);
    return same;
}

/* After going back to an older checkpoint, or if the file is gone, only evaluations from now on count for the best. */
static void look_for_best(car_run *run) {
    car_run_judge *j = &run->judge;
    if (!run->options.best || j->best_step == CAR_NONE || !car_run_is_first(run)) {
        return;
    }
    if (has_file_of_best(run)) {
        j->best_saved = j->best_step;
        return;
    }
    car_context_log(
        run->context, CAR_LOG_WARNING,
        "%s does not have the weights of step %lld, the best so far: the search for the best weights starts again",
        run->options.best, (long long)j->best_step);
    unlink(run->options.best);
    j->best_step = CAR_NONE;
    j->worse = 0;
}

car_status car_run_recall(car_run *run, const car_past_evaluation *list, int count) {
    CAR_ENTER(run, run->context);
    if (count > 0) {
        CAR_REQUIRE(run->context, list);
    }
    for (int e = 0; e < count; e++) {
        count_value(run, list[e].value, list[e].step);
        run->judge.recalled_step = list[e].step;
    }
    run->judge.recalled = true;
    look_for_best(run);
    return CAR_OK;
}
