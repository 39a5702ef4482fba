/* bf16: the upper half of a float, with 8 bits of exponent and 7 of fraction. */
#ifndef CAR_BASE_BF16_H
#define CAR_BASE_BF16_H

#include <stdint.h>
#include <string.h>

typedef uint16_t car_bf16;

static inline float car_bf16_widen(car_bf16 half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to nearest, ties to even, as the processors' instructions do. A NaN stays a NaN. Branch-free, so that a
 * loop over it vectorises. */
static inline car_bf16 car_bf16_round(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 0x40u;
    return (car_bf16)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#endif
