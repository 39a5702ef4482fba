/* The inside of carousel/available.h, for tests. */
#ifndef CAR_BASE_AVAILABLE_H
#define CAR_BASE_AVAILABLE_H

#include "carousel/available.h"

/* The same for the files below another root than "". */
car_available car_available_find_below(const char *root);

#endif
