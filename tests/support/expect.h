/* Assertions about a call's result, its context's message, and close numbers. */
#ifndef CAR_TESTS_EXPECT_H
#define CAR_TESTS_EXPECT_H

#include "carousel/context.h"

/* Ends the test with the context's message unless status is CAR_OK. */
void car_expect_ok(const car_context *context, car_status status);
/* Ends the test unless the status is the expected one and the context's message contains `part`. Clears the message. */
void car_expect_failure(car_context *context, car_status status, car_status expected, const char *part);

/* Ends the test unless the two are within the tolerance. */
void car_expect_near(double actual, double expected, double tolerance);

#endif
