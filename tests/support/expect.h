/* Assertions: what a call returned and what its context says of it, and numbers that are close. */
#ifndef CAR_TESTS_EXPECT_H
#define CAR_TESTS_EXPECT_H

#include "carousel/context.h"

/* Ends the test with the context's message unless status is CAR_OK. */
void car_expect_ok(const car_context *context, car_status status);
/* Ends the test unless the status is this one and the context's message has `part` in it; clears the message. */
void car_expect_failure(car_context *context, car_status status, car_status expected, const char *part);

/* Ends the test unless the two are this close. */
void car_expect_near(double actual, double expected, double tolerance);

#endif
