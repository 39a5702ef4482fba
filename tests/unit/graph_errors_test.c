/* Every way to get an operation of a graph wrong: its status, a message that names the culprit, and a failure that
 * sticks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/graph.h"
#include "support/inputs.h"
#include "support/nets.h"

/* Each appends one bad operation named "bad" and returns its id. */
typedef struct mistake {
    const char *what;
    int (*make)(car_inputs *f);
    car_status expected;
    const char *message; /* part of it */
} mistake;

#define CONV(...) car_graph_conv(f->graph, "bad", f->image, &(car_conv_config){__VA_ARGS__})
#define MAXPOOL(...) car_graph_maxpool(f->graph, "bad", f->image, &(car_pool_config){__VA_ARGS__})
#define AVGPOOL(...) car_graph_avgpool(f->graph, "bad", f->image, &(car_pool_config){__VA_ARGS__})
#define LINEAR(x, ...) car_graph_linear(f->graph, "bad", x, &(car_linear_config){__VA_ARGS__})
#define NORM(x, residual, ...) car_graph_batchnorm(f->graph, "bad", x, residual, &(car_batchnorm_config){__VA_ARGS__})
#define INPUT(shape) car_graph_input(f->graph, "bad", shape, CAR_F32)
#define MISTAKE(name, call)          \
    static int name(car_inputs *f) { \
        return (call);               \
    }

MISTAKE(input_of_rank_0, INPUT(((car_shape){0, {0}})))
MISTAKE(input_of_rank_5, INPUT(((car_shape){5, {1, 1, 1, 1}})))
MISTAKE(input_without_pixels, INPUT(SHAPE4(2, 3, 0, 7)))
MISTAKE(input_negative, INPUT(SHAPE2(-2, -3)))
MISTAKE(input_beyond_all_memory, INPUT(SHAPE4(1LL << 30, 1LL << 30, 1LL << 30, 1LL << 30)))
MISTAKE(conv_of_nothing, car_graph_conv(f->graph, "bad", 99, &(car_conv_config){4, 3, 1, 1, false}))
MISTAKE(conv_of_negative, car_graph_conv(f->graph, "bad", -7, &(car_conv_config){4, 3, 1, 1, false}))
MISTAKE(conv_of_rows, car_graph_conv(f->graph, "bad", f->rows, &(car_conv_config){4, 3, 1, 1, false}))
MISTAKE(conv_without_channels, CONV(0, 3, 1, 1, false))
MISTAKE(conv_without_kernel, CONV(4, 0, 1, 0, false))
MISTAKE(conv_without_stride, CONV(4, 3, 0, 1, false))
MISTAKE(conv_with_negative_padding, CONV(4, 3, 1, -1, false))
MISTAKE(conv_with_padding_of_kernel, CONV(4, 3, 1, 3, false))
MISTAKE(conv_window_too_large, CONV(4, 8, 1, 0, false))
MISTAKE(conv_with_absurd_kernel, CONV(4, INT32_MAX, INT32_MAX, INT32_MAX - 1, false))
MISTAKE(norm_of_rows, NORM(f->rows, CAR_NONE, false, 1e-5, 0.1))
MISTAKE(norm_without_eps, NORM(f->image, CAR_NONE, false, 0, 0.1))
MISTAKE(norm_with_nan_eps, NORM(f->image, CAR_NONE, false, NAN, 0.1))
MISTAKE(norm_with_momentum_2, NORM(f->image, CAR_NONE, false, 1e-5, 2))
MISTAKE(norm_with_other_residual,
        NORM(f->image, car_graph_input(f->graph, "r", SHAPE4(2, 3, 9, 8), CAR_F32), false, 1e-5, 0.1))
MISTAKE(norm_with_unknown_residual, NORM(f->image, 99, false, 1e-5, 0.1))
MISTAKE(relu_of_nothing, car_graph_relu(f->graph, "bad", CAR_NONE))
MISTAKE(relu_of_tokens, car_graph_relu(f->graph, "bad", f->tokens))
MISTAKE(maxpool_window_too_large, MAXPOOL(8, 1, 0))
MISTAKE(maxpool_without_stride, MAXPOOL(2, 0, 0))
MISTAKE(maxpool_beyond_half, MAXPOOL(3, 1, 2))
MISTAKE(maxpool_beyond_a_byte,
        car_graph_maxpool(f->graph, "bad", car_graph_input(f->graph, "x", SHAPE4(1, 1, 17, 17), CAR_F32),
                          &(car_pool_config){17, 1, 0}))
/* 65536 x 65536 is 0 in 32 bits. */
MISTAKE(maxpool_beyond_an_int,
        car_graph_maxpool(f->graph, "bad", car_graph_input(f->graph, "x", SHAPE4(1, 1, 65536, 65536), CAR_F32),
                          &(car_pool_config){65536, 1, 0}))
MISTAKE(avgpool_window_too_large, AVGPOOL(2, 9, 2))
MISTAKE(avgpool_of_rows, car_graph_avgpool(f->graph, "bad", f->rows, &(car_pool_config){2, 2, 0}))
MISTAKE(global_avgpool_of_rows, car_graph_global_avgpool(f->graph, "bad", f->rows))
MISTAKE(shortcut_to_fewer_channels, car_graph_shortcut(f->graph, "bad", f->image, 2, 1))
MISTAKE(shortcut_without_stride, car_graph_shortcut(f->graph, "bad", f->image, 3, 0))
MISTAKE(add_of_two_shapes, car_graph_add(f->graph, "bad", f->rows, f->image))
MISTAKE(add_of_two_widths,
        car_graph_add(f->graph, "bad", f->rows, car_graph_input(f->graph, "y", SHAPE2(2, 7), CAR_F32)))
MISTAKE(add_to_itself, car_graph_add(f->graph, "bad", f->rows, f->rows))
MISTAKE(add_of_nothing, car_graph_add(f->graph, "bad", f->rows, 99))
MISTAKE(flatten_of_nothing, car_graph_flatten(f->graph, "bad", 99))
MISTAKE(linear_of_image, LINEAR(f->image, 4, true, false, NULL))
MISTAKE(linear_of_tokens, LINEAR(f->tokens, 4, true, false, NULL))
MISTAKE(linear_without_outputs, LINEAR(f->rows, 0, true, false, NULL))
MISTAKE(linear_tied_to_nothing, LINEAR(f->rows, 4, true, false, "fc.weight"))
MISTAKE(linear_tied_to_other_shape,
        (car_net_linear(f->graph, "fc", f->rows, 4), LINEAR(f->rows, 5, true, false, "fc.weight")))
MISTAKE(linear_tied_to_other_width,
        (car_net_linear(f->graph, "fc", f->rows, 4), LINEAR(f->sequence, 4, true, false, "fc.weight")))
MISTAKE(linear_tied_and_transposed,
        (car_net_linear(f->graph, "fc", f->rows, 4), LINEAR(f->rows, 4, true, true, "fc.weight")))
MISTAKE(layernorm_of_image, car_graph_layernorm(f->graph, "bad", f->image, 1e-5))
MISTAKE(layernorm_without_eps, car_graph_layernorm(f->graph, "bad", f->rows, 0))
MISTAKE(gelu_of_nothing, car_graph_gelu(f->graph, "bad", 99, false))
MISTAKE(attention_of_rows, car_graph_attention(f->graph, "bad", f->rows, 2, false))
MISTAKE(attention_heads_do_not_divide, car_graph_attention(f->graph, "bad", f->sequence, 3, false))
MISTAKE(attention_without_heads, car_graph_attention(f->graph, "bad", f->sequence, 0, false))
MISTAKE(attention_of_two_thirds,
        car_graph_attention(f->graph, "bad", car_graph_input(f->graph, "s", SHAPE3(2, 5, 8), CAR_F32), 2, false))
MISTAKE(embedding_of_floats, car_graph_embedding(f->graph, "bad", "wpe", f->rows, 20, 8, 4))
MISTAKE(embedding_short_of_positions, car_graph_embedding(f->graph, "bad", "wpe", f->tokens, 20, 4, 4))
MISTAKE(embedding_without_words, car_graph_embedding(f->graph, "bad", "wpe", f->tokens, 0, 8, 4))
MISTAKE(embedding_without_width, car_graph_embedding(f->graph, "bad", "wpe", f->tokens, 20, 8, 0))
MISTAKE(patches_of_rows, car_graph_patch_tokens(f->graph, "bad", "pos", f->rows))
MISTAKE(token_before_the_first, car_graph_select_token(f->graph, "bad", f->sequence, -1))
MISTAKE(token_behind_the_last, car_graph_select_token(f->graph, "bad", f->sequence, 5))
MISTAKE(dropout_of_all, car_graph_dropout(f->graph, "bad", f->rows, 1))
MISTAKE(dropout_negative, car_graph_dropout(f->graph, "bad", f->rows, -0.1))
MISTAKE(dropout_of_nan, car_graph_dropout(f->graph, "bad", f->rows, NAN))
MISTAKE(loss_of_image, car_graph_cross_entropy(f->graph, "bad", f->image, f->labels, 0))
MISTAKE(loss_with_float_labels, car_graph_cross_entropy(f->graph, "bad", f->rows, f->rows, 0))
MISTAKE(loss_with_other_labels, car_graph_cross_entropy(f->graph, "bad", f->rows, f->tokens, 0))
/* Labels are [rows] or [batch, T]: images have a layout of their own. */
MISTAKE(loss_with_image_of_labels,
        car_graph_cross_entropy(f->graph, "bad", f->rows, car_graph_input(f->graph, "l", SHAPE4(2, 1, 1, 1), CAR_I32),
                                0))
MISTAKE(loss_with_full_smoothing, car_graph_cross_entropy(f->graph, "bad", f->rows, f->labels, 1))
MISTAKE(two_of_a_name,
        (car_net_linear(f->graph, "bad", f->rows, 4), car_graph_layernorm(f->graph, "bad", f->rows, 1e-5)))

static int name_too_long(car_inputs *f) {
    char name[400];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    memcpy(name, "bad", 3);
    return car_net_linear(f->graph, name, f->rows, 4);
}

static int init_of_nothing(car_inputs *f) {
    car_graph_set_init(f->graph, "bad", (car_init){CAR_INIT_CONSTANT, 1});
    return CAR_NONE;
}

#define CASE(name, status, message) \
    { #name, name, status, message }

static const mistake mistakes[] = {
    CASE(input_of_rank_0, CAR_ERROR_SHAPE, "dimensions"),
    CASE(input_of_rank_5, CAR_ERROR_SHAPE, "dimensions"),
    CASE(input_without_pixels, CAR_ERROR_SHAPE, "dimensions"),
    CASE(input_negative, CAR_ERROR_SHAPE, "dimensions"),
    CASE(input_beyond_all_memory, CAR_ERROR_SHAPE, "2^48"),
    CASE(conv_of_nothing, CAR_ERROR_ARGUMENT, "no tensor 99"),
    CASE(conv_of_negative, CAR_ERROR_ARGUMENT, "no tensor -7"),
    CASE(conv_of_rows, CAR_ERROR_SHAPE, "rows has 2 dimensions, but 4"),
    CASE(conv_without_channels, CAR_ERROR_ARGUMENT, "output channels: 0"),
    CASE(conv_without_kernel, CAR_ERROR_ARGUMENT, "kernel 0"),
    CASE(conv_without_stride, CAR_ERROR_ARGUMENT, "stride 0"),
    CASE(conv_with_negative_padding, CAR_ERROR_ARGUMENT, "padding -1"),
    CASE(conv_with_padding_of_kernel, CAR_ERROR_ARGUMENT, "padding 3"),
    CASE(conv_window_too_large, CAR_ERROR_SHAPE, "a window of 8 does not fit into 9 x 7 pixels"),
    CASE(conv_with_absurd_kernel, CAR_ERROR_SHAPE, ""),
    CASE(norm_of_rows, CAR_ERROR_SHAPE, "rows"),
    CASE(norm_without_eps, CAR_ERROR_ARGUMENT, "eps"),
    CASE(norm_with_nan_eps, CAR_ERROR_ARGUMENT, "eps"),
    CASE(norm_with_momentum_2, CAR_ERROR_ARGUMENT, "momentum"),
    CASE(norm_with_other_residual, CAR_ERROR_SHAPE, "differ in shape"),
    CASE(norm_with_unknown_residual, CAR_ERROR_ARGUMENT, "no tensor 99"),
    CASE(relu_of_nothing, CAR_ERROR_ARGUMENT, "no tensor -1"),
    CASE(relu_of_tokens, CAR_ERROR_SHAPE, "element type"),
    CASE(maxpool_window_too_large, CAR_ERROR_SHAPE, "does not fit"),
    CASE(maxpool_without_stride, CAR_ERROR_ARGUMENT, "stride 0"),
    CASE(maxpool_beyond_half, CAR_ERROR_ARGUMENT, "padding"),
    CASE(maxpool_beyond_a_byte, CAR_ERROR_UNSUPPORTED, "windows of more than"),
    CASE(maxpool_beyond_an_int, CAR_ERROR_UNSUPPORTED, "windows of more than"),
    CASE(avgpool_window_too_large, CAR_ERROR_ARGUMENT, "padding 2"),
    CASE(avgpool_of_rows, CAR_ERROR_SHAPE, "rows"),
    CASE(global_avgpool_of_rows, CAR_ERROR_SHAPE, "rows"),
    CASE(shortcut_to_fewer_channels, CAR_ERROR_ARGUMENT, "at least as many output channels"),
    CASE(shortcut_without_stride, CAR_ERROR_ARGUMENT, "stride"),
    CASE(add_of_two_shapes, CAR_ERROR_SHAPE, "rows and image differ"),
    CASE(add_of_two_widths, CAR_ERROR_SHAPE, "rows and y differ"),
    CASE(add_to_itself, CAR_ERROR_UNSUPPORTED, "itself"),
    CASE(add_of_nothing, CAR_ERROR_ARGUMENT, "no tensor 99"),
    CASE(flatten_of_nothing, CAR_ERROR_ARGUMENT, "no tensor 99"),
    CASE(linear_of_image, CAR_ERROR_SHAPE, "[batch, tokens, features]"),
    CASE(linear_of_tokens, CAR_ERROR_SHAPE, "element type"),
    CASE(linear_without_outputs, CAR_ERROR_SHAPE, "at least one output"),
    CASE(linear_tied_to_nothing, CAR_ERROR_ARGUMENT, "no parameter fc.weight"),
    CASE(linear_tied_to_other_shape, CAR_ERROR_SHAPE, "fc.weight"),
    CASE(linear_tied_to_other_width, CAR_ERROR_SHAPE, "fc.weight"),
    CASE(linear_tied_and_transposed, CAR_ERROR_SHAPE, "fc.weight"),
    CASE(layernorm_of_image, CAR_ERROR_SHAPE, "[batch, tokens, features]"),
    CASE(layernorm_without_eps, CAR_ERROR_SHAPE, "eps"),
    CASE(gelu_of_nothing, CAR_ERROR_ARGUMENT, "no tensor 99"),
    CASE(attention_of_rows, CAR_ERROR_SHAPE, "rows has 2 dimensions, but 3"),
    CASE(attention_heads_do_not_divide, CAR_ERROR_SHAPE,
         "12 features cannot be divided into queries, keys and values of 3 heads"),
    CASE(attention_without_heads, CAR_ERROR_SHAPE, "0 heads"),
    CASE(attention_of_two_thirds, CAR_ERROR_SHAPE, "8 features"),
    CASE(embedding_of_floats, CAR_ERROR_SHAPE, "element type"),
    CASE(embedding_short_of_positions, CAR_ERROR_ARGUMENT, "5 tokens need as many positions, but there are 4"),
    CASE(embedding_without_words, CAR_ERROR_ARGUMENT, ""),
    CASE(embedding_without_width, CAR_ERROR_ARGUMENT, ""),
    CASE(patches_of_rows, CAR_ERROR_SHAPE, "rows"),
    CASE(token_before_the_first, CAR_ERROR_ARGUMENT, "no token -1; the input has 5"),
    CASE(token_behind_the_last, CAR_ERROR_ARGUMENT, "no token 5; the input has 5"),
    CASE(dropout_of_all, CAR_ERROR_ARGUMENT, "less than 1"),
    CASE(dropout_negative, CAR_ERROR_ARGUMENT, "at least 0"),
    CASE(dropout_of_nan, CAR_ERROR_ARGUMENT, "nan"),
    CASE(loss_of_image, CAR_ERROR_SHAPE, "labels"),
    CASE(loss_with_float_labels, CAR_ERROR_SHAPE, "element type"),
    CASE(loss_with_other_labels, CAR_ERROR_SHAPE, "2 rows of logits need as many labels, but there are 10"),
    CASE(loss_with_image_of_labels, CAR_ERROR_SHAPE, "labels"),
    CASE(loss_with_full_smoothing, CAR_ERROR_ARGUMENT, "smoothing"),
    CASE(two_of_a_name, CAR_ERROR_ARGUMENT, "two parameters named bad.weight"),
    CASE(name_too_long, CAR_ERROR_ARGUMENT, "too long"),
    CASE(init_of_nothing, CAR_ERROR_UNKNOWN_NAME, "no parameter named"),
};

/* Whether it failed as it should. */
static bool fails_as_expected(car_inputs *f, const mistake *m) {
    int result = m->make(f);
    const char *message = car_context_error(f->context);
    if (result != CAR_NONE || strstr(message, m->message) == NULL || strstr(message, "bad") == NULL) {
        print_error("%s: returned %d with the message \"%s\"\n", m->what, result, message);
        return false;
    }
    for (int twice = 0; twice < 2; twice++) {
        car_status status = car_graph_finish(f->graph, 0);
        if (status != m->expected) {
            print_error("%s: %s instead of %s\n", m->what, car_status_text(status), car_status_text(m->expected));
            return false;
        }
    }
    return true;
}

/* After a failure what would be in order fails too, nothing changes, and the first message stays. */
static bool failure_sticks(car_inputs *f, const mistake *m) {
    car_graph *g = f->graph;
    int operations = car_graph_op_count(g), tensors = car_graph_tensor_count(g);
    int params = car_graph_param_count(g), uses = car_graph_use_count(g);
    char first[1024];
    snprintf(first, sizeof first, "%s", car_context_error(f->context));
    bool refused = car_net_linear(g, "good", f->rows, 4) == CAR_NONE &&
                   car_graph_cross_entropy(g, "loss", f->rows, f->labels, 0) == CAR_NONE &&
                   car_graph_input(g, "more", SHAPE1(1), CAR_F32) == CAR_NONE;
    bool unchanged = car_graph_op_count(g) == operations && car_graph_tensor_count(g) == tensors &&
                     car_graph_param_count(g) == params && car_graph_use_count(g) == uses;
    if (!refused || !unchanged || strcmp(first, car_context_error(f->context)) != 0) {
        print_error("%s: the failure does not stick\n", m->what);
        return false;
    }
    return true;
}

static void mistakes_are_named(void **state) {
    car_inputs f = {0};
    int wrong = 0;
    (void)state;
    assert_int_equal(car_context_create(NULL, &f.context), CAR_OK);
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        car_inputs_open(&f);
        wrong += !(fails_as_expected(&f, &mistakes[i]) && failure_sticks(&f, &mistakes[i]));
        car_graph_destroy(f.graph);
        car_context_clear_error(f.context);
    }
    car_context_destroy(f.context);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(mistakes_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
