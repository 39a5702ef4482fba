/* SHA-256 (FIPS 180-4), for naming weights: the same digest is the same bits. */
#include "base/sha256.h"

#include <string.h>

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int by) {
    return (x >> by) | (x << (32 - by));
}

static void absorb(car_sha256 *sha, const unsigned char *block) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, sha->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t big1 = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
        uint32_t first = s[7] + big1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[i] + w[i];
        uint32_t big0 = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
        uint32_t second = big0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) {
        sha->state[i] += s[i];
    }
}

car_sha256 car_sha256_begin(void) {
    return (car_sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void car_sha256_add(car_sha256 *sha, const void *data, size_t bytes) {
    const unsigned char *from = data;
    sha->length += bytes;
    while (bytes > 0) {
        size_t room = sizeof sha->pending - sha->held, part = bytes < room ? bytes : room;
        memcpy(sha->pending + sha->held, from, part);
        sha->held += part;
        from += part;
        bytes -= part;
        if (sha->held == sizeof sha->pending) {
            absorb(sha, sha->pending);
            sha->held = 0;
        }
    }
}

void car_sha256_end(car_sha256 *sha, char text[CAR_SHA256_TEXT]) {
    static const unsigned char padding[64] = {0x80};
    static const char digits[] = "0123456789abcdef";
    unsigned char length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)(sha->length * 8 >> (56 - 8 * i));
    }
    car_sha256_add(sha, padding, 1 + (119 - sha->held) % 64);
    car_sha256_add(sha, length, sizeof length);
    for (int i = 0; i < 32; i++) {
        unsigned byte = sha->state[i / 4] >> (24 - 8 * (i % 4)) & 255;
        text[2 * i] = digits[byte >> 4];
        text[2 * i + 1] = digits[byte & 15];
    }
    text[CAR_SHA256_TEXT - 1] = '\0';
}
