/* Looking names up, with an error that lists the known ones. */
#ifndef CAR_PLAN_NAMES_H
#define CAR_PLAN_NAMES_H

#include "carousel/graph.h"

/* The index of a name among `count` of them, CAR_NONE if it is none. */
int car_names_index(const char *(*name_at)(int index), int count, const char *name);
/* The index of a name among `count` of them; CAR_ERROR_UNKNOWN_NAME if it is none. `what` is "rule", "placement", ...
 */
car_status car_names_find(car_context *context, const char *what, const char *(*name_at)(int index), int count,
                          const char *name, int *out);

#endif
