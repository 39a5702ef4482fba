/* Scalars for TensorBoard: builds the records of its event files. Append them to a file named
 * events.out.tfevents.NAME.
 *
 *     car_events_create(context, &events);
 *     car_events_begin(events, now, 0, &record), write(file, record.data, record.bytes)
 *     car_events_add(events, "train/loss", loss), car_events_write(events, now, step, &record), write(...)
 *
 * Nothing here touches a file; writing the records is left to the caller. */
#ifndef CAROUSEL_EVENTS_H
#define CAROUSEL_EVENTS_H

#include <stddef.h>
#include <stdint.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Builds records. For one thread at a time. */
typedef struct car_events car_events;

/* A finished record. Owned by the car_events and valid until the next call with it. */
typedef struct car_event_record {
    const void *data;
    size_t bytes;
} car_event_record;

car_status car_events_create(car_context *context, car_events **out);
void car_events_destroy(car_events *events); /* NULL is allowed */

/* Makes the first record of a file. `seconds` is the time since 1970. TensorBoard then ignores what earlier files in
 * the folder say about `step` and later steps. */
car_status car_events_begin(car_events *events, double seconds, int64_t step, car_event_record *out);

/* Adds a scalar to the next record. The value may be infinite or NaN. */
car_status car_events_add(car_events *events, const char *tag, double value);
/* Makes the record of a step, with everything added since the last one. */
car_status car_events_write(car_events *events, double seconds, int64_t step, car_event_record *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
