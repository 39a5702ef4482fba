/* Driving a run: training with evaluations on the way, evaluations, predictions. */
#include <math.h>

#include "carousel/evaluate.h"
#include "engine/internal.h"
#include "run/internal.h"

/* ---- training -------------------------------------------------------------------------------- */

car_status car_run_check_evaluation(const car_run *run) {
    if (run->dataset && car_dataset_get_info(run->dataset).samples[CAR_SPLIT_EVALUATION] == 0) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "data %s has no samples to evaluate on",
                                car_dataset_name(run->dataset));
    }
    if (!run->dataset && (!run->options.evaluation_feed || run->options.eval_batches == 0)) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "a run with a feed of one's own is evaluated with options.evaluation_feed, for "
                                "options.eval_batches micro-batches");
    }
    return car_evaluate_check(run->graph, run->options.metric);
}

static car_status evaluate_member(car_member *member, void *user);

/* Whether any rank was told to stop: then all of them know. Called by all members. */
static car_status agree_on_stop(car_member *member) {
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
    car_context_release(run->context, all, ranks, sizeof *all);
    return status;
}

/* What rank 0 decides for all. */
typedef struct judgement {
    bool better, ends;
} judgement;

/* Counts an evaluation. What is not a number is never better. */
static judgement judge(car_run *run, int64_t step, const car_evaluation *evaluation) {
    const car_run_options *o = &run->options;
    double value = o->by_accuracy ? -evaluation->top1 : evaluation->loss; /* the lower, the better */
    bool better = isfinite(value) && (run->best_step == CAR_NONE || value < run->best_value);
    run->worse = better ? 0 : run->worse + 1;
    if (better) {
        run->best_value = value;
        run->best_step = step;
    }
    return (judgement){better, o->patience > 0 && run->worse >= o->patience};
}

/* The cycle is drained, so all ranks have the weights of the same step. A callback that has enough stops the run. */
static car_status evaluate_on_the_way(void *user, bool *ends) {
    car_member *member = user;
    const car_run_options *o = &member->run->options;
    int64_t step = car_rank_steps(member->rank);
    car_evaluation evaluation = {0};
    judgement all = {0};
    car_status status = CAR_OK;
    CAR_TRY(evaluate_member(member, &evaluation));
    if (car_member_is_first(member)) {
        all = judge(member->run, step, &evaluation);
        if (o->on_evaluation) {
            o->on_evaluation(o->user, step, &evaluation);
        }
    }
    CAR_TRY(car_transport_broadcast(member->transport, 0, &all, sizeof all));
    if (o->best && all.better) {
        CAR_TRY(car_member_save_best(member));
    }
    CAR_TRY(agree_on_stop(member));
    *ends = all.ends || member->stopped;
done:
    return status;
}

static car_status train_member(car_member *member, void *user) {
    const int64_t *steps = user;
    const car_rank_loop loop = {
        .steps = *steps, .every = member->run->options.eval_every, .pause = evaluate_on_the_way, .user = member};
    bool behind = car_rank_steps(member->rank) < *steps, ends = false;
    car_status status = CAR_OK;
    CAR_TRY(agree_on_stop(member));
    if (member->stopped) {
        return CAR_OK;
    }
    CAR_TRY(car_rank_drive(member->rank, &loop));
    if (behind && car_rank_steps(member->rank) == *steps && loop.every > 0 && *steps % loop.every == 0) {
        CAR_TRY(evaluate_on_the_way(member, &ends));
    }
    CAR_TRY(agree_on_stop(member));
done:
    return status;
}

car_status car_run_train_to(car_run *run, int64_t steps) {
    CAR_REQUIRE(NULL, run);
    car_status status = CAR_OK;
    car_context_clear_error(run->context);
    if (steps < 0 || steps > run->steps) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                steps < 0 ? "training to step %lld makes no sense: this run has %lld"
                                          : "step %lld is beyond the %lld of this run: create it with more steps",
                                (long long)steps, (long long)run->steps);
    }
    CAR_TRY(car_run_together(run, train_member, &steps));
    car_status last = car_run_write_last(run), told = car_run_tell_losses(run);
    status = last != CAR_OK ? last : told;
done:
    return status;
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

/* ---- evaluation ------------------------------------------------------------------------------ */

typedef struct evaluation {
    car_weights *weights;
    car_evaluation *out;
} evaluation;

static car_status evaluate_first(car_member *member, void *user) {
    const evaluation *e = user;
    const car_run *run = member->run;
    const car_run_options *o = &run->options;
    int threads = run->training.threads;
    if (member->feeder) {
        const car_feeder_evaluation how = {.threads = threads < o->workers ? threads : o->workers,
                                           .batches = o->eval_batches,
                                           .metric = o->metric,
                                           .metric_user = o->user};
        return car_feeder_evaluate(member->feeder, run->program, member->arena, e->weights, &how, e->out);
    }
    const car_evaluate_config config = {.threads = threads,
                                        .batches = o->eval_batches,
                                        .feed = o->evaluation_feed,
                                        .feed_user = o->feed_user,
                                        .metric = o->metric,
                                        .metric_user = o->user};
    return car_evaluate_with(run->program, member->arena, e->weights, &config, e->out);
}

static car_status evaluate_member(car_member *member, void *user) {
    evaluation e = {.out = user}; /* of ranks in one process the first one's */
    car_status status = CAR_OK;
    CAR_TRY(car_member_gather(member, &e.weights));
    CAR_TRY(car_member_work_first(member, evaluate_first, &e, e.out, sizeof *e.out));
done:
    return status;
}

car_status car_run_evaluate(car_run *run, car_evaluation *out) {
    CAR_REQUIRE(NULL, run);
    car_context_clear_error(run->context);
    CAR_REQUIRE(run->context, out);
    car_status status = car_run_check_evaluation(run);
    *out = (car_evaluation){0};
    return status == CAR_OK ? car_run_together(run, evaluate_member, out) : status;
}

/* ---- predictions ----------------------------------------------------------------------------- */

typedef struct prediction {
    car_weights *weights;
    int input; /* tensor */
    const void *inputs;
    float *logits;
    int64_t rows;
} prediction;

/* What the data is for, or else the graph's only input besides the labels. */
static car_status find_input(const car_run *run, int labels, int *out) {
    int found = 0;
    *out = run->dataset ? car_graph_find_tensor(run->graph, car_dataset_input_name(run->dataset)) : CAR_NONE;
    if (*out != CAR_NONE) {
        return CAR_OK;
    }
    for (int t = 0; t < car_graph_tensor_count(run->graph); t++) {
        if (car_graph_tensor(run->graph, t)->producer == CAR_NONE && t != labels) {
            *out = t;
            found++;
        }
    }
    return found == 1
               ? CAR_OK
               : car_context_fail(run->context, CAR_ERROR_UNSUPPORTED,
                                  "a prediction is made of one input, and this graph has %d besides the labels", found);
}

static car_status predict_first(car_member *member, void *user) {
    const prediction *p = user;
    const car_run *run = member->run;
    car_tape *tape = NULL;
    car_lane *lane = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_tape_create(run->program, member->arena, &tape));
    CAR_TRY(car_lane_create(run->program, member->arena, &lane));
    car_tape_begin(tape, 0, false);
    CAR_TRY(car_tape_feed(tape, p->input, p->inputs));
    CAR_TRY(car_tape_forward(tape, lane, p->weights, 0, car_graph_op_count(run->graph) - 1)); /* all but the loss */
    CAR_TRY(car_tape_logits(tape, p->weights, 0, p->rows, p->logits));
done:
    car_lane_destroy(lane);
    car_tape_destroy(tape);
    return status;
}

static car_status predict_member(car_member *member, void *user) {
    prediction p = *(const prediction *)user;
    size_t bytes = (size_t)(p.rows * car_graph_classes(member->run->graph)) * sizeof *p.logits;
    car_status status = CAR_OK;
    CAR_TRY(car_member_gather(member, &p.weights));
    CAR_TRY(car_member_work_first(member, predict_first, &p, p.logits, bytes));
done:
    return status;
}

car_status car_run_predict(car_run *run, const void *inputs, float *logits) {
    CAR_REQUIRE(NULL, run);
    car_context_clear_error(run->context);
    CAR_REQUIRE(run->context, inputs);
    CAR_REQUIRE(run->context, logits);
    const car_op *loss = car_graph_op(run->graph, car_graph_op_count(run->graph) - 1);
    if (car_graph_classes(run->graph) == 0) {
        return car_context_fail(run->context, CAR_ERROR_UNSUPPORTED,
                                "this graph ends in a stage of one's own and has no logits to predict");
    }
    int labels = loss->inputs[1];
    prediction p = {
        .inputs = inputs, .logits = logits, .rows = car_shape_elements(car_graph_tensor(run->graph, labels)->shape)};
    car_status status = find_input(run, labels, &p.input);
    return status == CAR_OK ? car_run_together(run, predict_member, &p) : status;
}
