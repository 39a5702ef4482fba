/* AMX convolutions: products of tiles whose rows are gathered from the image as needed.
 *
 *   forward:    target pixels x outputs  =  source pixels under every tap x (tap, input)  *  weights
 *   by data:    the same from the gradient of the output, once for each phase of the stride
 *   by weights: outputs x (tap, inputs)  =  gradients' pixels  *  source pixels under every tap
 *
 * Pixels outside of the image are zero. The shape alone fixes the order of all sums. */
#include "kernels/bf16/amx_conv.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include <string.h>

#include "kernels/bf16/amx_tiles.h"

/* Limits: bytes of gathered rows, pixels of a sum over pixels, and taps of the largest kernel. */
enum { MOST_ROWS = 1 << 20, MOST_PIXELS = 1024, MOST_TAPS = 49, OUTSIDE = -1 };

/* An image's layout, and a grid of pixels in it: `step` apart, starting at `first`. */
typedef struct plane {
    int64_t blocks, height, width, step_y, step_x, first_y, first_x;
} plane;

typedef struct tap {
    int64_t y, x, index; /* y and x are added to a source position; index is the number among all taps */
} tap;

/* A product over the taps that reach a grid of target pixels. */
typedef struct pass {
    int64_t images, grid_height, grid_width;
    plane source, target;
    int tap_count;
    tap taps[MOST_TAPS];
    int64_t all_taps;
    bool adds;
} pass;

typedef struct position {
    int64_t image, y, x; /* in the grid */
} position;

static int64_t plane_stride(const plane *p) {
    return p->height * p->width * SIDE;
}

static position position_of(const pass *p, int64_t row) {
    int64_t pixels = p->grid_height * p->grid_width, left = row % pixels;
    return (position){row / pixels, left / p->grid_width, left % p->grid_width};
}

static void advance(const pass *p, position *at) {
    if (++at->x == p->grid_width) {
        at->x = 0;
        if (++at->y == p->grid_height) {
            at->y = 0;
            at->image++;
        }
    }
}

/* Offset of a pixel's first block, or OUTSIDE. */
static int64_t offset_in(const plane *p, const position *at, int64_t dy, int64_t dx) {
    int64_t y = p->first_y + at->y * p->step_y + dy, x = p->first_x + at->x * p->step_x + dx;
    bool inside = y >= 0 && y < p->height && x >= 0 && x < p->width;
    return inside ? ((at->image * p->blocks * p->height + y) * p->width + x) * SIDE : OUTSIDE;
}

static void find_offsets(const pass *p, const plane *in, const tap *t, int64_t row, int64_t rows, int64_t wanted,
                         int64_t *offsets) {
    position at = position_of(p, row);
    for (int64_t r = 0; r < wanted; r++) {
        offsets[r] = r < rows ? offset_in(in, &at, t ? t->y : 0, t ? t->x : 0) : OUTSIDE;
        advance(p, &at);
    }
}

/* ---- forward and backward by data ------------------------------------------------------------ */

static int64_t pass_rows(const pass *p) {
    return p->images * p->grid_height * p->grid_width;
}

static int64_t row_bytes(const pass *p) {
    return p->tap_count * p->source.blocks * SIDE * (int64_t)sizeof(car_bf16);
}

static int64_t chunk_rows(const pass *p) {
    int64_t most = MOST_ROWS / row_bytes(p) / PAIR * PAIR;
    return smaller(padded(pass_rows(p)), most > PAIR ? most : PAIR);
}

/* Gathers 16 rows as [tap][pair of source blocks] tiles. */
static void gather_strip(const pass *p, const car_bf16 *source, int64_t row, int64_t rows, char *to) {
    int64_t pairs = p->source.blocks / 2, stride = plane_stride(&p->source), offsets[SIDE];
    for (int t = 0; t < p->tap_count; t++, to += pairs * BLOCK) {
        find_offsets(p, &p->source, &p->taps[t], row, rows, SIDE, offsets);
        for (int r = 0; r < SIDE; r++) {
            const car_bf16 *from = source + (offsets[r] == OUTSIDE ? 0 : offsets[r]);
            __mmask16 mask = offsets[r] == OUTSIDE ? 0 : 0xffff;
            char *place = to + (ptrdiff_t)r * ROW_BYTES;
            for (int64_t q = 0; q < pairs; q++, from += 2 * stride, place += BLOCK) {
                __m256i low = _mm256_maskz_loadu_epi16(mask, from),
                        high = _mm256_maskz_loadu_epi16(mask, from + stride);
                _mm512_store_si512(place, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
            }
        }
    }
}

/* Computes 32 x 32 results. `a` has the taps of the pass, `b` all taps; b_strip is the bytes between strips of b. */
static void multiply_taps(const pass *p, const char *a, const char *b, int64_t b_strip, float *stage) {
    int64_t tap_bytes = p->source.blocks / 2 * BLOCK, a_strip = p->tap_count * tap_bytes;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int t = 0; t < p->tap_count; t++, a += tap_bytes) {
        const char *weights = b + p->taps[t].index * tap_bytes;
        for (int64_t k = 0; k < tap_bytes; k += BLOCK) {
            _tile_loadd(4, a + k, ROW_BYTES);
            _tile_loadd(6, weights + k, ROW_BYTES);
            _tile_loadd(5, a + a_strip + k, ROW_BYTES);
            _tile_loadd(7, weights + b_strip + k, ROW_BYTES);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, stage, 2 * ROW_BYTES);
    _tile_stored(1, stage + SIDE, 2 * ROW_BYTES);
    _tile_stored(2, stage + SIDE * PAIR, 2 * ROW_BYTES);
    _tile_stored(3, stage + SIDE * PAIR + SIDE, 2 * ROW_BYTES);
}

static inline void store_sixteen(car_bf16 *to, __m512 v, bool adds) {
    if (adds) {
        __m256i old = _mm256_loadu_si256((const __m256i *)(const void *)to);
        v = _mm512_add_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(old), 16)));
    }
    _mm256_storeu_si256((__m256i *)(void *)to, (__m256i)_mm512_cvtneps_pbh(v));
}

static void store_results(const pass *p, const float *stage, car_bf16 *target, const int64_t *offsets, int64_t rows) {
    int64_t stride = plane_stride(&p->target);
    for (int64_t r = 0; r < rows; r++) {
        store_sixteen(target + offsets[r], _mm512_load_ps(stage + r * PAIR), p->adds);
        store_sixteen(target + offsets[r] + stride, _mm512_load_ps(stage + r * PAIR + SIDE), p->adds);
    }
}

static void run_chunk(const pass *p, const car_bf16 *source, const char *weights, car_bf16 *target, int64_t row,
                      char *scratch) {
    int64_t most = chunk_rows(p), rows = smaller(most, pass_rows(p) - row), strip = SIDE * row_bytes(p);
    int64_t b_strip = p->all_taps * p->source.blocks / 2 * BLOCK;
    float *stage = (float *)(void *)(scratch + most * row_bytes(p));
    int64_t *offsets = (int64_t *)(void *)(stage + PAIR * PAIR);
    find_offsets(p, &p->target, NULL, row, rows, rows, offsets);
    for (int64_t r = 0; r < padded(rows); r += SIDE) {
        gather_strip(p, source, row + r, rows - r, scratch + r / SIDE * strip);
    }
    for (int64_t n = 0; n < p->target.blocks; n += 2) {
        for (int64_t r = 0; r < rows; r += PAIR) {
            multiply_taps(p, scratch + r / SIDE * strip, weights + n * b_strip, b_strip, stage);
            store_results(p, stage, target + n * plane_stride(&p->target), offsets + r, smaller(PAIR, rows - r));
        }
    }
}

static void run_pass(const pass *p, const car_bf16 *source, const car_bf16 *weights, car_bf16 *target, void *scratch) {
    for (int64_t row = 0; row < pass_rows(p); row += chunk_rows(p)) {
        run_chunk(p, source, (const char *)(const void *)weights, target, row, scratch);
    }
}

static pass forward_pass(const car_amx_conv_shape *s) {
    pass p = {.images = s->images, .grid_height = s->out_height, .grid_width = s->out_width};
    p.source = (plane){s->in_blocks, s->height, s->width, s->stride, s->stride, -s->pad, -s->pad};
    p.target = (plane){s->out_blocks, s->out_height, s->out_width, 1, 1, 0, 0};
    p.all_taps = s->kernel * s->kernel;
    for (int64_t t = 0; t < p.all_taps; t++) {
        p.taps[p.tap_count++] = (tap){t / s->kernel, t % s->kernel, t};
    }
    return p;
}

/* The input pixel at phase + stride * index receives gradients from the outputs at index + (phase + pad - tap) /
 * stride. */
static pass data_pass(const car_amx_conv_shape *s, int64_t phase_y, int64_t phase_x) {
    pass p = {.images = s->images};
    p.grid_height = (s->height - phase_y + s->stride - 1) / s->stride;
    p.grid_width = (s->width - phase_x + s->stride - 1) / s->stride;
    p.source = (plane){s->out_blocks, s->out_height, s->out_width, 1, 1, 0, 0};
    p.target = (plane){s->in_blocks, s->height, s->width, s->stride, s->stride, phase_y, phase_x};
    p.all_taps = s->kernel * s->kernel;
    for (int64_t t = 0; t < p.all_taps; t++) {
        int64_t y = phase_y + s->pad - t / s->kernel, x = phase_x + s->pad - t % s->kernel;
        if (y % s->stride == 0 && x % s->stride == 0) {
            p.taps[p.tap_count++] = (tap){y / s->stride, x / s->stride, t};
        }
    }
    return p;
}

void car_amx_conv_forward(const car_amx_conv_shape *shape, const car_bf16 *in, const car_bf16 *weights, car_bf16 *out,
                          void *scratch) {
    const pass p = forward_pass(shape);
    configure_tiles();
    run_pass(&p, in, weights, out, scratch);
    _tile_release();
}

void car_amx_conv_by_data(const car_amx_conv_shape *shape, const car_bf16 *grad_out, const car_bf16 *exchanged,
                          bool adds, car_bf16 *grad_in, void *scratch) {
    int64_t elements = shape->images * shape->in_blocks * shape->height * shape->width * SIDE;
    if (shape->stride > shape->kernel && !adds) { /* some pixels are under no tap */
        memset(grad_in, 0, (size_t)elements * sizeof *grad_in);
    }
    configure_tiles();
    for (int64_t phase = 0; phase < shape->stride * shape->stride; phase++) {
        pass p = data_pass(shape, phase / shape->stride, phase % shape->stride);
        p.adds = adds;
        if (p.tap_count > 0 && pass_rows(&p) > 0) {
            run_pass(&p, grad_out, exchanged, grad_in, scratch);
        }
    }
    _tile_release();
}

/* ---- backward by weights --------------------------------------------------------------------- */

static int64_t chunk_pixels(const car_amx_conv_shape *s) {
    int64_t pixels = MOST_ROWS / (s->out_blocks * SIDE * (int64_t)sizeof(car_bf16)) / PAIR * PAIR;
    int64_t most = smaller(pixels > PAIR ? pixels : PAIR, MOST_PIXELS);
    return smaller(padded(s->images * s->out_height * s->out_width), most);
}

static inline __m256i load_pixel(const car_bf16 *x, int64_t offset) {
    return offset == OUTSIDE ? _mm256_setzero_si256() : _mm256_loadu_si256((const __m256i *)(const void *)(x + offset));
}

/* Packs a block of channels as tiles of 32 pixels: rows are pairs of pixels or, if turned, channels. */
static void pack_pixels(const car_bf16 *x, const int64_t *offsets, int64_t pixels, bool turned, char *to) {
    for (int64_t p = 0; p < pixels; p += PAIR, to += BLOCK) {
        __m512i w[SIDE];
        for (int i = 0; i < SIDE; i++) {
            w[i] = pair_up(load_pixel(x, offsets[p + 2 * i]), load_pixel(x, offsets[p + 2 * i + 1]));
        }
        if (turned) {
            turn_block(w);
        }
        store_block(to, w);
    }
}

/* Adds 32 outputs x 32 inputs to two blocks of the gradient, `next` floats apart. */
static void add_products(const char *a, const char *b, int64_t blocks, float *gradient, int64_t next) {
    _tile_loadd(0, gradient, 2 * ROW_BYTES);
    _tile_loadd(1, gradient + SIDE, 2 * ROW_BYTES);
    _tile_loadd(2, gradient + next, 2 * ROW_BYTES);
    _tile_loadd(3, gradient + next + SIDE, 2 * ROW_BYTES);
    add_pairs(a, b, blocks);
    _tile_stored(0, gradient, 2 * ROW_BYTES);
    _tile_stored(1, gradient + SIDE, 2 * ROW_BYTES);
    _tile_stored(2, gradient + next, 2 * ROW_BYTES);
    _tile_stored(3, gradient + next + SIDE, 2 * ROW_BYTES);
}

/* Adds the contribution of a chunk of pixels. Blocks of the gradient are [o%16][i%32] until all chunks are added. */
static void add_chunk(const car_amx_conv_shape *s, const pass *p, const car_bf16 *in, const car_bf16 *grad_out,
                      float *gradient, int64_t row, char *scratch) {
    enum { FLOATS = SIDE * PAIR };
    int64_t most = chunk_pixels(s), rows = smaller(most, pass_rows(p) - row), pixels = padded(rows);
    int64_t strip = pixels / PAIR * BLOCK, pairs = s->in_blocks / 2, next = p->all_taps * pairs * FLOATS;
    char *b = scratch + s->out_blocks * (most / PAIR) * BLOCK;
    int64_t *offsets = (int64_t *)(void *)(b + 2 * (most / PAIR) * BLOCK);
    find_offsets(p, &p->target, NULL, row, rows, pixels, offsets);
    for (int64_t o = 0; o < s->out_blocks; o++) {
        pack_pixels(grad_out + o * plane_stride(&p->target), offsets, pixels, true, scratch + o * strip);
    }
    for (int t = 0; t < p->tap_count; t++) {
        find_offsets(p, &p->source, &p->taps[t], row, rows, pixels, offsets);
        for (int64_t i = 0; i < pairs; i++) {
            const car_bf16 *x = in + 2 * i * plane_stride(&p->source);
            pack_pixels(x, offsets, pixels, false, b);
            pack_pixels(x + plane_stride(&p->source), offsets, pixels, false, b + strip);
            for (int64_t o = 0; o < s->out_blocks; o += 2) {
                add_products(scratch + o * strip, b, pixels / PAIR, gradient + o * next + (t * pairs + i) * FLOATS,
                             next);
            }
        }
    }
}

/* Rearranges [o%16][pair of i][2] to the stored [pair of i][o%16][2], block by block. */
static void turn_gradient(float *gradient, int64_t count) {
    enum { FLOATS = SIDE * PAIR };
    for (float *block = gradient; block < gradient + count; block += FLOATS) {
        float turned[FLOATS];
        for (int i = 0; i < SIDE; i++) {
            for (int o = 0; o < SIDE; o++) {
                memcpy(turned + (i * SIDE + o) * 2, block + (o * SIDE + i) * 2, 2 * sizeof(float));
            }
        }
        memcpy(block, turned, sizeof turned);
    }
}

void car_amx_conv_by_weights(const car_amx_conv_shape *shape, const car_bf16 *in, const car_bf16 *grad_out,
                             float *grad_weights, void *scratch) {
    const pass p = forward_pass(shape);
    int64_t count = shape->in_blocks * shape->out_blocks * p.all_taps * SIDE * SIDE;
    memset(grad_weights, 0, (size_t)count * sizeof *grad_weights);
    configure_tiles();
    for (int64_t row = 0; row < pass_rows(&p); row += chunk_pixels(shape)) {
        add_chunk(shape, &p, in, grad_out, grad_weights, row, scratch);
    }
    _tile_release();
    turn_gradient(grad_weights, count);
}

/* ---- scratch and weights --------------------------------------------------------------------- */

static size_t pass_scratch(const pass *p) {
    int64_t rows = p->tap_count > 0 && pass_rows(p) > 0 ? chunk_rows(p) : 0;
    return (size_t)(rows * (row_bytes(p) + (int64_t)sizeof(int64_t)) + PAIR * PAIR * (int64_t)sizeof(float));
}

size_t car_amx_conv_scratch(const car_amx_conv_shape *shape) {
    const pass p = forward_pass(shape);
    int64_t pixels = chunk_pixels(shape);
    size_t most = pass_scratch(&p);
    size_t by_weights = (size_t)((shape->out_blocks + 2) * (pixels / PAIR) * BLOCK + pixels * (int64_t)sizeof(int64_t));
    most = by_weights > most ? by_weights : most;
    for (int64_t phase = 0; phase < shape->stride * shape->stride; phase++) {
        const pass by_data = data_pass(shape, phase / shape->stride, phase % shape->stride);
        size_t bytes = pass_scratch(&by_data);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Exchanges 32 x 32 weights of a tap at a time, via rows of 32 inputs. */
void car_amx_conv_exchange(const car_amx_conv_shape *shape, const car_bf16 *weights, car_bf16 *exchanged) {
    enum { WEIGHTS = SIDE * PAIR };
    int64_t taps = shape->kernel * shape->kernel, in_pairs = shape->in_blocks / 2, out_pairs = shape->out_blocks / 2;
    for (int64_t n = 0; n < out_pairs * taps * in_pairs; n++) {
        int64_t o = n / (taps * in_pairs), t = n / in_pairs % taps, i = n % in_pairs;
        car_bf16 rows[PAIR][PAIR] __attribute__((aligned(64)));
        for (int h = 0; h < 2; h++) {
            __m512i w[SIDE];
            const car_bf16 *from = weights + (((2 * o + h) * taps + t) * in_pairs + i) * WEIGHTS;
            for (int r = 0; r < SIDE; r++) {
                w[r] = _mm512_loadu_si512(from + r * PAIR);
            }
            turn_block(w);
            store_block(rows[h * SIDE], w);
        }
        for (int h = 0; h < 2; h++) {
            car_bf16 *to = exchanged + (((2 * i + h) * taps + t) * out_pairs + o) * WEIGHTS;
            for (int r = 0; r < SIDE; r++) {
                const __m256i *even = (const __m256i *)(const void *)&rows[2 * r][h * SIDE];
                const __m256i *odd = (const __m256i *)(const void *)&rows[2 * r + 1][h * SIDE];
                _mm512_storeu_si512(to + r * PAIR, pair_up(_mm256_load_si256(even), _mm256_load_si256(odd)));
            }
        }
    }
}
#else
size_t car_amx_conv_scratch(const car_amx_conv_shape *shape) {
    (void)shape;
    return 0;
}
void car_amx_conv_forward(const car_amx_conv_shape *shape, const car_bf16 *in, const car_bf16 *weights, car_bf16 *out,
                          void *scratch) {
    (void)shape, (void)in, (void)weights, (void)out, (void)scratch;
}
void car_amx_conv_by_data(const car_amx_conv_shape *shape, const car_bf16 *grad_out, const car_bf16 *exchanged,
                          bool adds, car_bf16 *grad_in, void *scratch) {
    (void)shape, (void)grad_out, (void)exchanged, (void)adds, (void)grad_in, (void)scratch;
}
void car_amx_conv_by_weights(const car_amx_conv_shape *shape, const car_bf16 *in, const car_bf16 *grad_out,
                             float *grad_weights, void *scratch) {
    (void)shape, (void)in, (void)grad_out, (void)grad_weights, (void)scratch;
}
void car_amx_conv_exchange(const car_amx_conv_shape *shape, const car_bf16 *weights, car_bf16 *exchanged) {
    (void)shape, (void)weights, (void)exchanged;
}
#endif
