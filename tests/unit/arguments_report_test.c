/* NULL where cards, images, scalars, records and reports need something: refused, see arguments_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "carousel/carousel.h"
#include "support/refused.h"

static void cards(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_card *card = NULL;
    car_image_recipe recipe = car_image_recipe_for(32);
    const car_model_config model = {0};
    REFUSED(NULL, car_card_create(NULL, &card), "");
    REFUSED(context, car_card_create(context, NULL), "out is NULL");
    REFUSED(NULL, car_card_read(NULL, "x", &card), "");
    REFUSED(context, car_card_read(context, NULL, &card), "path is NULL");
    REFUSED(context, car_card_read(context, "x", NULL), "out is NULL");
    REFUSED(NULL, car_card_set(NULL, "key", "value"), "");
    REFUSED(NULL, car_card_add_to_list(NULL, "key", "value"), "");
    REFUSED(NULL, car_card_set_model(NULL, "mlp", &model), "");
    REFUSED(NULL, car_card_set_recipe(NULL, &recipe), "");
    REFUSED(NULL, car_card_recipe(NULL, &recipe), "");
    assert_int_equal(car_card_create(context, &card), CAR_OK);
    REFUSED(context, car_card_set(card, NULL, "value"), "key is NULL");
    REFUSED(context, car_card_add_to_list(card, NULL, "value"), "key is NULL");
    REFUSED(context, car_card_set_model(card, NULL, &model), "name is NULL");
    REFUSED(context, car_card_set_model(card, "mlp", NULL), "config is NULL");
    REFUSED(context, car_card_set_recipe(card, NULL), "recipe is NULL");
    REFUSED(context, car_card_recipe(card, NULL), "recipe is NULL");
    assert_int_equal(car_card_add_to_list(card, "classes", NULL), CAR_OK); /* this NULL is allowed */
    assert_int_equal(car_card_set_recipe(card, &recipe), CAR_OK);
    car_card_destroy(card);
    car_context_destroy(context);
}

static void images(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_image_opener *opener = NULL;
    car_image_file file;
    const car_image_recipe recipe = car_image_recipe_for(32);
    float sample[1] = {0};
    REFUSED(NULL, car_image_opener_create(NULL, &recipe, &opener), "");
    REFUSED(context, car_image_opener_create(context, NULL, &opener), "recipe is NULL");
    REFUSED(context, car_image_opener_create(context, &recipe, NULL), "out is NULL");
    REFUSED(NULL, car_image_open(NULL, "x", sample, &file), "");
    assert_int_equal(car_image_opener_create(context, &recipe, &opener), CAR_OK);
    REFUSED(context, car_image_open(opener, NULL, sample, &file), "path is NULL");
    REFUSED(context, car_image_open(opener, "x", NULL, &file), "sample is NULL");
    REFUSED(context, car_image_open(opener, "x", sample, NULL), "out is NULL");
    car_image_opener_destroy(opener);
    car_context_destroy(context);
}

static void scalars(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_events *events = NULL;
    car_event_record record;
    REFUSED(NULL, car_events_create(NULL, &events), "");
    REFUSED(context, car_events_create(context, NULL), "out is NULL");
    REFUSED(NULL, car_events_begin(NULL, 0, 0, &record), "");
    REFUSED(NULL, car_events_add(NULL, "loss", 1), "");
    REFUSED(NULL, car_events_write(NULL, 0, 0, &record), "");
    assert_int_equal(car_events_create(context, &events), CAR_OK);
    REFUSED(context, car_events_begin(events, 0, 0, NULL), "out is NULL");
    REFUSED(context, car_events_add(events, NULL, 1), "tag is NULL");
    REFUSED(context, car_events_write(events, 0, 0, NULL), "out is NULL");
    assert_int_equal(car_events_begin(events, 0, 0, &record), CAR_OK);
    car_events_destroy(events);
    car_context_destroy(context);
}

static void records(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_arena *arena = NULL;
    car_recorder *recorder = NULL;
    car_hub *hub = NULL;
    car_transport *transport = NULL;
    const car_recorder_config config = {.threads = 1};
    assert_int_equal(car_arena_create(context, 0, &arena), CAR_OK);
    assert_int_equal(car_hub_create(context, 1, &hub), CAR_OK);
    assert_int_equal(car_hub_join(hub, context, 0, &transport), CAR_OK);
    REFUSED(NULL, car_recorder_create(NULL, arena, &config, &recorder), "");
    REFUSED(context, car_recorder_create(context, NULL, &config, &recorder), "arena is NULL");
    REFUSED(context, car_recorder_create(context, arena, NULL, &recorder), "config is NULL");
    REFUSED(context, car_recorder_create(context, arena, &config, NULL), "out is NULL");
    REFUSED(NULL, car_recorder_align(NULL, transport), "");
    REFUSED(NULL, car_recorder_gather(NULL, transport), "");
    assert_int_equal(car_recorder_create(context, arena, &config, &recorder), CAR_OK);
    REFUSED(context, car_recorder_align(recorder, NULL), "transport is NULL");
    REFUSED(context, car_recorder_gather(recorder, NULL), "transport is NULL");
    assert_int_equal(car_recorder_align(recorder, transport), CAR_OK);
    car_recorder_destroy(recorder);
    car_transport_close(transport);
    car_hub_destroy(hub);
    car_arena_destroy(arena);
    car_context_destroy(context);
}

static void reports(void **state) {
    (void)state;
    car_context *context = car_refused_open_context();
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_arena *arena = NULL;
    car_recorder *recorder = NULL;
    char *svg = NULL;
    const car_plan_config config = car_plan_config_default();
    const car_timeline_config timeline = {.model = "mlp", .steps = 1};
    const char *const directories[] = {"run"};
    assert_int_equal(car_partition_create_uniform(context, 4, 2, &partition), CAR_OK);
    assert_int_equal(car_plan_create(context, partition, &config, &plan), CAR_OK);
    assert_int_equal(car_arena_create(context, 0, &arena), CAR_OK);
    assert_int_equal(car_recorder_create(context, arena, &(car_recorder_config){.threads = 1}, &recorder), CAR_OK);
    REFUSED(NULL, car_report_plan_svg(NULL, "a plan", &svg), "");
    REFUSED(context, car_report_plan_svg(plan, NULL, &svg), "title is NULL");
    REFUSED(context, car_report_plan_svg(plan, "a plan", NULL), "out is NULL");
    REFUSED(NULL, car_report_page(NULL, directories, 1, NULL, "x"), "");
    REFUSED(context, car_report_page(context, NULL, 1, NULL, "x"), "directories is NULL");
    REFUSED(context, car_report_page(context, directories, 1, NULL, NULL), "path is NULL");
    REFUSED(context, car_report_live_page(context, NULL, 1, NULL, 1, "x"), "directories is NULL");
    REFUSED(NULL, car_report_trace(NULL, plan, "x"), "");
    REFUSED(context, car_report_trace(recorder, NULL, "x"), "plan is NULL");
    REFUSED(context, car_report_trace(recorder, plan, NULL), "path is NULL");
    REFUSED(NULL, car_report_timeline(NULL, plan, &timeline, "x"), "");
    REFUSED(context, car_report_timeline(recorder, NULL, &timeline, "x"), "plan is NULL");
    REFUSED(context, car_report_timeline(recorder, plan, NULL, "x"), "config is NULL");
    REFUSED(context, car_report_timeline(recorder, plan, &timeline, NULL), "path is NULL");
    car_recorder_destroy(recorder);
    car_arena_destroy(arena);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    car_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cards),   cmocka_unit_test(images),  cmocka_unit_test(scalars),
        cmocka_unit_test(records), cmocka_unit_test(reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
