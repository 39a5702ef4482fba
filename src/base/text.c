/* Builds text piece by piece: see text.h. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool make_room(car_text *text, int length) {
    if (text->status == CAR_OK && length > INT32_MAX / 4 - text->length) {
        text->status =
            car_context_fail(text->context, CAR_ERROR_MEMORY, "a text is longer than %d bytes", INT32_MAX / 4);
    }
    if (text->status == CAR_OK) {
        text->status = car_context_grow(text->context, &text->data, &text->capacity, text->length + length + 1, 1);
    }
    return text->status == CAR_OK;
}

void car_text_add(car_text *text, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length > 0 && make_room(text, length)) {
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += length;
    }
    va_end(again);
    va_end(arguments);
}

void car_text_repeat(car_text *text, const char *piece, int count) {
    for (int c = 0; c < count; c++) {
        car_text_add(text, "%s", piece);
    }
}

car_status car_text_finish(car_text *text, char **out) {
    *out = NULL;
    if (text->status == CAR_OK) {
        text->status = car_context_copy_text(text->context, text->data ? text->data : "", out);
    }
    car_context_release(text->context, text->data, (size_t)text->capacity, 1);
    car_status status = text->status;
    *text = (car_text){.context = text->context};
    return status;
}

car_size_text car_size_shown(double bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    car_size_text out;
    int unit = 0;
    while (unit < 5 && bytes >= 999.5) {
        bytes /= 1000;
        unit++;
    }
    snprintf(out.text, sizeof out.text,
             unit == 0 || bytes >= 100 ? "%.0f %s"
             : bytes >= 10             ? "%.1f %s"
                                       : "%.2f %s",
             bytes, units[unit]);
    return out;
}
