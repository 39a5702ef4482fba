/* Looks names up in a list; the error message lists the known ones. */
#ifndef CAR_PLAN_NAMES_H
#define CAR_PLAN_NAMES_H

#include "carousel/graph.h"

/* The index of a name among `count` of them, CAR_NONE if it is not there. */
int car_names_index(const char *(*name_at)(int index), int count, const char *name);
/* The same, but CAR_ERROR_UNKNOWN_NAME if it is not there. `what` is "rule", "placement", ... */
car_status car_names_find(car_context *context, const char *what, const char *(*name_at)(int index), int count,
                          const char *name, int *out);

#endif
