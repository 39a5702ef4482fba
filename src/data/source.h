/* The kinds of datasets: what one of them has to offer to dataset.c.
 *
 * A kind is one file with one table of functions. It finds its samples and reads them as they are stored; names,
 * checks against the model, augmentation, normalisation, the replacement of unreadable samples and the count of
 * problems are dataset.c's business. */
#ifndef CAR_SOURCE_H
#define CAR_SOURCE_H

#include "base/base.h"
#include "base/sha256.h"
#include "carousel/data.h"

/* Memory that a reader keeps from one sample to the next. Begins as {.context = context}. */
typedef struct car_source_buffer {
    car_context *context;
    uint8_t *data;
    size_t capacity;
} car_source_buffer;

/* Makes room for `bytes`; what was in it is lost if it has to grow. */
car_status car_source_reserve(car_source_buffer *buffer, size_t bytes);
void car_source_free(car_source_buffer *buffer);

/* What belongs to one reader, hence to one thread. A kind uses it as it likes. */
typedef struct car_source_scratch {
    car_source_buffer file, pixels;
} car_source_scratch;

/* How an image may be given. For a kind that decodes it can be cheaper to give a smaller one: once it knows the stored
 * size, it asks how many times smaller the image may become, both sides divided and rounded up. The answer is 1, 2, 4
 * or 8. A NULL function means 1, and whoever cannot do so does not ask. */
typedef struct car_source_wish {
    int (*shrink)(void *user, int width, int height);
    void *user;
} car_source_wish;

typedef enum car_source_state {
    CAR_SOURCE_WHOLE,
    CAR_SOURCE_DAMAGED,   /* decoded as far as it goes */
    CAR_SOURCE_UNREADABLE /* the image is not set */
} car_source_state;

typedef struct car_source_image {
    car_image image;                 /* the label is set in any case; pixels are valid until the reader's next call */
    int stored_width, stored_height; /* the image's own are smaller if it was shrunk */
    car_source_state state;
    char problem[256]; /* unless whole: the sample's name and what is wrong, "train/cat/7.jpg: ends too early" */
} car_source_image;

/* Sets state and problem. Of a long name the end is kept. */
void car_source_describe(car_source_image *image, car_source_state state, const char *name, const char *reason);

typedef struct car_source_methods {
    /* `path` is what stands behind the colon, "" if nothing. Fills all of `info` but the kind, which is set already.
     * Without a config (NULL) it is opened to be looked at. Whether domain, classes (or vocabulary) and channels fit
     * the config is checked by the caller afterwards; what else must fit is checked here. On failure *state is NULL
     * and nothing is left behind. */
    car_status (*open)(car_context *context, const char *path, const car_dataset_config *config, car_dataset_info *info,
                       void **state);
    void (*close)(void *state); /* never called with NULL */

    /* NULL if classes have no names; else the name, or NULL for one that has none. 0 <= index < info.classes */
    const char *(*class_name)(const void *state, int index);

    /* Adds to `sha` what tells this data from other data: names and sizes of files, and their heads. The kind's name
     * is in it already. Must not depend on where the data lies. */
    car_status (*digest)(const void *state, car_sha256 *sha);

    /* What was found beside the samples and is not used; NULL: nothing ever is. `out` comes zeroed. */
    void (*unused)(const void *state, car_dataset_unused *out);

    /* Exactly one of the two is not NULL. Both are called from several threads at once, with 0 <= sample < the number
     * of samples of the split (any number that is not negative, if it is endless). A failure that is not one sample's
     * own (no memory, no file handles, a file that everything is in has become shorter) is a status, and ends the
     * run.
     *
     * Samples that are ready to be used, as car_reader_sample gives them. Not called without a config. */
    car_status (*sample)(void *state, car_split split, int64_t epoch, int64_t sample, void *input, int32_t *labels);
    /* Images as they are stored. A sample that cannot be read is not a failure: see car_source_state. `out` comes
     * zeroed. */
    car_status (*image)(void *state, car_source_scratch *scratch, car_split split, int64_t sample,
                        const car_source_wish *wish, car_source_image *out);
} car_source_methods;

extern const car_source_methods car_source_synthetic, car_source_cifar10, car_source_imagefolder, car_source_tokens,
    car_source_packed;

/* ---- own.c: datasets of one's own, which are not opened by a name ------------------------------ */

extern const car_source_methods car_source_own;
car_status car_source_check_own(car_context *context, const car_dataset_class *own);
car_status car_source_open_own(car_context *context, const car_dataset_class *own, void **out);

#endif
