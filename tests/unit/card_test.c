/* Cards of weights files: what is written is read back, and foreign ones do no harm. */
#include "carousel/card.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/checkpoint.h"
#include "carousel/safetensors.h"
#include "support/rig.h"
#include "support/scratch.h"

static const car_rig_config mlp = {.model = "mlp",
                                   .model_config = {.batch = 1, .classes = 3, .image_size = 4, .width = 5, .depth = 1}};

static void cards_come_back_from_files(void **state) {
    (void)state;
    car_scratch scratch;
    car_scratch_open(&scratch);
    car_scratch_path path = car_scratch_in(&scratch, "a.safetensors");
    car_image_recipe recipe = car_image_recipe_for(224), found = car_image_recipe_for(224);
    car_card *card = NULL, *back = NULL;
    car_safetensors *file = NULL;
    char text[32];
    car_rig rig;
    car_rig_open(&rig, &mlp);
    car_rig_expect_ok(&rig, car_card_create(rig.context, &card));
    car_rig_expect_ok(&rig, car_card_set_model(card, "mlp", &mlp.model_config));
    car_rig_expect_ok(&rig, car_card_add_to_list(card, "class_names", "cat"));
    car_rig_expect_ok(&rig, car_card_add_to_list(card, "class_names", "a \"dog\", \xc3\xa9"));
    car_rig_expect_ok(&rig, car_card_add_to_list(card, "class_names", NULL));
    recipe.resize = 300;
    car_rig_expect_ok(&rig, car_card_set_recipe(card, &recipe));
    car_rig_expect_ok(&rig, car_card_set(card, "step", "%d", 1));
    car_rig_expect_ok(&rig, car_card_set(card, "step", "%d", 12)); /* replaces it */
    car_rig_expect_ok(&rig, car_weights_save_with(rig.weights, path.text, card, CAR_PRECISION_FP32));

    car_rig_expect_ok(&rig, car_card_read(rig.context, path.text, &back));
    car_model_config config = {.width = 7};
    assert_string_equal(car_card_model(back, &config), "mlp");
    assert_int_equal(config.classes, 3);
    assert_int_equal(config.width, 7); /* the caller's comes first */
    assert_int_equal(config.batch, 0);
    assert_string_equal(car_card_get(back, "step"), "12");
    assert_int_equal(car_card_list_count(back, "class_names"), 3);
    assert_true(car_card_list_item(back, "class_names", 1, text, sizeof text));
    assert_string_equal(text, "a \"dog\", \xc3\xa9");
    assert_false(car_card_list_item(back, "class_names", 3, text, sizeof text));
    assert_int_equal(car_card_list_count(back, "step"), 0);
    car_rig_expect_ok(&rig, car_card_recipe(back, &found));
    assert_int_equal(found.resize, 300);
    assert_memory_equal(found.mean, recipe.mean, sizeof found.mean);
    assert_memory_equal(found.deviation, recipe.deviation, sizeof found.deviation);
    /* A card that was read and is written again is the same. */
    car_rig_expect_ok(&rig, car_weights_save_with(rig.weights, path.text, back, CAR_PRECISION_FP32));
    car_rig_expect_ok(&rig, car_safetensors_open(rig.context, path.text, &file));
    assert_string_equal(car_safetensors_metadata(file, "format"), "pt");
    assert_string_equal(car_safetensors_metadata(file, "carousel.model"), "mlp");
    assert_string_equal(car_safetensors_metadata(file, "carousel.class_names"),
                        "[\"cat\",\"a \\\"dog\\\", \xc3\xa9\",\"\"]");
    car_safetensors_close(file);
    car_card_destroy(back);
    car_card_destroy(card);
    car_rig_close(&rig);
    car_scratch_close(&scratch);
}

static void files_without_a_card_have_an_empty_one(void **state) {
    (void)state;
    car_scratch scratch;
    car_scratch_open(&scratch);
    car_scratch_path path = car_scratch_in(&scratch, "a.safetensors");
    car_card *card = NULL;
    car_model_config config = {0};
    car_rig rig;
    car_rig_open(&rig, &mlp);
    car_rig_expect_ok(&rig, car_weights_save(rig.weights, path.text));
    car_rig_expect_ok(&rig, car_card_read(rig.context, path.text, &card));
    assert_null(car_card_model(card, &config));
    assert_null(car_card_get(card, "step"));
    assert_int_equal(car_card_list_count(card, "class_names"), 0);
    assert_null(car_card_get(NULL, "step"));
    car_card_destroy(card);
    car_rig_close(&rig);
    car_scratch_close(&scratch);
}

static void recipes_that_cannot_be_used_are_refused(void **state) {
    (void)state;
    static const char *const wrong[][2] = {{"resize", "10"},       {"resize", "none"},  {"mean", "1,2"},
                                           {"deviation", "1,1,0"}, {"mean", "1,2,3,4"}, {"mean", "1,nan,2"}};
    car_rig rig;
    car_rig_open(&rig, &mlp);
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        car_image_recipe recipe = car_image_recipe_for(224), before = recipe;
        car_card *card = NULL;
        car_rig_expect_ok(&rig, car_card_create(rig.context, &card));
        car_rig_expect_ok(&rig, car_card_set(card, wrong[w][0], "%s", wrong[w][1]));
        car_rig_expect_failure(&rig, car_card_recipe(card, &recipe), CAR_ERROR_FORMAT, "has invalid values");
        assert_memory_equal(&recipe, &before, sizeof recipe);
        car_card_destroy(card);
    }
    car_rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cards_come_back_from_files),
        cmocka_unit_test(files_without_a_card_have_an_empty_one),
        cmocka_unit_test(recipes_that_cannot_be_used_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
