/* AMX tiles, for the files that are compiled for them. */
#ifndef CAR_KERNELS_BF16_AMX_TILES_H
#define CAR_KERNELS_BF16_AMX_TILES_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

/* A tile is 16 rows of 16 words, 1 KB; a word is two bf16 or a float. */
enum { SIDE = 16, PAIR = 2 * SIDE, BLOCK = 1024, ROW_BYTES = 64 };

static inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t padded(int64_t n) {
    return (n + PAIR - 1) / PAIR * PAIR;
}

static inline void configure_tiles(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[SIDE];
        uint8_t rows[SIDE];
    } tiles = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        tiles.row_bytes[t] = ROW_BYTES;
        tiles.rows[t] = SIDE;
    }
    _tile_loadconfig(&tiles);
}

/* Transposes 16 x 16 words. */
static inline void turn_block(__m512i w[SIDE]) {
    __m512i t[SIDE];
    for (int i = 0; i < SIDE; i += 2) {
        t[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4) {
        w[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        w[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        w[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        w[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int h = 0; h < SIDE; h += 8) {
        for (int i = h; i < h + 4; i++) {
            t[i] = _mm512_shuffle_i32x4(w[i], w[i + 4], 0x88);
            t[i + 4] = _mm512_shuffle_i32x4(w[i], w[i + 4], 0xdd);
        }
    }
    for (int i = 0; i < 8; i++) {
        w[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        w[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

/* Mask of the first `count` of at most `most` numbers; empty if the count is negative, after the end of a row. */
static inline __mmask32 first_of(int64_t count, int64_t most) {
    int64_t taken = count < 0 ? 0 : count < most ? count : most;
    return (__mmask32)(((uint64_t)1 << taken) - 1);
}

/* Combines two rows of 16 numbers into 16 words. */
static inline __m512i pair_up(__m256i even, __m256i odd) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

static inline void store_block(void *to, const __m512i w[SIDE]) {
    for (int i = 0; i < SIDE; i++) {
        _mm512_store_si512((char *)to + (ptrdiff_t)i * ROW_BYTES, w[i]);
    }
}

/* Adds the products of two strips of A and two of B, each stored one after the other, to tiles 0 to 3. */
static inline void add_pairs(const char *a, const char *b, int64_t blocks) {
    const char *a_next = a + blocks * BLOCK, *b_next = b + blocks * BLOCK;
    for (int64_t k = 0; k < blocks * BLOCK; k += BLOCK) {
        _tile_loadd(4, a + k, ROW_BYTES);
        _tile_loadd(6, b + k, ROW_BYTES);
        _tile_loadd(5, a_next + k, ROW_BYTES);
        _tile_loadd(7, b_next + k, ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

#endif
