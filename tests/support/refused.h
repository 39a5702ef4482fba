/* Calls with arguments that no caller should give, for the tests unit.arguments*. */
#ifndef CAR_TESTS_REFUSED_H
#define CAR_TESTS_REFUSED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/context.h"

static inline void car_expect_refused(car_context *context, const char *call, car_status status, const char *part) {
    if (status != CAR_ERROR_ARGUMENT) {
        fail_msg("%s: %s", call, car_status_text(status));
    }
    if (context && !strstr(car_context_error(context), part)) {
        fail_msg("%s says '%s', without '%s'", call, car_context_error(context), part);
    }
    car_context_clear_error(context);
}

/* `part` of the message; where there is no context, none is left. */
#define REFUSED(context, call, part) car_expect_refused(context, #call, call, part)

static inline car_context *car_refused_open_context(void) {
    car_context *context = NULL;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    return context;
}

#endif
