/* Internals of checkpoints: the names of their files, and run.json.
 *
 *   DIRECTORY/step-00000120/weights.safetensors   weights and running statistics, with PyTorch's names and layouts
 *                          /state.safetensors     "previous.NAME", "optimizer.0.NAME" and further states; those of a
 *                                                 user-defined optimizer are "optimizer.STATE.NAME"
 *                          /run.json              numbers, the caller's JSON, checksums of the other files and of itself */
#ifndef CAR_CHECKPOINT_INTERNAL_H
#define CAR_CHECKPOINT_INTERNAL_H

#include "base/base.h"
#include "base/sha256.h"
#include "carousel/checkpoint.h"

/* ---- names ----------------------------------------------------------------------------------- */

enum { CAR_CHECKPOINT_WEIGHTS, CAR_CHECKPOINT_STATE, CAR_CHECKPOINT_FILES };
extern const char *const car_checkpoint_file_names[CAR_CHECKPOINT_FILES];
#define CAR_CHECKPOINT_RUN "run.json"

/* JSON could not represent larger steps exactly. */
static const int64_t car_checkpoint_max_step = 1LL << 53;

/* The name of a part of a parameter in the files. Returns the length, like snprintf. */
int car_checkpoint_part_name(const car_snapshot *snapshot, car_snapshot_part part, const char *param, char *name,
                             size_t capacity);

typedef struct car_checkpoint_name {
    char text[32];
} car_checkpoint_name;
car_checkpoint_name car_checkpoint_name_of(int64_t step); /* "step-00000120" */

/* DIRECTORY/NAME. Release it with car_context_release_text. */
car_status car_checkpoint_join(car_context *context, const char *directory, const char *name, char **out);

typedef struct car_checkpoint_list {
    int64_t *steps; /* ascending */
    int count, capacity;
} car_checkpoint_list;
/* The list is empty if the directory does not exist. */
car_status car_checkpoint_list_steps(car_context *context, const char *directory, car_checkpoint_list *out);
void car_checkpoint_list_release(car_context *context, car_checkpoint_list *list);

/* ---- run.json -------------------------------------------------------------------------------- */

typedef struct car_manifest {
    car_snapshot_numbers numbers;
    char model[CAR_SHA256_TEXT]; /* car_params_digest */
    struct {
        uint64_t bytes;
        char digest[CAR_SHA256_TEXT];
    } files[CAR_CHECKPOINT_FILES];
} car_manifest;

/* CAR_ERROR_ARGUMENT unless `run` is one JSON object. */
car_status car_manifest_check_run(car_context *context, const char *run);
car_status car_manifest_write(car_context *context, const char *path, const car_manifest *manifest, const char *run);

/* Reads DIRECTORY/run.json and checks the other files against it. On failure `why` has the reason, and the context's
 * message may be left unset, since the checkpoint may only have been a candidate. `run` (may be NULL) receives the
 * caller's JSON; release it with car_context_release_text. */
typedef struct car_manifest_reason {
    char text[400];
} car_manifest_reason;
car_status car_manifest_verify(car_context *context, const char *directory, car_manifest *out, char **run,
                               car_manifest_reason *why);

#endif
