/* Converts half-precision tensors to floats. */
#include <string.h>

#include "base/base.h"
#include "checkpoint/safetensors_internal.h"

/* IEEE 754 binary16: 1 sign bit, 5 exponent bits, 10 fraction bits. */
static uint32_t widen_f16(uint16_t half) {
    enum { FRACTION = 10, WIDER = 23 - FRACTION, TOP = 31, SHIFT_OF_BIAS = 127 - 15 };
    uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> FRACTION & TOP, fraction = half & 0x3ffu;
    if (exponent == TOP) { /* infinities and NaNs */
        return sign | 0x7f800000u | fraction << WIDER;
    }
    if (exponent > 0) {
        return sign | (exponent + SHIFT_OF_BIAS) << 23 | fraction << WIDER;
    }
    if (fraction == 0) {
        return sign;
    }
    /* Subnormal in half precision, but normal as a float: the highest bit becomes the implied one. */
    int places = 0;
    while (!(fraction << places & 0x400u)) {
        places++;
    }
    return sign | (uint32_t)(SHIFT_OF_BIAS + 1 - places) << 23 | (fraction << places & 0x3ffu) << WIDER;
}

static uint32_t widen_bf16(uint16_t half) {
    return (uint32_t)half << 16;
}

/* Reads the elements into the second half of the output and widens them from the front: writing a float never
 * overwrites an element that is still needed. */
static car_status copy_halves(const car_safetensors *file, const car_safetensors_tensor *tensor,
                              uint32_t (*widen)(uint16_t), float *to) {
    const char *halves = (const char *)to + tensor->bytes;
    car_status status = car_safetensors_copy(file, tensor, (char *)to + tensor->bytes);
    for (int64_t i = 0; status == CAR_OK && i < tensor->elements; i++) {
        uint16_t half;
        memcpy(&half, halves + i * (int64_t)sizeof half, sizeof half);
        uint32_t bits = widen(half);
        memcpy(to + i, &bits, sizeof bits);
    }
    return status;
}

car_status car_safetensors_copy_floats(const car_safetensors *file, const car_safetensors_tensor *tensor, float *to) {
    CAR_REQUIRE(NULL, file);
    CAR_REQUIRE(car_safetensors_context(file), tensor);
    CAR_REQUIRE(car_safetensors_context(file), to);
    switch (tensor->dtype) {
    case CAR_SAFETENSORS_F32:
        return car_safetensors_copy(file, tensor, to);
    case CAR_SAFETENSORS_F16:
        return copy_halves(file, tensor, widen_f16, to);
    case CAR_SAFETENSORS_BF16:
        return copy_halves(file, tensor, widen_bf16, to);
    default:
        return car_context_fail(car_safetensors_context(file), CAR_ERROR_UNSUPPORTED,
                                "%s: tensor '%.100s' has elements of type %s; only F32, F16 and BF16 can be read",
                                car_safetensors_path(file), tensor->name, car_safetensors_dtype_text(tensor->dtype));
    }
}
