/* The life of a micro-batch: the curve against a tape, the limits of known models, and made-up partitions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "carousel/partition.h"
#include "support/expect.h"
#include "support/rig.h"

static int set_up(void **state) {
    return car_context_create(NULL, (car_context **)state) == CAR_OK ? 0 : -1;
}

static int tear_down(void **state) {
    car_context_destroy(*state);
    return 0;
}

static car_partition *cut(const car_graph *graph, const car_partition_config *config) {
    car_partition *partition = NULL;
    car_expect_ok(car_graph_context(graph), car_partition_create(graph, config, &partition));
    return partition;
}

/* ---- the curve against a tape ---------------------------------------------------------------- */

/* Tops what is alive up to the arena's peak, so that the next event's own peak shows. */
static size_t event_peak(car_rig *rig, int event) {
    int operations = car_graph_op_count(rig->graph);
    void *ballast = NULL;
    size_t live = car_arena_live(rig->arena, CAR_MEMORY_ACTIVATIONS);
    size_t room = car_arena_peak(rig->arena, CAR_MEMORY_ACTIVATIONS) - live;
    car_rig_expect_ok(rig, car_arena_allocate(rig->arena, CAR_MEMORY_ACTIVATIONS, room, &ballast));
    int l = event < operations ? event : 2 * operations - 1 - event;
    car_rig_expect_ok(rig, event < operations
                               ? car_tape_forward(rig->tape, rig->lane, rig->weights, l, l + 1)
                               : car_tape_backward(rig->tape, rig->lane, rig->weights, rig->gradients, l, l + 1));
    size_t peak = car_arena_peak(rig->arena, CAR_MEMORY_ACTIVATIONS) - room;
    car_arena_release(rig->arena, ballast);
    return peak;
}

static void test_curve_follows_tape(void **state) {
    (void)state;
    static const car_rig_config known[] = {
        {.model = "mlp", .model_config = {.batch = 3}},
        {.model = "resnet20", .model_config = {.batch = 2}},
        {.model = "vit-tiny", .model_config = {.batch = 1, .depth = 2}},
        {.model = "gpt2-nano", .model_config = {.batch = 1, .depth = 2}},
        {.model = "gpt2-nano", .model_config = {.batch = 1, .depth = 1, .dropout = 0.1}},
        {.build = car_net_residual},
        {.build = car_net_language},
        {.build = car_net_patches},
        {.build = car_net_pool_first},
    };
    for (size_t i = 0; i < 2 * sizeof known / sizeof known[0]; i++) {
        car_rig_config config = known[i / 2];
        config.kernels = i % 2 ? CAR_KERNELS_ONEDNN : CAR_KERNELS_REFERENCE;
        if (config.build && config.kernels == CAR_KERNELS_ONEDNN) {
            continue; /* their channels fill no block, so oneDNN's tensors are larger */
        }
        car_rig rig;
        car_rig_open(&rig, &config);
        car_partition *partition = cut(rig.graph, &(car_partition_config){.stages = 4});
        car_rig_expect_ok(&rig, car_rig_feed(&rig, rig.tape, 1, true));
        for (int e = 0; e < partition->curve.events; e++) {
            size_t peak = event_peak(&rig, e);
            if (peak != partition->curve.during[e]) {
                fail_msg("case %zu, event %d: %zu bytes, the curve says %zu", i, e, peak, partition->curve.during[e]);
            }
        }
        car_partition_destroy(partition);
        car_rig_close(&rig);
    }
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* Worked out before, by hand, from what PyTorch saves; the graph saves less in places, so figures differ a bit. */
static void test_limits(void **state) {
    static const struct {
        const char *model;
        car_model_config config;
        double limit;
    } known[] = {
        {"vit-b16", {.batch = 1}, 0.50},
        {"gpt2", {.batch = 1, .seq_len = 1024}, 0.65},
        {"resnet50", {.batch = 1, .image_size = 224}, 0.69},
        {"resnet50", {.batch = 1, .image_size = 32}, 0.68},
        {"resnet18", {.batch = 1, .image_size = 32}, 0.68},
        {"resnet18", {.batch = 1, .image_size = 224}, 0.74},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        car_graph *graph = NULL;
        assert_int_equal(car_model_build(*state, known[i].model, &known[i].config, &graph), CAR_OK);
        car_partition *fine = cut(graph, &(car_partition_config){.stages = 32});
        car_partition *coarse = cut(graph, &(car_partition_config){.stages = 3, .measure = CAR_MEASURE_PARAMS});
        print_message("limit of %s at %d: %.4f (%.2f)\n", known[i].model,
                      known[i].config.image_size + known[i].config.seq_len, fine->limit, known[i].limit);
        assert_true(fabs(fine->limit - known[i].limit) < 0.05);
        assert_true(fine->limit == coarse->limit); /* no matter of how it is cut */
        car_partition_destroy(coarse);
        car_partition_destroy(fine);
        car_graph_destroy(graph);
    }
}

static void test_uniform(void **state) {
    for (int S = 1; S <= 12; S++) {
        car_partition *partition = NULL;
        assert_int_equal(car_partition_create_uniform(*state, S, 2, &partition), CAR_OK);
        double sum = 0;
        assert_null(partition->graph);
        assert_int_equal(partition->bundle_count, S);
        assert_int_equal(partition->curve.events, 2 * S);
        assert_int_equal(partition->held_bytes, 1000 * S);
        assert_int_equal(partition->curve.peak, 1000 * S);
        assert_true(fabs(partition->longest_task - 2.0 / (3 * S)) < 1e-12);
        for (int j = 0; j < S; j++) {
            const car_stage *stage = &partition->stages[j];
            assert_true(stage->first == j && stage->end == j + 1);
            assert_true(stage->held_bytes == 1000 && stage->weight_bytes == 100);
            assert_int_equal(stage->boundary_bytes, j > 0 ? 10 : 0);
            assert_true(stage->backward == 2 * stage->forward);
            assert_true(partition->bundles[j].stage == j && partition->bundles[j].home == j);
            assert_true(partition->bundles[j].param == CAR_NONE && partition->bundles[j].bytes == 100);
            sum += 1000 * (1 - (double)j / S);
        }
        assert_true(fabs(partition->limit - sum / (1000 * S)) < 1e-12);
        double before = 0;
        for (int e = 0; e < 2 * S; e++) {
            int j = e < S ? e : 2 * S - 1 - e;
            assert_true(fabs(partition->curve.begin[e] - before) < 1e-12);
            assert_int_equal(partition->curve.during[e], 1000 * (j + 1));
            before += e < S ? partition->stages[j].forward : partition->stages[j].backward;
        }
        assert_true(fabs(before - 1) < 1e-12);
        car_partition_destroy(partition);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curve_follows_tape),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_uniform),
    };
    return cmocka_run_group_tests_name("curve", tests, set_up, tear_down);
}
