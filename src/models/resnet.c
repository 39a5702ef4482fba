/* Residual networks: He et al.'s resnet20 for CIFAR, and torchvision's resnet18 and resnet50.
 *
 * A block ends in a BatchNorm that also adds the identity and applies the ReLU. The operations of the shortcut come
 * right before it, not at the start of the block, so that what they save for backward is held for the shortest time. */
#include "models/models.h"

#include <math.h>

#include "base/base.h"

/* How the networks differ. */
typedef struct layout {
    int stages, blocks[4]; /* blocks of each stage */
    bool bottleneck;       /* 1x1, 3x3, 1x1 with four times the output channels; else 3x3, 3x3 */
    bool projection;       /* shortcuts that change shape are 1x1 convolutions; else they have no parameters */
    bool large_stem;       /* a 7x7 convolution with stride 2 and a max-pool, for images above SMALL_IMAGE */
} layout;

static const layout layout20 = {.stages = 3, .blocks = {3, 3, 3}};
static const layout layout18 = {.stages = 4, .blocks = {2, 2, 2, 2}, .projection = true, .large_stem = true};
static const layout layout50 = {
    .stages = 4, .blocks = {3, 4, 6, 3}, .bottleneck = true, .projection = true, .large_stem = true};

enum { SMALL_IMAGE = 64 };

static bool uses_large_stem(const layout *net, const car_model_config *config) {
    return net->large_stem && config->image_size > SMALL_IMAGE;
}

static int expansion(const layout *net) {
    return net->bottleneck ? 4 : 1;
}

/* ---- building blocks --------------------------------------------------------------------------- */

/* A convolution without bias, with "same" padding and torchvision's initial distribution. */
static int conv(car_graph *graph, const char *name, int x, int out_channels, int kernel, int stride) {
    car_conv_config config = {.out_channels = out_channels, .kernel = kernel, .stride = stride, .pad = kernel / 2};
    int y = car_graph_conv(graph, name, x, &config);
    double fan_out = (double)out_channels * kernel * kernel;
    car_model_init(graph, name, "weight", CAR_INIT_NORMAL, sqrt(2 / fan_out));
    return y;
}

static int norm(car_graph *graph, const char *name, int x, int residual, bool relu) {
    car_batchnorm_config config = {.relu = relu, .eps = 1e-5, .momentum = 0.1};
    return car_graph_batchnorm(graph, name, x, residual, &config);
}

static int shortcut(car_graph *graph, const layout *net, const char *block, int x, int out_channels, int stride) {
    if (!net->projection) {
        return car_graph_shortcut(graph, car_model_label("%s.shortcut", block).text, x, out_channels, stride);
    }
    x = conv(graph, car_model_label("%s.downsample.0", block).text, x, out_channels, 1, stride);
    return norm(graph, car_model_label("%s.downsample.1", block).text, x, CAR_NONE, false);
}

/* The convolutions of a block, each except the last with its BatchNorm and ReLU. */
static int branch(car_graph *graph, const layout *net, const char *block, int x, int channels, int stride) {
    x = conv(graph, car_model_label("%s.conv1", block).text, x, channels, net->bottleneck ? 1 : 3,
             net->bottleneck ? 1 : stride);
    x = norm(graph, car_model_label("%s.bn1", block).text, x, CAR_NONE, true);
    x = conv(graph, car_model_label("%s.conv2", block).text, x, channels, 3, net->bottleneck ? stride : 1);
    if (net->bottleneck) {
        x = norm(graph, car_model_label("%s.bn2", block).text, x, CAR_NONE, true);
        x = conv(graph, car_model_label("%s.conv3", block).text, x, channels * expansion(net), 1, 1);
    }
    return x;
}

static int stem(car_graph *graph, const layout *net, const car_model_config *config) {
    bool large = uses_large_stem(net, config);
    int x = conv(graph, "conv1", car_model_images(graph, config), config->width, large ? 7 : 3, large ? 2 : 1);
    x = norm(graph, "bn1", x, CAR_NONE, true);
    if (large) {
        x = car_graph_maxpool(graph, "maxpool", x, &(car_pool_config){.kernel = 3, .stride = 2, .pad = 1});
    }
    return x;
}

/* ---- the network ----------------------------------------------------------------------------- */

static int build(car_graph *graph, const layout *net, const car_model_config *config) {
    int x = stem(graph, net, config);
    int in_channels = config->width;
    for (int stage = 0; stage < net->stages; stage++) {
        int channels = config->width << stage;
        int out_channels = channels * expansion(net);
        for (int i = 0; i < net->blocks[stage]; i++) {
            car_model_name block = car_model_label("layer%d.%d", stage + 1, i);
            int stride = stage > 0 && i == 0 ? 2 : 1;
            int y = branch(graph, net, block.text, x, channels, stride);
            bool changes_shape = stride != 1 || in_channels != out_channels;
            int identity = changes_shape ? shortcut(graph, net, block.text, x, out_channels, stride) : x;
            x = norm(graph, car_model_label("%s.bn%d", block.text, net->bottleneck ? 3 : 2).text, y, identity, true);
            in_channels = out_channels;
        }
    }
    x = car_graph_global_avgpool(graph, "avgpool", x);
    car_linear_config head = {.out_features = config->classes, .bias = true};
    return car_model_classify(graph, config, car_graph_linear(graph, "fc", x, &head));
}

static int halved(int pixels) {
    return (pixels + 1) / 2;
}

static car_status check(car_context *context, const char *name, const layout *net, const car_model_config *config) {
    car_status status = CAR_OK;
    bool large = uses_large_stem(net, config);
    int first = large ? halved(config->image_size) : config->image_size; /* pixels on a side after conv1 */
    int last = large ? halved(first) : first;
    for (int stage = 1; stage < net->stages; stage++) {
        last = halved(last);
    }
    /* The largest activation is in the first stage or the stem, the largest weight in the last stage. */
    double pixels = (double)first * first;
    double channels = (double)config->width * expansion(net);
    double widest = channels * (1 << (net->stages - 1));
    CAR_TRY(car_model_check_elements(context, name, "an activation", config->batch * channels * pixels));
    CAR_TRY(
        car_model_check_elements(context, name, "the input",
                                 (double)config->batch * config->channels * config->image_size * config->image_size));
    CAR_TRY(car_model_check_elements(context, name, "a weight", widest * widest * 9));
    CAR_TRY(car_model_check_elements(context, name, "the head", widest * config->classes));
    CAR_TRY(car_model_check_elements(context, name, "the logits", (double)config->batch * config->classes));
    if (config->batch * (double)last * last < 2) {
        status = car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "model %s: with batch %d and image size %d the last BatchNorm would get a single value per channel, which "
            "has no variance; use a batch of at least 2 or an image size of at least %d",
            name, config->batch, config->image_size, (1 << (net->stages - 1)) + 1);
    }
done:
    return status;
}

/* ---- the three networks ------------------------------------------------------------------------ */

static int build20(car_graph *graph, const car_model_config *config) {
    return build(graph, &layout20, config);
}
static int build18(car_graph *graph, const car_model_config *config) {
    return build(graph, &layout18, config);
}
static int build50(car_graph *graph, const car_model_config *config) {
    return build(graph, &layout50, config);
}

static car_status check20(car_context *context, const char *name, const car_model_config *config) {
    return check(context, name, &layout20, config);
}
static car_status check18(car_context *context, const char *name, const car_model_config *config) {
    return check(context, name, &layout18, config);
}
static car_status check50(car_context *context, const char *name, const car_model_config *config) {
    return check(context, name, &layout50, config);
}

const car_model_entry car_model_resnet20 = {
    .info = {.name = "resnet20",
             .summary = "He et al.'s residual network for CIFAR, 0.27 M parameters",
             .domain = CAR_DOMAIN_IMAGES,
             .defaults = {.batch = 1, .classes = 10, .image_size = 32, .channels = 3, .width = 16}},
    .check = check20,
    .build = build20,
};

const car_model_entry car_model_resnet18 = {
    .info = {.name = "resnet18",
             .summary = "torchvision's resnet18, 11.7 M parameters; 3x3 stem without max-pool up to 64 pixels",
             .domain = CAR_DOMAIN_IMAGES,
             .defaults = {.batch = 1, .classes = 1000, .image_size = 224, .channels = 3, .width = 64}},
    .check = check18,
    .build = build18,
};

const car_model_entry car_model_resnet50 = {
    .info = {.name = "resnet50",
             .summary = "torchvision's resnet50, 25.6 M parameters; 3x3 stem without max-pool up to 64 pixels",
             .domain = CAR_DOMAIN_IMAGES,
             .defaults = {.batch = 1, .classes = 1000, .image_size = 224, .channels = 3, .width = 64}},
    .check = check50,
    .build = build50,
};
