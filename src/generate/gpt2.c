/* Reads and writes a GPT-2 as a safetensors file with Hugging Face's names, with or without the prefix
 * "transformer.". Weights of the blocks are [in, out] in files, as in Conv1D. The head is the token embedding. */
#include "generate/gpt2.h"

#include <stdio.h>
#include <string.h>

#include "carousel/safetensors.h"

enum { NAME = 96, MOST_DEPTH = 4096, MOST_SIZE = 1 << 24 };
static const char prefix[] = "transformer.";

/* What a dimension stands for. */
typedef enum extent { NONE, WIDTH, THREE_WIDTHS, INNER, VOCABULARY, POSITIONS } extent;

typedef struct row {
    const char *name;
    extent shape[2]; /* in the file */
    bool turned;     /* transposed in memory: kept as [out, in] */
} row;

static const row outer_rows[CAR_GPT2_OUTER_PARAMS] = {
    [CAR_GPT2_TOKENS] = {.name = "wte.weight", .shape = {VOCABULARY, WIDTH}},
    [CAR_GPT2_POSITIONS] = {.name = "wpe.weight", .shape = {POSITIONS, WIDTH}},
    [CAR_GPT2_LN_F] = {.name = "ln_f.weight", .shape = {WIDTH}},
    [CAR_GPT2_LN_F_BIAS] = {.name = "ln_f.bias", .shape = {WIDTH}},
};

static const row block_rows[CAR_GPT2_BLOCK_PARAMS] = {
    [CAR_GPT2_LN_1] = {.name = "ln_1.weight", .shape = {WIDTH}},
    [CAR_GPT2_LN_1_BIAS] = {.name = "ln_1.bias", .shape = {WIDTH}},
    [CAR_GPT2_ATTENTION] = {.name = "attn.c_attn.weight", .shape = {WIDTH, THREE_WIDTHS}, .turned = true},
    [CAR_GPT2_ATTENTION_BIAS] = {.name = "attn.c_attn.bias", .shape = {THREE_WIDTHS}},
    [CAR_GPT2_ATTENTION_OUT] = {.name = "attn.c_proj.weight", .shape = {WIDTH, WIDTH}, .turned = true},
    [CAR_GPT2_ATTENTION_OUT_BIAS] = {.name = "attn.c_proj.bias", .shape = {WIDTH}},
    [CAR_GPT2_LN_2] = {.name = "ln_2.weight", .shape = {WIDTH}},
    [CAR_GPT2_LN_2_BIAS] = {.name = "ln_2.bias", .shape = {WIDTH}},
    [CAR_GPT2_MLP] = {.name = "mlp.c_fc.weight", .shape = {WIDTH, INNER}, .turned = true},
    [CAR_GPT2_MLP_BIAS] = {.name = "mlp.c_fc.bias", .shape = {INNER}},
    [CAR_GPT2_MLP_OUT] = {.name = "mlp.c_proj.weight", .shape = {INNER, WIDTH}, .turned = true},
    [CAR_GPT2_MLP_OUT_BIAS] = {.name = "mlp.c_proj.bias", .shape = {WIDTH}},
};

static int64_t size_of(const car_gpt2_sizes *s, extent e) {
    const int64_t sizes[] = {[NONE] = 1,         [WIDTH] = s->width,           [THREE_WIDTHS] = 3LL * s->width,
                             [INNER] = s->inner, [VOCABULARY] = s->vocabulary, [POSITIONS] = s->positions};
    return sizes[e];
}

static size_t elements_of(const car_gpt2_sizes *s, const row *r) {
    return (size_t)(size_of(s, r->shape[0]) * size_of(s, r->shape[1]));
}

/* Transposes `from`, which is [rows, columns], tile by tile, so that both stay in the cache. */
static void transpose(float *to, const float *from, int64_t rows, int64_t columns) {
    enum { TILE = 32 };
    for (int64_t top = 0; top < rows; top += TILE) {
        for (int64_t left = 0; left < columns; left += TILE) {
            for (int64_t r = top; r < rows && r < top + TILE; r++) {
                for (int64_t c = left; c < columns && c < left + TILE; c++) {
                    to[c * rows + r] = from[r * columns + c];
                }
            }
        }
    }
}

static size_t largest_turned(const car_gpt2_sizes *s) {
    size_t attention = elements_of(s, &block_rows[CAR_GPT2_ATTENTION]), mlp = elements_of(s, &block_rows[CAR_GPT2_MLP]);
    return attention > mlp ? attention : mlp;
}

/* The description of tensor `index` in the file's order: embeddings, blocks, last norm. `name` receives its full
 * name. */
static const row *row_at(const car_gpt2_sizes *s, int index, char name[NAME]) {
    int first = CAR_GPT2_LN_F, blocks = s->depth * CAR_GPT2_BLOCK_PARAMS;
    if (index >= first && index < first + blocks) {
        const row *r = &block_rows[(index - first) % CAR_GPT2_BLOCK_PARAMS];
        snprintf(name, NAME, "%sh.%d.%s", prefix, (index - first) / CAR_GPT2_BLOCK_PARAMS, r->name);
        return r;
    }
    const row *r = &outer_rows[index < first ? index : index - blocks];
    snprintf(name, NAME, "%s%s", prefix, r->name);
    return r;
}

static int tensors_of(const car_gpt2_sizes *s) {
    return CAR_GPT2_OUTER_PARAMS + s->depth * CAR_GPT2_BLOCK_PARAMS;
}

/* ---- reading --------------------------------------------------------------------------------- */

static const car_safetensors_tensor *find(const car_safetensors *file, const char *name) {
    const car_safetensors_tensor *tensor = car_safetensors_find(file, name);
    return tensor ? tensor : car_safetensors_find(file, name + sizeof prefix - 1);
}

/* Dimension `d` of a tensor of rank `rank`; 0 if it has another rank or size. */
static int dimension(const car_safetensors *file, const char *name, int rank, int d) {
    const car_safetensors_tensor *tensor = find(file, name);
    return tensor && tensor->rank == rank && tensor->shape[d] > 0 && tensor->shape[d] <= MOST_SIZE
               ? (int)tensor->shape[d]
               : 0;
}

static car_status find_sizes(car_context *context, const car_safetensors *file, const char *path, int heads,
                             car_gpt2_sizes *s) {
    char name[NAME];
    *s = (car_gpt2_sizes){.vocabulary = dimension(file, "transformer.wte.weight", 2, 0),
                          .width = dimension(file, "transformer.wte.weight", 2, 1),
                          .positions = dimension(file, "transformer.wpe.weight", 2, 0),
                          .inner = dimension(file, "transformer.h.0.mlp.c_fc.weight", 2, 1),
                          .heads = heads};
    do {
        snprintf(name, sizeof name, "%sh.%d.ln_1.weight", prefix, s->depth);
    } while (s->depth < MOST_DEPTH && find(file, name) && ++s->depth);
    if (!s->vocabulary || !s->positions || !s->inner || !s->depth) {
        return car_context_fail(
            context, CAR_ERROR_FORMAT,
            "%s: not the weights of a GPT-2: it must have the matrices wte.weight, wpe.weight and h.0.mlp.c_fc.weight",
            path);
    }
    if (heads < 1 || s->width % heads != 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "%s: width %d is not a multiple of %d heads; the number of heads must divide the width",
                                path, s->width, heads);
    }
    return CAR_OK;
}

static car_status check_tensor(const car_gpt2 *model, const char *path, const char *name, const row *r,
                               const car_safetensors_tensor *tensor) {
    int rank = r->shape[1] == NONE ? 1 : 2;
    if (!tensor) {
        return car_context_fail(model->context, CAR_ERROR_FORMAT, "%s: %s is missing", path, name);
    }
    bool fits = tensor->rank == rank;
    for (int d = 0; fits && d < rank; d++) {
        fits = tensor->shape[d] == size_of(&model->sizes, r->shape[d]);
    }
    return fits ? CAR_OK
                : car_context_fail(model->context, CAR_ERROR_FORMAT,
                                   "%s: the shape of %s does not fit the other tensors", path, name);
}

/* A head that differs from the embedding would be another kind of model. */
static car_status check_head(const car_gpt2 *model, const car_safetensors *file, const char *path) {
    const car_safetensors_tensor *head = car_safetensors_find(file, "lm_head.weight");
    size_t count = elements_of(&model->sizes, &outer_rows[CAR_GPT2_TOKENS]);
    float *values = NULL;
    car_status status = CAR_OK;
    if (!head) {
        return CAR_OK;
    }
    bool same = (uint64_t)head->elements == count;
    if (same) {
        CAR_TRY(car_context_allocate(model->context, count, sizeof *values, &values));
        CAR_TRY(car_safetensors_copy_floats(file, head, values));
        same = memcmp(values, model->outer[CAR_GPT2_TOKENS], count * sizeof *values) == 0;
    }
    if (!same) {
        status = car_context_fail(
            model->context, CAR_ERROR_UNSUPPORTED,
            "%s: lm_head.weight differs from the token embedding; only GPT-2 models that share them are supported",
            path);
    }
done:
    car_context_release(model->context, values, values ? count : 0, sizeof *values);
    return status;
}

/* Records where a tensor of the model is stored. */
static void place_tensor(car_gpt2 *model, int index, const float *values) {
    int place = index - CAR_GPT2_LN_F, inside = model->sizes.depth * CAR_GPT2_BLOCK_PARAMS;
    if (place >= 0 && place < inside) {
        model->blocks[place / CAR_GPT2_BLOCK_PARAMS][place % CAR_GPT2_BLOCK_PARAMS] = values;
    } else {
        model->outer[place < 0 ? index : index - inside] = values;
    }
}

/* All tensors are checked before memory is allocated, so the sizes are known to match the file. */
static car_status read_tensors(car_gpt2 *model, const car_safetensors *file, const char *path) {
    int tensors = tensors_of(&model->sizes);
    size_t total = 0, most = largest_turned(&model->sizes);
    char name[NAME];
    float *scratch = NULL;
    void *block = NULL;
    car_status status = CAR_OK;
    for (int i = 0; i < tensors; i++) {
        const row *r = row_at(&model->sizes, i, name);
        CAR_TRY(check_tensor(model, path, name, r, find(file, name)));
        total += elements_of(&model->sizes, r);
    }
    CAR_TRY(car_context_allocate(model->context, (size_t)model->sizes.depth, sizeof *model->blocks, &model->blocks));
    CAR_TRY(car_context_allocate(model->context, most, sizeof *scratch, &scratch));
    CAR_TRY(car_arena_create(model->context, 0, &model->arena));
    CAR_TRY(car_arena_allocate(model->arena, CAR_MEMORY_WEIGHTS, total * sizeof(float), &block));
    model->values = block;
    float *at = model->values;
    for (int i = 0; i < tensors; i++) {
        const row *r = row_at(&model->sizes, i, name);
        CAR_TRY(car_safetensors_copy_floats(file, find(file, name), r->turned ? scratch : at));
        if (r->turned) {
            transpose(at, scratch, size_of(&model->sizes, r->shape[0]), size_of(&model->sizes, r->shape[1]));
        }
        place_tensor(model, i, at);
        at += elements_of(&model->sizes, r);
    }
    CAR_TRY(check_head(model, file, path));
done:
    car_context_release(model->context, scratch, scratch ? most : 0, sizeof *scratch);
    return status;
}

car_status car_gpt2_read(car_context *context, const char *path, int heads, car_gpt2 *out) {
    car_safetensors *file = NULL;
    car_status status = CAR_OK;
    *out = (car_gpt2){.context = context};
    CAR_TRY(car_safetensors_open(context, path, &file));
    CAR_TRY(find_sizes(context, file, path, heads, &out->sizes));
    CAR_TRY(read_tensors(out, file, path));
done:
    car_safetensors_close(file);
    return status;
}

void car_gpt2_release(car_gpt2 *model) {
    car_arena_destroy(model->arena);
    car_context_release(model->context, model->blocks, model->blocks ? (size_t)model->sizes.depth : 0,
                        sizeof *model->blocks);
    *model = (car_gpt2){0};
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct written {
    char name[NAME];
    int64_t shape[2];
    bool turned;
} written;

car_status car_gpt2_write(const car_gpt2 *model, const char *path) {
    static const char *const metadata[] = {"format", "pt", NULL};
    const car_gpt2_sizes *s = &model->sizes;
    size_t tensors = (size_t)tensors_of(s), most = largest_turned(s);
    float *scratch = NULL;
    written *texts = NULL;
    car_safetensors_entry *entries = NULL;
    car_safetensors_writer *writer = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(model->context, tensors, sizeof *texts, &texts));
    CAR_TRY(car_context_allocate(model->context, tensors, sizeof *entries, &entries));
    CAR_TRY(car_context_allocate(model->context, most, sizeof *scratch, &scratch));
    for (size_t i = 0; i < tensors; i++) {
        const row *r = row_at(s, (int)i, texts[i].name);
        texts[i].turned = r->turned;
        texts[i].shape[0] = size_of(s, r->shape[0]);
        texts[i].shape[1] = size_of(s, r->shape[1]);
        entries[i] = (car_safetensors_entry){
            .name = texts[i].name, .rank = r->shape[1] == NONE ? 1 : 2, .shape = texts[i].shape};
    }
    CAR_TRY(car_safetensors_writer_create(model->context, path, entries, (int)tensors, metadata, &writer));
    const float *at = model->values; /* they are stored in this order */
    for (size_t i = 0; i < tensors; i++) {
        if (texts[i].turned) {
            transpose(scratch, at, texts[i].shape[1], texts[i].shape[0]);
        }
        CAR_TRY(car_safetensors_writer_add(writer, texts[i].turned ? scratch : at));
        at += texts[i].shape[0] * texts[i].shape[1];
    }
    CAR_TRY(car_safetensors_writer_finish(writer, NULL));
done:
    car_safetensors_writer_destroy(writer);
    car_context_release(model->context, scratch, scratch ? most : 0, sizeof *scratch);
    car_context_release(model->context, entries, entries ? tensors : 0, sizeof *entries);
    car_context_release(model->context, texts, texts ? tensors : 0, sizeof *texts);
    return status;
}
