/* Character classes for splitting words. */
#ifndef CAR_UNICODE_H
#define CAR_UNICODE_H

#include <stddef.h>
#include <stdint.h>

#include "carousel/utf8.h"

typedef struct car_unicode_range {
    uint32_t first, last;
} car_unicode_range;

/* Unicode's general categories L and N, and its property White_Space. */
typedef enum car_unicode_class {
    CAR_UNICODE_OTHER,
    CAR_UNICODE_LETTER,
    CAR_UNICODE_NUMBER,
    CAR_UNICODE_SPACE
} car_unicode_class;

/* The class and the length of the first character of a text of at least one byte. A byte that is not well-formed
 * UTF-8 counts as a character of class OTHER. */
car_unicode_class car_unicode_next(const unsigned char *text, size_t bytes, size_t *length);

/* The code point of a well-formed character of this length. */
uint32_t car_unicode_get(const unsigned char *text, int length);
/* Encodes a code point and returns the length. */
int car_unicode_put(uint32_t code, unsigned char out[4]);

#endif
