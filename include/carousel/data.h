/* Data: where the samples of a run come from.
 *
 * A dataset is opened by its name, KIND:PATH. It has two splits, one to train on and one to evaluate
 * on, whose samples are numbered from 0. What a sample looks like depends on the split, its number
 * and, with augmentation, on the seed and the epoch: never on who reads it, or when. */
#ifndef CAROUSEL_DATA_H
#define CAROUSEL_DATA_H

#include <stdint.h>

#include "carousel/model.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_dataset car_dataset;

/* The kinds, as they are named, and what stands behind the colon. */
#define CAR_DATASET_LIST(X)                                                                                 \
    X(CAR_DATASET_SYNTHETIC, "synthetic", "")        /* a learnable task of any shape, without a file */    \
    X(CAR_DATASET_CIFAR10, "cifar10", "DIR")         /* the official binary files */                        \
    X(CAR_DATASET_IMAGEFOLDER, "imagefolder", "DIR") /* train/CLASS/NAME.jpg, or CLASS/NAME.jpg */          \
    X(CAR_DATASET_TOKENS, "tokens", "FILE")          /* text, a byte a token; or uint16 tokens, FILE.bin */ \
    X(CAR_DATASET_PACKED, "packed", "FILE")          /* what car_dataset_pack wrote */

typedef enum car_dataset_kind {
#define CAR_DATASET_ENUM(code, text, path) code,
    CAR_DATASET_LIST(CAR_DATASET_ENUM)
#undef CAR_DATASET_ENUM
        CAR_DATASET_KINDS
} car_dataset_kind;

typedef enum car_split { CAR_SPLIT_TRAIN, CAR_SPLIT_EVALUATION, CAR_SPLITS } car_split;

enum { CAR_DATASET_ENDLESS = -1 };

/* How images to train on are changed at random, mirrored every other time in any case (docs/data.md). */
typedef enum car_augmentation {
    CAR_AUGMENTATION_AUTO,         /* a padded crop up to 64 pixels, above a resized one */
    CAR_AUGMENTATION_RESIZED_CROP, /* torchvision's RandomResizedCrop */
    CAR_AUGMENTATION_PADDED_CROP,  /* padded by an eighth, cropped */
    CAR_AUGMENTATION_FLIP          /* the middle, as in evaluation */
} car_augmentation;

/* How samples are given out. */
typedef struct car_dataset_config {
    car_domain domain;
    car_model_config model;        /* as resolved: channels, image_size, classes; or seq_len, vocabulary */
    uint64_t seed;                 /* of augmentation, and of synthetic samples */
    bool augment;                  /* training samples only */
    car_augmentation augmentation; /* of images, if they are augmented */
} car_dataset_config;

/* What was found. */
typedef struct car_dataset_info {
    car_dataset_kind kind; /* CAR_DATASET_KINDS: one's own */
    car_domain domain;
    int64_t samples[CAR_SPLITS]; /* or CAR_DATASET_ENDLESS; tokens opened without a config: 0, having no length yet */
    int classes;                 /* classes of images; one more than the largest token that may occur */
    int width, height;           /* of the images as they are stored; 0: they may differ, or are not images */
    int64_t tokens[CAR_SPLITS];  /* 0: not tokens */
    int tokens_used;             /* different ones that occur; only if opened without a config */
} car_dataset_info;

/* CAR_ERROR_UNKNOWN_NAME for a kind that does not exist, CAR_ERROR_IO and CAR_ERROR_FORMAT for files, and
 * CAR_ERROR_SHAPE where samples cannot be what `config` asks for (more classes than the model has, an image for a
 * token model, ...). A NULL config opens it for looking at only: images cannot be read from it but as they are. */
car_status car_dataset_open(car_context *context, const char *name, const car_dataset_config *config,
                            car_dataset **out);
void car_dataset_close(car_dataset *dataset);

/* ---- a dataset of one's own -------------------------------------------------------------------- */

/* One sample to be read. */
typedef struct car_sample_io {
    void *user; /* the class's */
    car_split split;
    int64_t epoch, sample; /* sample: below the split's number; endless: any from 0 on */
    void *input;           /* input_bytes, to be written */
    int32_t *labels;       /* label_count, to be written; a negative one does not count */
    car_context *context;  /* for car_callback_fail */
} car_sample_io;

/* Samples from anywhere, which the loader shuffles and reads ahead as those of files. `read` is called from several
 * threads at once; what it writes must depend on split, epoch and sample alone. A failure ends the run. */
typedef struct car_dataset_class {
    const char *name; /* for messages */
    car_status (*read)(const car_sample_io *io);
    void *user;
    int64_t samples[CAR_SPLITS]; /* or CAR_DATASET_ENDLESS; no samples to evaluate on are 0 */
    size_t input_bytes;          /* of a sample; a micro-batch is the graph's input */
    int label_count;             /* of a sample; 0: the graph has no labels */
    const char *input, *labels;  /* which inputs of the graph they are; NULL: "images" and "labels" */
    int classes; /* that labels choose from: a model's, if it has no number; no more than a graph's. 0: any */
} car_dataset_class;

/* The class is copied; what it points to must outlive the dataset. CAR_ERROR_ARGUMENT, with the reason, for one that
 * cannot be. To be closed with car_dataset_close. */
car_status car_dataset_create(car_context *context, const car_dataset_class *own, car_dataset **out);

const char *car_dataset_name(const car_dataset *dataset); /* as it was opened or created */
/* The inputs of a graph that samples and labels are for; labels: NULL if there are none. */
const char *car_dataset_input_name(const car_dataset *dataset);
const char *car_dataset_labels_name(const car_dataset *dataset);
size_t car_dataset_input_bytes(const car_dataset *dataset); /* of a sample; 0: opened without a config */
int car_dataset_label_count(const car_dataset *dataset);    /* of a sample */

car_dataset_info car_dataset_get_info(const car_dataset *dataset);
const char *car_dataset_class_name(const car_dataset *dataset, int index); /* NULL: it has no name */
/* SHA-256 over names and sizes of the files, or their heads: whether two processes look at the same data. `text`
 * gets 65 characters. */
car_status car_dataset_digest(const car_dataset *dataset, char *text);

/* Samples that could not be decoded, and were replaced (training) or left out (evaluation, label -1); and those
 * that are damaged but were decoded as far as they go. Counted once for each sample. */
typedef struct car_dataset_problems {
    int64_t unreadable, damaged;
    int name_count;
    char names[8][256]; /* the first ones, with the reason */
} car_dataset_problems;
void car_dataset_get_problems(const car_dataset *dataset, car_dataset_problems *out);

/* Why something that lies in a dataset's folder is not used: a code, a name for machines, a text for people that fits
 * behind a number. */
#define CAR_UNUSED_LIST(X)                                                                \
    X(CAR_UNUSED_FORMAT, "other_format", "images of other types than JPEG, PNG and WebP") \
    X(CAR_UNUSED_OTHER, "other_file", "files that are no images")                         \
    X(CAR_UNUSED_HIDDEN, "hidden", "hidden files and folders")                            \
    X(CAR_UNUSED_OUTSIDE, "outside", "files outside of class folders")                    \
    X(CAR_UNUSED_BESIDE, "beside", "folders beside those of the splits")                  \
    X(CAR_UNUSED_EMPTY, "empty_class", "classes without an image to evaluate on")         \
    X(CAR_UNUSED_SPECIAL, "special", "pipes, sockets and devices")                        \
    X(CAR_UNUSED_LOOP, "loop", "links that lead back to a folder above")

typedef enum car_unused {
#define CAR_UNUSED_ENUM(code, name, text) code,
    CAR_UNUSED_LIST(CAR_UNUSED_ENUM)
#undef CAR_UNUSED_ENUM
        CAR_UNUSED_REASONS
} car_unused;

const char *car_unused_name(car_unused reason);
const char *car_unused_text(car_unused reason);

/* What was found when the dataset was opened and is not used. A hidden folder and one beside the splits count as one:
 * nobody looks into them. */
typedef struct car_dataset_unused {
    int64_t count[CAR_UNUSED_REASONS];
    char first[CAR_UNUSED_REASONS][256]; /* of each reason, the path that sorts first */
} car_dataset_unused;
void car_dataset_get_unused(const car_dataset *dataset, car_dataset_unused *out);

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads samples; one for each thread. */
typedef struct car_reader car_reader;

car_status car_reader_create(car_dataset *dataset, car_reader **out);
void car_reader_destroy(car_reader *reader);

/* Writes one sample: [channels, size, size] floats, normalised, and a label; or [seq_len] int32 tokens and as many
 * labels, each the token that comes next. */
car_status car_reader_sample(car_reader *reader, car_split split, int64_t epoch, int64_t sample, void *input,
                             int32_t *labels);

/* An image as it is stored: RGB, three bytes a pixel, rows from the top. Valid until the next call. One that cannot be
 * read is no failure: it has no pixels (NULL), the size 0 x 0 and the label -1. CAR_ERROR_UNSUPPORTED for tokens and
 * synthetic samples. */
typedef struct car_image {
    const uint8_t *pixels;
    int width, height;
    int32_t label;
} car_image;
car_status car_reader_image(car_reader *reader, car_split split, int64_t sample, car_image *out);

/* Stores all images of a dataset in one file that can be mapped: decoded, and resized so that the shorter side is
 * `size` pixels (0: as they are, which they must then all be alike). Written beside `path` and renamed.
 * `progress` (may be NULL) is called now and then. */
typedef void (*car_pack_progress)(void *user, int64_t done, int64_t all);
car_status car_dataset_pack(car_dataset *dataset, int size, const char *path, car_pack_progress progress, void *user);

/* ---- synthetic samples ----------------------------------------------------------------------- */

/* A task that can be learnt, of any shape, without a file.
 *
 * Images: each class is a pattern of a few waves in every channel; a sample is its class's pattern,
 * shifted by a random number of pixels, under noise. Tokens: a fixed successor for every token, which
 * is followed four times out of five. A sample depends on the seed and its number alone. */
typedef struct car_synthetic {
    uint64_t seed;
    car_domain domain;
    car_model_config config; /* as resolved: batch, sizes, classes or vocabulary */
} car_synthetic;

/* Writes one micro-batch, samples first .. first + batch - 1. `inputs` is [batch, channels, size, size]
 * floats or [batch, seq_len] int32; `labels` int32, [batch] or [batch, seq_len]. */
void car_synthetic_batch(const car_synthetic *source, uint64_t first, void *inputs, int32_t *labels);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
