/* The version of the library. */
#include "carousel/version.h"

const char *car_version(void) {
    return CAR_VERSION;
}
