/* Images on their way from RGB bytes to what a model is fed: resizing, cropping, flipping, normalising. */
#ifndef CAR_IMAGE_H
#define CAR_IMAGE_H

#include "carousel/image.h"
#include "data/source.h"

/* ---- resizing -------------------------------------------------------------------------------- */

/* A region of an image, in pixels from its top left corner; edges may lie between pixels. */
typedef struct car_image_box {
    double left, top, right, bottom;
} car_image_box;

/* Resizes `box` of an RGB image to out_width x out_height pixels, RGB again. The filter is a triangle, as wide as the
 * output's pixels are in the input when it shrinks (so nothing is skipped), else as wide as the input's: what PIL
 * calls bilinear. `work` is scratch space, kept from one call to the next. */
car_status car_image_resize(car_source_buffer *work, const car_image *image, const car_image_box *box, int out_width,
                            int out_height, uint8_t *out);

/* The pixels that may be looked at. */
typedef struct car_image_limits {
    int left, top, right, bottom;
} car_image_limits;

/* The same, but as if the image had no pixels outside `limits`: a crop that is resized, not a crop of what was resized.
 * The two differ at the edges. */
car_status car_image_resize_within(car_source_buffer *work, const car_image *image, const car_image_box *box,
                                   const car_image_limits *limits, int out_width, int out_height, uint8_t *out);

/* ---- the whole way --------------------------------------------------------------------------- */

/* Models with images up to this size are fed as is usual for CIFAR, others as for ImageNet. */
enum { CAR_IMAGE_SMALL = 64 };

/* Turns stored images into samples of one shape; see image.c for what it does to them. One for each reader. */
typedef struct car_image_pipeline {
    car_source_buffer work, pixels;
    float levels[3][256]; /* the normalised value of every level of every channel */
    uint64_t key;         /* of all augmentation */
    int size, resize;     /* pixels on a side; of the shorter side before the middle is taken */
    bool may_augment;
    car_augmentation augmentation; /* never AUTO */
    /* of the sample aimed at */
    uint64_t sample_key;
    bool augment;
} car_image_pipeline;

void car_image_pipeline_begin(car_image_pipeline *pipeline, car_context *context, const car_dataset_config *config);
/* Without augmentation. */
void car_image_pipeline_begin_with(car_image_pipeline *pipeline, car_context *context, const car_image_recipe *recipe);
void car_image_pipeline_end(car_image_pipeline *pipeline);
/* Says which sample comes next. What is returned is for the source, and good until the next call. */
car_source_wish car_image_pipeline_aim(car_image_pipeline *pipeline, car_split split, int64_t epoch, int64_t sample);
/* Writes [3, size, size] floats. */
car_status car_image_pipeline_run(car_image_pipeline *pipeline, const car_source_image *image, float *out);

#endif
