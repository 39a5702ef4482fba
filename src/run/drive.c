/* Training with its evaluations, and what happens at its end.
 *
 * At the end the most valuable is saved first:
 *
 *   weights.safetensors   the result; takes the least space
 *   the last checkpoint   to resume from; takes at least twice as much
 *   the evaluation        can be repeated
 *
 * If one cannot be saved, the others are still tried. Training then returns the first failure. */
#include "run/internal.h"

static void enter(const car_member *member, car_run_activity activity) {
    const car_run_options *o = &member->run->options;
    if (o->on_activity && car_member_is_first(member)) {
        o->on_activity(o->user, activity);
    }
}

/* ---- during training ------------------------------------------------------------------------- */

static void begin_part(void *user) {
    enter(user, CAR_RUN_TRAINING);
}

static car_status end_part(void *user) {
    enter(user, CAR_RUN_SAVING);
    return CAR_OK;
}

static car_status pause_for_evaluation(void *user, bool *ends) {
    car_member *member = user;
    enter(member, CAR_RUN_TRAINING); /* an evaluation need not finish either */
    car_status status = car_member_evaluate(member, ends);
    enter(member, CAR_RUN_SAVING);
    return status;
}

/* True if a resumed run starts at a step whose evaluation is missing, because a signal or a crash cut it off. Rank 0
 * decides. */
static car_status find_owed(const car_member *member, bool *out) {
    const car_run *run = member->run;
    int64_t every = run->options.eval_every, step = car_rank_steps(member->rank);
    *out = run->judge.recalled && every > 0 && step > 0 && step == run->first_step && step % every == 0 &&
           step < run->steps && step != run->judge.recalled_step && step != run->judge.evaluated_step;
    return car_transport_broadcast(member->transport, 0, out, sizeof *out);
}

/* ---- the end of training --------------------------------------------------------------------- */

static car_status look_around(car_member *member, void *user) {
    (void)user;
    car_snapshot_thread_wait(member->run->writer);
    return car_run_find_directory(member->run);
}

/* True if the last evaluation is due. `behind`: this call made steps. On rank 0. */
static bool is_evaluated(const car_member *member, bool behind, int64_t target) {
    const car_run *run = member->run;
    const car_run_options *o = &run->options;
    int64_t step = car_rank_steps(member->rank);
    bool real =
        run->dataset && run->epoch_steps > 0 && car_dataset_get_info(run->dataset).samples[CAR_SPLIT_EVALUATION] != 0;
    bool due = behind && o->eval_every > 0 && target % o->eval_every == 0;
    bool last = step >= run->steps && o->eval_at_end && (o->eval_every > 0 || real);
    return step >= target && (due || last) && step != run->judge.evaluated_step;
}

/* *complete: nothing is left to do. */
static car_status evaluate_last(car_member *member, bool behind, int64_t target, bool *complete) {
    bool ends = false, evaluates = car_member_is_first(member) && is_evaluated(member, behind, target);
    car_status status = CAR_OK;
    *complete = car_rank_steps(member->rank) >= target || member->enough;
    if (member->enough) {
        return CAR_OK;
    }
    CAR_TRY(car_transport_broadcast(member->transport, 0, &evaluates, sizeof evaluates));
    if (evaluates && !member->stopped) {
        CAR_TRY(pause_for_evaluation(member, &ends));
    }
    *complete = *complete && !(evaluates && (member->stopped || member->broken_off));
done:
    return status;
}

static car_status finish(car_member *member, bool behind, int64_t target) {
    car_run *run = member->run;
    bool complete = false, writes = run->options.directory || run->options.best || car_run_evaluates_beside(run);
    car_status status = CAR_OK;
    enter(member, CAR_RUN_SAVING);
    if (writes) {
        CAR_TRY(car_member_work_first(member, look_around, NULL, NULL, 0));
    }
    CAR_TRY(car_member_write_result(member));
    CAR_TRY(car_member_write_last(member));
    CAR_TRY(evaluate_last(member, behind, target, &complete));
    CAR_TRY(car_member_agree_on_stop(member));
    if (car_member_is_first(member) || run->launched) {
        run->complete = complete;
        run->lost_patience = member->enough;
        run->ended = true;
    }
    if (writes) {
        CAR_TRY(car_member_tell_losses(member));
    }
done:
    return status;
}

static car_status train_member(car_member *member, void *user) {
    const int64_t *steps = user;
    const car_run *run = member->run;
    car_rank_loop loop = {.steps = *steps,
                          .every = car_run_evaluates_beside(run) ? 0 : run->options.eval_every,
                          .pause = pause_for_evaluation,
                          .begin = begin_part,
                          .end = end_part,
                          .user = member};
    bool behind = car_rank_steps(member->rank) < *steps;
    car_status status = CAR_OK;
    member->enough = member->broken_off = false;
    CAR_TRY(car_member_agree_on_stop(member));
    if (!member->stopped) {
        CAR_TRY(find_owed(member, &loop.pause_first));
        CAR_TRY(car_rank_drive(member->rank, &loop));
        CAR_TRY(car_member_agree_on_stop(member));
    }
    CAR_TRY(finish(member, behind, *steps));
done:
    return status;
}

/* ---- calls --------------------------------------------------------------------------------------- */

car_status car_run_train_to(car_run *run, int64_t steps) {
    CAR_ENTER(run, run->context);
    if (steps < 0 || steps > run->steps) {
        return car_context_fail(
            run->context, CAR_ERROR_ARGUMENT,
            steps < 0 ? "cannot train to step %lld; this run has %lld steps"
                      : "cannot train to step %lld; this run has only %lld steps: create it with more steps",
            (long long)steps, (long long)run->steps);
    }
    run->ended = run->complete = run->lost_patience = false;
    atomic_store(&run->target, steps);
    return car_run_together(run, train_member, &steps);
}

car_status car_run_train(car_run *run) {
    CAR_REQUIRE(NULL, run);
    return car_run_train_to(run, run->steps);
}

void car_run_stop(car_run *run) {
    if (run) {
        atomic_store(&run->stop, true);
        car_rank_stop(run->members[0].rank);
    }
}

bool car_run_is_stopped(const car_run *run) {
    return run && (run->members[0].stopped || (!run->launched && atomic_load(&run->stop)));
}
