/* Optimizers against PyTorch's definitions written out in double, schedules, and the synthetic task. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/data.h"
#include "carousel/model.h"
#include "carousel/optimizer.h"
#include "engine/internal.h"

/* A graph whose parameters are small enough to follow by hand: a weight, a bias. */
typedef struct fixture {
    car_context *context;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_optimizer *optimizer;
} fixture;

static void set_up(fixture *f, const car_optimizer_config *config) {
    assert_int_equal(car_context_create(NULL, &f->context), CAR_OK);
    assert_int_equal(car_graph_create(f->context, &f->graph), CAR_OK);
    int x = car_graph_input(f->graph, "x", (car_shape){2, {2, 5}}, CAR_F32);
    x = car_graph_linear(f->graph, "fc", x, &(car_linear_config){.out_features = 3, .bias = true});
    int labels = car_graph_input(f->graph, "labels", (car_shape){1, {2}}, CAR_I32);
    assert_int_equal(car_graph_finish(f->graph, car_graph_cross_entropy(f->graph, "loss", x, labels, 0)), CAR_OK);
    assert_int_equal(car_program_create(f->graph, NULL, &f->program), CAR_OK);
    assert_int_equal(car_arena_create(f->context, 0, &f->arena), CAR_OK);
    assert_int_equal(car_optimizer_create(f->program, f->arena, config, &f->optimizer), CAR_OK);
}

static void tear_down(fixture *f) {
    car_optimizer_destroy(f->optimizer);
    car_arena_destroy(f->arena);
    car_program_destroy(f->program);
    car_graph_destroy(f->graph);
    car_context_destroy(f->context);
}

enum { COUNT = 15, STEPS = 4, WORKERS = 4, SINCE = 1 };

/* One weight after some steps by PyTorch's definition, in double. */
static double expected_sgd(double w, const double *gradients, const car_optimizer_config *config, double decay,
                           double lr) {
    double m = 0, c = config->correction.c, a = config->correction.a;
    for (int t = 0; t < STEPS; t++) {
        double g = gradients[t] + decay * w, before = m;
        double change = t > SINCE ? gradients[t] - gradients[t - 1] : 0;
        m = t == 0 ? g : config->momentum * m + g;
        w -= lr * ((config->nesterov ? g + config->momentum * m : m) + c * (m - before) + a * change);
    }
    return w;
}

static double expected_adamw(double w, const double *gradients, const car_optimizer_config *config, double decay,
                             double lr) {
    double m = 0, v = 0, c = config->correction.c, a = config->correction.a;
    for (int t = 0; t < STEPS; t++) {
        double g = gradients[t], before = t > 0 ? m / (1 - pow(config->beta1, t)) : 0;
        double change = t > SINCE ? g - gradients[t - 1] : 0;
        w *= 1 - lr * decay;
        m = config->beta1 * m + (1 - config->beta1) * g;
        v = config->beta2 * v + (1 - config->beta2) * g * g;
        double denominator = sqrt(v) / sqrt(1 - pow(config->beta2, t + 1)) + config->eps;
        double moved = m / (1 - pow(config->beta1, t + 1));
        double momentum = t > 0 ? c * (moved - before) : 0;
        w -= lr * (moved + momentum + a * (1 - config->beta1) * change) / denominator;
    }
    return w;
}

/* `in_place`: new weights over the old ones; otherwise two versions take turns. */
static void check_optimizer(car_optimizer_config config, const char *name, bool in_place) {
    fixture f = {0};
    float versions[2][COUNT], sum[COUNT];
    double start[COUNT], given[COUNT][STEPS];
    set_up(&f, &config);
    /* as after a checkpoint of step 1 that had no last gradient */
    car_optimizer_set_since(f.optimizer, &(car_snapshot_numbers){.since = SINCE});
    int param = car_graph_find_param(f.graph, name);
    int count = (int)car_shape_elements(car_graph_param(f.graph, param)->shape);
    double decay =
        config.decay_weights_only && car_graph_param(f.graph, param)->role == CAR_PARAM_BIAS ? 0 : config.weight_decay;
    for (int i = 0; i < count; i++) {
        start[i] = versions[0][i] = (float)(0.3 - 0.05 * i);
    }
    for (int t = 0; t < STEPS; t++) {
        for (int i = 0; i < count; i++) {
            given[i][t] = (i - 7) * 0.1 + t * 0.03;
            sum[i] = (float)(given[i][t] * WORKERS);
        }
        car_optimizer_update(f.optimizer, param, t, 0.1, 1.0 / WORKERS, versions[in_place ? 0 : t % 2],
                             versions[in_place ? 0 : (t + 1) % 2], sum);
    }
    for (int i = 0; i < count; i++) {
        double expected = config.own || config.kind == CAR_OPTIMIZER_SGD
                              ? expected_sgd(start[i], given[i], &config, decay, 0.1)
                              : expected_adamw(start[i], given[i], &config, decay, 0.1);
        assert_true(fabs(versions[0][i] - expected) < 2e-6);
    }
    tear_down(&f);
}

static void test_sgd(void **state) {
    (void)state;
    for (int in_place = 0; in_place < 2; in_place++) {
        check_optimizer((car_optimizer_config){0}, "fc.weight", in_place);
        check_optimizer((car_optimizer_config){.momentum = 0.9}, "fc.weight", in_place);
        check_optimizer((car_optimizer_config){.momentum = 0.9, .weight_decay = 0.1}, "fc.bias", in_place);
        check_optimizer((car_optimizer_config){.momentum = 0.8, .weight_decay = 0.1, .nesterov = true}, "fc.weight",
                        in_place);
        check_optimizer((car_optimizer_config){.weight_decay = 0.5, .decay_weights_only = true}, "fc.bias", in_place);
    }
}

static void test_adamw(void **state) {
    (void)state;
    car_optimizer_config config = car_optimizer_config_default();
    config.kind = CAR_OPTIMIZER_ADAMW;
    check_optimizer(config, "fc.weight", false);
    config.weight_decay = 0.3;
    check_optimizer(config, "fc.weight", true);
    check_optimizer(config, "fc.bias", false);
    config.decay_weights_only = true;
    check_optimizer(config, "fc.bias", false);
}

static void test_corrections(void **state) {
    static const car_correction corrections[] = {{.c = 0.9}, {.c = 0.5, .a = 2}, {.a = 1}};
    (void)state;
    for (int k = 0; k < 6; k++) {
        car_optimizer_config config = car_optimizer_config_default();
        config.kind = k % 2 ? CAR_OPTIMIZER_ADAMW : CAR_OPTIMIZER_SGD;
        config.correction = corrections[k / 2];
        config.weight_decay = 0.2;
        check_optimizer(config, "fc.weight", false);
        check_optimizer(config, "fc.bias", true);
    }
}

static double own_rate(const void *user, int64_t step) {
    return *(const double *)user + (double)step;
}

static void test_schedules(void **state) {
    (void)state;
    car_schedule flat = {.lr = 0.4};
    assert_float_equal(car_schedule_lr(&flat, 1000), 0.4, 1e-12);
    const double base = 3;
    const car_schedule own = {.lr = 0.4, .own = own_rate, .own_user = &base, .warmup = 10};
    assert_float_equal(car_schedule_lr(&own, 5), 8, 1e-12);
    flat.warmup = 4; /* 0.1, 0.2, 0.3, 0.4, 0.4 */
    assert_float_equal(car_schedule_lr(&flat, 0), 0.1, 1e-12);
    assert_float_equal(car_schedule_lr(&flat, 3), 0.4, 1e-12);
    assert_float_equal(car_schedule_lr(&flat, 4), 0.4, 1e-12);
    car_schedule step = {.kind = CAR_SCHEDULE_STEP, .lr = 1, .every = 10, .gamma = 0.1};
    assert_float_equal(car_schedule_lr(&step, 9), 1, 1e-12);
    assert_float_equal(car_schedule_lr(&step, 10), 0.1, 1e-12);
    assert_float_equal(car_schedule_lr(&step, 29), 0.01, 1e-12);
    car_schedule cosine = {.kind = CAR_SCHEDULE_COSINE, .lr = 2, .warmup = 10, .total = 110};
    assert_float_equal(car_schedule_lr(&cosine, 10), 2, 1e-12);
    assert_float_equal(car_schedule_lr(&cosine, 60), 1, 1e-12);
    assert_float_equal(car_schedule_lr(&cosine, 110), 0, 1e-12);
    assert_float_equal(car_schedule_lr(&cosine, 500), 0, 1e-12);
}

static void test_synthetic(void **state) {
    (void)state;
    enum { BATCH = 64, SIZE = 8 };
    static float one[BATCH * 3 * SIZE * SIZE], two[BATCH * 3 * SIZE * SIZE];
    int32_t labels[BATCH], again[BATCH];
    car_synthetic source = {.seed = 5, .domain = CAR_DOMAIN_IMAGES};
    source.config = (car_model_config){.batch = BATCH, .classes = 4, .image_size = SIZE, .channels = 3};
    car_synthetic_batch(&source, 100, one, labels);
    int seen[4] = {0};
    for (int b = 0; b < BATCH; b++) {
        assert_in_range(labels[b], 0, 3);
        seen[labels[b]]++;
    }
    for (int c = 0; c < 4; c++) {
        assert_true(seen[c] > 4); /* 16 expected */
    }
    /* A sample depends on its number, not on the batch it comes in. */
    source.config.batch = 1;
    car_synthetic_batch(&source, 107, two, again);
    assert_int_equal(again[0], labels[7]);
    assert_memory_equal(two, one + 7 * 3 * SIZE * SIZE, 3 * SIZE * SIZE * sizeof(float));
    source.seed = 6;
    car_synthetic_batch(&source, 107, two, again);
    assert_memory_not_equal(two, one + 7 * 3 * SIZE * SIZE, 3 * SIZE * SIZE * sizeof(float));
}

static void test_synthetic_tokens(void **state) {
    (void)state;
    enum { BATCH = 16, LENGTH = 64, WORDS = 10 };
    int32_t tokens[BATCH * LENGTH], labels[BATCH * LENGTH], follower[WORDS][WORDS] = {{0}};
    car_synthetic source = {.seed = 5, .domain = CAR_DOMAIN_TOKENS};
    source.config = (car_model_config){.batch = BATCH, .vocabulary = WORDS, .seq_len = LENGTH};
    car_synthetic_batch(&source, 0, tokens, labels);
    for (int i = 0; i < BATCH * LENGTH; i++) {
        assert_in_range(tokens[i], 0, WORDS - 1);
        if (i % LENGTH < LENGTH - 1) {
            assert_int_equal(labels[i], tokens[i + 1]);
        }
        follower[tokens[i]][labels[i]]++;
    }
    /* Each token has one successor that is taken most of the time. */
    int rows = 0, most = 0;
    for (int a = 0; a < WORDS; a++) {
        int best = 0;
        for (int b = 0; b < WORDS; b++) {
            rows += follower[a][b];
            best = follower[a][b] > best ? follower[a][b] : best;
        }
        most += best;
    }
    assert_true(most > rows * 7 / 10 && most < rows * 95 / 100);
}

/* What each says of itself is what it does to a transformer: what it keeps of its parameters, and of how many kinds they
 * are. */
static void test_what_they_say(void **state) {
    car_model_config small = car_model_config_default();
    car_context *context = NULL;
    car_graph *graph = NULL;
    (void)state;
    small.width = 24, small.depth = 1, small.seq_len = 4;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    assert_int_equal(car_model_build(context, "gpt2-nano", &small, &graph), CAR_OK);
    for (int k = 0; k < CAR_OPTIMIZERS; k++) {
        const car_optimizer_info *info = car_optimizer_info_of((car_optimizer_kind)k);
        car_optimizer_config config = car_optimizer_config_default();
        int least = CAR_OPTIMIZERS + 9, most = 0;
        assert_non_null(info->summary);
        assert_true(car_optimizer_is_known(info->name, &config.kind));
        assert_int_equal(config.kind, k);
        config.momentum = info->momentum;
        for (int p = 0; p < car_graph_param_count(graph); p++) {
            int states = car_optimizer_param_states(&config, graph, p);
            least = states < least ? states : least;
            most = states > most ? states : most;
        }
        assert_int_equal(most, car_optimizer_config_states(&config));
        assert_int_equal(info->uneven, least < most);
        assert_true(car_optimizer_can_correct(&config));
    }
    car_graph_destroy(graph);
    car_context_destroy(context);
}

static void test_unknown_names(void **state) {
    car_optimizer_kind kind = CAR_OPTIMIZER_MUON;
    car_optimizer_config config = {.kind = kind};
    car_context *context = NULL;
    (void)state;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    assert_false(car_optimizer_is_known("adam", &kind));
    assert_int_equal(car_optimizer_find(context, "adam", &config), CAR_ERROR_UNKNOWN_NAME);
    assert_string_equal(car_context_error(context),
                        "there is no optimizer 'adam'; the optimizers are sgd, adamw and muon");
    assert_int_equal(kind, CAR_OPTIMIZER_MUON);
    assert_int_equal(config.kind, CAR_OPTIMIZER_MUON);
    car_context_destroy(context);
}

/* ---- optimizers of one's own ----------------------------------------------------------------- */

/* SGD, so that the definitions above hold; weight decay is what it is told for the parameter. */
static car_status own_sgd(const car_optimizer_io *io) {
    const double *momentum = io->user;
    const float *g = io->gradient;
    float *w = io->weights, *m = io->states[0];
    for (int64_t i = 0; i < io->count; i++) {
        m[i] = (float)*momentum * m[i] + g[i] + (float)io->weight_decay * w[i];
        w[i] -= (float)io->lr * m[i];
    }
    return CAR_OK;
}

static const double own_momentum = 0.8;
static const car_optimizer_class own_class = {
    .name = "mine", .update = own_sgd, .state_count = 1, .state_names = {"velocity"}, .user = &own_momentum};

static void test_own(void **state) {
    (void)state;
    for (int c = 0; c < 4; c++) {
        car_optimizer_class own = own_class;
        own.elementwise = c % 2;
        car_optimizer_config config = {.kind = CAR_OPTIMIZER_MUON, .own = &own, .momentum = own_momentum};
        config.weight_decay = 0.1;
        config.decay_weights_only = c / 2;
        check_optimizer(config, "fc.weight", c / 2);
        check_optimizer(config, "fc.bias", c / 2);
    }
}

/* Moves weights that have no gradient, as padding has none. */
static car_status add_index(const car_optimizer_io *io) {
    float *w = io->weights, *kept = io->states[0], *scratch = io->scratch;
    for (int64_t i = 0; i < io->count; i++) {
        scratch[i] = (float)(i + 1);
        w[i] += scratch[i];
        kept[i] = w[i];
    }
    return CAR_OK;
}

static size_t as_large(const void *user, car_shape shape) {
    (void)user;
    return (size_t)car_shape_elements(shape) * sizeof(float);
}

/* A convolution with few channels is stored in blocks of more: the callback sees PyTorch's layout, and padding stays zero. */
static void test_own_shapes(void **state) {
    enum { OUT = 5, IN = 3, KERNEL = 3, ELEMENTS = OUT * IN * KERNEL * KERNEL };
    const car_optimizer_class own = {
        .name = "index", .update = add_index, .state_count = 1, .state_names = {"kept"}, .scratch_bytes = as_large};
    const car_optimizer_config config = {.own = &own};
    car_context *context = NULL;
    car_graph *graph = NULL;
    car_program *program = NULL;
    car_arena *arena = NULL;
    car_optimizer *optimizer = NULL;
    float canonical[ELEMENTS] = {0};
    void *buffers[3] = {NULL};
    (void)state;
    assert_int_equal(car_context_create(NULL, &context), CAR_OK);
    assert_int_equal(car_graph_create(context, &graph), CAR_OK);
    int x = car_graph_input(graph, "x", (car_shape){4, {2, IN, 8, 8}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    x = car_graph_conv(graph, "conv", x, &(car_conv_config){.out_channels = OUT, .kernel = KERNEL, .stride = 1});
    x = car_graph_global_avgpool(graph, "pool", x);
    assert_int_equal(car_graph_finish(graph, car_graph_cross_entropy(graph, "loss", x, labels, 0)), CAR_OK);
    assert_int_equal(car_program_create(graph, NULL, &program), CAR_OK);
    assert_int_equal(car_arena_create(context, 0, &arena), CAR_OK);
    assert_int_equal(car_optimizer_create(program, arena, &config, &optimizer), CAR_OK);
    int param = car_graph_find_param(graph, "conv.weight");
    size_t bytes = car_program_param_bytes(program, param);
    for (int b = 0; b < 3; b++) {
        assert_int_equal(car_arena_allocate(arena, CAR_MEMORY_WORKSPACE, bytes, &buffers[b]), CAR_OK);
        memset(buffers[b], 0, bytes);
    }
    assert_true(car_optimizer_is_whole(optimizer, param));
    assert_int_equal(car_optimizer_update(optimizer, param, 0, 0.1, 1, buffers[0], buffers[1], buffers[2]), CAR_OK);
    assert_int_equal(car_program_export_param(program, param, buffers[1], canonical), CAR_OK);
    for (int i = 0; i < ELEMENTS; i++) {
        assert_true(canonical[i] == (float)(i + 1));
    }
    assert_int_equal(car_program_import_param(program, param, canonical, buffers[2]), CAR_OK);
    assert_memory_equal(buffers[1], buffers[2], bytes);
    assert_memory_equal(car_optimizer_state(optimizer, 0, param), buffers[2], bytes);
    for (int b = 0; b < 3; b++) {
        car_arena_release(arena, buffers[b]);
    }
    car_optimizer_destroy(optimizer);
    car_arena_destroy(arena);
    car_program_destroy(program);
    car_graph_destroy(graph);
    car_context_destroy(context);
}

static void refuse(fixture *f, const car_optimizer_class *own, const char *reason) {
    const car_optimizer_config config = {.own = own};
    car_optimizer *optimizer = NULL;
    assert_int_equal(car_optimizer_create(f->program, f->arena, &config, &optimizer), CAR_ERROR_ARGUMENT);
    assert_null(optimizer);
    assert_non_null(strstr(car_context_error(f->context), reason));
    car_context_clear_error(f->context);
    assert_int_equal(car_optimizer_register(f->context, own), CAR_ERROR_ARGUMENT);
    car_context_clear_error(f->context);
}

static car_status own_failure(const car_optimizer_io *io) {
    return io->step == 0 ? car_callback_fail(io->context, "%s has no curvature", io->param) : CAR_ERROR_IO;
}

static void test_own_mistakes(void **state) {
    fixture f = {0};
    car_optimizer_config config = car_optimizer_config_default();
    car_optimizer_class own = own_class;
    float weights[COUNT] = {0}, sum[COUNT] = {0};
    (void)state;
    set_up(&f, &config);
    assert_int_equal(car_optimizer_register(f.context, &own_class), CAR_OK);
    assert_int_equal(car_optimizer_find(f.context, "mine", &config), CAR_OK);
    assert_ptr_equal(config.own, &own_class);
    assert_string_equal(car_optimizer_config_name(&config), "mine");
    assert_int_equal(car_optimizer_find(f.context, "yours", &config), CAR_ERROR_UNKNOWN_NAME);
    assert_non_null(strstr(car_context_error(f.context), "the optimizers are sgd, adamw, muon and mine"));
    car_context_clear_error(f.context);
    assert_int_equal(car_optimizer_find(f.context, "adamw", &config), CAR_OK);
    assert_null(config.own);
    own.name = "sgd";
    assert_int_equal(car_optimizer_register(f.context, &own), CAR_ERROR_ARGUMENT);
    car_context_clear_error(f.context);
    own = own_class, own.name = "two words", refuse(&f, &own, "the name of an optimizer");
    own = own_class, own.update = NULL, refuse(&f, &own, "optimizer mine has no update");
    own = own_class, own.state_count = 4, refuse(&f, &own, "0 to 3 states, not 4");
    own = own_class, own.state_names[0] = "0", refuse(&f, &own, "state 0 is named '0'");
    own = own_class, own.state_count = 2, own.state_names[1] = "velocity", refuse(&f, &own, "two of its states");
    own = own_class, own.elementwise = true, own.scratch_bytes = as_large, refuse(&f, &own, "elementwise and asks");
    car_optimizer_destroy(f.optimizer);
    own = own_class, own.update = own_failure;
    config.own = &own;
    assert_int_equal(car_optimizer_create(f.program, f.arena, &config, &f.optimizer), CAR_OK);
    assert_int_equal(car_optimizer_update(f.optimizer, 0, 0, 0.1, 1, weights, weights, sum), CAR_ERROR_CALLBACK);
    assert_string_equal(car_context_error(f.context), "fc.weight has no curvature");
    car_context_clear_error(f.context);
    assert_int_equal(car_optimizer_update(f.optimizer, 0, 1, 0.1, 1, weights, weights, sum), CAR_ERROR_IO);
    assert_string_equal(car_context_error(f.context),
                        "optimizer mine failed with fc.weight in update 2: input/output error");
    tear_down(&f);
}

static void bad_settings_are_refused(void **state) {
    (void)state;
    fixture f = {0};
    car_optimizer *optimizer = NULL;
    const car_optimizer_config good = car_optimizer_config_default();
    car_optimizer_config unknown = good, negative = good, endless = good, absent = good;
    const car_optimizer_config *bad[] = {&unknown, &negative, &endless, &absent};
    static const char *const fields[] = {"kind is 99", "momentum is -2", "average is 1", "rule_count is 1"};
    unknown.kind = (car_optimizer_kind)99;
    negative.momentum = -2;
    endless.average = 1;
    absent.rule_count = 1;
    set_up(&f, &good);
    for (int n = 0; n < 4; n++) {
        assert_int_equal(car_optimizer_create(f.program, f.arena, bad[n], &optimizer), CAR_ERROR_ARGUMENT);
        assert_non_null(strstr(car_context_error(f.context), fields[n]));
        car_context_clear_error(f.context);
    }
    tear_down(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_settings_are_refused),
        cmocka_unit_test(test_what_they_say),
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_corrections),
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_synthetic_tokens),
        cmocka_unit_test(test_own),
        cmocka_unit_test(test_own_shapes),
        cmocka_unit_test(test_own_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
