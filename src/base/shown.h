/* Names that come from outside (files, classes), as they may be shown on a terminal and stored in JSON. */
#ifndef CAR_BASE_SHOWN_H
#define CAR_BASE_SHOWN_H

#include <stdbool.h>

#include "carousel/utf8.h"

/* Whether a text is UTF-8 without control characters. */
bool car_shown_is_plain(const char *text);

/* A name for one message. */
typedef struct car_shown {
    char text[1024];
} car_shown;
car_shown car_shown_of(const char *name);

#endif
