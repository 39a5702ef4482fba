/* Chooses the instruction set of the vectorised loops. */
#include "kernels/vector/vector.h"

extern const car_vector car_vector_generic;

#if defined(__x86_64__)
extern const car_vector car_vector_avx2;
extern const car_vector car_vector_avx512;

const car_vector *car_vector_select(void) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        return &car_vector_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &car_vector_avx2;
    }
    return &car_vector_generic;
}
#else
const car_vector *car_vector_select(void) {
    return &car_vector_generic;
}
#endif
