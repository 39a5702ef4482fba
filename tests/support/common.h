/* One context for a whole test program, for tests that need nothing else to start with. */
#ifndef CAR_TESTS_COMMON_H
#define CAR_TESTS_COMMON_H

#include "carousel/context.h"

extern car_context *car_common_context;

/* Set-up and tear-down of a cmocka test or a group of them. */
int car_common_set_up(void **state);
int car_common_tear_down(void **state);

/* Ends the test with the context's message unless status is CAR_OK. */
void car_common_expect_ok(car_status status);

#endif
