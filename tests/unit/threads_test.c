/* Eight threads that run one program on different inputs at the same time compute bit for bit what one thread does
 * alone: loss and every gradient. They share program, weights and arena; each has a lane, a tape and gradients. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "carousel/program.h"
#include "carousel/tape.h"

enum { THREADS = 8, ROUNDS = 24, CLASSES = 5 };

/* ---- three small networks that have all operations between them ------------------------------------------ */

static int add_conv(car_graph *graph, const char *name, int x, int channels, int kernel, int stride) {
    return car_graph_conv(graph, name, x, &(car_conv_config){channels, kernel, stride, kernel / 2, false});
}

static int add_norm(car_graph *graph, const char *name, int x, int residual, bool relu) {
    return car_graph_batchnorm(graph, name, x, residual, &(car_batchnorm_config){relu, 1e-5, 0.1});
}

static int add_linear(car_graph *graph, const char *name, int x, int out, bool in_by_out) {
    return car_graph_linear(graph, name, x, &(car_linear_config){out, true, in_by_out, NULL});
}

static int build_residual_net(car_graph *graph) {
    int images = car_graph_input(graph, "images", (car_shape){4, {2, 3, 12, 12}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    int x = add_norm(graph, "bn0", add_conv(graph, "conv0", images, 16, 3, 1), CAR_NONE, true);
    x = car_graph_maxpool(graph, "max", x, &(car_pool_config){3, 2, 1});
    int y = add_norm(graph, "bn1", add_conv(graph, "conv1", x, 16, 3, 1), CAR_NONE, true);
    x = add_norm(graph, "bn2", add_conv(graph, "conv2", y, 16, 3, 1), x, true);
    y = add_norm(graph, "bn3", add_conv(graph, "conv3", x, 20, 3, 2), CAR_NONE, false);
    x = car_graph_relu(graph, "relu", car_graph_add(graph, "add", y, car_graph_shortcut(graph, "cut", x, 20, 2)));
    y = car_graph_flatten(graph, "flat", car_graph_avgpool(graph, "avg", x, &(car_pool_config){2, 1, 0}));
    x = car_graph_global_avgpool(graph, "pool", x);
    x = car_graph_add(graph, "sum", add_linear(graph, "head0", x, CLASSES, false),
                      add_linear(graph, "head1", y, CLASSES, false));
    return car_graph_cross_entropy(graph, "loss", x, labels, 0.1);
}

/* One transformer block. */
static int add_block(car_graph *graph, int x, int width, bool causal) {
    int y = add_linear(graph, "qkv", car_graph_layernorm(graph, "ln1", x, 1e-5), 3 * width, true);
    y = add_linear(graph, "proj", car_graph_attention(graph, "attention", y, 3, causal), width, true);
    x = car_graph_add(graph, "add1", x, car_graph_dropout(graph, "drop", y, 0.1));
    y = add_linear(graph, "up", car_graph_layernorm(graph, "ln2", x, 1e-5), 4 * width, false);
    y = add_linear(graph, "down", car_graph_gelu(graph, "gelu", y, causal), width, false);
    return car_graph_add(graph, "add2", x, y);
}

static int build_language_model(car_graph *graph) {
    enum { BATCH = 2, TOKENS = 7, VOCABULARY = 23, WIDTH = 12 };
    int tokens = car_graph_input(graph, "tokens", (car_shape){2, {BATCH, TOKENS}}, CAR_I32);
    int labels = car_graph_input(graph, "labels", (car_shape){2, {BATCH, TOKENS}}, CAR_I32);
    int x = car_graph_embedding(graph, "wte", "wpe", tokens, VOCABULARY, TOKENS + 2, WIDTH);
    x = car_graph_layernorm(graph, "ln", add_block(graph, x, WIDTH, true), 1e-5);
    x = car_graph_linear(graph, "head", x, &(car_linear_config){VOCABULARY, false, false, "wte.weight"});
    return car_graph_cross_entropy(graph, "loss", x, labels, 0);
}

static int build_patch_model(car_graph *graph) {
    enum { WIDTH = 24 };
    int images = car_graph_input(graph, "images", (car_shape){4, {2, 3, 12, 8}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    int x = car_graph_conv(graph, "patches", images, &(car_conv_config){WIDTH, 4, 4, 0, true});
    x = add_block(graph, car_graph_patch_tokens(graph, "class", "positions", x), WIDTH, false);
    x = add_linear(graph, "head", car_graph_select_token(graph, "first", x, 0), CLASSES, false);
    return car_graph_cross_entropy(graph, "loss", x, labels, 0);
}

typedef int (*build_function)(car_graph *graph);

/* ---- running ---------------------------------------------------------------------------------------------- */

typedef struct sample_result {
    float loss;
    unsigned char *gradients; /* of all uses, one behind the other, as stored */
} sample_result;

typedef struct shared {
    car_context *context;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_weights *weights;
    size_t gradient_bytes;
    sample_result expected[THREADS]; /* per sample */
    pthread_barrier_t barrier;
} shared;

/* What one thread has for itself. */
typedef struct runner {
    shared *shared;
    int index;
    car_lane *lane;
    car_tape *tape;
    car_gradients *gradients;
    sample_result result;
    car_status status;
    int wrong_losses, wrong_gradients;
} runner;

static void open_runner(runner *runner, shared *shared, int index) {
    *runner = (struct runner){.shared = shared, .index = index};
    assert_int_equal(car_lane_create(shared->program, shared->arena, &runner->lane), CAR_OK);
    assert_int_equal(car_tape_create(shared->program, shared->arena, &runner->tape), CAR_OK);
    assert_int_equal(car_gradients_create(shared->program, shared->arena, &runner->gradients), CAR_OK);
    runner->result.gradients = calloc(1, shared->gradient_bytes);
    assert_non_null(runner->result.gradients);
}

static void close_runner(runner *runner) {
    free(runner->result.gradients);
    car_gradients_destroy(runner->gradients);
    car_tape_destroy(runner->tape);
    car_lane_destroy(runner->lane);
}

/* Tokens and labels are below CLASSES, so they suit every network. */
static car_status feed(runner *runner, int tensor, int sample) {
    const car_tensor *input = car_graph_tensor(runner->shared->graph, tensor);
    int64_t count = car_shape_elements(input->shape);
    uint64_t key = car_random_key((uint64_t)sample, input->name);
    float values[2 * 3 * 12 * 12];
    for (int64_t i = 0; i < count; i++) {
        int32_t number = (int32_t)(car_random_u64(key, (uint64_t)i) % CLASSES);
        values[i] = (float)car_random_normal(key, (uint64_t)i);
        if (input->dtype == CAR_I32) {
            memcpy(&values[i], &number, sizeof number);
        }
    }
    return car_tape_feed(runner->tape, tensor, values);
}

static car_status run_sample(runner *runner, int sample) {
    const shared *shared = runner->shared;
    int operations = car_graph_op_count(shared->graph);
    unsigned char *to = runner->result.gradients;
    car_status status = CAR_OK;
    car_tape_begin(runner->tape, (uint64_t)sample, true);
    for (int tensor = 0; tensor < car_graph_tensor_count(shared->graph); tensor++) {
        if (car_graph_tensor(shared->graph, tensor)->producer == CAR_NONE) {
            CAR_TRY(feed(runner, tensor, sample));
        }
    }
    CAR_TRY(car_tape_forward(runner->tape, runner->lane, shared->weights, 0, operations));
    CAR_TRY(car_tape_backward(runner->tape, runner->lane, shared->weights, runner->gradients, 0, operations));
    runner->result.loss = car_tape_loss(runner->tape);
    for (int use = 0; use < car_graph_use_count(shared->graph); use++) {
        size_t bytes = car_program_param_bytes(shared->program, car_graph_use_param(shared->graph, use));
        memcpy(to, car_gradients_data(runner->gradients, use), bytes);
        to += bytes;
    }
done:
    return status;
}

/* Each round all threads start together, each with another sample than in the round before. */
static void *run_rounds(void *argument) {
    runner *runner = argument;
    shared *shared = runner->shared;
    for (int round = 0; round < ROUNDS; round++) {
        int sample = (runner->index + round) % THREADS;
        pthread_barrier_wait(&shared->barrier);
        car_status status = run_sample(runner, sample);
        if (status != CAR_OK) {
            runner->status = status;
            continue; /* not out: the others wait at the barrier */
        }
        const sample_result *expected = &shared->expected[sample];
        runner->wrong_losses += memcmp(&runner->result.loss, &expected->loss, sizeof(float)) != 0;
        runner->wrong_gradients += memcmp(runner->result.gradients, expected->gradients, shared->gradient_bytes) != 0;
    }
    return NULL;
}

/* ---- the test --------------------------------------------------------------------------------------------- */

static const car_program_config reference = {.kernels = CAR_KERNELS_REFERENCE, .threads = 1};
static const car_program_config onednn = {.kernels = CAR_KERNELS_ONEDNN, .threads = 1};
static const car_program_config winograd = {
    .kernels = CAR_KERNELS_ONEDNN, .threads = 1, .convolutions = CAR_CONVOLUTIONS_WINOGRAD};

static void open_shared(shared *shared, build_function build, const car_program_config *config) {
    *shared = (struct shared){0};
    assert_int_equal(car_context_create(NULL, &shared->context), CAR_OK);
    assert_int_equal(car_graph_create(shared->context, &shared->graph), CAR_OK);
    if (car_graph_finish(shared->graph, build(shared->graph)) != CAR_OK) {
        fail_msg("%s", car_context_error(shared->context));
    }
    assert_int_equal(car_program_create(shared->graph, config, &shared->program), CAR_OK);
    assert_int_equal(car_arena_create(shared->context, 0, &shared->arena), CAR_OK);
    assert_int_equal(car_weights_create(shared->program, shared->arena, &shared->weights), CAR_OK);
    assert_int_equal(car_weights_initialize(shared->weights, 3), CAR_OK);
    for (int use = 0; use < car_graph_use_count(shared->graph); use++) {
        shared->gradient_bytes += car_program_param_bytes(shared->program, car_graph_use_param(shared->graph, use));
    }
}

static void close_shared(shared *shared) {
    for (int sample = 0; sample < THREADS; sample++) {
        free(shared->expected[sample].gradients);
    }
    car_weights_destroy(shared->weights);
    car_arena_destroy(shared->arena);
    car_program_destroy(shared->program);
    car_graph_destroy(shared->graph);
    car_context_destroy(shared->context);
}

/* What one thread computes for each sample, alone. */
static void find_expected(shared *shared) {
    runner runner;
    open_runner(&runner, shared, 0);
    for (int sample = 0; sample < THREADS; sample++) {
        sample_result *expected = &shared->expected[sample];
        if (run_sample(&runner, sample) != CAR_OK) {
            fail_msg("%s", car_context_error(shared->context));
        }
        expected->loss = runner.result.loss;
        expected->gradients = malloc(shared->gradient_bytes);
        assert_non_null(expected->gradients);
        memcpy(expected->gradients, runner.result.gradients, shared->gradient_bytes);
        /* Were they all alike, mixing up two threads' samples would go unseen. */
        assert_true(sample == 0 || memcmp(expected->gradients, expected[-1].gradients, shared->gradient_bytes) != 0);
    }
    close_runner(&runner);
}

static void check_threads(build_function build, const car_program_config *config) {
    shared shared;
    runner runners[THREADS];
    pthread_t threads[THREADS];
    open_shared(&shared, build, config);
    find_expected(&shared);
    assert_int_equal(pthread_barrier_init(&shared.barrier, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        open_runner(&runners[i], &shared, i);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_rounds, &runners[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        if (runners[i].status != CAR_OK || runners[i].wrong_losses || runners[i].wrong_gradients) {
            fail_msg("thread %d: of %d rounds %d losses and %d gradients differ; %s %s", i, ROUNDS,
                     runners[i].wrong_losses, runners[i].wrong_gradients, car_status_text(runners[i].status),
                     car_context_error(shared.context));
        }
        close_runner(&runners[i]);
    }
    pthread_barrier_destroy(&shared.barrier);
    close_shared(&shared);
}

static void residual_net_reference(void **state) {
    (void)state;
    check_threads(build_residual_net, &reference);
}

static void residual_net_onednn(void **state) {
    (void)state;
    check_threads(build_residual_net, &onednn);
}

static void residual_net_winograd(void **state) {
    (void)state;
    check_threads(build_residual_net, &winograd);
}

static void language_model_reference(void **state) {
    (void)state;
    check_threads(build_language_model, &reference);
}

static void language_model_onednn(void **state) {
    (void)state;
    check_threads(build_language_model, &onednn);
}

static void patch_model_reference(void **state) {
    (void)state;
    check_threads(build_patch_model, &reference);
}

static void patch_model_onednn(void **state) {
    (void)state;
    check_threads(build_patch_model, &onednn);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residual_net_reference), cmocka_unit_test(residual_net_onednn),
        cmocka_unit_test(residual_net_winograd),  cmocka_unit_test(language_model_reference),
        cmocka_unit_test(language_model_onednn),  cmocka_unit_test(patch_model_reference),
        cmocka_unit_test(patch_model_onednn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
