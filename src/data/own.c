/* User-defined datasets: a kind whose samples are read by a callback. */
#include <string.h>

#include "data/source.h"

typedef struct own_state {
    car_context *context;
    car_dataset_class class;
} own_state;

car_status car_source_check_own(car_context *context, const car_dataset_class *own) {
    enum { MOST_LABELS = 1 << 20 };
    if (!own || !own->name || !*own->name || !own->read) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a dataset needs a name and a function that reads a sample");
    }
    for (int s = 0; s < CAR_SPLITS; s++) {
        if (own->samples[s] < 0 && own->samples[s] != CAR_DATASET_ENDLESS) {
            return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                    "data %s: %lld is not a number of samples; give 0 or more, or CAR_DATASET_ENDLESS",
                                    own->name, (long long)own->samples[s]);
        }
    }
    if (own->input_bytes == 0 || own->input_bytes > SIZE_MAX / 2 || own->label_count < 0 ||
        own->label_count > MOST_LABELS) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "data %s: a sample has %zu bytes and %d labels; it needs at least 1 byte, and 0 to %d labels", own->name,
            own->input_bytes, own->label_count, MOST_LABELS);
    }
    return CAR_OK;
}

car_status car_source_open_own(car_context *context, const car_dataset_class *own, void **out) {
    own_state *state = NULL;
    car_status status = car_context_allocate(context, 1, sizeof *state, &state);
    if (status == CAR_OK) {
        *state = (own_state){context, *own};
    }
    *out = state;
    return status;
}

static void close_own(void *state) {
    own_state *s = state;
    car_context_release(s->context, s, 1, sizeof *s);
}

/* The samples themselves are unknown, so the digest covers only name and sizes. */
static car_status digest_own(const void *state, car_sha256 *sha) {
    const car_dataset_class *class = &((const own_state *)state)->class;
    const int64_t numbers[] = {class->samples[0], class->samples[1], (int64_t) class->input_bytes, class->label_count,
                               class->classes};
    car_sha256_add(sha, class->name, strlen(class->name) + 1);
    car_sha256_add(sha, numbers, sizeof numbers);
    return CAR_OK;
}

static car_status read_own(void *state, car_split split, int64_t epoch, int64_t sample, void *input, int32_t *labels) {
    const own_state *s = state;
    const car_sample_io io = {.user = s->class.user,
                              .split = split,
                              .epoch = epoch,
                              .sample = sample,
                              .input = input,
                              .labels = labels,
                              .context = s->context};
    car_status status = s->class.read(&io);
    return status == CAR_OK ? CAR_OK
                            : car_context_fail(s->context, status, "data %s: sample %lld could not be read: %s",
                                               s->class.name, (long long)sample, car_status_text(status));
}

const car_source_methods car_source_own = {.close = close_own, .digest = digest_own, .sample = read_own};
