/* Writes JSON piece by piece, without a tree in memory. Files appear complete or not at all. */
#ifndef CAR_REPORT_JSON_H
#define CAR_REPORT_JSON_H

#include "base/output.h"

enum { CAR_JSON_BUFFER = 1 << 16 };

/* Failure is sticky: callers need not check it before the end. */
typedef struct car_json {
    car_output output;
    car_status status;
    size_t length;
    char buffer[CAR_JSON_BUFFER];
} car_json;

/* The object is large, so it is allocated. */
car_status car_json_open(car_context *context, const char *path, car_json **out);
/* Adds a formatted piece of at most a few hundred characters. */
void car_json_add(car_json *json, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds a string in quotes, with escapes. */
void car_json_add_text(car_json *json, const char *text);
/* Writes the rest and gives the file its name, unless something failed. Releases everything in any case. */
car_status car_json_close(car_json *json);

#endif
