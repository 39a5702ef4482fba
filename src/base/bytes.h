/* Reads and writes the numbers in files: little-endian, at any address. */
#ifndef CAR_BYTES_H
#define CAR_BYTES_H

#include <stdint.h>

static inline uint32_t car_bytes_get_u32(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static inline uint64_t car_bytes_get_u64(const unsigned char *bytes) {
    return car_bytes_get_u32(bytes) | (uint64_t)car_bytes_get_u32(bytes + 4) << 32;
}

static inline void car_bytes_put_u32(unsigned char *bytes, uint32_t value) {
    for (int i = 0; i < 4; i++) {
        bytes[i] = (unsigned char)(value >> 8 * i);
    }
}

static inline void car_bytes_put_u64(unsigned char *bytes, uint64_t value) {
    car_bytes_put_u32(bytes, (uint32_t)value);
    car_bytes_put_u32(bytes + 4, (uint32_t)(value >> 32));
}

#endif
