/* How much faster is generating with a KV cache than recomputing the whole text for each token? GPT-2 with 124
 * million parameters, both with the same code and threads, in turns.
 *
 *     generate [TOKENS [THREADS [PROMPT]]]     default: 256 tokens, 2 threads, after a prompt of 16
 *
 * Needs 1.1 GB of memory, and temporarily 0.5 GB in TMPDIR. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "carousel/checkpoint.h"
#include "carousel/generate.h"
#include "carousel/model.h"

enum { HEADS = 12, BLOCK = 16 };

/* Writes seeded weights to a file for the generator. */
static car_status write_weights(car_context *context, const char *path) {
    const car_model_config config = {.batch = 1, .seq_len = 8};
    car_graph *graph = NULL;
    car_program *program = NULL;
    car_arena *arena = NULL;
    car_weights *weights = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_model_build(context, "gpt2", &config, &graph));
    CAR_TRY(car_program_create(graph, NULL, &program));
    CAR_TRY(car_arena_create(context, 0, &arena));
    CAR_TRY(car_weights_create(program, arena, &weights));
    CAR_TRY(car_weights_initialize(weights, 1));
    CAR_TRY(car_weights_save(weights, path));
done:
    car_weights_destroy(weights);
    car_arena_destroy(arena);
    car_program_destroy(program);
    car_graph_destroy(graph);
    return status;
}

/* Seconds for tokens `from` to `to` - 1, each from the logits before it: with the cache, or (`anew`) from the
 * beginning. */
static car_status measure(car_generator *g, const int32_t *tokens, int from, int to, bool anew, float *logits,
                          double *seconds) {
    car_status status = CAR_OK;
    car_generator_rewind(g, 0);
    CAR_TRY(car_generator_feed(g, tokens, from, logits));
    double start = car_clock_seconds();
    for (int n = from; n < to; n++) {
        if (anew) {
            car_generator_rewind(g, 0);
            CAR_TRY(car_generator_feed(g, tokens, n + 1, logits));
        } else {
            CAR_TRY(car_generator_feed(g, tokens + n, 1, logits));
        }
    }
    *seconds += car_clock_seconds() - start;
done:
    return status;
}

static car_status compare(car_generator *g, int prompt, int count) {
    car_gpt2_sizes sizes = car_generator_sizes(g);
    int32_t *tokens = calloc((size_t)(prompt + count), sizeof *tokens);
    float *logits = calloc((size_t)sizes.vocabulary, sizeof *logits);
    double seconds[2] = {0, 0};
    car_status status = CAR_OK;
    for (int i = 0; i < prompt + count; i++) {
        tokens[i] = (int32_t)(car_random_u64(1, (uint64_t)i) % (uint64_t)sizes.vocabulary);
    }
    for (int from = prompt; from < prompt + count; from += BLOCK) {
        int to = from + BLOCK < prompt + count ? from + BLOCK : prompt + count;
        CAR_TRY(measure(g, tokens, from, to, false, logits, &seconds[0]));
        CAR_TRY(measure(g, tokens, from, to, true, logits, &seconds[1]));
    }
    printf("%d tokens behind %d: kept %.2f s (%.1f ms a token), anew %.2f s (%.1f ms a token), %.1f times faster\n",
           count, prompt, seconds[0], seconds[0] / count * 1e3, seconds[1], seconds[1] / count * 1e3,
           seconds[1] / seconds[0]);
done:
    free(logits);
    free(tokens);
    return status;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 256, threads = argc > 2 ? atoi(argv[2]) : 2;
    int prompt = argc > 3 ? atoi(argv[3]) : 16;
    const char *folder = getenv("TMPDIR");
    char path[512];
    car_context *context = NULL;
    car_generator *generator = NULL;
    car_generator_config config = car_generator_config_default();
    car_status status = CAR_OK;
    if (count < 1 || prompt < 1 || threads < 1) {
        fputs("usage: generate [TOKENS [THREADS [PROMPT]]]\n", stderr);
        return 2;
    }
    snprintf(path, sizeof path, "%s/carousel_generate_%ld.safetensors", folder ? folder : "/tmp", (long)getpid());
    config.heads = HEADS;
    config.threads = threads;
    CAR_TRY(car_context_create(NULL, &context));
    CAR_TRY(write_weights(context, path));
    CAR_TRY(car_generator_open(context, path, &config, &generator));
    printf("gpt2, %d threads\n", threads);
    CAR_TRY(compare(generator, prompt, count));
done:
    if (status != CAR_OK) {
        fprintf(stderr, "generate: %s\n", context ? car_context_error(context) : car_status_text(status));
    }
    unlink(path);
    car_generator_close(generator);
    if (context) {
        car_context_destroy(context);
    }
    return status != CAR_OK;
}
