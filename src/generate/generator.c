/* Runs a GPT-2 step by step, with a cache of keys and values.
 *
 * Rows are positions. Several rows at once (a prompt) use matrix products in strips of columns. A single row, the
 * normal case when generating, is limited by the speed of reading the weights. The training graph computes the same
 * (src/models/gpt2.c); the test unit.generate compares the two. */
#include <math.h>
#include <string.h>

#include "generate/gpt2.h"
#include "generate/internal.h"
#include "kernels/kernel.h"
#include "kernels/vector/vector.h"

enum { MOST_ROWS = 128, STRIP = 256, ALIGNED = 16, MOST_THREADS = 256 };

car_generator_config car_generator_config_default(void) {
    return (car_generator_config){.threads = 1, .eps = 1e-5};
}

/* ---- matrix products ------------------------------------------------------------------------- */

/* y = x w + bias, or y += x w + bias; w is [out, in]. */
typedef struct product {
    car_generator *g;
    const float *x, *w, *bias;
    float *y;
    int64_t rows, in, out, strip;
    bool add;
} product;

static void run_product(void *user, int piece) {
    const product *p = user;
    const car_vector *vector = p->g->vector;
    int64_t first = piece * p->strip, width = p->out - first < p->strip ? p->out - first : p->strip;
    const float *w = p->w + first * p->in;
    for (int64_t r = 0; r < p->rows; r++) {
        float *y = p->y + r * p->out + first;
        if (p->add) {
            vector->accumulate(y, p->bias + first, width);
        } else {
            memcpy(y, p->bias + first, (size_t)width * sizeof *y);
        }
    }
    if (p->rows == 1) {
        for (int64_t i = 0; i < width; i++) {
            p->y[first + i] += vector->dot(w + i * p->in, p->x, p->in);
        }
    } else if (!car_kernels_multiply('N', 'T', p->rows, width, p->in, 1, p->x, p->in, w, p->in, 1, p->y + first,
                                     p->out)) {
        atomic_store(&p->g->failed, true);
    }
}

/* A single row is split evenly over threads, as each of its numbers is computed separately. Several rows use strips
 * that do not depend on the number of threads, because rounding may depend on a product's width. */
static void multiply(car_generator *g, int64_t rows, const float *x, int64_t in, const float *w, const float *bias,
                     int64_t out, bool add, float *y) {
    product p = {.g = g, .x = x, .w = w, .bias = bias, .y = y, .rows = rows, .in = in, .out = out, .add = add};
    int64_t even = (out + car_team_threads(g->team) - 1) / car_team_threads(g->team);
    p.strip = rows > 1 ? STRIP : (int64_t)car_round_up((size_t)even, ALIGNED);
    car_team_run(g->team, (int)((out + p.strip - 1) / p.strip), run_product, &p);
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct attention {
    car_generator *g;
    const float *keys, *values; /* of the layer, [positions, width] */
    int64_t rows, first;        /* number of queries, and the position of the first */
} attention;

static void attend_row(const attention *a, const float *query, int64_t place, int64_t columns, float *scores,
                       float *out) {
    const car_vector *vector = a->g->vector;
    int64_t width = a->g->model.sizes.width, depth = width / a->g->model.sizes.heads;
    for (int64_t t = 0; t < columns; t++) {
        scores[t] = vector->dot(query, a->keys + t * width + place, depth);
    }
    vector->attention_softmax(scores, columns, 1.0f / sqrtf((float)depth));
    memset(out, 0, (size_t)depth * sizeof *out);
    vector->combine_rows(out, scores, a->values + place, columns, depth, width);
}

static void run_head(void *user, int head) {
    const attention *a = user;
    car_generator *g = a->g;
    int64_t width = g->model.sizes.width, depth = width / g->model.sizes.heads, place = head * depth;
    int64_t columns = a->first + a->rows;
    const float *query = g->qkv + place;
    float *scores = g->scores + (size_t)head * (size_t)g->score_count, *out = g->y + place;
    if (a->rows == 1) {
        attend_row(a, query, place, columns, scores, out);
        return;
    }
    bool sound = car_kernels_multiply('N', 'T', a->rows, columns, depth, 1, query, 3 * width, a->keys + place, width, 0,
                                      scores, columns);
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t used = a->first + r + 1;
        g->vector->attention_softmax(scores + r * columns, used, 1.0f / sqrtf((float)depth));
        memset(scores + r * columns + used, 0, (size_t)(columns - used) * sizeof *scores);
    }
    sound = sound && car_kernels_multiply('N', 'N', a->rows, depth, columns, 1, scores, columns, a->values + place,
                                          width, 0, out, width);
    if (!sound) {
        atomic_store(&g->failed, true);
    }
}

/* ---- the model ------------------------------------------------------------------------------- */

static void run_block(car_generator *g, int layer, int64_t rows) {
    const float *const *p = g->model.blocks[layer];
    const car_gpt2_sizes *s = &g->model.sizes;
    int64_t width = s->width, inner = s->inner, first = g->length;
    float *keys = g->keys + (int64_t)layer * s->positions * width;
    float *values = g->values + (int64_t)layer * s->positions * width;
    g->vector->layernorm(g->y, NULL, g->x, p[CAR_GPT2_LN_1], p[CAR_GPT2_LN_1_BIAS], rows, width, (float)g->eps);
    multiply(g, rows, g->y, width, p[CAR_GPT2_ATTENTION], p[CAR_GPT2_ATTENTION_BIAS], 3 * width, false, g->qkv);
    for (int64_t r = 0; r < rows; r++) {
        const float *row = g->qkv + r * 3 * width;
        memcpy(keys + (first + r) * width, row + width, (size_t)width * sizeof *keys);
        memcpy(values + (first + r) * width, row + 2 * width, (size_t)width * sizeof *values);
    }
    attention a = {.g = g, .keys = keys, .values = values, .rows = rows, .first = first};
    car_team_run(g->team, s->heads, run_head, &a);
    multiply(g, rows, g->y, width, p[CAR_GPT2_ATTENTION_OUT], p[CAR_GPT2_ATTENTION_OUT_BIAS], width, true, g->x);
    g->vector->layernorm(g->y, NULL, g->x, p[CAR_GPT2_LN_2], p[CAR_GPT2_LN_2_BIAS], rows, width, (float)g->eps);
    multiply(g, rows, g->y, width, p[CAR_GPT2_MLP], p[CAR_GPT2_MLP_BIAS], inner, false, g->hidden);
    g->vector->gelu_tanh(g->hidden, g->hidden, rows * inner);
    multiply(g, rows, g->hidden, inner, p[CAR_GPT2_MLP_OUT], p[CAR_GPT2_MLP_OUT_BIAS], width, true, g->x);
}

typedef struct head_work {
    car_generator *g;
    const float *x;
    float *logits;
    int64_t strip;
} head_work;

static void run_logits(void *user, int piece) {
    const head_work *h = user;
    int64_t width = h->g->model.sizes.width, end = (piece + 1) * h->strip;
    end = end < h->g->model.sizes.vocabulary ? end : h->g->model.sizes.vocabulary;
    for (int64_t v = piece * h->strip; v < end; v++) {
        h->logits[v] = h->g->vector->dot(h->g->model.outer[CAR_GPT2_TOKENS] + v * width, h->x, width);
    }
}

/* Computes the logits of the last row only, as no others are needed. */
static void find_logits(car_generator *g, int64_t rows, float *logits) {
    const car_gpt2_sizes *s = &g->model.sizes;
    int threads = car_team_threads(g->team);
    g->vector->layernorm(g->y, NULL, g->x + (rows - 1) * s->width, g->model.outer[CAR_GPT2_LN_F],
                         g->model.outer[CAR_GPT2_LN_F_BIAS], 1, s->width, (float)g->eps);
    head_work h = {.g = g, .x = g->y, .logits = logits, .strip = (s->vocabulary + threads - 1) / threads};
    car_team_run(g->team, (int)((s->vocabulary + h.strip - 1) / h.strip), run_logits, &h);
}

static car_status check_tokens(const car_generator *g, const int32_t *tokens, int count) {
    const car_gpt2_sizes *s = &g->model.sizes;
    if (count < 1 || count > s->positions - g->length) {
        return car_context_fail(g->context, CAR_ERROR_ARGUMENT,
                                "%d more tokens after %d do not fit into the context of %d tokens", count, g->length,
                                s->positions);
    }
    for (int i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= s->vocabulary) {
            return car_context_fail(g->context, CAR_ERROR_ARGUMENT, "there is no token %d; the vocabulary ends at %d",
                                    tokens[i], s->vocabulary - 1);
        }
    }
    return CAR_OK;
}

car_status car_generator_feed(car_generator *g, const int32_t *tokens, int count, float *logits) {
    CAR_REQUIRE(NULL, g);
    CAR_REQUIRE(g->context, tokens);
    int64_t width = g->model.sizes.width;
    int before = g->length;
    car_status status = check_tokens(g, tokens, count);
    if (status != CAR_OK) {
        return status;
    }
    car_kernel_mode mode = car_kernels_enter(1);
    for (int done = 0, rows = 0; done < count; done += rows) {
        rows = count - done < MOST_ROWS ? count - done : MOST_ROWS;
        for (int64_t r = 0; r < rows; r++) {
            g->vector->add(g->x + r * width, g->model.outer[CAR_GPT2_TOKENS] + tokens[done + r] * width,
                           g->model.outer[CAR_GPT2_POSITIONS] + (g->length + r) * width, width);
        }
        for (int layer = 0; layer < g->model.sizes.depth; layer++) {
            run_block(g, layer, rows);
        }
        g->length += rows;
        if (logits && done + rows == count) {
            find_logits(g, rows, logits);
        }
    }
    car_kernels_leave(mode);
    if (atomic_exchange(&g->failed, false)) {
        g->length = before;
        status = car_context_fail(g->context, CAR_ERROR_KERNEL, "oneDNN could not multiply");
    }
    return status;
}

int car_generator_length(const car_generator *generator) {
    return generator ? generator->length : 0;
}

void car_generator_rewind(car_generator *generator, int length) {
    if (generator && length >= 0 && length < generator->length) {
        generator->length = length;
    }
}

car_gpt2_sizes car_generator_sizes(const car_generator *generator) {
    return generator ? generator->model.sizes : (car_gpt2_sizes){0};
}

/* ---- creation -------------------------------------------------------------------------------- */

/* Allocates all buffers as one block, which is released with the model. */
static car_status allocate(car_generator *g) {
    const car_gpt2_sizes *s = &g->model.sizes;
    size_t rows = (size_t)(s->positions < MOST_ROWS ? s->positions : MOST_ROWS), width = (size_t)s->width;
    size_t kept = (size_t)s->depth * (size_t)s->positions * width;
    g->score_count = (int64_t)(rows * (size_t)s->positions);
    struct {
        float **buffer;
        size_t count;
    } parts[] = {{&g->keys, kept},
                 {&g->values, kept},
                 {&g->x, rows * width},
                 {&g->y, rows * width},
                 {&g->qkv, 3 * rows * width},
                 {&g->hidden, rows * (size_t)s->inner},
                 {&g->scores, (size_t)s->heads * (size_t)g->score_count}};
    enum { PARTS = sizeof parts / sizeof parts[0] };
    size_t total = 0;
    for (int i = 0; i < PARTS; i++) {
        total += car_round_up(parts[i].count, ALIGNED);
    }
    void *block = NULL;
    car_status status = car_arena_allocate(g->model.arena, CAR_MEMORY_WORKSPACE, total * sizeof(float), &block);
    if (status != CAR_OK) {
        return status;
    }
    float *at = block;
    for (int i = 0; i < PARTS; i++) {
        *parts[i].buffer = at;
        at += car_round_up(parts[i].count, ALIGNED);
    }
    return CAR_OK;
}

car_status car_generator_open(car_context *context, const char *path, const car_generator_config *config,
                              car_generator **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    CAR_REQUIRE(context, config);
    CAR_REQUIRE(context, out);
    car_generator *g = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    if (config->threads < 1 || config->threads > MOST_THREADS || !(config->eps > 0)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "invalid settings: %d threads, eps %g; use 1 to %d threads and eps above 0",
                                config->threads, config->eps, MOST_THREADS);
    }
    CAR_TRY(car_context_allocate(context, 1, sizeof *g, &g));
    g->context = context;
    g->vector = car_vector_select();
    g->eps = config->eps;
    CAR_TRY(car_gpt2_read(context, path, config->heads, &g->model));
    CAR_TRY(allocate(g));
    CAR_TRY(car_team_create(context, config->threads, &g->team));
    *out = g;
    g = NULL;
done:
    car_generator_close(g);
    return status;
}

void car_generator_close(car_generator *g) {
    if (!g) {
        return;
    }
    car_team_destroy(g->team);
    if (g->model.context) {
        car_gpt2_release(&g->model);
    }
    car_context_release(g->context, g, 1, sizeof *g);
}
