/* Query functions of a run. */
#include "run/internal.h"

int64_t car_run_steps(const car_run *run) {
    return run ? car_rank_steps(run->members[0].rank) : 0;
}

int64_t car_run_total_steps(const car_run *run) {
    return run ? run->steps : 0;
}

int64_t car_run_best_step(const car_run *run) {
    return !run ? CAR_NONE : run->options.best ? run->judge.best_saved : run->judge.best_step;
}

double car_run_best_value(const car_run *run) {
    return run ? run->judge.best_value : 0;
}

const car_evaluation *car_run_average(const car_run *run) {
    return run && car_run_average_decay(run) > 0 && run->judge.evaluated_step != CAR_NONE ? &run->judge.average : NULL;
}

int64_t *car_run_confusion(const car_run *run) {
    return run ? run->judge.counts : NULL;
}

int64_t car_run_first_step(const car_run *run) {
    return run ? run->first_step : 0;
}

const char *car_run_then(const car_run *run) {
    return run ? run->then : NULL;
}

bool car_run_goes_on_exactly(const car_run *run) {
    return run && run->exact;
}

bool car_run_has_ended(const car_run *run) {
    return run && run->ended;
}

bool car_run_is_complete(const car_run *run) {
    return run && run->complete;
}

bool car_run_has_result(const car_run *run) {
    return run && run->has_result;
}

bool car_run_lost_patience(const car_run *run) {
    return run && run->lost_patience;
}

int car_run_worse(const car_run *run) {
    return run ? run->judge.worse : 0;
}

bool car_run_is_broken(const car_run *run) {
    return run && run->broken != CAR_OK;
}

int64_t car_run_epoch_steps(const car_run *run) {
    return run ? run->epoch_steps : 0;
}

int car_run_rank(const car_run *run) {
    return run ? car_transport_rank(run->members[0].transport) : 0;
}

int car_run_ranks(const car_run *run) {
    return run ? car_transport_size(run->members[0].transport) : 0;
}

const car_graph *car_run_graph(const car_run *run) {
    return run ? run->graph : NULL;
}

const car_plan *car_run_plan(const car_run *run) {
    return run ? run->plan : NULL;
}

size_t car_run_peak(const car_run *run, car_memory category) {
    size_t bytes = 0;
    for (int m = 0; run && m < run->member_count; m++) {
        bytes += car_arena_peak(run->members[m].arena, category);
    }
    return bytes;
}

car_model_config car_run_shape(const car_run *run) {
    return run ? run->options.shape : (car_model_config){0};
}

const car_schedule *car_run_schedule(const car_run *run) {
    return run ? &run->training.schedule : NULL;
}

int car_run_threads(const car_run *run) {
    return run ? run->training.threads : 0;
}

const car_machines *car_run_machines(const car_run *run) {
    return run ? &run->machines : NULL;
}

const car_mapping_choice *car_run_mapping(const car_run *run) {
    return run && run->compared ? &run->choice : NULL;
}

double car_run_planned(const car_run *run) {
    return run ? run->planned : 0;
}

car_dataset *car_run_dataset(const car_run *run) {
    return run ? run->dataset : NULL;
}

const car_feeder *car_run_feeder(const car_run *run) {
    return run ? run->members[0].feeder : NULL;
}

const car_arena *car_run_arena(const car_run *run) {
    return run ? run->members[0].arena : NULL;
}

car_rank *car_run_engine(const car_run *run) {
    return run ? run->members[0].rank : NULL;
}

car_transport *car_run_transport(const car_run *run) {
    return run ? run->members[0].transport : NULL;
}
