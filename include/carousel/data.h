/* Data: where the samples of a run come from.
 *
 * A dataset is opened by its name, KIND:PATH. It has two splits, one for training and one for evaluation, whose
 * samples are numbered from 0. A sample depends on its split and number and, with augmentation, on the seed and the
 * epoch. It never depends on who reads it, or when. */
#ifndef CAROUSEL_DATA_H
#define CAROUSEL_DATA_H

#include <stdint.h>

#include "carousel/model.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_dataset car_dataset;

/* The kinds of datasets: code, name, and what follows the colon. */
#define CAR_DATASET_LIST(X)                                                                                     \
    X(CAR_DATASET_SYNTHETIC, "synthetic", "")        /* a learnable task of any shape, without a file */        \
    X(CAR_DATASET_CIFAR10, "cifar10", "DIR")         /* the official binary files */                            \
    X(CAR_DATASET_IMAGEFOLDER, "imagefolder", "DIR") /* train/CLASS/NAME.jpg, or CLASS/NAME.jpg */              \
    X(CAR_DATASET_TOKENS, "tokens", "FILE")          /* text, one token per byte; or uint16 tokens, FILE.bin */ \
    X(CAR_DATASET_PACKED, "packed", "FILE")          /* a file that car_dataset_pack wrote */

typedef enum car_dataset_kind {
#define CAR_DATASET_ENUM(code, text, path) code,
    CAR_DATASET_LIST(CAR_DATASET_ENUM)
#undef CAR_DATASET_ENUM
        CAR_DATASET_KINDS
} car_dataset_kind;

typedef enum car_split { CAR_SPLIT_TRAIN, CAR_SPLIT_EVALUATION, CAR_SPLITS } car_split;

enum { CAR_DATASET_ENDLESS = -1 };

/* How training images are changed at random; each also mirrors every other image (docs/data.md). */
typedef enum car_augmentation {
    CAR_AUGMENTATION_AUTO,         /* padded crop up to 64 pixels, resized crop above */
    CAR_AUGMENTATION_RESIZED_CROP, /* torchvision's RandomResizedCrop */
    CAR_AUGMENTATION_PADDED_CROP,  /* padded by an eighth, then cropped */
    CAR_AUGMENTATION_FLIP          /* the middle, as in evaluation, mirrored or not */
} car_augmentation;

/* What samples the caller wants. */
typedef struct car_dataset_config {
    car_domain domain;
    car_model_config model;        /* with all sizes set: channels, image_size, classes; or seq_len, vocabulary */
    uint64_t seed;                 /* for augmentation and synthetic samples */
    bool augment;                  /* training samples only */
    car_augmentation augmentation; /* for images, if `augment` is set */
} car_dataset_config;

/* What the dataset contains. */
typedef struct car_dataset_info {
    car_dataset_kind kind; /* CAR_DATASET_KINDS for a user-defined dataset */
    car_domain domain;
    /* Samples of each split, or CAR_DATASET_ENDLESS. 0 for tokens opened without a config, as the sequence length is
     * unknown. */
    int64_t samples[CAR_SPLITS];
    int classes;                /* image classes; for tokens, one more than the largest token that may occur */
    int width, height;          /* of the stored images; 0 if they may differ, or there are none */
    int64_t tokens[CAR_SPLITS]; /* 0 if these are not tokens */
    int tokens_used;            /* how many different tokens occur; only if opened without a config */
} car_dataset_info;

/* Opens a dataset by name. CAR_ERROR_UNKNOWN_NAME for an unknown kind, CAR_ERROR_IO and CAR_ERROR_FORMAT for bad
 * files, CAR_ERROR_SHAPE if the samples do not match `config` (more classes than the model has, images for a token
 * model, ...). With a NULL config you can inspect the dataset, and read its images only as they are stored. */
car_status car_dataset_open(car_context *context, const char *name, const car_dataset_config *config,
                            car_dataset **out);
void car_dataset_close(car_dataset *dataset);

/* ---- a dataset of your own --------------------------------------------------------------------- */

/* The sample that a user-defined dataset is asked to read. */
typedef struct car_sample_io {
    void *user; /* of the class */
    car_split split;
    int64_t epoch, sample; /* sample: below the split's count; any from 0 on if endless */
    void *input;           /* write input_bytes here */
    int32_t *labels;       /* write label_count labels here; negative ones are ignored by the loss */
    car_context *context;  /* for car_callback_fail */
} car_sample_io;

/* A user-defined dataset. The loader shuffles its samples and reads them ahead like those of files. `read` is called
 * from several threads at once; what it writes must depend on split, epoch and sample alone. If it fails, the run
 * ends. */
typedef struct car_dataset_class {
    const char *name; /* for messages */
    car_status (*read)(const car_sample_io *io);
    void *user;
    int64_t samples[CAR_SPLITS]; /* or CAR_DATASET_ENDLESS; 0 for no evaluation */
    size_t input_bytes;          /* of one sample; a micro-batch of them must fill the graph's input */
    int label_count;             /* of one sample; 0 if the graph has no labels */
    const char *input, *labels;  /* names of the graph's inputs; NULL: "images" and "labels" */
    /* How many classes the labels have; 0: unknown. A model without a number of classes takes this one. A graph must
     * not have fewer. */
    int classes;
} car_dataset_class;

/* Creates a user-defined dataset; close it with car_dataset_close. The class is copied, but what it points to must
 * outlive the dataset. CAR_ERROR_ARGUMENT, with the reason, for an invalid class. */
car_status car_dataset_create(car_context *context, const car_dataset_class *own, car_dataset **out);

const char *car_dataset_name(const car_dataset *dataset); /* as given when it was opened or created */
/* Names of the graph's inputs for samples and labels. The second is NULL if there are no labels. */
const char *car_dataset_input_name(const car_dataset *dataset);
const char *car_dataset_labels_name(const car_dataset *dataset);
size_t car_dataset_input_bytes(const car_dataset *dataset); /* of one sample; 0 if opened without a config */
int car_dataset_label_count(const car_dataset *dataset);    /* of one sample */

/* Describes the dataset. */
car_dataset_info car_dataset_get_info(const car_dataset *dataset);
const char *car_dataset_class_name(const car_dataset *dataset, int index); /* NULL if the class has no name */
/* SHA-256 over the names and sizes of the files, or their headers, to check that two processes use the same data.
 * `text` receives 65 characters. */
car_status car_dataset_digest(const car_dataset *dataset, char *text);

/* Bad image files, each counted once. Unreadable ones could not be decoded: training replaces them, evaluation skips
 * them (label -1). Damaged ones were decoded as far as possible. */
typedef struct car_dataset_problems {
    int64_t unreadable, damaged;
    int name_count;
    char names[8][256]; /* the first ones, with the reason */
} car_dataset_problems;
/* The problems found so far. Thread-safe. */
void car_dataset_get_problems(const car_dataset *dataset, car_dataset_problems *out);

/* Reasons why something in a dataset's folder is not used: a code, a name for machines, and a text that reads well
 * after a number. */
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

/* The reason's name for machines, e.g. "hidden". */
const char *car_unused_name(car_unused reason);
/* The reason in words. */
const char *car_unused_text(car_unused reason);

/* What was found but not used when the dataset was opened. A hidden folder, or one beside the splits, counts as one
 * entry: its contents are not examined. */
typedef struct car_dataset_unused {
    int64_t count[CAR_UNUSED_REASONS];
    char first[CAR_UNUSED_REASONS][256]; /* for each reason, the path that sorts first */
} car_dataset_unused;
/* Copies the counts; all zero for kinds without folders. */
void car_dataset_get_unused(const car_dataset *dataset, car_dataset_unused *out);

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads samples. A reader is for one thread at a time; create one per thread. */
typedef struct car_reader car_reader;

/* The dataset must outlive the reader. */
car_status car_reader_create(car_dataset *dataset, car_reader **out);
void car_reader_destroy(car_reader *reader);

/* Reads one sample. Images: [channels, size, size] normalised floats and one label. Tokens: [seq_len] int32 and as
 * many labels, each being the next token. */
car_status car_reader_sample(car_reader *reader, car_split split, int64_t epoch, int64_t sample, void *input,
                             int32_t *labels);

/* An image as it is stored: RGB, three bytes per pixel, top row first. Valid until the reader's next call. */
typedef struct car_image {
    const uint8_t *pixels;
    int width, height;
    int32_t label;
} car_image;
/* Reads an image as it is stored. An unreadable one is not a failure: it has NULL pixels, the size 0 x 0 and the
 * label -1. CAR_ERROR_UNSUPPORTED for tokens and synthetic samples. */
car_status car_reader_image(car_reader *reader, car_split split, int64_t sample, car_image *out);

/* Called now and then while images are packed. */
typedef void (*car_pack_progress)(void *user, int64_t done, int64_t all);
/* Writes all images of a dataset to one file that can be mapped: decoded, and resized so that the shorter side has
 * `size` pixels. 0 keeps their size, which must then be the same for all. The file appears at `path` only when
 * complete. `progress` may be NULL. */
car_status car_dataset_pack(car_dataset *dataset, int size, const char *path, car_pack_progress progress, void *user);

/* ---- synthetic samples ----------------------------------------------------------------------- */

/* A learnable task of any shape, without a file.
 *
 * Images: each class is a pattern of a few waves in each channel. A sample is the pattern of its class, shifted by a
 * random number of pixels, with noise added. Tokens: each token has a fixed successor, which follows it four times
 * out of five. A sample depends on the seed and its number alone. */
typedef struct car_synthetic {
    uint64_t seed;
    car_domain domain;
    car_model_config config; /* with all sizes set: batch, sizes, classes or vocabulary */
} car_synthetic;

/* Writes one micro-batch: samples first .. first + batch - 1. `inputs` is [batch, channels, size, size] floats or
 * [batch, seq_len] int32; `labels` is int32, [batch] or [batch, seq_len]. */
void car_synthetic_batch(const car_synthetic *source, uint64_t first, void *inputs, int32_t *labels);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
