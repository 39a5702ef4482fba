/* Scalars for TensorBoard: the records of its event files, ready to be appended to a file named events.out.tfevents.NAME.
 *
 *     car_events_create(context, &events);
 *     car_events_begin(events, now, 0, &record), write(file, record.data, record.bytes)
 *     car_events_add(events, "train/loss", loss), car_events_write(events, now, step, &record), write(...)
 *
 * Nothing here touches a file: when and how records are written is the caller's business. */
#ifndef CAROUSEL_EVENTS_H
#define CAROUSEL_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Puts records together. One thread at a time may use it. */
typedef struct car_events car_events;

/* The events' own, until the next call for them. */
typedef struct car_event_record {
    const void *data;
    size_t bytes;
} car_event_record;

car_status car_events_create(car_context *context, car_events **out);
void car_events_destroy(car_events *events); /* NULL is allowed */

/* What a file begins with. `seconds`: since 1970. Readers drop what earlier files of the folder have of this step and later
 * ones. */
car_status car_events_begin(car_events *events, double seconds, int64_t step, car_event_record *out);

/* Adds a scalar to the step to come; it may be infinite or not a number. */
car_status car_events_add(car_events *events, const char *tag, double value);
/* The record of a step, with all that was added since the last one. */
car_status car_events_write(car_events *events, double seconds, int64_t step, car_event_record *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
