/* Profiles: what is saved comes back, what does not belong or is broken is refused, nothing is left half-written. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "carousel/model.h"
#include "carousel/partition.h"
#include "support/allocator.h"
#include "support/expect.h"
#include "support/scratch.h"

enum { TEXT_CAPACITY = 1 << 16 };

typedef struct fixture {
    car_scratch scratch;
    car_context *context; /* the directory's */
    car_graph *graph;
    car_costs costs; /* invented */
    char path[300];
    char text[TEXT_CAPACITY]; /* of a good profile */
    size_t length;
} fixture;

static size_t read_text(const char *path, char *text) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t length = fread(text, 1, TEXT_CAPACITY - 1, file);
    assert_true(length < TEXT_CAPACITY - 1);
    text[length] = '\0';
    fclose(file);
    return length;
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    car_model_config config = {.batch = 2, .depth = 2};
    *state = f;
    assert_non_null(f);
    car_scratch_open(&f->scratch);
    f->context = f->scratch.context;
    snprintf(f->path, sizeof f->path, "%s/profile.json", f->scratch.directory);
    assert_int_equal(car_model_build(f->context, "gpt2-nano", &config, &f->graph), CAR_OK);
    assert_int_equal(car_costs_from_flops(f->graph, &f->costs), CAR_OK);
    for (int l = 0; l < f->costs.count; l++) {
        f->costs.forward[l] = 1e-3 * exp(car_random_normal(1, (uint64_t)l));
        f->costs.backward[l] = 2e-3 * exp(car_random_normal(2, (uint64_t)l));
    }
    f->costs.forward[0] = 0;
    f->costs.backward[0] = DBL_MIN;
    assert_int_equal(car_costs_save(f->graph, &f->costs, f->path), CAR_OK);
    f->length = read_text(f->path, f->text);
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    unlink(f->path);
    assert_int_equal(car_scratch_count(f->scratch.directory, ""), 0); /* nothing else is left there */
    car_costs_release(f->graph, &f->costs);
    car_graph_destroy(f->graph);
    car_scratch_close(&f->scratch);
    free(f);
    return 0;
}

static void expect_load(fixture *f, const car_graph *graph, const char *path, car_status expected, const char *part) {
    car_costs costs = {.count = 77};
    car_status status = car_costs_load(graph, path, &costs);
    if (status != CAR_OK) {
        assert_null(costs.forward);
        assert_null(costs.backward);
        assert_int_equal(costs.count, 0);
        if (expected != CAR_ERROR_MEMORY) {
            assert_non_null(strstr(car_context_error(f->context), path));
        }
    }
    car_expect_failure(f->context, status, expected, part);
    car_costs_release(graph, &costs);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_flops(void **state) {
    fixture *f = *state;
    car_costs flops;
    double forward = 0, backward = 0;
    assert_int_equal(car_costs_from_flops(f->graph, &flops), CAR_OK);
    assert_int_equal(flops.count, car_graph_op_count(f->graph));
    for (int l = 0; l < flops.count; l++) {
        assert_true(flops.forward[l] == car_graph_op(f->graph, l)->flops_forward);
        forward += flops.forward[l];
        backward += flops.backward[l];
    }
    assert_true(forward == car_graph_flops(f->graph, false));
    assert_true(backward == car_graph_flops(f->graph, true));
    car_costs_release(f->graph, &flops);
    assert_null(flops.forward);
    car_costs_release(f->graph, &flops); /* twice does no harm */
}

static void test_round_trip(void **state) {
    fixture *f = *state;
    car_costs loaded;
    struct stat info;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(car_costs_load(f->graph, f->path, &loaded), CAR_OK);
    assert_int_equal(loaded.count, f->costs.count);
    size_t bytes = (size_t)loaded.count * sizeof(double);
    assert_memory_equal(loaded.forward, f->costs.forward, bytes);
    assert_memory_equal(loaded.backward, f->costs.backward, bytes);
    /* Saved over itself it stays the same, with the rights that any new file gets. */
    assert_int_equal(car_costs_save(f->graph, &loaded, f->path), CAR_OK);
    char again[TEXT_CAPACITY];
    assert_int_equal(read_text(f->path, again), f->length);
    assert_string_equal(again, f->text);
    assert_int_equal(stat(f->path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0666 & ~mask);
    assert_int_equal(car_scratch_count(f->scratch.directory, ""), 1);
    car_costs_release(f->graph, &loaded);
}

static void test_another_model(void **state) {
    fixture *f = *state;
    static const struct {
        const char *name;
        car_model_config config;
    } others[] = {
        {"gpt2-nano", {.batch = 3, .depth = 2}},
        {"gpt2-nano", {.batch = 2, .depth = 3}},
        {"gpt2-nano", {.batch = 2, .depth = 2, .seq_len = 64}},
        {"gpt2-nano", {.batch = 2, .depth = 2, .heads = 3}},
        {"gpt2-nano", {.batch = 2, .depth = 2, .dropout = 0.1}},
        {"vit-tiny", {.batch = 2, .depth = 2}},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        car_graph *other = NULL;
        assert_int_equal(car_model_build(f->context, others[i].name, &others[i].config, &other), CAR_OK);
        expect_load(f, other, f->path, CAR_ERROR_ARGUMENT, "measured with another model or other sizes");
        expect_load(f, other, f->path, CAR_ERROR_ARGUMENT, "measure a profile of this model");
        car_graph_destroy(other);
    }
}

/* x -> conv -> bn -> gelu -> linear -> loss, with one thing changed. */
static uint64_t fingerprint_of(car_context *context, int change) {
    car_graph *graph = NULL;
    assert_int_equal(car_graph_create(context, &graph), CAR_OK);
    int x = car_graph_input(graph, "x", (car_shape){4, {change == 1 ? 3 : 2, 3, 6, 6}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {change == 1 ? 3 : 2}}, CAR_I32);
    car_conv_config conv = {4, change == 2 ? 5 : 3, 1, change == 2 ? 2 : 1, change == 3};
    int y = car_graph_conv(graph, change == 4 ? "other" : "conv", x, &conv);
    car_batchnorm_config bn = {change == 6, change == 7 ? 1e-3 : 1e-5, 0.1};
    y = car_graph_batchnorm(graph, "bn", y, change == 5 ? y : CAR_NONE, &bn);
    y = change == 8 ? car_graph_relu(graph, "act", y) : car_graph_gelu(graph, "act", y, change == 9);
    y = car_graph_global_avgpool(graph, "pool", y);
    y = car_graph_linear(graph, "fc0", y, &(car_linear_config){4, true, change == 10, NULL});
    const char *tied = change == 11 ? "fc0.weight" : NULL;
    y = car_graph_linear(graph, "fc1", y, &(car_linear_config){4, true, false, tied});
    car_graph_set_init(graph, "bn.weight", (car_init){CAR_INIT_CONSTANT, change == 12 ? 2 : 1});
    assert_int_equal(car_graph_finish(graph, car_graph_cross_entropy(graph, "loss", y, labels, 0)), CAR_OK);
    uint64_t fingerprint = car_graph_fingerprint(graph);
    car_graph_destroy(graph);
    return fingerprint;
}

static void test_fingerprint(void **state) {
    fixture *f = *state;
    enum { CHANGES = 13, EPS = 7, INITIAL = 12 }; /* the last two change no work */
    uint64_t prints[CHANGES];
    for (int i = 0; i < CHANGES; i++) {
        prints[i] = fingerprint_of(f->context, i);
        assert_int_equal(prints[i], fingerprint_of(f->context, i));
        for (int other = 0; other < i; other++) {
            bool harmless = (i == EPS && other == 0) || (i == INITIAL && (other == 0 || other == EPS));
            assert_int_equal(prints[i] == prints[other], harmless);
        }
    }
    /* All models differ. */
    uint64_t models[16];
    for (int m = 0; m < car_model_count(); m++) {
        car_graph *graph = NULL;
        assert_int_equal(car_model_build(f->context, car_model_info_at(m)->name, NULL, &graph), CAR_OK);
        models[m] = car_graph_fingerprint(graph);
        for (int other = 0; other < m; other++) {
            assert_true(models[m] != models[other]);
        }
        car_graph_destroy(graph);
    }
}

/* Wherever the file ends too early. */
static void test_cut_short(void **state) {
    fixture *f = *state;
    for (size_t length = 0; length < f->length; length += 1 + length / 17) {
        car_scratch_write(f->path, f->text, length);
        expect_load(f, f->graph, f->path, CAR_ERROR_FORMAT, "");
    }
    car_scratch_write(f->path, f->text, f->length - 1);
    expect_load(f, f->graph, f->path, CAR_ERROR_FORMAT, "not a JSON object");
    char spaced[TEXT_CAPACITY];
    int length = snprintf(spaced, sizeof spaced, "\n%s\n \n", f->text);
    car_scratch_write(f->path, spaced, (size_t)length);
    expect_load(f, f->graph, f->path, CAR_OK, "");
}

/* The good profile with one place changed. */
static void expect_changed(fixture *f, const char *from, const char *to, const char *part) {
    char changed[TEXT_CAPACITY];
    const char *place = strstr(f->text, from);
    assert_non_null(place);
    int length =
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(place - f->text), f->text, to, place + strlen(from));
    car_scratch_write(f->path, changed, (size_t)length);
    expect_load(f, f->graph, f->path, CAR_ERROR_FORMAT, part);
}

static void test_malformed(void **state) {
    fixture *f = *state;
    static const char *const texts[] = {"",      "[]",           "null",    "7", "\"carousel-profile\"",
                                        "{} {}", "{\"format\":", "\xff\xfe"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        car_scratch_write(f->path, texts[i], strlen(texts[i]));
        expect_load(f, f->graph, f->path, CAR_ERROR_FORMAT, "not a JSON object");
    }
    car_scratch_write(f->path, "{}", 2);
    expect_load(f, f->graph, f->path, CAR_ERROR_FORMAT, "not a profile");
    expect_changed(f, "carousel-profile", "carousel-profiles", "not a profile");
    expect_changed(f, "\"version\":\t1", "\"version\":\t2", "not a profile of version 1");
    expect_changed(f, "\"fingerprint\":\t\"", "\"fingerprint\":\t\"0", "fingerprint");
    expect_changed(f, "\"fingerprint\":\t\"", "\"fingerprint\":\t7, \"x\":\t\"", "fingerprint");
    expect_changed(f, "\"operations\"", "\"operation\"", "does not list the model's");
    expect_changed(f, "\"operations\":\t[", "\"operations\":\t[{},", "does not list the model's");
    expect_changed(f, "\"name\":\t\"", "\"name\":\t\"x", "operation 0 should be");
    expect_changed(f, "\"forward\":\t", "\"forward\":\ttrue, \"y\":\t", "with a forward and a backward");
    expect_changed(f, "\"backward\":\t", "\"backwards\":\t", "with a forward and a backward");
    expect_changed(f, "\"forward\":\t0", "\"forward\":\t-1", "operation 0");
    expect_changed(f, "\"forward\":\t0", "\"forward\":\t1e999", "the total costs are invalid: forward inf");
}

static void test_unreadable(void **state) {
    fixture *f = *state;
    char path[400];
    snprintf(path, sizeof path, "%s/nothing.json", f->scratch.directory);
    expect_load(f, f->graph, path, CAR_ERROR_IO, "cannot open");
    expect_load(f, f->graph, f->scratch.directory, CAR_ERROR_IO, "not a regular file");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_load(f, f->graph, path, CAR_ERROR_IO, "not a regular file");
    /* A rename over it would replace it. */
    car_expect_failure(f->context, car_costs_save(f->graph, &f->costs, path), CAR_ERROR_IO, "not a regular file");
    unlink(path);
    assert_int_equal(truncate(f->path, (off_t)1 << 27), 0);
    expect_load(f, f->graph, f->path, CAR_ERROR_FORMAT, "too large for a profile");
}

static void expect_save_fails(fixture *f, const car_costs *costs, const char *path, car_status expected) {
    car_status status = car_costs_save(f->graph, costs, path);
    assert_int_equal(status, expected);
    assert_true(strlen(car_context_error(f->context)) > 0);
    car_context_clear_error(f->context);
    assert_int_equal(car_scratch_count(f->scratch.directory, ""), 1);
    char left[TEXT_CAPACITY];
    assert_int_equal(read_text(f->path, left), f->length);
    assert_string_equal(left, f->text);
}

/* A save that fails leaves what was there, and nothing else. */
static void test_failed_saves(void **state) {
    fixture *f = *state;
    char path[400];
    snprintf(path, sizeof path, "%s/none/profile.json", f->scratch.directory);
    expect_save_fails(f, &f->costs, path, CAR_ERROR_IO);
    expect_save_fails(f, &f->costs, f->scratch.directory, CAR_ERROR_IO);
    double keep = f->costs.forward[3];
    f->costs.forward[3] = NAN;
    expect_save_fails(f, &f->costs, f->path, CAR_ERROR_ARGUMENT);
    f->costs.forward[3] = keep;
    expect_save_fails(f, &(car_costs){f->costs.forward, f->costs.backward, 3}, f->path, CAR_ERROR_ARGUMENT);
    /* A disk that is full after the first block, as files that may not grow. */
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 512;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    car_status status = car_costs_save(f->graph, &f->costs, f->path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    car_expect_failure(f->context, status, CAR_ERROR_IO, "cannot write");
    expect_save_fails(f, &f->costs, f->scratch.directory, CAR_ERROR_IO); /* and looks at what is left */
}

static void test_out_of_memory(void **state) {
    fixture *f = *state;
    car_checking checking = {0};
    car_context_config config = car_context_config_default();
    car_context *context = NULL;
    car_graph *graph = NULL;
    config.allocator = car_checking_hooks(&checking);
    assert_int_equal(car_context_create(&config, &context), CAR_OK);
    assert_int_equal(car_model_build(context, "gpt2-nano", &(car_model_config){.batch = 2, .depth = 2}, &graph),
                     CAR_OK);
    long blocks = checking.live_blocks;
    for (int save = 0; save < 2; save++) {
        car_status status = CAR_ERROR_MEMORY;
        for (int allowed = 0; status != CAR_OK; allowed++) {
            car_costs costs = {0};
            assert_true(allowed < 100);
            checking.fail_at = checking.calls + allowed + 1;
            status = save ? car_costs_save(graph, &f->costs, f->path) : car_costs_load(graph, f->path, &costs);
            assert_true(status == CAR_OK || status == CAR_ERROR_MEMORY);
            car_context_clear_error(context);
            car_costs_release(graph, &costs);
            assert_int_equal(checking.live_blocks, blocks);
        }
    }
    assert_int_equal(checking.wrong_sizes, 0);
    car_graph_destroy(graph);
    car_context_destroy(context);
}

int main(void) {
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_flops),       TEST(test_round_trip),   TEST(test_another_model),
        TEST(test_fingerprint), TEST(test_cut_short),    TEST(test_malformed),
        TEST(test_unreadable),  TEST(test_failed_saves), TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests_name("costs", tests, NULL, NULL);
}
