/* The same as arguments_test.c for what executes plans, for language models, and for files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "carousel/carousel.h"
#include "support/refused.h"
#include "support/rig.h"

/* ---- what executes a plan ------------------------------------------------------------------- */

static car_status feed_nothing(void *user, int64_t step, int micro_batch, car_tape *tape) {
    (void)user;
    (void)step;
    (void)micro_batch;
    (void)tape;
    return CAR_OK;
}

static void no_trainer(void **state) {
    (void)state;
    double loss = 0;
    void *values[1] = {NULL};
    car_snapshot *snapshot = NULL;
    REFUSED(NULL, car_trainer_initialize(NULL, 1), "");
    REFUSED(NULL, car_trainer_run(NULL, 1), "");
    REFUSED(NULL, car_trainer_drive(NULL, NULL), "");
    REFUSED(NULL, car_trainer_create_snapshot(NULL, &snapshot), "");
    REFUSED(NULL, car_trainer_take_snapshot(NULL, NULL), "");
    REFUSED(NULL, car_trainer_restore(NULL, NULL), "");
    REFUSED(NULL, car_trainer_evaluate(NULL, &loss), "");
    REFUSED(NULL, car_trainer_gradient(NULL, &loss, values), "");
    REFUSED(NULL, car_trainer_assign(NULL, NULL), "");
    REFUSED(NULL, car_trainer_read(NULL, values), "");
    car_trainer_stop(NULL);
    car_trainer_return_snapshot(NULL);
    car_trainer_destroy(NULL);
    assert_int_equal(car_trainer_steps(NULL), 0);
    assert_null(car_trainer_weights(NULL));
    assert_null(car_trainer_previous_weights(NULL));
    assert_null(car_trainer_optimizer(NULL));
    assert_int_equal(car_trainer_time(NULL).helped, 0);
    assert_int_equal(car_trainer_thread_bytes(NULL, true), 0);
}

static void no_rank(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    char text[16] = "";
    REFUSED(NULL, car_rank_run(NULL, 1), "");
    REFUSED(NULL, car_rank_attend(NULL, NULL, NULL), "");
    REFUSED(NULL, car_rank_gather(NULL, NULL), "");
    REFUSED(NULL, car_rank_spread(NULL, NULL), "");
    REFUSED(NULL, car_rank_agree(NULL, NULL, "model", ""), "");
    REFUSED(context, car_rank_agree(context, NULL, "model", ""), "transport is NULL");
    car_rank_destroy(NULL);
    assert_false(car_rank_feeds(NULL, 0));
    assert_int_equal(car_rank_explain(NULL, text, sizeof text), 0);
    assert_int_equal(car_rank_get_traffic(NULL).messages, 0);
    car_link_pacing pacing = CAR_LINKS_PACED;
    REFUSED(context, car_link_pacing_find(context, NULL, &pacing), "name is NULL");
    REFUSED(context, car_link_pacing_find(context, "on", NULL), "out is NULL");
    car_context_destroy(context);
}

static void trainers(void **state) {
    (void)state;
    car_rig rig;
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_trainer *trainer = NULL;
    car_rank *rank = NULL;
    car_snapshot *snapshot = NULL;
    car_plan_config config = car_plan_config_default();
    car_trainer_config training = car_trainer_config_default();
    training.feed = feed_nothing;
    config.workers = 2;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_REFERENCE});
    car_context *context = rig.context;
    car_rig_expect_ok(&rig, car_partition_create(rig.graph, &(car_partition_config){.stages = 2}, &partition));
    car_rig_expect_ok(&rig, car_plan_create(context, partition, &config, &plan));
    car_rig_expect_ok(&rig, car_plan_validate(plan, 4));
    REFUSED(NULL, car_trainer_create(NULL, rig.program, rig.arena, &training, &trainer), "");
    REFUSED(context, car_trainer_create(plan, NULL, rig.arena, &training, &trainer), "program is NULL");
    REFUSED(context, car_trainer_create(plan, rig.program, NULL, &training, &trainer), "arena is NULL");
    REFUSED(context, car_trainer_create(plan, rig.program, rig.arena, NULL, &trainer), "config is NULL");
    REFUSED(context, car_trainer_create(plan, rig.program, rig.arena, &training, NULL), "out is NULL");
    REFUSED(context, car_rank_create(plan, rig.program, rig.arena, NULL, &training, &rank), "transport is NULL");
    car_rig_expect_ok(&rig, car_trainer_create(plan, rig.program, rig.arena, &training, &trainer));
    REFUSED(context, car_trainer_drive(trainer, NULL), "loop is NULL");
    REFUSED(context, car_trainer_take_snapshot(trainer, NULL), "snapshot is NULL");
    REFUSED(context, car_trainer_restore(trainer, NULL), "snapshot is NULL");
    REFUSED(context, car_trainer_create_snapshot(trainer, NULL), "out is NULL");
    REFUSED(context, car_trainer_evaluate(trainer, NULL), "loss is NULL");
    REFUSED(context, car_trainer_assign(trainer, NULL), "weights is NULL");
    REFUSED(context, car_trainer_read(trainer, NULL), "weights is NULL");
    car_trainer_return_snapshot(trainer); /* it has none to take back */
    car_rig_expect_ok(&rig, car_trainer_initialize(trainer, 1));
    car_rig_expect_ok(&rig, car_trainer_create_snapshot(trainer, &snapshot));
    car_rig_expect_ok(&rig, car_trainer_take_snapshot(trainer, snapshot)); /* none of it has harmed the trainer */
    car_snapshot_destroy(snapshot);
    car_trainer_destroy(trainer);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    car_rig_close(&rig);
}

static void transports(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_hub *hub = NULL;
    car_transport *transport = NULL;
    int value = 0;
    REFUSED(NULL, car_transport_open(NULL, &transport), "");
    REFUSED(context, car_transport_open(context, NULL), "out is NULL");
    REFUSED(NULL, car_hub_create(NULL, 1, &hub), "");
    REFUSED(context, car_hub_create(context, 1, NULL), "out is NULL");
    REFUSED(context, car_hub_create(context, 0, &hub), "0 ranks");
    assert_int_equal(car_hub_create(context, 1, &hub), CAR_OK);
    REFUSED(NULL, car_hub_join(hub, NULL, 0, &transport), "");
    REFUSED(context, car_hub_join(NULL, context, 0, &transport), "hub is NULL");
    REFUSED(context, car_hub_join(hub, context, 0, NULL), "out is NULL");
    REFUSED(context, car_hub_join(hub, context, 1, &transport), "no rank 1");
    assert_int_equal(car_hub_join(hub, context, 0, &transport), CAR_OK);
    REFUSED(NULL, car_transport_all_gather(NULL, &value, sizeof value, &value), "");
    REFUSED(context, car_transport_all_gather(transport, NULL, sizeof value, &value), "in is NULL");
    REFUSED(context, car_transport_broadcast(transport, 0, NULL, sizeof value), "data is NULL");
    REFUSED(NULL, car_transport_renumber(NULL, true), "");
    assert_int_equal(car_transport_machine(transport, 7), -1);
    car_transport_close(transport);
    car_hub_destroy(hub);
    car_transport_close(NULL);
    car_transport_abort(NULL, 1);
    car_hub_give_up(NULL);
    assert_int_equal(car_transport_rank(NULL), 0);
    assert_int_equal(car_transport_size(NULL), 0);
    assert_int_equal(car_transport_local_size(NULL), 0);
    assert_int_equal(car_transport_machines(NULL), 0);
    assert_string_equal(car_transport_name(NULL), "");
    car_context_destroy(context);
}

/* ---- language -------------------------------------------------------------------------------- */

static car_status take_nothing(void *user, const int32_t *tokens, int count) {
    (void)user;
    (void)tokens;
    (void)count;
    return CAR_OK;
}

static void tokenizers(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_tokenizer *tokenizer = NULL;
    car_token_counts counts;
    char *name = NULL;
    int length = 7;
    REFUSED(NULL, car_tokenizer_create_bytes(NULL, &tokenizer), "");
    REFUSED(context, car_tokenizer_create_bytes(context, NULL), "out is NULL");
    REFUSED(context, car_tokenizer_train(context, NULL, 3, 300, &tokenizer), "text is NULL");
    REFUSED(context, car_tokenizer_train_file(context, NULL, 300, &tokenizer), "path is NULL");
    REFUSED(context, car_tokenizer_read(context, NULL, &tokenizer), "path is NULL");
    REFUSED(context, car_tokenizer_read_gpt2(context, "vocab.json", NULL, &tokenizer), "merges is NULL");
    REFUSED(context, car_tokenizer_find(context, NULL, &tokenizer), "directory is NULL");
    REFUSED(context, car_tokenizer_name_beside(context, NULL, &name), "tokens is NULL");
    REFUSED(context, car_tokenizer_find_beside(context, NULL, &tokenizer), "tokens is NULL");
    assert_int_equal(car_tokenizer_create_bytes(context, &tokenizer), CAR_OK);
    REFUSED(context, car_tokenizer_encode(tokenizer, NULL, 3, take_nothing, NULL), "text is NULL");
    REFUSED(context, car_tokenizer_encode(tokenizer, "abc", 3, NULL, NULL), "sink is NULL");
    REFUSED(context, car_tokenizer_encode_file(tokenizer, NULL, "x.bin", false, &counts), "text is NULL");
    REFUSED(context, car_tokenizer_write(tokenizer, NULL), "path is NULL");
    REFUSED(context, car_tokenizer_write_gpt2(tokenizer, NULL, "merges.txt"), "vocabulary is NULL");
    assert_non_null(car_tokenizer_decode(tokenizer, 65, NULL));
    car_tokenizer_destroy(tokenizer);
    REFUSED(NULL, car_tokenizer_encode(NULL, "abc", 3, take_nothing, NULL), "");
    REFUSED(NULL, car_tokenizer_write(NULL, "x"), "");
    assert_int_equal(car_tokenizer_size(NULL), 0);
    assert_int_equal(car_tokenizer_end_of_text(NULL), -1);
    assert_null(car_tokenizer_decode(NULL, 0, &length));
    assert_int_equal(length, 0);
    car_context_destroy(context);
}

static void generators(void **state) {
    (void)state;
    const car_sampling sampling = {.temperature = 1, .top_p = 1};
    const car_generator_config config = car_generator_config_default();
    car_context *context = car_refused_open_context();
    car_generator *generator = NULL;
    car_sampler *sampler = NULL;
    car_language *language = NULL;
    const float logits[2] = {0, 1};
    const int32_t tokens[1] = {0};
    int token = 0;
    REFUSED(NULL, car_generator_open(NULL, "x", &config, &generator), "");
    REFUSED(context, car_generator_open(context, NULL, &config, &generator), "path is NULL");
    REFUSED(context, car_generator_open(context, "x", NULL, &generator), "config is NULL");
    REFUSED(context, car_generator_open(context, "x", &config, NULL), "out is NULL");
    REFUSED(NULL, car_generator_feed(NULL, tokens, 1, NULL), "");
    REFUSED(NULL, car_generator_export(NULL, "x", -1), "");
    car_generator_rewind(NULL, 0);
    car_generator_close(NULL);
    assert_int_equal(car_generator_length(NULL), 0);
    assert_int_equal(car_generator_sizes(NULL).width, 0);
    REFUSED(context, car_sampler_create(context, 2, NULL, &sampler), "sampling is NULL");
    REFUSED(context, car_sampler_create(context, 2, &sampling, NULL), "out is NULL");
    assert_int_equal(car_sampler_create(context, 2, &sampling, &sampler), CAR_OK);
    REFUSED(context, car_sampler_choose(sampler, NULL, 0, &token), "logits is NULL");
    REFUSED(context, car_sampler_choose(sampler, logits, 0, NULL), "token is NULL");
    REFUSED(NULL, car_sampler_choose(NULL, logits, 0, &token), "");
    car_sampler_destroy(sampler);
    REFUSED(context, car_language_open(context, NULL, NULL, &language), "place is NULL");
    REFUSED(context, car_language_open(context, "x", NULL, NULL), "out is NULL");
    REFUSED(NULL, car_language_export(NULL, "x"), "");
    assert_null(car_language_generator(NULL));
    assert_null(car_language_tokenizer(NULL));
    assert_null(car_language_folder(NULL));
    assert_int_equal(car_language_sequence(NULL), 0);
    car_context_destroy(context);
}

/* ---- snapshots and files --------------------------------------------------------------------- */

static void snapshots(void **state) {
    (void)state;
    car_rig rig;
    car_snapshot *snapshot = NULL;
    car_checkpoint *checkpoint = NULL;
    const car_checkpoint_config config = {.keep = 1};
    float values[8] = {0};
    int64_t step = 0;
    car_rig_open(&rig, &(car_rig_config){.build = car_net_residual, .kernels = CAR_KERNELS_REFERENCE});
    car_context *context = rig.context;
    REFUSED(NULL, car_snapshot_create(NULL, rig.arena, false, 0, &snapshot), "");
    REFUSED(context, car_snapshot_create(rig.program, NULL, false, 0, &snapshot), "arena is NULL");
    REFUSED(context, car_snapshot_create(rig.program, rig.arena, false, 0, NULL), "out is NULL");
    REFUSED(context, car_snapshot_create_for(rig.program, rig.arena, false, NULL, &snapshot), "optimizer is NULL");
    car_rig_expect_ok(&rig, car_snapshot_create(rig.program, rig.arena, false, 0, &snapshot));
    REFUSED(context, car_snapshot_get(snapshot, CAR_SNAPSHOT_WEIGHTS, 0, NULL), "canonical is NULL");
    REFUSED(context, car_snapshot_get(snapshot, CAR_SNAPSHOT_WEIGHTS, 100000, values), "no weights of parameter");
    REFUSED(context, car_snapshot_set(snapshot, CAR_SNAPSHOT_WEIGHTS, 0, NULL), "canonical is NULL");
    REFUSED(context, car_snapshot_set_weights(snapshot, NULL), "weights is NULL");
    REFUSED(NULL, car_snapshot_get_weights(NULL, rig.weights), "");
    car_snapshot_set_numbers(snapshot, NULL);
    assert_null(car_snapshot_program(NULL));
    assert_int_equal(car_snapshot_get_numbers(NULL).step, 0);
    assert_null(car_snapshot_state_name(NULL, CAR_SNAPSHOT_STATE_0));
    assert_false(car_snapshot_has(NULL, CAR_SNAPSHOT_WEIGHTS, 0));
    REFUSED(context, car_checkpoint_write(context, NULL, snapshot, "{}"), "config is NULL");
    REFUSED(context, car_checkpoint_write(context, &config, NULL, "{}"), "snapshot is NULL");
    REFUSED(context, car_checkpoint_write(context, &config, snapshot, "{}"), "directory is NULL");
    REFUSED(context, car_checkpoint_newest(context, NULL, &step), "directory is NULL");
    REFUSED(context, car_checkpoint_open(context, NULL, 0, &checkpoint), "directory is NULL");
    REFUSED(context, car_checkpoint_open(context, "x", 0, NULL), "out is NULL");
    REFUSED(NULL, car_checkpoint_read(NULL, snapshot, NULL), "");
    assert_int_equal(car_checkpoint_step(NULL), -1);
    assert_null(car_checkpoint_run(NULL));
    car_snapshot_destroy(snapshot);
    car_rig_close(&rig);
}

static void safetensors(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_safetensors *file = NULL;
    car_safetensors_writer *writer = NULL;
    float values[1] = {0};
    REFUSED(NULL, car_safetensors_open(NULL, "x", &file), "");
    REFUSED(context, car_safetensors_open(context, NULL, &file), "path is NULL");
    REFUSED(context, car_safetensors_open(context, "x", NULL), "out is NULL");
    REFUSED(NULL, car_safetensors_copy(NULL, NULL, values), "");
    REFUSED(NULL, car_safetensors_copy_floats(NULL, NULL, values), "");
    assert_int_equal(car_safetensors_count(NULL), 0);
    assert_null(car_safetensors_at(NULL, 0));
    assert_null(car_safetensors_find(NULL, "x"));
    assert_null(car_safetensors_metadata(NULL, "x"));
    REFUSED(context, car_safetensors_writer_create(context, NULL, NULL, 0, NULL, &writer), "path is NULL");
    REFUSED(context, car_safetensors_writer_create(context, "x", NULL, 1, NULL, &writer), "entries is NULL");
    REFUSED(NULL, car_safetensors_writer_add(NULL, values), "");
    REFUSED(NULL, car_safetensors_writer_finish(NULL, NULL), "");
    car_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_trainer), cmocka_unit_test(no_rank),     cmocka_unit_test(trainers),
        cmocka_unit_test(transports), cmocka_unit_test(tokenizers),  cmocka_unit_test(generators),
        cmocka_unit_test(snapshots),  cmocka_unit_test(safetensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
