/* Checkpoints, and weights in files.
 *
 * A checkpoint is a directory, DIRECTORY/step-00000120, with three files: weights.safetensors (PyTorch's
 * names and layouts), state.safetensors (the optimizer's state and the previous version of the weights)
 * and run.json (step, random state, configuration, and the checksums of the other two). It is written
 * under another name, flushed and renamed, so that one with the right name is whole, unless it was
 * damaged later, which the checksums tell. */
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

/* Writes all parameters in canonical layout as a safetensors file: beside `path`, flushed, renamed. */
car_status car_weights_save(const car_weights *weights, const char *path);
/* The same with a card in its metadata (NULL: none), and the precision: with bf16 all but the running statistics of
 * BatchNorm are rounded. */
car_status car_weights_save_with(const car_weights *weights, const char *path, const car_card *card,
                                 car_precision precision);

typedef struct car_weights_load_config {
    bool
        reset_head; /* a classifier keeps the values that it has, whatever its size; a tied embedding only if the file's
                      * has another size */
} car_weights_load_config;

/* What did not fit, a line of names for each, "" if there is none; longer lists end in a count. */
typedef struct car_weights_load_report {
    int loaded, missing, left_over, reset;
    char missing_names[512], left_over_names[512], reset_names[512];
} car_weights_load_report;

/* Reads weights that PyTorch or car_weights_save wrote: torchvision's names, Hugging Face's for GPT-2 (with or without
 * "transformer." before them, lm_head.weight left out or equal to the embedding), F32, F16 or BF16. Missing
 * parameters are an error (CAR_ERROR_FORMAT, with the list), except with `reset_head` those of the head; so is another
 * shape. What is left over is only reported, after an error too. Nothing is changed unless everything is sound.
 * `config` and `report` may be NULL. */
car_status car_weights_load(car_weights *weights, const char *path, const car_weights_load_config *config,
                            car_weights_load_report *report);

/* ---- checkpoints ----------------------------------------------------------------------------- */

typedef struct car_checkpoint_config {
    const char *directory; /* made if it is not there */
    int keep;              /* the newest so many stay; at least 1 */
    const car_card *card;  /* of the file of weights; NULL: none */
} car_checkpoint_config;

/* `run` is a JSON object of the caller's, kept as it is: what the run was configured with. On an error nothing
 * remains of it, and the older checkpoints stay. One process at a time may write to a directory, from one thread at a
 * time; checkpoints of later steps that are there already stay too. */
car_status car_checkpoint_write(car_context *context, const car_checkpoint_config *config, const car_snapshot *snapshot,
                                const char *run);

/* The newest complete checkpoint; *step = -1 if there is none. Looks at names only. */
car_status car_checkpoint_newest(car_context *context, const char *directory, int64_t *step);

/* An open checkpoint whose checksums hold. CAR_ERROR_FORMAT names what is damaged, and the newest older checkpoint
 * that is sound, if there is one, with the way to use it. CAR_ERROR_IO if there is none of this step, or it cannot be
 * read. */
typedef struct car_checkpoint car_checkpoint;
car_status car_checkpoint_open(car_context *context, const char *directory, int64_t step, car_checkpoint **out);
void car_checkpoint_close(car_checkpoint *checkpoint);
int64_t car_checkpoint_step(const car_checkpoint *checkpoint);
const char *car_checkpoint_run(const car_checkpoint *checkpoint); /* the caller's JSON */
const char *car_checkpoint_weights_path(const car_checkpoint *checkpoint);
/* Fills a snapshot of the same model; CAR_ERROR_SHAPE if it is of another, before anything is changed. A part that the
 * snapshot wants and the checkpoint lacks: the previous version is taken from the weights, the optimizer's state is
 * zero, and *exact is false, else true. Which optimizer the state is of is not known here: compare what `run` says. */
car_status car_checkpoint_read(const car_checkpoint *checkpoint, car_snapshot *snapshot, bool *exact);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
