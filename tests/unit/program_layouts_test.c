/* Layouts of a program: parameters and images are brought into the kernels' order and back without a loss. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "carousel/program.h"
#include "support/rig.h"

enum { NAN_BYTE = 0xFF, GUARD = 64 };

/* ---- layouts of parameters ------------------------------------------------------------------------------- */

/* Convolutions of all sorts between channels that fill no block. */
static int build_odd(car_graph *graph) {
    int x = car_graph_input(graph, "images", (car_shape){4, {2, 5, 13, 11}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    int y = car_graph_conv(graph, "patch", x, &(car_conv_config){5, 2, 2, 0, true});
    x = car_graph_conv(graph, "stem", x, &(car_conv_config){20, 7, 2, 3, true});
    x = car_net_norm(graph, "bn", x, CAR_NONE, true);
    x = car_net_conv(graph, "three", x, 33, 3, 1);
    x = car_net_conv(graph, "one", x, 5, 1, 1);
    x = car_net_conv(graph, "down", x, 20, 3, 2);
    x = car_net_conv(graph, "point", x, 33, 1, 2);
    x = car_net_linear(graph, "fc", car_graph_global_avgpool(graph, "pool", x), 5);
    y = car_graph_linear(graph, "side", car_graph_global_avgpool(graph, "pool2", y),
                         &(car_linear_config){5, true, true, NULL});
    return car_graph_cross_entropy(graph, "loss", car_graph_add(graph, "add", x, y), labels, 0);
}

/* No value is zero, so zeros can be told from values. */
static void fill(float *values, size_t count, uint64_t key) {
    for (size_t i = 0; i < count; i++) {
        values[i] = 0.5F + car_random_uniform(key, i);
    }
}

/* Counts the values among what is stored; what is neither value nor zero is a fault. */
static size_t count_values(const float *stored, size_t count) {
    size_t values = 0;
    for (size_t i = 0; i < count; i++) {
        assert_true(stored[i] == 0 || (stored[i] >= 0.5F && stored[i] < 1.5F));
        values += stored[i] != 0;
    }
    return values;
}

static void expect_guard(const unsigned char *end) {
    for (int i = 0; i < GUARD; i++) {
        assert_int_equal(end[i], NAN_BYTE);
    }
}

static void check_param(const car_rig *rig, int p) {
    size_t count = (size_t)car_shape_elements(car_graph_param(rig->graph, p)->shape), bytes = count * sizeof(float);
    size_t stored_bytes = car_program_param_bytes(rig->program, p);
    float *values = malloc(bytes), *back = NULL, *stored = NULL;
    assert_true(values && posix_memalign((void **)&stored, GUARD, stored_bytes + GUARD) == 0 &&
                posix_memalign((void **)&back, GUARD, bytes + GUARD) == 0);
    assert_true(stored_bytes >= bytes);
    fill(values, count, (uint64_t)p);
    memset(stored, NAN_BYTE, stored_bytes + GUARD);
    memset(back, NAN_BYTE, bytes + GUARD);
    car_rig_expect_ok(rig, car_program_import_param(rig->program, p, values, stored));
    assert_int_equal(count_values(stored, stored_bytes / sizeof(float)), count); /* and zeros around them */
    expect_guard((unsigned char *)stored + stored_bytes);
    car_rig_expect_ok(rig, car_program_export_param(rig->program, p, stored, back));
    assert_memory_equal(back, values, bytes);
    expect_guard((unsigned char *)back + bytes);
    free(values);
    free(stored);
    free(back);
}

static void parameters_make_the_round_trip(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        car_rig rig;
        car_kernels kernels = k == 0 ? CAR_KERNELS_REFERENCE : CAR_KERNELS_ONEDNN;
        car_rig_open(&rig, &(car_rig_config){.build = build_odd, .kernels = kernels});
        for (int p = 0; p < car_graph_param_count(rig.graph); p++) {
            check_param(&rig, p);
            if (kernels == CAR_KERNELS_REFERENCE) {
                size_t count = (size_t)car_shape_elements(car_graph_param(rig.graph, p)->shape);
                assert_int_equal(car_program_param_bytes(rig.program, p), count * sizeof(float));
            }
        }
        car_rig_close(&rig);
    }
}

/* ---- layouts of images ----------------------------------------------------------------------------------- */

/* Images of 5, 20 and 33 channels, each read by a convolution and by something else. */
static int build_images(car_graph *graph) {
    static const char *const names[] = {"five", "twenty", "thirty-three"};
    static const int channels[] = {5, 20, 33};
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32), sum = CAR_NONE;
    for (int i = 0; i < 3; i++) {
        char name[32];
        int x = car_graph_input(graph, names[i], (car_shape){4, {2, channels[i], 5, 3}}, CAR_F32);
        snprintf(name, sizeof name, "relu %s", names[i]);
        int y = car_graph_relu(graph, name, x);
        snprintf(name, sizeof name, "conv %s", names[i]);
        x = car_graph_add(graph, name, car_net_conv(graph, name, x, 6, 3, 1),
                          car_net_conv(graph, names[i], y, 6, 3, 1));
        sum = sum == CAR_NONE ? x : car_graph_add(graph, "add", sum, x);
    }
    int logits = car_net_linear(graph, "fc", car_graph_global_avgpool(graph, "pool", sum), 5);
    return car_graph_cross_entropy(graph, "loss", logits, labels, 0);
}

/* Fed, laid out and exported again, an image is what it was. In the end it is left with values of both signs. */
static void check_image(const car_rig *rig, int v) {
    const car_tensor *tensor = car_graph_tensor(rig->graph, v);
    size_t count = tensor->bytes / sizeof(float), stored = car_program_tensor_bytes(rig->program, v);
    float *values = malloc(tensor->bytes), *back = malloc(tensor->bytes);
    assert_true(values && back);
    fill(values, count, (uint64_t)v);
    car_rig_expect_ok(rig, car_tape_feed(rig->tape, v, values));
    assert_int_equal(count_values(car_tape_tensor(rig->tape, v), stored / sizeof(float)), count);
    memset(back, NAN_BYTE, tensor->bytes);
    car_rig_expect_ok(rig, car_program_export_tensor(rig->program, v, car_tape_tensor(rig->tape, v), back));
    assert_memory_equal(back, values, tensor->bytes);
    for (size_t i = 0; i < count; i++) {
        values[i] -= 1;
    }
    car_rig_expect_ok(rig, car_tape_feed(rig->tape, v, values));
    free(values);
    free(back);
}

/* What a kernel has made of an image is exported as well. Both are held: convolutions want them. */
static void check_relu(const car_rig *rig, const car_op *op) {
    size_t bytes = car_graph_tensor(rig->graph, op->output)->bytes;
    const void *x = car_tape_tensor(rig->tape, op->inputs[0]), *y = car_tape_tensor(rig->tape, op->output);
    float *before = malloc(bytes), *after = malloc(bytes);
    assert_true(x && y && before && after);
    car_rig_expect_ok(rig, car_program_export_tensor(rig->program, op->inputs[0], x, before));
    car_rig_expect_ok(rig, car_program_export_tensor(rig->program, op->output, y, after));
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        assert_true(after[i] == (before[i] > 0 ? before[i] : 0));
    }
    free(before);
    free(after);
}

static void images_make_the_round_trip(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        car_rig rig;
        car_kernels kernels = k == 0 ? CAR_KERNELS_REFERENCE : CAR_KERNELS_ONEDNN;
        int images = 0, relus = 0;
        car_rig_open(&rig, &(car_rig_config){.build = build_images, .kernels = kernels});
        car_rig_soil(&rig, 1 << 20); /* or padding could be zero by chance */
        car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, true));
        for (int v = 0; v < car_graph_tensor_count(rig.graph); v++) {
            const car_tensor *tensor = car_graph_tensor(rig.graph, v);
            if (tensor->producer == CAR_NONE && tensor->dtype == CAR_F32) {
                check_image(&rig, v);
                images++;
            }
        }
        car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, 0, car_graph_op_count(rig.graph)));
        for (int l = 0; l < car_graph_op_count(rig.graph); l++) {
            if (car_graph_op(rig.graph, l)->kind == CAR_OP_RELU) {
                check_relu(&rig, car_graph_op(rig.graph, l));
                relus++;
            }
        }
        assert_int_equal(images, 3);
        assert_int_equal(relus, 3);
        int labels = car_graph_find_tensor(rig.graph, "labels");
        float nothing[2];
        car_rig_expect_failure(
            &rig, car_program_export_tensor(rig.program, labels, car_tape_tensor(rig.tape, labels), nothing),
            CAR_ERROR_ARGUMENT, "labels");
        car_rig_close(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_make_the_round_trip),
        cmocka_unit_test(images_make_the_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
