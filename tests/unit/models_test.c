/* The models at full size against PyTorch's state dicts: names, shapes, initial values, counts, costs;
 * and what happens with configurations that no model can have.
 *
 * The lists state_dict_*.txt come from golden/make_golden.py, where their columns are explained. */
#include "carousel/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int set_up(void **state) {
    return car_context_create(NULL, (car_context **)state) == CAR_OK ? 0 : -1;
}

static int tear_down(void **state) {
    car_context_destroy(*state);
    return 0;
}

static car_graph *build(car_context *context, const char *name, const car_model_config *config) {
    car_graph *graph = NULL;
    car_status status = car_model_build(context, name, config, &graph);
    if (status != CAR_OK) {
        fail_msg("%s: %s: %s", name, car_status_text(status), car_context_error(context));
    }
    return graph;
}

static int64_t trainable(const car_graph *graph) {
    int64_t total = 0;
    for (int i = 0; i < car_graph_param_count(graph); i++) {
        const car_param *param = car_graph_param(graph, i);
        total += param->role != CAR_PARAM_STATISTIC ? car_shape_elements(param->shape) : 0;
    }
    return total;
}

static int count_ops(const car_graph *graph, car_op_kind kind) {
    int count = 0;
    for (int i = 0; i < car_graph_op_count(graph); i++) {
        count += car_graph_op(graph, i)->kind == kind;
    }
    return count;
}

/* ---- state dicts ----------------------------------------------------------------------------- */

static car_shape parse_shape(const char *text) {
    car_shape shape = {0};
    for (char *end = NULL; *text != '\0'; text = *end == 'x' ? end + 1 : end) {
        assert_true(shape.rank < CAR_MAX_RANK);
        shape.dim[shape.rank++] = strtoll(text, &end, 10);
        assert_true(end != text);
    }
    return shape;
}

/* The values that PyTorch drew must look like draws from our distribution. Six standard errors. */
static void check_init(const char *what, const car_param *param, double mean, double deviation, double largest) {
    double n = (double)car_shape_elements(param->shape);
    double a = param->init.a, tolerance = 6 / sqrt(2 * n) + 1e-3; /* 1e-3: the list has four digits */
    switch (param->init.kind) {
    case CAR_INIT_CONSTANT:
        if (deviation != 0 || mean != a) {
            fail_msg("%s: constant %g, PyTorch has mean %g, deviation %g", what, a, mean, deviation);
        }
        break;
    case CAR_INIT_NORMAL:
        if (fabs(deviation / a - 1) > tolerance || (n >= 256 && largest < 2 * a)) {
            fail_msg("%s: normal %g, PyTorch has deviation %g, largest %g", what, a, deviation, largest);
        }
        break;
    case CAR_INIT_UNIFORM:
        if (fabs(deviation * sqrt(3) / a - 1) > tolerance || largest > a * 1.001) {
            fail_msg("%s: uniform %g, PyTorch has deviation %g, largest %g", what, a, deviation, largest);
        }
        break;
    }
}

static void check_line(const car_graph *graph, const char *model, const char *line) {
    char name[128], shape_text[64], what[256];
    double mean = 0, deviation = 0, largest = 0;
    assert_int_equal(sscanf(line, "%127s %63s %lf %lf %lf", name, shape_text, &mean, &deviation, &largest), 5);
    snprintf(what, sizeof what, "%s: %s", model, name);
    int id = car_graph_find_param(graph, name);
    if (id == CAR_NONE) {
        fail_msg("%s is missing", what);
    }
    const car_param *param = car_graph_param(graph, id);
    car_shape shape = parse_shape(shape_text);
    if (shape.rank != param->shape.rank ||
        memcmp(shape.dim, param->shape.dim, sizeof(int64_t) * (size_t)shape.rank) != 0) {
        fail_msg("%s: not of shape %s", what, shape_text);
    }
    check_init(what, param, mean, deviation, largest);
}

static void test_state_dicts(void **state) {
    for (int i = 0; i < car_model_count(); i++) {
        const char *name = car_model_info_at(i)->name;
        char path[512], line[512];
        snprintf(path, sizeof path, "%s/state_dict_%s.txt", CAR_TEST_DATA_DIR, name);
        FILE *file = fopen(path, "r");
        if (file == NULL) {
            fail_msg("%s is missing", path);
        }
        car_graph *graph = build(*state, name, NULL);
        long long expected = 0;
        int lines = 0;
        assert_non_null(fgets(line, sizeof line, file));
        assert_int_equal(sscanf(line, "# %*[^:]: %lld trainable", &expected), 1);
        assert_int_equal(trainable(graph), expected);
        for (; fgets(line, sizeof line, file) != NULL; lines++) {
            check_line(graph, name, line);
        }
        assert_int_equal(lines, car_graph_param_count(graph)); /* so there is none too many either */
        fclose(file);
        car_graph_destroy(graph);
    }
}

/* ---- published numbers ----------------------------------------------------------------------- */

static void test_published_counts(void **state) {
    static const struct {
        const char *name;
        int64_t parameters;
    } known[] = {
        {"resnet20", 269722},  {"resnet18", 11689512}, {"resnet50", 25557032},
        {"vit-b16", 86567656}, {"gpt2", 124439808},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        car_graph *graph = build(*state, known[i].name, NULL);
        assert_int_equal(trainable(graph), known[i].parameters);
        car_graph_destroy(graph);
    }
    /* The usual CIFAR resnet18. */
    car_model_config cifar = {.batch = 16, .image_size = 32, .classes = 10};
    car_graph *graph = build(*state, "resnet18", &cifar);
    assert_int_equal(trainable(graph), 11173962);
    assert_int_equal(count_ops(graph, CAR_OP_MAXPOOL), 0);
    car_graph_destroy(graph);
}

static void test_flops(void **state) {
    static const struct {
        const char *name;
        int image_size;
        double macs; /* multiply-adds of a forward of one image */
    } known[] = {{"resnet20", 32, 40.8e6},
                 {"resnet18", 224, 1.814e9},
                 {"resnet18", 32, 0.5557e9},
                 {"resnet50", 224, 4.089e9},
                 {"vit-b16", 224, 17.56e9}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        car_model_config config = {.batch = 2, .image_size = known[i].image_size};
        car_graph *graph = build(*state, known[i].name, &config);
        double macs = car_graph_flops(graph, false) / 2 / config.batch;
        if (fabs(macs / known[i].macs - 1) > 0.03) {
            fail_msg("%s at %d: %.4g multiply-adds, not %.4g", known[i].name, config.image_size, macs, known[i].macs);
        }
        double ratio = car_graph_flops(graph, true) / car_graph_flops(graph, false);
        assert_true(ratio > 1.9 && ratio < 2.1);
        car_graph_destroy(graph);
    }
}

/* ---- structure ------------------------------------------------------------------------------- */

static void expect_shape(const car_graph *graph, const char *tensor, car_shape shape, car_dtype dtype) {
    int id = car_graph_find_tensor(graph, tensor);
    assert_int_not_equal(id, CAR_NONE);
    const car_tensor *found = car_graph_tensor(graph, id);
    assert_int_equal(found->producer, CAR_NONE);
    assert_int_equal(found->dtype, dtype);
    assert_int_equal(found->shape.rank, shape.rank);
    assert_memory_equal(found->shape.dim, shape.dim, sizeof(int64_t) * (size_t)shape.rank);
}

static void test_inputs_and_logits(void **state) {
    car_model_config config = {.batch = 3, .image_size = 16, .channels = 1, .classes = 7};
    car_graph *graph = build(*state, "resnet50", &config);
    expect_shape(graph, "images", (car_shape){4, {3, 1, 16, 16}}, CAR_F32);
    expect_shape(graph, "labels", (car_shape){1, {3}}, CAR_I32);
    assert_int_equal(car_shape_elements(car_graph_tensor(graph, car_graph_logits(graph))->shape), 3 * 7);
    car_graph_destroy(graph);

    config = (car_model_config){.batch = 3, .seq_len = 20};
    graph = build(*state, "gpt2-nano", &config);
    expect_shape(graph, "tokens", (car_shape){2, {3, 20}}, CAR_I32);
    expect_shape(graph, "labels", (car_shape){2, {3, 20}}, CAR_I32);
    assert_int_equal(car_graph_logits(graph), CAR_NONE); /* they are never there as a whole */
    assert_int_equal(car_graph_classes(graph), 256);
    /* A shorter sequence leaves the table of positions alone; the head is the embedding's second use. */
    int wpe = car_graph_find_param(graph, "transformer.wpe.weight"),
        wte = car_graph_find_param(graph, "transformer.wte.weight");
    int uses = 0;
    assert_int_equal(car_graph_param(graph, wpe)->shape.dim[0], 128);
    for (int use = 0; use < car_graph_use_count(graph); use++) {
        uses += car_graph_use_param(graph, use) == wte;
    }
    assert_int_equal(uses, 2);
    car_graph_destroy(graph);
}

/* What hardly shows in a comparison with PyTorch's numbers. */
static void test_constants(void **state) {
    for (int i = 0; i < car_model_count(); i++) {
        const car_model_info *info = car_model_info_at(i);
        car_graph *graph = build(*state, info->name, NULL);
        double expected = info->domain == CAR_DOMAIN_TOKENS ? 1e-5 : 1e-6;
        for (int l = 0; l < car_graph_op_count(graph); l++) {
            const car_op *op = car_graph_op(graph, l);
            if (op->kind == CAR_OP_LAYERNORM) {
                assert_true(op->config.layernorm.eps == expected);
            } else if (op->kind == CAR_OP_BATCHNORM) {
                assert_true(op->config.batchnorm.eps == 1e-5);
                assert_true(op->config.batchnorm.momentum == 0.1);
            } else if (op->kind == CAR_OP_GELU) {
                assert_true(op->config.gelu.tanh == (info->domain == CAR_DOMAIN_TOKENS));
            }
        }
        car_graph_destroy(graph);
    }
}

/* The small stem and the small patches end at 64 pixels, that size included. */
static void test_boundary_of_small_images(void **state) {
    for (int size = 64; size <= 80; size += 16) {
        car_model_config config = {.batch = 1, .image_size = size};
        car_graph *graph = build(*state, "resnet18", &config);
        const car_param *conv = car_graph_param(graph, car_graph_find_param(graph, "conv1.weight"));
        assert_int_equal(conv->shape.dim[2], size == 64 ? 3 : 7);
        assert_int_equal(count_ops(graph, CAR_OP_MAXPOOL), size == 64 ? 0 : 1);
        car_graph_destroy(graph);
        graph = build(*state, "vit-tiny", &config);
        const car_param *position = car_graph_param(graph, car_graph_find_param(graph, "encoder.pos_embedding"));
        assert_int_equal(position->shape.dim[1], size == 64 ? 1 + 16 * 16 : 1 + 5 * 5);
        car_graph_destroy(graph);
    }
}

/* BatchNorm swallows the ReLU and the addition behind it: none may be left on its own. */
static void test_fusion(void **state) {
    static const struct {
        const char *name;
        int blocks, convs, shortcuts;
    } known[] = {{"resnet20", 9, 19, 2}, {"resnet18", 8, 20, 0}, {"resnet50", 16, 53, 0}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        car_graph *graph = build(*state, known[i].name, NULL);
        int residuals = 0;
        for (int l = 0; l < car_graph_op_count(graph); l++) {
            const car_op *op = car_graph_op(graph, l);
            residuals += op->kind == CAR_OP_BATCHNORM && op->input_count > 1;
        }
        assert_int_equal(residuals, known[i].blocks);
        assert_int_equal(count_ops(graph, CAR_OP_CONV), known[i].convs);
        assert_int_equal(count_ops(graph, CAR_OP_BATCHNORM), known[i].convs);
        assert_int_equal(count_ops(graph, CAR_OP_SHORTCUT), known[i].shortcuts);
        assert_int_equal(count_ops(graph, CAR_OP_RELU) + count_ops(graph, CAR_OP_ADD), 0);
        car_graph_destroy(graph);
    }
}

static void test_dropout(void **state) {
    static const char *const names[] = {"vit-tiny", "vit-b16", "gpt2-nano", "gpt2"};
    for (int i = 0; i < 4; i++) {
        car_model_config config = {.batch = 1, .depth = 3, .dropout = 0.25};
        car_graph *graph = build(*state, names[i], &config);
        assert_int_equal(count_ops(graph, CAR_OP_DROPOUT), 1 + 2 * 3);
        car_graph_destroy(graph);
        config.dropout = 0;
        graph = build(*state, names[i], &config);
        assert_int_equal(count_ops(graph, CAR_OP_DROPOUT), 0);
        car_graph_destroy(graph);
    }
}

/* Sizes that are unusual but possible. */
static void test_unusual_sizes(void **state) {
    static const struct {
        const char *name;
        car_model_config config;
    } possible[] = {
        {"mlp", {.image_size = 1, .channels = 1, .width = 1, .depth = 1, .classes = 1}},
        {"resnet20", {.image_size = 5, .width = 1, .classes = 1}},
        {"resnet20", {.batch = 2, .image_size = 1}},
        {"resnet18", {.image_size = 64}},
        {"resnet18", {.image_size = 65}},
        {"resnet50", {.image_size = 33, .channels = 4, .width = 3}},
        {"vit-tiny", {.image_size = 4}},
        {"vit-tiny", {.image_size = 80}},
        {"vit-b16", {.image_size = 16, .depth = 1}},
        {"gpt2", {.seq_len = 1, .depth = 1}},
    };
    for (size_t i = 0; i < sizeof possible / sizeof possible[0]; i++) {
        car_graph_destroy(build(*state, possible[i].name, &possible[i].config));
    }
}

/* ---- resolving and failing ------------------------------------------------------------------- */

static void test_registry(void **state) {
    (void)state;
    assert_int_equal(car_model_count(), 8);
    for (int i = 0; i < car_model_count(); i++) {
        const car_model_info *info = car_model_info_at(i);
        assert_ptr_equal(car_model_find(info->name), info);
        assert_true(strlen(info->summary) > 0);
        assert_int_equal(info->domain, info->defaults.seq_len > 0 ? CAR_DOMAIN_TOKENS : CAR_DOMAIN_IMAGES);
    }
    assert_null(car_model_info_at(-1));
    assert_null(car_model_info_at(8));
    assert_null(car_model_find("resnet"));
    assert_null(car_model_find(NULL));
}

/* Sizes that are only planned: they are found by name, are not among those that are trained, and have as many
 * parameters as their authors say. */
static void test_models_on_paper(void **state) {
    for (int i = 0; i < car_model_paper_count(); i++) {
        const car_model_info *info = car_model_paper_at(i);
        int64_t width = info->defaults.width, context = info->defaults.seq_len;
        assert_true(info->on_paper);
        assert_ptr_equal(car_model_find(info->name), info);
        for (int m = 0; m < car_model_count(); m++) {
            assert_string_not_equal(car_model_info_at(m)->name, info->name);
            assert_false(car_model_info_at(m)->on_paper);
        }
        car_graph *graph = build(*state, info->name, NULL);
        int64_t expected = (info->defaults.vocabulary + context + 2) * width +
                           info->defaults.depth * (12 * width * width + 13 * width);
        assert_int_equal(trainable(graph), expected);
        if (strcmp(info->name, "gpt2-xl") == 0) {
            assert_int_equal(expected, 1557611200);
        }
        car_graph_destroy(graph);
    }
    assert_null(car_model_paper_at(-1));
    assert_null(car_model_paper_at(car_model_paper_count()));
}

static void test_resolve(void **state) {
    car_model_config config = car_model_config_default(), out = {0};
    config.classes = 10;
    config.label_smoothing = 0.1;
    assert_int_equal(car_model_resolve(*state, "vit-b16", &config, &out), CAR_OK);
    car_model_config expected = {.batch = 1,
                                 .classes = 10,
                                 .image_size = 224,
                                 .channels = 3,
                                 .width = 768,
                                 .depth = 12,
                                 .heads = 12,
                                 .label_smoothing = 0.1};
    assert_memory_equal(&out, &expected, sizeof out);
    assert_int_equal(car_model_resolve(*state, "gpt2-nano", NULL, &out), CAR_OK);
    assert_int_equal(out.seq_len, 128);
    assert_int_equal(out.classes, 0);
}

static const struct {
    const char *name;
    car_model_config config;
    const char *message;
} impossible[] = {
    {"mlp", {.batch = -1}, "batch -1 is out of range"},
    {"mlp", {.batch = 1 << 21}, "use 1 to 1048576"},
    {"resnet20", {.classes = -10}, "model resnet20: classes -10 is out of range"},
    {"resnet18", {.image_size = -32}, "image size -32"},
    {"resnet18", {.image_size = 1000000}, "image size 1000000 is out of range; use 1 to 16384"},
    {"resnet18", {.channels = -3}, "channels -3"},
    {"resnet18", {.depth = 34}, "depth cannot be set (34 was given)"},
    {"resnet18", {.dropout = 0.1}, "dropout is not supported"},
    {"resnet18", {.seq_len = 8}, "sequence length cannot be set"},
    {"resnet18", {.batch = 1, .image_size = 8}, "use a batch of at least 2 or an image size of at least 9"},
    {"resnet20", {.batch = 1, .image_size = 4}, "use a batch of at least 2 or an image size of at least 5"},
    {"resnet50", {.batch = 1 << 20, .image_size = 16384}, "reduce the batch or the model's sizes"},
    {"mlp", {.batch = 1 << 20, .image_size = 16384}, "an activation would have"},
    {"mlp", {.width = 1 << 15, .image_size = 16384}, "a weight would have"},
    {"vit-tiny", {.image_size = 30}, "image size 30 is not a multiple of the patch size, 4; use 28"},
    {"vit-tiny", {.image_size = 72}, "image size 72 is not a multiple of the patch size, 16; use 64"},
    {"vit-b16", {.image_size = 8}, "use 16"},
    {"vit-tiny", {.width = 190}, "width 190 is not a multiple of the number of heads, 3"},
    {"vit-tiny", {.heads = -1}, "heads -1"},
    {"vit-tiny", {.dropout = 1}, "dropout 1 is out of range"},
    {"vit-tiny", {.dropout = NAN}, "dropout nan"},
    {"vit-tiny", {.dropout = -0.5}, "dropout -0.5"},
    {"vit-tiny", {.label_smoothing = 1}, "label smoothing 1 is out of range"},
    {"vit-tiny", {.label_smoothing = NAN}, "label smoothing nan"},
    {"vit-tiny", {.vocabulary = 10}, "vocabulary cannot be set"},
    {"gpt2", {.seq_len = 1025}, "sequence length 1025 is longer than its context; use 1 to 1024"},
    {"gpt2-nano", {.seq_len = 129}, "use 1 to 128"},
    {"gpt2-nano", {.width = 100}, "width 100 is not a multiple of the number of heads, 6"},
    {"gpt2-nano", {.classes = 10}, "classes cannot be set"},
    {"gpt2-nano", {.vocabulary = -1}, "vocabulary -1"},
    {"gpt2", {.batch = 1 << 14, .vocabulary = 1 << 24}, "the logits would have"},
    {"gpt2", {.width = 2147483647}, "width 2147483647 is out of range"},
};

static void test_impossible_configs(void **state) {
    car_context *context = *state;
    for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++) {
        car_graph *graph = (car_graph *)context; /* anything: it must be overwritten */
        car_model_config out;
        car_status resolved = car_model_resolve(context, impossible[i].name, &impossible[i].config, &out);
        car_status status = car_model_build(context, impossible[i].name, &impossible[i].config, &graph);
        const char *message = car_context_error(context);
        if (resolved != CAR_ERROR_ARGUMENT || status != CAR_ERROR_ARGUMENT ||
            strstr(message, impossible[i].message) == NULL || strstr(message, impossible[i].name) == NULL) {
            fail_msg("%s, case %zu: '%s' with '%s', wanted '%s'", impossible[i].name, i, car_status_text(status),
                     message, impossible[i].message);
        }
        assert_null(graph);
        car_context_clear_error(context);
    }
}

static void test_unknown_name(void **state) {
    car_context *context = *state;
    static const char *const names[] = {"resnet34", "", "MLP", NULL};
    for (int i = 0; i < 4; i++) {
        car_graph *graph = NULL;
        car_model_config out;
        assert_int_equal(car_model_build(context, names[i], NULL, &graph), CAR_ERROR_UNKNOWN_NAME);
        assert_null(graph);
        for (int m = 0; m < car_model_count(); m++) {
            assert_non_null(strstr(car_context_error(context), car_model_info_at(m)->name));
        }
        assert_int_equal(car_model_resolve(context, names[i], NULL, &out), CAR_ERROR_UNKNOWN_NAME);
        car_context_clear_error(context);
    }
}

/* Memory that ends after a given number of allocations. */
typedef struct budget {
    long left, live;
} budget;

static void *budget_allocate(void *user, size_t bytes) {
    budget *b = user;
    void *block = NULL;
    if (b->left == 0 || posix_memalign(&block, 64, bytes) != 0) {
        return NULL;
    }
    b->left--;
    b->live++;
    return block;
}

static void budget_release(void *user, void *block, size_t bytes) {
    (void)bytes;
    ((budget *)user)->live--;
    free(block);
}

/* Wherever memory runs out, building ends with that status and gives everything back. */
static void test_out_of_memory(void **state) {
    (void)state;
    car_model_config config = {.batch = 2, .width = 16, .depth = 2, .heads = 2, .dropout = 0.1};
    car_status status = CAR_ERROR_MEMORY;
    for (long allowed = 1; status != CAR_OK; allowed++) {
        budget b = {.left = allowed};
        car_context_config context_config = car_context_config_default();
        car_context *context = NULL;
        car_graph *graph = NULL;
        context_config.allocator = (car_allocator){budget_allocate, budget_release, &b};
        assert_int_equal(car_context_create(&context_config, &context), CAR_OK);
        status = car_model_build(context, "gpt2-nano", &config, &graph);
        assert_true(allowed < 10000);
        assert_true(status == CAR_OK || status == CAR_ERROR_MEMORY);
        assert_true((status == CAR_OK) == (graph != NULL));
        assert_true((status == CAR_OK) == (car_context_error(context)[0] == '\0'));
        car_graph_destroy(graph);
        assert_int_equal(b.live, 1);
        car_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registry),
        cmocka_unit_test(test_models_on_paper),
        cmocka_unit_test(test_resolve),
        cmocka_unit_test(test_impossible_configs),
        cmocka_unit_test(test_unknown_name),
        cmocka_unit_test(test_state_dicts),
        cmocka_unit_test(test_published_counts),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_inputs_and_logits),
        cmocka_unit_test(test_fusion),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_constants),
        cmocka_unit_test(test_boundary_of_small_images),
        cmocka_unit_test(test_unusual_sizes),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests_name("models", tests, set_up, tear_down);
}
