/* SHA-256 (FIPS 180-4), for naming weights and checking files: equal digests mean equal bits. */
#include "base/sha256.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { BLOCK = 64 };

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

static uint32_t load_big_endian(const unsigned char *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The eight variables rotate their roles with every round. Passing them in rotated order saves moving them. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                  \
    do {                                                                                                  \
        h += (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] + w[i]; \
        d += h;                                                                                           \
        h += (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));              \
    } while (0)

static void absorb_portable(uint32_t state[8], const unsigned char *data, size_t blocks) {
    for (; blocks > 0; blocks--, data += BLOCK) {
        uint32_t w[64];
        for (int i = 0; i < 16; i++) {
            w[i] = load_big_endian(data + 4 * i);
        }
        for (int i = 16; i < 64; i++) {
            uint32_t early = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
            uint32_t late = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + early + w[i - 7] + late;
        }
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (int i = 0; i < 64; i += 8) {
            ROUND(a, b, c, d, e, f, g, h, i);
            ROUND(h, a, b, c, d, e, f, g, i + 1);
            ROUND(g, h, a, b, c, d, e, f, i + 2);
            ROUND(f, g, h, a, b, c, d, e, i + 3);
            ROUND(e, f, g, h, a, b, c, d, i + 4);
            ROUND(d, e, f, g, h, a, b, c, i + 5);
            ROUND(c, d, e, f, g, h, a, b, i + 6);
            ROUND(b, c, d, e, f, g, h, a, i + 7);
        }
        const uint32_t mixed[8] = {a, b, c, d, e, f, g, h};
        for (int i = 0; i < 8; i++) {
            state[i] += mixed[i];
        }
    }
}

/* ---- with x86's SHA instructions ----------------------------------------------------------------- */

#if defined(__x86_64__)
#define X86_SHA __attribute__((target("sha,sse4.1")))

/* The variables as the instructions expect them, four per register. */
typedef struct pairs {
    __m128i abef, cdgh;
} pairs;

/* Four rounds with the schedule's words w0, which then become those of sixteen rounds later. */
X86_SHA static inline void four_rounds(pairs *s, int round, __m128i *w0, __m128i w1, __m128i w2, __m128i w3) {
    __m128i sum = _mm_add_epi32(*w0, _mm_loadu_si128((const __m128i *)(constants + round)));
    s->cdgh = _mm_sha256rnds2_epu32(s->cdgh, s->abef, sum);
    s->abef = _mm_sha256rnds2_epu32(s->abef, s->cdgh, _mm_shuffle_epi32(sum, 0x0e));
    __m128i partial = _mm_add_epi32(_mm_sha256msg1_epu32(*w0, w1), _mm_alignr_epi8(w3, w2, 4));
    *w0 = _mm_sha256msg2_epu32(partial, w3);
}

X86_SHA static void absorb_x86(uint32_t state[8], const unsigned char *data, size_t blocks) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    /* In memory: a b c d, e f g h. In registers, from the highest: a b e f, c d g h. */
    __m128i dcba = _mm_loadu_si128((const __m128i *)state), hgfe = _mm_loadu_si128((const __m128i *)(state + 4));
    __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    pairs s = {_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xf0)};
    for (; blocks > 0; blocks--, data += BLOCK) {
        const __m128i *from = (const __m128i *)data;
        pairs before = s;
        __m128i w0 = _mm_shuffle_epi8(_mm_loadu_si128(from), swap);
        __m128i w1 = _mm_shuffle_epi8(_mm_loadu_si128(from + 1), swap);
        __m128i w2 = _mm_shuffle_epi8(_mm_loadu_si128(from + 2), swap);
        __m128i w3 = _mm_shuffle_epi8(_mm_loadu_si128(from + 3), swap);
        for (int round = 0; round < 64; round += 16) {
            four_rounds(&s, round, &w0, w1, w2, w3);
            four_rounds(&s, round + 4, &w1, w2, w3, w0);
            four_rounds(&s, round + 8, &w2, w3, w0, w1);
            four_rounds(&s, round + 12, &w3, w0, w1, w2);
        }
        s.abef = _mm_add_epi32(s.abef, before.abef);
        s.cdgh = _mm_add_epi32(s.cdgh, before.cdgh);
    }
    __m128i feba = _mm_shuffle_epi32(s.abef, 0x1b), dchg = _mm_shuffle_epi32(s.cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static bool x86_has_sha(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}
#endif

car_sha256_absorb car_sha256_find(bool portable) {
#if defined(__x86_64__)
    if (!portable && x86_has_sha()) {
        return absorb_x86;
    }
#endif
    (void)portable;
    return absorb_portable;
}

/* ---- data in pieces -------------------------------------------------------------------------- */

car_sha256 car_sha256_begin(void) {
    return (car_sha256){
        .absorb = car_sha256_find(false),
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void car_sha256_add(car_sha256 *sha, const void *data, size_t bytes) {
    const unsigned char *from = data;
    sha->length += bytes;
    while (bytes > 0) {
        size_t part = bytes;
        if (sha->held == 0 && bytes >= BLOCK) { /* whole blocks are read in place */
            part = bytes / BLOCK * BLOCK;
            sha->absorb(sha->state, from, bytes / BLOCK);
        } else {
            size_t room = BLOCK - sha->held;
            part = bytes < room ? bytes : room;
            memcpy(sha->pending + sha->held, from, part);
            sha->held += part;
        }
        if (sha->held == BLOCK) {
            sha->absorb(sha->state, sha->pending, 1);
            sha->held = 0;
        }
        from += part;
        bytes -= part;
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
