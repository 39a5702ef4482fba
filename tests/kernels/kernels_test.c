/* Every kernel of every table, over the one list of cases: the reference against PyTorch's numbers and finite
 * differences, the other table against the reference. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/check.h"
#include "kernels/winograd/winograd.h"

enum { KNOWN_VALUES = 64, KNOWN_INTEGERS = 8 };

/* A case with what PyTorch computes for it; see make_known.py for its inputs. */
typedef struct known_case {
    car_case test;
    double out[KNOWN_VALUES];
    int32_t integers[KNOWN_INTEGERS];                            /* tokens or labels */
    double grad[CAR_CASE_INPUTS + CAR_MAX_PARAMS][KNOWN_VALUES]; /* of inputs, of parameters */
} known_case;

#include "kernels/known.h"

enum { KNOWN_CASES = sizeof known_cases / sizeof known_cases[0] };

static car_context *context;
static car_trial_table reference, onednn, winograd[2]; /* of blocks of 8 and of 16 */
static car_trial_table reference_bf16, onednn_bf16, winograd_bf16[2];

static int open_tables(void **state) {
    (void)state;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    assert_int_equal(car_trial_open_reference(context, &reference), CAR_OK);
    assert_int_equal(car_trial_open_onednn(context, &onednn), CAR_OK);
    assert_int_equal(car_trial_open_winograd(context, 8, &winograd[0]), CAR_OK);
    assert_int_equal(car_trial_open_winograd(context, 16, &winograd[1]), CAR_OK);
    reference_bf16 = car_trial_in_bf16(&reference);
    onednn_bf16 = car_trial_in_bf16(&onednn);
    winograd_bf16[0] = car_trial_in_bf16(&winograd[0]);
    winograd_bf16[1] = car_trial_in_bf16(&winograd[1]);
    return 0;
}

static int close_tables(void **state) {
    (void)state;
    car_trial_close(&winograd[1]);
    car_trial_close(&winograd[0]);
    car_trial_close(&onednn);
    car_trial_close(&reference);
    car_context_destroy(context);
    return 0;
}

/* ---- the list ------------------------------------------------------------------------------------------ */

static void gradients_match_differences(void **state) {
    assert_true(car_check_gradients(context, &reference, *state));
}

static void reference_obeys_modes(void **state) {
    assert_true(car_check_table(context, &reference, &reference, *state));
}

static void onednn_matches_reference(void **state) {
    assert_true(car_check_table(context, &onednn, &reference, *state));
}

static void bf16_matches_reference(void **state) {
    assert_true(car_check_table(context, &onednn_bf16, &reference_bf16, *state));
}

static void bf16_is_near_floats(void **state) {
    assert_true(car_check_table(context, &onednn_bf16, &reference, *state));
}

/* Whether a case is one for Winograd's algorithm; the shape alone decides. */
static bool is_for_winograd(const car_case *test) {
    const car_conv_config *conv = &test->config.conv;
    return test->kind == CAR_OP_CONV && conv->kernel == 3 && conv->stride == 1 && conv->pad == 1 && !conv->bias;
}

/* With each length of vectors that this machine has, whatever block its own convolutions prefer. */
static void winograd_matches_reference(void **state) {
    for (int w = 0; w < 2; w++) {
        if (car_winograd_select(winograd[w].block)) {
            assert_true(car_check_table(context, &winograd[w], &reference, *state));
        }
    }
}

static void winograd_bf16_matches_reference(void **state) {
    for (int w = 0; w < 2; w++) {
        if (car_winograd_select(winograd[w].block)) {
            assert_true(car_check_table(context, &winograd_bf16[w], &reference_bf16, *state));
            assert_true(car_check_table(context, &winograd_bf16[w], &reference, *state));
        }
    }
}

/* ---- PyTorch's numbers --------------------------------------------------------------------------------- */

static void fill_known(car_trial_tensor *tensor, int slot) {
    for (size_t i = 0; i < tensor->elements; i++) {
        tensor->values[i] = (float)((double)((7 * (int)i + 3 * slot) % 11 - 5) / 4);
    }
}

static void give_known(car_trial *trial, const known_case *known) {
    for (int q = 0; q < trial->op.input_count; q++) {
        car_trial_tensor *tensor = &trial->tensors[CAR_TRIAL_IN + q];
        if (car_graph_tensor(trial->graph, trial->op.inputs[q])->dtype == CAR_I32) {
            memcpy(tensor->values, known->integers, tensor->elements * sizeof(int32_t));
        } else {
            fill_known(tensor, q);
        }
    }
    for (int p = 0; p < trial->op.param_count; p++) {
        fill_known(&trial->tensors[CAR_TRIAL_PARAM + p], CAR_CASE_INPUTS + p);
    }
    fill_known(&trial->tensors[CAR_TRIAL_GRAD_OUT], CAR_CASE_INPUTS + CAR_MAX_PARAMS);
}

static void expect_values(const car_trial *trial, int tensor, const double *expected) {
    float found[KNOWN_VALUES];
    if (!trial->tensors[tensor].values) {
        return;
    }
    assert_int_equal(car_trial_read(trial, tensor, found), CAR_OK);
    for (size_t i = 0; i < trial->tensors[tensor].elements; i++) {
        if (!(fabs((double)found[i] - expected[i]) <= 2e-6)) {
            fail_msg("%s: element %zu is %.8g where PyTorch has %.8g", trial->tensors[tensor].name, i, (double)found[i],
                     expected[i]);
        }
    }
}

static void check_known(const car_trial_table *table, const known_case *known) {
    car_trial_config config = car_trial_config_default(table, &known->test);
    car_trial *trial = NULL;
    assert_int_equal(car_trial_create(context, table, &known->test, &config, &trial), CAR_OK);
    give_known(trial, known);
    assert_int_equal(car_trial_load(trial), CAR_OK);
    assert_int_equal(car_trial_forward(trial, true), CAR_OK);
    expect_values(trial, CAR_TRIAL_OUT, known->out);
    assert_int_equal(car_trial_backward(trial), CAR_OK);
    for (int q = 0; q < CAR_CASE_INPUTS; q++) {
        expect_values(trial, CAR_TRIAL_GRAD_IN + q, known->grad[q]);
    }
    for (int p = 0; p < CAR_MAX_PARAMS; p++) {
        expect_values(trial, CAR_TRIAL_GRAD_PARAM + p, known->grad[CAR_CASE_INPUTS + p]);
    }
    car_trial_destroy(trial);
}

static void reference_matches_known(void **state) {
    check_known(&reference, *state);
}

static void onednn_matches_known(void **state) {
    check_known(&onednn, *state);
}

static void known_covers_every_kind(void **state) {
    (void)state;
    for (int kind = 0; kind < CAR_OP_CARRY;
         kind++) { /* what follows is not ours to compute: engine/stages_threads_test.c */
        bool listed = false, known = kind == CAR_OP_DROPOUT; /* PyTorch draws other numbers */
        for (int i = 0; i < car_case_count(); i++) {
            listed = listed || ((int)car_case_at(i)->kind == kind && !car_case_at(i)->speed);
        }
        for (int i = 0; i < KNOWN_CASES; i++) {
            known = known || (int)known_cases[i].test.kind == kind;
        }
        if (!listed || !known) {
            fail_msg("there is no case for %s", car_op_kind_text((car_op_kind)kind));
        }
    }
}

/* ---- what the list cannot say -------------------------------------------------------------------------- */

static car_trial *start(const car_trial_table *table, const car_case *test) {
    car_trial_config config = car_trial_config_default(table, test);
    car_trial *trial = NULL;
    assert_int_equal(car_trial_create(context, table, test, &config, &trial), CAR_OK);
    return trial;
}

/* With the batch's statistics as running ones, evaluation computes what training does. */
static void evaluation_uses_running_statistics(void **state) {
    (void)state;
    const car_case test = {"evaluation", .kind = CAR_OP_BATCHNORM, .shape = {4, {3, 5, 4, 2}},
                           .config.batchnorm = {.eps = 1e-3, .momentum = 0.1, .relu = true}, .residual = true};
    car_trial *trial = start(&reference, &test);
    float training[3 * 5 * 4 * 2], evaluation[3 * 5 * 4 * 2];
    assert_int_equal(car_trial_load(trial), CAR_OK);
    assert_int_equal(car_trial_forward(trial, true), CAR_OK);
    assert_int_equal(car_trial_read(trial, CAR_TRIAL_OUT, training), CAR_OK);
    const float *aux = (const float *)trial->aux.data;
    memcpy(trial->tensors[CAR_TRIAL_PARAM + 2].values, aux, 5 * sizeof(float));
    memcpy(trial->tensors[CAR_TRIAL_PARAM + 3].values, aux + 5, 5 * sizeof(float));
    assert_int_equal(car_trial_load(trial), CAR_OK);
    assert_int_equal(car_trial_forward(trial, false), CAR_OK);
    assert_int_equal(car_trial_read(trial, CAR_TRIAL_OUT, evaluation), CAR_OK);
    for (size_t i = 0; i < sizeof training / sizeof training[0]; i++) {
        assert_float_equal(training[i], evaluation[i], 1e-5F);
    }
    car_trial_destroy(trial);
}

/* Dropout keeps about 1-p of all elements, scaled so that the mean stays, and in evaluation everything. */
static void dropout_drops_its_share(void **state) {
    (void)state;
    enum { ROWS = 100, WIDTH = 200 };
    static float x[ROWS * WIDTH], y[ROWS * WIDTH];
    const car_case test = {"share", .kind = CAR_OP_DROPOUT, .shape = {2, {ROWS, WIDTH}}, .config.dropout.p = 0.25};
    const car_trial_table *tables[] = {&reference, &onednn};
    for (int t = 0; t < 2; t++) {
        int dropped = 0;
        car_trial *trial = start(tables[t], &test);
        memcpy(x, trial->tensors[CAR_TRIAL_IN].values, sizeof x);
        assert_int_equal(car_trial_load(trial), CAR_OK);
        assert_int_equal(car_trial_forward(trial, true), CAR_OK);
        assert_int_equal(car_trial_read(trial, CAR_TRIAL_OUT, y), CAR_OK);
        for (int i = 0; i < ROWS * WIDTH; i++) {
            dropped += y[i] == 0;
            assert_true(y[i] == 0 || fabsf(y[i] * 0.75F - x[i]) <= 1e-6F);
        }
        assert_in_range(dropped, ROWS * WIDTH / 4 - 250, ROWS * WIDTH / 4 + 250); /* 4 deviations */
        assert_int_equal(car_trial_forward(trial, false), CAR_OK);
        assert_int_equal(car_trial_read(trial, CAR_TRIAL_OUT, y), CAR_OK);
        assert_memory_equal(x, y, sizeof x);
        car_trial_destroy(trial);
    }
}

/* Training that goes wrong must be seen in the loss: no operation may turn a NaN into a number. */
static void nan_is_passed_on(void **state) {
    const car_case *test = *state;
    const car_trial_table *tables[] = {&reference, &onednn};
    for (int t = 0; t < 2; t++) {
        car_trial *trial = start(tables[t], test);
        size_t elements = trial->tensors[CAR_TRIAL_OUT].elements;
        float *out = calloc(elements, sizeof *out);
        bool found = false;
        assert_non_null(out);
        trial->tensors[CAR_TRIAL_IN].values[0] = NAN;
        assert_int_equal(car_trial_load(trial), CAR_OK);
        assert_int_equal(car_trial_forward(trial, true), CAR_OK);
        assert_int_equal(car_trial_read(trial, CAR_TRIAL_OUT, out), CAR_OK);
        for (size_t i = 0; i < elements; i++) {
            found = found || isnan(out[i]);
        }
        free(out);
        car_trial_destroy(trial);
        if (!found) {
            fail_msg("%s, %s: a NaN got lost", test->name, tables[t]->name);
        }
    }
}

/* A token or label that does not exist is an error that names it, and leaves no mark on the next call. */
static void expect_refused(const car_trial_table *table, const car_case *test, int input, int32_t value,
                           const char *in_message) {
    const int bad = 4;
    char text[16];
    car_trial *trial = start(table, test);
    int32_t *values = (int32_t *)(void *)trial->tensors[CAR_TRIAL_IN + input].values, good = values[bad];
    values[bad] = value;
    car_context_clear_error(context);
    assert_int_equal(car_trial_load(trial), CAR_OK);
    assert_int_equal(car_trial_forward(trial, true), CAR_ERROR_ARGUMENT);
    snprintf(text, sizeof text, "%d", (int)value);
    assert_non_null(strstr(car_context_error(context), text));
    assert_non_null(strstr(car_context_error(context), in_message));
    car_context_clear_error(context);
    values[bad] = good;
    assert_int_equal(car_trial_load(trial), CAR_OK);
    assert_int_equal(car_trial_forward(trial, true), CAR_OK);
    car_trial_destroy(trial);
}

static void bad_tokens_are_refused(void **state) {
    (void)state;
    const car_case embedding = {"bad token",      .kind = CAR_OP_EMBEDDING, .shape = {2, {2, 3}},
                                .vocabulary = 70, .positions = 3,           .width = 8};
    const car_case loss = {"bad label", .kind = CAR_OP_CROSS_ENTROPY, .shape = {2, {6, 70}}};
    const car_trial_table *tables[] = {&reference, &onednn};
    for (int t = 0; t < 2; t++) {
        expect_refused(tables[t], &embedding, 0, 70, "[1, 1]");
        expect_refused(tables[t], &embedding, 0, -9, "[1, 1]");
        expect_refused(tables[t], &loss, 1, 70, "row 4");
    }
}

/* ---- all together -------------------------------------------------------------------------------------- */

typedef struct test_list {
    struct CMUnitTest *tests;
    char (*names)[96];
    size_t count;
} test_list;

static void append(test_list *list, const char *group, const char *name, CMUnitTestFunction function,
                   const void *state) {
    snprintf(list->names[list->count], sizeof list->names[0], "%s: %s", group, name);
    list->tests[list->count] = (struct CMUnitTest){
        .name = list->names[list->count], .test_func = function, .initial_state = (void *)(uintptr_t)state};
    list->count++;
}

/* oneDNN's max pooling never lets a NaN win: a window of nothing else becomes the lowest float, which overflows in what
 * follows. So it is not held to passing one on. */
static bool first_element_matters(const car_case *test) {
    switch (test->kind) {
    case CAR_OP_EMBEDDING:
    case CAR_OP_DROPOUT:
    case CAR_OP_MAXPOOL:
        return false;
    case CAR_OP_SELECT_TOKEN:
        return test->config.select_token.index == 0;
    default:
        return !test->ignores;
    }
}

/* Speed cases are large: the reference alone would take minutes for the many runs of finite differences. They are
 * compared, at the batch that the list gives for checking. */
static void append_case(test_list *list, const car_case *test) {
    if (!test->speed) {
        append(list, "differences", test->name, gradients_match_differences, test);
        append(list, "modes", test->name, reference_obeys_modes, test);
        append(list, "bf16", test->name, bf16_matches_reference, test);
        append(list, "bf16 and floats", test->name, bf16_is_near_floats, test);
    }
    if (!test->speed && first_element_matters(test)) {
        append(list, "NaN", test->name, nan_is_passed_on, test);
    }
    if (!test->speed || test->check_batch > 0) {
        append(list, "onednn", test->name, onednn_matches_reference, test);
        if (is_for_winograd(test)) {
            append(list, "winograd", test->name, winograd_matches_reference, test);
        }
        if (is_for_winograd(test) && !test->speed) {
            append(list, "winograd bf16", test->name, winograd_bf16_matches_reference, test);
        }
    }
}

int main(void) {
    size_t capacity = 8 * (size_t)car_case_count() + 2 * (size_t)KNOWN_CASES + 8;
    test_list list = {.tests = calloc(capacity, sizeof *list.tests), .names = calloc(capacity, sizeof *list.names)};
    int failed = 1;
    if (list.tests && list.names) {
        append(&list, "list", "every kind", known_covers_every_kind, NULL);
        for (int i = 0; i < (int)KNOWN_CASES; i++) {
            append(&list, "known, reference", known_cases[i].test.name, reference_matches_known, &known_cases[i]);
            append(&list, "known, onednn", known_cases[i].test.name, onednn_matches_known, &known_cases[i]);
        }
        for (int i = 0; i < car_case_count(); i++) {
            append_case(&list, car_case_at(i));
        }
        append(&list, "batchnorm", "evaluation", evaluation_uses_running_statistics, NULL);
        append(&list, "dropout", "share", dropout_drops_its_share, NULL);
        append(&list, "bad input", "tokens and labels", bad_tokens_are_refused, NULL);
        car_kernel_mode mode = car_kernels_enter(1);
        failed = _cmocka_run_group_tests("kernels", list.tests, list.count, open_tables, close_tables);
        car_kernels_leave(mode);
    }
    free(list.names);
    free(list.tests);
    return failed;
}
