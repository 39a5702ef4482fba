/* See pace.h. */
#include "transport/pace.h"

#include <math.h>

#include "base/base.h"
#include "transport/transport.h"

/* The rate as a multiple of the mean rate. Less than 1 would slow the run down. The rest is for steps that differ, and lets
 * a run whose steps take longer than they must become faster. Much more would let the messages of a late rank leave all at
 * once. */
static const double headroom = 1.1;

/* Depth of a bucket in seconds, and at most as part of a step. The transport's thread looks a few thousand times a second;
 * tokens that come between two looks must not be lost. */
static const double depth = 0.002, depth_part = 1.0 / 16;

/* The longest that a message waits, as part of a step. */
static const double longest = 0.25;

/* Where ranks compute for less than this part of a step, the network is the bottleneck. */
static const double least_computing = 0.7;
/* Where they compute for less than this part, it is so by far, and not because the machine is busy. */
static const double far_from_computing = 0.5;

enum { UNPACED_STEPS = 1 }; /* the first steps' times do not count, because the cycle fills */

car_status car_pace_create(car_pace *pace, car_context *context, const double *bytes, int ranks) {
    car_status status = CAR_OK;
    pace->links = ranks;
    CAR_TRY(car_context_allocate(context, (size_t)ranks, sizeof *pace->bytes, &pace->bytes));
    for (int r = 0; r < ranks; r++) {
        pace->bytes[r] = bytes[r];
        pace->all += bytes[r];
    }
done:
    if (status != CAR_OK) {
        car_pace_destroy(pace, context);
    }
    return status;
}

void car_pace_destroy(car_pace *pace, car_context *context) {
    car_context_release(context, pace->bytes, (size_t)pace->links, sizeof *pace->bytes);
    pace->bytes = NULL;
    pace->all = 0;
    pace->links = 0;
}

void car_pace_rewind(car_pace *pace) {
    pace->bucket = (car_bucket){0};
    pace->step = 0;
    pace->begun = 0;
    pace->since = pace->computed = 0;
    atomic_store(&pace->slot, INT64_MIN);
    atomic_store(&pace->seconds, 0);
}

/* ---- the engine -------------------------------------------------------------------------------- */

void car_pace_note_slot(car_pace *pace, int64_t slot) {
    if (slot > atomic_load(&pace->slot)) { /* one thread at a time is here */
        atomic_store(&pace->slot, slot);
    }
}

/* Uses the shortest of the recent steps: a step that waited for a paused rank must not slow down those after it. */
bool car_pace_note_step(car_pace *pace, double now, double computed) {
    int64_t ended = pace->begun++;
    bool saturated = false;
    if (ended > UNPACED_STEPS) {
        car_pace_step shortest = {now - pace->since, computed - pace->computed};
        pace->recent[(ended - 1) % CAR_PACE_STEPS] = shortest;
        for (int64_t s = ended - 1; s >= UNPACED_STEPS && s > ended - 1 - CAR_PACE_STEPS; s--) {
            const car_pace_step *step = &pace->recent[s % CAR_PACE_STEPS];
            shortest = step->seconds < shortest.seconds ? *step : shortest;
        }
        bool bottleneck = shortest.computing < least_computing * shortest.seconds;
        atomic_store(&pace->seconds, bottleneck ? 0 : shortest.seconds);
        saturated = shortest.computing < far_from_computing * shortest.seconds;
    }
    pace->since = now;
    pace->computed = computed;
    return saturated;
}

/* ---- the transport ----------------------------------------------------------------------------- */

static void set_rate(car_pace *pace, double seconds) {
    pace->step = seconds;
    double rate = seconds > 0 ? headroom * pace->all / seconds : 0;
    car_bucket_set(&pace->bucket, rate, fmin(depth, depth_part * seconds), longest * seconds);
}

bool car_pace_applies(const car_pace *pace, const car_message *send) {
    return pace->links > 0 && send->latest != 0 && pace->bytes[send->peer] > 0;
}

car_pace_moment car_pace_look(car_pace *pace, double now, bool ending) {
    double seconds = atomic_load(&pace->seconds);
    if (seconds != pace->step) {
        set_rate(pace, seconds);
    }
    return (car_pace_moment){.now = now, .slot = atomic_load(&pace->slot), .all = ending || pace->links == 0};
}

bool car_pace_may_leave(const car_pace *pace, const car_pace_moment *moment, const car_message *send) {
    bool come = !car_pace_applies(pace, send) || send->latest <= moment->slot;
    return moment->all || come || car_bucket_ready(&pace->bucket) <= moment->now;
}

void car_pace_take(car_pace *pace, const car_message *send, double now) {
    if (car_pace_applies(pace, send)) {
        car_bucket_take(&pace->bucket, (double)send->bytes, now);
    }
}
