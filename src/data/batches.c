/* Micro-batches: which samples they contain, and reading them. */
#include <string.h>

#include "data/loader_internal.h"

static car_status check(const car_loader_source *source, const car_loader_config *config) {
    bool train = config->split == CAR_SPLIT_TRAIN;
    if (config->micro_batches < 1 || config->batch < 1) {
        return car_context_fail(
            source->context, CAR_ERROR_ARGUMENT,
            "a loader needs at least one micro-batch per step and one sample per micro-batch, not %d and %d",
            config->micro_batches, config->batch);
    }
    int64_t least = train ? (int64_t)config->micro_batches * config->batch : 1;
    if (source->samples != CAR_DATASET_ENDLESS && source->samples < least) {
        return car_context_fail(
            source->context, CAR_ERROR_ARGUMENT,
            "there are only %lld samples to %s on; a step of %d micro-batches of %d samples needs at least %lld",
            (long long)source->samples, train ? "train" : "evaluate", config->micro_batches, config->batch,
            (long long)least);
    }
    return CAR_OK;
}

car_status car_batches_begin(car_batches *batches, const car_loader_source *source, const car_loader_config *config) {
    int64_t global = (int64_t)config->micro_batches * config->batch;
    bool train = config->split == CAR_SPLIT_TRAIN, endless = source->samples == CAR_DATASET_ENDLESS;
    car_status status = CAR_OK;
    CAR_TRY(check(source, config));
    batches->source = *source;
    batches->split = config->split;
    batches->micro_batches = config->micro_batches;
    batches->batch = config->batch;
    batches->most_steps = INT64_MAX / global;
    atomic_init(&batches->stop, false);
    if (endless) {
        batches->epoch_steps = INT64_MAX;
    } else {
        batches->epoch_steps = source->samples / global + (!train && source->samples % global > 0);
    }
    if (!train && !endless && config->evenly && config->steps > 0 && config->steps < batches->epoch_steps &&
        config->steps <= INT32_MAX / global) {
        batches->spread = config->steps * global;
        batches->epoch_steps = config->steps;
    }
    if (train && !endless && !config->sequential) {
        CAR_TRY(car_order_create(source->context, config->seed, source->samples, &batches->order));
    }
done:
    return status;
}

void car_batches_end(car_batches *batches) {
    car_order_destroy(batches->order);
    batches->order = NULL;
}

/* ---- reading ---------------------------------------------------------------------------------- */

void car_batches_destroy_reader(const car_batches *batches, car_batch_reader *reader) {
    if (!reader) {
        return;
    }
    car_context *context = batches->source.context;
    if (reader->reader) {
        batches->source.destroy_reader(reader->reader);
    }
    car_context_release(context, reader->samples, (size_t)batches->batch, sizeof *reader->samples);
    car_context_release(context, reader, 1, sizeof *reader);
}

car_status car_batches_create_reader(const car_batches *batches, car_batch_reader **out) {
    car_context *context = batches->source.context;
    car_batch_reader *reader = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *reader, &reader));
    CAR_TRY(car_context_allocate(context, (size_t)batches->batch, sizeof *reader->samples, &reader->samples));
    CAR_TRY(batches->source.create_reader(batches->source.dataset, &reader->reader));
    *out = reader;
    reader = NULL;
done:
    car_batches_destroy_reader(batches, reader);
    return status;
}

/* The sample at `position` when batches->spread samples are spread over the split. Both factors of each product are
 * below 2^31. */
static int64_t spread(const car_batches *batches, int64_t position) {
    int64_t apart = batches->source.samples / batches->spread, rest = batches->source.samples % batches->spread;
    return position * apart + position * rest / batches->spread;
}

/* *count is less than the batch only at the end of an evaluation. */
static car_status find_samples(car_batches *batches, int64_t number, int64_t *samples, int64_t *epoch, int *count) {
    int64_t step = number / batches->micro_batches, within = number % batches->micro_batches;
    int64_t first = (step % batches->epoch_steps * batches->micro_batches + within) * batches->batch;
    *epoch = step / batches->epoch_steps;
    *count = batches->batch;
    if (batches->source.samples != CAR_DATASET_ENDLESS) {
        int64_t left = batches->source.samples - first;
        *count = left >= *count ? *count : left > 0 ? (int)left : 0;
    }
    if (batches->order) {
        return car_order_get(batches->order, *epoch, first, *count, samples);
    }
    for (int b = 0; b < *count; b++) {
        samples[b] = batches->spread > 0 ? spread(batches, first + b) : first + b;
    }
    return CAR_OK;
}

car_status car_batches_read(car_batches *batches, car_batch_reader *reader, int64_t number, void *inputs,
                            int32_t *labels) {
    const car_loader_source *source = &batches->source;
    size_t input_bytes = source->input_bytes, label_count = (size_t)source->labels;
    int64_t epoch = 0;
    int count = 0;
    car_status status = CAR_OK;
    CAR_TRY(find_samples(batches, number, reader->samples, &epoch, &count));
    for (int b = 0; b < count && !atomic_load_explicit(&batches->stop, memory_order_relaxed); b++) {
        size_t at = (size_t)b;
        CAR_TRY(source->read(reader->reader, batches->split, epoch, reader->samples[b],
                             (char *)inputs + at * input_bytes, labels + at * label_count));
    }
    size_t begin = (size_t)count, end = (size_t)batches->batch;
    memset((char *)inputs + begin * input_bytes, 0, (end - begin) * input_bytes);
    for (size_t i = begin * label_count; i < end * label_count; i++) {
        labels[i] = -1;
    }
done:
    return status;
}
