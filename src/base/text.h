/* Builds text of unknown length piece by piece. */
#ifndef CAR_TEXT_H
#define CAR_TEXT_H

#include "base/base.h"

/* Start with {.context = context}. Failure is sticky: callers need not check it before the end. */
typedef struct car_text {
    car_context *context;
    char *data;
    int length, capacity;
    car_status status;
} car_text;

void car_text_add(car_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds the same piece `count` times. */
void car_text_repeat(car_text *text, const char *piece, int count);
/* Hands over the text; release it with car_context_release_text. `text` is empty afterwards in any case. */
car_status car_text_finish(car_text *text, char **out);

#endif
