/* Readers: read one sample at a time, ready for the model. */
#include <stdio.h>
#include <string.h>

#include "data/dataset.h"
#include "data/image.h"

/* With more unreadable samples in a row, the disk or the mount is broken rather than the samples. */
enum { MOST_UNREADABLE_IN_A_ROW = 1000 };

struct car_reader {
    car_dataset *dataset;
    car_source_scratch scratch;
    car_image_pipeline pipeline;
};

/* ---- helpers for the kinds ------------------------------------------------------------------------------- */

car_status car_source_reserve(car_source_buffer *buffer, size_t bytes) {
    if (bytes <= buffer->capacity) {
        return CAR_OK;
    }
    car_source_free(buffer);
    car_status status = car_context_allocate(buffer->context, bytes, 1, &buffer->data);
    buffer->capacity = status == CAR_OK ? bytes : 0;
    return status;
}

void car_source_free(car_source_buffer *buffer) {
    car_context_release(buffer->context, buffer->data, buffer->capacity, 1);
    buffer->data = NULL;
    buffer->capacity = 0;
}

void car_source_describe(car_source_image *image, car_source_state state, const char *name, const char *reason) {
    enum { NAME_SHOWN = 150 };
    size_t length = strlen(name), left_out = length > NAME_SHOWN ? length - NAME_SHOWN : 0;
    image->state = state;
    snprintf(image->problem, sizeof image->problem, "%s%.*s: %.90s", left_out ? "..." : "", NAME_SHOWN, name + left_out,
             reason);
}

car_status car_reader_create(car_dataset *dataset, car_reader **out) {
    CAR_REQUIRE(NULL, dataset);
    CAR_REQUIRE(dataset->context, out);
    car_context *context = dataset->context;
    car_reader *reader = NULL;
    car_status status = car_context_allocate(context, 1, sizeof *reader, &reader);
    *out = reader;
    if (status == CAR_OK) {
        reader->dataset = dataset;
        reader->scratch.file.context = reader->scratch.pixels.context = context;
        car_image_pipeline_begin(&reader->pipeline, context, &dataset->config);
    }
    return status;
}

void car_reader_destroy(car_reader *reader) {
    if (!reader) {
        return;
    }
    car_image_pipeline_end(&reader->pipeline);
    car_source_free(&reader->scratch.pixels);
    car_source_free(&reader->scratch.file);
    car_context_release(reader->dataset->context, reader, 1, sizeof *reader);
}

/* ---- reading --------------------------------------------------------------------------------- */

static car_status check_sample(const car_dataset *dataset, car_split split, int64_t sample) {
    int64_t samples = dataset->info.samples[split];
    if (sample < 0 || (samples != CAR_DATASET_ENDLESS && sample >= samples)) {
        return car_context_fail(
            dataset->context, CAR_ERROR_ARGUMENT, "data %s: there is no sample %lld; it has %lld for %s", dataset->name,
            (long long)sample, (long long)samples, split == CAR_SPLIT_TRAIN ? "training" : "evaluation");
    }
    return CAR_OK;
}

/* Reads a stored image, and counts it as a problem if it is damaged or unreadable. */
static car_status read_image(car_reader *reader, car_split split, int64_t sample, const car_source_wish *wish,
                             car_source_image *out) {
    car_dataset *dataset = reader->dataset;
    memset(out, 0, sizeof *out);
    car_status status = dataset->methods->image(dataset->state, &reader->scratch, split, sample, wish, out);
    if (status == CAR_OK && out->state != CAR_SOURCE_WHOLE) {
        status = car_dataset_note(dataset, split, sample, out);
    }
    return status;
}

car_status car_reader_image(car_reader *reader, car_split split, int64_t sample, car_image *out) {
    CAR_REQUIRE(NULL, reader);
    CAR_REQUIRE(NULL, out);
    car_dataset *dataset = reader->dataset;
    car_source_image found;
    car_status status = CAR_OK;
    *out = (car_image){.label = -1};
    if (!dataset->methods->image) {
        return car_context_fail(dataset->context, CAR_ERROR_UNSUPPORTED, "data %s: it does not store images",
                                dataset->name);
    }
    CAR_TRY(check_sample(dataset, split, sample));
    CAR_TRY(read_image(reader, split, sample, &(car_source_wish){NULL, NULL}, &found));
    if (found.state != CAR_SOURCE_UNREADABLE) {
        *out = found.image;
    }
done:
    return status;
}

/* Reads the sample or, if it is unreadable, the next one that is not. All readers choose the same one. */
static car_status read_next_image(car_reader *reader, car_split split, int64_t sample, const car_source_wish *wish,
                                  car_source_image *out) {
    const car_dataset *dataset = reader->dataset;
    int64_t samples = dataset->info.samples[split];
    for (int tries = 0; tries < samples && tries < MOST_UNREADABLE_IN_A_ROW; tries++) {
        car_status status = read_image(reader, split, (sample + tries) % samples, wish, out);
        if (status != CAR_OK || out->state != CAR_SOURCE_UNREADABLE) {
            return status;
        }
    }
    return car_context_fail(dataset->context, CAR_ERROR_FORMAT,
                            "data %s: sample %lld and those after it cannot be read; the last one tried: %s",
                            dataset->name, (long long)sample, out->problem);
}

car_status car_reader_sample(car_reader *reader, car_split split, int64_t epoch, int64_t sample, void *input,
                             int32_t *labels) {
    CAR_REQUIRE(NULL, reader);
    CAR_REQUIRE(NULL, input);
    car_dataset *dataset = reader->dataset;
    car_source_image found;
    car_status status = CAR_OK;
    if (!dataset->readable) {
        return car_context_fail(dataset->context, CAR_ERROR_ARGUMENT,
                                "data %s: opened without a model's sizes, so its samples cannot be read",
                                dataset->name);
    }
    CAR_TRY(check_sample(dataset, split, sample));
    if (dataset->methods->sample) {
        return dataset->methods->sample(dataset->state, split, epoch, sample, input, labels);
    }
    car_source_wish wish = car_image_pipeline_aim(&reader->pipeline, split, epoch, sample);
    if (split == CAR_SPLIT_TRAIN) {
        CAR_TRY(read_next_image(reader, split, sample, &wish, &found));
    } else {
        CAR_TRY(read_image(reader, split, sample, &wish, &found));
    }
    if (found.state == CAR_SOURCE_UNREADABLE) {
        size_t size = (size_t)dataset->config.model.image_size;
        memset(input, 0, 3 * size * size * sizeof(float));
        *labels = -1;
    } else {
        CAR_TRY(car_image_pipeline_run(&reader->pipeline, &found, input));
        *labels = found.image.label;
    }
done:
    return status;
}
