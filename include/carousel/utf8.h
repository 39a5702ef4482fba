/* Text from outside: characters of UTF-8, and text that is safe to show. */
#ifndef CAROUSEL_UTF8_H
#define CAROUSEL_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Bytes of the well-formed character at the beginning of a text of at least one byte. 0: it is malformed. -1: it may be
 * the beginning of one that goes on behind the text, as a token of a language model may be. */
int car_utf8_length(const unsigned char *text, size_t bytes);

/* Copies a text so that it may be shown on a terminal and stored in JSON: bytes of control characters, and those that are no
 * UTF-8, become a backslash and x with two hexadecimal digits. One that is too long for `capacity` bytes (at least one) ends early, at a whole character. `lines`: line
 * ends and tabs stay. */
void car_utf8_show(const char *text, bool lines, char *out, size_t capacity);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
