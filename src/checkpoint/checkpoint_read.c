/* Opens a checkpoint, which proves it complete, and fills a snapshot from it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/params.h"
#include "kernels/program.h"

struct car_checkpoint {
    car_context *context;
    car_manifest manifest;
    char *run;
    char *paths[CAR_CHECKPOINT_FILES];
    car_safetensors *files[CAR_CHECKPOINT_FILES];
};

/* ---- opening --------------------------------------------------------------------------------- */

/* Checks a checkpoint: its manifest must match its files and its name. */
static car_status look_at(car_context *context, const char *directory, int64_t step, car_manifest *manifest, char **run,
                          car_manifest_reason *why) {
    char *path = NULL;
    car_status status = CAR_OK;
    *why = (car_manifest_reason){"out of memory"};
    CAR_TRY(car_checkpoint_join(context, directory, car_checkpoint_name_of(step).text, &path));
    CAR_TRY(car_manifest_verify(context, path, manifest, run, why));
    if (manifest->numbers.step != step) {
        snprintf(why->text, sizeof why->text, "%s belongs to step %lld", CAR_CHECKPOINT_RUN,
                 (long long)manifest->numbers.step);
        status = CAR_ERROR_FORMAT;
    }
done:
    car_context_release_text(context, path);
    return status;
}

/* The newest valid checkpoint before `step`, or -1. */
static int64_t find_sound(car_context *context, const car_checkpoint_list *list, const char *directory, int64_t step) {
    for (int i = list->count - 1; i >= 0; i--) {
        car_manifest manifest;
        car_manifest_reason why;
        if (list->steps[i] < step && look_at(context, directory, list->steps[i], &manifest, NULL, &why) == CAR_OK) {
            return list->steps[i];
        }
    }
    return -1;
}

/* Fails to open `step`, and advises what to do. */
static car_status refuse(car_context *context, const char *directory, int64_t step, car_status status,
                         const car_manifest_reason *why) {
    car_checkpoint_list list = {0};
    car_checkpoint_name name = car_checkpoint_name_of(step);
    char advice[400] = "there is no older intact checkpoint";
    if (status == CAR_ERROR_MEMORY || car_checkpoint_list_steps(context, directory, &list) != CAR_OK) {
        goto done;
    }
    int64_t older = find_sound(context, &list, directory, step);
    if (older >= 0) {
        snprintf(advice, sizeof advice,
                 "the checkpoint of step %lld is intact: resume from it (resume-step %lld), or remove the directory "
                 "%.200s/%s",
                 (long long)older, (long long)older, directory, name.text);
    }
done:
    car_checkpoint_list_release(context, &list);
    return car_context_fail(context, status, "%s/%s cannot be used: %s; %s", directory, name.text, why->text, advice);
}

/* There is no checkpoint of this step: list those that exist. */
static car_status fail_absent(car_context *context, const char *directory, int64_t step) {
    car_checkpoint_list list = {0};
    car_text text = {.context = context};
    char *steps = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_checkpoint_list_steps(context, directory, &list));
    for (int i = 0; i < list.count; i++) {
        car_text_add(&text, "%s%lld", i > 0 ? ", " : "; it has steps ", (long long)list.steps[i]);
    }
    CAR_TRY(car_text_finish(&text, &steps));
    status = car_context_fail(context, CAR_ERROR_IO, "%s has no checkpoint of step %lld%s", directory, (long long)step,
                              steps);
done:
    car_context_release_text(context, steps);
    car_checkpoint_list_release(context, &list);
    return status;
}

static car_status open_files(car_checkpoint *checkpoint, const char *path) {
    car_status status = CAR_OK;
    for (int f = 0; f < CAR_CHECKPOINT_FILES; f++) {
        const char *name = car_checkpoint_file_names[f];
        CAR_TRY(car_checkpoint_join(checkpoint->context, path, name, &checkpoint->paths[f]));
        CAR_TRY(car_safetensors_open(checkpoint->context, checkpoint->paths[f], &checkpoint->files[f]));
    }
done:
    return status;
}

car_status car_checkpoint_open(car_context *context, const char *directory, int64_t step, car_checkpoint **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, directory);
    CAR_REQUIRE(context, out);
    car_checkpoint *checkpoint = NULL;
    car_manifest_reason why;
    struct stat info;
    char *path = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_checkpoint_join(context, directory, car_checkpoint_name_of(step).text, &path));
    if (step < 0 || (stat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR))) {
        status = fail_absent(context, directory, step);
        goto done;
    }
    CAR_TRY(car_context_allocate(context, 1, sizeof *checkpoint, &checkpoint));
    checkpoint->context = context;
    status = look_at(context, directory, step, &checkpoint->manifest, &checkpoint->run, &why);
    if (status != CAR_OK) {
        status = refuse(context, directory, step, status, &why);
        goto done;
    }
    CAR_TRY(open_files(checkpoint, path));
    *out = checkpoint;
    checkpoint = NULL;
done:
    car_checkpoint_close(checkpoint);
    car_context_release_text(context, path);
    return status;
}

void car_checkpoint_close(car_checkpoint *checkpoint) {
    if (checkpoint == NULL) {
        return;
    }
    car_context *context = checkpoint->context;
    for (int f = 0; f < CAR_CHECKPOINT_FILES; f++) {
        car_safetensors_close(checkpoint->files[f]);
        car_context_release_text(context, checkpoint->paths[f]);
    }
    car_context_release_text(context, checkpoint->run);
    car_context_release(context, checkpoint, 1, sizeof *checkpoint);
}

int64_t car_checkpoint_step(const car_checkpoint *checkpoint) {
    return checkpoint ? checkpoint->manifest.numbers.step : -1;
}

const char *car_checkpoint_run(const car_checkpoint *checkpoint) {
    return checkpoint ? checkpoint->run : NULL;
}

const char *car_checkpoint_weights_path(const car_checkpoint *checkpoint) {
    return checkpoint ? checkpoint->paths[CAR_CHECKPOINT_WEIGHTS] : NULL;
}

/* ---- filling a snapshot --------------------------------------------------------------------------- */

/* A part of a parameter in the files, or NULL if the checkpoint lacks it. */
static const car_safetensors_tensor *find_part(const car_checkpoint *checkpoint, const car_snapshot *snapshot,
                                               car_snapshot_part part, const char *param,
                                               const car_safetensors **file) {
    char name[300];
    *file = checkpoint->files[part == CAR_SNAPSHOT_WEIGHTS ? CAR_CHECKPOINT_WEIGHTS : CAR_CHECKPOINT_STATE];
    int length = car_checkpoint_part_name(snapshot, part, param, name, sizeof name);
    return length < (int)sizeof name ? car_safetensors_find(*file, name) : NULL;
}

/* Fails if the weights are not the model's, and names the first difference. */
static car_status check_model(const car_checkpoint *checkpoint, const car_graph *graph) {
    const car_safetensors *weights = checkpoint->files[CAR_CHECKPOINT_WEIGHTS];
    const char *path = checkpoint->paths[CAR_CHECKPOINT_WEIGHTS];
    char digest[CAR_SHA256_TEXT];
    car_params_digest(graph, digest);
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        const car_param *param = car_graph_param(graph, p);
        const car_safetensors_tensor *tensor = car_safetensors_find(weights, param->name);
        if (tensor == NULL) {
            return car_context_fail(
                checkpoint->context, CAR_ERROR_SHAPE,
                "%s belongs to another model: it has no %.100s; use the model that it was saved from", path,
                param->name);
        }
        if (!car_params_same_shape(param->shape, tensor)) {
            return car_context_fail(checkpoint->context, CAR_ERROR_SHAPE,
                                    "%s belongs to another model: %.100s has shape %s in the file and %s in this "
                                    "model; use the model and the sizes that it was saved from",
                                    path, param->name, car_params_shape_text(tensor->rank, tensor->shape).text,
                                    car_params_shape_text(param->shape.rank, param->shape.dim).text);
        }
        if ((param->dtype == CAR_F64) != (tensor->dtype == CAR_SAFETENSORS_F64)) {
            return car_context_fail(checkpoint->context, CAR_ERROR_SHAPE,
                                    "%s belongs to another model: %.100s has type %s in the file and %s in this model",
                                    path, param->name, car_safetensors_dtype_text(tensor->dtype),
                                    param->dtype == CAR_F64 ? "doubles" : "floats");
        }
    }
    if (strcmp(digest, checkpoint->manifest.model) != 0) {
        return car_context_fail(checkpoint->context, CAR_ERROR_SHAPE,
                                "%s belongs to another model: it has parameters that this model does not have", path);
    }
    return CAR_OK;
}

/* Reads one part of a parameter, or substitutes it: earlier weights and a moving average by the weights, a state by
 * zeros. *exact becomes false if training then goes on in another way. */
static car_status read_part(const car_checkpoint *checkpoint, car_snapshot *snapshot, car_snapshot_part part, int param,
                            void *values, bool *exact) {
    const car_graph *graph = car_program_graph(car_snapshot_program(snapshot));
    const car_param *p = car_graph_param(graph, param);
    const car_safetensors *file = NULL;
    const car_safetensors_tensor *tensor = find_part(checkpoint, snapshot, part, p->name, &file);
    car_status status = CAR_OK;
    if (tensor == NULL && (part == CAR_SNAPSHOT_PREVIOUS || part == CAR_SNAPSHOT_AVERAGE)) {
        *exact = *exact && part == CAR_SNAPSHOT_AVERAGE;
        tensor = find_part(checkpoint, snapshot, CAR_SNAPSHOT_WEIGHTS, p->name, &file);
    }
    if (tensor == NULL) {
        *exact = false;
        memset(values, 0, car_params_bytes(graph, param));
    } else if (!car_params_same_shape(p->shape, tensor)) {
        status =
            car_context_fail(checkpoint->context, CAR_ERROR_FORMAT, "%s: %.100s does not have the shape of its weights",
                             checkpoint->paths[CAR_CHECKPOINT_STATE], tensor->name);
        goto done;
    } else {
        CAR_TRY(car_params_copy(file, tensor, p, values));
    }
    CAR_TRY(car_snapshot_set(snapshot, part, param, values));
done:
    return status;
}

/* Whether the files contain every state that the snapshot wants for updates. */
static bool has_states(const car_checkpoint *checkpoint, const car_snapshot *snapshot) {
    const car_graph *graph = car_program_graph(car_snapshot_program(snapshot));
    const car_safetensors *file = NULL;
    for (int part = CAR_SNAPSHOT_STATE_0; part < CAR_SNAPSHOT_AVERAGE; part++) {
        for (int p = 0; p < car_graph_param_count(graph); p++) {
            if (car_snapshot_has(snapshot, (car_snapshot_part)part, p) &&
                !find_part(checkpoint, snapshot, (car_snapshot_part)part, car_graph_param(graph, p)->name, &file)) {
                return false;
            }
        }
    }
    return true;
}

car_status car_checkpoint_read(const car_checkpoint *checkpoint, car_snapshot *snapshot, bool *exact) {
    CAR_REQUIRE(NULL, checkpoint);
    CAR_REQUIRE(checkpoint->context, snapshot);
    CAR_REQUIRE(checkpoint->context, exact);
    const car_graph *graph = car_program_graph(car_snapshot_program(snapshot));
    size_t largest = car_params_largest(graph);
    void *values = NULL;
    car_status status = CAR_OK;
    *exact = true;
    CAR_TRY(check_model(checkpoint, graph));
    CAR_TRY(car_context_allocate(checkpoint->context, largest, 1, &values));
    for (int part = 0; part < CAR_SNAPSHOT_PARTS; part++) {
        for (int p = 0; p < car_graph_param_count(graph); p++) {
            if (car_snapshot_has(snapshot, (car_snapshot_part)part, p)) {
                CAR_TRY(read_part(checkpoint, snapshot, (car_snapshot_part)part, p, values, exact));
            }
        }
    }
    car_snapshot_numbers numbers = checkpoint->manifest.numbers;
    numbers.since = has_states(checkpoint, snapshot) ? 0 : numbers.updates;
    car_snapshot_set_numbers(snapshot, &numbers);
done:
    car_context_release(checkpoint->context, values, largest, 1);
    return status;
}
