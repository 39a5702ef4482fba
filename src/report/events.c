/* TensorBoard's event files; see events.h.
 *
 *   record   length as 8 bytes, checksum of those 8, the message, checksum of the message; little endian
 *   Event    1: wall time (double), 2: step (int64), 3: version (string), 5: summary, 7: session log
 *   Summary  1: value, repeated: 1: tag (string), 2: the number (float)
 *   Session  1: status, 1 being "start" */
#include "report/events.h"

#include <assert.h>
#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* how a field is stored */

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

void car_event_add(car_event *event, const char *tag, double value) {
    uint8_t message[256];
    float number = (float)value;
    uint32_t bits = 0;
    memcpy(&bits, &number, sizeof bits);
    assert(strlen(tag) < 128 && event->length + strlen(tag) + 16 <= sizeof event->summary);
    size_t length = put_bytes(message, 1, tag, strlen(tag));
    length += put_key(message + length, 2, FIXED32);
    length += put_fixed(message + length, bits, 4);
    event->length += put_bytes(event->summary + event->length, 1, message, length);
}

/* ---- records --------------------------------------------------------------------------------- */

/* CRC-32C, then rotated and shifted, as the format wants it. */
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

/* Around a message that lies 12 bytes into the record. */
static size_t close_record(uint8_t *record, size_t length) {
    put_fixed(record, length, 8);
    put_fixed(record + 8, checksum(record, 8), 4);
    put_fixed(record + 12 + length, checksum(record + 12, length), 4);
    return 12 + length + 4;
}

size_t car_event_write(const car_event *event, uint8_t record[CAR_EVENT_RECORD]) {
    size_t length = put_head(record + 12, event->seconds, event->step);
    length += put_bytes(record + 12 + length, 5, event->summary, event->length);
    return close_record(record, length);
}

size_t car_event_write_version(double seconds, uint8_t record[CAR_EVENT_RECORD]) {
    static const char version[] = "brain.Event:2";
    size_t length = put_head(record + 12, seconds, 0);
    length += put_bytes(record + 12 + length, 3, version, sizeof version - 1);
    return close_record(record, length);
}

size_t car_event_write_start(double seconds, int64_t step, uint8_t record[CAR_EVENT_RECORD]) {
    uint8_t session[8];
    size_t length = put_head(record + 12, seconds, step), session_length = put_key(session, 1, VARINT);
    session_length += put_varint(session + session_length, 1);
    length += put_bytes(record + 12 + length, 7, session, session_length);
    return close_record(record, length);
}
