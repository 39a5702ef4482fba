/* Writes TensorBoard's event files; see carousel/events.h.
 *
 *   record   length as 8 bytes, checksum of those 8, the message, checksum of the message; little endian
 *   Event    1: wall time (double), 2: step (int64), 3: version (string), 5: summary, 7: session log
 *   Summary  1: value, repeated: 1: tag (string), 2: the number (float)
 *   Session  1: status, where 1 means "start" */
#include "carousel/events.h"

#include <string.h>

#include "carousel/convention.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* the storage type of a field */

/* ---- messages -------------------------------------------------------------------------------- */

static size_t put_fixed(uint8_t *out, uint64_t value, size_t bytes) {
    for (size_t b = 0; b < bytes; b++) {
        out[b] = (uint8_t)(value >> (8 * b));
    }
    return bytes;
}

static size_t put_varint(uint8_t *out, uint64_t value) {
    size_t length = 0;
    do {
        out[length++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value);
    return length;
}

static size_t put_key(uint8_t *out, int field, int storage) {
    return put_varint(out, (uint64_t)(field << 3 | storage));
}

static size_t put_bytes(uint8_t *out, int field, const void *bytes, size_t count) {
    size_t length = put_key(out, field, BYTES);
    length += put_varint(out + length, count);
    memcpy(out + length, bytes, count);
    return length + count;
}

static size_t put_head(uint8_t *out, double seconds, int64_t step) {
    uint64_t bits = 0;
    memcpy(&bits, &seconds, sizeof bits);
    size_t length = put_key(out, 1, FIXED64);
    length += put_fixed(out + length, bits, 8);
    length += put_key(out + length, 2, VARINT);
    return length + put_varint(out + length, (uint64_t)step);
}

/* ---- the handle ------------------------------------------------------------------------------ */

/* A record begins with a length and its checksum. All fields except the summary together take less than SMALL bytes. */
enum { HEAD = 12, TAIL = 4, SMALL = 64 };

struct car_events {
    car_context *context;
    uint8_t *summary, *records;
    int summary_length, summary_capacity, records_capacity;
};

car_status car_events_create(car_context *context, car_events **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    car_status status = car_context_allocate(context, 1, sizeof **out, out);
    if (status == CAR_OK) {
        (*out)->context = context;
    }
    return status;
}

void car_events_destroy(car_events *events) {
    if (events) {
        car_context_release(events->context, events->records, (size_t)events->records_capacity, 1);
        car_context_release(events->context, events->summary, (size_t)events->summary_capacity, 1);
        car_context_release(events->context, events, 1, sizeof *events);
    }
}

car_status car_events_add(car_events *events, const char *tag, double value) {
    CAR_REQUIRE(NULL, events);
    CAR_REQUIRE(events->context, tag);
    enum { LONGEST = 128 };
    uint8_t message[LONGEST + SMALL];
    float number = (float)value;
    uint32_t bits = 0;
    car_status status = CAR_OK;
    memcpy(&bits, &number, sizeof bits);
    if (strlen(tag) >= LONGEST || events->summary_length > 1 << 20) {
        return car_context_fail(
            events->context, CAR_ERROR_ARGUMENT,
            "cannot add a scalar for TensorBoard: its name of %zu bytes is too long, or there are too many scalars",
            strlen(tag));
    }
    size_t length = put_bytes(message, 1, tag, strlen(tag));
    length += put_key(message + length, 2, FIXED32);
    length += put_fixed(message + length, bits, 4);
    CAR_TRY(car_context_grow(events->context, &events->summary, &events->summary_capacity,
                             events->summary_length + (int)length + SMALL, 1));
    events->summary_length += (int)put_bytes(events->summary + events->summary_length, 1, message, length);
done:
    return status;
}

/* ---- records --------------------------------------------------------------------------------- */

/* CRC-32C, then rotated and shifted as the format requires. */
static uint32_t checksum(const uint8_t *bytes, size_t count) {
    uint32_t crc = 0xffffffffu;
    for (size_t b = 0; b < count; b++) {
        crc ^= bytes[b];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Completes a record around a message that starts HEAD bytes into it. */
static size_t close_record(uint8_t *record, size_t length) {
    put_fixed(record, length, 8);
    put_fixed(record + 8, checksum(record, 8), 4);
    put_fixed(record + HEAD + length, checksum(record + HEAD, length), TAIL);
    return HEAD + length + TAIL;
}

static size_t put_version(uint8_t *record, double seconds) {
    static const char version[] = "brain.Event:2";
    size_t length = put_head(record + HEAD, seconds, 0);
    length += put_bytes(record + HEAD + length, 3, version, sizeof version - 1);
    return close_record(record, length);
}

static size_t put_start(uint8_t *record, double seconds, int64_t step) {
    uint8_t session[8];
    size_t length = put_head(record + HEAD, seconds, step), session_length = put_key(session, 1, VARINT);
    session_length += put_varint(session + session_length, 1);
    length += put_bytes(record + HEAD + length, 7, session, session_length);
    return close_record(record, length);
}

car_status car_events_begin(car_events *events, double seconds, int64_t step, car_event_record *out) {
    CAR_REQUIRE(NULL, events);
    CAR_REQUIRE(events->context, out);
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(events->context, &events->records, &events->records_capacity, 2 * SMALL, 1));
    size_t length = put_version(events->records, seconds);
    length += put_start(events->records + length, seconds, step);
    *out = (car_event_record){events->records, length};
done:
    return status;
}

car_status car_events_write(car_events *events, double seconds, int64_t step, car_event_record *out) {
    CAR_REQUIRE(NULL, events);
    CAR_REQUIRE(events->context, out);
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(events->context, &events->records, &events->records_capacity,
                             events->summary_length + 2 * SMALL, 1));
    size_t length = put_head(events->records + HEAD, seconds, step);
    length += put_bytes(events->records + HEAD + length, 5, events->summary, (size_t)events->summary_length);
    *out = (car_event_record){events->records, close_record(events->records, length)};
    events->summary_length = 0;
done:
    return status;
}
