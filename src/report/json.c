/* Writes JSON as a stream; see json.h. */
#include "report/json.h"

#include <stdarg.h>
#include <stdio.h>

enum { LONGEST_PIECE = 1024 };

car_status car_json_open(car_context *context, const char *path, car_json **out) {
    car_json *json = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *json, &json));
    CAR_TRY(car_output_open(context, path, &json->output));
    *out = json;
    json = NULL;
done:
    car_context_release(context, json, 1, sizeof *json);
    return status;
}

static void flush(car_json *json) {
    if (json->status == CAR_OK) {
        json->status = car_output_write(&json->output, json->buffer, json->length);
    }
    json->length = 0;
}

void car_json_add(car_json *json, const char *format, ...) {
    va_list arguments;
    if (json->length + LONGEST_PIECE > CAR_JSON_BUFFER) {
        flush(json);
    }
    va_start(arguments, format);
    int length = vsnprintf(json->buffer + json->length, LONGEST_PIECE, format, arguments);
    va_end(arguments);
    if (length < 0 || length >= LONGEST_PIECE) {
        json->status = json->status != CAR_OK
                           ? json->status
                           : car_context_fail(json->output.context, CAR_ERROR_INTERNAL,
                                              "a piece of JSON is longer than %d bytes", LONGEST_PIECE);
        return;
    }
    json->length += (size_t)length;
}

void car_json_add_text(car_json *json, const char *text) {
    car_json_add(json, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            car_json_add(json, "\\%c", c);
        } else if (c < 0x20) {
            car_json_add(json, "\\u%04x", c);
        } else {
            car_json_add(json, "%c", c);
        }
    }
    car_json_add(json, "\"");
}

car_status car_json_close(car_json *json) {
    if (!json) {
        return CAR_OK;
    }
    car_context *context = json->output.context;
    flush(json);
    car_status status = json->status;
    if (status == CAR_OK) {
        status = car_output_finish(&json->output, NULL);
    }
    car_output_close(&json->output);
    car_context_release(context, json, 1, sizeof *json);
    return status;
}
