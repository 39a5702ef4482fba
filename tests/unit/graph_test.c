/* Building a graph: shapes, parameters and costs of every operation, and finishing it. Mistakes of single operations
 * are in graph_errors_test.c. */
#include "carousel/graph.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/program.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/nets.h"

static car_inputs fixed;

static int set_up(void **state) {
    fixed = (car_inputs){0};
    *state = &fixed;
    if (car_context_create(NULL, &fixed.context) != CAR_OK) {
        return -1;
    }
    car_inputs_open(&fixed);
    return 0;
}

static int tear_down(void **state) {
    car_inputs *f = *state;
    car_graph_destroy(f->graph);
    car_context_destroy(f->context);
    return 0;
}

static void expect_shape(const car_graph *graph, int tensor, car_shape expected) {
    if (tensor == CAR_NONE) {
        fail_msg("not built: %s", car_context_error(car_graph_context(graph)));
    }
    car_shape shape = car_graph_tensor(graph, tensor)->shape;
    assert_int_equal(shape.rank, expected.rank);
    for (int d = 0; d < shape.rank; d++) {
        assert_int_equal(shape.dim[d], expected.dim[d]);
    }
    assert_int_equal(car_graph_tensor(graph, tensor)->bytes, car_shape_elements(expected) * 4);
}

static const car_op *producer(const car_graph *graph, int tensor) {
    return car_graph_op(graph, car_graph_tensor(graph, tensor)->producer);
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

/* Windows counted one by one: as many as start inside of the left padding and end inside of the right one. */
static int64_t count_windows(int64_t size, int kernel, int stride, int pad) {
    int64_t count = 0;
    for (int64_t start = -pad; start + kernel <= size + pad; start += stride) {
        count++;
    }
    return count;
}

static void windows_of_odd_sizes(void **state) {
    car_inputs *f = *state;
    int built = 0;
    for (int size = 1; size <= 11; size += 2) {
        int x = car_graph_input(f->graph, "x", SHAPE4(2, 3, size, size + 1), CAR_F32);
        for (int i = 0; i < 5 * 4 * 4; i++) {
            int kernel = 1 + i % 5, stride = 1 + i / 5 % 4, pad = i / 20;
            int64_t high = count_windows(size, kernel, stride, pad),
                    wide = count_windows(size + 1, kernel, stride, pad);
            if (pad >= kernel || high < 1) {
                continue;
            }
            char name[16] = {(char)('a' + size), (char)('a' + kernel), (char)('a' + stride), (char)('a' + pad)};
            int conv = car_graph_conv(f->graph, name, x, &(car_conv_config){5, kernel, stride, pad, false});
            expect_shape(f->graph, conv, SHAPE4(2, 5, high, wide));
            car_pool_config window = {kernel, stride, pad};
            expect_shape(f->graph, car_graph_avgpool(f->graph, name, x, &window), SHAPE4(2, 3, high, wide));
            if (pad <= kernel / 2) { /* else a window could lie in the padding, which has no maximum */
                expect_shape(f->graph, car_graph_maxpool(f->graph, name, x, &window), SHAPE4(2, 3, high, wide));
            }
            built++;
        }
    }
    assert_true(built > 100);
}

/* The index of a maximum takes a byte for each output. */
static void maxpool_leaves_an_index(void **state) {
    car_inputs *f = *state;
    int pooled = car_graph_maxpool(f->graph, "max", f->image, &(car_pool_config){3, 2, 1});
    expect_shape(f->graph, pooled, SHAPE4(2, 3, 5, 4));
    const car_tensor *aux = car_graph_tensor(f->graph, producer(f->graph, pooled)->aux);
    assert_int_equal(aux->dtype, CAR_U8);
    assert_int_equal(aux->bytes, 2 * 3 * 5 * 4);
}

static void image_operations(void **state) {
    car_inputs *f = *state;
    car_graph *g = f->graph;
    int conv = car_graph_conv(g, "conv", f->image, &(car_conv_config){8, 3, 1, 1, true});
    expect_shape(g, conv, SHAPE4(2, 8, 9, 7));
    int norm = car_net_norm(g, "bn", conv, CAR_NONE, true);
    expect_shape(g, norm, SHAPE4(2, 8, 9, 7));
    assert_int_equal(car_graph_tensor(g, producer(g, norm)->aux)->bytes, 2 * 8 * 4);
    expect_shape(g, car_graph_relu(g, "relu", norm), SHAPE4(2, 8, 9, 7));
    expect_shape(g, car_graph_add(g, "add", conv, norm), SHAPE4(2, 8, 9, 7));
    expect_shape(g, car_graph_dropout(g, "drop", norm, 0.5), SHAPE4(2, 8, 9, 7));
    expect_shape(g, car_graph_gelu(g, "gelu", norm, true), SHAPE4(2, 8, 9, 7));
    expect_shape(g, car_graph_shortcut(g, "cut1", conv, 8, 1), SHAPE4(2, 8, 9, 7));
    expect_shape(g, car_graph_shortcut(g, "cut2", conv, 11, 2), SHAPE4(2, 11, 5, 4));
    expect_shape(g, car_graph_shortcut(g, "cut4", conv, 8, 4), SHAPE4(2, 8, 3, 2));
    expect_shape(g, car_graph_global_avgpool(g, "pool", norm), SHAPE2(2, 8));
    expect_shape(g, car_graph_flatten(g, "flat", norm), SHAPE2(2, 8 * 9 * 7));
    expect_shape(g, car_graph_patch_tokens(g, "class", "positions", conv), SHAPE3(2, 1 + 9 * 7, 8));
}

static void row_operations(void **state) {
    car_inputs *f = *state;
    car_graph *g = f->graph;
    expect_shape(g, car_net_linear(g, "fc", f->rows, 11), SHAPE2(2, 11));
    expect_shape(g, car_net_linear(g, "fc3", f->sequence, 7), SHAPE3(2, 5, 7));
    int norm = car_graph_layernorm(g, "ln", f->sequence, 1e-5);
    expect_shape(g, norm, SHAPE3(2, 5, 12));
    assert_int_equal(car_graph_tensor(g, producer(g, norm)->aux)->bytes, 2 * 5 * 2 * 4);
    expect_shape(g, car_graph_flatten(g, "flat", f->sequence), SHAPE2(2, 60));
    int attention = car_graph_attention(g, "attention", f->sequence, 2, true);
    expect_shape(g, attention, SHAPE3(2, 5, 4));
    assert_int_equal(car_graph_tensor(g, producer(g, attention)->aux)->bytes, 2 * 2 * 5 * 4); /* never T x T */
    expect_shape(g, car_graph_embedding(g, "wte", "wpe", f->tokens, 20, 5, 9), SHAPE3(2, 5, 9));
    expect_shape(g, car_graph_select_token(g, "last", f->sequence, 4), SHAPE2(2, 12));
    int loss = car_graph_cross_entropy(g, "loss", car_net_linear(g, "head", f->rows, 3), f->labels, 0);
    expect_shape(g, loss, SHAPE1(1));
}

/* ---- parameters ---------------------------------------------------------------------------------------- */

static void expect_param(const car_graph *graph, const char *name, car_shape expected, car_param_role role) {
    int id = car_graph_find_param(graph, name);
    if (id == CAR_NONE) {
        fail_msg("no parameter %s", name);
    }
    const car_param *param = car_graph_param(graph, id);
    assert_int_equal(param->role, role);
    assert_int_equal(param->shape.rank, expected.rank);
    assert_memory_equal(param->shape.dim, expected.dim, sizeof(int64_t) * (size_t)expected.rank);
}

static void parameters_are_named_as_pytorch_does(void **state) {
    car_inputs *f = *state;
    car_graph *g = f->graph;
    int conv = car_graph_conv(g, "conv", f->image, &(car_conv_config){8, 3, 1, 1, true});
    car_net_norm(g, "bn", conv, CAR_NONE, false);
    car_net_linear(g, "fc", f->rows, 11);
    car_graph_linear(g, "hf", f->rows, &(car_linear_config){11, true, true, NULL});
    car_net_linear(g, "mha.in_proj", f->rows, 18);
    car_graph_layernorm(g, "ln", f->sequence, 1e-5);
    car_graph_embedding(g, "wte", "wpe", f->tokens, 20, 8, 9);
    car_graph_patch_tokens(g, "class_token", "pos", conv);
    expect_param(g, "conv.weight", SHAPE4(8, 3, 3, 3), CAR_PARAM_WEIGHT);
    expect_param(g, "conv.bias", SHAPE1(8), CAR_PARAM_BIAS);
    expect_param(g, "bn.weight", SHAPE1(8), CAR_PARAM_NORM);
    expect_param(g, "bn.bias", SHAPE1(8), CAR_PARAM_NORM);
    expect_param(g, "bn.running_mean", SHAPE1(8), CAR_PARAM_STATISTIC);
    expect_param(g, "bn.running_var", SHAPE1(8), CAR_PARAM_STATISTIC);
    expect_param(g, "fc.weight", SHAPE2(11, 6), CAR_PARAM_WEIGHT);
    expect_param(g, "hf.weight", SHAPE2(6, 11), CAR_PARAM_WEIGHT);
    expect_param(g, "mha.in_proj_weight", SHAPE2(18, 6), CAR_PARAM_WEIGHT);
    expect_param(g, "mha.in_proj_bias", SHAPE1(18), CAR_PARAM_BIAS);
    expect_param(g, "ln.weight", SHAPE1(12), CAR_PARAM_NORM);
    expect_param(g, "wte.weight", SHAPE2(20, 9), CAR_PARAM_EMBEDDING);
    expect_param(g, "wpe.weight", SHAPE2(8, 9), CAR_PARAM_EMBEDDING);
    expect_param(g, "class_token", SHAPE3(1, 1, 8), CAR_PARAM_EMBEDDING);
    expect_param(g, "pos", SHAPE3(1, 64, 8), CAR_PARAM_EMBEDDING);
    assert_int_equal(car_graph_find_param(g, "conv"), CAR_NONE);
    assert_int_equal(car_graph_param_bytes(g), 4 * (216 + 8 + 4 * 8 + 2 * (66 + 11) + 126 + 24 + 180 + 72 + 8 + 512));
}

static void set_init_replaces(void **state) {
    car_inputs *f = *state;
    car_net_linear(f->graph, "fc", f->rows, 4);
    int weight = car_graph_find_param(f->graph, "fc.weight");
    assert_int_equal(car_graph_param(f->graph, weight)->init.kind, CAR_INIT_UNIFORM);
    assert_true(fabs(car_graph_param(f->graph, weight)->init.a - 1 / sqrt(6)) < 1e-12);
    car_graph_set_init(f->graph, "fc.weight", (car_init){CAR_INIT_NORMAL, 0.25});
    assert_int_equal(car_graph_param(f->graph, weight)->init.kind, CAR_INIT_NORMAL);
    assert_true(car_graph_param(f->graph, weight)->init.a == 0.25);
}

/* Uses are numbered in the order of operations; a tied weight is one parameter with two of them. */
static void uses_are_numbered_through(void **state) {
    car_inputs *f = *state;
    car_graph *g = f->graph;
    int first = car_net_linear(g, "fc", f->rows, 6);
    int second = car_graph_linear(g, "again", first, &(car_linear_config){6, true, false, "fc.weight"});
    int loss = car_graph_cross_entropy(g, "loss", second, f->labels, 0);
    assert_int_equal(car_graph_finish(g, loss), CAR_OK);
    assert_int_equal(car_graph_param_count(g), 3);
    assert_int_equal(car_graph_use_count(g), 4);
    assert_int_equal(producer(g, first)->first_use, 0);
    assert_int_equal(producer(g, second)->first_use, 2);
    static const char *const names[] = {"fc.weight", "fc.bias", "fc.weight", "again.bias"};
    for (int use = 0; use < 4; use++) {
        assert_string_equal(car_graph_param(g, car_graph_use_param(g, use))->name, names[use]);
    }
    assert_int_equal(car_graph_loss(g), loss);
    assert_int_equal(car_graph_logits(g), second);
    assert_int_equal(car_graph_find_tensor(g, "again"), second);
    assert_int_equal(car_graph_find_tensor(g, "nowhere"), CAR_NONE);
}

/* ---- costs --------------------------------------------------------------------------------------------- */

static void costs_by_hand(void **state) {
    car_inputs *f = *state;
    car_graph *g = f->graph;
    int first = car_net_conv(g, "first", f->image, 8, 3, 1);
    int second = car_net_conv(g, "second", first, 5, 3, 2);
    int pool = car_graph_global_avgpool(g, "pool", second);
    int fc = car_net_linear(g, "fc", pool, 11), side = car_net_linear(g, "side", f->rows, 11);
    int loss = car_graph_cross_entropy(g, "loss", car_graph_add(g, "add", fc, side), f->labels, 0);
    assert_int_equal(car_graph_finish(g, loss), CAR_OK);
    /* 2 images; 9x7 and 5x4 pixels; a multiplication and an addition are two. */
    double first_flops = 2.0 * 2 * 8 * 9 * 7 * (3 * 3 * 3), second_flops = 2.0 * 2 * 5 * 5 * 4 * (8 * 3 * 3);
    assert_true(producer(g, first)->flops_forward == first_flops);
    assert_true(producer(g, second)->flops_forward == second_flops);
    assert_true(producer(g, fc)->flops_forward == 2.0 * 2 * 11 * 5);
    assert_true(producer(g, side)->flops_forward == 2.0 * 2 * 11 * 6);
    /* By weights and by data; nobody wants the gradient of an image. */
    assert_true(producer(g, first)->flops_backward == first_flops);
    assert_true(producer(g, second)->flops_backward == 2 * second_flops);
    assert_true(producer(g, fc)->flops_backward == 2 * 2.0 * 2 * 11 * 5);
    assert_true(producer(g, side)->flops_backward == 2.0 * 2 * 11 * 6);
    double forward = 0, backward = 0;
    for (int l = 0; l < car_graph_op_count(g); l++) {
        forward += car_graph_op(g, l)->flops_forward;
        backward += car_graph_op(g, l)->flops_backward;
    }
    assert_true(forward > first_flops + second_flops && car_graph_flops(g, false) == forward);
    assert_true(car_graph_flops(g, true) == backward);
}

/* What stands in front of all parameters costs nothing in backward. */
static void nothing_flows_back_to_the_inputs(void **state) {
    car_inputs *f = *state;
    car_graph *g = f->graph;
    int pooled = car_graph_avgpool(g, "avg", f->image, &(car_pool_config){2, 2, 0});
    int flat = car_graph_flatten(g, "flat", car_graph_relu(g, "relu", pooled));
    int loss = car_graph_cross_entropy(g, "loss", car_net_linear(g, "fc", flat, 3), f->labels, 0);
    assert_int_equal(car_graph_finish(g, loss), CAR_OK);
    for (int tensor = 0; tensor <= flat; tensor++) {
        assert_false(car_graph_tensor(g, tensor)->needs_grad);
        assert_int_equal(car_graph_tensor(g, tensor)->grad_buffer, CAR_NONE);
    }
    assert_true(producer(g, pooled)->flops_forward > 0 && producer(g, pooled)->flops_backward == 0);
    assert_int_equal(car_graph_tensor(g, f->image)->last_backward, CAR_NONE);
}

/* ---- finishing ----------------------------------------------------------------------------------------- */

static void expect_unfinished(car_inputs *f, int loss, const char *part) {
    car_expect_failure(f->context, car_graph_finish(f->graph, loss), CAR_ERROR_ARGUMENT, part);
    /* Nor can it be run. */
    car_program *program = (car_program *)f; /* anything but NULL */
    assert_int_equal(car_program_create(f->graph, NULL, &program), CAR_ERROR_ARGUMENT);
    assert_null(program);
    assert_string_not_equal(car_context_error(f->context), "");
    car_context_clear_error(f->context);
}

static void loss_must_be_the_last_operation(void **state) {
    car_inputs *f = *state;
    expect_unfinished(f, f->rows, "the loss must be");
    int fc = car_net_linear(f->graph, "fc", f->rows, 4);
    int loss = car_graph_cross_entropy(f->graph, "loss", fc, f->labels, 0);
    expect_unfinished(f, fc, "the loss must be");
    expect_unfinished(f, CAR_NONE, "the loss must be");
    expect_unfinished(f, 1000, "the loss must be");
    car_graph_relu(f->graph, "behind", fc);
    expect_unfinished(f, loss, "last operation");
}

static void output_must_reach_the_loss(void **state) {
    car_inputs *f = *state;
    int fc = car_net_linear(f->graph, "fc", f->rows, 4);
    car_graph_relu(f->graph, "astray", fc);
    int loss = car_graph_cross_entropy(f->graph, "loss", fc, f->labels, 0);
    expect_unfinished(f, loss, "astray (relu) does not contribute to the loss");
}

static void something_must_be_trained(void **state) {
    car_inputs *f = *state;
    int relu = car_graph_relu(f->graph, "relu", f->rows);
    expect_unfinished(f, car_graph_cross_entropy(f->graph, "loss", relu, f->labels, 0), "no parameters");
}

static void finished_graph_stays_as_it_is(void **state) {
    car_inputs *f = *state;
    int fc = car_net_linear(f->graph, "fc", f->rows, 4);
    int loss = car_graph_cross_entropy(f->graph, "loss", fc, f->labels, 0);
    assert_int_equal(car_graph_loss(f->graph), CAR_NONE);
    assert_int_equal(car_graph_logits(f->graph), CAR_NONE);
    assert_int_equal(car_graph_finish(f->graph, loss), CAR_OK);
    car_expect_failure(f->context, car_graph_finish(f->graph, loss), CAR_ERROR_ARGUMENT, "already finished");
    int tensors = car_graph_tensor_count(f->graph), params = car_graph_param_count(f->graph);
    assert_int_equal(car_graph_relu(f->graph, "late", fc), CAR_NONE);
    assert_non_null(strstr(car_context_error(f->context), "finished graph cannot be changed"));
    assert_int_equal(car_graph_input(f->graph, "late", SHAPE1(1), CAR_F32), CAR_NONE);
    assert_int_equal(car_net_linear(f->graph, "late", fc, 4), CAR_NONE);
    car_graph_set_init(f->graph, "fc.weight", (car_init){CAR_INIT_CONSTANT, 9});
    assert_true(car_graph_param(f->graph, 0)->init.a != 9);
    assert_int_equal(car_graph_tensor_count(f->graph), tensors);
    assert_int_equal(car_graph_param_count(f->graph), params);
    assert_int_equal(car_graph_op_count(f->graph), 2);
}

static void kinds_have_texts(void **state) {
    (void)state;
    for (int k = 0; k < CAR_OP_KINDS; k++) {
        assert_true(strlen(car_op_kind_text((car_op_kind)k)) > 0);
        for (int other = 0; other < k; other++) {
            assert_string_not_equal(car_op_kind_text((car_op_kind)k), car_op_kind_text((car_op_kind)other));
        }
    }
    assert_string_equal(car_op_kind_text(CAR_OP_GLOBAL_AVGPOOL), "global-avgpool");
    assert_non_null(car_op_kind_text(CAR_OP_KINDS));
    assert_int_equal(car_dtype_bytes(CAR_F32), 4);
    assert_int_equal(car_dtype_bytes(CAR_I32), 4);
    assert_int_equal(car_dtype_bytes(CAR_U8), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(kinds_have_texts),
        TEST(windows_of_odd_sizes),
        TEST(maxpool_leaves_an_index),
        TEST(image_operations),
        TEST(row_operations),
        TEST(parameters_are_named_as_pytorch_does),
        TEST(set_init_replaces),
        TEST(uses_are_numbered_through),
        TEST(costs_by_hand),
        TEST(nothing_flows_back_to_the_inputs),
        TEST(loss_must_be_the_last_operation),
        TEST(output_must_reach_the_loss),
        TEST(something_must_be_trained),
        TEST(finished_graph_stays_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
