/* The graph: a model as a static list of operations in topological order.
 *
 * Everything is known before anything runs: shapes, parameters, FLOPs, and which tensors each operation's backward
 * needs. car_graph_finish derives the backward pass and all lifetimes from that, so models never write their own
 * backward. The micro-batch size is part of the shapes.
 *
 * Building: each car_graph_<operation> appends one operation and returns the id of its output tensor. Failure is
 * sticky: after the first one, every call returns CAR_NONE and changes nothing, and car_graph_finish reports it. So
 * a builder reads like the network it builds. */
#ifndef CAROUSEL_GRAPH_H
#define CAROUSEL_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define CAR_NONE (-1)
#define CAR_MAX_RANK 4
#define CAR_MAX_INPUTS 8
#define CAR_MAX_PARAMS 4

typedef struct car_graph car_graph;

typedef struct car_shape {
    int rank;
    int64_t dim[CAR_MAX_RANK];
} car_shape;

typedef enum car_dtype { CAR_F32, CAR_I32, CAR_U8, CAR_BF16, CAR_F64 } car_dtype;

typedef enum car_precision { CAR_PRECISION_FP32, CAR_PRECISION_BF16 } car_precision;

/* "fp32" or "bf16"; CAR_ERROR_UNKNOWN_NAME for anything else. */
car_status car_precision_find(car_context *context, const char *name, car_precision *out);
/* "fp32" or "bf16". */
const char *car_precision_text(car_precision precision);

#define CAR_OP_LIST(X)                         \
    X(CAR_OP_CONV, "conv")                     \
    X(CAR_OP_BATCHNORM, "batchnorm")           \
    X(CAR_OP_RELU, "relu")                     \
    X(CAR_OP_MAXPOOL, "maxpool")               \
    X(CAR_OP_AVGPOOL, "avgpool")               \
    X(CAR_OP_GLOBAL_AVGPOOL, "global-avgpool") \
    X(CAR_OP_SHORTCUT, "shortcut")             \
    X(CAR_OP_ADD, "add")                       \
    X(CAR_OP_FLATTEN, "flatten")               \
    X(CAR_OP_LINEAR, "linear")                 \
    X(CAR_OP_LAYERNORM, "layernorm")           \
    X(CAR_OP_GELU, "gelu")                     \
    X(CAR_OP_ATTENTION, "attention")           \
    X(CAR_OP_EMBEDDING, "embedding")           \
    X(CAR_OP_PATCH_TOKENS, "patch-tokens")     \
    X(CAR_OP_SELECT_TOKEN, "select-token")     \
    X(CAR_OP_DROPOUT, "dropout")               \
    X(CAR_OP_CROSS_ENTROPY, "cross-entropy")   \
    X(CAR_OP_HEAD_LOSS, "head-loss")           \
    X(CAR_OP_CARRY, "carry")                   \
    X(CAR_OP_STAGE, "stage")

typedef enum car_op_kind {
#define CAR_OP_ENUM(kind, text) kind,
    CAR_OP_LIST(CAR_OP_ENUM)
#undef CAR_OP_ENUM
        CAR_OP_KINDS
} car_op_kind;

/* The kind's name, e.g. "conv". */
const char *car_op_kind_text(car_op_kind kind);

/* ---- parameters ------------------------------------------------------------------------------ */

typedef enum car_param_role {
    CAR_PARAM_WEIGHT,
    CAR_PARAM_BIAS,
    CAR_PARAM_NORM, /* scale or shift of a normalisation */
    CAR_PARAM_EMBEDDING,
    CAR_PARAM_STATISTIC /* running mean or variance of BatchNorm; its "gradient" is the batch's statistic */
} car_param_role;

typedef enum car_init_kind {
    CAR_INIT_CONSTANT, /* the value a */
    CAR_INIT_NORMAL,   /* mean 0, standard deviation a */
    CAR_INIT_UNIFORM   /* in [-a, a) */
} car_init_kind;

typedef struct car_init {
    car_init_kind kind;
    double a;
} car_init;

typedef struct car_param {
    const char *name; /* as in PyTorch's state dict */
    car_shape shape;  /* canonical: PyTorch's, row-major */
    car_param_role role;
    car_init init;
    car_dtype dtype; /* CAR_F32; user-defined stages may have CAR_F64 */
    /* Type of the copy that forwards and backwards read: `dtype`, or CAR_BF16 if it is rounded from the floats that
     * updates work on. */
    car_dtype copy;
    bool filled; /* user-defined stages: padded to a multiple of 64 bytes, so that the next parameter is aligned */
} car_param;

/* ---- operations ------------------------------------------------------------------------------ */

typedef struct car_conv_config {
    int out_channels, kernel, stride, pad;
    bool bias;
} car_conv_config;

typedef struct car_pool_config {
    int kernel, stride, pad;
} car_pool_config;

typedef struct car_batchnorm_config {
    bool relu; /* apply ReLU after the normalisation and the residual */
    double eps, momentum;
} car_batchnorm_config;

typedef struct car_linear_config {
    int out_features;
    bool bias;
    bool in_by_out;   /* weight is stored [in, out] (Hugging Face's Conv1D) instead of [out, in] */
    const char *tied; /* name of a parameter of shape [out, in] to use as the weight; NULL: its own */
} car_linear_config;

/* The attributes that kernels read. The operation's kind says which member is valid. */
typedef union car_op_config {
    car_conv_config conv;
    car_pool_config pool;
    car_batchnorm_config batchnorm;
    car_linear_config linear;
    struct {
        double eps;
    } layernorm;
    struct {
        bool tanh; /* the tanh approximation instead of erf */
    } gelu;
    struct {
        int heads;
        bool causal;
    } attention;
    struct {
        int index;
    } select_token;
    struct {
        int stride; /* takes every stride-th pixel; additional channels are zero and come last */
    } shortcut;
    struct {
        double p;
    } dropout;
    struct {
        double smoothing;
    } cross_entropy;
    struct {
        int classes;
        int chunk; /* rows at a time; 0: the kernel chooses */
        double smoothing;
    } head_loss;
    struct {
        const struct car_stage_class *own; /* stage.h */
        const void *user;
        /* How many inputs are: the previous stage's output (0 or 1), carried tensors, data. They come in this order. */
        int states, carried, data;
    } stage;
} car_op_config;

/* The values that a head with its loss stores for each row. */
enum {
    CAR_HEAD_LSE, /* log-sum-exp of its logits, for backward */
    /* Evaluation: how many classes rank above the label (car_head_rank); -1 if the row is ignored. */
    CAR_HEAD_RANK,
    CAR_HEAD_ANSWER, /* evaluation: the class with the largest logit */
    CAR_HEAD_AUX     /* number of values */
};

/* How an operation's backward treats the gradient of one input. */
typedef enum car_grad_mode {
    CAR_GRAD_NONE,  /* not needed */
    CAR_GRAD_WRITE, /* first contribution: the kernel overwrites the buffer */
    CAR_GRAD_ADD,   /* later contribution: the kernel adds to the buffer */
    CAR_GRAD_SHARED /* equal to the output's gradient, in the same buffer: nothing to do */
} car_grad_mode;

typedef struct car_op {
    car_op_kind kind;
    const char *name;
    car_op_config config;
    int input_count, inputs[CAR_MAX_INPUTS]; /* tensor ids */
    int output;                              /* tensor id */
    int aux;                                 /* tensor id of what forward stores for backward only, or CAR_NONE */
    int param_count, params[CAR_MAX_PARAMS]; /* parameter ids */
    int first_use; /* parameter uses are numbered through the graph: params[p] is use first_use + p */
    /* What backward reads besides the output's gradient, the parameters and aux. */
    bool saves_input[CAR_MAX_INPUTS], saves_output;
    double flops_forward, flops_backward; /* a multiplication and an addition count as two */
    /* Set by car_graph_finish. */
    car_grad_mode grad_mode[CAR_MAX_INPUTS];
} car_op;

/* ---- tensors --------------------------------------------------------------------------------- */

typedef struct car_tensor {
    const char *name;
    car_shape shape;
    car_dtype dtype;
    size_t bytes; /* of the logical shape; for bf16 rounded up to a multiple of 4 */
    int producer; /* operation, or CAR_NONE for an input of the graph */
    /* Set by car_graph_finish. */
    bool needs_grad;
    int last_forward;  /* last operation whose forward reads it, or its producer */
    int last_backward; /* held until the backward of this operation; CAR_NONE: not held */
    int grad_buffer;   /* buffer of its gradient, or CAR_NONE; tensors may share one */
} car_tensor;

/* A buffer for gradients of activations. It lives from the start of the backward of operation `born` to the end of
 * the backward of `dies`; born >= dies, as backward runs downwards. */
typedef struct car_grad_buffer {
    size_t bytes;
    int born, dies;
    int over_tensor; /* reuses the memory of this tensor, which is dead by then; CAR_NONE: new memory */
} car_grad_buffer;

/* ---- building -------------------------------------------------------------------------------- */

/* Creates an empty graph. A graph is built by one thread. */
car_status car_graph_create(car_context *context, car_graph **out);
void car_graph_destroy(car_graph *graph);

/* Sets the precision; call it before car_graph_finish. The default is CAR_PRECISION_FP32. With bf16, outputs of
 * operations except the loss, their gradients, and the copies of weights and embeddings used for computing are bf16.
 * Biases, norm parameters, inputs of the graph and what operations store for backward (statistics, log-sum-exps)
 * stay floats. */
void car_graph_set_precision(car_graph *graph, car_precision precision);

/* Checks the graph and derives the backward pass and the lifetimes. `loss` is the scalar output of a cross-entropy,
 * of a head with its loss, or of a user-defined stage that hands nothing on (stage.h). After success the graph is
 * immutable and any thread may read it. */
car_status car_graph_finish(car_graph *graph, int loss);

/* Builders. Names are copied. Images are [batch, channels, height, width], sequences [batch, tokens, width]. */
int car_graph_input(car_graph *graph, const char *name, car_shape shape, car_dtype dtype);
/* A 2-D convolution. Parameters are NAME.weight and NAME.bias. */
int car_graph_conv(car_graph *graph, const char *name, int x, const car_conv_config *config);
/* Batch normalisation, then optionally ReLU. `residual` is a tensor to add in between, or CAR_NONE. Also has the running
 * statistics as parameters. */
int car_graph_batchnorm(car_graph *graph, const char *name, int x, int residual, const car_batchnorm_config *config);
int car_graph_relu(car_graph *graph, const char *name, int x);
int car_graph_maxpool(car_graph *graph, const char *name, int x, const car_pool_config *config);
int car_graph_avgpool(car_graph *graph, const char *name, int x, const car_pool_config *config);
int car_graph_global_avgpool(car_graph *graph, const char *name, int x); /* -> [batch, channels] */
/* A shortcut without parameters: takes every stride-th pixel and fills channels beyond those of x with zeros. */
int car_graph_shortcut(car_graph *graph, const char *name, int x, int out_channels, int stride);
/* a + b, of the same shape. */
int car_graph_add(car_graph *graph, const char *name, int a, int b);
int car_graph_flatten(car_graph *graph, const char *name, int x); /* -> [batch, rest] */
/* Acts on the last dimension. Parameters are NAME.weight (or `tied`) and NAME.bias. */
int car_graph_linear(car_graph *graph, const char *name, int x, const car_linear_config *config);
/* Over the last dimension. Parameters are NAME.weight and NAME.bias. */
int car_graph_layernorm(car_graph *graph, const char *name, int x, double eps);
int car_graph_gelu(car_graph *graph, const char *name, int x, bool tanh);
/* x is [batch, tokens, 3*width]: queries, keys and values side by side, each split into heads. */
int car_graph_attention(car_graph *graph, const char *name, int x, int heads, bool causal);
/* tokens [batch, T] of CAR_I32 -> [batch, T, width]: a row of TOKEN_NAME.weight plus a row of POSITION_NAME.weight. */
int car_graph_embedding(car_graph *graph, const char *token_name, const char *position_name, int tokens, int vocabulary,
                        int positions, int width);
/* x [batch, width, h, w] -> [batch, 1 + h*w, width]: puts the class token first and adds the position embedding. */
int car_graph_patch_tokens(car_graph *graph, const char *class_name, const char *position_name, int x);
int car_graph_select_token(car_graph *graph, const char *name, int x, int index); /* -> [batch, width] */
/* Zeroes elements with probability p in training, and scales the others by 1 / (1 - p). */
int car_graph_dropout(car_graph *graph, const char *name, int x, double p);
/* Mean over rows of the cross-entropy of softmax(logits) with labels of CAR_I32, [rows] or [batch, T]. Rows with a
 * negative label are ignored. -> [1] */
int car_graph_cross_entropy(car_graph *graph, const char *name, int logits, int labels, double smoothing);

/* A linear layer without bias and its cross-entropy in one operation, which computes the logits one chunk of rows at
 * a time. `tied` names a parameter of shape [classes, width] to use as the weight; NULL: its own. -> [1] */
int car_graph_head_loss(car_graph *graph, const char *name, int x, int labels, int classes, const char *tied,
                        double smoothing);

/* Replaces the initial distribution of a parameter. The defaults are PyTorch's. */
void car_graph_set_init(car_graph *graph, const char *param_name, car_init init);

/* ---- reading --------------------------------------------------------------------------------- */

/* For a NULL graph, or an id that does not exist, these return 0, NULL or CAR_NONE. */
car_context *car_graph_context(const car_graph *graph);
car_precision car_graph_precision(const car_graph *graph);
int car_graph_op_count(const car_graph *graph);
int car_graph_tensor_count(const car_graph *graph);
int car_graph_param_count(const car_graph *graph);
int car_graph_use_count(const car_graph *graph);
int car_graph_grad_buffer_count(const car_graph *graph);
/* Descriptions, owned by the graph. */
const car_op *car_graph_op(const car_graph *graph, int op);
const car_tensor *car_graph_tensor(const car_graph *graph, int tensor);
const car_param *car_graph_param(const car_graph *graph, int param);
const car_grad_buffer *car_graph_grad_buffer(const car_graph *graph, int buffer);
int car_graph_use_param(const car_graph *graph, int use);            /* the parameter of a use */
int car_graph_find_param(const car_graph *graph, const char *name);  /* CAR_NONE if absent */
int car_graph_find_tensor(const car_graph *graph, const char *name); /* CAR_NONE if absent */
int car_graph_loss(const car_graph *graph);                          /* tensor id */
/* Tensor id of the logits; CAR_NONE if they never exist as a whole, or the loss is a user-defined stage's. */
int car_graph_logits(const car_graph *graph);
int car_graph_head(const car_graph *graph);        /* operation that makes the logits, or CAR_NONE */
int64_t car_graph_classes(const car_graph *graph); /* of the loss; 0 for a user-defined stage */

int64_t car_shape_elements(car_shape shape);
size_t car_dtype_bytes(car_dtype dtype);
/* Bytes of `elements` elements; for bf16 rounded up to a multiple of 4. */
size_t car_dtype_size(car_dtype dtype, int64_t elements);
/* Bytes in row-major layout. Parameters of doubles are padded to a multiple of 64, so that they are always aligned. */
size_t car_param_bytes(const car_param *param);
size_t car_param_copy_bytes(const car_param *param); /* of the copy that forwards and backwards read */

/* The tensors that cross a cut before operation `cut` in forward: produced before it and read at or after it. Inputs
 * of the graph do not count, as they are fed where they are used. Writes at most `capacity` ids and returns how many
 * there are. */
int car_graph_crossing(const car_graph *graph, int cut, int *tensors, int capacity);

/* Bytes that the forward of operations begin..end-1 leaves held for backward. A tensor counts where it is produced;
 * an input of the graph counts where it is first used. */
size_t car_graph_held_bytes(const car_graph *graph, int begin, int end);

/* Totals over the graph. */
double car_graph_flops(const car_graph *graph, bool backward);
size_t car_graph_param_bytes(const car_graph *graph); /* as floats, each parameter once, with statistics */
size_t car_graph_copy_bytes(const car_graph *graph);  /* the same for the copies that forwards and backwards read */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
