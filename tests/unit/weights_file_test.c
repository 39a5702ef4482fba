/* Weights in files: ours to the bit, PyTorch's in their variants, and everything that does not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha256.h"
#include "carousel/checkpoint.h"
#include "carousel/evaluate.h"
#include "support/allocator.h"
#include "support/raw_tensors.h"
#include "support/rig.h"
#include "support/scratch.h"

enum { CLASSES = 5 };

static const car_rig_config resnet = {
    .model = "resnet18",
    .model_config = {.batch = 2, .classes = CLASSES, .image_size = 16, .width = 4},
};
static const car_rig_config vit = {
    .model = "vit-tiny",
    .model_config = {.batch = 2, .classes = CLASSES, .image_size = 16, .width = 12, .depth = 2, .heads = 2},
};
static const car_rig_config gpt2 = {
    .model = "gpt2-nano",
    .model_config = {.batch = 2, .seq_len = 8, .vocabulary = 16, .width = 12, .depth = 2, .heads = 2},
};

typedef struct digest {
    char text[CAR_SHA256_TEXT];
} digest;

static digest digest_of(const car_rig *rig) {
    digest out;
    car_rig_expect_ok(rig, car_weights_digest(rig->weights, out.text));
    return out;
}

static void open_rig(car_rig *rig, const car_rig_config *config, uint64_t seed, car_kernels kernels) {
    car_rig_config own = *config;
    own.seed = seed;
    own.kernels = kernels;
    car_rig_open(rig, &own);
}

/* What a tensor of the file is to be called; NULL: it is left out. */
typedef const char *(*rename_function)(const char *name);

static const char *keep_name(const char *name) {
    return name;
}

/* Weights of a fresh rig under other names, in `raw`. */
static void collect(const car_scratch *scratch, const car_rig_config *config, rename_function rename,
                    car_raw_tensors *raw) {
    car_scratch_path path = car_scratch_in(scratch, "plain.safetensors");
    car_safetensors *file = NULL;
    car_rig rig;
    open_rig(&rig, config, 1, CAR_KERNELS_REFERENCE);
    car_rig_expect_ok(&rig, car_weights_save(rig.weights, path.text));
    car_rig_expect_ok(&rig, car_safetensors_open(rig.context, path.text, &file));
    for (int i = 0; i < car_safetensors_count(file); i++) {
        const car_safetensors_tensor *tensor = car_safetensors_at(file, i);
        const char *name = rename(tensor->name);
        if (name != NULL) {
            car_raw_copy(raw, name, tensor);
        }
    }
    car_safetensors_close(file);
    car_rig_close(&rig);
}

/* A rig whose weights a file is loaded into, and how. */
typedef struct trial {
    car_scratch scratch;
    car_scratch_path path;
    car_rig rig;
    car_raw_tensors raw;
    car_weights_load_report report;
    digest before;
} trial;

static void begin(trial *t, const car_rig_config *config, rename_function rename) {
    *t = (trial){0};
    car_scratch_open(&t->scratch);
    t->path = car_scratch_in(&t->scratch, "weights.safetensors");
    open_rig(&t->rig, config, 2, CAR_KERNELS_ONEDNN);
    t->before = digest_of(&t->rig);
    if (rename) {
        collect(&t->scratch, config, rename, &t->raw);
    }
}

static car_status load(trial *t, bool reset_head) {
    if (t->raw.header) {
        car_raw_finish(&t->raw, t->path.text);
    }
    return car_weights_load(t->rig.weights, t->path.text, &(car_weights_load_config){.reset_head = reset_head},
                            &t->report);
}

static void expect_refused(trial *t, bool reset_head, car_status expected, const char *part) {
    car_rig_expect_failure(&t->rig, load(t, reset_head), expected, part);
    assert_string_equal(digest_of(&t->rig).text, t->before.text); /* nothing was changed */
}

/* All of it was loaded: the weights are those of a rig of seed 1. */
static void expect_loaded(trial *t, const car_rig_config *config) {
    car_rig other;
    car_rig_expect_ok(&t->rig, load(t, false));
    open_rig(&other, config, 1, CAR_KERNELS_REFERENCE);
    assert_string_equal(digest_of(&t->rig).text, digest_of(&other).text);
    assert_int_equal(t->report.loaded, car_graph_param_count(t->rig.graph));
    assert_int_equal(t->report.missing + t->report.reset, 0);
    car_rig_close(&other);
}

static void end(trial *t) {
    car_rig_close(&t->rig);
    car_scratch_close(&t->scratch);
}

/* ---- there and back -------------------------------------------------------------------------- */

static void test_round_trip(void **state) {
    (void)state;
    const car_rig_config *const configs[] = {&resnet, &vit, &gpt2};
    for (int c = 0; c < 3; c++) {
        car_rig source;
        trial t;
        begin(&t, configs[c], NULL);
        open_rig(&source, configs[c], 1, CAR_KERNELS_ONEDNN);
        car_rig_expect_ok(&source, car_weights_save(source.weights, t.path.text));
        car_rig_close(&source);
        expect_loaded(&t, configs[c]);
        assert_int_equal(t.report.left_over, 0);
        assert_string_equal(t.report.left_over_names, "");
        assert_int_equal(car_scratch_count(t.scratch.directory, ""), 1);
        car_rig_expect_ok(&t.rig, car_weights_load(t.rig.weights, t.path.text, NULL, NULL));
        end(&t);
    }
}

/* ---- PyTorch's variants ---------------------------------------------------------------------- */

static const char *without_transformer(const char *name) {
    return name + strlen("transformer.");
}

static void test_bare_gpt2(void **state) {
    (void)state;
    const float zero[16 * 12] = {0};
    trial t;
    begin(&t, &gpt2, without_transformer);
    car_raw_add(&t.raw, "h.0.attn.bias", "F32", 4, (const int64_t[]){1, 1, 2, 2}, zero, 4 * sizeof *zero);
    car_raw_add(&t.raw, "h.0.attn.masked_bias", "F32", 0, NULL, zero, sizeof *zero);
    car_raw_add(&t.raw, "h.1.attn.bias", "BOOL", 1, (const int64_t[]){4}, zero, 4);
    expect_loaded(&t, &gpt2);
    assert_int_equal(t.report.left_over, 0);
    end(&t);
}

/* The head of GPT-2 is the embedding; stored again it must be the same. */
static void test_stored_head(void **state) {
    (void)state;
    for (int different = 0; different < 2; different++) {
        trial t;
        car_rig source;
        float embedding[16 * 12];
        begin(&t, &gpt2, keep_name);
        open_rig(&source, &gpt2, 1, CAR_KERNELS_REFERENCE);
        int wte = car_graph_find_param(source.graph, "transformer.wte.weight");
        car_rig_expect_ok(&source, car_weights_get(source.weights, wte, embedding));
        car_rig_close(&source);
        embedding[7] += (float)different;
        car_raw_add(&t.raw, "lm_head.weight", "F32", 2, (const int64_t[]){16, 12}, embedding, sizeof embedding);
        if (different) {
            expect_refused(&t, false, CAR_ERROR_FORMAT, "lm_head.weight differs from the embedding");
            car_rig_expect_ok(&t.rig, load(&t, true));
            assert_string_equal(t.report.left_over_names, "lm_head.weight");
        } else {
            expect_loaded(&t, &gpt2);
            assert_int_equal(t.report.left_over, 0);
        }
        end(&t);
    }
}

static void test_counters(void **state) {
    (void)state;
    const int64_t seen = 7;
    trial t;
    begin(&t, &resnet, keep_name);
    car_raw_add(&t.raw, "bn1.num_batches_tracked", "I64", 0, NULL, &seen, sizeof seen);
    expect_loaded(&t, &resnet);
    assert_int_equal(t.report.left_over, 0);
    end(&t);
}

/* As torchvision named them when it made its pretrained weights. */
static const char *older_vit(const char *name) {
    static char other[256];
    const char *first = strstr(name, ".mlp.0."), *second = strstr(name, ".mlp.3."), *place = first ? first : second;
    if (place == NULL) {
        return name;
    }
    snprintf(other, sizeof other, "%.*s.mlp.linear_%d.%s", (int)(place - name), name, first ? 1 : 2,
             place + strlen(".mlp.0."));
    return other;
}

static void test_older_vit(void **state) {
    (void)state;
    trial t;
    begin(&t, &vit, older_vit);
    expect_loaded(&t, &vit);
    assert_int_equal(t.report.left_over, 0);
    end(&t);
}

static const char *without_bias(const char *name) {
    return strcmp(name, "fc.bias") == 0 ? NULL : name;
}

static void test_halves(void **state) {
    (void)state;
    static const struct {
        const char *dtype;
        uint16_t bits[CLASSES];
    } cases[] = {{"F16", {0x3c00, 0xc000, 0x3555, 0x0001, 0x8000}}, {"BF16", {0x3f80, 0xc000, 0x3eab, 0x0001, 0x8000}}};
    for (size_t c = 0; c < 2; c++) {
        trial t;
        float bias[CLASSES];
        begin(&t, &resnet, without_bias);
        car_raw_add(&t.raw, "fc.bias", cases[c].dtype, 1, (const int64_t[]){CLASSES}, cases[c].bits,
                    sizeof cases[c].bits);
        car_rig_expect_ok(&t.rig, load(&t, false));
        car_rig_expect_ok(&t.rig, car_weights_get(t.rig.weights, car_graph_find_param(t.rig.graph, "fc.bias"), bias));
        assert_true(bias[0] == 1 && bias[1] == -2 && bias[2] > 0.333F && bias[2] < 0.335F && bias[3] > 0 &&
                    bias[3] < 1e-7F && bias[4] == 0);
        end(&t);
    }
    const double wide[CLASSES] = {0};
    trial t;
    begin(&t, &resnet, without_bias);
    car_raw_add(&t.raw, "fc.bias", "F64", 1, (const int64_t[]){CLASSES}, wide, sizeof wide);
    expect_refused(&t, false, CAR_ERROR_UNSUPPORTED, "'fc.bias' has elements of type F64");
    end(&t);
}

/* ---- what does not fit ----------------------------------------------------------------------- */

static const char *without_layers(const char *name) {
    return strncmp(name, "layer", 5) == 0 ? NULL : name;
}

static const char *without_deviation(const char *name) {
    return strcmp(name, "layer2.0.bn1.running_var") == 0 ? NULL : name;
}

static void test_missing(void **state) {
    (void)state;
    trial t;
    begin(&t, &resnet, without_deviation);
    expect_refused(&t, false, CAR_ERROR_FORMAT, "parameters: layer2.0.bn1.running_var;");
    assert_int_equal(t.report.missing, 1);
    assert_string_equal(t.report.missing_names, "layer2.0.bn1.running_var");
    expect_refused(&t, true, CAR_ERROR_FORMAT, "layer2.0.bn1.running_var"); /* not of the head */
    end(&t);

    begin(&t, &resnet, without_layers); /* more than there is room for */
    expect_refused(&t, false, CAR_ERROR_FORMAT, "layer1.0.conv1.weight, layer1.0.bn1.weight, ");
    int named = 1, more = 0;
    for (const char *comma = strstr(t.report.missing_names, ", "); comma; comma = strstr(comma + 1, ", ")) {
        named++;
    }
    assert_non_null(strstr(t.report.missing_names, " and "));
    assert_int_equal(sscanf(strstr(t.report.missing_names, " and "), " and %d more", &more), 1);
    assert_int_equal(t.report.missing, car_graph_param_count(t.rig.graph) - 7); /* conv1, bn1, fc */
    assert_int_equal(named + more, t.report.missing);
    assert_true(named > 10 && more > 10);
    end(&t);
}

static void test_left_over(void **state) {
    (void)state;
    const float value = 1;
    trial t;
    begin(&t, &resnet, keep_name);
    car_raw_add(&t.raw, "extra.weight", "F32", 0, NULL, &value, sizeof value);
    car_raw_add(&t.raw, "transformer.fc.bias", "F64", 0, NULL, "12345678", 8);
    expect_loaded(&t, &resnet);
    assert_int_equal(t.report.left_over, 2);
    assert_string_equal(t.report.left_over_names, "extra.weight, transformer.fc.bias");
    end(&t);
}

static const char *without_norm(const char *name) {
    return strcmp(name, "bn1.weight") == 0 ? NULL : name;
}

static void test_wrong_shape(void **state) {
    (void)state;
    const float values[12] = {0};
    for (int reset = 0; reset < 2; reset++) { /* the head it is not */
        trial t;
        begin(&t, &resnet, without_norm);
        car_raw_add(&t.raw, "bn1.weight", "F32", 2, (const int64_t[]){4, 3}, values, sizeof values);
        expect_refused(&t, reset, CAR_ERROR_FORMAT, "bn1.weight has shape [4, 3] in the file and [4] in the model");
        end(&t);
    }
    trial t;
    begin(&t, &resnet, NULL);
    expect_refused(&t, false, CAR_ERROR_IO, "cannot open");
    car_scratch_write(t.path.text, "nonsense", 8);
    expect_refused(&t, false, CAR_ERROR_FORMAT, "too short");
    end(&t);
}

/* Weights of a model with another number of classes, or tokens. */
static void check_other_head(const car_rig_config *config, const char *shapes, const char *head, int parts) {
    car_rig_config wider = *config;
    car_rig source, fresh;
    trial t;
    wider.model_config.classes *= 2;
    wider.model_config.vocabulary *= 2;
    begin(&t, config, NULL);
    open_rig(&source, &wider, 1, CAR_KERNELS_REFERENCE);
    open_rig(&fresh, config, 2, CAR_KERNELS_REFERENCE);
    car_rig_expect_ok(&source, car_weights_save(source.weights, t.path.text));
    expect_refused(&t, false, CAR_ERROR_FORMAT, shapes);
    expect_refused(&t, false, CAR_ERROR_FORMAT, "reset-head");
    car_rig_expect_ok(&t.rig, load(&t, true));
    assert_string_equal(t.report.reset_names, head);
    assert_int_equal(t.report.reset, parts);
    assert_int_equal(t.report.left_over, 0);
    assert_int_equal(t.report.loaded, car_graph_param_count(t.rig.graph) - parts);
    for (int p = 0; p < car_graph_param_count(t.rig.graph); p++) {
        const car_param *param = car_graph_param(t.rig.graph, p);
        size_t bytes = (size_t)car_shape_elements(param->shape) * sizeof(float);
        const car_rig *from = strstr(head, param->name) ? &fresh : &source;
        float *found = malloc(bytes), *wanted = malloc(bytes);
        assert_true(found && wanted);
        car_rig_expect_ok(&t.rig, car_weights_get(t.rig.weights, p, found));
        car_rig_expect_ok(from, car_weights_get(from->weights, p, wanted));
        assert_memory_equal(found, wanted, bytes);
        free(found);
        free(wanted);
    }
    car_rig_close(&fresh);
    car_rig_close(&source);
    end(&t);
}

static void test_other_head(void **state) {
    (void)state;
    check_other_head(&resnet, "fc.weight has shape [10, 32] in the file and [5, 32] in the model", "fc.weight, fc.bias",
                     2);
    check_other_head(&vit, "heads.head.weight has shape [10, 12] in the file and [5, 12]",
                     "heads.head.weight, heads.head.bias", 2);
    check_other_head(&gpt2, "transformer.wte.weight has shape [32, 12] in the file and [16, 12]",
                     "transformer.wte.weight", 1);
}

/* Without its bias the whole head stays as it is; so does one that fits, unless it is the embedding as well. */
static void test_half_a_head(void **state) {
    (void)state;
    trial t;
    begin(&t, &resnet, without_bias);
    expect_refused(&t, false, CAR_ERROR_FORMAT, "parameters: fc.bias");
    car_rig_expect_ok(&t.rig, load(&t, true));
    assert_string_equal(t.report.reset_names, "fc.weight, fc.bias");
    end(&t);
    begin(&t, &resnet, keep_name);
    car_rig_expect_ok(&t.rig, load(&t, true));
    assert_string_equal(t.report.reset_names, "fc.weight, fc.bias");
    end(&t);
    begin(&t, &gpt2, keep_name);
    car_rig_expect_ok(&t.rig, load(&t, true));
    assert_int_equal(t.report.reset, 0);
    end(&t);
}

/* Whichever allocation fails, nothing is changed and nothing lost. */
static void test_no_memory(void **state) {
    (void)state;
    car_checking checking = {0};
    car_allocator hooks = car_checking_hooks(&checking);
    car_rig_config config = gpt2;
    car_scratch scratch;
    car_rig rig;
    car_scratch_open(&scratch);
    car_scratch_path path = car_scratch_in(&scratch, "weights.safetensors");
    config.allocator = &hooks;
    open_rig(&rig, &config, 1, CAR_KERNELS_REFERENCE);
    car_rig_expect_ok(&rig, car_weights_save(rig.weights, path.text));
    car_rig_expect_ok(&rig, car_weights_initialize(rig.weights, 3));
    digest before = digest_of(&rig);
    long blocks = checking.live_blocks, calls = 0;
    for (bool loaded = false; !loaded;) {
        checking.fail_at = checking.calls + ++calls;
        car_status status = car_weights_load(rig.weights, path.text, NULL, NULL);
        checking.fail_at = 0;
        loaded = status == CAR_OK;
        if (!loaded) {
            car_rig_expect_failure(&rig, status, CAR_ERROR_MEMORY, "memory");
            assert_string_equal(digest_of(&rig).text, before.text);
        }
        assert_int_equal(checking.live_blocks, blocks);
    }
    assert_true(calls > 4);
    for (long saved = 0, call = 1; !saved; call++) {
        checking.fail_at = checking.calls + call;
        saved = car_weights_save(rig.weights, path.text) == CAR_OK;
        checking.fail_at = 0;
        car_context_clear_error(rig.context);
        assert_int_equal(checking.live_blocks, blocks);
        assert_int_equal(car_scratch_count(scratch.directory, ""), 1);
    }
    car_rig_close(&rig);
    assert_int_equal(checking.live_blocks, 0);
    assert_int_equal(checking.wrong_sizes, 0);
    car_scratch_close(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_bare_gpt2),   cmocka_unit_test(test_stored_head),
        cmocka_unit_test(test_counters),   cmocka_unit_test(test_older_vit),   cmocka_unit_test(test_halves),
        cmocka_unit_test(test_missing),    cmocka_unit_test(test_left_over),   cmocka_unit_test(test_wrong_shape),
        cmocka_unit_test(test_other_head), cmocka_unit_test(test_half_a_head), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
