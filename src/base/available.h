/* Private part of carousel/available.h, for tests. */
#ifndef CAR_BASE_AVAILABLE_H
#define CAR_BASE_AVAILABLE_H

#include "carousel/available.h"

/* The same as car_available_find, with the system's files under another root. */
car_available car_available_find_below(const char *root);

#endif
