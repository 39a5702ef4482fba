/* A build without MPI, which cannot join other processes. */
#include "base/base.h"
#include "transport/transport.h"

car_status car_transport_open(car_context *context, car_transport **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, out);
    *out = NULL;
    return car_context_fail(context, CAR_ERROR_UNSUPPORTED,
                            "this build has no MPI: install it (Debian: libopenmpi-dev) and build with -DCAR_MPI=ON");
}
