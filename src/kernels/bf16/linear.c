/* Linear layers in bf16: three products, the gradient of the weights in floats. */
#include "kernels/bf16/bf16.h"

typedef struct linear_state {
    car_bf16_product forward, by_data, by_weights;
    int64_t rows, in, out;
    size_t row_offset; /* of a row of floats, after the products' scratch */
} linear_state;

static const car_kernel_class *choose(const car_kernel *kernel) {
    (void)kernel;
    return car_program_multiplies_bf16() ? &car_bf16_linear : NULL;
}

static void release(car_kernel *kernel) {
    linear_state *state = kernel->state;
    if (state) {
        car_bf16_product_destroy(&state->by_weights);
        car_bf16_product_destroy(&state->by_data);
        car_bf16_product_destroy(&state->forward);
        car_context_release(kernel->context, state, 1, sizeof *state);
    }
}

/* W as a matrix of in x out, in either layout. */
static car_bf16_matrix weight_of(const linear_state *s, bool in_by_out) {
    return in_by_out ? car_bf16_rows(s->in, s->out, s->out) : car_bf16_turned(s->out, s->in, s->in);
}

static car_bf16_matrix turn(car_bf16_matrix m) {
    return (car_bf16_matrix){m.columns, m.rows, m.column_stride, m.row_stride};
}

static car_status prepare(car_kernel *kernel) {
    const car_linear_config *config = &kernel->op->config.linear;
    car_shape x = car_kernel_in(kernel, 0);
    linear_state *s = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(kernel->context, 1, sizeof *s, &s));
    kernel->state = s;
    s->in = x.dim[x.rank - 1];
    s->out = config->out_features;
    s->rows = car_shape_elements(x) / s->in;
    const car_bf16_matrix in = car_bf16_rows(s->rows, s->in, s->in), out = car_bf16_rows(s->rows, s->out, s->out);
    const car_bf16_matrix weight = weight_of(s, config->in_by_out);
    /* The gradient has the weight's layout: [in, out] is X'G, [out, in] is G'X. */
    const car_bf16_matrix left = config->in_by_out ? in : out, right = config->in_by_out ? out : in;
    const car_bf16_product_config forward = {in, weight, out, .rounds = true, .bias = config->bias};
    const car_bf16_product_config by_weights = {
        turn(left), right, car_bf16_rows(left.columns, right.columns, right.columns), .rounds = false};
    const car_bf16_product_config by_data = {out, turn(weight), in, .rounds = true,
                                             .adds = kernel->op->grad_mode[0] == CAR_GRAD_ADD};
    CAR_TRY(car_bf16_product_create(kernel, &forward, &s->forward));
    CAR_TRY(car_bf16_product_create(kernel, &by_weights, &s->by_weights));
    if (kernel->op->grad_mode[0] != CAR_GRAD_NONE) {
        CAR_TRY(car_bf16_product_create(kernel, &by_data, &s->by_data));
    }
    s->row_offset = car_round_up(kernel->scratch_bytes, 64);
    kernel->scratch_bytes = s->row_offset + (size_t)s->out * sizeof(float);
    kernel->name = car_bf16_product_name(&s->forward);
done:
    return status;
}

static car_status forward(const car_kernel *kernel, const car_kernel_io *io) {
    const linear_state *s = kernel->state;
    return car_bf16_product_run(kernel, &s->forward, io->stream, io->scratch, io->in[0], io->param[0], io->param[1],
                                io->out);
}

/* Computes the input's gradient last, because it may share the input's buffer. */
static car_status backward(const car_kernel *kernel, const car_kernel_io *io) {
    const linear_state *s = kernel->state;
    bool in_by_out = kernel->op->config.linear.in_by_out;
    const void *left = in_by_out ? io->in[0] : io->grad_out, *right = in_by_out ? io->grad_out : io->in[0];
    car_status status = CAR_OK;
    if (kernel->op->config.linear.bias) {
        car_bf16_sum_rows(io->grad_param[1], io->grad_out, s->rows, s->out,
                          (float *)(void *)((char *)io->scratch + s->row_offset));
    }
    CAR_TRY(
        car_bf16_product_run(kernel, &s->by_weights, io->stream, io->scratch, left, right, NULL, io->grad_param[0]));
    if (io->grad_in[0]) {
        CAR_TRY(car_bf16_product_run(kernel, &s->by_data, io->stream, io->scratch, io->grad_out, io->param[0], NULL,
                                     io->grad_in[0]));
    }
done:
    return status;
}

const car_kernel_class car_bf16_linear = {.choose = choose,
                                          .prepare = prepare,
                                          .release = release,
                                          .forward = forward,
                                          .backward = backward,
                                          .adds_grad = true};
