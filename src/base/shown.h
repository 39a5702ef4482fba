/* Makes names from outside (files, classes) safe to show on a terminal and to store in JSON. */
#ifndef CAR_BASE_SHOWN_H
#define CAR_BASE_SHOWN_H

#include <stdbool.h>

#include "carousel/utf8.h"

/* True if a text is UTF-8 without control characters. */
bool car_shown_is_plain(const char *text);

/* A name made safe for one message. */
typedef struct car_shown {
    char text[1024];
} car_shown;
car_shown car_shown_of(const char *name);

#endif
