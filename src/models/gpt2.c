/* GPT-2 with Hugging Face's names: gpt2 (124M) and gpt2-nano. Also the sizes from gpt2-medium to MT-NLG's 530
 * billion parameters, which can only be planned: they use the same blocks and GPT-2's tied head, whatever their
 * authors changed.
 *
 * The blocks' weights are stored [in, out], as in Hugging Face's Conv1D; the head reuses the token embedding. The
 * table of positions always has the model's full context, so that weights fit at any sequence length. */
#include "models/models.h"

#include <math.h>

#include "base/base.h"

enum { CONTEXT = 1024, NANO_CONTEXT = 128, LONG_CONTEXT = 2048, MLP_RATIO = 4 };
static const double eps = 1e-5, deviation = 0.02;

static car_status check(car_context *context, const char *name, int positions, const car_model_config *config) {
    car_status status = CAR_OK;
    if (config->seq_len > positions) {
        status = car_context_fail(context, CAR_ERROR_ARGUMENT,
                                  "model %s: sequence length %d is longer than its context; use 1 to %d", name,
                                  config->seq_len, positions);
        goto done;
    }
    CAR_TRY(car_model_check_heads(context, name, config));
    double tokens = (double)config->batch * config->seq_len;
    CAR_TRY(car_model_check_elements(context, name, "an activation", tokens * config->width * MLP_RATIO));
    CAR_TRY(car_model_check_elements(context, name, "the logits", tokens * config->vocabulary));
    CAR_TRY(car_model_check_elements(context, name, "the embedding", (double)config->vocabulary * config->width));
done:
    return status;
}

static int linear(car_graph *graph, const char *name, int x, int out_features, double weight_deviation) {
    car_linear_config config = {.out_features = out_features, .bias = true, .in_by_out = true};
    x = car_graph_linear(graph, name, x, &config);
    car_model_init(graph, name, "weight", CAR_INIT_NORMAL, weight_deviation);
    car_model_init(graph, name, "bias", CAR_INIT_CONSTANT, 0);
    return x;
}

static int block(car_graph *graph, const char *name, int x, const car_model_config *config) {
    int width = config->width;
    /* Projections into the residual stream start smaller, so that its variance does not grow with depth. */
    double residual_deviation = deviation / sqrt(2.0 * config->depth);

    int y = car_graph_layernorm(graph, car_model_label("%s.ln_1", name).text, x, eps);
    y = linear(graph, car_model_label("%s.attn.c_attn", name).text, y, 3 * width, deviation);
    y = car_graph_attention(graph, car_model_label("%s.attn", name).text, y, config->heads, true);
    y = linear(graph, car_model_label("%s.attn.c_proj", name).text, y, width, residual_deviation);
    y = car_model_dropout(graph, config, car_model_label("%s.attn.resid_dropout", name).text, y);
    x = car_graph_add(graph, car_model_label("%s.add_1", name).text, y, x);

    y = car_graph_layernorm(graph, car_model_label("%s.ln_2", name).text, x, eps);
    y = linear(graph, car_model_label("%s.mlp.c_fc", name).text, y, MLP_RATIO * width, deviation);
    y = car_graph_gelu(graph, car_model_label("%s.mlp.act", name).text, y, true);
    y = linear(graph, car_model_label("%s.mlp.c_proj", name).text, y, width, residual_deviation);
    y = car_model_dropout(graph, config, car_model_label("%s.mlp.dropout", name).text, y);
    return car_graph_add(graph, car_model_label("%s.add_2", name).text, y, x);
}

static int build(car_graph *graph, int positions, const car_model_config *config) {
    car_shape sequence = {2, {config->batch, config->seq_len}};
    int tokens = car_graph_input(graph, "tokens", sequence, CAR_I32);
    int x = car_graph_embedding(graph, "transformer.wte", "transformer.wpe", tokens, config->vocabulary, positions,
                                config->width);
    car_model_init(graph, "transformer.wte", "weight", CAR_INIT_NORMAL, deviation);
    car_model_init(graph, "transformer.wpe", "weight", CAR_INIT_NORMAL, deviation);
    x = car_model_dropout(graph, config, "transformer.drop", x);
    for (int i = 0; i < config->depth; i++) {
        x = block(graph, car_model_label("transformer.h.%d", i).text, x, config);
    }
    x = car_graph_layernorm(graph, "transformer.ln_f", x, eps);
    int labels = car_graph_input(graph, "labels", sequence, CAR_I32);
    return car_graph_head_loss(graph, "lm_head", x, labels, config->vocabulary, "transformer.wte.weight",
                               config->label_smoothing);
}

static car_status check_nano(car_context *context, const char *name, const car_model_config *config) {
    return check(context, name, NANO_CONTEXT, config);
}
static car_status check_full(car_context *context, const char *name, const car_model_config *config) {
    return check(context, name, CONTEXT, config);
}

static car_status check_long(car_context *context, const char *name, const car_model_config *config) {
    return check(context, name, LONG_CONTEXT, config);
}

static int build_nano(car_graph *graph, const car_model_config *config) {
    return build(graph, NANO_CONTEXT, config);
}
static int build_full(car_graph *graph, const car_model_config *config) {
    return build(graph, CONTEXT, config);
}

static int build_long(car_graph *graph, const car_model_config *config) {
    return build(graph, LONG_CONTEXT, config);
}

const car_model_entry car_model_gpt2_nano = {
    .info =
        {.name = "gpt2-nano",
         .summary = "GPT-2 with 6 layers of width 192 over bytes, context 128",
         .domain = CAR_DOMAIN_TOKENS,
         .defaults = {.batch = 1, .seq_len = NANO_CONTEXT, .vocabulary = 256, .width = 192, .depth = 6, .heads = 6}},
    .takes_dropout = true,
    .check = check_nano,
    .build = build_nano,
};

const car_model_entry car_model_gpt2 = {
    .info = {.name = "gpt2",
             .summary = "GPT-2, 124 M parameters, context 1024",
             .domain = CAR_DOMAIN_TOKENS,
             .defaults = {.batch = 1, .seq_len = CONTEXT, .vocabulary = 50257, .width = 768, .depth = 12, .heads = 12}},
    .takes_dropout = true,
    .check = check_full,
    .build = build_full,
};

/* ---- models that are only planned ----------------------------------------------------------- */

#define GPT2_SIZE(title, size, w, d, h)                                                                              \
    {                                                                                                                \
        .info =                                                                                                      \
            {.name = title,                                                                                          \
             .summary = size,                                                                                        \
             .domain = CAR_DOMAIN_TOKENS,                                                                            \
             .on_paper = true,                                                                                       \
             .defaults = {.batch = 1, .seq_len = CONTEXT, .vocabulary = 50257, .width = w, .depth = d, .heads = h}}, \
        .takes_dropout = true, .check = check_full, .build = build_full                                              \
    }
#define GPT3_SIZE(title, size, words, w, d, h)                                                                        \
    {                                                                                                                 \
        .info = {.name = title,                                                                                       \
                 .summary = size,                                                                                     \
                 .domain = CAR_DOMAIN_TOKENS,                                                                         \
                 .on_paper = true,                                                                                    \
                 .defaults =                                                                                          \
                     {.batch = 1, .seq_len = LONG_CONTEXT, .vocabulary = words, .width = w, .depth = d, .heads = h}}, \
        .takes_dropout = true, .check = check_long, .build = build_long                                               \
    }

const car_model_entry car_models_on_paper[CAR_MODELS_ON_PAPER] = {
    GPT2_SIZE("gpt2-medium", "GPT-2, 355 M parameters", 1024, 24, 16),
    GPT2_SIZE("gpt2-large", "GPT-2, 774 M parameters", 1280, 36, 20),
    GPT2_SIZE("gpt2-xl", "GPT-2, 1.56 G parameters", 1600, 48, 25),
    GPT3_SIZE("gpt3-6.7b", "GPT-3's 6.7 G parameters, context 2048", 50257, 4096, 32, 32),
    GPT3_SIZE("gpt3-13b", "GPT-3's 13 G parameters", 50257, 5120, 40, 40),
    GPT3_SIZE("gpt3-175b", "GPT-3's 175 G parameters", 50257, 12288, 96, 96),
    GPT3_SIZE("mt-nlg-530b", "Megatron-Turing NLG's 530 G parameters", 51200, 20480, 105, 128),
};
