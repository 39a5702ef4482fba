/* How a run begins: with random weights, from a checkpoint, or with weights from a file. */
#include <cjson/cJSON.h>
#include <string.h>

#include "run/internal.h"

/* ---- from a checkpoint ----------------------------------------------------------------------- */

bool car_run_has_average(const car_snapshot *snapshot) {
    car_snapshot_numbers numbers = car_snapshot_get_numbers(snapshot);
    return numbers.updates > 0 || numbers.averaged;
}

/* The state of another optimizer is of no use: sets it to zero, as before the first step. Only the moving average of
 * the weights goes on. */
static car_status forget_state(const car_run *run, car_snapshot *snapshot) {
    size_t most = car_graph_param_bytes(run->graph);
    car_snapshot_numbers numbers = car_snapshot_get_numbers(snapshot);
    void *zeros = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(run->context, most, 1, &zeros));
    for (int p = 0; p < car_graph_param_count(run->graph); p++) {
        for (int part = CAR_SNAPSHOT_STATE_0; part < CAR_SNAPSHOT_AVERAGE; part++) {
            if (car_snapshot_has(snapshot, (car_snapshot_part)part, p)) {
                CAR_TRY(car_snapshot_set(snapshot, (car_snapshot_part)part, p, zeros));
            }
        }
    }
    numbers.averaged = car_run_has_average(snapshot);
    numbers.updates = numbers.since = 0;
    car_snapshot_set_numbers(snapshot, &numbers);
    car_context_log(run->context, CAR_LOG_WARNING,
                    "the checkpoint has the state of another optimizer: this optimizer starts with a new state");
done:
    car_context_release(run->context, zeros, zeros ? most : 0, 1);
    return status;
}

/* *other: the checkpoint has the state of another optimizer. */
static car_status compare_optimizer(const car_run *run, const car_checkpoint *checkpoint, bool *other) {
    cJSON *json = cJSON_Parse(car_checkpoint_run(checkpoint));
    const char *then = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "optimizer"));
    const char *now = car_optimizer_config_name(&run->training.optimizer);
    car_status status = CAR_OK;
    *other = then && strcmp(then, now) != 0;
    if (*other && !run->options.other_optimizer) {
        status = car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                  "the checkpoint of step %lld in %s has the state of optimizer %s, but this run uses "
                                  "%s: load only its weights instead (car_run_load)",
                                  (long long)car_checkpoint_step(checkpoint), run->options.directory, then, now);
    }
    cJSON_Delete(json);
    return status;
}

static car_status read_snapshot(car_run *run, int64_t step, car_snapshot *snapshot) {
    char directory[CAR_RUN_PATH];
    car_checkpoint *checkpoint = NULL;
    bool other = false;
    car_status status = CAR_OK;
    CAR_TRY(car_run_checkpoints(run, directory));
    CAR_TRY(car_checkpoint_open(run->context, directory, step, &checkpoint));
    CAR_TRY(compare_optimizer(run, checkpoint, &other));
    CAR_TRY(car_checkpoint_read(checkpoint, snapshot, &run->exact));
    CAR_TRY(car_context_copy_text(run->context, car_checkpoint_run(checkpoint), &run->then));
    if (other) {
        CAR_TRY(forget_state(run, snapshot));
    }
    if (!run->exact) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "the checkpoint of step %lld lacks the previous version of the weights or a state of the "
                        "optimizer: the run continues, but not exactly as it would have without a break",
                        (long long)step);
    }
    run->judge.averaged = car_run_has_average(snapshot);
done:
    car_checkpoint_close(checkpoint);
    return status;
}

/* Rank 0 reads the checkpoint and sends each rank its share. */
static car_status resume(car_member *member, int64_t step) {
    car_snapshot *snapshot = NULL;
    bool first = car_member_is_first(member);
    car_status read = CAR_OK, status = CAR_OK;
    if (first) {
        read = car_rank_create_snapshot(member->rank, &snapshot);
        read = read == CAR_OK ? read_snapshot(member->run, step, snapshot) : read;
    }
    CAR_TRY(car_member_follow_first(member, read));
    CAR_TRY(car_rank_spread(member->rank, snapshot));
    if (first || member->run->launched) {
        member->run->saved_step = member->run->first_step = step;
    }
done:
    car_snapshot_destroy(snapshot);
    return status;
}

car_status car_member_begin(car_member *member) {
    const car_run *run = member->run;
    int64_t step = run->begin_step;
    car_status status = CAR_OK;
    CAR_TRY(car_transport_broadcast(member->transport, 0, &step, sizeof step));
    if (step > run->steps && !run->options.run_directory) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "%s has a run of %lld steps, but this run has only %lld: set more steps or epochs, or "
                                "just evaluate the weights (car_run_load)",
                                run->options.directory, (long long)step, (long long)run->steps);
    }
    CAR_TRY(step >= 0 ? resume(member, step) : car_rank_initialize(member->rank, run->options.seed));
done:
    return status;
}

/* ---- from a file ----------------------------------------------------------------------------- */

typedef struct load_work {
    const char *path;
    const car_weights_load_config *config;
    car_weights_load_report *report;
} load_work;

/* Reads the file's weights into a snapshot, on rank 0. Parameters that the file lacks get random weights. */
static car_status read_file(car_member *member, const load_work *work, car_snapshot *snapshot) {
    const car_run *run = member->run;
    car_weights *weights = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_weights_create(run->program, member->arena, &weights));
    CAR_TRY(car_weights_initialize(weights, run->options.seed));
    CAR_TRY(car_weights_load(weights, work->path, work->config, work->report));
    CAR_TRY(car_snapshot_set_weights(snapshot, weights));
    car_snapshot_numbers numbers = car_snapshot_get_numbers(snapshot);
    numbers.step = car_rank_steps(member->rank);
    car_snapshot_set_numbers(snapshot, &numbers);
done:
    car_weights_destroy(weights);
    return status;
}

static car_status load_member(car_member *member, void *user) {
    car_snapshot *snapshot = NULL;
    bool first = car_member_is_first(member);
    car_status read = CAR_OK, status = CAR_OK;
    if (first) {
        read = car_snapshot_create(member->run->program, member->arena, false, 0, &snapshot);
        read = read == CAR_OK ? read_file(member, user, snapshot) : read;
    }
    CAR_TRY(car_member_follow_first(member, read));
    CAR_TRY(car_rank_spread(member->rank, snapshot));
    member->gathered_step = CAR_NONE;
    if (first) {
        member->run->saved_step = CAR_NONE; /* the checkpoint of this step has other weights */
    }
done:
    car_snapshot_destroy(snapshot);
    return status;
}

car_status car_run_load_with(car_run *run, const char *path, const car_weights_load_config *config,
                             car_weights_load_report *report) {
    CAR_ENTER(run, run->context);
    CAR_REQUIRE(run->context, path);
    if (car_run_steps(run) > 0) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "weights must be loaded before the first step, but %lld steps were already made",
                                (long long)car_run_steps(run));
    }
    return car_run_together(run, load_member, &(load_work){path, config, report});
}

car_status car_run_load(car_run *run, const char *path) {
    return car_run_load_with(run, path, NULL, NULL);
}
