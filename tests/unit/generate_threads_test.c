/* Generating: logits with kept keys and values are those of the model's graph, in whatever pieces tokens are fed and by
 * however many threads; the choice of tokens follows its definition. */
#include "carousel/generate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "carousel/checkpoint.h"
#include "carousel/safetensors.h"
#include "support/expect.h"
#include "support/rig.h"
#include "support/scratch.h"

enum { VOCABULARY = 97, HEADS = 3, MOST_LENGTH = 300 };

/* Initial biases are zero and norms one, which hides mistakes: everything gets some noise. */
static void shake(const car_rig *rig) {
    for (int p = 0; p < car_graph_param_count(rig->graph); p++) {
        const car_param *param = car_graph_param(rig->graph, p);
        size_t count = (size_t)car_shape_elements(param->shape);
        float *values = malloc(count * sizeof *values);
        car_rig_expect_ok(rig, car_weights_get(rig->weights, p, values));
        for (size_t i = 0; i < count; i++) {
            values[i] += 0.2F * (float)car_random_normal(car_random_key(5, param->name), i);
        }
        car_rig_expect_ok(rig, car_weights_set(rig->weights, p, values));
        free(values);
    }
}

static void open_rig(car_rig *rig, int length) {
    const car_rig_config config = {
        .model = "gpt2",
        .model_config =
            {.batch = 1, .seq_len = length, .vocabulary = VOCABULARY, .width = 48, .depth = 3, .heads = HEADS},
        .kernels = CAR_KERNELS_ONEDNN,
        .seed = 1};
    car_rig_open(rig, &config);
    shake(rig);
}

static void make_tokens(int32_t *tokens, int length, uint64_t seed) {
    for (int i = 0; i < length; i++) {
        tokens[i] = (int32_t)(car_random_u64(seed, (uint64_t)i) % VOCABULARY);
    }
}

/* What the graph makes of the last token. */
static const float *graph_logits(const car_rig *rig, const int32_t *tokens, int length) {
    const car_graph *graph = rig->graph;
    int32_t *labels = calloc((size_t)length, sizeof *labels);
    car_tape_begin(rig->tape, 1, false);
    car_rig_expect_ok(rig, car_tape_feed(rig->tape, car_graph_find_tensor(graph, "tokens"), tokens));
    car_rig_expect_ok(rig, car_tape_feed(rig->tape, car_graph_find_tensor(graph, "labels"), labels));
    car_rig_expect_ok(rig, car_tape_forward(rig->tape, rig->lane, rig->weights, 0, car_graph_op_count(graph)));
    free(labels);
    static _Thread_local float logits[VOCABULARY];
    car_rig_expect_ok(rig, car_tape_logits(rig->tape, rig->weights, length - 1, 1, logits));
    return logits;
}

static void expect_close(const float *actual, const float *expected) {
    double largest = 0;
    for (int v = 0; v < VOCABULARY; v++) {
        largest = fmax(largest, fabs(expected[v]));
    }
    for (int v = 0; v < VOCABULARY; v++) {
        car_expect_near(actual[v], expected[v], 2e-5 * largest);
    }
}

static car_generator *open_generator(const car_scratch *s, const char *path, int threads) {
    car_generator_config config = car_generator_config_default();
    car_generator *g = NULL;
    config.heads = HEADS;
    config.threads = threads;
    car_expect_ok(s->context, car_generator_open(s->context, path, &config, &g));
    return g;
}

/* Feeds all, `at_once` tokens at a time. */
static void feed(const car_scratch *s, car_generator *g, const int32_t *tokens, int length, int at_once,
                 float *logits) {
    car_generator_rewind(g, 0);
    for (int done = 0, count = 0; done < length; done += count) {
        count = length - done < at_once ? length - done : at_once;
        car_expect_ok(s->context, car_generator_feed(g, tokens + done, count, logits));
    }
    assert_int_equal(car_generator_length(g), length);
}

static void logits_are_those_of_the_graph(void **state) {
    const car_scratch *s = *state;
    static const int lengths[] = {1, 7, 65, MOST_LENGTH};
    car_scratch_path path = car_scratch_in(s, "weights.safetensors");
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        int32_t tokens[MOST_LENGTH];
        float expected[VOCABULARY], logits[VOCABULARY], again[VOCABULARY];
        int length = lengths[l];
        const int at_once[] = {1, 5, length};
        car_rig rig;
        open_rig(&rig, length);
        car_rig_expect_ok(&rig, car_weights_save(rig.weights, path.text));
        car_generator *one = open_generator(s, path.text, 1), *three = open_generator(s, path.text, 3);
        for (uint64_t prompt = 0; prompt < 2; prompt++) {
            make_tokens(tokens, length, prompt);
            memcpy(expected, graph_logits(&rig, tokens, length), sizeof expected);
            for (size_t a = 0; a < sizeof at_once / sizeof at_once[0]; a++) {
                feed(s, one, tokens, length, at_once[a], logits);
                expect_close(logits, expected);
                feed(s, three, tokens, length, at_once[a], again);
                assert_memory_equal(again, logits, sizeof logits);
            }
        }
        car_generator_close(three);
        car_generator_close(one);
        car_rig_close(&rig);
    }
}

static void what_does_not_fit_is_refused(void **state) {
    const car_scratch *s = *state;
    car_scratch_path path = car_scratch_in(s, "weights.safetensors");
    car_generator_config config = car_generator_config_default();
    car_generator *none = NULL;
    static int32_t tokens[1025];
    float logits[VOCABULARY];
    car_rig rig;
    open_rig(&rig, 4);
    car_rig_expect_ok(&rig, car_weights_save(rig.weights, path.text));
    car_generator *g = open_generator(s, path.text, 1);
    const car_gpt2_sizes sizes = car_generator_sizes(g);
    assert_int_equal(sizes.positions, 1024);
    assert_int_equal(sizes.depth, 3);
    assert_int_equal(sizes.inner, 4 * 48);
    car_expect_failure(s->context, car_generator_feed(g, tokens, 1025, logits), CAR_ERROR_ARGUMENT, "context of 1024");
    car_expect_failure(s->context, car_generator_feed(g, &(int32_t){VOCABULARY}, 1, logits), CAR_ERROR_ARGUMENT,
                       "no token 97");
    assert_int_equal(car_generator_length(g), 0);
    car_generator_close(g);
    config.heads = 5;
    car_expect_failure(s->context, car_generator_open(s->context, path.text, &config, &none), CAR_ERROR_ARGUMENT,
                       "5 heads");
    car_rig_close(&rig);
    const car_safetensors_entry entry = {.name = "fc.weight", .rank = 1, .shape = (int64_t[]){2}};
    car_safetensors_writer *writer = NULL;
    car_expect_ok(s->context, car_safetensors_writer_create(s->context, path.text, &entry, 1, NULL, &writer));
    car_expect_ok(s->context, car_safetensors_writer_add(writer, (float[]){1, 2}));
    car_expect_ok(s->context, car_safetensors_writer_finish(writer, NULL));
    car_safetensors_writer_destroy(writer);
    car_expect_failure(s->context, car_generator_open(s->context, path.text, &config, &none), CAR_ERROR_FORMAT,
                       "not the weights of a GPT-2");
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* How often each token is chosen in many draws. */
static void draw(const car_scratch *s, car_sampling sampling, const float *logits, int count, double *shares) {
    enum { DRAWS = 5000 };
    car_sampler *sampler = NULL;
    car_expect_ok(s->context, car_sampler_create(s->context, count, &sampling, &sampler));
    memset(shares, 0, (size_t)count * sizeof *shares);
    for (int d = 0; d < DRAWS; d++) {
        int token = -1, again = -1;
        car_expect_ok(s->context, car_sampler_choose(sampler, logits, d, &token));
        car_expect_ok(s->context, car_sampler_choose(sampler, logits, d, &again));
        assert_int_equal(token, again);
        assert_in_range(token, 0, count - 1);
        shares[token] += 1.0 / DRAWS;
    }
    car_sampler_destroy(sampler);
}

static void tokens_are_chosen_by_their_probability(void **state) {
    const car_scratch *s = *state;
    /* Probabilities 0.1, 0.4, 0.2, 0.2, 0.1. */
    const float logits[] = {logf(1), logf(4), logf(2), logf(2), logf(1)};
    double shares[5];
    draw(s, (car_sampling){.temperature = 1, .top_p = 1, .seed = 1}, logits, 5, shares);
    for (int i = 0; i < 5; i++) {
        car_expect_near(shares[i], exp(logits[i]) / 10, 0.03);
    }
    draw(s, (car_sampling){.temperature = 0.5, .top_p = 1, .seed = 2}, logits, 5, shares);
    car_expect_near(shares[1], 16.0 / 26, 0.03);
    draw(s, (car_sampling){.temperature = 1, .top_k = 2, .top_p = 1, .seed = 3}, logits, 5, shares);
    car_expect_near(shares[1], 4.0 / 6, 0.03);
    car_expect_near(shares[2], 2.0 / 6, 0.03); /* of equals the smaller token */
    draw(s, (car_sampling){.temperature = 1, .top_p = 0.65, .seed = 4}, logits, 5, shares);
    car_expect_near(shares[1], 0.5, 0.03); /* 0.4, 0.2 and 0.2: the first two do not reach 0.65 */
    car_expect_near(shares[3], 0.25, 0.03);
    assert_true(shares[0] == 0 && shares[4] == 0);
    draw(s, (car_sampling){.temperature = 1, .top_k = 3, .top_p = 0.4, .seed = 4}, logits, 5, shares);
    car_expect_near(shares[1], 1, 1e-9);
    draw(s, (car_sampling){.temperature = 0, .top_p = 1, .seed = 5}, logits, 5, shares);
    car_expect_near(shares[1], 1, 1e-9);
}

static void logits_that_are_no_numbers_are_an_error(void **state) {
    const car_scratch *s = *state;
    car_sampling sampling = {.temperature = 1, .top_p = 1};
    car_sampler *sampler = NULL;
    int token = 0;
    car_expect_ok(s->context, car_sampler_create(s->context, 3, &sampling, &sampler));
    car_expect_failure(s->context, car_sampler_choose(sampler, (float[]){0, NAN, 0}, 0, &token), CAR_ERROR_NOT_FINITE,
                       "not finite");
    car_sampler_destroy(sampler);
    sampling.top_p = 0;
    car_expect_failure(s->context, car_sampler_create(s->context, 3, &sampling, &sampler), CAR_ERROR_ARGUMENT, "top-p");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(logits_are_those_of_the_graph, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_fit_is_refused, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(tokens_are_chosen_by_their_probability, car_scratch_set_up,
                                        car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(logits_that_are_no_numbers_are_an_error, car_scratch_set_up,
                                        car_scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
