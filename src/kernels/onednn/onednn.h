/* Shared by the files of the oneDNN table. */
#ifndef CAR_ONEDNN_H
#define CAR_ONEDNN_H

#include <dnnl.h>

#include "base/base.h"
#include "kernels/kernel.h"
#include "kernels/vector/vector.h"

extern const car_kernel_class car_onednn_conv, car_onednn_conv_bf16, car_onednn_maxpool, car_onednn_avgpool,
    car_onednn_gelu;
extern const car_kernel_class car_onednn_linear, car_onednn_attention;
extern const car_kernel_class car_onednn_batchnorm, car_onednn_layernorm;
extern const car_kernel_class car_onednn_relu, car_onednn_add, car_onednn_dropout;
extern const car_kernel_class car_onednn_global_avgpool, car_onednn_shortcut, car_onednn_flatten;
extern const car_kernel_class car_onednn_patch_tokens, car_onednn_cross_entropy, car_onednn_head_loss;

/* The class for a convolution of these shapes; NULL if there is none for bf16. */
const car_kernel_class *car_onednn_choose_conv(const car_kernel *kernel);

/* Converts oneDNN's status to ours; `what` describes the action for the message. */
car_status car_onednn_check(const car_kernel *kernel, dnnl_status_t result, const char *what);
#define CAR_DNNL(kernel, call, what) CAR_TRY(car_onednn_check(kernel, call, what))

/* Type of the kernel's tensors, and of the weights that it reads. */
static inline dnnl_data_type_t car_onednn_type(const car_kernel *kernel) {
    return kernel->bf16 ? dnnl_bf16 : dnnl_f32;
}

/* Describes a rank-4 tensor in NCHW (block 1) or blocked channels; a matrix or sequence as rows. */
car_status car_onednn_image(const car_kernel *kernel, car_shape shape, int block, dnnl_memory_desc_t *out);

/* One argument of a primitive. */
typedef struct car_onednn_argument {
    int index; /* DNNL_ARG_... */
    const dnnl_memory_desc_t *layout;
    const void *data;
} car_onednn_argument;

car_status car_onednn_execute(const car_kernel *kernel, const_dnnl_primitive_t primitive, void *stream,
                              const car_onednn_argument *arguments, int count);

/* A primitive with its description. The caller provides the scratch space. */
typedef struct car_onednn_step {
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t scratch;
    size_t scratch_bytes;
} car_onednn_step;

/* Creates a step from an operation descriptor. `hint` is the forward's description, or NULL. */
car_status car_onednn_step_create(const car_kernel *kernel, const_dnnl_op_desc_t descriptor,
                                  const_dnnl_primitive_desc_t hint, car_onednn_step *out);
/* The two halves of car_onednn_step_create: a description is enough to learn layouts. */
car_status car_onednn_step_describe(const car_kernel *kernel, const_dnnl_op_desc_t descriptor,
                                    const_dnnl_primitive_desc_t hint, car_onednn_step *out);
car_status car_onednn_step_compile(const car_kernel *kernel, car_onednn_step *step);
void car_onednn_step_destroy(car_onednn_step *step);
const char *car_onednn_step_name(const car_onednn_step *step);
const dnnl_memory_desc_t *car_onednn_step_layout(const car_onednn_step *step, dnnl_query_t what);

/* Copies a tensor between two layouts. */
car_status car_onednn_reorder(const car_kernel *kernel, void *stream, const dnnl_memory_desc_t *from,
                              const void *source, const dnnl_memory_desc_t *to, void *target);

/* C = alpha * op(A) op(B) + beta * C, row-major, on the calling thread. */
car_status car_onednn_sgemm(const car_kernel *kernel, char trans_a, char trans_b, int64_t m, int64_t n, int64_t k,
                            const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                            int64_t ldc);

/* Number of rows with a label that counts. */
int64_t car_onednn_counted_rows(const int32_t *labels, int64_t rows);
/* Adds a row's loss to *total, and stores the log-sum-exp of its logits. */
car_status car_onednn_loss_of_row(const car_kernel *kernel, const float *x, int64_t classes, double smoothing,
                                  int64_t row, int32_t label, float *lse, double *total);
/* In backward of a head with its loss: the log-sum-exp of a row of logits. It is the one that forward kept or, with
 * io->makes_loss, computed here, and the row's loss is added to *total. */
car_status car_onednn_head_lse(const car_kernel *kernel, const car_kernel_io *io, int64_t row, const float *logits,
                               float *lse, double *total);
/* The gradient of a row's logits; g may be x. */
void car_onednn_loss_gradient(float *g, const float *x, int64_t classes, double smoothing, int32_t label, float lse,
                              float scale);

#endif
