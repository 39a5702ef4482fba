/* Products of bf16 matrices, with AMX (amx_product.c) or oneDNN's matmul. Both pack their operands and sum in
 * floats. */
#include "kernels/bf16/amx.h"

static car_status describe(const car_kernel *kernel, const car_bf16_matrix *matrix, dnnl_data_type_t type,
                           dnnl_memory_desc_t *out) {
    const dnnl_dims_t dims = {matrix->rows, matrix->columns}, strides = {matrix->row_stride, matrix->column_stride};
    return car_onednn_check(kernel, dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides), "describe a matrix");
}

static car_status create_attributes(const car_kernel *kernel, bool adds, dnnl_primitive_attr_t *out) {
    dnnl_post_ops_t sum = NULL;
    car_status status = CAR_OK;
    CAR_DNNL(kernel, dnnl_primitive_attr_create(out), "create attributes");
    CAR_DNNL(kernel, dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user), "ask for scratch");
    if (adds) {
        CAR_DNNL(kernel, dnnl_post_ops_create(&sum), "create a sum");
        CAR_DNNL(kernel, dnnl_post_ops_append_sum(sum, 1.0F), "add a sum");
        CAR_DNNL(kernel, dnnl_primitive_attr_set_post_ops(*out, sum), "set a sum");
    }
done:
    if (sum) {
        dnnl_post_ops_destroy(sum);
    }
    return status;
}

static void note_scratch(car_kernel *kernel, size_t bytes) {
    kernel->scratch_bytes = bytes > kernel->scratch_bytes ? bytes : kernel->scratch_bytes;
}

static car_status create_by_onednn(car_kernel *kernel, car_bf16_product *out) {
    const car_bf16_product_config *config = &out->config;
    const car_bf16_matrix bias = {1, config->c.columns, config->c.columns, 1};
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_matmul_desc_t descriptor;
    car_onednn_step *step = &out->step;
    car_status status = CAR_OK;
    CAR_TRY(describe(kernel, &config->a, dnnl_bf16, &out->a));
    CAR_TRY(describe(kernel, &config->b, dnnl_bf16, &out->b));
    CAR_TRY(describe(kernel, &config->c, config->rounds ? dnnl_bf16 : dnnl_f32, &out->c));
    CAR_TRY(describe(kernel, &bias, dnnl_f32, &out->bias));
    CAR_TRY(create_attributes(kernel, config->adds, &attributes));
    CAR_DNNL(kernel, dnnl_matmul_desc_init(&descriptor, &out->a, &out->b, config->bias ? &out->bias : NULL, &out->c),
             "describe a product");
    CAR_DNNL(kernel, dnnl_primitive_desc_create(&step->description, &descriptor, attributes, kernel->engine, NULL),
             "find a product of bf16");
    step->scratch = *dnnl_primitive_desc_query_md(step->description, dnnl_query_scratchpad_md, 0);
    step->scratch_bytes = dnnl_memory_desc_get_size(&step->scratch);
    CAR_TRY(car_onednn_step_compile(kernel, step));
    note_scratch(kernel, step->scratch_bytes);
done:
    if (attributes) {
        dnnl_primitive_attr_destroy(attributes);
    }
    return status;
}

car_status car_bf16_product_create(car_kernel *kernel, const car_bf16_product_config *config, car_bf16_product *out) {
    out->config = *config;
    out->by_amx = car_amx_usable();
    if (!out->by_amx) {
        return create_by_onednn(kernel, out);
    }
    note_scratch(kernel, car_amx_scratch_bytes(config));
    return CAR_OK;
}

const char *car_bf16_product_name(const car_bf16_product *product) {
    return product->by_amx ? "amx" : car_onednn_step_name(&product->step);
}

void car_bf16_product_destroy(car_bf16_product *product) {
    car_onednn_step_destroy(&product->step);
}

car_status car_bf16_product_run(const car_kernel *kernel, const car_bf16_product *product, void *stream, void *scratch,
                                const void *a, const void *b, const float *bias, void *c) {
    if (product->by_amx) {
        car_amx_multiply(&product->config, a, b, bias, c, scratch);
        return CAR_OK;
    }
    const car_onednn_argument arguments[] = {
        {DNNL_ARG_SRC, &product->a, a},        {DNNL_ARG_WEIGHTS, &product->b, b},
        {DNNL_ARG_DST, &product->c, c},        {DNNL_ARG_SCRATCHPAD, &product->step.scratch, scratch},
        {DNNL_ARG_BIAS, &product->bias, bias},
    };
    return car_onednn_execute(kernel, product->step.primitive, stream, arguments, product->config.bias ? 5 : 4);
}

void car_bf16_sum_rows(float *sum, const car_bf16 *x, int64_t rows, int64_t width, float *room) {
    const car_vector *vector = car_vector_select();
    vector->widen(sum, x, width);
    for (int64_t r = 1; r < rows; r++) {
        vector->widen(room, x + r * width, width);
        vector->accumulate(sum, room, width);
    }
}
