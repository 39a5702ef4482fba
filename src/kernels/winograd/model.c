/* When Winograd's algorithm pays off: estimates both ways of computing a convolution, in multiply-adds of one
 * vector.
 *
 * In both, products run at nearly the rate of bare multiply-adds. The other costs were measured once in the same
 * unit, on an AMD EPYC (Zen 4), by comparing many shapes (docs/kernels.md). Nothing is timed at run time, so a shape
 * gets the same answer on all machines with the same vectors. */
#include "kernels/winograd/winograd.h"

typedef struct prices {
    int64_t tile;   /* transforms of one tile and block of channels, forward or back */
    int64_t filter; /* transforms of one vector of filters, forward or back */
} prices;

static const prices prices_8 = {600, 500}, prices_16 = {450, 330};

/* Direct convolutions must be this many times slower. In floats, because Winograd is less exact; in bf16, because
 * direct ones are twice as fast, while Winograd's products are always floats. */
static const double least_gain = 1.1, least_gain_bf16 = 2.0;

static int64_t round_up(int64_t value, int64_t step) {
    return (value + step - 1) / step * step;
}

/* Taps inside the image along a side; the direct kernels skip the others. */
static int64_t taps_of_side(int64_t length) {
    return 3 * length - 2;
}

bool car_winograd_pays(const car_winograd_shape *shape, const car_winograd *loops, bool by_data, bool multiplies_bf16) {
    enum { FLAT = 2 }; /* up to this many rows, with AVX2, oneDNN has only a reference for backward by weights */
    if (loops->block == 8 && shape->height <= FLAT) {
        return true;
    }
    const prices *price = loops->block == 8 ? &prices_8 : &prices_16;
    int64_t filters = shape->in_blocks * loops->block * shape->out_blocks; /* number of filter vectors */
    int64_t passes = by_data ? 3 : 2, convolutions = passes - 1;
    int64_t direct = shape->images * taps_of_side(shape->height) * taps_of_side(shape->width) * filters * passes;

    int64_t tiles = shape->images * (round_up(shape->height, CAR_WINOGRAD_TILE) / CAR_WINOGRAD_TILE) *
                    (round_up(shape->width, CAR_WINOGRAD_TILE) / CAR_WINOGRAD_TILE);
    int64_t multiplied = round_up(tiles, loops->tiles) * convolutions + tiles;
    int64_t winograd = multiplied * CAR_WINOGRAD_POSITIONS * filters +
                       tiles * (shape->in_blocks + shape->out_blocks) * price->tile * passes +
                       filters * price->filter * passes;
    return (shape->bf16 && multiplies_bf16 ? least_gain_bf16 : least_gain) * (double)winograd < (double)direct;
}
