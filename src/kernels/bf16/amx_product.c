/* C = A B with AMX: tiles of 16 rows of 64 bytes, and an instruction that multiplies two of them into 16 x 16
 * floats.
 *
 * Both operands are packed into blocks of 1 KB, each a tile of 16 x 16 words; a word is a pair of numbers adjacent
 * in k. A's blocks have a row for each row of A, B's have a row for each pair of k:
 *
 *        A [strip of 16 rows][block of 32 k]         B [strip of 16 columns][block of 32 k]
 *
 * Two strips of each give 32 x 32 results, in four tiles, over a chunk of k. Padding rows, columns and k are zero.
 * The shape alone fixes the order of all sums. */
#include "kernels/bf16/amx.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include "kernels/bf16/amx_tiles.h"

/* How much is packed at once: k, bytes of A, and bytes of B, so that B stays in the second-level cache. */
enum { MOST_K = 1024, MOST_A = 4 << 20, MOST_B = 512 << 10 };

typedef struct layout {
    int64_t rows, columns, k;  /* of a chunk; rows and columns are multiples of PAIR, k of 32 */
    bool sums;                 /* there are several chunks of k, and C cannot hold their sum */
    int64_t sum_stride;        /* of `sum`, in floats */
    size_t b, stage, sum, end; /* offsets in scratch; A is at 0 */
} layout;

/* A or B, packed along `outer`: rows of A, columns of B. One of the strides is 1. */
typedef struct operand {
    const car_bf16 *data;
    int64_t outer, k, outer_stride, k_stride;
    bool rows_are_pairs; /* for B: a row of a block is a pair of k */
} operand;

/* As many rows or columns of length k as fit, but at least a pair of strips. */
static int64_t fitting(int64_t n, int64_t k, int64_t bytes) {
    int64_t most = bytes / (k * (int64_t)sizeof(car_bf16)) / PAIR * PAIR;
    return smaller(padded(n), most > PAIR ? most : PAIR);
}

static layout layout_of(const car_bf16_product_config *config) {
    layout l = {.k = smaller(padded(config->a.columns), MOST_K)};
    l.rows = fitting(config->c.rows, l.k, MOST_A);
    l.columns = fitting(config->c.columns, l.k, MOST_B);
    l.sums = config->rounds && config->a.columns > l.k;
    l.sum_stride = padded(config->c.columns);
    l.b = (size_t)(l.rows * l.k) * sizeof(car_bf16);
    l.stage = l.b + (size_t)(l.columns * l.k) * sizeof(car_bf16);
    l.sum = l.stage + (size_t)(PAIR * PAIR) * sizeof(float);
    l.end = l.sum + (l.sums ? (size_t)(l.rows * l.sum_stride) * sizeof(float) : 0);
    return l;
}

size_t car_amx_scratch_bytes(const car_bf16_product_config *config) {
    return layout_of(config).end;
}

bool car_amx_is_built(void) {
    return true;
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Loads rows that run along k: 32 numbers of each of 16 rows. */
static inline void load_along_k(__m512i w[SIDE], const operand *o, int64_t outer, int64_t k) {
    __mmask32 mask = first_of(o->k - k, PAIR);
    const car_bf16 *from = o->data + outer * o->outer_stride + k;
    for (int i = 0; i < SIDE; i++) {
        w[i] =
            outer + i < o->outer ? _mm512_maskz_loadu_epi16(mask, from + i * o->outer_stride) : _mm512_setzero_si512();
    }
}

/* Loads rows that run across k: 16 numbers for each of 32 k, interleaved in pairs. */
static inline void load_across_k(__m512i w[SIDE], const operand *o, int64_t outer, int64_t k) {
    __mmask16 mask = (__mmask16)first_of(o->outer - outer, SIDE);
    const car_bf16 *from = o->data + k * o->k_stride + outer;
    for (int i = 0; i < SIDE; i++) {
        int64_t at = k + 2 * i;
        __m256i even = at < o->k ? _mm256_maskz_loadu_epi16(mask, from + 2 * i * o->k_stride) : _mm256_setzero_si256();
        __m256i odd =
            at + 1 < o->k ? _mm256_maskz_loadu_epi16(mask, from + (2 * i + 1) * o->k_stride) : _mm256_setzero_si256();
        w[i] = pair_up(even, odd);
    }
}

static inline void pack_block(char *to, const operand *o, int64_t outer, int64_t k) {
    bool along = o->k_stride == 1;
    __m512i w[SIDE];
    if (along) {
        load_along_k(w, o, outer, k);
    } else {
        load_across_k(w, o, outer, k);
    }
    if (along == o->rows_are_pairs) {
        turn_block(w);
    }
    store_block(to, w);
}

/* Packs `outers` rows or columns from `outer` on, and `ks` numbers from `k` on, in memory order. */
static void pack(char *to, const operand *o, int64_t outer, int64_t outers, int64_t k, int64_t ks) {
    int64_t strips = padded(outers) / SIDE, blocks = padded(ks) / PAIR;
    bool along = o->k_stride == 1;
    int64_t slow = along ? strips : blocks, fast = along ? blocks : strips;
    for (int64_t s = 0; s < slow; s++) {
        for (int64_t f = 0; f < fast; f++) {
            int64_t strip = along ? s : f, block = along ? f : s;
            pack_block(to + (strip * blocks + block) * BLOCK, o, outer + strip * SIDE, k + block * PAIR);
        }
    }
}

/* ---- multiplying ----------------------------------------------------------------------------- */

/* Computes 32 x 32 results from two strips of A and two of B. */
static inline void multiply_pairs(const char *a, const char *b, int64_t blocks, float *c, int64_t stride) {
    int64_t bytes = stride * (int64_t)sizeof(float);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    add_pairs(a, b, blocks);
    _tile_stored(0, c, bytes);
    _tile_stored(1, c + SIDE, bytes);
    _tile_stored(2, c + SIDE * stride, bytes);
    _tile_stored(3, c + SIDE * stride + SIDE, bytes);
}

/* Where 32 x 32 results go. */
typedef struct target {
    void *c;           /* floats or bf16 */
    float *sum;        /* sum of the chunks of k so far; NULL: none, or C itself */
    const float *bias; /* NULL: none, or not in this chunk */
    int64_t stride, sum_stride, rows, columns;
    bool rounds, adds, adds_sum, last;
} target;

/* Finishes 16 results of a row, starting at column `at`. */
static inline void finish_sixteen(const target *t, __m512 v, int64_t row, int64_t at) {
    __mmask16 mask = (__mmask16)first_of(t->columns - at, SIDE);
    float *sum = t->sum ? t->sum + row * t->sum_stride + at : NULL;
    if (sum && t->adds_sum) {
        v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, sum), v);
    }
    if (sum && !t->last) {
        _mm512_mask_storeu_ps(sum, mask, v);
        return;
    }
    if (t->bias) {
        v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, t->bias + at));
    }
    if (t->rounds) {
        car_bf16 *c = (car_bf16 *)t->c + row * t->stride + at;
        if (t->adds) {
            __m512i old = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, c)), 16);
            v = _mm512_add_ps(v, _mm512_castsi512_ps(old));
        }
        _mm256_mask_storeu_epi16(c, mask, (__m256i)_mm512_cvtneps_pbh(v));
    } else {
        float *c = (float *)t->c + row * t->stride + at;
        _mm512_mask_storeu_ps(c, mask, t->adds ? _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, c)) : v);
    }
}

static void finish(const target *t, const float *stage) {
    for (int64_t r = 0; r < t->rows; r++) {
        for (int64_t at = 0; at < t->columns; at += SIDE) {
            finish_sixteen(t, _mm512_load_ps(stage + r * PAIR + at), r, at);
        }
    }
}

/* What a product works on. */
typedef struct job {
    const car_bf16_product_config *config;
    layout l;
    operand a, b;
    const float *bias;
    void *c;
    char *scratch;
} job;

/* Computes the results at a row and a column for one chunk of k. `in_chunk` is the row's number in the chunk of
 * rows. */
static void multiply_at(const job *j, int64_t row, int64_t in_chunk, int64_t column, int64_t k, const char *b) {
    const car_bf16_product_config *config = j->config;
    int64_t stride = config->c.row_stride, ks = smaller(j->l.k, j->a.k - k), blocks = padded(ks) / PAIR;
    size_t at = (size_t)(row * stride + column) * (config->rounds ? sizeof(car_bf16) : sizeof(float));
    bool first = k == 0, last = k + ks == j->a.k, in_c = !config->rounds;
    target t = {.c = (char *)j->c + at, .stride = stride, .sum_stride = j->l.sum_stride, .rounds = config->rounds};
    t.rows = smaller(PAIR, config->c.rows - row);
    t.columns = smaller(PAIR, config->c.columns - column);
    t.adds = config->adds || (in_c && !first);
    t.adds_sum = !first;
    t.last = last;
    t.bias = config->bias && (in_c ? first : last) ? j->bias + column : NULL;
    t.sum = j->l.sums ? (float *)(void *)(j->scratch + j->l.sum) + in_chunk * j->l.sum_stride + column : NULL;
    const char *a = j->scratch + in_chunk / SIDE * blocks * BLOCK;
    if (in_c && !t.adds && !t.bias && t.rows == PAIR && t.columns == PAIR) {
        multiply_pairs(a, b, blocks, t.c, stride);
    } else {
        float *stage = (float *)(void *)(j->scratch + j->l.stage);
        multiply_pairs(a, b, blocks, stage, PAIR);
        finish(&t, stage);
    }
}

static void multiply_chunk(const job *j, int64_t row, int64_t k) {
    int64_t rows = smaller(j->l.rows, j->a.outer - row), ks = smaller(j->l.k, j->a.k - k);
    char *b = j->scratch + j->l.b;
    pack(j->scratch, &j->a, row, rows, k, ks);
    for (int64_t column = 0; column < j->b.outer; column += j->l.columns) {
        int64_t columns = smaller(j->l.columns, j->b.outer - column);
        pack(b, &j->b, column, columns, k, ks);
        for (int64_t r = 0; r < rows; r += PAIR) {
            for (int64_t n = 0; n < columns; n += PAIR) {
                multiply_at(j, row + r, r, column + n, k, b + n / SIDE * (padded(ks) / PAIR) * BLOCK);
            }
        }
    }
}

void car_amx_multiply(const car_bf16_product_config *config, const car_bf16 *a, const car_bf16 *b, const float *bias,
                      void *c, void *scratch) {
    const car_bf16_matrix *left = &config->a, *right = &config->b;
    const job j = {
        .config = config,
        .l = layout_of(config),
        .a = {a, left->rows, left->columns, left->row_stride, left->column_stride, false},
        .b = {b, right->columns, right->rows, right->column_stride, right->row_stride, true},
        .bias = bias,
        .c = c,
        .scratch = scratch,
    };
    configure_tiles();
    for (int64_t row = 0; row < j.a.outer; row += j.l.rows) {
        for (int64_t k = 0; k < j.a.k; k += j.l.k) {
            multiply_chunk(&j, row, k);
        }
    }
    _tile_release();
}
#else
bool car_amx_is_built(void) {
    return false;
}

size_t car_amx_scratch_bytes(const car_bf16_product_config *config) {
    (void)config;
    return 0;
}

void car_amx_multiply(const car_bf16_product_config *config, const car_bf16 *a, const car_bf16 *b, const float *bias,
                      void *c, void *scratch) {
    (void)config, (void)a, (void)b, (void)bias, (void)c, (void)scratch;
}
#endif
