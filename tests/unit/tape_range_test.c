/* A micro-batch on two tapes, each with a part of the graph: for every cut the same bits as on one, and in each of the two
 * arenas exactly the bytes that the plan's account of a micro-batch (life.c) says; also where backward makes some of the
 * tensors again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "engine/internal.h"
#include "plan/life.h"
#include "support/rig.h"

enum { SOIL = 1 << 20 };

static const car_net_function nets[] = {car_net_residual, car_net_language, car_net_patches, car_net_pool_first};
enum { NETS = sizeof nets / sizeof nets[0] };

/* One of the two ranks. */
typedef struct side {
    const car_rig *rig;
    car_arena *arena;
    car_graph_range *range;
    car_tape *tape;
    car_life life;
    bool counts; /* kernels that store tensors as they are */
    size_t most;
} side;

static void open_side(side *s, const car_rig *rig, int first, int end, const car_recompute *recompute, bool counts) {
    *s = (side){.rig = rig, .counts = counts};
    car_rig_expect_ok(rig, car_arena_create(rig->context, 0, &s->arena));
    car_rig_expect_ok(rig, car_graph_range_create(rig->graph, first, end, recompute, &s->range));
    car_rig_expect_ok(rig, car_tape_create(rig->program, s->arena, &s->tape));
    car_rig_expect_ok(rig, car_life_open(rig->graph, s->range, &s->life));
    s->tape->range = s->range;
}

static void close_side(side *s) {
    car_life_release(&s->life);
    car_tape_destroy(s->tape);
    car_graph_range_destroy(s->rig->graph, s->range);
    assert_int_equal(car_arena_live(s->arena, CAR_MEMORY_ACTIVATIONS), 0);
    car_arena_destroy(s->arena);
}

static void expect_bytes(side *s, size_t most) {
    s->most = most > s->most ? most : s->most;
    s->most = s->life.live > s->most ? s->life.live : s->most;
    if (s->counts) {
        assert_int_equal(car_arena_live(s->arena, CAR_MEMORY_ACTIVATIONS), s->life.live);
        assert_int_equal(car_arena_peak(s->arena, CAR_MEMORY_ACTIVATIONS), s->most);
    }
}

static void feed(side *s) {
    car_rig_expect_ok(s->rig, car_rig_feed(s->rig, s->tape, 1, true));
    car_life_clear(&s->life);
    car_life_feed(&s->life);
    expect_bytes(s, 0);
}

static void forward(side *s) {
    size_t most = 0;
    car_rig_expect_ok(s->rig, car_tape_forward(s->tape, s->rig->lane, s->rig->weights, s->range->first, s->range->end));
    for (int l = s->range->first; l < s->range->end; l++) {
        size_t during = car_life_forward(&s->life, l);
        most = during > most ? during : most;
    }
    expect_bytes(s, most);
}

static void backward(side *s) {
    size_t most = 0;
    car_rig_expect_ok(s->rig, car_tape_backward(s->tape, s->rig->lane, s->rig->weights, s->rig->gradients,
                                                s->range->first, s->range->end));
    for (int l = s->range->end - 1; l >= s->range->first; l--) {
        size_t during = car_life_backward_whole(&s->life, l);
        most = during > most ? during : most;
    }
    expect_bytes(s, most);
}

/* What goes out of one side is what comes into the other. */
static void cross(side *from, side *to, bool gradient) {
    size_t bytes = car_tape_range_bytes(from->rig->program, from->range, !gradient);
    assert_int_equal(bytes, car_tape_range_bytes(to->rig->program, to->range, gradient));
    unsigned char *data = malloc(bytes + 1);
    assert_non_null(data);
    data[bytes] = 0xa5; /* nothing is written behind it */
    car_tape_export(from->tape, gradient, data);
    car_life_export(&from->life, gradient);
    expect_bytes(from, 0);
    assert_int_equal(data[bytes], 0xa5);
    car_rig_expect_ok(to->rig, car_tape_import(to->tape, gradient, data));
    car_life_import(&to->life, gradient);
    expect_bytes(to, 0);
    free(data);
}

/* ---- every cut ------------------------------------------------------------------------------------------- */

/* Drops a share of what may be dropped in stages below and above the cut, drawn at random; 1: all of it. */
static car_recompute *choose(const car_rig *rig, int cut, double share) {
    int operations = car_graph_op_count(rig->graph), tensors = car_graph_tensor_count(rig->graph);
    car_recompute *recompute = NULL;
    bool *dropped = calloc((size_t)tensors, sizeof *dropped);
    int *stage_first = calloc((size_t)operations, sizeof *stage_first);
    assert_true(dropped && stage_first);
    for (int v = 0; v < tensors; v++) {
        int producer = car_graph_tensor(rig->graph, v)->producer;
        dropped[v] = car_recompute_may_drop(rig->graph, v, producer < cut ? cut : operations) &&
                     (double)car_random_uniform((uint64_t)cut, (uint64_t)v) < share;
    }
    for (int l = cut; l < operations; l++) {
        stage_first[l] = cut;
    }
    car_rig_expect_ok(rig, car_recompute_create(rig->graph, dropped, stage_first, &recompute));
    free(stage_first);
    free(dropped);
    return recompute;
}

static void check_cut(const car_rig *rig, int cut, double share, bool counts, float loss,
                      const unsigned char *gradients) {
    side below, above;
    car_recompute *recompute = share > 0 ? choose(rig, cut, share) : NULL;
    open_side(&below, rig, 0, cut, recompute, counts);
    open_side(&above, rig, cut, car_graph_op_count(rig->graph), recompute, counts);
    assert_true(car_graph_range_reads_inputs(rig->graph, below.range));
    for (int again = 0; again < 2; again++) {
        car_rig_spoil_gradients(rig);
        feed(&below);
        forward(&below);
        feed(&above); /* only what it reads of them, for instance the labels */
        cross(&below, &above, false);
        forward(&above);
        backward(&above);
        cross(&above, &below, true);
        backward(&below);
        unsigned char *found = car_rig_copy_gradients(rig);
        bool same = car_tape_loss(above.tape) == loss && memcmp(found, gradients, car_rig_gradient_bytes(rig)) == 0;
        free(found);
        if (!same) {
            fail_msg("cut at %d, %g made again: other bits than in one piece", cut, share);
        }
    }
    close_side(&above);
    close_side(&below);
    car_recompute_destroy(recompute);
}

static void check_net(car_net_function build, car_kernels kernels) {
    car_rig rig;
    car_rig_open(&rig, &(car_rig_config){.build = build, .kernels = kernels, .seed = 2});
    car_rig_soil(&rig, SOIL);
    car_rig_expect_ok(&rig, car_rig_step(&rig, 1));
    float loss = car_tape_loss(rig.tape);
    unsigned char *gradients = car_rig_copy_gradients(&rig);
    for (int cut = 1; cut < car_graph_op_count(rig.graph); cut++) {
        for (int quarters = 0; quarters <= 4; quarters += 2) {
            check_cut(&rig, cut, quarters / 4.0, kernels == CAR_KERNELS_REFERENCE, loss, gradients);
        }
    }
    free(gradients);
    car_rig_close(&rig);
}

static void two_tapes_give_the_same_bits(void **state) {
    (void)state;
    for (int i = 0; i < NETS; i++) {
        check_net(nets[i], CAR_KERNELS_REFERENCE);
        check_net(nets[i], CAR_KERNELS_ONEDNN);
    }
}

/* ---- the range itself ------------------------------------------------------------------------------------ */

/* By the definition: who of the range reads a tensor, forward or in its backward. */
static void check_lifetimes(const car_graph *graph, const car_graph_range *range) {
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        int last = CAR_NONE, first_saver = CAR_NONE;
        const car_tensor *tensor = car_graph_tensor(graph, v);
        for (int l = range->first; l < range->end; l++) {
            const car_op *op = car_graph_op(graph, l);
            bool reads = op->output == v || op->aux == v, saves = (op->saves_output && op->output == v) || op->aux == v;
            for (int q = 0; q < op->input_count; q++) {
                reads = reads || op->inputs[q] == v;
                saves = saves || (op->saves_input[q] && op->inputs[q] == v);
            }
            saves = saves && car_graph_tensor(graph, op->output)->grad_buffer != CAR_NONE;
            last = reads ? l : last;
            first_saver = saves && first_saver == CAR_NONE ? l : first_saver;
        }
        assert_int_equal(range->last_forward[v], last);
        assert_int_equal(range->last_backward[v], first_saver);
        bool below = tensor->producer != CAR_NONE && tensor->producer < range->end;
        assert_int_equal(range->crosses[v], below && tensor->last_forward >= range->end);
    }
}

static void lifetimes_are_those_of_the_range(void **state) {
    (void)state;
    for (int i = 0; i < NETS; i++) {
        car_rig rig;
        car_rig_open(&rig, &(car_rig_config){.build = nets[i], .kernels = CAR_KERNELS_REFERENCE});
        int operations = car_graph_op_count(rig.graph);
        for (int first = 0; first < operations; first++) {
            for (int end = first + 1; end <= operations; end++) {
                car_graph_range *range = NULL;
                car_rig_expect_ok(&rig, car_graph_range_create(rig.graph, first, end, NULL, &range));
                check_lifetimes(rig.graph, range);
                car_graph_range_destroy(rig.graph, range);
            }
        }
        car_rig_close(&rig);
    }
}

/* A rank without inputs of its own is not fed, and takes no harm if it is. */
static void inputs_are_of_those_who_read_them(void **state) {
    (void)state;
    car_rig rig;
    side middle;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_REFERENCE});
    open_side(&middle, &rig, 1, 3, NULL, true);
    assert_false(car_graph_range_reads_inputs(rig.graph, middle.range));
    feed(&middle);
    assert_int_equal(middle.life.live, 0);
    close_side(&middle);
    car_rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_tapes_give_the_same_bits),
        cmocka_unit_test(lifetimes_are_those_of_the_range),
        cmocka_unit_test(inputs_are_of_those_who_read_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
