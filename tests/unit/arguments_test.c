/* Arguments that no caller should give: NULL, and ids that the graph does not have. Every public function that they
 * can come to refuses them, with a message where there is a context to leave it in; questions have an answer. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/carousel.h"
#include "support/refused.h"
#include "support/rig.h"

/* ---- contexts, graphs, data, optimizers ------------------------------------------------------ */

static void contexts(void **state) {
    (void)state;
    REFUSED(NULL, car_context_create(NULL, NULL), "");
    assert_string_equal(car_context_error(NULL), "");
    car_context_clear_error(NULL);
    car_context_log(NULL, CAR_LOG_ERROR, "nobody hears it");
    car_context_destroy(NULL);
}

/* Each builder without its name, or without its config: the graph's first failure. */
static void expect_unbuilt(car_context *context, int number) {
    car_graph *g = NULL;
    assert_int_equal(car_graph_create(context, &g), CAR_OK);
    int x = car_graph_input(g, "x", (car_shape){4, {2, 3, 4, 4}}, CAR_F32), got = 0;
    int rows = car_graph_input(g, "rows", (car_shape){2, {2, 3}}, CAR_F32);
    int t = car_graph_input(g, "tokens", (car_shape){2, {2, 3}}, CAR_I32);
    const int results[] = {
        number == 0 ? car_graph_input(g, NULL, (car_shape){1, {2}}, CAR_F32) : CAR_NONE,
        number == 1 ? car_graph_relu(g, NULL, x) : CAR_NONE,
        number == 2 ? car_graph_linear(g, "bad", rows, NULL) : CAR_NONE,
        number == 3 ? car_graph_conv(g, "bad", x, NULL) : CAR_NONE,
        number == 4 ? car_graph_batchnorm(g, "bad", x, CAR_NONE, NULL) : CAR_NONE,
        number == 5 ? car_graph_maxpool(g, "bad", x, NULL) : CAR_NONE,
        number == 6 ? car_graph_avgpool(g, "bad", x, NULL) : CAR_NONE,
        number == 7 ? car_graph_embedding(g, "bad", NULL, t, 5, 5, 5) : CAR_NONE,
        number == 8 ? car_graph_patch_tokens(g, "bad", NULL, x) : CAR_NONE,
        number == 9 ? car_graph_dropout(g, NULL, x, 2) : CAR_NONE,
        number == 10 ? car_graph_stage(g, NULL, NULL, NULL) : CAR_NONE,
        number == 11 ? car_graph_carry(g, NULL, (car_shape){1, {2}}, CAR_F32, (car_init){0}) : CAR_NONE,
    };
    for (size_t r = 0; r < sizeof results / sizeof *results; r++) {
        got += results[r] != CAR_NONE;
    }
    assert_int_equal(got, 0);
    REFUSED(context, car_graph_finish(g, x), "NULL");
    car_graph_destroy(g);
}

static void graphs(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_graph *graph = (car_graph *)context; /* anything but NULL */
    REFUSED(NULL, car_graph_create(NULL, &graph), "");
    assert_null(graph);
    REFUSED(context, car_graph_create(context, NULL), "out is NULL");
    REFUSED(NULL, car_graph_finish(NULL, 0), "");
    assert_int_equal(car_graph_relu(NULL, "r", 0), CAR_NONE);
    assert_int_equal(car_graph_linear(NULL, "r", 0, NULL), CAR_NONE);
    assert_int_equal(car_graph_input(NULL, "r", (car_shape){1, {2}}, CAR_F32), CAR_NONE);
    assert_int_equal(car_graph_stage(NULL, "r", NULL, NULL), CAR_NONE);
    car_graph_set_init(NULL, "r", (car_init){0});
    car_graph_set_precision(NULL, CAR_PRECISION_BF16);
    car_graph_destroy(NULL);
    assert_int_equal(car_graph_op_count(NULL), 0);
    assert_int_equal(car_graph_find_tensor(NULL, "x"), CAR_NONE);
    assert_int_equal(car_graph_loss(NULL), CAR_NONE);
    assert_int_equal(car_graph_classes(NULL), 0);
    assert_null(car_graph_op(NULL, 0));
    for (int number = 0; number < 12; number++) {
        expect_unbuilt(context, number);
    }
    assert_int_equal(car_graph_create(context, &graph), CAR_OK);
    car_graph_set_init(graph, NULL, (car_init){0});
    assert_int_equal(car_graph_finish(graph, 0), CAR_ERROR_UNKNOWN_NAME);
    car_graph_destroy(graph);
    car_context_destroy(context);
}

static car_status read_nothing(const car_sample_io *io) {
    (void)io;
    return CAR_OK;
}

static car_status update_nothing(const car_optimizer_io *io) {
    (void)io;
    return CAR_OK;
}

static void data_and_optimizers(void **state) {
    (void)state;
    const car_dataset_class own = {.name = "own", .read = read_nothing, .samples = {4, 4}, .input_bytes = 4};
    const car_optimizer_class optimizer = {.name = "own", .update = update_nothing};
    car_context *context = car_refused_open_context();
    car_dataset *data = (car_dataset *)context;
    car_optimizer_config config = car_optimizer_config_default();
    REFUSED(NULL, car_dataset_create(NULL, &own, &data), "");
    assert_null(data);
    REFUSED(context, car_dataset_create(context, &own, NULL), "out is NULL");
    REFUSED(context, car_dataset_create(context, NULL, &data), "name");
    REFUSED(context, car_dataset_open(context, NULL, NULL, &data), "name is NULL");
    REFUSED(context, car_dataset_open(context, "synthetic", NULL, NULL), "out is NULL");
    REFUSED(NULL, car_dataset_open(NULL, "synthetic", NULL, &data), "");
    REFUSED(NULL, car_optimizer_register(NULL, &optimizer), "");
    REFUSED(context, car_optimizer_register(context, NULL), "name");
    REFUSED(context, car_optimizer_find(context, NULL, &config), "name is NULL");
    REFUSED(context, car_optimizer_find(context, "sgd", NULL), "config is NULL");
    car_dataset_close(NULL);
    car_context_destroy(context);
}

/* ---- what runs a graph ----------------------------------------------------------------------- */

static const int strange[] = {CAR_NONE, -7, 77, 100000000};
enum { STRANGE = sizeof strange / sizeof *strange };

static void ids(void **state) {
    (void)state;
    car_rig rig;
    float values[8] = {0};
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_REFERENCE});
    car_tape_begin(rig.tape, 1, true);
    for (int s = 0; s < STRANGE; s++) {
        int id = strange[s];
        REFUSED(rig.context, car_tape_feed(rig.tape, id, values), "the inputs of the graph are images (0), labels (");
        assert_null(car_tape_tensor(rig.tape, id));
        REFUSED(rig.context, car_weights_set(rig.weights, id, values), "no parameter");
        REFUSED(rig.context, car_weights_get(rig.weights, id, values), "no parameter");
        REFUSED(rig.context, car_gradients_get(rig.gradients, id, values), "no parameter");
        assert_null(car_weights_data(rig.weights, id));
        assert_null(car_gradients_data(rig.gradients, id));
        assert_null(car_graph_op(rig.graph, id));
        assert_null(car_graph_tensor(rig.graph, id));
        assert_null(car_graph_param(rig.graph, id));
        assert_null(car_graph_grad_buffer(rig.graph, id));
        assert_int_equal(car_graph_use_param(rig.graph, id), CAR_NONE);
    }
    int computed = car_graph_op(rig.graph, 0)->output, end = car_graph_op_count(rig.graph);
    REFUSED(rig.context, car_tape_feed(rig.tape, computed, values), "the inputs of the graph are images (0), labels (");
    REFUSED(rig.context, car_tape_forward(rig.tape, rig.lane, rig.weights, -1, 1), "operations from -1 to before 1");
    REFUSED(rig.context, car_tape_forward(rig.tape, rig.lane, rig.weights, 0, end + 1), "the graph has");
    REFUSED(rig.context, car_tape_backward(rig.tape, rig.lane, rig.weights, rig.gradients, 0, end + 1), "operations");
    REFUSED(rig.context, car_weights_refresh(rig.weights, rig.lane, 0, end + 1), "operations");
    car_rig_expect_ok(&rig, car_rig_step(&rig, 1)); /* all as if nothing had been asked */
    car_rig_close(&rig);
}

static void tapes_and_weights(void **state) {
    (void)state;
    car_rig rig;
    float values[8] = {0};
    car_tape *tape = NULL;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_REFERENCE});
    car_context *context = rig.context;
    REFUSED(NULL, car_tape_create(NULL, rig.arena, &tape), "");
    REFUSED(context, car_tape_create(rig.program, NULL, &tape), "arena is NULL");
    REFUSED(context, car_tape_create(rig.program, rig.arena, NULL), "out is NULL");
    REFUSED(NULL, car_tape_feed(NULL, 0, values), "");
    REFUSED(context, car_tape_feed(rig.tape, 0, NULL), "data is NULL");
    REFUSED(context, car_tape_forward(rig.tape, rig.lane, NULL, 0, 1), "weights is NULL");
    REFUSED(context, car_tape_forward(rig.tape, NULL, rig.weights, 0, 1), "lane is NULL");
    REFUSED(context, car_tape_backward(rig.tape, rig.lane, rig.weights, NULL, 0, 1), "gradients is NULL");
    REFUSED(context, car_tape_logits(rig.tape, rig.weights, 0, 1, NULL), "out is NULL");
    REFUSED(NULL, car_weights_create(NULL, rig.arena, NULL), "");
    REFUSED(NULL, car_weights_set(NULL, 0, values), "");
    REFUSED(context, car_weights_get(rig.weights, 0, NULL), "canonical is NULL");
    REFUSED(NULL, car_weights_initialize(NULL, 1), "");
    REFUSED(context, car_weights_save(rig.weights, NULL), "path is NULL");
    REFUSED(context, car_weights_load(rig.weights, NULL, NULL, NULL), "path is NULL");
    REFUSED(context, car_weights_digest(rig.weights, NULL), "text is NULL");
    car_tape_begin(NULL, 1, true);
    assert_true(isnan(car_tape_loss(NULL)));
    assert_null(car_tape_tensor(NULL, 0));
    car_tape_destroy(NULL);
    car_rig_close(&rig);
}

static void plans_and_programs(void **state) {
    (void)state;
    car_rig rig;
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_program *program = NULL;
    car_arena *arena = NULL;
    car_graph *graph = NULL;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_REFERENCE});
    REFUSED(NULL, car_arena_create(NULL, 0, &arena), "");
    REFUSED(NULL, car_partition_create(NULL, NULL, &partition), "");
    REFUSED(rig.context, car_partition_create(rig.graph, NULL, &partition), "config is NULL");
    REFUSED(rig.context, car_plan_create(rig.context, NULL, NULL, &plan), "partition is NULL");
    REFUSED(NULL, car_program_create(NULL, NULL, &program), "");
    REFUSED(rig.context, car_lane_create(rig.program, rig.arena, NULL), "out is NULL");
    REFUSED(rig.context, car_model_build(rig.context, "mlp", NULL, NULL), "out is NULL");
    REFUSED(NULL, car_model_build(NULL, "mlp", NULL, &graph), "");
    REFUSED(NULL, car_plan_validate(NULL, 1), "");
    REFUSED(NULL, car_plan_prove(NULL, NULL), "");
    REFUSED(NULL, car_plan_print(NULL, 1, NULL), "");
    REFUSED(NULL, car_plan_print_custom(NULL, NULL), "");
    REFUSED(NULL, car_plan_print_edges(NULL, 1, NULL), "");
    REFUSED(NULL, car_plan_parse(NULL, "", NULL, 0), "");
    REFUSED(NULL, car_plan_draw(NULL, 0, 1, NULL, NULL), "");
    REFUSED(rig.context, car_plan_read(rig.context, NULL, "x", "", &plan), "partition is NULL");
    REFUSED(rig.context, car_rule_find(rig.context, NULL, NULL), "name is NULL");
    REFUSED(rig.context, car_placement_find(rig.context, "zero", NULL), "out is NULL");
    REFUSED(rig.context, car_mapping_find(rig.context, NULL, NULL), "name is NULL");
    REFUSED(rig.context, car_sum_order_find(rig.context, "worker", NULL), "out is NULL");
    REFUSED(rig.context, car_cluster_load(rig.context, NULL, NULL), "path is NULL");
    REFUSED(NULL, car_evaluate_with(NULL, rig.arena, rig.weights, NULL, NULL), "");
    REFUSED(rig.context, car_evaluate_with(rig.program, rig.arena, rig.weights, NULL, NULL), "config is NULL");
    REFUSED(NULL, car_optimizer_create(NULL, rig.arena, NULL, NULL), "");
    REFUSED(rig.context, car_optimizer_create(rig.program, rig.arena, NULL, NULL), "out is NULL");
    car_rig_close(&rig);
}

static void tables_of_plans(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_task_list lists[4] = {{0}};
    const car_plan_config config = car_plan_config_default();
    assert_int_equal(car_partition_create_uniform(context, 4, 2, &partition), CAR_OK);
    assert_int_equal(car_plan_create(context, partition, &config, &plan), CAR_OK);
    REFUSED(context, car_plan_prove(plan, NULL), "out is NULL");
    REFUSED(context, car_plan_print(plan, 1, NULL), "out is NULL");
    REFUSED(context, car_plan_print_custom(plan, NULL), "out is NULL");
    REFUSED(context, car_plan_print_edges(plan, 1, NULL), "out is NULL");
    REFUSED(context, car_plan_draw(plan, 0, 1, NULL, NULL), "out is NULL");
    REFUSED(context, car_plan_parse(plan, NULL, lists, 4), "text is NULL");
    REFUSED(context, car_plan_parse(plan, "", NULL, 4), "devices is NULL");
    assert_int_equal(car_plan_validate(plan, 4), CAR_OK); /* none of it has harmed the plan */
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    car_context_destroy(context);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void no_run(void **state) {
    (void)state;
    car_evaluation evaluation;
    car_recorder *recorder = NULL;
    const car_rank_account *accounts = NULL;
    float values[8] = {0};
    char text[65];
    REFUSED(NULL, car_run_train(NULL), "");
    REFUSED(NULL, car_run_train_to(NULL, 1), "");
    REFUSED(NULL, car_run_evaluate(NULL, &evaluation), "");
    REFUSED(NULL, car_run_predict(NULL, values, values), "");
    REFUSED(NULL, car_run_save(NULL, "x"), "");
    REFUSED(NULL, car_run_load(NULL, "x"), "");
    REFUSED(NULL, car_run_checkpoint(NULL), "");
    REFUSED(NULL, car_run_digest(NULL, text), "");
    REFUSED(NULL, car_run_load_with(NULL, "x", NULL, NULL), "");
    REFUSED(NULL, car_run_recall(NULL, NULL, 0), "");
    REFUSED(NULL, car_run_set_configuration(NULL, "{}"), "");
    REFUSED(NULL, car_run_record(NULL, 0, 1), "");
    REFUSED(NULL, car_run_gather_record(NULL, &recorder), "");
    REFUSED(NULL, car_run_account(NULL, &accounts), "");
    assert_null(car_run_engine(NULL));
    assert_null(car_run_then(NULL));
    assert_null(car_run_confusion(NULL));
    assert_false(car_run_has_ended(NULL) || car_run_is_complete(NULL) || car_run_is_broken(NULL));
    assert_int_equal(car_run_first_step(NULL), 0);
    car_run_stop(NULL);
    car_run_destroy(NULL);
    assert_int_equal(car_run_steps(NULL), 0);
    assert_int_equal(car_run_total_steps(NULL), 0);
    assert_int_equal(car_run_epoch_steps(NULL), 0);
    assert_int_equal(car_run_best_step(NULL), CAR_NONE);
    assert_int_equal(car_run_rank(NULL), 0);
    assert_int_equal(car_run_ranks(NULL), 0);
    assert_null(car_run_graph(NULL));
    assert_null(car_run_plan(NULL));
    assert_int_equal(car_run_peak(NULL, CAR_MEMORY_WEIGHTS), 0);
}

static void runs(void **state) {
    (void)state;
    const car_run_options options = {
        .model = "mlp", .shape = {.batch = 2, .image_size = 8, .classes = 3, .width = 8}, .workers = 2, .threads = 1};
    car_context *context = car_refused_open_context();
    car_run *run = (car_run *)context;
    float values[8] = {0};
    REFUSED(NULL, car_run_create(NULL, &options, &run), "");
    assert_null(run);
    REFUSED(context, car_run_create(context, &options, NULL), "out is NULL");
    REFUSED(context, car_run_create(context, NULL, &run), "options is NULL");
    assert_int_equal(car_run_create(context, &options, &run), CAR_OK);
    REFUSED(context, car_run_evaluate(run, NULL), "out is NULL");
    REFUSED(context, car_run_predict(run, NULL, values), "inputs is NULL");
    REFUSED(context, car_run_predict(run, values, NULL), "logits is NULL");
    REFUSED(context, car_run_save(run, NULL), "NULL");
    REFUSED(context, car_run_load(run, NULL), "NULL");
    REFUSED(context, car_run_digest(run, NULL), "text is NULL");
    REFUSED(context, car_run_recall(run, NULL, 1), "list is NULL");
    REFUSED(context, car_run_account(run, NULL), "out is NULL");
    REFUSED(context, car_run_gather_record(run, NULL), "out is NULL");
    assert_int_equal(car_run_train_to(run, 1), CAR_OK); /* none of it has harmed the run */
    car_run_destroy(run);
    car_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts),
        cmocka_unit_test(graphs),
        cmocka_unit_test(data_and_optimizers),
        cmocka_unit_test(ids),
        cmocka_unit_test(no_run),
        cmocka_unit_test(runs),
        cmocka_unit_test(tapes_and_weights),
        cmocka_unit_test(plans_and_programs),
        cmocka_unit_test(tables_of_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
