/* What car_graph_finish derives, on wild graphs and models, against an oracle that knows only the operations:
 * where gradients live and how they are added up, how long everything lives, what crosses a cut and what is held.
 *
 * The oracle stands for each gradient by a number: what operation m contributes to its input q is a hash of (m, q)
 * and of the gradient of m's output (an addition passes that on as it is), and a gradient is the sum of all
 * contributions, modulo 2^64. Two sums are equal only if they have the same contributions in them, each as often.
 * Running backward over the slots with these numbers shows whether any gradient is incomplete, counted twice,
 * overwritten or taken from a dead slot. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "support/rig.h"

enum { SEEDS = 300, LONGEST = 24 };

/* ---- the oracle ---------------------------------------------------------------------------------------- */

typedef struct oracle {
    const car_graph *graph;
    int ops, tensors;
    bool *needs;        /* per tensor: a parameter stands before it */
    uint64_t *gradient; /* per tensor */
    int *last_forward, *last_backward;
} oracle;

static bool reads(const car_op *op, int tensor) {
    for (int q = 0; q < op->input_count; q++) {
        if (op->inputs[q] == tensor) {
            return true;
        }
    }
    return false;
}

static bool backward_reads(const car_op *op, int tensor) {
    for (int q = 0; q < op->input_count; q++) {
        if (op->inputs[q] == tensor && op->saves_input[q]) {
            return true;
        }
    }
    return (op->saves_output && op->output == tensor) || op->aux == tensor;
}

static bool needs_gradient(const oracle *o, int tensor) {
    int producer = car_graph_tensor(o->graph, tensor)->producer;
    if (producer == CAR_NONE || car_graph_op(o->graph, producer)->aux == tensor) {
        return false;
    }
    const car_op *op = car_graph_op(o->graph, producer);
    bool needs = op->param_count > 0;
    for (int q = 0; q < op->input_count; q++) {
        needs = needs || o->needs[op->inputs[q]]; /* inputs are older: known already */
    }
    return needs;
}

static uint64_t contribution(const oracle *o, int m, int q, uint64_t gradient) {
    uint64_t place = (uint64_t)m * CAR_MAX_INPUTS + (uint64_t)q;
    return car_graph_op(o->graph, m)->kind == CAR_OP_ADD ? gradient : car_random_u64(gradient, place);
}

/* The sum over all readers; theirs are known already. */
static uint64_t complete_gradient(const oracle *o, int tensor) {
    uint64_t sum = tensor == car_graph_loss(o->graph) ? 1 : 0;
    for (int m = 0; m < o->ops; m++) {
        const car_op *op = car_graph_op(o->graph, m);
        for (int q = 0; q < op->input_count; q++) {
            if (op->inputs[q] == tensor && o->needs[op->output]) {
                sum += contribution(o, m, q, o->gradient[op->output]);
            }
        }
    }
    return sum;
}

static void find_lifetime(oracle *o, int tensor) {
    o->last_forward[tensor] = car_graph_tensor(o->graph, tensor)->producer;
    o->last_backward[tensor] = CAR_NONE;
    for (int m = 0; m < o->ops; m++) {
        const car_op *op = car_graph_op(o->graph, m);
        if (reads(op, tensor)) {
            o->last_forward[tensor] = m;
        }
        if (o->last_backward[tensor] == CAR_NONE && o->needs[op->output] && backward_reads(op, tensor)) {
            o->last_backward[tensor] = m; /* the lowest: backward comes to it last */
        }
    }
}

static void open_oracle(oracle *o, const car_graph *graph) {
    *o = (oracle){.graph = graph, .ops = car_graph_op_count(graph), .tensors = car_graph_tensor_count(graph)};
    o->needs = calloc((size_t)o->tensors, sizeof *o->needs);
    o->gradient = calloc((size_t)o->tensors, sizeof *o->gradient);
    o->last_forward = calloc((size_t)o->tensors, sizeof *o->last_forward);
    o->last_backward = calloc((size_t)o->tensors, sizeof *o->last_backward);
    assert_true(o->needs && o->gradient && o->last_forward && o->last_backward);
    for (int l = 0; l < o->ops; l++) {
        int output = car_graph_op(graph, l)->output;
        o->needs[output] = needs_gradient(o, output);
    }
    for (int l = o->ops - 1; l >= 0; l--) {
        int output = car_graph_op(graph, l)->output;
        o->gradient[output] = complete_gradient(o, output);
    }
    for (int v = 0; v < o->tensors; v++) {
        find_lifetime(o, v);
    }
}

static void close_oracle(oracle *o) {
    free(o->needs);
    free(o->gradient);
    free(o->last_forward);
    free(o->last_backward);
}

/* ---- fields of tensors ---------------------------------------------------------------------------------- */

static void check_tensors(const oracle *o) {
    for (int v = 0; v < o->tensors; v++) {
        const car_tensor *tensor = car_graph_tensor(o->graph, v);
        assert_int_equal(tensor->needs_grad, o->needs[v]);
        assert_int_equal(tensor->grad_buffer != CAR_NONE, o->needs[v]);
        assert_int_equal(tensor->last_forward, o->last_forward[v]);
        assert_int_equal(tensor->last_backward, o->last_backward[v]);
        if (o->needs[v]) {
            const car_grad_buffer *slot = car_graph_grad_buffer(o->graph, tensor->grad_buffer);
            assert_true(slot->bytes >= tensor->bytes);
            assert_true(slot->born >= slot->dies && slot->dies >= 0 && slot->born < o->ops);
        }
    }
}

/* ---- running on the slots ------------------------------------------------------------------------------- */

typedef struct slots {
    uint64_t *value;
    bool *alive;
    int count;
} slots;

/* Which operations may write a gradient where they read one, by the contract of the kernels. */
static bool may_work_in_place(const car_op *op) {
    return op->kind == CAR_OP_RELU || op->kind == CAR_OP_GELU || op->kind == CAR_OP_DROPOUT ||
           op->kind == CAR_OP_LAYERNORM || op->kind == CAR_OP_BATCHNORM;
}

/* A gradient may go over the very input that it is the gradient of, where the kernel reads that first and nobody
 * reads it afterwards. */
static void check_takeover(const oracle *o, const car_grad_buffer *slot) {
    const car_op *op = car_graph_op(o->graph, slot->born);
    const car_op *reader = car_graph_op(o->graph, o->last_backward[slot->over_tensor]);
    const car_tensor *tensor = car_graph_tensor(o->graph, slot->over_tensor);
    bool reads_first = op->kind == CAR_OP_CROSS_ENTROPY || op->kind == CAR_OP_CONV || op->kind == CAR_OP_LINEAR ||
                       op->kind == CAR_OP_HEAD_LOSS;
    assert_true(tensor->bytes >= slot->bytes);
    assert_ptr_equal(car_graph_grad_buffer(o->graph, tensor->grad_buffer), slot);
    if (!reads_first || op->inputs[0] != slot->over_tensor) {
        fail_msg("%s: a slot takes a buffer that its kernel does not expect to lose", op->name);
    }
    if (o->last_backward[slot->over_tensor] != slot->born) {
        fail_msg("the gradient of %s is written over it, but %s (%s) still reads it in backward", tensor->name,
                 reader->name, car_op_kind_text(reader->kind));
    }
}

static void give_birth(const oracle *o, slots *s, int l) {
    for (int i = 0; i < s->count; i++) {
        const car_grad_buffer *slot = car_graph_grad_buffer(o->graph, i);
        if (slot->born == l) {
            s->alive[i] = true;
            s->value[i] = car_random_u64(0xBAD, (uint64_t)i); /* what was in the memory before */
            if (slot->over_tensor != CAR_NONE) {
                check_takeover(o, slot);
            }
        }
    }
}

static void bury(const oracle *o, slots *s, int l) {
    for (int i = 0; i < s->count; i++) {
        if (car_graph_grad_buffer(o->graph, i)->dies == l) {
            s->alive[i] = false;
        }
    }
}

static void contribute(const oracle *o, slots *s, int l, int q, uint64_t gradient) {
    const car_op *op = car_graph_op(o->graph, l);
    int from = car_graph_tensor(o->graph, op->output)->grad_buffer,
        to = car_graph_tensor(o->graph, op->inputs[q])->grad_buffer;
    if (op->grad_mode[q] == CAR_GRAD_NONE) {
        assert_false(o->needs[op->inputs[q]]);
        return;
    }
    assert_true(o->needs[op->inputs[q]] && s->alive[to]);
    switch (op->grad_mode[q]) {
    case CAR_GRAD_WRITE:
        assert_true(to != from || may_work_in_place(op));
        s->value[to] = contribution(o, l, q, gradient);
        break;
    case CAR_GRAD_ADD:
        assert_int_not_equal(to, from); /* it would add to what it reads */
        s->value[to] += contribution(o, l, q, gradient);
        break;
    default: /* shared: nothing is done, so it must be right as it is */
        assert_int_equal(op->kind, CAR_OP_ADD);
        assert_int_equal(to, from);
    }
}

static void check_slots(const oracle *o) {
    slots s = {.count = car_graph_grad_buffer_count(o->graph)};
    s.value = calloc((size_t)s.count, sizeof *s.value);
    s.alive = calloc((size_t)s.count, sizeof *s.alive);
    assert_true(s.value && s.alive);
    s.value[car_graph_tensor(o->graph, car_graph_loss(o->graph))->grad_buffer] = 1;
    for (int l = o->ops - 1; l >= 0; l--) {
        const car_op *op = car_graph_op(o->graph, l);
        int slot = car_graph_tensor(o->graph, op->output)->grad_buffer;
        if (!o->needs[op->output]) {
            continue;
        }
        give_birth(o, &s, l);
        if (op->output == car_graph_loss(o->graph)) {
            s.value[slot] = 1;
        }
        if (!s.alive[slot] || s.value[slot] != o->gradient[op->output]) {
            fail_msg("%s (%s, operation %d): the gradient of its output is not complete in slot %d", op->name,
                     car_op_kind_text(op->kind), l, slot);
        }
        uint64_t gradient = s.value[slot];
        for (int q = 0; q < op->input_count; q++) {
            contribute(o, &s, l, q, gradient);
        }
        bury(o, &s, l);
    }
    for (int i = 0; i < s.count; i++) {
        assert_false(s.alive[i]);
    }
    free(s.value);
    free(s.alive);
}

/* Whatever backward reads has been there since it was produced. */
static void check_saved(const oracle *o) {
    for (int l = 0; l < o->ops; l++) {
        const car_op *op = car_graph_op(o->graph, l);
        for (int v = 0; o->needs[op->output] && v < o->tensors; v++) {
            const car_tensor *tensor = car_graph_tensor(o->graph, v);
            if (backward_reads(op, v)) {
                assert_true(tensor->producer <= l);
                assert_true(tensor->last_backward != CAR_NONE && tensor->last_backward <= l);
            }
        }
    }
}

/* ---- cuts ----------------------------------------------------------------------------------------------- */

static bool crosses(const oracle *o, int tensor, int cut) {
    int producer = car_graph_tensor(o->graph, tensor)->producer;
    bool later = false;
    for (int m = cut; m < o->ops; m++) {
        later = later || reads(car_graph_op(o->graph, m), tensor);
    }
    return producer != CAR_NONE && producer < cut && later;
}

static void check_crossing(const oracle *o, int *found) {
    for (int cut = 0; cut <= o->ops; cut++) {
        int count = car_graph_crossing(o->graph, cut, found, o->tensors), expected = 0;
        for (int v = 0; v < o->tensors; v++) {
            expected += crosses(o, v, cut);
        }
        assert_int_equal(count, expected);
        for (int i = 0; i < count; i++) {
            assert_true(crosses(o, found[i], cut));
            assert_true(i == 0 || found[i] != found[i - 1]);
        }
        /* Too little room: the count is the same, and what is beyond the room is left alone. */
        found[0] = found[1] = -77;
        assert_int_equal(car_graph_crossing(o->graph, cut, found, 1), count);
        assert_int_equal(found[1], -77);
        assert_int_equal(found[0] != -77, count > 0);
        assert_int_equal(car_graph_crossing(o->graph, cut, NULL, 0), count);
    }
}

/* The operation with which a held tensor comes to be. */
static int home(const oracle *o, int tensor) {
    int place = car_graph_tensor(o->graph, tensor)->producer;
    for (int m = 0; place == CAR_NONE; m++) {
        place = reads(car_graph_op(o->graph, m), tensor) ? m : CAR_NONE;
    }
    return place;
}

static void check_held(const oracle *o, size_t *per_op) {
    size_t total = 0;
    memset(per_op, 0, (size_t)o->ops * sizeof *per_op);
    for (int v = 0; v < o->tensors; v++) {
        if (o->last_backward[v] != CAR_NONE) {
            per_op[home(o, v)] += car_graph_tensor(o->graph, v)->bytes;
        }
    }
    for (int l = 0; l < o->ops; l++) {
        assert_int_equal(car_graph_held_bytes(o->graph, l, l + 1), per_op[l]);
        assert_int_equal(car_graph_held_bytes(o->graph, 0, l), total);
        total += per_op[l];
    }
    for (int cut = 0; cut <= o->ops; cut++) {
        assert_int_equal(car_graph_held_bytes(o->graph, 0, cut) + car_graph_held_bytes(o->graph, cut, o->ops), total);
    }
    assert_int_equal(car_graph_held_bytes(o->graph, 0, 0), 0);
}

static void check_graph(const car_graph *graph) {
    oracle o;
    open_oracle(&o, graph);
    int *found = calloc((size_t)o.tensors + 1, sizeof *found);
    size_t *per_op = calloc((size_t)o.ops, sizeof *per_op);
    assert_true(found && per_op);
    check_tensors(&o);
    check_slots(&o);
    check_saved(&o);
    check_crossing(&o, found);
    check_held(&o, per_op);
    free(found);
    free(per_op);
    close_oracle(&o);
}

/* ---- graphs to check ------------------------------------------------------------------------------------ */

static void check_wild(void **state, car_wild_family family) {
    int shared = 0, added = 0, in_place = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        car_wild wild = {.family = family, .seed = (uint64_t)seed, .operations = 1 + seed % LONGEST};
        car_graph *graph = NULL;
        assert_int_equal(car_graph_create(*state, &graph), CAR_OK);
        if (car_graph_finish(graph, car_wild_build(graph, &wild)) != CAR_OK) {
            fail_msg("family %d, seed %d: %s", family, seed, car_context_error(*state));
        }
        check_graph(graph);
        for (int l = 0; l < car_graph_op_count(graph); l++) {
            const car_op *op = car_graph_op(graph, l);
            for (int q = 0; q < op->input_count; q++) {
                shared += op->grad_mode[q] == CAR_GRAD_SHARED;
                added += op->grad_mode[q] == CAR_GRAD_ADD;
                in_place += op->grad_mode[q] == CAR_GRAD_WRITE && car_graph_tensor(graph, op->inputs[q])->grad_buffer ==
                                                                      car_graph_tensor(graph, op->output)->grad_buffer;
            }
        }
        car_graph_destroy(graph);
    }
    /* The graphs are wild enough, and memory is saved where it can be. */
    assert_true(shared > SEEDS && added > SEEDS && in_place > SEEDS / 2);
}

static void wild_rows(void **state) {
    check_wild(state, CAR_WILD_ROWS);
}

static void wild_sequences(void **state) {
    check_wild(state, CAR_WILD_SEQUENCES);
}

static void wild_images(void **state) {
    check_wild(state, CAR_WILD_IMAGES);
}

static void all_models(void **state) {
    for (int i = 0; i < car_model_count(); i++) {
        car_model_config config = {.batch = 2};
        car_graph *graph = NULL;
        config.dropout = car_model_info_at(i)->defaults.heads > 0 ? 0.1 : 0; /* transformers have it */
        if (car_model_build(*state, car_model_info_at(i)->name, &config, &graph) != CAR_OK) {
            fail_msg("%s", car_context_error(*state));
        }
        check_graph(graph);
        car_graph_destroy(graph);
    }
}

/* A residual branch costs no copy: both of the addition's inputs find their gradient in its own buffer, since the
 * branch's end has read it there before its start adds to it. */
static void residual_addition_copies_nothing(void **state) {
    car_graph *graph = NULL;
    assert_int_equal(car_graph_create(*state, &graph), CAR_OK);
    int x = car_net_linear(graph, "stem", car_graph_input(graph, "x", (car_shape){2, {2, 8}}, CAR_F32), 8);
    int y = car_net_linear(graph, "down", car_net_linear(graph, "up", x, 16), 8);
    int sum = car_graph_add(graph, "add", x, y);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    assert_int_equal(car_graph_finish(graph, car_graph_cross_entropy(graph, "loss", sum, labels, 0)), CAR_OK);
    const car_op *add = car_graph_op(graph, 3);
    assert_int_equal(add->grad_mode[0], CAR_GRAD_SHARED);
    assert_int_equal(add->grad_mode[1], CAR_GRAD_SHARED);
    assert_int_equal(car_graph_op(graph, 1)->grad_mode[0], CAR_GRAD_ADD);
    assert_int_equal(car_graph_grad_buffer_count(graph), 3); /* the loss's, up's, and one for all the rest */
    assert_int_equal(car_graph_grad_buffer(graph, car_graph_tensor(graph, sum)->grad_buffer)->over_tensor, sum);
    car_graph_destroy(graph);
}

static int set_up(void **state) {
    return car_context_create(NULL, (car_context **)state) == CAR_OK ? 0 : -1;
}

static int tear_down(void **state) {
    car_context_destroy(*state);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(wild_rows),
        TEST(wild_sequences),
        TEST(wild_images),
        TEST(all_models),
        TEST(residual_addition_copies_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
