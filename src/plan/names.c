/* Rules, placements and mappings by name. */
#include <string.h>

#include "base/text.h"
#include "carousel/plan.h"

#define NAME(code, text) text,
static const char *const rules[] = {CAR_RULE_LIST(NAME)};
static const char *const placements[] = {CAR_PLACEMENT_LIST(NAME)};
static const char *const mappings[] = {"interleaved", "contiguous"};
#undef NAME

enum { MAPPINGS = sizeof mappings / sizeof mappings[0] };

const char *car_rule_text(car_rule rule) {
    return (unsigned)rule < CAR_RULES ? rules[rule] : "unknown rule";
}

const char *car_placement_text(car_placement placement) {
    return (unsigned)placement < CAR_PLACEMENTS ? placements[placement] : "unknown placement";
}

const char *car_mapping_text(car_mapping mapping) {
    return (unsigned)mapping < MAPPINGS ? mappings[mapping] : "unknown mapping";
}

/* The index of a name, or a failure that lists the known ones. */
static car_status find(car_context *context, const char *what, const char *const *names, int count, const char *name,
                       int *out) {
    for (int n = 0; n < count; n++) {
        if (strcmp(names[n], name) == 0) {
            *out = n;
            return CAR_OK;
        }
    }
    car_text known = {.context = context};
    for (int n = 0; n < count; n++) {
        car_text_add(&known, "%s%s", n ? ", " : "", names[n]);
    }
    char *list = NULL;
    car_status status = car_text_finish(&known, &list);
    if (status == CAR_OK) {
        status =
            car_context_fail(context, CAR_ERROR_UNKNOWN_NAME, "there is no %s '%s'; known are: %s", what, name, list);
    }
    car_context_release_text(context, list);
    return status;
}

car_status car_rule_find(car_context *context, const char *name, car_rule *out) {
    int found = 0;
    car_status status = find(context, "rule", rules, CAR_RULES, name, &found);
    if (status == CAR_OK) {
        *out = (car_rule)found;
    }
    return status;
}

car_status car_placement_find(car_context *context, const char *name, car_placement *out) {
    int found = 0;
    car_status status = find(context, "placement", placements, CAR_PLACEMENTS, name, &found);
    if (status == CAR_OK) {
        *out = (car_placement)found;
    }
    return status;
}

car_status car_mapping_find(car_context *context, const char *name, car_mapping *out) {
    int found = 0;
    car_status status = find(context, "mapping", mappings, MAPPINGS, name, &found);
    if (status == CAR_OK) {
        *out = (car_mapping)found;
    }
    return status;
}
