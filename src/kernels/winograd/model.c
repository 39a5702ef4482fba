/* When Winograd's algorithm pays. */
#include "kernels/winograd/winograd.h"

bool car_winograd_pays(const car_winograd_shape *shape, const car_winograd *loops, bool by_data) {
    (void)by_data;(void)shape;(void)loops;
    return true;
}
