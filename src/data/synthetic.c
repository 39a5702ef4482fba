/* Synthetic samples: see data.h for what they are. */
#include <math.h>

#include "base/base.h"
#include "carousel/data.h"

enum { WAVES = 3 };

static const double two_pi = 6.283185307179586;
static const float noise_level = 0.5f;
static const float follow_rate = 0.8f;

/* ---- images ---------------------------------------------------------------------------------- */

/* The value of class `label`'s pattern: waves of low frequency, so that a shift keeps it recognisable. */
static float pattern(uint64_t key, int label, int channel, int y, int x, int size) {
    double value = 0;
    for (int w = 0; w < WAVES; w++) {
        uint64_t at = (uint64_t)((label * 64 + channel) * WAVES + w) * 4;
        double across = 1 + (double)(car_random_u64(key, at) % 3), down = 1 + (double)(car_random_u64(key, at + 1) % 3);
        double phase = car_random_uniform(key, at + 2), sign = car_random_u64(key, at + 3) % 2 ? 1 : -1;
        value += cos(two_pi * ((across * x + sign * down * y) / size + phase));
    }
    return (float)(value / WAVES);
}

static int32_t write_image(const car_synthetic *source, uint64_t sample, float *image) {
    const car_model_config *config = &source->config;
    uint64_t patterns = car_random_key(source->seed, "patterns");
    uint64_t own = car_random_u64(car_random_key(source->seed, "samples"), sample);
    int size = config->image_size;
    int label = (int)(car_random_u64(own, 0) % (uint64_t)config->classes);
    int shift_y = (int)(car_random_u64(own, 1) % 4), shift_x = (int)(car_random_u64(own, 2) % 4);
    for (int c = 0; c < config->channels; c++) {
        for (int y = 0; y < size; y++) {
            for (int x = 0; x < size; x++) {
                int64_t i = ((int64_t)c * size + y) * size + x;
                float noise = 2 * car_random_uniform(own, 16 + (uint64_t)i) - 1;
                image[i] = pattern(patterns, label, c, y + shift_y, x + shift_x, size) + 2 * noise_level * noise;
            }
        }
    }
    return label;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static void write_tokens(const car_synthetic *source, uint64_t sample, int32_t *tokens, int32_t *labels) {
    const car_model_config *config = &source->config;
    uint64_t rule = car_random_key(source->seed, "successors");
    uint64_t own = car_random_u64(car_random_key(source->seed, "samples"), sample);
    uint64_t vocabulary = (uint64_t)config->vocabulary;
    int32_t token = (int32_t)(car_random_u64(own, 0) % vocabulary);
    for (int t = 0; t < config->seq_len; t++) {
        tokens[t] = token;
        bool follow = car_random_uniform(own, 2 * (uint64_t)t + 1) < follow_rate;
        token = (int32_t)((follow ? car_random_u64(rule, (uint64_t)token) : car_random_u64(own, 2 * (uint64_t)t + 2)) %
                          vocabulary);
        labels[t] = token;
    }
}

void car_synthetic_batch(const car_synthetic *source, uint64_t first, void *inputs, int32_t *labels) {
    const car_model_config *config = &source->config;
    int64_t pixels = (int64_t)config->channels * config->image_size * config->image_size;
    for (int b = 0; b < config->batch; b++) {
        uint64_t sample = first + (uint64_t)b;
        if (source->domain == CAR_DOMAIN_IMAGES) {
            labels[b] = write_image(source, sample, (float *)inputs + b * pixels);
        } else {
            int64_t at = (int64_t)b * config->seq_len;
            write_tokens(source, sample, (int32_t *)inputs + at, labels + at);
        }
    }
}
