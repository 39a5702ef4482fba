/* Writes a checkpoint: everything goes to a temporary folder, which is flushed and then renamed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folder.h"
#include "base/text.h"
#include "checkpoint/card_pairs.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/params.h"
#include "kernels/program.h"

/* ---- the files ------------------------------------------------------------------------------- */

/* The parts of a snapshot that one file holds, in order. */
typedef struct part_range {
    car_snapshot_part first, end;
} part_range;

static const part_range ranges[CAR_CHECKPOINT_FILES] = {
    [CAR_CHECKPOINT_WEIGHTS] = {CAR_SNAPSHOT_WEIGHTS, CAR_SNAPSHOT_WEIGHTS + 1},
    [CAR_CHECKPOINT_STATE] = {CAR_SNAPSHOT_WEIGHTS + 1, CAR_SNAPSHOT_PARTS},
};

/* One tensor of a file. */
typedef struct item {
    car_snapshot_part part;
    int param;
} item;

typedef struct item_list {
    item *items;
    char **names; /* including prefixes */
    car_safetensors_entry *entries;
    int count, capacity;
} item_list;

static void release_items(car_context *context, item_list *list) {
    for (int i = 0; list->names != NULL && i < list->count; i++) {
        car_context_release_text(context, list->names[i]);
    }
    car_context_release(context, list->entries, (size_t)list->capacity, sizeof *list->entries);
    car_context_release(context, list->names, (size_t)list->capacity, sizeof *list->names);
    car_context_release(context, list->items, (size_t)list->capacity, sizeof *list->items);
}

static car_status list_items(car_context *context, const car_snapshot *snapshot, part_range range, item_list *out) {
    const car_graph *graph = car_program_graph(car_snapshot_program(snapshot));
    int params = car_graph_param_count(graph);
    car_status status = CAR_OK;
    *out = (item_list){.capacity = params * CAR_SNAPSHOT_PARTS};
    CAR_TRY(car_context_allocate(context, (size_t)out->capacity, sizeof *out->items, &out->items));
    CAR_TRY(car_context_allocate(context, (size_t)out->capacity, sizeof *out->names, &out->names));
    CAR_TRY(car_context_allocate(context, (size_t)out->capacity, sizeof *out->entries, &out->entries));
    for (car_snapshot_part part = range.first; part < range.end; part++) {
        for (int p = 0; p < params; p++) {
            if (!car_snapshot_has(snapshot, part, p)) {
                continue;
            }
            int i = out->count++;
            const char *param = car_graph_param(graph, p)->name;
            size_t bytes = (size_t)car_checkpoint_part_name(snapshot, part, param, NULL, 0) + 1;
            CAR_TRY(car_context_allocate(context, bytes, 1, &out->names[i]));
            car_checkpoint_part_name(snapshot, part, param, out->names[i], bytes);
            out->items[i] = (item){part, p};
            out->entries[i] = car_params_entry(graph, p);
            out->entries[i].name = out->names[i];
        }
    }
done:
    return status;
}

static car_status write_parts(car_context *context, const car_snapshot *snapshot, const char *path, part_range range,
                              const car_card *card, void *values, uint64_t *bytes, char *digest) {
    item_list list = {0};
    car_card_pairs pairs = {0};
    car_safetensors_writer *writer = NULL;
    car_status status = CAR_OK;
    CAR_TRY(list_items(context, snapshot, range, &list));
    CAR_TRY(car_card_list_pairs(context, card, &pairs));
    CAR_TRY(car_safetensors_writer_create(context, path, list.entries, list.count, pairs.texts, &writer));
    for (int i = 0; i < list.count; i++) {
        CAR_TRY(car_snapshot_get(snapshot, list.items[i].part, list.items[i].param, values));
        CAR_TRY(car_safetensors_writer_add(writer, values));
    }
    CAR_TRY(car_safetensors_writer_finish(writer, digest));
    *bytes = car_safetensors_writer_bytes(writer);
done:
    car_safetensors_writer_destroy(writer);
    car_card_release_pairs(context, &pairs);
    release_items(context, &list);
    return status;
}

/* Writes all files of the checkpoint to an existing directory. */
static car_status write_files(car_context *context, const car_snapshot *snapshot, const car_card *card, const char *run,
                              const char *directory) {
    const car_graph *graph = car_program_graph(car_snapshot_program(snapshot));
    size_t largest = car_params_largest(graph);
    car_manifest manifest = {.numbers = car_snapshot_get_numbers(snapshot)};
    void *values = NULL;
    char *path = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, largest, 1, &values));
    car_params_digest(graph, manifest.model);
    for (int f = 0; f < CAR_CHECKPOINT_FILES; f++) {
        CAR_TRY(car_checkpoint_join(context, directory, car_checkpoint_file_names[f], &path));
        CAR_TRY(write_parts(context, snapshot, path, ranges[f], f == CAR_CHECKPOINT_WEIGHTS ? card : NULL, values,
                            &manifest.files[f].bytes, manifest.files[f].digest));
        car_context_release_text(context, path);
    }
    CAR_TRY(car_checkpoint_join(context, directory, CAR_CHECKPOINT_RUN, &path));
    CAR_TRY(car_manifest_write(context, path, &manifest, run));
done:
    car_context_release_text(context, path);
    car_context_release(context, values, largest, 1);
    return status;
}

/* ---- the directory --------------------------------------------------------------------------- */

/* Renames a finished directory. If one of that name exists, as after going back to an earlier step, the two swap
 * names, so that one always exists. The caller then removes the old one, which has the temporary name. */
static car_status put_in_place(car_context *context, const char *temporary, const char *path) {
    bool placed = rename(temporary, path) == 0;
    if (!placed && (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR)) {
        placed = renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) == 0;
        if (!placed && (errno == EINVAL || errno == ENOSYS)) {
            /* Some file systems cannot swap names. Then for a moment there is none. */
            placed = car_folder_remove(path) && rename(temporary, path) == 0;
        }
    }
    return placed ? CAR_OK
                  : car_context_fail(context, CAR_ERROR_IO, "%s: cannot rename the checkpoint to this name: %s", path,
                                     strerror(errno));
}

/* Renames it first, so that a half-removed checkpoint is never mistaken for a complete one. */
static void remove_checkpoint(car_context *context, const char *directory, int64_t step) {
    car_checkpoint_name name = car_checkpoint_name_of(step);
    char *path = NULL, *temporary = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_checkpoint_join(context, directory, name.text, &path));
    CAR_TRY(car_folder_temporary(context, directory, name.text, &temporary));
    if (rename(path, temporary) != 0 || !car_folder_remove(temporary)) {
        car_context_log(context, CAR_LOG_WARNING, "%s: cannot remove this old checkpoint: %s", path, strerror(errno));
    }
done:
    car_context_release_text(context, temporary);
    car_context_release_text(context, path);
}

/* Keeps the newest `keep` up to this step. Later ones come from a run that went further before it was resumed from
 * an earlier step; they are not ours to remove. */
static car_status prune(car_context *context, const car_checkpoint_config *config, int64_t step) {
    car_checkpoint_list list;
    car_status status = CAR_OK;
    CAR_TRY(car_checkpoint_list_steps(context, config->directory, &list));
    int older = 0;
    while (older < list.count && list.steps[older] <= step) {
        older++;
    }
    for (int i = 0; i < older - config->keep; i++) {
        remove_checkpoint(context, config->directory, list.steps[i]);
    }
done:
    car_checkpoint_list_release(context, &list);
    return status;
}

static car_status check_arguments(car_context *context, const car_checkpoint_config *config,
                                  const car_snapshot *snapshot, const char *run) {
    int64_t step = car_snapshot_get_numbers(snapshot).step, updates = car_snapshot_get_numbers(snapshot).updates;
    if (config->keep < 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "keep must be at least 1 checkpoint, not %d",
                                config->keep);
    }
    if (step < 0 || step > car_checkpoint_max_step || updates < 0 || updates > car_checkpoint_max_step) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "cannot write a checkpoint of step %lld with %lld updates: a number is out of range",
                                (long long)step, (long long)updates);
    }
    return car_manifest_check_run(context, run);
}

car_status car_checkpoint_write(car_context *context, const car_checkpoint_config *config, const car_snapshot *snapshot,
                                const char *run) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, config);
    CAR_REQUIRE(context, snapshot);
    CAR_REQUIRE(context, run);
    CAR_REQUIRE(context, config->directory);
    car_checkpoint_name name = car_checkpoint_name_of(car_snapshot_get_numbers(snapshot).step);
    char *path = NULL, *temporary = NULL;
    bool made = false;
    car_status status = CAR_OK;
    CAR_TRY(check_arguments(context, config, snapshot, run));
    CAR_TRY(car_folder_make(context, config->directory));
    car_folder_clear(context, config->directory, "step-");
    CAR_TRY(car_checkpoint_join(context, config->directory, name.text, &path));
    CAR_TRY(car_folder_temporary(context, config->directory, name.text, &temporary));
    made = mkdir(temporary, 0777) == 0;
    if (!made) {
        status = car_context_fail(context, CAR_ERROR_IO, "%s: cannot write a checkpoint there: %s", config->directory,
                                  strerror(errno));
        goto done;
    }
    CAR_TRY(write_files(context, snapshot, config->card, run, temporary));
    CAR_TRY(car_folder_sync(context, temporary));
    CAR_TRY(put_in_place(context, temporary, path));
    CAR_TRY(car_folder_sync(context, config->directory));
    CAR_TRY(prune(context, config, car_snapshot_get_numbers(snapshot).step));
done:
    if (made) {
        car_folder_remove(temporary);
    }
    car_context_release_text(context, temporary);
    car_context_release_text(context, path);
    return status;
}
