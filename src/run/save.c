/* What a run keeps: checkpoints, written on the way by a thread of their own and at the end, and files of weights. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folder.h"
#include "carousel/checkpoint.h"
#include "carousel/file.h"
#include "run/internal.h"
#include "transport/transport.h"

/* ---- checkpoints ----------------------------------------------------------------------------- */

static const char optimizer_key[] = "optimizer";

static car_status write_snapshot(car_run *run, const car_snapshot *snapshot) {
    const car_checkpoint_config where = {.directory = run->options.directory, .keep = run->options.keep};
    cJSON *json = cJSON_CreateObject();
    char *text = NULL;
    car_status status = CAR_OK;
    if (json && cJSON_AddStringToObject(json, optimizer_key, car_optimizer_config_name(&run->training.optimizer))) {
        text = cJSON_PrintUnformatted(json);
    }
    status = text ? car_checkpoint_write(run->context, &where, snapshot, text)
                  : car_context_fail(run->context, CAR_ERROR_MEMORY, "out of memory for a checkpoint");
    if (status == CAR_OK) {
        run->saved_step = car_snapshot_get_numbers(snapshot).step;
    }
    cJSON_free(text);
    cJSON_Delete(json);
    return status;
}

/* Training goes on, and tells of it at its end. */
static void note_loss(const car_run *run, const char *what, int64_t step, car_status status, car_loss_of_file *loss) {
    car_context_log(run->context, CAR_LOG_WARNING, "%s, of step %lld, could not be written: %s; training goes on", what,
                    (long long)step, car_context_error(run->context));
    if (loss->status == CAR_OK) {
        *loss = (car_loss_of_file){.status = status, .step = step};
        snprintf(loss->why, sizeof loss->why, "%s", car_context_error(run->context));
    }
    car_context_clear_error(run->context);
}

/* A checkpoint that cannot be written does not end the run: the older ones are there, and the next may succeed. */
static void write_on_the_way(void *user, const car_snapshot *snapshot) {
    car_run *run = user;
    car_status status = write_snapshot(run, snapshot);
    if (status != CAR_OK) {
        note_loss(run, "a checkpoint", car_snapshot_get_numbers(snapshot).step, status, &run->lost_checkpoint);
    }
    car_rank_return_snapshot(run->members[0].rank);
}

car_status car_run_open_writer(car_run *run) {
    car_trainer_config *training = &run->training;
    training->snapshot_every = run->options.checkpoint_every;
    if (training->snapshot_every == 0 || (run->launched && car_run_rank(run) > 0)) {
        return CAR_OK;
    }
    car_status status = car_snapshot_thread_create(run->context, write_on_the_way, run, &run->writer);
    training->on_snapshot = car_snapshot_thread_hand_over;
    training->snapshot_user = run->writer;
    return status;
}

typedef struct checkpoint_work {
    car_snapshot *snapshot;
} checkpoint_work;

static car_status write_first(car_member *member, void *user) {
    const checkpoint_work *work = user;
    car_snapshot_thread_wait(member->run->writer); /* one thread at a time may write */
    bool written = member->run->saved_step == car_snapshot_get_numbers(work->snapshot).step;
    return written ? CAR_OK : write_snapshot(member->run, work->snapshot);
}

static car_status checkpoint_member(car_member *member, void *user) {
    checkpoint_work work = {NULL};
    car_status status = CAR_OK;
    (void)user;
    CAR_TRY(car_member_follow_first(
        member, car_member_is_first(member) ? car_rank_create_snapshot(member->rank, &work.snapshot) : CAR_OK));
    CAR_TRY(car_rank_gather(member->rank, work.snapshot));
    CAR_TRY(car_member_work_first(member, write_first, &work, NULL, 0));
done:
    car_snapshot_destroy(work.snapshot);
    return status;
}

car_status car_run_checkpoint(car_run *run) {
    CAR_REQUIRE(NULL, run);
    car_context_clear_error(run->context);
    if (!run->options.directory) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "checkpoints want a directory: options.directory");
    }
    return car_run_together(run, checkpoint_member, NULL);
}

car_status car_run_write_last(car_run *run) {
    return run->options.directory ? car_run_together(run, checkpoint_member, NULL) : CAR_OK;
}

static car_status tell_loss(const car_run *run, const char *what, car_loss_of_file *loss) {
    car_status status = loss->status;
    loss->status = CAR_OK;
    return status == CAR_OK ? CAR_OK
                            : car_context_fail(run->context, status,
                                               "%s, of step %lld, could not be written, and training went on: %s", what,
                                               (long long)loss->step, loss->why);
}

static car_status tell_member(car_member *member, void *user) {
    car_run *run = member->run;
    car_status checkpoints = CAR_OK, best = CAR_OK;
    (void)user;
    if (car_member_is_first(member)) {
        car_snapshot_thread_wait(run->writer);
        checkpoints = tell_loss(run, "a checkpoint", &run->lost_checkpoint);
        best = tell_loss(run, "the file of the best weights", &run->lost_best);
    }
    return car_member_follow_first(member, checkpoints != CAR_OK ? checkpoints : best);
}

car_status car_run_tell_losses(car_run *run) {
    bool writes = run->options.checkpoint_every > 0 || run->options.best;
    return writes ? car_run_together(run, tell_member, NULL) : CAR_OK;
}

/* ---- paths ----------------------------------------------------------------------------------- */

/* As a checkpoint begins: with a directory in it. */
static car_status try_directory(car_context *context, const char *path) {
    char *temporary = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_folder_make(context, path));
    CAR_TRY(car_folder_temporary(context, path, "step-", &temporary));
    if (mkdir(temporary, 0777) != 0 && errno != EEXIST) {
        status =
            car_context_fail(context, CAR_ERROR_IO, "%s: cannot write checkpoints there: %s", path, strerror(errno));
    }
    rmdir(temporary);
done:
    car_context_release_text(context, temporary);
    return status;
}

car_status car_run_try_paths(const car_run *run) {
    car_file *file = NULL;
    car_status status = CAR_OK;
    if (run->launched && car_run_rank(run) > 0) {
        return CAR_OK;
    }
    if (run->options.directory) {
        CAR_TRY(try_directory(run->context, run->options.directory));
    }
    if (run->options.best) {
        CAR_TRY(car_file_create(run->context, run->options.best, &file));
    }
done:
    car_file_close(file);
    return status;
}

/* ---- going on -------------------------------------------------------------------------------- */

static car_status compare_optimizer(const car_run *run, const car_checkpoint *checkpoint) {
    cJSON *json = cJSON_Parse(car_checkpoint_run(checkpoint));
    const char *then = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, optimizer_key));
    const char *now = car_optimizer_config_name(&run->training.optimizer);
    car_status status = CAR_OK;
    if (then && strcmp(then, now) != 0) {
        status =
            car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                             "the checkpoint of step %lld in %s has the state of optimizer %s, and this run has %s: "
                             "begin with its weights instead (car_run_load)",
                             (long long)car_checkpoint_step(checkpoint), run->options.directory, then, now);
    }
    cJSON_Delete(json);
    return status;
}

static car_status read_snapshot(const car_member *member, int64_t step, car_snapshot *snapshot) {
    const car_run *run = member->run;
    car_checkpoint *checkpoint = NULL;
    bool exact = true;
    car_status status = CAR_OK;
    CAR_TRY(car_checkpoint_open(run->context, run->options.directory, step, &checkpoint));
    CAR_TRY(compare_optimizer(run, checkpoint));
    CAR_TRY(car_checkpoint_read(checkpoint, snapshot, &exact));
    if (!exact) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "the checkpoint of step %lld lacks the previous version of the weights or a state of the "
                        "optimizer: the run goes on, but not exactly as it would have",
                        (long long)step);
    }
done:
    car_checkpoint_close(checkpoint);
    return status;
}

/* Rank 0 reads, all go on from it. */
static car_status resume(car_member *member, int64_t step) {
    car_snapshot *snapshot = NULL;
    bool first = car_member_is_first(member);
    car_status read = CAR_OK, status = CAR_OK;
    if (first) {
        read = car_rank_create_snapshot(member->rank, &snapshot);
        read = read == CAR_OK ? read_snapshot(member, step, snapshot) : read;
    }
    CAR_TRY(car_member_follow_first(member, read));
    CAR_TRY(car_rank_spread(member->rank, snapshot));
    if (first) {
        member->run->saved_step = step;
    }
done:
    car_snapshot_destroy(snapshot);
    return status;
}

car_status car_member_begin(car_member *member) {
    const car_run *run = member->run;
    int64_t newest = -1;
    car_status status = CAR_OK;
    if (run->options.directory) {
        bool first = car_member_is_first(member);
        CAR_TRY(car_member_follow_first(
            member, first ? car_checkpoint_newest(run->context, run->options.directory, &newest) : CAR_OK));
        CAR_TRY(car_transport_broadcast(member->transport, 0, &newest, sizeof newest));
    }
    if (newest >= 0 && !run->options.resume) {
        return car_context_fail(run->context, CAR_ERROR_IO,
                                "%s holds a run that was saved after step %lld: go on with options.resume, or choose "
                                "another directory",
                                run->options.directory, (long long)newest);
    }
    if (newest > run->steps) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "%s holds a run of %lld steps, more than the %lld of this one: give it more steps or "
                                "epochs, or evaluate its weights (car_run_load)",
                                run->options.directory, (long long)newest, (long long)run->steps);
    }
    CAR_TRY(newest >= 0 ? resume(member, newest) : car_rank_initialize(member->rank, run->options.seed));
done:
    return status;
}

/* ---- weights --------------------------------------------------------------------------------- */

typedef struct file_work {
    const char *path;
    char *digest;
    car_weights *weights;
} file_work;

static car_status save_first(car_member *member, void *user) {
    const file_work *work = user;
    (void)member;
    return work->path ? car_weights_save(work->weights, work->path) : car_weights_digest(work->weights, work->digest);
}

static car_status save_member(car_member *member, void *user) {
    file_work work = *(const file_work *)user;
    car_status status = CAR_OK;
    CAR_TRY(car_member_gather(member, &work.weights));
    CAR_TRY(car_member_work_first(member, save_first, &work, work.digest, work.digest ? 65 : 0));
done:
    return status;
}

/* The file from before stays. */
static car_status save_or_note(car_member *member, void *user) {
    car_run *run = member->run;
    const file_work *work = user;
    car_status status = car_weights_save(work->weights, work->path);
    if (status == CAR_OK) {
        run->best_saved = run->best_step;
    } else {
        note_loss(run, "the file of the best weights", run->best_step, status, &run->lost_best);
    }
    return CAR_OK;
}

car_status car_member_save_best(car_member *member) {
    file_work work = {.path = member->run->options.best};
    car_status status = CAR_OK;
    CAR_TRY(car_member_gather(member, &work.weights));
    CAR_TRY(car_member_work_first(member, save_or_note, &work, NULL, 0));
done:
    return status;
}

static car_status refuse_path(const car_run *run) {
    return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "a file of weights wants a path, and it is NULL");
}

car_status car_run_save(car_run *run, const char *path) {
    CAR_REQUIRE(NULL, run);
    car_context_clear_error(run->context);
    if (!path) {
        return refuse_path(run);
    }
    return car_run_together(run, save_member, &(file_work){.path = path});
}

car_status car_run_digest(car_run *run, char *text) {
    CAR_REQUIRE(NULL, run);
    car_context_clear_error(run->context);
    CAR_REQUIRE(run->context, text);
    return car_run_together(run, save_member, &(file_work){.digest = text});
}

/* The file's weights as a snapshot, on rank 0. */
static car_status read_file(car_member *member, const char *path, car_snapshot *snapshot) {
    const car_run *run = member->run;
    car_weights *weights = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_weights_create(run->program, member->arena, &weights));
    CAR_TRY(car_weights_load(weights, path, NULL, NULL));
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
        member->run->saved_step = CAR_NONE; /* a checkpoint of this step has other weights */
    }
done:
    car_snapshot_destroy(snapshot);
    return status;
}

car_status car_run_load(car_run *run, const char *path) {
    CAR_REQUIRE(NULL, run);
    car_context_clear_error(run->context);
    if (!path) {
        return refuse_path(run);
    }
    if (car_run_steps(run) > 0) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "weights are loaded before the first step, and %lld were made",
                                (long long)car_run_steps(run));
    }
    return car_run_together(run, load_member, (void *)(uintptr_t)path);
}
