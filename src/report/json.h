/* JSON that is written as it is made, without a tree of it in memory. Files appear whole or not at all. */
#ifndef CAR_REPORT_JSON_H
#define CAR_REPORT_JSON_H

#include "base/output.h"

enum { CAR_JSON_BUFFER = 1 << 16 };

/* Failure is sticky: writers need not look at it before the end. */
typedef struct car_json {
    car_output output;
    car_status status;
    size_t length;
    char buffer[CAR_JSON_BUFFER];
} car_json;

/* Large: not for the stack. */
car_status car_json_open(car_context *context, const char *path, car_json **out);
/* A piece of at most a few hundred characters. */
void car_json_add(car_json *json, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A string in quotes, with what JSON does not allow in one escaped. */
void car_json_add_text(car_json *json, const char *text);
/* Writes the rest and gives the file its name, unless something failed; releases everything. */
car_status car_json_close(car_json *json);

#endif
