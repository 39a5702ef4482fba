/* Synthetic samples; data.h describes them. */
#include <math.h>

#include "data/source.h"

enum { WAVES = 3, FREQUENCIES = 3, SHIFTS = 4 };
/* Larger images are computed without tables. */
enum { MOST_SIZE = 512, MOST_VALUES = 2 * FREQUENCIES * (MOST_SIZE + SHIFTS - 2) + 1 };

static const double two_pi = 6.283185307179586;
static const float noise_level = 0.5f;
static const float follow_rate = 0.8f;

/* ---- images ---------------------------------------------------------------------------------- */

/* A wave of a class's pattern. Frequencies are integers, so its argument takes few different values. These are
 * computed once per image, not once per pixel. */
typedef struct wave {
    int across, down; /* `down` may be negative */
    int size;
    double offset;
    int lowest; /* across * x + down * y of the first value */
    double values[MOST_VALUES];
} wave;

static double compute_value(const wave *w, int at) {
    return cos(two_pi * ((double)at / w->size + w->offset));
}

/* Frequencies are low, so that a shifted pattern stays recognisable. */
static void make_wave(wave *out, uint64_t key, int label, int channel, int number, int size) {
    uint64_t at = (uint64_t)((label * 64 + channel) * WAVES + number) * 4;
    int across = 1 + (int)(car_random_u64(key, at) % FREQUENCIES);
    int down = 1 + (int)(car_random_u64(key, at + 1) % FREQUENCIES), furthest = size - 1 + SHIFTS - 1;
    out->size = size;
    out->offset = car_random_uniform(key, at + 2);
    out->across = across;
    out->down = car_random_u64(key, at + 3) % 2 ? down : -down;
    out->lowest = out->down < 0 ? out->down * furthest : 0;
    for (int i = 0; size <= MOST_SIZE && i <= (across + down) * furthest; i++) {
        out->values[i] = compute_value(out, out->lowest + i);
    }
}

static double value_at(const wave *w, int y, int x) {
    int at = w->across * x + w->down * y;
    return w->size <= MOST_SIZE ? w->values[at - w->lowest] : compute_value(w, at);
}

/* Writes a channel of a class's pattern, with the sample's noise. */
static void write_channel(const car_synthetic *source, uint64_t own, int label, int channel, float *image) {
    uint64_t patterns = car_random_key(source->seed, "patterns");
    int size = source->config.image_size;
    int shift_y = (int)(car_random_u64(own, 1) % SHIFTS), shift_x = (int)(car_random_u64(own, 2) % SHIFTS);
    wave waves[WAVES];
    for (int w = 0; w < WAVES; w++) {
        make_wave(&waves[w], patterns, label, channel, w, size);
    }
    for (int y = 0; y < size; y++) {
        for (int x = 0; x < size; x++) {
            int64_t i = ((int64_t)channel * size + y) * size + x;
            float noise = 2 * car_random_uniform(own, 16 + (uint64_t)i) - 1;
            double value = 0;
            for (int w = 0; w < WAVES; w++) {
                value += value_at(&waves[w], y + shift_y, x + shift_x);
            }
            image[i] = (float)(value / WAVES) + 2 * noise_level * noise;
        }
    }
}

static int32_t write_image(const car_synthetic *source, uint64_t sample, float *image) {
    const car_model_config *config = &source->config;
    uint64_t own = car_random_u64(car_random_key(source->seed, "samples"), sample);
    int label = (int)(car_random_u64(own, 0) % (uint64_t)config->classes);
    for (int c = 0; c < config->channels; c++) {
        write_channel(source, own, label, c, image);
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

/* ---- as a dataset ---------------------------------------------------------------------------- */

/* Evaluation uses samples that training never reaches. */
static const uint64_t first_held_out_sample = (uint64_t)1 << 48;

typedef struct synthetic_state {
    car_context *context;
    car_synthetic source;
} synthetic_state;

static car_status open_synthetic(car_context *context, const char *path, const car_dataset_config *config,
                                 car_dataset_info *info, void **out) {
    synthetic_state *state = NULL;
    (void)path;
    *out = NULL;
    car_status status = car_context_allocate(context, 1, sizeof *state, &state);
    if (status != CAR_OK) {
        return status;
    }
    state->context = context;
    info->samples[CAR_SPLIT_TRAIN] = info->samples[CAR_SPLIT_EVALUATION] = CAR_DATASET_ENDLESS;
    if (config) {
        bool images = config->domain == CAR_DOMAIN_IMAGES;
        state->source = (car_synthetic){config->seed, config->domain, config->model};
        state->source.config.batch = 1;
        info->domain = config->domain;
        info->classes = images ? config->model.classes : config->model.vocabulary;
        info->width = info->height = images ? config->model.image_size : 0;
    }
    *out = state;
    return CAR_OK;
}

static void close_synthetic(void *state) {
    synthetic_state *s = state;
    car_context_release(s->context, s, 1, sizeof *s);
}

static car_status digest_synthetic(const void *state, car_sha256 *sha) {
    const car_synthetic *source = &((const synthetic_state *)state)->source;
    const car_model_config *c = &source->config;
    int32_t numbers[] = {(int32_t)source->domain, c->classes, c->image_size, c->channels, c->seq_len, c->vocabulary};
    car_sha256_add(sha, &source->seed, sizeof source->seed);
    car_sha256_add(sha, numbers, sizeof numbers);
    return CAR_OK;
}

static car_status read_synthetic(void *state, car_split split, int64_t epoch, int64_t sample, void *input,
                                 int32_t *labels) {
    const synthetic_state *s = state;
    uint64_t first = split == CAR_SPLIT_TRAIN ? 0 : first_held_out_sample;
    (void)epoch;
    car_synthetic_batch(&s->source, first + (uint64_t)sample, input, labels);
    return CAR_OK;
}

const car_source_methods car_source_synthetic = {
    .open = open_synthetic,
    .close = close_synthetic,
    .digest = digest_synthetic,
    .sample = read_synthetic,
};
