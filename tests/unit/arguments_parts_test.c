/* NULL where memory, files, data, predictions and searches need something: refused, see arguments_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "carousel/carousel.h"
#include "support/refused.h"

static void memory_and_files(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_arena *arena = NULL;
    car_file *file = NULL;
    char *text = NULL, digest[CAR_FILE_DIGEST];
    void *block = NULL;
    REFUSED(NULL, car_arena_create_reserving(NULL, 0, 0, &arena), "");
    REFUSED(context, car_arena_create_reserving(context, 0, 0, NULL), "out is NULL");
    REFUSED(NULL, car_arena_allocate(NULL, CAR_MEMORY_ACTIVATIONS, 8, &block), "");
    REFUSED(NULL, car_arena_record(NULL, CAR_MEMORY_ACTIVATIONS, 8), "");
    REFUSED(NULL, car_file_create(NULL, "x", &file), "");
    REFUSED(context, car_file_create(context, NULL, &file), "path is NULL");
    REFUSED(context, car_file_create(context, "x", NULL), "out is NULL");
    REFUSED(NULL, car_file_write(NULL, "x", 1), "");
    REFUSED(NULL, car_file_finish(NULL), "");
    REFUSED(context, car_file_write_text(context, NULL, "x"), "path is NULL");
    REFUSED(context, car_file_write_text(context, "x", NULL), "text is NULL");
    REFUSED(context, car_file_read_text(context, NULL, 8, &text), "path is NULL");
    REFUSED(context, car_file_read_text(context, "x", 8, NULL), "out is NULL");
    REFUSED(context, car_file_digest(context, NULL, digest), "path is NULL");
    car_context_destroy(context);
}

static void data(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_dataset *set = NULL;
    car_reader *reader = NULL;
    car_model_config shape = {0};
    char text[65];
    const car_dataset_config config = {.model = {.batch = 1, .image_size = 8, .channels = 3, .classes = 2}};
    REFUSED(NULL, car_dataset_digest(NULL, text), "");
    REFUSED(NULL, car_dataset_pack(NULL, 0, "x", NULL, NULL), "");
    REFUSED(NULL, car_reader_sample(NULL, CAR_SPLIT_TRAIN, 0, 0, text, NULL), "");
    REFUSED(NULL, car_loader_take(NULL, 0, 0, NULL, NULL), "");
    REFUSED(NULL, car_feeder_start(NULL, NULL, 0, 1), "");
    REFUSED(NULL, car_feeder_feed(NULL, 0, 0, NULL), "");
    REFUSED(NULL, car_feeder_evaluate(NULL, NULL, NULL, NULL, NULL, NULL), "");
    REFUSED(context, car_feeder_find_sizes(context, NULL, "synthetic", &shape), "model is NULL");
    REFUSED(context, car_feeder_find_sizes(context, "mlp", NULL, &shape), "data is NULL");
    REFUSED(context, car_feeder_find_sizes(context, "mlp", "synthetic", NULL), "shape is NULL");
    assert_int_equal(car_dataset_open(context, "synthetic", &config, &set), CAR_OK);
    REFUSED(NULL, car_dataset_digest(set, NULL), "");
    REFUSED(NULL, car_dataset_pack(set, 0, NULL, NULL, NULL), "");
    assert_int_equal(car_reader_create(set, &reader), CAR_OK);
    REFUSED(NULL, car_reader_sample(reader, CAR_SPLIT_TRAIN, 0, 0, NULL, NULL), "");
    REFUSED(NULL, car_reader_image(reader, CAR_SPLIT_TRAIN, 0, NULL), "");
    car_reader_destroy(reader);
    car_dataset_close(set);
    car_context_destroy(context);
}

static void models_and_programs(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_convolutions convolutions = CAR_CONVOLUTIONS_AUTO;
    car_model_config shape = {0};
    bool tight = false;
    float value = 0;
    REFUSED(context, car_model_resolve(context, "mlp", &shape, NULL), "out is NULL");
    REFUSED(context, car_convolutions_find(context, NULL, &convolutions), "name is NULL");
    REFUSED(context, car_convolutions_find(context, "auto", NULL), "out is NULL");
    REFUSED(context, car_convolutions_find_memory(context, NULL, &tight), "name is NULL");
    REFUSED(NULL, car_program_import_param(NULL, 0, &value, &value), "");
    REFUSED(NULL, car_program_export_param(NULL, 0, &value, &value), "");
    REFUSED(NULL, car_program_export_tensor(NULL, 0, &value, &value), "");
    car_context_destroy(context);
}

static void plans(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_partition *partition = NULL;
    car_costs costs = {0};
    car_cluster cluster;
    car_prediction prediction;
    car_weights_ledger ledger;
    car_need need;
    car_recommendation recommendation;
    REFUSED(NULL, car_costs_from_flops(NULL, &costs), "");
    REFUSED(NULL, car_costs_save(NULL, &costs, "x"), "");
    REFUSED(NULL, car_costs_load(NULL, "x", &costs), "");
    REFUSED(NULL, car_partition_create_uniform(NULL, 2, 2, &partition), "");
    REFUSED(context, car_partition_create_uniform(context, 2, 2, NULL), "out is NULL");
    REFUSED(context, car_cluster_parse(context, "x", NULL, 0, &cluster), "text is NULL");
    REFUSED(context, car_cluster_parse(context, "x", "{}", 2, NULL), "out is NULL");
    REFUSED(NULL, car_plan_predict(NULL, 1, &prediction), "");
    REFUSED(NULL, car_plan_predict_device(NULL, 0, 1, NULL), "");
    REFUSED(NULL, car_plan_count_weights(NULL, &ledger), "");
    REFUSED(NULL, car_need_predict(NULL, NULL, NULL, false, &need), "");
    REFUSED(context, car_plan_choose_ahead(context, NULL, NULL, NULL, 1, NULL, 1, NULL), "partition is NULL");
    REFUSED(context, car_plan_choose_mapping(context, NULL, NULL, NULL, NULL), "partition is NULL");
    REFUSED(context, car_transport_find_machines(context, NULL, NULL), "transport is NULL");
    REFUSED(NULL, car_plan_cut_within(NULL, NULL, NULL, 1, NULL, NULL, NULL), "");
    REFUSED(context, car_recommend(context, NULL, &recommendation), "config is NULL");
    car_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_and_files),
        cmocka_unit_test(data),
        cmocka_unit_test(models_and_programs),
        cmocka_unit_test(plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
