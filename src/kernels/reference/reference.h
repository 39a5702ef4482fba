/* The reference kernels: plain C, checked by finite differences. All other kernels are checked against them.
 *
 * They store floats and sum in doubles, in the order of the formula; speed does not matter. All images are NCHW
 * (block 1) and all parameters row-major. Backward computes the gradients that are wanted (grad_in != NULL) and
 * overwrites them. Where shapes allow it, each element of grad_out is read before the element of grad_in at the same
 * place is written, so both may share a buffer. */
#ifndef CAR_REFERENCE_H
#define CAR_REFERENCE_H

#include "kernels/kernel.h"

/* image.c */
extern const car_kernel_class car_reference_conv;
extern const car_kernel_class car_reference_maxpool;
extern const car_kernel_class car_reference_avgpool;
extern const car_kernel_class car_reference_global_avgpool;
extern const car_kernel_class car_reference_shortcut;
/* norm.c */
extern const car_kernel_class car_reference_batchnorm;
extern const car_kernel_class car_reference_layernorm;
/* elementwise.c */
extern const car_kernel_class car_reference_relu;
extern const car_kernel_class car_reference_add;
extern const car_kernel_class car_reference_flatten;
extern const car_kernel_class car_reference_gelu;
extern const car_kernel_class car_reference_dropout;
extern const car_kernel_class car_reference_select_token;
/* linear.c, attention.c, embedding.c, loss.c */
extern const car_kernel_class car_reference_linear;
extern const car_kernel_class car_reference_attention;
extern const car_kernel_class car_reference_embedding;
extern const car_kernel_class car_reference_patch_tokens;
extern const car_kernel_class car_reference_cross_entropy;
extern const car_kernel_class car_reference_head_loss; /* head_loss.c */

/* `prepare` for kernels that need neither scratch space nor state. */
car_status car_reference_prepare(car_kernel *kernel);

/* Index of element [n, c, h, w] of an image. */
static inline int64_t car_reference_at(const car_shape *shape, int64_t n, int64_t c, int64_t h, int64_t w) {
    return ((n * shape->dim[1] + c) * shape->dim[2] + h) * shape->dim[3] + w;
}

/* The size of the last dimension, and the number of rows of that length. */
static inline int64_t car_reference_width(const car_shape *shape) {
    return shape->dim[shape->rank - 1];
}
static inline int64_t car_reference_rows(const car_shape *shape) {
    return car_shape_elements(*shape) / car_reference_width(shape);
}

#endif
