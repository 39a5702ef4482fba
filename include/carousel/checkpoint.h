/* Checkpoints, and weights in files.
 *
 * A checkpoint is a directory, e.g. DIRECTORY/step-00000120, with three files: weights.safetensors (PyTorch's names
 * and layouts), state.safetensors (the optimizer's state and the previous version of the weights) and run.json
 * (step, random state, configuration, and checksums of the other two). It is written under a temporary name, flushed
 * and renamed. So a checkpoint with the right name is complete; the checksums detect later damage. */
#ifndef CAROUSEL_CHECKPOINT_H
#define CAROUSEL_CHECKPOINT_H

#include "carousel/card.h"
#include "carousel/snapshot.h"
#include "carousel/tape.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- weights --------------------------------------------------------------------------------- */

/* Writes all parameters in canonical layout to a safetensors file. The file appears at `path` only when complete. */
car_status car_weights_save(const car_weights *weights, const char *path);
/* As car_weights_save, with a card in the file's metadata (NULL: none) and a precision. With bf16 everything is
 * rounded except the running statistics of BatchNorm. */
car_status car_weights_save_with(const car_weights *weights, const char *path, const car_card *card,
                                 car_precision precision);

typedef struct car_weights_load_config {
    /* Keep the current values of the classifier, whatever its size in the file. A tied embedding is kept only if its
     * size in the file differs. */
    bool reset_head;
} car_weights_load_config;

/* How many parameters were loaded, and which ones did not match. Each list of names is one line, "" if empty; long
 * lists end in a count. */
typedef struct car_weights_load_report {
    int loaded, missing, left_over, reset;
    char missing_names[512], left_over_names[512], reset_names[512];
} car_weights_load_report;

/* Loads weights written by PyTorch or car_weights_save. Accepts torchvision's names, Hugging Face's for GPT-2 (with
 * or without the prefix "transformer."; lm_head.weight may be absent or equal to the embedding), in F32, F16 or
 * BF16.
 *
 * A missing parameter or a wrong shape is CAR_ERROR_FORMAT, with a list; `reset_head` excepts those of the head.
 * Tensors that the model lacks are only reported, also after an error. On failure `weights` are unchanged. `config`
 * and `report` may be NULL. */
car_status car_weights_load(car_weights *weights, const char *path, const car_weights_load_config *config,
                            car_weights_load_report *report);

/* ---- checkpoints ----------------------------------------------------------------------------- */

typedef struct car_checkpoint_config {
    const char *directory; /* created if it does not exist */
    int keep;              /* how many checkpoints to keep, newest first; at least 1 */
    const car_card *card;  /* for the weights file; NULL: none */
} car_checkpoint_config;

/* Writes a checkpoint of `snapshot` and deletes all but the newest `keep`. `run` is the caller's JSON object, stored
 * verbatim: the run's configuration. On failure nothing of the new checkpoint remains, and the older ones stay.
 * Checkpoints of later steps are kept as well. Only one thread of one process may write to a directory at a time. */
car_status car_checkpoint_write(car_context *context, const car_checkpoint_config *config, const car_snapshot *snapshot,
                                const char *run);

/* Finds the newest complete checkpoint; *step is -1 if there is none. Looks at names only, not at checksums. */
car_status car_checkpoint_newest(car_context *context, const char *directory, int64_t *step);

/* An open checkpoint. For one thread at a time. */
typedef struct car_checkpoint car_checkpoint;
/* Opens a checkpoint and verifies its checksums. CAR_ERROR_FORMAT if it is damaged; the message names the file, and
 * how to continue from the newest older checkpoint that is sound. CAR_ERROR_IO if there is no checkpoint of this
 * step, or it cannot be read. */
car_status car_checkpoint_open(car_context *context, const char *directory, int64_t step, car_checkpoint **out);
void car_checkpoint_close(car_checkpoint *checkpoint);
int64_t car_checkpoint_step(const car_checkpoint *checkpoint);
const char *car_checkpoint_run(const car_checkpoint *checkpoint); /* the caller's JSON, owned by the checkpoint */
const char *car_checkpoint_weights_path(const car_checkpoint *checkpoint);
/* Fills a snapshot of the same model; CAR_ERROR_SHAPE, with the snapshot unchanged, if the model differs. If the
 * checkpoint lacks a part, the previous version is copied from the weights, the optimizer's state is zeroed, and
 * *exact is false. This function does not know which optimizer the state belongs to: compare car_checkpoint_run(). */
car_status car_checkpoint_read(const car_checkpoint *checkpoint, car_snapshot *snapshot, bool *exact);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
