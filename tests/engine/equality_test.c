/* The engine against the sequential trainer, to the bit: weights after six steps, and the loss of every
 * step, for any number of threads. What is compared with is in sequential.c.
 *
 * The models are small variants that keep all there is to get wrong: BatchNorm statistics, a tied
 * embedding, padded channels, stages without operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/evaluate.h"
#include "engine/equality.h"

enum { MAX_LABELS = 64 };

static const int worker_counts[] = CAR_EQUALITY_WORKERS, thread_counts[] = CAR_EQUALITY_THREADS;

/* ---- models -------------------------------------------------------------------------------- */

static const car_small_model mlp = {.name = "mlp",
                                    .config = {.batch = 2, .image_size = 4, .classes = 5, .width = 12, .depth = 3}};
static const car_small_model mlp_wide = {
    .name = "mlp", .config = {.batch = 2, .image_size = 8, .classes = 5, .width = 160, .depth = 3}};
static const car_small_model resnet20 = {.name = "resnet20",
                                         .config = {.batch = 2, .image_size = 8, .classes = 5, .width = 16}};
/* Images too small for the choice to fall on Winograd's algorithm by itself. */
static const car_small_model resnet20_winograd = {.name = "resnet20",
                                                  .config = {.batch = 2, .image_size = 8, .classes = 5, .width = 16},
                                                  .convolutions = CAR_CONVOLUTIONS_WINOGRAD};
/* Channels that fill no block: stored with padding, and slow. */
static const car_small_model resnet20_padded = {.name = "resnet20",
                                                .config = {.batch = 2, .image_size = 4, .classes = 5, .width = 3}};
static const car_small_model vit = {
    .name = "vit-tiny", .config = {.batch = 2, .image_size = 8, .classes = 5, .width = 12, .depth = 3, .heads = 3}};
static const car_small_model gpt2 = {
    .name = "gpt2-nano", .config = {.batch = 2, .seq_len = 6, .vocabulary = 20, .width = 12, .depth = 3, .heads = 2}};
static const car_small_model vit_dropout = {
    .name = "vit-tiny",
    .config = {.batch = 2, .image_size = 8, .classes = 5, .width = 12, .depth = 2, .heads = 3, .dropout = 0.3}};
static const car_small_model gpt2_dropout = {
    .name = "gpt2-nano",
    .config = {.batch = 2, .seq_len = 6, .vocabulary = 20, .width = 12, .depth = 2, .heads = 2, .dropout = 0.3}};

/* Odd numbers of elements, a tied embedding; and convolutions, whose weights have layouts of their own. */
static const car_small_model gpt2_bf16 = {.name = "gpt2-nano",
                                          .config = {.batch = 1,
                                                     .seq_len = 5,
                                                     .vocabulary = 21,
                                                     .width = 9,
                                                     .depth = 2,
                                                     .heads = 3,
                                                     .precision = CAR_PRECISION_BF16}};
static const car_small_model resnet20_bf16 = {
    .name = "resnet20",
    .config = {.batch = 2, .image_size = 4, .classes = 5, .width = 3, .precision = CAR_PRECISION_BF16}};

/* ---- tests ----------------------------------------------------------------------------------- */

static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};

static void test_matrix(void **state) {
    car_world w;
    car_world_open(&w, *state);
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        for (int n = 0; n < CAR_COUNT(worker_counts); n++) {
            for (int k = 1; k <= 2; k++) {
                const car_equality_setting sgd = car_equality_sgd(rules[r], worker_counts[n], k);
                const car_equality_setting adamw = car_equality_adamw(rules[r], worker_counts[n], k);
                car_equality_check(&w, &sgd);
                car_equality_check(&w, &adamw);
            }
        }
    }
    car_world_close(&w);
}

static void test_slack(void **state) {
    car_world w;
    car_world_open(&w, *state);
    for (int k = 1; k <= 2; k++) {
        car_equality_setting s = car_equality_sgd(CAR_RULE_CDP_V2, 3, k);
        s.slack = 1;
        car_equality_check(&w, &s);
    }
    car_world_close(&w);
}

/* What is made again has the bits of what was held: dropout draws alike, batch statistics count once. */
static void test_recompute(void **state) {
    car_world w;
    car_world_open(&w, *state);
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        car_equality_setting s = car_equality_sgd(rules[r], 3, 1);
        s.recompute = (car_recompute_config){.how = CAR_RECOMPUTE_FIRST, .tensors = r == 0 ? 6 : 1000};
        car_equality_check(&w, &s);
    }
    car_world_close(&w);
}

static void test_dropout(void **state) {
    car_world w;
    car_world_open(&w, *state);
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        const car_equality_setting s = car_equality_sgd(rules[r], 3, 1);
        car_equality_check(&w, &s);
    }
    car_world_close(&w);
}

/* A bound that some steps exceed and some do not, so that the norm of the right step matters. */
static void test_clip(void **state) {
    car_world w;
    car_world_open(&w, *state);
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        car_equality_setting s = car_equality_sgd(rules[r], 3, 2);
        car_sequential *free_run = car_equality_sequential(&w, &s);
        double low = car_sequential_norm(free_run, 0), high = low;
        for (int t = 1; t < CAR_EQUALITY_STEPS; t++) {
            double norm = car_sequential_norm(free_run, t);
            low = norm < low ? norm : low;
            high = norm > high ? norm : high;
        }
        s.clip_norm = (low + high) / 2;
        car_sequential *clipped = car_equality_sequential(&w, &s);
        assert_int_not_equal(car_equality_difference(&w, car_sequential_weights(free_run, CAR_EQUALITY_STEPS),
                                                     car_sequential_weights(clipped, CAR_EQUALITY_STEPS)),
                             CAR_NONE);
        car_sequential_destroy(clipped);
        car_sequential_destroy(free_run);
        car_equality_check(&w, &s);
        s.pause = 3; /* the previous norm outlives the cut */
        car_equality_check(&w, &s);
        s.clip_norm = low / 2; /* every step */
        car_equality_check(&w, &s);
    }
    car_world_close(&w);
}

/* The rules with the rounding of bf16: updates work on floats, every version is computed with rounded. */
static void test_bf16(void **state) {
    car_world w;
    car_world_open(&w, *state);
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        car_equality_setting s = car_equality_adamw(rules[r], 3, 1);
        car_equality_check(&w, &s);
        s.pause = 3;
        car_equality_check(&w, &s);
    }
    car_world_close(&w);
}

static void test_pause(void **state) {
    car_world w;
    car_world_open(&w, *state);
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        for (int pause = 1; pause <= 4; pause++) {
            car_equality_setting s = car_equality_adamw(rules[r], 3, 2);
            s.pause = pause;
            car_equality_check(&w, &s);
        }
    }
    car_world_close(&w);
}

/* Nesterov, no decay on vectors, and a rate that changes from step to step: it acts when the update is made. */
static void test_options(void **state) {
    car_world w;
    car_world_open(&w, *state);
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        car_equality_setting s = car_equality_sgd(rules[r], 3, 1);
        s.optimizer.nesterov = true;
        s.optimizer.decay_weights_only = true;
        s.optimizer.weight_decay = 0.1;
        s.schedule = (car_schedule){.kind = CAR_SCHEDULE_STEP, .lr = 0.0625, .every = 2, .gamma = 0.5};
        memcpy(s.lr, (const double[CAR_EQUALITY_STEPS]){0.0625, 0.0625, 0.03125, 0.03125, 0.015625, 0.015625},
               sizeof s.lr);
        car_equality_check(&w, &s);
        s = car_equality_sgd(rules[r], 2, 2);
        s.optimizer.momentum = 0;
        s.optimizer.weight_decay = 0;
        car_equality_check(&w, &s);
    }
    car_world_close(&w);
}

/* The delay's correction, with a by stage, alike and not at all; and across a pause. */
static void test_correction(void **state) {
    static const car_correction corrections[] = {{.c = 0.9}, {.c = 1, .a = 1.5}, {.c = 0.8, .a = 1}};
    car_world w;
    car_world_open(&w, *state);
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        for (int c = 0; c < CAR_COUNT(corrections); c++) {
            car_equality_setting s = c % 2 ? car_equality_adamw(rules[r], 3, 1) : car_equality_sgd(rules[r], 3, 2);
            s.optimizer.momentum = 0.85;
            s.optimizer.correction = corrections[c];
            car_equality_check(&w, &s);
            s.optimizer.kind = c % 2 ? CAR_OPTIMIZER_SGD : CAR_OPTIMIZER_ADAMW;
            s.slack = rules[r] == CAR_RULE_CDP_V2;
            s.pause = 2;
            car_equality_check(&w, &s);
        }
    }
    car_world_close(&w);
}

static void test_muon(void **state) {
    car_world w;
    car_world_open(&w, *state);
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        for (int corrected = 0; corrected < 2; corrected++) {
            car_equality_setting s = car_equality_adamw(rules[r], 3, 1);
            s.optimizer.kind = CAR_OPTIMIZER_MUON;
            s.optimizer.adamw_ratio = 0.1;
            s.optimizer.decay_weights_only = true;
            s.optimizer.correction = corrected ? (car_correction){.c = 0.9, .a = 1} : (car_correction){0};
            s.pause = corrected ? 3 : 0;
            car_equality_check(&w, &s);
        }
    }
    car_world_close(&w);
}

/* Gradients so small that their sums are denormal: flushing them must not depend on where sums are made. */
static void test_denormal_sums(void **state) {
    car_world w;
    car_world_open(&w, *state);
    w.input_scale = 3e-36f;
    memset(w.start[0], 0, (size_t)car_shape_elements(car_graph_param(w.graph, 0)->shape) * sizeof(float));
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        car_equality_setting s = car_equality_sgd(rules[r], 4, 1);
        s.optimizer.weight_decay = 0;
        s.schedule.lr = 1;
        for (int t = 0; t < CAR_EQUALITY_STEPS; t++) {
            s.lr[t] = s.schedule.lr;
        }
        car_equality_check(&w, &s);
    }
    car_world_close(&w);
}

/* M = 2 and 3, all rules, drained on the way or clipped. */
static void test_accumulate(void **state) {
    car_world w;
    car_world_open(&w, *state);
    for (int r = 0; r < CAR_COUNT(rules); r++) {
        for (int M = 2; M <= 3; M++) {
            car_equality_setting s = M == 2 ? car_equality_sgd(rules[r], 3, 1) : car_equality_adamw(rules[r], 2, 2);
            s.accumulate = M;
            s.pause = M == 2 ? 3 : 0;
            s.clip_norm = M == 3 ? 0.5 : 0;
            car_equality_check_several(&w, s);
        }
    }
    car_world_close(&w);
}

/* stagger is dp, with one micro-batch a worker too. */
static void test_stagger(void **state) {
    car_world w;
    car_world_open(&w, *state);
    car_equality_setting s = car_equality_sgd(CAR_RULE_DP, 3, 2);
    car_sequential *expected = car_equality_sequential(&w, &s);
    s.rule = CAR_RULE_STAGGER;
    for (int c = 0; c < CAR_COUNT(thread_counts); c++) {
        car_equality_expect(&w, &s, thread_counts[c], expected);
    }
    car_sequential_destroy(expected);
    car_world_close(&w);
}

/* Were the rules alike, or a parameter never trained, equality would prove nothing. */
static void test_rules_differ(void **state) {
    car_world w;
    car_world_open(&w, *state);
    const car_equality_setting dp = car_equality_sgd(CAR_RULE_DP, 3, 1), v1 = car_equality_sgd(CAR_RULE_CDP_V1, 3, 1);
    const car_equality_setting v2 = car_equality_sgd(CAR_RULE_CDP_V2, 3, 1);
    car_equality_setting slack = v2;
    slack.slack = 1;
    car_sequential *runs[] = {car_equality_sequential(&w, &dp), car_equality_sequential(&w, &v1),
                              car_equality_sequential(&w, &v2), car_equality_sequential(&w, &slack)};
    for (int a = 0; a < CAR_COUNT(runs); a++) {
        for (int b = a + 1; b < CAR_COUNT(runs); b++) {
            int param = car_equality_difference(&w, car_sequential_weights(runs[a], CAR_EQUALITY_STEPS),
                                                car_sequential_weights(runs[b], CAR_EQUALITY_STEPS));
            assert_int_not_equal(param, CAR_NONE);
        }
    }
    for (int p = 0; p < car_graph_param_count(w.graph); p++) {
        size_t bytes = car_program_param_bytes(w.program, p);
        for (int t = 0; t < CAR_EQUALITY_STEPS; t++) {
            assert_memory_not_equal(car_weights_data(car_sequential_weights(runs[2], t), p),
                                    car_weights_data(car_sequential_weights(runs[2], t + 1), p), bytes);
        }
    }
    for (int a = 0; a < CAR_COUNT(runs); a++) {
        car_sequential_destroy(runs[a]);
    }
    car_world_close(&w);
}

/* One batch after the other: mean loss and share of rows whose label has the largest logit. */
static car_evaluation evaluate_simply(car_world *w, const car_weights *weights, int batches) {
    int64_t classes = car_graph_classes(w->graph);
    int64_t rows = car_shape_elements(car_graph_tensor(w->graph, w->labels)->shape);
    float *values = malloc((size_t)(rows * classes) * sizeof *values);
    assert_non_null(values);
    car_evaluation result = {.rows = rows * batches};
    int32_t labels[MAX_LABELS];
    assert_true(rows <= MAX_LABELS);
    car_lane *lane = NULL;
    car_tape *tape = NULL;
    car_world_must(w, car_lane_create(w->program, w->arena, &lane));
    car_world_must(w, car_tape_create(w->program, w->arena, &tape));
    for (int b = 0; b < batches; b++) {
        car_tape_begin(tape, 0, false);
        car_world_must(w, car_world_feed(w, b, 0, tape));
        memcpy(labels, car_tape_tensor(tape, w->labels), (size_t)rows * sizeof *labels); /* forward lets them go */
        car_world_must(w, car_tape_forward(tape, lane, weights, 0, car_graph_op_count(w->graph)));
        result.loss += (double)car_tape_loss(tape) * (double)rows;
        car_world_must(w, car_tape_logits(tape, weights, 0, rows, values));
        for (int64_t r = 0; r < rows; r++) {
            int64_t best = 0;
            for (int64_t c = 1; c < classes; c++) {
                best = values[r * classes + c] > values[r * classes + best] ? c : best;
            }
            result.top1 += best == labels[r];
        }
    }
    car_tape_destroy(tape);
    car_lane_destroy(lane);
    free(values);
    result.loss /= (double)result.rows;
    result.top1 /= (double)result.rows;
    return result;
}

static void test_evaluation(void **state) {
    enum { BATCHES = 7 };
    car_world w;
    car_world_open(&w, *state);
    car_weights *weights = NULL;
    car_evaluation one, three;
    car_world_must(&w, car_weights_create(w.program, w.arena, &weights));
    car_world_start(&w, weights);
    const car_evaluation simple = evaluate_simply(&w, weights, BATCHES);
    car_world_must(&w, car_evaluate(w.program, w.arena, weights, 1, BATCHES, car_world_feed, &w, &one));
    car_world_must(&w, car_evaluate(w.program, w.arena, weights, 3, BATCHES, car_world_feed, &w, &three));
    assert_int_equal(one.rows, simple.rows);
    assert_int_equal(three.rows, simple.rows);
    assert_memory_equal(&one.loss, &simple.loss, sizeof one.loss);
    assert_memory_equal(&one.top1, &simple.top1, sizeof one.top1);
    assert_memory_equal(&three.loss, &one.loss, sizeof one.loss);
    assert_memory_equal(&three.top1, &one.top1, sizeof one.top1);
    assert_memory_equal(&three.top5, &one.top5, sizeof one.top5);
    assert_true(one.top1 <= one.top5 && one.top5 <= 1);
    car_weights_destroy(weights);
    car_world_close(&w);
}

/* Large updates, in chunks that idle threads take: one worker leaves all but one thread idle. */
static void test_helping(void **state) {
    car_world w;
    int64_t helped = 0;
    car_world_open(&w, *state);
    for (int kind = 0; kind < CAR_OPTIMIZERS; kind++) {
        for (int n = 1; n <= 3; n += 2) {
            car_equality_setting s = car_equality_adamw(n == 1 ? CAR_RULE_DP : CAR_RULE_CDP_V2, n, 1);
            s.optimizer.kind = (car_optimizer_kind)kind;
            s.optimizer.correction = n == 1 ? (car_correction){0} : (car_correction){.c = 0.9, .a = 1};
            s.shared_update_bytes = 1024;
            s.helped = &helped;
            car_equality_check(&w, &s);
        }
    }
    assert_true(helped > 0);
    car_world_close(&w);
}

#define TEST(name, function, model) \
    { name " " #model, function, NULL, NULL, (void *)&model }

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST("rules differ", test_rules_differ, mlp),
        TEST("rules differ", test_rules_differ, resnet20),
        TEST("rules differ", test_rules_differ, vit),
        TEST("rules differ", test_rules_differ, gpt2),
        TEST("rules, workers, stages, threads", test_matrix, mlp),
        TEST("idle threads help", test_helping, mlp_wide),
        TEST("idle threads help", test_helping, resnet20),
        TEST("rules, workers, stages, threads", test_matrix, resnet20),
        TEST("rules, workers, stages, threads", test_matrix, resnet20_winograd),
        TEST("rules, workers, stages, threads", test_matrix, vit),
        TEST("rules, workers, stages, threads", test_matrix, gpt2),
        TEST("freshness slack", test_slack, resnet20_padded),
        TEST("freshness slack", test_slack, gpt2),
        TEST("recomputation", test_recompute, resnet20_winograd),
        TEST("recomputation", test_recompute, gpt2_dropout),
        TEST("dropout", test_dropout, vit_dropout),
        TEST("dropout", test_dropout, gpt2_dropout),
        TEST("clipping", test_clip, resnet20),
        TEST("clipping", test_clip, gpt2),
        TEST("pause", test_pause, resnet20),
        TEST("pause", test_pause, gpt2),
        TEST("bf16", test_bf16, gpt2_bf16),
        TEST("bf16", test_bf16, resnet20_bf16),
        TEST("options", test_options, resnet20),
        TEST("options", test_options, gpt2),
        TEST("correction", test_correction, resnet20),
        TEST("correction", test_correction, gpt2),
        TEST("muon", test_muon, resnet20),
        TEST("muon", test_muon, resnet20_winograd),
        TEST("muon", test_muon, gpt2),
        TEST("several micro-batches a worker", test_accumulate, resnet20),
        TEST("several micro-batches a worker", test_accumulate, gpt2_dropout),
        TEST("stagger", test_stagger, resnet20),
        TEST("denormal sums", test_denormal_sums, mlp),
        TEST("evaluation", test_evaluation, resnet20),
        TEST("evaluation", test_evaluation, gpt2),
    };
    return cmocka_run_group_tests_name("the engine equals the sequential trainer", tests, NULL, NULL);
}
