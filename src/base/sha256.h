/* SHA-256 of data that arrives in pieces. */
#ifndef CAR_SHA256_H
#define CAR_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAR_SHA256_TEXT = 65 }; /* 64 hexadecimal digits and the terminator */

/* Mixes whole blocks of 64 bytes into the state. */
typedef void (*car_sha256_absorb)(uint32_t state[8], const unsigned char *data, size_t blocks);

/* The fastest one that this machine can run, or the portable one. */
car_sha256_absorb car_sha256_find(bool portable);

typedef struct car_sha256 {
    car_sha256_absorb absorb; /* chosen by car_sha256_begin */
    uint32_t state[8];
    uint64_t length;
    unsigned char pending[64];
    size_t held;
} car_sha256;

car_sha256 car_sha256_begin(void);
void car_sha256_add(car_sha256 *sha, const void *data, size_t bytes);
void car_sha256_end(car_sha256 *sha, char text[CAR_SHA256_TEXT]);

#endif
