/* Looks up names (see names.h), and names the mappings and sum orders. */
#include "plan/names.h"

#include <string.h>

#include "base/text.h"
#include "carousel/plan.h"

int car_names_index(const char *(*name_at)(int index), int count, const char *name) {
    for (int n = 0; n < count; n++) {
        if (strcmp(name_at(n), name) == 0) {
            return n;
        }
    }
    return CAR_NONE;
}

car_status car_names_find(car_context *context, const char *what, const char *(*name_at)(int index), int count,
                          const char *name, int *out) {
    *out = car_names_index(name_at, count, name);
    if (*out != CAR_NONE) {
        return CAR_OK;
    }
    car_text known = {.context = context};
    for (int n = 0; n < count; n++) {
        car_text_add(&known, "%s%s", n ? ", " : "", name_at(n));
    }
    char *list = NULL;
    car_status status = car_text_finish(&known, &list);
    if (status == CAR_OK) {
        status =
            car_context_fail(context, CAR_ERROR_UNKNOWN_NAME, "there is no %s '%s'; use one of %s", what, name, list);
    }
    car_context_release_text(context, list);
    return status;
}

/* ---- mappings -------------------------------------------------------------------------------- */

static const char *const mappings[] = {"interleaved", "contiguous"};

enum { MAPPINGS = sizeof mappings / sizeof mappings[0] };

const char *car_mapping_text(car_mapping mapping) {
    return (unsigned)mapping < MAPPINGS ? mappings[mapping] : "unknown mapping";
}

static const char *mapping_at(int n) {
    return mappings[n];
}

car_status car_mapping_find(car_context *context, const char *name, car_mapping *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, out);
    int found = 0;
    car_status status = car_names_find(context, "mapping", mapping_at, MAPPINGS, name, &found);
    if (status == CAR_OK) {
        *out = (car_mapping)found;
    }
    return status;
}

/* ---- orders of sums -------------------------------------------------------------------------- */

static const char *const orders[] = {"auto", "micro-batch", "worker"};

static const char *order_at(int n) {
    return orders[n];
}

const char *car_sum_order_text(car_sum_order order) {
    return (unsigned)order <= CAR_SUM_ORDER_WORKER ? orders[order] : "unknown sum order";
}

car_status car_sum_order_find(car_context *context, const char *name, car_sum_order *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, out);
    int found = 0;
    car_status status = car_names_find(context, "sum order", order_at, CAR_SUM_ORDER_WORKER + 1, name, &found);
    if (status == CAR_OK) {
        *out = (car_sum_order)found;
    }
    return status;
}
