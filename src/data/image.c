/* From a stored image to a sample.
 *
 * Small models (CIFAR): the shorter side is resized to the model's size, if necessary, and the middle is cut out.
 * Training pads it by an eighth of the size with black, crops at random, and mirrors every other image.
 *
 * Larger models (ImageNet): training crops a region of random area (8 to 100 %) and shape (3:4 to 4:3), resizes it
 * and mirrors every other one. Evaluation resizes the shorter side to 256/224 of the size, and cuts out the middle.
 *
 * car_augmentation can select either kind of training crop for any size.
 *
 * The definitions are those of torchvision's transforms, with other random numbers. Each draw has its own counter,
 * so that none depends on how many others there were. */
#include <math.h>
#include <string.h>

#include "data/image.h"

enum { DRAW_FLIP, DRAW_TOP, DRAW_LEFT, DRAW_ATTEMPTS = 16, DRAWS_OF_ATTEMPT = 4, ATTEMPTS = 10 };

static const double least_area = 0.08, most_area = 1, least_ratio = 3.0 / 4, most_ratio = 4.0 / 3;
/* The decoder may shrink an image to no less than twice the wanted pixels per side, so that our filter determines
 * the result. */
static const double shrunk_surplus = 2;

static const float small_mean[3] = {0.4914f, 0.4822f, 0.4465f}, small_deviation[3] = {0.2023f, 0.1994f, 0.2010f};
static const float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};

/* A region of the stored image. `alone`: pixels around it must not be read. */
typedef struct region {
    car_image_box box;
    bool alone;
} region;

/* ---- regions --------------------------------------------------------------------------------- */

/* Resizes the shorter side to `shorter`, and cuts out the middle. */
static region middle_region(int width, int height, int shorter, int size) {
    int64_t resized_width = width <= height ? shorter : (int64_t)shorter * width / height;
    int64_t resized_height = height <= width ? shorter : (int64_t)shorter * height / width;
    double scale_x = (double)width / (double)resized_width, scale_y = (double)height / (double)resized_height;
    double left = rint((double)(resized_width - size) / 2), top = rint((double)(resized_height - size) / 2);
    return (region){{left * scale_x, top * scale_y, (left + size) * scale_x, (top + size) * scale_y}, false};
}

static region whole_pixels(int64_t left, int64_t top, int64_t width, int64_t height) {
    return (region){{(double)left, (double)top, (double)(left + width), (double)(top + height)}, true};
}

static double draw_between(uint64_t key, uint64_t counter, double low, double high) {
    return low + (high - low) * car_random_uniform(key, counter);
}

static int64_t draw_below(uint64_t key, uint64_t counter, int64_t end) {
    return (int64_t)(car_random_u64(key, counter) % (uint64_t)end);
}

/* A random area and shape: the first attempt that fits. */
static region random_region(uint64_t key, int width, int height) {
    for (int a = 0; a < ATTEMPTS; a++) {
        uint64_t draw = DRAW_ATTEMPTS + DRAWS_OF_ATTEMPT * (uint64_t)a;
        double area = (double)width * height * draw_between(key, draw, least_area, most_area);
        double ratio = exp(draw_between(key, draw + 1, log(least_ratio), log(most_ratio)));
        int64_t w = (int64_t)rint(sqrt(area * ratio)), h = (int64_t)rint(sqrt(area / ratio));
        if (w > 0 && w <= width && h > 0 && h <= height) {
            return whole_pixels(draw_below(key, draw + 3, width - w + 1), draw_below(key, draw + 2, height - h + 1), w,
                                h);
        }
    }
    /* No attempt fits: take the middle, as much as the shape allows. */
    int64_t w = width, h = height;
    if ((double)width / height < least_ratio) {
        h = (int64_t)rint(width / least_ratio);
    } else if ((double)width / height > most_ratio) {
        w = (int64_t)rint(height * most_ratio);
    }
    return whole_pixels((width - w) / 2, (height - h) / 2, w, h);
}

static bool augments_by(const car_image_pipeline *p, car_augmentation augmentation) {
    return p->augment && p->augmentation == augmentation;
}

static region choose_region(const car_image_pipeline *p, int width, int height) {
    if (augments_by(p, CAR_AUGMENTATION_RESIZED_CROP)) {
        return random_region(p->sample_key, width, height);
    }
    bool padded = augments_by(p, CAR_AUGMENTATION_PADDED_CROP);
    return middle_region(width, height, padded ? p->size : p->resize, p->size);
}

/* How many times smaller the decoder may make the image. */
static int shrink(void *user, int width, int height) {
    const car_image_pipeline *p = user;
    car_image_box box = choose_region(p, width, height).box;
    double across = box.right - box.left, down = box.bottom - box.top;
    double surplus = (across < down ? across : down) / (shrunk_surplus * p->size);
    return surplus >= 8 ? 8 : surplus >= 4 ? 4 : surplus >= 2 ? 2 : 1;
}

/* ---- the steps ------------------------------------------------------------------------------- */

/* By what factor an image was shrunk. The last row and column may stand for fewer stored pixels, so the quotient of
 * the sizes is not exact. */
static int times_shrunk(const car_source_image *stored) {
    int times = 1;
    while (times < 8 && ((stored->stored_width + times - 1) / times != stored->image.width ||
                         (stored->stored_height + times - 1) / times != stored->image.height)) {
        times *= 2;
    }
    return times;
}

static car_status resize(car_image_pipeline *p, const car_source_image *stored, const uint8_t **out) {
    const car_image *image = &stored->image;
    int size = p->size;
    car_status status = CAR_OK;
    bool fits = image->width == size && image->height == size;
    if (fits && p->resize == size && !augments_by(p, CAR_AUGMENTATION_RESIZED_CROP)) {
        *out = image->pixels;
        return CAR_OK;
    }
    region r = choose_region(p, stored->stored_width, stored->stored_height);
    double times = times_shrunk(stored);
    car_image_box box = {r.box.left / times, r.box.top / times, r.box.right / times, r.box.bottom / times};
    car_image_limits limits = {0, 0, image->width, image->height};
    if (r.alone) {
        limits =
            (car_image_limits){(int)floor(box.left), (int)floor(box.top), (int)ceil(box.right), (int)ceil(box.bottom)};
        limits.right = limits.right > image->width ? image->width : limits.right;
        limits.bottom = limits.bottom > image->height ? image->height : limits.bottom;
    }
    CAR_TRY(car_source_reserve(&p->pixels, 3 * (size_t)size * (size_t)size));
    CAR_TRY(car_image_resize_within(&p->work, image, &box, &limits, size, size, p->pixels.data));
    *out = p->pixels.data;
done:
    return status;
}

/* Writes one row of one channel. Output pixel x is input pixel left + x, or black where there is none; mirrored rows
 * are written from the end. */
static void write_row(const uint8_t *row, const float *levels, int size, int left, bool mirrored, float *out) {
    int begin = left < 0 ? -left : 0, end = left > 0 ? size - left : size, step = mirrored ? -1 : 1;
    float *to = mirrored ? out + size - 1 : out;
    for (int x = 0; x < begin; x++) {
        to[x * step] = levels[0];
    }
    for (int x = begin; x < end; x++) {
        to[x * step] = levels[row[3 * (x + left)]];
    }
    for (int x = end; x < size; x++) {
        to[x * step] = levels[0];
    }
}

static void write_sample(const car_image_pipeline *p, const uint8_t *pixels, float *out) {
    int size = p->size, left = 0, top = 0;
    bool mirrored = p->augment && (car_random_u64(p->sample_key, DRAW_FLIP) & 1);
    if (augments_by(p, CAR_AUGMENTATION_PADDED_CROP)) {
        int pad = size / 8;
        top = (int)draw_below(p->sample_key, DRAW_TOP, 2 * pad + 1) - pad;
        left = (int)draw_below(p->sample_key, DRAW_LEFT, 2 * pad + 1) - pad;
    }
    for (int c = 0; c < 3; c++) {
        for (int y = 0; y < size; y++) {
            float *row = out + ((size_t)c * (size_t)size + (size_t)y) * (size_t)size;
            int from = y + top;
            if (from < 0 || from >= size) {
                for (int x = 0; x < size; x++) {
                    row[x] = p->levels[c][0];
                }
            } else {
                write_row(pixels + 3 * (size_t)from * (size_t)size + c, p->levels[c], size, left, mirrored, row);
            }
        }
    }
}

/* ---- the pipeline ---------------------------------------------------------------------------- */

car_image_recipe car_image_recipe_for(int size) {
    bool small = size <= CAR_IMAGE_SMALL;
    car_image_recipe recipe = {.size = size, .resize = small ? size : (size * 256 + 112) / 224};
    memcpy(recipe.mean, small ? small_mean : mean, sizeof recipe.mean);
    memcpy(recipe.deviation, small ? small_deviation : deviation, sizeof recipe.deviation);
    return recipe;
}

void car_image_pipeline_begin_with(car_image_pipeline *pipeline, car_context *context, const car_image_recipe *recipe) {
    memset(pipeline, 0, sizeof *pipeline);
    pipeline->work.context = pipeline->pixels.context = context;
    pipeline->size = recipe->size;
    pipeline->resize = recipe->resize;
    for (int c = 0; c < 3; c++) {
        for (int level = 0; level < 256; level++) {
            pipeline->levels[c][level] = ((float)level / 255.0f - recipe->mean[c]) / recipe->deviation[c];
        }
    }
}

void car_image_pipeline_begin(car_image_pipeline *pipeline, car_context *context, const car_dataset_config *config) {
    car_image_recipe recipe = car_image_recipe_for(config->model.image_size);
    car_image_pipeline_begin_with(pipeline, context, &recipe);
    pipeline->key = car_random_key(config->seed, "augmentation");
    pipeline->may_augment = config->augment;
    bool small = recipe.size <= CAR_IMAGE_SMALL;
    pipeline->augmentation = config->augmentation != CAR_AUGMENTATION_AUTO ? config->augmentation
                             : small                                       ? CAR_AUGMENTATION_PADDED_CROP
                                                                           : CAR_AUGMENTATION_RESIZED_CROP;
}

void car_image_pipeline_end(car_image_pipeline *pipeline) {
    car_source_free(&pipeline->pixels);
    car_source_free(&pipeline->work);
}

car_source_wish car_image_pipeline_aim(car_image_pipeline *pipeline, car_split split, int64_t epoch, int64_t sample) {
    pipeline->augment = pipeline->may_augment && split == CAR_SPLIT_TRAIN;
    pipeline->sample_key = car_random_u64(car_random_u64(pipeline->key, (uint64_t)epoch), (uint64_t)sample);
    return (car_source_wish){shrink, pipeline};
}

car_status car_image_pipeline_run(car_image_pipeline *pipeline, const car_source_image *image, float *out) {
    const uint8_t *pixels = NULL;
    car_status status = resize(pipeline, image, &pixels);
    if (status == CAR_OK) {
        write_sample(pipeline, pixels, out);
    }
    return status;
}
