/* TensorBoard's event files: a TFRecord for each event, an event being a protocol buffer message. Only scalars. */
#ifndef CAR_REPORT_EVENTS_H
#define CAR_REPORT_EVENTS_H

#include <stddef.h>
#include <stdint.h>

enum {
    CAR_EVENT_SUMMARY = 1024,                     /* bytes of the scalars of one event, at most */
    CAR_EVENT_RECORD = CAR_EVENT_SUMMARY + 2 * 64 /* bytes of a record, at most */
};

/* Scalars of one step. Begins as {.seconds = since 1970, .step = step}. */
typedef struct car_event {
    double seconds;
    int64_t step;
    uint8_t summary[CAR_EVENT_SUMMARY];
    size_t length;
} car_event;

/* `value` may be infinite or not a number. Asserts that there is room. */
void car_event_add(car_event *event, const char *tag, double value);

/* Records, ready to be appended to a file; they return the number of bytes. A file begins with the version, then with the
 * start: readers drop what earlier files have of its step and later ones. */
size_t car_event_write(const car_event *event, uint8_t record[CAR_EVENT_RECORD]);
size_t car_event_write_version(double seconds, uint8_t record[CAR_EVENT_RECORD]);
size_t car_event_write_start(double seconds, int64_t step, uint8_t record[CAR_EVENT_RECORD]);

#endif
