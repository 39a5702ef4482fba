/* tokens:FILE: one long sequence of tokens, cut into samples.
 *
 * A file whose name ends in .bin contains 16-bit little-endian tokens: bare, as nanoGPT writes them, or after
 * llm.c's header of 256 32-bit numbers (magic, version, number of tokens; the rest is unused). In any other file
 * each byte is a token.
 *
 * If the file's name contains "train" and a file with "val" in its place exists, that file is used for evaluation.
 * Otherwise the last tenth of the tokens is. */
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mapped.h"
#include "data/source.h"

enum {
    BYTE_TOKENS = 256,
    ALL_TOKENS = 65536,
    HEADER_BYTES = 1024,
    HEADER_VERSION = 1,
    HEAD_BYTES = 65536 /* bytes of each file that go into the digest */
};
static const uint32_t header_magic = 20240520, header_magic_wide = 20240801;

/* A run of tokens in a mapped file. */
typedef struct sequence {
    const car_mapped *file;
    const unsigned char *data;
    int64_t first, count; /* position in the file, in tokens */
} sequence;

typedef struct tokens {
    car_context *context;
    car_mapped files[CAR_SPLITS]; /* the second one only if evaluation has its own file */
    sequence splits[CAR_SPLITS];
    int width; /* bytes per token */
    car_dataset_config config;
} tokens;

/* ---- the file -------------------------------------------------------------------------------- */

static int token_at(const unsigned char *data, int width, int64_t index) {
    const unsigned char *at = data + index * width;
    return width == 1 ? at[0] : at[0] | at[1] << 8;
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

static car_status check_header(const car_mapped *file) {
    uint32_t version = car_bytes_get_u32(file->data + 4), claimed = car_bytes_get_u32(file->data + 8);
    size_t present = (file->size - HEADER_BYTES) / 2;
    if (version != HEADER_VERSION) {
        return car_context_fail(file->context, CAR_ERROR_UNSUPPORTED,
                                "%s: the header has version %u; only version %d is supported", file->path, version,
                                HEADER_VERSION);
    }
    if (claimed != present || file->size % 2 != 0) {
        return car_context_fail(
            file->context, CAR_ERROR_FORMAT,
            "%s: the header claims %u tokens of 2 bytes, but %zu bytes follow it; the file is cut short or damaged",
            file->path, claimed, file->size - HEADER_BYTES);
    }
    return CAR_OK;
}

/* Locates the tokens in a mapped file. */
static car_status find_tokens(const car_mapped *file, int width, sequence *out) {
    *out = (sequence){.file = file, .data = file->data, .count = (int64_t)file->size / width};
    if (width == 1) {
        return CAR_OK;
    }
    uint32_t magic = file->size >= HEADER_BYTES ? car_bytes_get_u32(file->data) : 0;
    if (magic == header_magic) {
        out->data += HEADER_BYTES;
        out->count -= HEADER_BYTES / width;
        return check_header(file);
    }
    if (magic == header_magic_wide) {
        return car_context_fail(file->context, CAR_ERROR_UNSUPPORTED,
                                "%s: has 32-bit tokens; only 16-bit tokens can be read", file->path);
    }
    if (file->size % 2 != 0) {
        return car_context_fail(file->context, CAR_ERROR_FORMAT,
                                "%s: %zu bytes are not a whole number of 16-bit tokens; if this is a text file, its "
                                "name must not end in .bin",
                                file->path, file->size);
    }
    return CAR_OK;
}

/* Finds the evaluation file that belongs to a training file; *out is NULL if there is none. */
static car_status find_evaluation_file(car_context *context, const char *path, char **out) {
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path, *found = NULL;
    size_t length = strlen(path) + 1, skipped = strlen("train");
    car_status status = CAR_OK;
    *out = NULL;
    for (const char *at = name; (at = strstr(at, "train")) != NULL; at++) {
        found = at;
    }
    if (found == NULL) {
        return CAR_OK;
    }
    size_t before = (size_t)(found - path);
    char *text = NULL;
    CAR_TRY(car_context_allocate(context, length, 1, &text));
    memcpy(text, path, before);
    memcpy(text + before, "val", 3);
    memcpy(text + before + 3, found + skipped, length - before - skipped);
    if (access(text, F_OK) == 0) {
        status = car_context_copy_text(context, text, out);
    }
done:
    car_context_release(context, text, length, 1);
    return status;
}

/* Sets up both sequences, from two files or from one. */
static car_status find_splits(tokens *t, const char *path) {
    char *evaluation_path = NULL;
    car_status status = CAR_OK;
    sequence *train = &t->splits[CAR_SPLIT_TRAIN], *evaluation = &t->splits[CAR_SPLIT_EVALUATION];
    CAR_TRY(car_mapped_open(t->context, path, &t->files[CAR_SPLIT_TRAIN]));
    CAR_TRY(find_tokens(&t->files[CAR_SPLIT_TRAIN], t->width, train));
    CAR_TRY(find_evaluation_file(t->context, path, &evaluation_path));
    if (evaluation_path != NULL) {
        CAR_TRY(car_mapped_open(t->context, evaluation_path, &t->files[CAR_SPLIT_EVALUATION]));
        CAR_TRY(find_tokens(&t->files[CAR_SPLIT_EVALUATION], t->width, evaluation));
    } else if (train->count > 0) {
        *evaluation = *train;
        evaluation->count = train->count / 10;
        train->count -= evaluation->count;
        evaluation->first = train->count;
        evaluation->data += train->count * t->width;
    }
    if (train->count == 0) {
        status = car_context_fail(t->context, CAR_ERROR_FORMAT, "%s: contains no tokens", path);
    }
done:
    car_context_release_text(t->context, evaluation_path);
    return status;
}

/* ---- scanning all tokens --------------------------------------------------------------------- */

/* Plain loops, one per width, so that compilers vectorise them: this runs as fast as the file is read. */
static int largest_token(const sequence *sequence, int width) {
    int largest = 0;
    if (width == 1) {
        return sequence->count > 0 ? BYTE_TOKENS - 1 : 0; /* any byte may occur in a text */
    }
    for (int64_t i = 0; i < sequence->count; i++) {
        int token = token_at(sequence->data, 2, i);
        largest = token > largest ? token : largest;
    }
    return largest;
}

static void mark_used(const sequence *sequence, int width, bool *used) {
    for (int64_t i = 0; i < sequence->count; i++) {
        used[token_at(sequence->data, width, i)] = true;
    }
}

static car_status count_used(const tokens *t, int *out) {
    bool *used = NULL;
    car_status status = car_context_allocate(t->context, ALL_TOKENS, sizeof *used, &used);
    *out = 0;
    if (status == CAR_OK) {
        for (int s = 0; s < CAR_SPLITS; s++) {
            mark_used(&t->splits[s], t->width, used);
        }
        for (int token = 0; token < ALL_TOKENS; token++) {
            *out += used[token];
        }
    }
    car_context_release(t->context, used, ALL_TOKENS, sizeof *used);
    return status;
}

static car_status refuse_token(const tokens *t, const sequence *sequence, int64_t position, int token) {
    long long place = sequence->first + position;
    return car_context_fail(t->context, CAR_ERROR_SHAPE,
                            "%s: token %lld is %d, but the model's vocabulary ends at %d; use a model with a larger "
                            "vocabulary, or a file made with a smaller one",
                            sequence->file->path, place, token, t->config.model.vocabulary - 1);
}

/* Finds the number of classes. With a vocabulary, fails and names the first token outside of it. */
static car_status check_vocabulary(const tokens *t, int vocabulary, int *classes) {
    *classes = 0;
    for (int s = 0; s < CAR_SPLITS; s++) {
        const sequence *sequence = &t->splits[s];
        int largest = largest_token(sequence, t->width);
        *classes = largest + 1 > *classes ? largest + 1 : *classes;
        if (t->width == 1 || largest < vocabulary) {
            continue; /* a byte has no position to report; dataset.c compares the numbers */
        }
        int64_t position = 0;
        while (token_at(sequence->data, t->width, position) < vocabulary) {
            position++;
        }
        return refuse_token(t, sequence, position, token_at(sequence->data, t->width, position));
    }
    return CAR_OK;
}

/* ---- samples --------------------------------------------------------------------------------- */

/* A sample is seq_len tokens and the token after them, and begins where the previous one ends. In training with
 * augmentation, the whole grid is shifted by less than seq_len tokens in each epoch. The number of samples is what
 * fits for every shift. */
static int64_t count_samples(const tokens *t, car_split split) {
    int64_t length = t->config.model.seq_len, wanted = 1;
    if (split == CAR_SPLIT_TRAIN && t->config.augment) {
        wanted = length;
    }
    return t->splits[split].count < wanted ? 0 : (t->splits[split].count - wanted) / length;
}

static int64_t shift_of(const tokens *t, car_split split, int64_t epoch) {
    if (split != CAR_SPLIT_TRAIN || !t->config.augment) {
        return 0;
    }
    uint64_t key = car_random_key(t->config.seed, "shift of token windows");
    return (int64_t)(car_random_u64(key, (uint64_t)epoch) % (uint64_t)t->config.model.seq_len);
}

static car_status sample_tokens(void *state, car_split split, int64_t epoch, int64_t sample, void *input,
                                int32_t *labels) {
    const tokens *t = state;
    const sequence *sequence = &t->splits[split];
    int length = t->config.model.seq_len;
    int64_t first = sample * length + shift_of(t, split, epoch);
    car_status status = car_mapped_check(sequence->file);
    int32_t *inputs = input;
    int token = 0;
    for (int i = 0; status == CAR_OK && i <= length; i++) {
        token = token_at(sequence->data, t->width, first + i);
        if (token >= t->config.model.vocabulary) { /* the file has changed since it was opened */
            return refuse_token(t, sequence, first + i, token);
        }
        if (i < length) {
            inputs[i] = token;
        }
        if (i > 0) {
            labels[i - 1] = token;
        }
    }
    return status;
}

/* ---- the dataset ----------------------------------------------------------------------------- */

static void close_tokens(void *state) {
    tokens *t = state;
    for (int s = CAR_SPLITS - 1; s >= 0; s--) {
        car_mapped_close(&t->files[s]);
    }
    car_context_release(t->context, t, 1, sizeof *t);
}

static car_status fit_config(tokens *t, const char *path, car_dataset_info *info) {
    car_status status = CAR_OK;
    CAR_TRY(check_vocabulary(t, t->config.model.vocabulary, &info->classes));
    for (int s = 0; s < CAR_SPLITS; s++) {
        info->samples[s] = count_samples(t, (car_split)s);
    }
    if (info->samples[CAR_SPLIT_TRAIN] == 0) {
        int length = t->config.model.seq_len;
        status = car_context_fail(t->context, CAR_ERROR_SHAPE,
                                  "%s: has %lld tokens to train on, but samples of %d tokens need at least %d; use a "
                                  "larger file or a smaller seq-len",
                                  path, (long long)t->splits[CAR_SPLIT_TRAIN].count, length,
                                  t->config.augment ? 2 * length : length + 1);
    }
done:
    return status;
}

static car_status open_tokens(car_context *context, const char *path, const car_dataset_config *config,
                              car_dataset_info *info, void **state) {
    car_status status = CAR_OK;
    tokens *t = NULL;
    *state = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *t, &t));
    t->context = context;
    t->width = ends_with(path, ".bin") ? 2 : 1;
    CAR_TRY(find_splits(t, path));
    info->domain = CAR_DOMAIN_TOKENS;
    for (int s = 0; s < CAR_SPLITS; s++) {
        info->tokens[s] = t->splits[s].count;
    }
    if (config != NULL && config->domain == CAR_DOMAIN_TOKENS) {
        t->config = *config;
        CAR_TRY(fit_config(t, path, info));
    } else {
        CAR_TRY(check_vocabulary(t, ALL_TOKENS, &info->classes));
        CAR_TRY(count_used(t, &info->tokens_used));
    }
    *state = t;
    t = NULL;
done:
    if (t != NULL) {
        close_tokens(t);
    }
    return status;
}

static car_status digest_tokens(const void *state, car_sha256 *sha) {
    const tokens *t = state;
    for (int s = 0; s < CAR_SPLITS; s++) {
        const car_mapped *file = &t->files[s];
        if (file->path == NULL) {
            continue;
        }
        const char *slash = strrchr(file->path, '/'), *name = slash != NULL ? slash + 1 : file->path;
        unsigned char bytes[8];
        car_bytes_put_u64(bytes, file->size);
        car_status status = car_mapped_check(file);
        if (status != CAR_OK) {
            return status;
        }
        car_sha256_add(sha, name, strlen(name) + 1);
        car_sha256_add(sha, bytes, sizeof bytes);
        car_sha256_add(sha, file->data, file->size < HEAD_BYTES ? file->size : HEAD_BYTES);
    }
    return CAR_OK;
}

const car_source_methods car_source_tokens = {
    .open = open_tokens,
    .close = close_tokens,
    .digest = digest_tokens,
    .sample = sample_tokens,
};
