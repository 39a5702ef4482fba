/* The interface that each kind of dataset implements for dataset.c.
 *
 * A kind is one file with one table of functions. It finds its samples and reads them as they are stored. dataset.c
 * and reader.c do the rest: names, checks against the model, augmentation, normalisation, replacing unreadable
 * samples, counting problems. */
#ifndef CAR_SOURCE_H
#define CAR_SOURCE_H

#include "base/base.h"
#include "base/sha256.h"
#include "carousel/data.h"

/* Memory that a reader reuses from sample to sample. Starts as {.context = context}. */
typedef struct car_source_buffer {
    car_context *context;
    uint8_t *data;
    size_t capacity;
} car_source_buffer;

/* Makes room for `bytes`. If the buffer has to grow, its contents are lost. */
car_status car_source_reserve(car_source_buffer *buffer, size_t bytes);
void car_source_free(car_source_buffer *buffer);

/* Memory of one reader, hence of one thread. A kind may use it freely. */
typedef struct car_source_scratch {
    car_source_buffer file, pixels;
} car_source_scratch;

/* Whether a kind may return a smaller image, which can be cheaper to decode. Once it knows the stored size, it calls
 * `shrink` for the factor by which both sides may be divided (rounding up): 1, 2, 4 or 8. NULL means 1. Kinds that
 * cannot shrink need not call it. */
typedef struct car_source_wish {
    int (*shrink)(void *user, int width, int height);
    void *user;
} car_source_wish;

typedef enum car_source_state {
    CAR_SOURCE_WHOLE,
    CAR_SOURCE_DAMAGED,   /* decoded as far as possible */
    CAR_SOURCE_UNREADABLE /* there is no image */
} car_source_state;

typedef struct car_source_image {
    car_image image;                 /* the label is always set; pixels are valid until the reader's next call */
    int stored_width, stored_height; /* larger than the image's own size if it was shrunk */
    car_source_state state;
    /* Unless whole: the sample's name and the reason, e.g. "train/cat/7.jpg: ends too early". */
    char problem[256];
} car_source_image;

/* Sets state and problem. A long name is shortened at its start. */
void car_source_describe(car_source_image *image, car_source_state state, const char *name, const char *reason);

typedef struct car_source_methods {
    /* Opens the data. `path` is what follows the colon, or "". Fills `info` except for the kind, which is already
     * set. Without a config (NULL) the data is only inspected. The caller then checks that domain, classes (or
     * vocabulary) and channels match the config; anything else is checked here. On failure *state is NULL and
     * nothing is left allocated. */
    car_status (*open)(car_context *context, const char *path, const car_dataset_config *config, car_dataset_info *info,
                       void **state);
    void (*close)(void *state); /* never called with NULL */

    /* The name of a class, or NULL if it has none; the function is NULL if classes have no names. 0 <= index <
     * info.classes */
    const char *(*class_name)(const void *state, int index);

    /* Adds to `sha` what identifies the data: names, sizes and first bytes of files. The kind's name has already
     * been added. Must not depend on the data's location. */
    car_status (*digest)(const void *state, car_sha256 *sha);

    /* Reports what was found but is not used; NULL: nothing. `out` is zeroed. */
    void (*unused)(const void *state, car_dataset_unused *out);

    /* Exactly one of the two is not NULL. Both are called from several threads at once, with 0 <= sample < the
     * split's number of samples (no upper limit if endless). A failure that is not the sample's own (no memory, no
     * file handles, a shared file was truncated) is returned as a status and ends the run.
     *
     * This one returns ready samples, as car_reader_sample does. Not called without a config. */
    car_status (*sample)(void *state, car_split split, int64_t epoch, int64_t sample, void *input, int32_t *labels);
    /* Returns images as they are stored. An unreadable sample is not a failure: see car_source_state. `out` is
     * zeroed. */
    car_status (*image)(void *state, car_source_scratch *scratch, car_split split, int64_t sample,
                        const car_source_wish *wish, car_source_image *out);
} car_source_methods;

extern const car_source_methods car_source_synthetic, car_source_cifar10, car_source_imagefolder, car_source_tokens,
    car_source_packed;

/* ---- own.c: user-defined datasets, which are not opened by name ----------------------------------- */

extern const car_source_methods car_source_own;
car_status car_source_check_own(car_context *context, const car_dataset_class *own);
car_status car_source_open_own(car_context *context, const car_dataset_class *own, void **out);

#endif
