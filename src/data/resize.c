/* Resizing with a triangle filter, computing only the wanted region.
 *
 * For each output row, the input rows under the filter are blended into one row of floats, in loops over contiguous
 * bytes. That row is then blended across. The order of additions is fixed, so results are the same everywhere, up to
 * the last bit where compilers fuse operations. They are within one level of PIL's, which rounds between the two
 * directions. */
#include <math.h>
#include <string.h>

#include "data/image.h"

enum { CHUNK = 32 };

/* The filter in one direction: output i is the sum over k < counts[i] of weights[i * most + k] * input[firsts[i] +
 * k]. */
typedef struct blend {
    int32_t *firsts, *counts;
    float *weights;
    int most;
} blend;

typedef float lanes __attribute__((vector_size(16)));

static double filter_radius(double scale) {
    return scale > 1 ? scale : 1;
}

static int filter_most(double scale) {
    return 2 * (int)ceil(filter_radius(scale)) + 1;
}

/* Centres output i at `from` + (i + 1/2) * scale, and uses only inputs first .. end - 1. */
static void fill_blend(blend *b, double from, double scale, int out, int first, int end) {
    double radius = filter_radius(scale);
    for (int i = 0; i < out; i++) {
        float *weights = b->weights + (size_t)i * (size_t)b->most;
        double centre = from + (i + 0.5) * scale, sum = 0;
        int begin = (int)floor(centre - radius + 0.5), stop = (int)floor(centre + radius + 0.5);
        begin = begin < first ? first : begin > end - 1 ? end - 1 : begin;
        stop = stop > end ? end : stop <= begin ? begin + 1 : stop;
        for (int x = begin; x < stop; x++) {
            double weight = 1 - fabs(x + 0.5 - centre) / radius;
            sum += weight > 0 ? weight : 0;
        }
        for (int x = begin; x < stop; x++) {
            double weight = 1 - fabs(x + 0.5 - centre) / radius;
            /* A box narrower than a pixel may have nothing under the filter. */
            weights[x - begin] = (float)(sum > 0 ? (weight > 0 ? weight / sum : 0) : x == begin);
        }
        b->firsts[i] = begin;
        b->counts[i] = stop - begin;
    }
}

/* out[i] = sum over k of weights[k] * rows[k * stride + i] */
static void blend_rows(const uint8_t *rows, size_t stride, const float *weights, int count, size_t length,
                       float *restrict out) {
    size_t base = 0;
    for (; base + CHUNK <= length; base += CHUNK) {
        float sum[CHUNK] = {0};
        for (int k = 0; k < count; k++) {
            const uint8_t *row = rows + (size_t)k * stride + base;
            float weight = weights[k];
            for (int i = 0; i < CHUNK; i++) {
                sum[i] += weight * (float)row[i];
            }
        }
        memcpy(out + base, sum, sizeof sum);
    }
    for (; base < length; base++) {
        float sum = 0;
        for (int k = 0; k < count; k++) {
            sum += weights[k] * (float)rows[(size_t)k * stride + base];
        }
        out[base] = sum;
    }
}

/* Blends a row of RGB floats across and rounds it. It loads four floats for three, so one float after the row's end
 * must be readable. */
static void blend_across(const float *row, const blend *b, int left, int width, uint8_t *out) {
    for (int x = 0; x < width; x++) {
        const float *from = row + 3 * (size_t)(b->firsts[x] - left),
                    *weights = b->weights + (size_t)x * (size_t)b->most;
        lanes sum = {0.5f, 0.5f, 0.5f, 0.5f};
        for (int k = 0; k < b->counts[x]; k++) {
            lanes pixel;
            memcpy(&pixel, from + 3 * k, sizeof pixel);
            sum += weights[k] * pixel;
        }
        for (int c = 0; c < 3; c++) {
            out[3 * x + c] = (uint8_t)sum[c];
        }
    }
}

/* Takes a block from the scratch memory. */
static void *take(uint8_t **memory, size_t count, size_t size) {
    void *piece = *memory;
    *memory += car_round_up(count * size, 64);
    return piece;
}

static size_t blend_bytes(int out, int most) {
    return 2 * car_round_up((size_t)out * sizeof(int32_t), 64) +
           car_round_up((size_t)out * (size_t)most * sizeof(float), 64);
}

static blend take_blend(uint8_t **memory, int out, int most) {
    blend b = {.most = most};
    b.firsts = take(memory, (size_t)out, sizeof *b.firsts);
    b.counts = take(memory, (size_t)out, sizeof *b.counts);
    b.weights = take(memory, (size_t)out * (size_t)most, sizeof *b.weights);
    return b;
}

car_status car_image_resize_within(car_source_buffer *work, const car_image *image, const car_image_box *box,
                                   const car_image_limits *limits, int out_width, int out_height, uint8_t *out) {
    double scale_x = (box->right - box->left) / out_width, scale_y = (box->bottom - box->top) / out_height;
    int most_x = filter_most(scale_x), most_y = filter_most(scale_y);
    size_t stride = 3 * (size_t)image->width;
    size_t row_bytes = car_round_up((stride + 1) * sizeof(float), 64);
    car_status status = CAR_OK;
    CAR_TRY(car_source_reserve(work, blend_bytes(out_width, most_x) + blend_bytes(out_height, most_y) + row_bytes));
    uint8_t *memory = work->data;
    blend across = take_blend(&memory, out_width, most_x), down = take_blend(&memory, out_height, most_y);
    float *row = take(&memory, row_bytes, 1);
    fill_blend(&across, box->left, scale_x, out_width, limits->left, limits->right);
    fill_blend(&down, box->top, scale_y, out_height, limits->top, limits->bottom);
    int left = across.firsts[0], right = across.firsts[out_width - 1] + across.counts[out_width - 1];
    size_t length = 3 * (size_t)(right - left);
    row[length] = 0;
    for (int y = 0; y < out_height; y++) {
        const uint8_t *rows = image->pixels + (size_t)down.firsts[y] * stride + 3 * (size_t)left;
        blend_rows(rows, stride, down.weights + (size_t)y * (size_t)most_y, down.counts[y], length, row);
        blend_across(row, &across, left, out_width, out + 3 * (size_t)y * (size_t)out_width);
    }
done:
    return status;
}

car_status car_image_resize(car_source_buffer *work, const car_image *image, const car_image_box *box, int out_width,
                            int out_height, uint8_t *out) {
    car_image_limits all = {0, 0, image->width, image->height};
    return car_image_resize_within(work, image, box, &all, out_width, out_height, out);
}
