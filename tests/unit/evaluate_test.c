/* Evaluation with a feed of one's own: labels that are no class are an error before any of them is used. */
#include "carousel/evaluate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/rig.h"

enum { BATCH = 2, CLASSES = 4, BATCHES = 3 };

static const car_rig_config mlp = {
    .model = "mlp",
    .model_config = {.batch = BATCH, .classes = CLASSES, .image_size = 4, .width = 8, .depth = 1},
    .kernels = CAR_KERNELS_ONEDNN,
    .seed = 1};

typedef struct feed {
    const car_rig *rig;
    int32_t labels[BATCH]; /* of the last micro-batch; all others have 0 */
    bool none;
} feed;

static car_status feed_labels(void *user, int64_t batch, int worker, car_tape *tape) {
    const feed *f = user;
    static const float images[BATCH * 3 * 4 * 4] = {0.5F};
    static const int32_t zeros[BATCH];
    const car_graph *graph = f->rig->graph;
    (void)worker;
    car_status status = car_tape_feed(tape, car_graph_find_tensor(graph, "images"), images);
    if (status == CAR_OK && !f->none) {
        status = car_tape_feed(tape, car_graph_find_tensor(graph, "labels"), batch == BATCHES - 1 ? f->labels : zeros);
    }
    return status;
}

static car_status evaluate(const car_rig *rig, feed *f, int threads, car_evaluation *out) {
    return car_evaluate(rig->program, rig->arena, rig->weights, threads, BATCHES, feed_labels, f, out);
}

static void labels_that_are_no_class_are_refused(void **state) {
    (void)state;
    static const int32_t wrong[] = {CLASSES, 100, 1 << 30, INT32_MAX};
    car_rig rig;
    car_evaluation result;
    car_rig_open(&rig, &mlp);
    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
        for (int threads = 1; threads <= 2; threads++) {
            feed f = {.rig = &rig, .labels = {0, wrong[w]}};
            char part[96];
            snprintf(part, sizeof part, "label %d in row 1 of micro-batch 2 is out of range; there are 4 classes",
                     (int)wrong[w]);
            car_rig_expect_failure(&rig, evaluate(&rig, &f, threads, &result), CAR_ERROR_ARGUMENT, part);
        }
    }
    feed f = {.rig = &rig, .none = true};
    car_rig_expect_failure(&rig, evaluate(&rig, &f, 1, &result), CAR_ERROR_ARGUMENT, "was not fed any labels");
    car_rig_close(&rig);
}

static void negative_labels_do_not_count(void **state) {
    (void)state;
    car_rig rig;
    car_evaluation result;
    car_rig_open(&rig, &mlp);
    feed f = {.rig = &rig, .labels = {CLASSES - 1, INT32_MIN}};
    car_rig_expect_ok(&rig, evaluate(&rig, &f, 1, &result));
    assert_int_equal(result.rows, BATCHES * BATCH - 1);
    car_rig_close(&rig);
}

/* Rows and columns add up to what else was counted. */
static void answers_are_counted_by_class(void **state) {
    (void)state;
    int64_t counts[CLASSES * CLASSES] = {0}, sum = 0, right = 0;
    car_rig rig;
    car_evaluation result;
    car_rig_open(&rig, &mlp);
    feed f = {.rig = &rig, .labels = {3, -1}};
    const car_evaluate_config config = {
        .threads = 2, .batches = BATCHES, .feed = feed_labels, .feed_user = &f, .counts = counts};
    car_rig_expect_ok(&rig, car_evaluate_with(rig.program, rig.arena, rig.weights, &config, &result));
    assert_true(result.metric == 0);
    for (int l = 0; l < CLASSES; l++) {
        int64_t labelled = 0;
        for (int a = 0; a < CLASSES; a++) {
            labelled += counts[l * CLASSES + a];
        }
        sum += labelled;
        right += counts[l * CLASSES + l];
        assert_int_equal(labelled, l == 0 ? (BATCHES - 1) * BATCH : l == 3);
    }
    assert_int_equal(sum, result.rows);
    assert_int_equal(right, (int64_t)lround(result.top1 * (double)result.rows));
    car_rig_close(&rig);
}

/* The share of right answers, once more; and a failure in the third micro-batch. */
static car_status count_right(const car_metric_io *io) {
    const bool *fails = io->user;
    if (*fails && io->batch == 2) {
        return car_callback_fail(io->context, "no truth for %lld rows", (long long)io->rows);
    }
    for (int64_t r = 0; r < io->rows; r++) {
        const float *row = io->logits + r * io->classes;
        int64_t best = 0;
        for (int64_t c = 1; c < io->classes; c++) {
            best = row[c] > row[best] ? c : best;
        }
        *io->weight += io->labels[r] >= 0;
        *io->sum += io->labels[r] == best;
    }
    return CAR_OK;
}

static void a_metric_sees_every_row(void **state) {
    (void)state;
    bool fails = false;
    car_rig rig;
    car_evaluation result;
    car_rig_open(&rig, &mlp);
    feed f = {.rig = &rig, .labels = {3, -1}};
    const car_evaluate_config config = {.threads = 2,
                                        .batches = BATCHES,
                                        .feed = feed_labels,
                                        .feed_user = &f,
                                        .metric = count_right,
                                        .metric_user = &fails};
    car_rig_expect_ok(&rig, car_evaluate_with(rig.program, rig.arena, rig.weights, &config, &result));
    assert_true(result.metric == result.top1);
    fails = true;
    car_rig_expect_failure(&rig, car_evaluate_with(rig.program, rig.arena, rig.weights, &config, &result),
                           CAR_ERROR_CALLBACK, "no truth for");
    car_rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_that_are_no_class_are_refused),
        cmocka_unit_test(negative_labels_do_not_count),
        cmocka_unit_test(answers_are_counted_by_class),
        cmocka_unit_test(a_metric_sees_every_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
