/* SHA-256 of data that comes in pieces. */
#ifndef CAR_SHA256_H
#define CAR_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { CAR_SHA256_TEXT = 65 }; /* 64 hexadecimal digits and the end */

typedef struct car_sha256 {
    uint32_t state[8];
    uint64_t length;
    unsigned char pending[64];
    size_t held;
} car_sha256;

car_sha256 car_sha256_begin(void);
void car_sha256_add(car_sha256 *sha, const void *data, size_t bytes);
void car_sha256_end(car_sha256 *sha, char text[CAR_SHA256_TEXT]);

#endif
