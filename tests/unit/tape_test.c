/* The tape: a micro-batch in pieces and in wrong orders, what it leaves in memory, how much it takes, dropout. */
#include "carousel/tape.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "support/rig.h"

enum { SOIL = 1 << 22 };

static const car_net_function nets[] = {car_net_residual, car_net_language, car_net_patches, car_net_pool_first};
enum { NETS = sizeof nets / sizeof nets[0] };

/* ---- pieces ---------------------------------------------------------------------------------------------- */

/* What a run of one sample gave. */
typedef struct outcome {
    float loss;
    unsigned char *gradients;
} outcome;

static outcome take_outcome(const car_rig *rig) {
    return (outcome){car_tape_loss(rig->tape), car_rig_copy_gradients(rig)};
}

static void expect_same_bits(const car_rig *rig, const outcome *expected, const char *how, int cut) {
    outcome found = take_outcome(rig);
    bool same = memcmp(&found.loss, &expected->loss, sizeof found.loss) == 0 &&
                memcmp(found.gradients, expected->gradients, car_rig_gradient_bytes(rig)) == 0;
    free(found.gradients);
    if (!same) {
        fail_msg("%s, cut at %d: other bits than in one piece", how, cut);
    }
    car_rig_spoil_gradients(rig);
}

/* Forward and backward in ranges of `length` operations, each on the other lane than the one before. */
static void run_in_ranges(const car_rig *rig, car_lane *const lanes[2], int first, int length) {
    int operations = car_graph_op_count(rig->graph), turn = 0;
    car_rig_expect_ok(rig, car_rig_feed(rig, rig->tape, 1, true));
    for (int begin = 0, end = first; begin < operations; begin = end, end += length) {
        end = end < operations ? end : operations;
        car_rig_expect_ok(rig, car_tape_forward(rig->tape, lanes[turn++ % 2], rig->weights, begin, end));
    }
    for (int begin = operations - length, end = operations; end > 0; end = begin, begin -= length) {
        begin = begin > first ? begin : end > first ? first : 0;
        car_rig_expect_ok(rig,
                          car_tape_backward(rig->tape, lanes[turn++ % 2], rig->weights, rig->gradients, begin, end));
    }
}

static void check_pieces(car_net_function build, car_kernels kernels) {
    car_rig rig;
    car_lane *lanes[2] = {NULL, NULL};
    car_rig_open(&rig, &(car_rig_config){.build = build, .kernels = kernels, .seed = 2});
    car_rig_expect_ok(&rig, car_lane_create(rig.program, rig.arena, &lanes[1]));
    lanes[0] = rig.lane;
    car_rig_soil(&rig, SOIL);
    car_rig_spoil_gradients(&rig);
    car_rig_expect_ok(&rig, car_rig_step(&rig, 1));
    outcome whole = take_outcome(&rig);
    assert_true(isfinite(whole.loss));
    car_rig_spoil_gradients(&rig);
    int operations = car_graph_op_count(rig.graph);
    for (int cut = 1; cut < operations; cut++) {
        run_in_ranges(&rig, lanes, cut, operations);
        expect_same_bits(&rig, &whole, "two ranges", cut);
    }
    run_in_ranges(&rig, lanes, 1, 1);
    expect_same_bits(&rig, &whole, "single operations", 1);
    free(whole.gradients);
    car_lane_destroy(lanes[1]);
    car_rig_close(&rig);
}

static void pieces_give_the_same_bits(void **state) {
    (void)state;
    for (int i = 0; i < NETS; i++) {
        check_pieces(nets[i], CAR_KERNELS_ONEDNN);
        check_pieces(nets[i], CAR_KERNELS_REFERENCE);
    }
}

/* Another tape, and the same one again after another sample, come to the same bits; another sample does not. */
static void tapes_do_not_differ(void **state) {
    (void)state;
    for (int i = 0; i < NETS; i++) {
        car_rig rig;
        car_tape *other = NULL;
        car_rig_open(&rig, &(car_rig_config){.build = nets[i], .kernels = CAR_KERNELS_ONEDNN});
        car_rig_expect_ok(&rig, car_tape_create(rig.program, rig.arena, &other));
        car_rig_expect_ok(&rig, car_rig_step(&rig, 7));
        outcome first = take_outcome(&rig);
        car_rig_expect_ok(&rig, car_rig_step(&rig, 8));
        outcome second = take_outcome(&rig);
        assert_memory_not_equal(first.gradients, second.gradients, car_rig_gradient_bytes(&rig));
        free(second.gradients);

        int operations = car_graph_op_count(rig.graph);
        car_rig_spoil_gradients(&rig);
        car_rig_expect_ok(&rig, car_rig_feed(&rig, other, 7, true));
        car_rig_expect_ok(&rig, car_tape_forward(other, rig.lane, rig.weights, 0, operations));
        car_rig_expect_ok(&rig, car_tape_backward(other, rig.lane, rig.weights, rig.gradients, 0, operations));
        assert_true(car_tape_loss(other) == first.loss);
        car_tape_destroy(rig.tape);
        rig.tape = other;
        expect_same_bits(&rig, &first, "another tape", 0);
        free(first.gradients);
        car_rig_close(&rig);
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

static size_t live(const car_rig *rig) {
    return car_arena_live(rig->arena, CAR_MEMORY_ACTIVATIONS);
}

/* After backward the loss is all that is left, after the next begin nothing. */
static void nothing_is_left(void **state) {
    (void)state;
    for (int i = 0; i < NETS; i++) {
        car_rig rig;
        car_rig_open(&rig, &(car_rig_config){.build = nets[i], .kernels = CAR_KERNELS_ONEDNN});
        assert_int_equal(live(&rig), 0);
        car_rig_expect_ok(&rig, car_rig_step(&rig, 1));
        for (int v = 0; v < car_graph_tensor_count(rig.graph); v++) {
            if ((car_tape_tensor(rig.tape, v) != NULL) != (v == car_graph_loss(rig.graph))) {
                fail_msg("network %d: %s is %s after backward", i, car_graph_tensor(rig.graph, v)->name,
                         car_tape_tensor(rig.tape, v) ? "left" : "gone");
            }
        }
        assert_int_equal(live(&rig), car_program_tensor_bytes(rig.program, car_graph_loss(rig.graph)));
        assert_true(*(const float *)car_tape_tensor(rig.tape, car_graph_loss(rig.graph)) == car_tape_loss(rig.tape));
        car_tape_begin(rig.tape, 0, true);
        assert_int_equal(live(&rig), 0);
        assert_true(isnan(car_tape_loss(rig.tape)));

        /* Also when it is given up on the way. */
        int operations = car_graph_op_count(rig.graph);
        car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, true));
        car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, 0, operations));
        car_rig_expect_ok(
            &rig, car_tape_backward(rig.tape, rig.lane, rig.weights, rig.gradients, operations - 1, operations));
        assert_true(live(&rig) > 4);
        car_tape_begin(rig.tape, 0, true);
        assert_int_equal(live(&rig), 0);
        car_rig_close(&rig);
    }
}

typedef struct bounded {
    const char *model;
    car_model_config config;
} bounded;

static const bounded models[] = {
    {"resnet18", {.batch = 4, .image_size = 32, .classes = 10}},
    {"vit-tiny", {.batch = 2, .image_size = 32}},
    {"gpt2-nano", {.batch = 2}},
};

/* A step takes what the graph says is held, and little more for what is under way: at most a tenth. What is held
 * after the forward of any part is what the graph says of it, and evaluation takes less than half. */
static void peak_is_what_the_graph_says(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        car_rig rig;
        car_rig_open(&rig, &(car_rig_config){.model = models[i].model,
                                             .model_config = models[i].config,
                                             .kernels = CAR_KERNELS_ONEDNN});
        int operations = car_graph_op_count(rig.graph);
        size_t held = car_graph_held_bytes(rig.graph, 0, operations);
        car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, false));
        car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, 0, operations));
        size_t evaluation = car_arena_peak(rig.arena, CAR_MEMORY_ACTIVATIONS);

        car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, true));
        car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, 0, operations));
        assert_int_equal(live(&rig), held + 4); /* and the loss */
        car_rig_expect_ok(&rig, car_tape_backward(rig.tape, rig.lane, rig.weights, rig.gradients, 0, operations));
        size_t peak = car_arena_peak(rig.arena, CAR_MEMORY_ACTIVATIONS);
        if (peak < held || (double)peak > 1.10 * (double)held || 2 * evaluation >= peak) {
            fail_msg("%s: held %zu, peak %zu (%.3f of it), evaluation %zu", models[i].model, held, peak,
                     (double)peak / (double)held, evaluation);
        }
        car_rig_close(&rig);
    }
}

enum { MANY_CLASSES = 1000 };

static int build_many_classes(car_graph *graph) {
    int x = car_graph_input(graph, "x", (car_shape){2, {8, 4}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {8}}, CAR_I32);
    return car_graph_cross_entropy(graph, "loss", car_net_linear(graph, "fc", x, MANY_CLASSES), labels, 0);
}

/* The gradient of the logits takes their place; with a large vocabulary that is what a step takes most for. */
static void logits_are_there_once(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        car_rig rig;
        car_kernels kernels = k == 0 ? CAR_KERNELS_REFERENCE : CAR_KERNELS_ONEDNN;
        car_rig_open(&rig, &(car_rig_config){.build = build_many_classes, .kernels = kernels});
        car_rig_expect_ok(&rig, car_rig_step(&rig, 1));
        size_t held = car_graph_held_bytes(rig.graph, 0, car_graph_op_count(rig.graph));
        assert_true(held > 8 * MANY_CLASSES * sizeof(float));
        /* The loss, and the 1 that its gradient starts with. */
        assert_int_equal(car_arena_peak(rig.arena, CAR_MEMORY_ACTIVATIONS), held + 2 * sizeof(float));
        car_rig_close(&rig);
    }
}

static int first_reader(const car_graph *graph, int tensor) {
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        const car_op *op = car_graph_op(graph, l);
        if (op->inputs[0] == tensor || (op->input_count > 1 && op->inputs[1] == tensor)) {
            return l;
        }
    }
    return CAR_NONE;
}

/* What must be in memory when the forward of the operations below `cut` has run: what they hold, what crosses the cut
 * without being held, and fed inputs that wait for a reader. */
static size_t expected_in_forward(const car_graph *graph, int cut) {
    enum { CAPACITY = 64 };
    int crossing[CAPACITY], count = car_graph_crossing(graph, cut, crossing, CAPACITY);
    size_t bytes = car_graph_held_bytes(graph, 0, cut);
    for (int c = 0; c < count; c++) {
        const car_tensor *tensor = car_graph_tensor(graph, crossing[c]);
        bytes += tensor->last_backward == CAR_NONE ? tensor->bytes : 0;
    }
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        bool counted = tensor->last_backward != CAR_NONE && first_reader(graph, v) < cut;
        bytes += tensor->producer == CAR_NONE && !counted && tensor->last_forward >= cut ? tensor->bytes : 0;
    }
    return bytes + (cut == car_graph_op_count(graph) ? sizeof(float) : 0); /* the loss */
}

/* And when backward has come down to `cut`: what the rest will read, gradients on their way, and the loss. */
static size_t expected_in_backward(const car_graph *graph, int cut) {
    size_t bytes = sizeof(float);
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        bytes += tensor->last_backward != CAR_NONE && tensor->last_backward < cut ? tensor->bytes : 0;
    }
    for (int s = 0; s < car_graph_grad_buffer_count(graph); s++) {
        const car_grad_buffer *slot = car_graph_grad_buffer(graph, s);
        bytes += slot->born >= cut && slot->dies < cut ? slot->bytes : 0;
    }
    return bytes;
}

static void expect_live(const car_rig *rig, size_t expected, const char *when, int l) {
    if (live(rig) != expected) {
        fail_msg("after the %s of %s: %zu bytes, not %zu", when, car_graph_op(rig->graph, l)->name, live(rig),
                 expected);
    }
}

static void memory_at_every_cut(void **state) {
    (void)state;
    for (int i = 0; i < NETS; i++) {
        car_rig rig;
        car_rig_open(&rig, &(car_rig_config){.build = nets[i], .kernels = CAR_KERNELS_REFERENCE}); /* no padding */
        car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, true));
        for (int l = 0; l < car_graph_op_count(rig.graph); l++) {
            car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, l, l + 1));
            expect_live(&rig, expected_in_forward(rig.graph, l + 1), "forward", l);
        }
        for (int l = car_graph_op_count(rig.graph) - 1; l >= 0; l--) {
            car_rig_expect_ok(&rig, car_tape_backward(rig.tape, rig.lane, rig.weights, rig.gradients, l, l + 1));
            expect_live(&rig, expected_in_backward(rig.graph, l), "backward", l);
        }
        car_rig_close(&rig);
    }
}

/* ---- evaluation ------------------------------------------------------------------------------------------ */

static void evaluation_keeps_the_logits(void **state) {
    (void)state;
    for (int i = 0; i < NETS; i++) {
        car_rig rig;
        car_rig_open(&rig, &(car_rig_config){.build = nets[i], .kernels = CAR_KERNELS_ONEDNN});
        int operations = car_graph_op_count(rig.graph), logits = car_graph_logits(rig.graph);
        car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 3, false));
        car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, 0, operations));
        assert_non_null(car_tape_tensor(rig.tape, logits));
        assert_true(isfinite(car_tape_loss(rig.tape)));
        size_t bytes = car_program_tensor_bytes(rig.program, logits);
        assert_int_equal(live(&rig), bytes + 4);
        unsigned char *copy = malloc(bytes);
        assert_non_null(copy);
        memcpy(copy, car_tape_tensor(rig.tape, logits), bytes);

        /* The key must not matter, and logits can be had without labels. */
        car_tape_begin(rig.tape, 99, false);
        for (int v = 0; v < car_graph_tensor_count(rig.graph); v++) {
            assert_null(car_tape_tensor(rig.tape, v));
        }
        car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 3, false));
        car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, 0, operations - 1));
        assert_memory_equal(car_tape_tensor(rig.tape, logits), copy, bytes);
        assert_true(isnan(car_tape_loss(rig.tape)));
        free(copy);

        /* There is no way back from an evaluation. */
        car_rig_expect_ok(&rig, car_tape_forward(rig.tape, rig.lane, rig.weights, operations - 1, operations));
        car_rig_expect_failure(&rig, car_tape_backward(rig.tape, rig.lane, rig.weights, rig.gradients, 0, operations),
                               CAR_ERROR_ARGUMENT, "");
        car_rig_close(&rig);
    }
}

/* ---- wrong orders ---------------------------------------------------------------------------------------- */

static car_status forward(const car_rig *rig, int begin, int end) {
    return car_tape_forward(rig->tape, rig->lane, rig->weights, begin, end);
}

static car_status backward(const car_rig *rig, int begin, int end) {
    return car_tape_backward(rig->tape, rig->lane, rig->weights, rig->gradients, begin, end);
}

static void missing_tensors_are_named(void **state) {
    (void)state;
    car_rig rig;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_ONEDNN});
    int operations = car_graph_op_count(rig.graph);
    car_rig_expect_ok(&rig, car_rig_step(&rig, 1));
    outcome clean = take_outcome(&rig);
    car_tape_begin(rig.tape, 0, true);
    car_rig_expect_failure(&rig, forward(&rig, 0, operations), CAR_ERROR_ARGUMENT, "images");
    car_rig_expect_failure(&rig, backward(&rig, 0, operations), CAR_ERROR_ARGUMENT, "");
    car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, true));
    car_rig_expect_failure(&rig, forward(&rig, 1, operations), CAR_ERROR_ARGUMENT, "conv0");
    int conv = car_graph_find_tensor(rig.graph, "conv0");
    float nothing[4] = {0};
    car_rig_expect_failure(&rig, car_tape_feed(rig.tape, conv, nothing), CAR_ERROR_ARGUMENT, "conv0");
    car_rig_expect_failure(&rig, backward(&rig, 0, operations), CAR_ERROR_ARGUMENT, ""); /* too early */
    /* None of it has done harm. */
    car_rig_expect_ok(&rig, forward(&rig, 0, operations));
    car_rig_expect_ok(&rig, backward(&rig, 0, operations));
    expect_same_bits(&rig, &clean, "after failures", 0);
    free(clean.gradients);
    car_rig_close(&rig);
}

/* Down to operation l, then not l but the one before it; or l a second time. */
static void check_order(const car_rig *rig, int l, bool again) {
    int operations = car_graph_op_count(rig->graph);
    int next = again ? l : l - 1;
    car_rig_expect_ok(rig, car_rig_feed(rig, rig->tape, 1, true));
    car_rig_expect_ok(rig, forward(rig, 0, operations));
    car_rig_expect_ok(rig, backward(rig, again ? l : l + 1, operations));
    car_status status = backward(rig, next, next + 1);
    if (status != CAR_ERROR_ARGUMENT || car_context_error(rig->context)[0] == '\0') {
        fail_msg("%s of %s (%s) in backward: %s \"%s\"", again ? "repetition" : "omission",
                 car_graph_op(rig->graph, l)->name, car_op_kind_text(car_graph_op(rig->graph, l)->kind),
                 car_status_text(status), car_context_error(rig->context));
    }
    car_context_clear_error(rig->context);
}

/* Backward is exactly descending; anything else would give wrong gradients, so it must not pass silently. */
static void backward_out_of_order_is_refused(void **state) {
    (void)state;
    for (int i = 0; i < NETS - 1; i++) { /* the last has operations without a backward: nothing to leave out */
        car_rig rig;
        car_rig_open(&rig, &(car_rig_config){.build = nets[i], .kernels = CAR_KERNELS_ONEDNN});
        for (int l = 1; l < car_graph_op_count(rig.graph); l++) {
            check_order(&rig, l, false);
            check_order(&rig, l, true);
        }
        car_rig_close(&rig);
    }
}

static void forward_twice_is_refused(void **state) {
    (void)state;
    car_rig rig;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_ONEDNN});
    car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, true));
    car_rig_expect_ok(&rig, forward(&rig, 0, 3));
    car_rig_expect_failure(&rig, forward(&rig, 0, 1), CAR_ERROR_ARGUMENT, "conv0");
    car_tape_begin(rig.tape, 0, true);
    assert_int_equal(live(&rig), 0);
    car_rig_close(&rig);
}

/* ---- dropout --------------------------------------------------------------------------------------------- */

enum { ROWS = 64, FEATURES = 100 };

static const double dropped = 0.3;

/* Two dropouts of one tensor; what goes in is read before it runs, for nobody holds it. */
static int build_dropout(car_graph *graph) {
    int x = car_graph_input(graph, "x", (car_shape){2, {ROWS, FEATURES}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {ROWS}}, CAR_I32);
    x = car_net_linear(graph, "in", x, FEATURES);
    int one = car_graph_dropout(graph, "one", x, dropped), two = car_graph_dropout(graph, "two", x, dropped);
    x = car_graph_add(graph, "add", car_net_linear(graph, "a", one, 5), car_net_linear(graph, "b", two, 5));
    return car_graph_cross_entropy(graph, "loss", x, labels, 0);
}

/* Runs both dropouts; copies what went in and what came out. */
static void run_dropout(const car_rig *rig, uint64_t key, bool training, float *in, float *one, float *two) {
    size_t bytes = ROWS * FEATURES * sizeof(float);
    car_rig_expect_ok(rig, car_rig_feed(rig, rig->tape, 1, training));
    /* Feeding has begun a micro-batch with the sample as its key; begin again with the one that is wanted. */
    float x[ROWS * FEATURES];
    memcpy(x, car_tape_tensor(rig->tape, car_graph_find_tensor(rig->graph, "x")), bytes);
    car_tape_begin(rig->tape, key, training);
    car_rig_expect_ok(rig, car_tape_feed(rig->tape, car_graph_find_tensor(rig->graph, "x"), x));
    car_rig_expect_ok(rig, forward(rig, 0, 1));
    memcpy(in, car_tape_tensor(rig->tape, car_graph_find_tensor(rig->graph, "in")), bytes);
    car_rig_expect_ok(rig, forward(rig, 1, 3));
    memcpy(one, car_tape_tensor(rig->tape, car_graph_find_tensor(rig->graph, "one")), bytes);
    memcpy(two, car_tape_tensor(rig->tape, car_graph_find_tensor(rig->graph, "two")), bytes);
}

/* How many elements two masks agree on: 1 - 2p(1-p) of them if they are independent. */
static void expect_independent(const float *a, const float *b) {
    int agree = 0;
    for (int i = 0; i < ROWS * FEATURES; i++) {
        agree += (a[i] == 0) == (b[i] == 0);
    }
    double n = ROWS * FEATURES, p = 1 - 2 * dropped * (1 - dropped);
    assert_true(fabs(agree - n * p) < 6 * sqrt(n * p * (1 - p)));
}

static void dropout_follows_its_key(void **state) {
    (void)state;
    static float in[ROWS * FEATURES], one[ROWS * FEATURES], two[ROWS * FEATURES], again[ROWS * FEATURES],
        other[ROWS * FEATURES], unused[ROWS * FEATURES];
    for (int k = 0; k < 2; k++) {
        car_rig rig;
        car_kernels kernels = k == 0 ? CAR_KERNELS_REFERENCE : CAR_KERNELS_ONEDNN;
        car_rig_open(&rig, &(car_rig_config){.build = build_dropout, .kernels = kernels});
        run_dropout(&rig, 5, true, in, one, two);
        int kept = 0;
        for (int i = 0; i < ROWS * FEATURES; i++) {
            double scaled = (double)in[i] / (1 - dropped);
            assert_true(one[i] == 0 || fabs((double)one[i] - scaled) <= 1e-6 * fabs(scaled));
            kept += one[i] != 0;
        }
        double n = ROWS * FEATURES;
        assert_true(fabs(kept - n * (1 - dropped)) < 6 * sqrt(n * dropped * (1 - dropped)));
        expect_independent(one, two); /* of one tensor, but another operation's */

        run_dropout(&rig, 5, true, in, again, unused);
        assert_memory_equal(one, again, sizeof one);
        run_dropout(&rig, 6, true, in, other, unused);
        expect_independent(one, other);
        run_dropout(&rig, 5, false, in, one, two); /* in evaluation nothing is dropped */
        assert_memory_equal(one, in, sizeof one);
        assert_memory_equal(two, in, sizeof two);
        car_rig_close(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_give_the_same_bits),
        cmocka_unit_test(tapes_do_not_differ),
        cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(peak_is_what_the_graph_says),
        cmocka_unit_test(logits_are_there_once),
        cmocka_unit_test(memory_at_every_cut),
        cmocka_unit_test(evaluation_keeps_the_logits),
        cmocka_unit_test(dropout_follows_its_key),
        cmocka_unit_test(missing_tensors_are_named),
        cmocka_unit_test(backward_out_of_order_is_refused),
        cmocka_unit_test(forward_twice_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
