/* UTF-8 and character classes: see unicode.h. */
#include "tokenizer/unicode.h"

#include <stdbool.h>

#include "tokenizer/unicode_tables.h"

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

static bool goes_on(unsigned char byte) {
    return (byte & 0xC0) == 0x80;
}

/* Length of a character by its first byte, or 0 if that is invalid. */
static int length_of(unsigned char first) {
    return first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

/* Some first bytes restrict the second: no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool fits(unsigned char first, unsigned char second) {
    return goes_on(second) && !(first == 0xE0 && second < 0xA0) && !(first == 0xED && second >= 0xA0) &&
           !(first == 0xF0 && second < 0x90) && !(first == 0xF4 && second >= 0x90);
}

int car_utf8_length(const unsigned char *text, size_t bytes) {
    int length = length_of(text[0]);
    for (int i = 1; i < length; i++) {
        if ((size_t)i == bytes) {
            return -1;
        }
        if (i == 1 ? !fits(text[0], text[1]) : !goes_on(text[i])) {
            return 0;
        }
    }
    return length;
}

uint32_t car_unicode_get(const unsigned char *text, int length) {
    static const unsigned char masks[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t code = text[0] & masks[length];
    for (int i = 1; i < length; i++) {
        code = code << 6 | (text[i] & 0x3FU);
    }
    return code;
}

int car_unicode_put(uint32_t code, unsigned char out[4]) {
    static const unsigned char heads[] = {0, 0, 0xC0, 0xE0, 0xF0};
    int length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--) {
        out[i] = (unsigned char)(0x80 | (code & 0x3F));
        code >>= 6;
    }
    out[0] = (unsigned char)(heads[length] | code);
    return length;
}

/* ---- classes --------------------------------------------------------------------------------- */

static bool is_in(const car_unicode_range *ranges, size_t count, uint32_t code) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > ranges[middle].last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && code >= ranges[low].first;
}

static car_unicode_class class_of(uint32_t code) {
    if (is_in(letters, sizeof letters / sizeof *letters, code)) {
        return CAR_UNICODE_LETTER;
    }
    if (is_in(numbers, sizeof numbers / sizeof *numbers, code)) {
        return CAR_UNICODE_NUMBER;
    }
    return is_in(spaces, sizeof spaces / sizeof *spaces, code) ? CAR_UNICODE_SPACE : CAR_UNICODE_OTHER;
}

car_unicode_class car_unicode_next(const unsigned char *text, size_t bytes, size_t *length) {
    unsigned char first = text[0], small = first | 0x20;
    *length = 1;
    if (first < 0x80) { /* fast path: most text is ASCII */
        return small >= 'a' && small <= 'z'                       ? CAR_UNICODE_LETTER
               : first >= '0' && first <= '9'                     ? CAR_UNICODE_NUMBER
               : first == ' ' || (first >= '\t' && first <= '\r') ? CAR_UNICODE_SPACE
                                                                  : CAR_UNICODE_OTHER;
    }
    int known = car_utf8_length(text, bytes);
    if (known <= 0) {
        return CAR_UNICODE_OTHER;
    }
    *length = (size_t)known;
    return class_of(car_unicode_get(text, known));
}
