/* Text from outside: UTF-8 characters, and making text safe to show. */
#ifndef CAROUSEL_UTF8_H
#define CAROUSEL_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Length of the character at the start of a text of at least one byte: its bytes if well-formed, 0 if malformed, -1
 * if it may continue beyond the end of the text, as a language model's token may. */
int car_utf8_length(const unsigned char *text, size_t bytes);

/* Copies a text so that it can be shown on a terminal and stored in JSON. Bytes of control characters, and bytes
 * that are not UTF-8, become a backslash, x and two hexadecimal digits. A text too long for `capacity` bytes (at
 * least one) is cut after a whole character. `lines`: keep line ends and tabs. */
void car_utf8_show(const char *text, bool lines, char *out, size_t capacity);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
