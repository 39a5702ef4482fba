/* Assertions: see expect.h. */
#include "support/expect.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

void car_expect_ok(const car_context *context, car_status status) {
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), context ? car_context_error(context) : "no context");
    }
}

void car_expect_failure(car_context *context, car_status status, car_status expected, const char *part) {
    const char *message = car_context_error(context);
    if (status != expected || strstr(message, part) == NULL) {
        fail_msg("got \"%s\" with \"%s\" where \"%s\" with \"...%s...\" was expected", car_status_text(status), message,
                 car_status_text(expected), part);
    }
    car_context_clear_error(context);
}

void car_expect_near(double actual, double expected, double tolerance) {
    if (!(fabs(actual - expected) <= tolerance)) {
        fail_msg("%.6g is not within %g of %.6g", actual, tolerance, expected);
    }
}
