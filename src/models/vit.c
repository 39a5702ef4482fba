/* Vision transformers in torchvision's layout: vit-tiny and vit-b16.
 *
 * The class token is selected before the last LayerNorm. That norm acts on each token separately, so normalising the
 * other tokens would be wasted work. */
#include "models/models.h"

#include <math.h>

#include "base/base.h"

enum { SMALL_IMAGE = 64, SMALL_PATCH = 4, PATCH = 16, MLP_RATIO = 4 };
static const double eps = 1e-6;

static int patch_tiny(const car_model_config *config) {
    return config->image_size <= SMALL_IMAGE ? SMALL_PATCH : PATCH;
}

static car_status check(car_context *context, const char *name, int patch, const car_model_config *config) {
    car_status status = CAR_OK;
    int size = config->image_size;
    if (size % patch != 0) {
        int below = size / patch * patch;
        status = car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "model %s: image size %d is not a multiple of the patch size, %d; use %d or another multiple", name, size,
            patch, below > 0 ? below : patch);
        goto done;
    }
    CAR_TRY(car_model_check_heads(context, name, config));
    int side = size / patch;
    double patches = (double)side * side;
    double widest = (double)config->width * MLP_RATIO;
    CAR_TRY(car_model_check_elements(context, name, "an activation", config->batch * (1 + patches) * widest));
    CAR_TRY(
        car_model_check_elements(context, name, "the input", (double)config->batch * config->channels * size * size));
    CAR_TRY(car_model_check_elements(context, name, "the head", (double)config->width * config->classes));
    CAR_TRY(car_model_check_elements(context, name, "the logits", (double)config->batch * config->classes));
done:
    return status;
}

static int linear(car_graph *graph, const char *name, int x, int out_features) {
    car_linear_config config = {.out_features = out_features, .bias = true};
    return car_graph_linear(graph, name, x, &config);
}

static int self_attention(car_graph *graph, const char *layer, int x, const car_model_config *config) {
    int width = config->width;
    car_model_name name = car_model_label("%s.self_attention", layer);
    x = linear(graph, car_model_label("%s.in_proj", name.text).text, x, 3 * width);
    /* Xavier's bound for the three projections as one matrix [3*width, width], as in nn.MultiheadAttention. */
    car_model_init(graph, name.text, "in_proj_weight", CAR_INIT_UNIFORM, sqrt(6.0 / (4.0 * width)));
    car_model_init(graph, name.text, "in_proj_bias", CAR_INIT_CONSTANT, 0);
    x = car_graph_attention(graph, name.text, x, config->heads, false);
    x = linear(graph, car_model_label("%s.out_proj", name.text).text, x, width);
    car_model_init(graph, name.text, "out_proj.bias", CAR_INIT_CONSTANT, 0);
    return car_model_dropout(graph, config, car_model_label("%s.dropout", layer).text, x);
}

static int mlp(car_graph *graph, const char *layer, int x, const car_model_config *config) {
    int width = config->width, hidden = MLP_RATIO * width;
    double bound = sqrt(6.0 / ((double)width + hidden));
    car_model_name name = car_model_label("%s.mlp", layer);
    x = linear(graph, car_model_label("%s.0", name.text).text, x, hidden);
    x = car_graph_gelu(graph, car_model_label("%s.1", name.text).text, x, false);
    x = linear(graph, car_model_label("%s.3", name.text).text, x, width);
    car_model_init(graph, name.text, "0.weight", CAR_INIT_UNIFORM, bound);
    car_model_init(graph, name.text, "0.bias", CAR_INIT_NORMAL, 1e-6);
    car_model_init(graph, name.text, "3.weight", CAR_INIT_UNIFORM, bound);
    car_model_init(graph, name.text, "3.bias", CAR_INIT_NORMAL, 1e-6);
    return car_model_dropout(graph, config, car_model_label("%s.4", name.text).text, x);
}

static int encoder_layer(car_graph *graph, const char *layer, int x, const car_model_config *config) {
    int y = car_graph_layernorm(graph, car_model_label("%s.ln_1", layer).text, x, eps);
    y = self_attention(graph, layer, y, config);
    x = car_graph_add(graph, car_model_label("%s.add_1", layer).text, y, x);
    y = car_graph_layernorm(graph, car_model_label("%s.ln_2", layer).text, x, eps);
    y = mlp(graph, layer, y, config);
    return car_graph_add(graph, car_model_label("%s.add_2", layer).text, y, x);
}

/* Images to tokens: a convolution whose stride equals its kernel cuts them into patches. */
static int embed(car_graph *graph, int patch, const car_model_config *config) {
    car_conv_config conv = {.out_channels = config->width, .kernel = patch, .stride = patch, .bias = true};
    int x = car_graph_conv(graph, "conv_proj", car_model_images(graph, config), &conv);
    /* torchvision truncates this normal at +-2, which is so many deviations that it makes no difference. */
    double fan_in = (double)config->channels * patch * patch;
    car_model_init(graph, "conv_proj", "weight", CAR_INIT_NORMAL, sqrt(1 / fan_in));
    car_model_init(graph, "conv_proj", "bias", CAR_INIT_CONSTANT, 0);
    x = car_graph_patch_tokens(graph, "class_token", "encoder.pos_embedding", x);
    car_graph_set_init(graph, "class_token", (car_init){CAR_INIT_CONSTANT, 0});
    car_graph_set_init(graph, "encoder.pos_embedding", (car_init){CAR_INIT_NORMAL, 0.02});
    return car_model_dropout(graph, config, "encoder.dropout", x);
}

static int build(car_graph *graph, int patch, const car_model_config *config) {
    int x = embed(graph, patch, config);
    for (int i = 0; i < config->depth; i++) {
        x = encoder_layer(graph, car_model_label("encoder.layers.encoder_layer_%d", i).text, x, config);
    }
    x = car_graph_select_token(graph, "class", x, 0);
    x = car_graph_layernorm(graph, "encoder.ln", x, eps);
    x = linear(graph, "heads.head", x, config->classes);
    car_model_init(graph, "heads.head", "weight", CAR_INIT_CONSTANT, 0);
    car_model_init(graph, "heads.head", "bias", CAR_INIT_CONSTANT, 0);
    return car_model_classify(graph, config, x);
}

static car_status check_tiny(car_context *context, const char *name, const car_model_config *config) {
    return check(context, name, patch_tiny(config), config);
}
static car_status check_b16(car_context *context, const char *name, const car_model_config *config) {
    return check(context, name, PATCH, config);
}

static int build_tiny(car_graph *graph, const car_model_config *config) {
    return build(graph, patch_tiny(config), config);
}
static int build_b16(car_graph *graph, const car_model_config *config) {
    return build(graph, PATCH, config);
}

const car_model_entry car_model_vit_tiny = {
    .info = {.name = "vit-tiny",
             .summary = "vision transformer, width 192; patches of 4 up to 64 pixels, of 16 above",
             .domain = CAR_DOMAIN_IMAGES,
             .defaults =
                 {.batch = 1, .classes = 10, .image_size = 32, .channels = 3, .width = 192, .depth = 12, .heads = 3}},
    .takes_dropout = true,
    .check = check_tiny,
    .build = build_tiny,
};

const car_model_entry car_model_vit_b16 = {
    .info =
        {.name = "vit-b16",
         .summary = "torchvision's vit_b_16, 86.6 M parameters",
         .domain = CAR_DOMAIN_IMAGES,
         .defaults =
             {.batch = 1, .classes = 1000, .image_size = 224, .channels = 3, .width = 768, .depth = 12, .heads = 12}},
    .takes_dropout = true,
    .check = check_b16,
    .build = build_b16,
};
