/* The list of kernel cases, and their graphs. */
#include "kernels/cases.h"

#define IMAGE(n, c, h, w) .shape = {4, {n, c, h, w}}
#define TOKENS(b, t, e) .shape = {3, {b, t, e}}
#define ROWS(r, e) .shape = {2, {r, e}}

#define CONV .kind = CAR_OP_CONV, .config.conv
#define NORM .kind = CAR_OP_BATCHNORM, .config.batchnorm.eps = 1e-5, .config.batchnorm.momentum = 0.1
#define NORM_RELU NORM, .config.batchnorm.relu = true
#define MAXPOOL .kind = CAR_OP_MAXPOOL, .config.pool
#define AVGPOOL .kind = CAR_OP_AVGPOOL, .config.pool
#define SHORTCUT .kind = CAR_OP_SHORTCUT, .config.shortcut.stride
#define LINEAR(out, ...) .kind = CAR_OP_LINEAR, .config.linear = {.out_features = out, __VA_ARGS__}
#define LAYERNORM .kind = CAR_OP_LAYERNORM, .config.layernorm.eps
#define GELU_ERF .kind = CAR_OP_GELU
#define GELU_TANH .kind = CAR_OP_GELU, .config.gelu.tanh = true
#define ATTENTION(h, c) .kind = CAR_OP_ATTENTION, .config.attention = {.heads = h, .causal = c}
#define EMBEDDING(v, p, e) .kind = CAR_OP_EMBEDDING, .vocabulary = v, .positions = p, .width = e
#define SELECT .kind = CAR_OP_SELECT_TOKEN, .config.select_token.index
#define DROPOUT .kind = CAR_OP_DROPOUT, .config.dropout.p
#define HEAD(c, s) .kind = CAR_OP_HEAD_LOSS, .config.head_loss = {.classes = c, .smoothing = s}
#define LOSS .kind = CAR_OP_CROSS_ENTROPY, .config.cross_entropy.smoothing

static const car_case cases[] = {
    /* {out channels, kernel, stride, padding, bias}. For a stride of 2 odd and even sizes differ in the padding
     * that is used on the right. */
    {"conv/3x3", IMAGE(2, 8, 7, 9), CONV = {16, 3, 1, 1, false}},
    {"conv/3x3-batch1-bias", IMAGE(1, 16, 6, 5), CONV = {8, 3, 1, 1, true}},
    {"conv/3x3-5to20", IMAGE(2, 5, 6, 7), CONV = {20, 3, 1, 1, false}},
    {"conv/3x3-33to33-bias", IMAGE(1, 33, 5, 5), CONV = {33, 3, 1, 1, true}},
    {"conv/3x3-4x4", IMAGE(1, 16, 4, 4), CONV = {16, 3, 1, 1, false}},
    {"conv/3x3-wide", IMAGE(3, 24, 3, 17), CONV = {40, 3, 1, 1, false}},
    {"conv/3x3-13-by-10", IMAGE(2, 17, 13, 10), CONV = {9, 3, 1, 1, false}},
    {"conv/3x3-33to33", IMAGE(1, 33, 8, 5), CONV = {33, 3, 1, 1, false}},
    {"conv/3x3-no-padding", IMAGE(3, 8, 5, 6), CONV = {3, 3, 1, 0, false}},
    {"conv/3x3-stride2-odd", IMAGE(2, 16, 9, 7), CONV = {24, 3, 2, 1, false}},
    {"conv/3x3-stride2-even", IMAGE(2, 16, 8, 8), CONV = {32, 3, 2, 1, false}},
    {"conv/3x3-stride2-20to33", IMAGE(1, 20, 8, 7), CONV = {33, 3, 2, 1, true}},
    {"conv/3x3-of-one-pixel", IMAGE(2, 16, 1, 1), CONV = {16, 3, 1, 1, false}},
    {"conv/5x5", IMAGE(1, 8, 7, 6), CONV = {5, 5, 1, 2, false}},
    {"conv/1x1", IMAGE(3, 20, 5, 6), CONV = {33, 1, 1, 0, false}},
    {"conv/1x1-bias", IMAGE(2, 64, 4, 4), CONV = {16, 1, 1, 0, true}},
    {"conv/1x1-stride2-odd", IMAGE(2, 16, 7, 7), CONV = {32, 1, 2, 0, false}},
    {"conv/1x1-stride2-even", IMAGE(2, 16, 8, 8), CONV = {32, 1, 2, 0, false}},
    {"conv/1x1-of-one-pixel", IMAGE(1, 8, 1, 1), CONV = {3, 1, 1, 0, false}},
    {"conv/7x7-stride2", IMAGE(1, 16, 15, 14), CONV = {8, 7, 2, 3, false}},
    {"conv/3x3-32to64", IMAGE(3, 32, 7, 9), CONV = {64, 3, 1, 1, false}},
    {"conv/3x3-64to64-40", IMAGE(1, 64, 40, 40), CONV = {64, 3, 1, 1, false}}, /* several chunks */
    {"conv/3x3-stride2-64to32-odd", IMAGE(2, 64, 9, 7), CONV = {32, 3, 2, 1, false}},
    {"conv/3x3-stride3-32to32", IMAGE(1, 32, 10, 11), CONV = {32, 3, 3, 0, false}},
    {"conv/5x5-32to32-no-padding", IMAGE(2, 32, 6, 8), CONV = {32, 5, 1, 0, false}},
    {"conv/1x1-32to96", IMAGE(2, 32, 5, 5), CONV = {96, 1, 1, 0, false}},
    {"conv/1x1-stride2-32to96-odd", IMAGE(2, 32, 7, 5), CONV = {96, 1, 2, 0, false}},
    {"conv/7x7-stride2-32to32", IMAGE(1, 32, 15, 14), CONV = {32, 7, 2, 3, false}},
    {"conv/first-7x7-stride2", IMAGE(2, 3, 21, 18), CONV = {16, 7, 2, 3, false}, .first = true},
    {"conv/first-3x3", IMAGE(2, 3, 8, 9), CONV = {20, 3, 1, 1, true}, .first = true},
    {"conv/first-grey", IMAGE(1, 1, 6, 6), CONV = {8, 3, 1, 1, false}, .first = true},
    {"conv/first-patches4", IMAGE(2, 3, 12, 8), CONV = {33, 4, 4, 0, true}, .first = true},
    {"conv/first-patches16", IMAGE(1, 3, 32, 48), CONV = {16, 16, 16, 0, true}, .first = true},
    {"conv/first-20-channels", IMAGE(2, 20, 6, 6), CONV = {8, 3, 1, 1, false}, .first = true},

    {"batchnorm/plain", IMAGE(2, 16, 5, 7), NORM},
    {"batchnorm/batch1-3", IMAGE(1, 3, 4, 4), NORM},
    {"batchnorm/one-value", IMAGE(1, 5, 1, 1), NORM},
    {"batchnorm/far-from-zero", IMAGE(3, 20, 5, 5), NORM, .offset = 10},
    {"batchnorm/relu", IMAGE(2, 16, 5, 7), NORM_RELU},
    {"batchnorm/relu-batch1-33", IMAGE(1, 33, 5, 6), NORM_RELU},
    {"batchnorm/relu-20", IMAGE(4, 20, 3, 3), NORM_RELU},
    {"batchnorm/residual", IMAGE(2, 16, 5, 7), NORM, .residual = true},
    {"batchnorm/residual-5", IMAGE(3, 5, 4, 5), NORM, .residual = true},
    {"batchnorm/residual-relu", IMAGE(2, 16, 5, 7), NORM_RELU, .residual = true},
    {"batchnorm/residual-relu-33", IMAGE(2, 33, 3, 5), NORM_RELU, .residual = true},
    {"batchnorm/residual-relu-batch1", IMAGE(1, 8, 7, 7), NORM_RELU, .residual = true},

    {"relu/image", IMAGE(2, 5, 3, 7), .kind = CAR_OP_RELU},
    {"relu/rows", ROWS(3, 33), .kind = CAR_OP_RELU},

    /* {kernel, stride, padding} */
    {"maxpool/3x3-stride2", IMAGE(2, 5, 9, 8), MAXPOOL = {3, 2, 1}},
    {"maxpool/2x2", IMAGE(1, 16, 7, 5), MAXPOOL = {2, 2, 0}},
    {"maxpool/3x3-overlapping", IMAGE(3, 20, 4, 5), MAXPOOL = {3, 1, 1}},
    {"avgpool/3x3-stride2", IMAGE(2, 5, 9, 8), AVGPOOL = {3, 2, 1}},
    {"avgpool/2x2", IMAGE(1, 16, 7, 5), AVGPOOL = {2, 2, 0}},
    {"avgpool/3x3-overlapping", IMAGE(3, 20, 4, 5), AVGPOOL = {3, 1, 1}},
    {"global-avgpool/7x7", IMAGE(2, 20, 7, 7), .kind = CAR_OP_GLOBAL_AVGPOOL},
    {"global-avgpool/one-pixel", IMAGE(1, 33, 1, 1), .kind = CAR_OP_GLOBAL_AVGPOOL},
    {"global-avgpool/16", IMAGE(3, 16, 4, 3), .kind = CAR_OP_GLOBAL_AVGPOOL},
    {"shortcut/stride2-16to32", IMAGE(2, 16, 8, 8), SHORTCUT = 2, .channels = 32},
    {"shortcut/stride2-5to20", IMAGE(2, 5, 7, 9), SHORTCUT = 2, .channels = 20},
    {"shortcut/stride1-20to33", IMAGE(1, 20, 3, 4), SHORTCUT = 1, .channels = 33},
    {"shortcut/stride2-same", IMAGE(1, 8, 5, 6), SHORTCUT = 2, .channels = 8},

    {"add/image", IMAGE(2, 5, 4, 3), .kind = CAR_OP_ADD},
    {"add/tokens", TOKENS(2, 7, 33), .kind = CAR_OP_ADD},
    {"add/rows", ROWS(1, 5), .kind = CAR_OP_ADD},
    {"flatten/image", IMAGE(2, 5, 3, 4), .kind = CAR_OP_FLATTEN},
    {"flatten/image-33", IMAGE(1, 33, 2, 2), .kind = CAR_OP_FLATTEN},
    {"flatten/one-pixel", IMAGE(3, 20, 1, 1), .kind = CAR_OP_FLATTEN},
    {"flatten/tokens", TOKENS(2, 7, 5), .kind = CAR_OP_FLATTEN},

    {"linear/bias", ROWS(5, 33), LINEAR(20, .bias = true)},
    {"linear/no-bias", ROWS(5, 33), LINEAR(20, .bias = false)},
    {"linear/in-by-out", ROWS(5, 33), LINEAR(20, .bias = true, .in_by_out = true)},
    {"linear/in-by-out-no-bias", ROWS(3, 20), LINEAR(33, .bias = false, .in_by_out = true)},
    {"linear/tokens", TOKENS(2, 7, 24), LINEAR(40, .bias = true)},
    {"linear/tokens-in-by-out", TOKENS(2, 65, 12), LINEAR(36, .bias = true, .in_by_out = true)},
    {"linear/tied", TOKENS(2, 7, 12), LINEAR(50, .bias = false), .tied = true},
    {"linear/one-row", ROWS(1, 20), LINEAR(3, .bias = true)},
    {"linear/one-output", ROWS(7, 16), LINEAR(1, .bias = true)},
    {"linear/one-input", ROWS(4, 1), LINEAR(5, .bias = true)},
    {"linear/long-sums", ROWS(34, 2100), LINEAR(37, .bias = true)},
    {"linear/long-sums-in-by-out", ROWS(3, 37), LINEAR(2100, .bias = true, .in_by_out = true)},
    {"linear/head", ROWS(3, 512), LINEAR(10, .bias = true)},

    {"layernorm/tokens", TOKENS(2, 7, 33), LAYERNORM = 1e-5},
    {"layernorm/one-row", TOKENS(1, 1, 20), LAYERNORM = 1e-6},
    {"layernorm/rows", ROWS(5, 192), LAYERNORM = 1e-6},
    {"layernorm/far-from-zero", ROWS(3, 65), LAYERNORM = 1e-5, .offset = 10},
    {"gelu/erf", TOKENS(2, 7, 33), GELU_ERF, .range = 3},
    {"gelu/tanh", TOKENS(2, 7, 33), GELU_TANH, .range = 3},
    {"gelu/erf-image", IMAGE(2, 5, 3, 3), GELU_ERF},
    {"gelu/erf-far", ROWS(4, 65), GELU_ERF, .range = 30},
    {"gelu/tanh-far", ROWS(4, 65), GELU_TANH, .range = 30},

    {"attention/1-token", TOKENS(2, 1, 3 * 8), ATTENTION(1, false), .range = 2},
    {"attention/1-token-causal", TOKENS(1, 1, 3 * 15), ATTENTION(3, true), .range = 2},
    {"attention/7-tokens", TOKENS(3, 7, 3 * 15), ATTENTION(3, false), .range = 2},
    {"attention/7-tokens-causal", TOKENS(3, 7, 3 * 5), ATTENTION(1, true), .range = 2},
    {"attention/65-tokens", TOKENS(2, 65, 3 * 24), ATTENTION(3, false), .range = 2},
    {"attention/65-tokens-causal", TOKENS(2, 65, 3 * 24), ATTENTION(3, true), .range = 2},
    {"attention/197-tokens", TOKENS(1, 197, 3 * 32), ATTENTION(1, false), .range = 2},
    {"attention/197-tokens-causal", TOKENS(1, 197, 3 * 24), ATTENTION(3, true), .range = 2},
    {"attention/sharp", TOKENS(2, 20, 3 * 12), ATTENTION(3, false), .range = 4},

    {"embedding/repeated-tokens", .shape = {2, {2, 7}}, EMBEDDING(5, 9, 20)},
    {"embedding/unused-tokens", .shape = {2, {3, 65}}, EMBEDDING(500, 65, 33)},
    {"embedding/one-token", .shape = {2, {1, 1}}, EMBEDDING(3, 1, 5)},
    {"patch-tokens/3x5", IMAGE(2, 20, 3, 5), .kind = CAR_OP_PATCH_TOKENS},
    {"patch-tokens/one-patch", IMAGE(1, 33, 1, 1), .kind = CAR_OP_PATCH_TOKENS},
    {"patch-tokens/8x8", IMAGE(3, 32, 8, 8), .kind = CAR_OP_PATCH_TOKENS},
    {"select-token/first", TOKENS(3, 7, 20), SELECT = 0},
    {"select-token/last", TOKENS(2, 5, 33), SELECT = 4},
    {"select-token/only", TOKENS(1, 1, 8), SELECT = 0},
    {"dropout/tenth", TOKENS(2, 7, 33), DROPOUT = 0.1},
    {"dropout/half", ROWS(5, 20), DROPOUT = 0.5},
    {"dropout/none", ROWS(2, 9), DROPOUT = 0},
    {"dropout/image", IMAGE(2, 5, 4, 3), DROPOUT = 0.3},

    {"cross-entropy/rows", ROWS(5, 10), LOSS = 0},
    {"cross-entropy/one-row", ROWS(1, 3), LOSS = 0},
    {"cross-entropy/smoothing", ROWS(7, 33), LOSS = 0.1},
    {"cross-entropy/tokens", TOKENS(2, 7, 20), LOSS = 0},
    {"cross-entropy/ignored", TOKENS(2, 7, 20), LOSS = 0, .ignores = true},
    {"cross-entropy/ignored-smoothing", ROWS(8, 65), LOSS = 0.2, .ignores = true},
    {"cross-entropy/nothing-counts", ROWS(1, 5), LOSS = 0.1, .ignores = true},
    {"cross-entropy/many-classes", ROWS(3, 1000), LOSS = 0},
    {"cross-entropy/large-logits", ROWS(6, 33), LOSS = 0.1, .range = 60},

    {"head-loss/rows", ROWS(5, 12), HEAD(10, 0)},
    {"head-loss/smoothing", ROWS(7, 20), HEAD(33, 0.1)},
    {"head-loss/ignored", TOKENS(2, 7, 20), HEAD(17, 0.2), .ignores = true},
    {"head-loss/nothing-counts", ROWS(1, 5), HEAD(3, 0.1), .ignores = true},
    {"head-loss/chunks", ROWS(7, 20), .kind = CAR_OP_HEAD_LOSS,
     .config.head_loss = {.classes = 33, .chunk = 3, .smoothing = 0.1}, .ignores = true},

    /* ---- speed: resnet18 on CIFAR at batch 16 ---- */
    {"speed/conv-3to64-32", IMAGE(16, 3, 32, 32), CONV = {64, 3, 1, 1, false}, .first = true, .speed = true,
     .check_batch = 1},
    {"speed/conv-64to64-32", IMAGE(16, 64, 32, 32), CONV = {64, 3, 1, 1, false}, .speed = true, .check_batch = 1},
    {"speed/conv-64to128-32-stride2", IMAGE(16, 64, 32, 32), CONV = {128, 3, 2, 1, false}, .speed = true,
     .check_batch = 1},
    {"speed/conv-128to128-16", IMAGE(16, 128, 16, 16), CONV = {128, 3, 1, 1, false}, .speed = true, .check_batch = 1},
    {"speed/conv-128to256-16-stride2", IMAGE(16, 128, 16, 16), CONV = {256, 3, 2, 1, false}, .speed = true,
     .check_batch = 1},
    {"speed/conv-256to256-8", IMAGE(16, 256, 8, 8), CONV = {256, 3, 1, 1, false}, .speed = true, .check_batch = 1},
    {"speed/conv-256to512-8-stride2", IMAGE(16, 256, 8, 8), CONV = {512, 3, 2, 1, false}, .speed = true,
     .check_batch = 1},
    {"speed/conv-512to512-4", IMAGE(16, 512, 4, 4), CONV = {512, 3, 1, 1, false}, .speed = true, .check_batch = 1},
    {"speed/conv-64to64-56", IMAGE(4, 64, 56, 56), CONV = {64, 3, 1, 1, false}, .speed = true, .check_batch = 1},
    {"speed/conv-512to512-7", IMAGE(4, 512, 7, 7), CONV = {512, 3, 1, 1, false}, .speed = true, .check_batch = 1},
    /* More tiles and channels than Winograd's backward by weights takes at once. */
    {"speed/conv-144to16-61x59", IMAGE(1, 144, 61, 59), CONV = {16, 3, 1, 1, false}, .speed = true, .check_batch = 1},
    {"speed/conv-16to144-61x59", IMAGE(1, 16, 61, 59), CONV = {144, 3, 1, 1, false}, .speed = true, .check_batch = 1},
    {"speed/conv-1x1-64to256-56", IMAGE(4, 64, 56, 56), CONV = {256, 1, 1, 0, false}, .speed = true, .check_batch = 0},
    {"speed/conv-1x1-256to64-56", IMAGE(4, 256, 56, 56), CONV = {64, 1, 1, 0, false}, .speed = true, .check_batch = 0},
    {"speed/conv-1x1-1024to256-14", IMAGE(4, 1024, 14, 14), CONV = {256, 1, 1, 0, false}, .speed = true,
     .check_batch = 0},
    {"speed/conv-1x1-512to2048-7", IMAGE(4, 512, 7, 7), CONV = {2048, 1, 1, 0, false}, .speed = true, .check_batch = 0},
    {"speed/conv-1x1-64to128-32-stride2", IMAGE(16, 64, 32, 32), CONV = {128, 1, 2, 0, false}, .speed = true,
     .check_batch = 1},
    {"speed/batchnorm-relu-64-32", IMAGE(16, 64, 32, 32), NORM_RELU, .speed = true, .check_batch = 1},
    {"speed/batchnorm-residual-relu-64-32", IMAGE(16, 64, 32, 32), NORM_RELU, .residual = true, .speed = true,
     .check_batch = 1},
    {"speed/batchnorm-residual-relu-512-4", IMAGE(16, 512, 4, 4), NORM_RELU, .residual = true, .speed = true,
     .check_batch = 2},
    {"speed/batchnorm-residual-relu-256-56", IMAGE(4, 256, 56, 56), NORM_RELU, .residual = true, .speed = true,
     .check_batch = 0},
    {"speed/maxpool-64-112", IMAGE(4, 64, 112, 112), MAXPOOL = {3, 2, 1}, .speed = true, .check_batch = 0},

    /* ---- speed: vit-b16 at batch 2, 394 rows; gpt2 with a context of 1024 ---- */
    {"speed/conv-patches16", IMAGE(2, 3, 224, 224), CONV = {768, 16, 16, 0, true}, .first = true, .speed = true,
     .check_batch = 0},
    {"speed/linear-768to2304", ROWS(394, 768), LINEAR(2304, .bias = true), .speed = true, .check_batch = 5},
    {"speed/linear-768to768", ROWS(394, 768), LINEAR(768, .bias = true), .speed = true, .check_batch = 17},
    {"speed/linear-768to3072", ROWS(394, 768), LINEAR(3072, .bias = true), .speed = true, .check_batch = 5},
    {"speed/linear-3072to768", ROWS(394, 3072), LINEAR(768, .bias = true), .speed = true, .check_batch = 5},
    {"speed/linear-768to3072-in-by-out", ROWS(1024, 768), LINEAR(3072, .bias = true, .in_by_out = true), .speed = true,
     .check_batch = 5},
    {"speed/linear-tied-head", ROWS(1024, 768), LINEAR(50257, .bias = false), .tied = true, .speed = true,
     .check_batch = 0},
    {"speed/layernorm-768", ROWS(394, 768), LAYERNORM = 1e-6, .speed = true, .check_batch = 40},
    {"speed/gelu-erf-3072", ROWS(394, 3072), GELU_ERF, .range = 3, .speed = true, .check_batch = 7},
    {"speed/gelu-tanh-3072", ROWS(1024, 3072), GELU_TANH, .range = 3, .speed = true, .check_batch = 7},
    {"speed/attention-197", TOKENS(2, 197, 3 * 768), ATTENTION(12, false), .range = 2, .speed = true, .check_batch = 1},
    {"speed/attention-1024-causal", TOKENS(1, 1024, 3 * 768), ATTENTION(12, true), .range = 2, .speed = true,
     .check_batch = 0},
    {"speed/head-loss-50257", ROWS(1024, 768), HEAD(50257, 0), .speed = true},
    {"speed/cross-entropy-50257", ROWS(1024, 50257), LOSS = 0, .speed = true, .check_batch = 2},
};

int car_case_count(void) {
    return (int)(sizeof cases / sizeof cases[0]);
}

const car_case *car_case_at(int index) {
    return &cases[index];
}
