/* Shared by the kernels that work on bf16. */
#ifndef CAR_KERNELS_BF16_H
#define CAR_KERNELS_BF16_H

#include "base/bf16.h"
#include "kernels/onednn/onednn.h"

extern const car_kernel_class car_bf16_linear, car_bf16_attention, car_bf16_embedding;
extern const car_kernel_class car_bf16_layernorm, car_bf16_cross_entropy, car_bf16_head_loss;

/* A matrix in memory. */
typedef struct car_bf16_matrix {
    int64_t rows, columns, row_stride, column_stride;
} car_bf16_matrix;

static inline car_bf16_matrix car_bf16_rows(int64_t rows, int64_t columns, int64_t stride) {
    return (car_bf16_matrix){rows, columns, stride, 1};
}
static inline car_bf16_matrix car_bf16_turned(int64_t rows, int64_t columns, int64_t stride) {
    return (car_bf16_matrix){columns, rows, 1, stride};
}

/* C = A B (+ bias) (+ C): A and B are bf16, sums are floats, C is either. */
typedef struct car_bf16_product_config {
    car_bf16_matrix a, b, c;
    bool rounds; /* C is bf16 */
    bool bias;   /* adds a float for each column */
    bool adds;   /* adds to C */
} car_bf16_product_config;

typedef struct car_bf16_product {
    car_bf16_product_config config;
    bool by_amx; /* uses our own kernel; the rest is for oneDNN's */
    car_onednn_step step;
    dnnl_memory_desc_t a, b, c, bias;
} car_bf16_product;

/* Creates a product, and raises kernel->scratch_bytes to its need. */
car_status car_bf16_product_create(car_kernel *kernel, const car_bf16_product_config *config, car_bf16_product *out);
void car_bf16_product_destroy(car_bf16_product *product);
/* `scratch` has kernel->scratch_bytes for this product. */
car_status car_bf16_product_run(const car_kernel *kernel, const car_bf16_product *product, void *stream, void *scratch,
                                const void *a, const void *b, const float *bias, void *c);

const char *car_bf16_product_name(const car_bf16_product *product);

/* sum[i] = the sum over rows of x[r][i]; `room` holds one row of floats. */
void car_bf16_sum_rows(float *sum, const car_bf16 *x, int64_t rows, int64_t width, float *room);

#endif
