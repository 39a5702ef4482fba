/* Makes names from outside safe to show: see shown.h. */
#include "base/shown.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/unicode.h"

/* The bytes of the next character if it may be shown as it is, else 0. */
static int plain_length(const char *text, size_t bytes) {
    int length = car_utf8_length((const unsigned char *)text, bytes);
    uint32_t code = length > 0 ? car_unicode_get((const unsigned char *)text, length) : 0;
    bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    return length > 0 && !control ? length : 0;
}

bool car_shown_is_plain(const char *text) {
    size_t left = strlen(text);
    int length = 1;
    for (; left > 0 && length > 0; text += length, left -= (size_t)length) {
        length = plain_length(text, left);
    }
    return length > 0;
}

void car_utf8_show(const char *text, bool lines, char *out, size_t capacity) {
    size_t used = 0, left = strlen(text);
    while (left > 0) {
        char piece[8];
        int length = lines && (*text == '\n' || *text == '\t') ? 1 : plain_length(text, left);
        size_t step = length > 0 ? (size_t)length : 1;
        memcpy(piece, text, step);
        size_t size =
            length > 0 ? step : (size_t)snprintf(piece, sizeof piece, "\\x%02X", (unsigned)(unsigned char)*text);
        if (used + size >= capacity) {
            break;
        }
        memcpy(out + used, piece, size);
        used += size;
        text += step;
        left -= step;
    }
    out[used] = '\0';
}

car_shown car_shown_of(const char *name) {
    car_shown shown;
    car_utf8_show(name, false, shown.text, sizeof shown.text);
    return shown;
}
