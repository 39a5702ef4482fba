/* Files of a run: checkpoints, written by a separate thread during training and once at the end, and weights. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folder.h"
#include "carousel/file.h"
#include "checkpoint/checkpoint.h"
#include "run/internal.h"

/* ---- metadata -------------------------------------------------------------------------------- */

/* The metadata of a file: model, class names, image preparation, step. The caller destroys it. */
static car_status make_card(const car_run *run, int64_t step, car_card **out) {
    const car_model_info *model = run->options.model ? car_model_find(run->options.model) : NULL;
    bool images = model && model->domain == CAR_DOMAIN_IMAGES;
    bool named = images && run->dataset && car_dataset_class_name(run->dataset, 0);
    car_status status = CAR_OK;
    CAR_TRY(car_card_create(run->context, out));
    if (model) {
        CAR_TRY(car_card_set_model(*out, run->options.model, &run->shape));
    }
    for (int c = 0; named && c < run->shape.classes; c++) {
        CAR_TRY(car_card_add_to_list(*out, "class_names", car_dataset_class_name(run->dataset, c)));
    }
    if (images) {
        car_image_recipe recipe = car_image_recipe_for(run->shape.image_size);
        CAR_TRY(car_card_set_recipe(*out, &recipe));
    }
    CAR_TRY(car_card_set(*out, "step", "%lld", (long long)step));
done:
    return status;
}

car_status car_run_write_weights(car_run *run, const char *path, const car_subject *subject, bool average, bool best) {
    const car_run_options *o = &run->options;
    car_card *card = NULL;
    car_status status = CAR_OK;
    CAR_TRY(make_card(run, subject->step, &card));
    if (average) {
        CAR_TRY(car_card_set(card, "average", "%g", car_run_average_decay(run)));
    }
    if (best) {
        CAR_TRY(car_card_set(card, o->by_accuracy ? "accuracy" : "loss", "%.9g", run->judge.best_value));
    }
    CAR_TRY(car_weights_save_with(average ? subject->average : subject->weights, path, card, o->save_precision));
done:
    car_card_destroy(card);
    return status;
}

/* ---- failed writes --------------------------------------------------------------------------- */

void car_run_note_loss(const car_run *run, const char *what, int64_t step, car_status status, car_kept_failure *loss) {
    car_context_log(run->context, CAR_LOG_WARNING, "%s %lld: %s; training continues", what, (long long)step,
                    car_context_error(run->context));
    if (loss->status == CAR_OK) {
        *loss = (car_kept_failure){.status = status, .step = step};
        snprintf(loss->why, sizeof loss->why, "%s", car_context_error(run->context));
    }
    car_context_clear_error(run->context);
}

/* The end of training reports its first failure; later ones are only logged. */
static void keep_failure(car_run *run, car_status status) {
    if (status != CAR_OK && run->lost_end.status == CAR_OK) {
        run->lost_end = (car_kept_failure){.status = status};
        snprintf(run->lost_end.why, sizeof run->lost_end.why, "%s", car_context_error(run->context));
    } else if (status != CAR_OK) {
        car_context_log(run->context, CAR_LOG_WARNING, "%s", car_context_error(run->context));
    }
    car_context_clear_error(run->context);
}

/* Reports that `what` could not be written. With NULL, the kept message already says so. */
static car_status tell_loss(const car_run *run, const char *what, car_kept_failure *loss) {
    car_status status = loss->status;
    loss->status = CAR_OK;
    if (status == CAR_OK) {
        return CAR_OK;
    }
    return what ? car_context_fail(run->context, status,
                                   "%s of step %lld could not be written, but training continued: %s", what,
                                   (long long)loss->step, loss->why)
                : car_context_fail(run->context, status, "%s", loss->why);
}

/* A lost checkpoint is not reported if a newer one was written. */
static car_status tell_first(car_run *run) {
    bool newer = run->saved_step != CAR_NONE && run->saved_step > run->lost_checkpoint.step;
    if (newer) {
        run->lost_checkpoint.status = CAR_OK;
    }
    car_status failed = tell_loss(run, NULL, &run->judge.failed);
    car_status end = tell_loss(run, NULL, &run->lost_end);
    car_status checkpoint = tell_loss(run, "a checkpoint", &run->lost_checkpoint);
    car_status best = tell_loss(run, "the file of the best weights", &run->lost_best);
    return failed != CAR_OK ? failed : end != CAR_OK ? end : checkpoint != CAR_OK ? checkpoint : best;
}

car_status car_member_tell_losses(car_member *member) {
    return car_member_follow_first(member, car_member_is_first(member) ? tell_first(member->run) : CAR_OK);
}

/* ---- checkpoints --------------------------------------------------------------------------------- */

car_status car_run_set_configuration(car_run *run, const char *json) {
    CAR_REQUIRE(NULL, run);
    cJSON *made = NULL;
    char *own = NULL;
    car_status status = CAR_OK;
    car_snapshot_thread_wait(run->writer);
    if (json) {
        CAR_TRY(car_manifest_check_run(run->context, json));
    } else {
        made = cJSON_CreateObject();
        bool added =
            made && cJSON_AddStringToObject(made, "optimizer", car_optimizer_config_name(&run->training.optimizer));
        own = added ? cJSON_PrintUnformatted(made) : NULL;
        if (!own) {
            CAR_TRY(car_context_fail(run->context, CAR_ERROR_MEMORY, "out of memory for the configuration"));
        }
    }
    car_context_release_text(run->context, run->configuration);
    run->configuration = NULL;
    CAR_TRY(car_context_copy_text(run->context, json ? json : own, &run->configuration));
done:
    cJSON_free(own);
    cJSON_Delete(made);
    return status;
}

static car_status write_snapshot(car_run *run, const car_snapshot *snapshot) {
    int64_t step = car_snapshot_get_numbers(snapshot).step;
    char directory[CAR_RUN_PATH];
    car_card *card = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_run_checkpoints(run, directory));
    CAR_TRY(make_card(run, step, &card));
    const car_checkpoint_config where = {.directory = directory, .keep = run->options.keep, .card = card};
    CAR_TRY(car_checkpoint_write(run->context, &where, snapshot, run->configuration));
    run->saved_step = step;
done:
    car_card_destroy(card);
    return status;
}

static bool is_due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

/* A checkpoint that cannot be written does not end the run: older ones exist, and the next may succeed. */
static void take_snapshot(void *user, const car_snapshot *snapshot) {
    car_run *run = user;
    int64_t step = car_snapshot_get_numbers(snapshot).step;
    if (car_run_saves(run) && is_due(step, run->options.checkpoint_every)) {
        car_status status = write_snapshot(run, snapshot);
        if (status != CAR_OK) {
            car_run_note_loss(run, "could not write the checkpoint of step", step, status, &run->lost_checkpoint);
        }
    }
    if (car_run_evaluates_beside(run) && is_due(step, run->options.eval_every) && step < atomic_load(&run->target) &&
        !atomic_load(&run->stop)) { /* the evaluation of the last step is made after training */
        car_run_evaluate_snapshot(run, snapshot);
    } else {
        car_rank_return_snapshot(run->members[0].rank);
    }
}

car_status car_run_open_writer(car_run *run) {
    car_trainer_config *training = &run->training;
    training->snapshot_every = car_run_saves(run) ? run->options.checkpoint_every : 0;
    training->weights_every = car_run_evaluates_beside(run) ? run->options.eval_every : 0;
    if ((training->snapshot_every == 0 && training->weights_every == 0) || !car_run_is_first(run)) {
        return CAR_OK;
    }
    car_status status = car_snapshot_thread_create(run->context, take_snapshot, run, &run->writer);
    training->on_snapshot = car_snapshot_thread_hand_over;
    training->snapshot_user = run->writer;
    return status;
}

typedef struct checkpoint_work {
    car_snapshot *snapshot;
    bool keeps; /* keep a failure for the end of training */
} checkpoint_work;

static car_status write_first(car_member *member, void *user) {
    const checkpoint_work *work = user;
    car_run *run = member->run;
    car_snapshot_thread_wait(run->writer); /* only one thread may write checkpoints */
    bool written = run->saved_step == car_snapshot_get_numbers(work->snapshot).step;
    car_status status = written ? CAR_OK : write_snapshot(run, work->snapshot);
    if (work->keeps) {
        keep_failure(run, status);
        status = CAR_OK;
    }
    return status;
}

static car_status checkpoint_member(car_member *member, void *user) {
    checkpoint_work work = {.keeps = user != NULL};
    car_status status = CAR_OK;
    if (car_transport_size(member->transport) > 1) {
        car_member_note_peaks(member);
    }
    CAR_TRY(car_member_follow_first(
        member, car_member_is_first(member) ? car_rank_create_snapshot(member->rank, &work.snapshot) : CAR_OK));
    CAR_TRY(car_rank_gather(member->rank, work.snapshot));
    CAR_TRY(car_member_work_first(member, write_first, &work, NULL, 0));
done:
    car_snapshot_destroy(work.snapshot);
    return status;
}

car_status car_run_checkpoint(car_run *run) {
    CAR_ENTER(run, run->context);
    if (!car_run_saves(run)) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "checkpoints need a directory: set %s",
                                car_run_name(&run->options, "directory").text);
    }
    return car_run_together(run, checkpoint_member, NULL);
}

/* Gathers nothing if the checkpoint exists already. */
car_status car_member_write_last(car_member *member) {
    bool needed = car_member_is_first(member) && member->run->saved_step != car_rank_steps(member->rank);
    car_status status = CAR_OK;
    if (!car_run_saves(member->run)) {
        return CAR_OK;
    }
    CAR_TRY(car_transport_broadcast(member->transport, 0, &needed, sizeof needed));
    if (needed) {
        CAR_TRY(checkpoint_member(member, &needed));
    }
done:
    return status;
}

/* ---- the result ---------------------------------------------------------------------------------- */

static car_status write_result(car_run *run, const car_subject *subject) {
    char path[CAR_RUN_PATH];
    car_status status = CAR_OK;
    run->has_result = false;
    CAR_TRY(car_run_place_path(run, "weights.safetensors", path));
    CAR_TRY(car_run_write_weights(run, path, subject, false, false));
    run->has_result = true;
    CAR_TRY(car_run_place_path(run, "average.safetensors", path));
    if (subject->average) {
        CAR_TRY(car_run_write_weights(run, path, subject, true, false));
    } else {
        unlink(path); /* a file of an earlier start, which had an average */
    }
done:
    return status;
}

static car_status write_result_first(car_member *member, void *user) {
    keep_failure(member->run, write_result(member->run, user));
    return CAR_OK;
}

car_status car_member_write_result(car_member *member) {
    car_subject subject = {0};
    car_status status = CAR_OK;
    if (!member->run->options.run_directory) {
        return CAR_OK;
    }
    CAR_TRY(car_member_gather(member, &subject));
    CAR_TRY(car_member_work_first(member, write_result_first, &subject, NULL, 0));
done:
    car_member_drop(member, &subject);
    return status;
}

/* ---- paths ----------------------------------------------------------------------------------- */

/* Tries what writing a checkpoint does first: creating a directory inside. */
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
    if (!car_run_is_first(run)) {
        return CAR_OK;
    }
    if (car_run_saves(run) && !run->options.run_directory) { /* a run directory has a lock file, so it is writable */
        CAR_TRY(try_directory(run->context, run->options.directory));
    }
    if (run->options.best) {
        CAR_TRY(car_file_create(run->context, run->options.best, &file));
    }
done:
    car_file_close(file);
    return status;
}

/* ---- weights --------------------------------------------------------------------------------- */

typedef struct file_work {
    const char *path;
    char *digest;
    car_subject subject;
} file_work;

static car_status save_first(car_member *member, void *user) {
    const file_work *work = user;
    return work->path ? car_run_write_weights(member->run, work->path, &work->subject, false, false)
                      : car_weights_digest(work->subject.weights, work->digest);
}

static car_status save_member(car_member *member, void *user) {
    file_work work = *(const file_work *)user;
    car_status status = CAR_OK;
    CAR_TRY(car_member_gather(member, &work.subject));
    CAR_TRY(car_member_work_first(member, save_first, &work, work.digest, work.digest ? 65 : 0));
done:
    car_member_drop(member, &work.subject);
    return status;
}

car_status car_run_save(car_run *run, const char *path) {
    CAR_ENTER(run, run->context);
    CAR_REQUIRE(run->context, path);
    return car_run_together(run, save_member, &(file_work){.path = path});
}

car_status car_run_digest(car_run *run, char *text) {
    CAR_ENTER(run, run->context);
    CAR_REQUIRE(run->context, text);
    return car_run_together(run, save_member, &(file_work){.digest = text});
}
