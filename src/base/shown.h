/* Names that come from outside (files, classes), as they may be shown on a terminal and stored in JSON. */
#ifndef CAR_BASE_SHOWN_H
#define CAR_BASE_SHOWN_H

#include <stdbool.h>
#include <stddef.h>

/* Whether a text is UTF-8 without control characters. */
bool car_shown_is_plain(const char *text);
/* Copies a text; bytes of control characters, and those that are no UTF-8, become \xNN. A longer one ends early, at a whole
 * character. `lines`: line ends and tabs stay. */
void car_shown_copy(const char *text, bool lines, char *out, size_t capacity);

/* A name for one message. */
typedef struct car_shown {
    char text[1024];
} car_shown;
car_shown car_shown_of(const char *name);

#endif
