/* Programs: which kernels are chosen for our models, and that they need no padding. */
#include "carousel/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dnnl.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/winograd/winograd.h"
#include "support/rig.h"

/* ---- models ---------------------------------------------------------------------------------------------- */

typedef struct lowered {
    const char *model;
    car_model_config config;
    bool runs; /* small enough to run a step of it */
} lowered;

/* The batch is no number of output channels, so that activations can be told from weights by their first dimension. */
static const lowered models[] = {
    {"resnet18", {.batch = 2, .image_size = 32, .classes = 10}, true},
    {"resnet18", {.batch = 2, .image_size = 224}, true},
    {"resnet50", {.batch = 2, .image_size = 32}, true},
    {"resnet50", {.batch = 2, .image_size = 224}, false},
    {"vit-tiny", {.batch = 2, .image_size = 32}, true},
    {"gpt2-nano", {.batch = 2}, true},
};
enum { MODELS = sizeof models / sizeof models[0] };

static void open_model_with(car_rig *rig, const lowered *model, const car_program_config *config) {
    *rig = (car_rig){0};
    assert_int_equal(car_context_create(NULL, &rig->context), CAR_OK);
    car_rig_expect_ok(rig, car_model_build(rig->context, model->model, &model->config, &rig->graph));
    car_rig_expect_ok(rig, car_program_create(rig->graph, config, &rig->program));
}

static void open_model(car_rig *rig, const lowered *model) {
    open_model_with(rig, model, NULL);
}

/* What the graph says of bytes is true: none of our models needs padding. */
static void models_need_no_padding(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        car_rig rig;
        int indices = 0;
        open_model(&rig, &models[i]);
        for (int v = 0; v < car_graph_tensor_count(rig.graph); v++) {
            const car_tensor *tensor = car_graph_tensor(rig.graph, v);
            if (car_program_tensor_bytes(rig.program, v) != tensor->bytes) {
                fail_msg("%s: %s has %zu bytes, %zu in its layout", models[i].model, tensor->name, tensor->bytes,
                         car_program_tensor_bytes(rig.program, v));
            }
            indices += tensor->dtype == CAR_U8;
        }
        for (int s = 0; s < car_graph_grad_buffer_count(rig.graph); s++) {
            assert_int_equal(car_program_grad_buffer_bytes(rig.program, s), car_graph_grad_buffer(rig.graph, s)->bytes);
        }
        assert_int_equal(indices, models[i].config.image_size == 224 ? 1 : 0); /* of the max-pool */
        car_rig_close(&rig);
    }
}

/* oneDNN generates code for all passes of a convolution on x86 from AVX2 on. */
static bool has_generated_kernels(void) {
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa(), wanted = (unsigned)dnnl_cpu_isa_avx2;
    if (isa != (unsigned)dnnl_cpu_isa_all && (isa & wanted) == wanted) {
        return true;
    }
    print_message("NOT TESTED: oneDNN does not generate all kernels on this machine\n");
    return false;
}

static void convolutions_have_fast_kernels(void **state) {
    (void)state;
    if (!has_generated_kernels()) {
        skip();
    }
    for (int i = 0; i < MODELS; i++) {
        car_rig rig;
        open_model(&rig, &models[i]);
        for (int l = 0; l < car_graph_op_count(rig.graph); l++) {
            const car_op *op = car_graph_op(rig.graph, l);
            const char *name = car_program_kernel_name(rig.program, l);
            bool in_chain = op->kind == CAR_OP_CONV || op->kind == CAR_OP_BATCHNORM || op->kind == CAR_OP_RELU ||
                            op->kind == CAR_OP_MAXPOOL;
            assert_true(name && name[0] != '\0');
            if (in_chain && (strncmp(name, "ref", 3) == 0 || strstr(name, "reorder") != NULL)) {
                fail_msg("%s: %s (%s) is run by %s", models[i].model, op->name, car_op_kind_text(op->kind), name);
            }
        }
        car_rig_close(&rig);
    }
}

/* ---- which convolutions are Winograd's -------------------------------------------------------------------- */

static int count_winograd(const car_rig *rig, const car_program_config *config) {
    int count = 0;
    for (int l = 0; l < car_graph_op_count(rig->graph); l++) {
        bool winograd = strncmp(car_program_kernel_name(rig->program, l), "winograd:", 9) == 0;
        assert_int_equal(winograd, car_program_uses_winograd(rig->graph, config, l));
        count += winograd;
    }
    return count;
}

static int count_in_program(const lowered *model, int threads, car_convolutions convolutions, uint64_t *print) {
    car_program_config config = {.kernels = CAR_KERNELS_ONEDNN, .threads = threads, .convolutions = convolutions};
    car_rig rig;
    open_model_with(&rig, model, &config);
    int count = count_winograd(&rig, &config);
    *print = car_program_fingerprint(rig.program);
    assert_in_range(car_program_scratch_bytes(rig.program), 1, 32 << 20);
    car_rig_close(&rig);
    return count;
}

static bool has_winograd(void) {
    if (car_winograd_select(car_kernels_onednn_block())) {
        return true;
    }
    print_message("NOT TESTED: no Winograd convolutions on this machine\n");
    return false;
}

/* Every 3x3 convolution of stride 1 but the first, as images are large enough; none if direct ones are asked for or
 * several threads share a kernel. What a program does is what is foretold, and its fingerprint tells. */
static void choice_is_kept_and_foretold(void **state) {
    (void)state;
    const lowered resnet18 = {"resnet18", {.batch = 16, .image_size = 32, .classes = 10}, false};
    uint64_t automatic, direct, forced, again, two;
    if (!has_winograd()) {
        skip();
    }
    assert_int_equal(count_in_program(&resnet18, 1, CAR_CONVOLUTIONS_AUTO, &automatic), 13);
    assert_int_equal(count_in_program(&resnet18, 1, CAR_CONVOLUTIONS_DIRECT, &direct), 0);
    assert_int_equal(count_in_program(&resnet18, 1, CAR_CONVOLUTIONS_WINOGRAD, &forced), 13);
    assert_int_equal(count_in_program(&resnet18, 1, CAR_CONVOLUTIONS_AUTO, &again), 13);
    assert_int_equal(count_in_program(&resnet18, 2, CAR_CONVOLUTIONS_AUTO, &two), 0);
    assert_true(automatic == again && automatic == forced);
    assert_true(automatic != direct && direct != two);
}

/* What a lane and two versions of the weights hold besides the weights themselves. */
static size_t besides(const lowered *model, car_program_config config, int *winograd) {
    car_rig rig;
    open_model_with(&rig, model, &config);
    *winograd = count_winograd(&rig, &config);
    size_t bytes = car_program_scratch_bytes(rig.program);
    for (int l = 0; l < car_graph_op_count(rig.graph); l++) {
        bytes += 2 * car_program_derived_bytes(rig.program, l);
    }
    car_rig_close(&rig);
    return bytes;
}

/* Many channels: Winograd's scratch space is less than what direct convolutions derive from weights. Few: more. */
static void tight_memory_takes_what_is_smaller(void **state) {
    (void)state;
    const lowered wide = {"resnet18", {.batch = 16, .image_size = 32, .classes = 10}, false};
    const lowered narrow = {"resnet20", {.batch = 32, .image_size = 32, .classes = 10}, false};
    const car_program_config normal = {.kernels = CAR_KERNELS_ONEDNN, .threads = 1},
                             direct = {.kernels = CAR_KERNELS_ONEDNN,
                                       .threads = 1,
                                       .convolutions = CAR_CONVOLUTIONS_DIRECT},
                             tight = {.kernels = CAR_KERNELS_ONEDNN, .threads = 1, .tight = true};
    int all, some, none;
    if (!has_winograd()) {
        skip();
    }
    size_t bytes = besides(&wide, tight, &some);
    assert_true(bytes <= besides(&wide, direct, &none) && bytes <= besides(&wide, normal, &all));
    assert_true(some > 0 && none == 0);
    bytes = besides(&narrow, tight, &some);
    assert_true(bytes <= besides(&narrow, direct, &none) && bytes < besides(&narrow, normal, &all));
    assert_true(some == 0 && all > 0);
}

/* Shapes whose measured times differ by a third or more, either way. */
static void choice_follows_the_measurements(void **state) {
    static const struct {
        int64_t images, channels, side;
        bool pays;
    } shapes[] = {
        {16, 64, 32, true}, {16, 128, 16, true}, {16, 256, 8, true}, {16, 512, 4, true}, {32, 16, 32, true},
        {32, 32, 16, true}, {4, 64, 56, true},   {4, 128, 28, true}, {4, 256, 14, true}, {4, 512, 7, true},
        {1, 64, 32, true},  {1, 512, 4, false},  {1, 512, 7, false}, {2, 512, 4, false}, {2, 256, 4, false},
    };
    static const int blocks[] = {8, 16};
    (void)state;
    for (int b = 0; b < 2; b++) {
        const car_winograd *loops = car_winograd_select(blocks[b]);
        for (size_t i = 0; loops && i < sizeof shapes / sizeof shapes[0]; i++) {
            int64_t count = shapes[i].channels / blocks[b];
            const car_winograd_shape shape = {shapes[i].images, shapes[i].side, shapes[i].side, count, count, false};
            if (car_winograd_pays(&shape, loops, true, true) != shapes[i].pays) {
                fail_msg("%s: shape %zu is to be %s", loops->name, i, shapes[i].pays ? "Winograd's" : "direct");
            }
        }
    }
}

/* In bf16 direct convolutions are twice as fast, if the machine has the instructions. */
static void choice_knows_bf16(void **state) {
    const car_winograd *loops = car_winograd_select(16);
    (void)state;
    for (int64_t channels = 64, side = 56; loops && channels <= 512; channels *= 2, side /= 2) {
        const car_winograd_shape shape = {4, side, side, channels / 16, channels / 16, true};
        assert_int_equal(car_winograd_pays(&shape, loops, true, true), channels < 512);
        assert_true(car_winograd_pays(&shape, loops, true, false));
    }
}

/* ---- what oneDNN really does ------------------------------------------------------------------------------ */

/* What running takes, with weights of zero: drawing them would take longer than the step. */
static void open_rest(car_rig *rig) {
    car_rig_expect_ok(rig, car_arena_create(rig->context, 0, &rig->arena));
    car_rig_expect_ok(rig, car_weights_create(rig->program, rig->arena, &rig->weights));
    car_rig_expect_ok(rig, car_gradients_create(rig->program, rig->arena, &rig->gradients));
    car_rig_expect_ok(rig, car_lane_create(rig->program, rig->arena, &rig->lane));
    car_rig_expect_ok(rig, car_tape_create(rig->program, rig->arena, &rig->tape));
    for (int p = 0; p < car_graph_param_count(rig->graph); p++) {
        memset(car_weights_data(rig->weights, p), 0, car_program_param_bytes(rig->program, p));
    }
    car_rig_expect_ok(rig, car_weights_refresh(rig->weights, rig->lane, 0, car_graph_op_count(rig->graph)));
}

/* oneDNN tells on the standard output what it executes. Puts that into a file while `rig` makes a step. */
static FILE *record_step(const car_rig *rig) {
    FILE *record = tmpfile();
    assert_non_null(record);
    fflush(stdout);
    int original = dup(STDOUT_FILENO);
    assert_true(original >= 0 && dup2(fileno(record), STDOUT_FILENO) >= 0);
    dnnl_status_t talking = dnnl_set_verbose(1);
    car_status status = car_rig_step(rig, 1);
    dnnl_set_verbose(0);
    fflush(stdout);
    dup2(original, STDOUT_FILENO);
    close(original);
    car_rig_expect_ok(rig, status);
    rewind(record);
    if (talking != dnnl_success) {
        fclose(record);
        return NULL;
    }
    return record;
}

/* A line is "onednn_verbose,exec,cpu,KIND,IMPLEMENTATION,...,DIMENSIONS,TIME". Returns the number of convolutions. */
static int check_record(FILE *record, const char *model, int batch) {
    char line[1024], start[16];
    int convolutions = 0;
    snprintf(start, sizeof start, ",%dx", batch);
    while (fgets(line, sizeof line, record)) {
        char kind[64] = "", implementation[64] = "";
        const char *execution = strstr(line, "verbose,exec,"); /* older versions start with "dnnl_" */
        if (!execution || sscanf(execution, "verbose,exec,cpu,%63[^,],%63[^,]", kind, implementation) != 2) {
            continue;
        }
        convolutions += strcmp(kind, "convolution") == 0;
        bool moves_activations = strcmp(kind, "reorder") == 0 && strstr(line, start) != NULL;
        if (moves_activations || (strcmp(kind, "reorder") != 0 && strncmp(implementation, "ref", 3) == 0)) {
            fail_msg("%s: oneDNN runs %s", model, line);
        }
    }
    return convolutions;
}

/* In a whole step no activation is reordered and nothing, backward included, is left to oneDNN's reference. */
static void steps_reorder_no_activations(void **state) {
    (void)state;
    if (!has_generated_kernels()) {
        skip();
    }
    for (int i = 0; i < 2 * MODELS; i++) {
        car_rig rig;
        const lowered *model = &models[i % MODELS];
        car_program_config config = car_program_config_default();
        config.convolutions = i < MODELS ? CAR_CONVOLUTIONS_AUTO : CAR_CONVOLUTIONS_DIRECT;
        if (!model->runs) {
            continue;
        }
        open_model_with(&rig, model, &config);
        open_rest(&rig);
        int expected = -1; /* forward, by data and by weights; the first has no backward by data */
        for (int l = 0; l < car_graph_op_count(rig.graph); l++) {
            bool direct = !car_program_uses_winograd(rig.graph, &config, l);
            expected += car_graph_op(rig.graph, l)->kind == CAR_OP_CONV && direct ? 3 : 0;
        }
        FILE *record = record_step(&rig);
        if (!record) {
            print_message("NOT TESTED: this oneDNN does not tell what it executes\n");
            car_rig_close(&rig);
            skip();
        }
        int convolutions = check_record(record, model->model, model->config.batch);
        fclose(record);
        if (strncmp(model->model, "resnet", 6) == 0) {
            assert_int_equal(convolutions, expected);
        }
        car_rig_close(&rig);
    }
}

/* ---- asking for the impossible ---------------------------------------------------------------------------- */

static void impossible_programs_are_refused(void **state) {
    (void)state;
    car_rig rig = {0};
    assert_int_equal(car_context_create(NULL, &rig.context), CAR_OK);
    assert_int_equal(car_graph_create(rig.context, &rig.graph), CAR_OK);
    int loss = car_net_residual(rig.graph);
    car_program *program = (car_program *)&rig; /* anything but NULL */
    car_rig_expect_failure(&rig, car_program_create(rig.graph, NULL, &program), CAR_ERROR_ARGUMENT, "finished graph");
    assert_null(program);
    assert_int_equal(car_graph_finish(rig.graph, loss), CAR_OK);
    car_program_config config = car_program_config_default();
    assert_int_equal(config.kernels, CAR_KERNELS_ONEDNN);
    assert_int_equal(config.threads, 1);
    assert_int_equal(config.convolutions, CAR_CONVOLUTIONS_AUTO);
    car_rig_expect_failure(&rig, car_convolutions_find(rig.context, "indirect", &config.convolutions),
                           CAR_ERROR_UNKNOWN_NAME, "auto, direct or winograd");
    config.threads = 0;
    car_rig_expect_failure(&rig, car_program_create(rig.graph, &config, &program), CAR_ERROR_ARGUMENT, "thread");
    car_rig_expect_ok(&rig, car_program_create(rig.graph, NULL, &rig.program));
    assert_ptr_equal(car_program_graph(rig.program), rig.graph);
    car_rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_need_no_padding),          cmocka_unit_test(convolutions_have_fast_kernels),
        cmocka_unit_test(choice_is_kept_and_foretold),     cmocka_unit_test(tight_memory_takes_what_is_smaller),
        cmocka_unit_test(choice_follows_the_measurements), cmocka_unit_test(choice_knows_bf16),
        cmocka_unit_test(steps_reorder_no_activations),    cmocka_unit_test(impossible_programs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
