/* One context for a whole test program: see common.h. */
#include "support/common.h"

#include <stddef.h>

#include "support/expect.h"

car_context *car_common_context;

int car_common_set_up(void **state) {
    (void)state;
    return car_context_create(NULL, &car_common_context) == CAR_OK ? 0 : -1;
}

int car_common_tear_down(void **state) {
    (void)state;
    car_context_destroy(car_common_context);
    car_common_context = NULL;
    return 0;
}

void car_common_expect_ok(car_status status) {
    car_expect_ok(car_common_context, status);
}
