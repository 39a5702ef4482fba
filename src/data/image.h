/* From RGB bytes to a model's input: resizing, cropping, mirroring, normalising. */
#ifndef CAR_IMAGE_H
#define CAR_IMAGE_H

#include "carousel/image.h"
#include "data/source.h"

/* ---- resizing -------------------------------------------------------------------------------- */

/* A region of an image, in pixels from the top left corner. Edges may lie between pixels. */
typedef struct car_image_box {
    double left, top, right, bottom;
} car_image_box;

/* Resizes `box` of an RGB image to out_width x out_height pixels, RGB again. Uses a triangle filter as wide as a
 * pixel of the output (when shrinking, so that no input is skipped) or of the input: what PIL calls bilinear. `work`
 * is scratch memory that can be reused between calls. */
car_status car_image_resize(car_source_buffer *work, const car_image *image, const car_image_box *box, int out_width,
                            int out_height, uint8_t *out);

/* The pixels that may be read. */
typedef struct car_image_limits {
    int left, top, right, bottom;
} car_image_limits;

/* The same, but ignoring pixels outside `limits`. This is how a crop is resized; cropping a resized image would give
 * other edges. */
car_status car_image_resize_within(car_source_buffer *work, const car_image *image, const car_image_box *box,
                                   const car_image_limits *limits, int out_width, int out_height, uint8_t *out);

/* ---- the pipeline ----------------------------------------------------------------------------- */

/* Models up to this image size get CIFAR's usual preparation, larger ones ImageNet's. */
enum { CAR_IMAGE_SMALL = 64 };

/* Turns stored images into samples of one shape; image.c describes how. One for each reader. */
typedef struct car_image_pipeline {
    car_source_buffer work, pixels;
    float levels[3][256]; /* the normalised value of each level of each channel */
    uint64_t key;         /* seeds all augmentation */
    int size, resize;     /* pixels per side, and of the shorter side before the middle is cut out */
    bool may_augment;
    car_augmentation augmentation; /* never AUTO */
    /* Set by car_image_pipeline_aim for the current sample. */
    uint64_t sample_key;
    bool augment;
} car_image_pipeline;

void car_image_pipeline_begin(car_image_pipeline *pipeline, car_context *context, const car_dataset_config *config);
/* The same without augmentation. */
void car_image_pipeline_begin_with(car_image_pipeline *pipeline, car_context *context, const car_image_recipe *recipe);
void car_image_pipeline_end(car_image_pipeline *pipeline);
/* Selects the sample to prepare next. Pass the result to the source; it is valid until the next call. */
car_source_wish car_image_pipeline_aim(car_image_pipeline *pipeline, car_split split, int64_t epoch, int64_t sample);
/* Writes [3, size, size] floats. */
car_status car_image_pipeline_run(car_image_pipeline *pipeline, const car_source_image *image, float *out);

#endif
