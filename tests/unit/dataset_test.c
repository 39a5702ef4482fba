/* Datasets by name, the synthetic one, and CIFAR-10's files. */
#include "carousel/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/data_rig.h"

enum { SIDE = 32, PLANE = SIDE * SIDE, RECORD = 1 + 3 * PLANE };

static const car_dataset_config images = {
    .domain = CAR_DOMAIN_IMAGES, .model = {.classes = 10, .image_size = SIDE, .channels = 3}, .seed = 3};

static int set_up(void **state) {
    return car_data_rig_set_up(state, "cifar10");
}

/* ---- names ----------------------------------------------------------------------------------- */

static void names_are_understood(void **state) {
    car_data_rig *f = *state;
    car_data_rig_refuse(f, "cifar:x", &images, CAR_ERROR_UNKNOWN_NAME, "'cifar:x'");
    car_data_rig_refuse(f, "cifar:x", &images, CAR_ERROR_UNKNOWN_NAME,
                        "synthetic, cifar10:DIR, imagefolder:DIR, tokens:FILE, packed:FILE");
    car_data_rig_refuse(f, "", &images, CAR_ERROR_UNKNOWN_NAME, "cifar10:DIR");
    car_data_rig_refuse(f, "cifar10", &images, CAR_ERROR_ARGUMENT, "cifar10:DIR");
    car_data_rig_refuse(f, "imagefolder:", &images, CAR_ERROR_ARGUMENT, "imagefolder:DIR");
    car_data_rig_refuse(f, "synthetic:x", &images, CAR_ERROR_ARGUMENT, "no path");
    car_data_rig_refuse(f, "cifar10:/does/not/exist", &images, CAR_ERROR_IO, "/does/not/exist: No such file");
}

/* ---- synthetic ------------------------------------------------------------------------------- */

static void synthetic_samples_are_those_of_before(void **state) {
    car_data_rig *f = *state;
    static const int64_t numbers[] = {0, 1, 77, (int64_t)1 << 33};
    float own[3 * 8 * 8], expected[3 * 8 * 8];
    int32_t label, expected_label, tokens[4][12];
    car_dataset_config config = images;
    config.model.image_size = 8;
    car_data_rig_open(f, "synthetic", &config);
    car_dataset_info info = car_dataset_get_info(f->dataset);
    assert_int_equal(info.kind, CAR_DATASET_SYNTHETIC);
    assert_int_equal(info.samples[CAR_SPLIT_TRAIN], CAR_DATASET_ENDLESS);
    assert_int_equal(info.classes, 10);
    car_synthetic source = {config.seed, config.domain, config.model};
    source.config.batch = 1;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        for (int split = 0; split < CAR_SPLITS; split++) {
            uint64_t number = (uint64_t)numbers[i] + (split == CAR_SPLIT_TRAIN ? 0 : (uint64_t)1 << 48);
            car_synthetic_batch(&source, number, expected, &expected_label);
            assert_int_equal(car_reader_sample(f->reader, (car_split)split, 4, numbers[i], own, &label), CAR_OK);
            assert_int_equal(label, expected_label);
            assert_memory_equal(own, expected, sizeof own);
        }
    }
    car_image image;
    assert_int_equal(car_reader_image(f->reader, CAR_SPLIT_TRAIN, 0, &image), CAR_ERROR_UNSUPPORTED);
    car_data_rig_close(f);
    config = (car_dataset_config){.domain = CAR_DOMAIN_TOKENS, .model = {.seq_len = 12, .vocabulary = 50}, .seed = 3};
    source = (car_synthetic){3, CAR_DOMAIN_TOKENS, {.batch = 1, .seq_len = 12, .vocabulary = 50}};
    car_data_rig_open(f, "synthetic", &config);
    assert_int_equal(car_dataset_get_info(f->dataset).classes, 50);
    assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_TRAIN, 0, 9, tokens[0], tokens[1]), CAR_OK);
    car_synthetic_batch(&source, 9, tokens[2], tokens[3]);
    assert_memory_equal(tokens[0], tokens[2], 2 * sizeof *tokens);
}

/* ---- CIFAR-10 -------------------------------------------------------------------------------- */

static uint8_t level_of(int file, int record, int colour, int pixel) {
    return (uint8_t)(file * 50 + record * 11 + colour * 80 + pixel / SIDE * 3 + pixel % SIDE);
}

static void write_batch(const car_data_rig *f, const char *name, int file, int records, int label_shift) {
    uint8_t *data = malloc((size_t)records * RECORD);
    assert_non_null(data);
    for (int r = 0; r < records; r++) {
        data[r * RECORD] = (uint8_t)((file + r) % 10 + label_shift);
        for (int p = 0; p < 3 * PLANE; p++) {
            data[r * RECORD + 1 + p] = level_of(file, r, p / PLANE, p % PLANE);
        }
    }
    car_scratch_put(&f->scratch, name, data, (size_t)records * RECORD);
    free(data);
}

static void check_record(car_data_rig *f, car_split split, int64_t sample, int file, int record) {
    static const float mean[3] = {0.4914f, 0.4822f, 0.4465f}, deviation[3] = {0.2023f, 0.1994f, 0.2010f};
    static float values[3 * PLANE];
    int32_t label;
    car_image image;
    assert_int_equal(car_reader_image(f->reader, split, sample, &image), CAR_OK);
    assert_int_equal(image.width, SIDE);
    assert_int_equal(image.height, SIDE);
    assert_int_equal(image.label, (file + record) % 10);
    assert_int_equal(car_reader_sample(f->reader, split, 0, sample, values, &label), CAR_OK);
    assert_int_equal(label, (file + record) % 10);
    assert_int_equal(car_reader_image(f->reader, split, sample, &image), CAR_OK);
    for (int p = 0; p < PLANE; p++) {
        for (int c = 0; c < 3; c++) {
            uint8_t level = level_of(file, record, c, p);
            assert_int_equal(image.pixels[3 * p + c], level);
            assert_float_equal(values[c * PLANE + p], ((float)level / 255 - mean[c]) / deviation[c], 1e-5);
        }
    }
}

static void cifar_files_are_read(void **state) {
    car_data_rig *f = *state;
    static const char *const places[] = {"", "cifar-10-batches-bin/"};
    for (int place = 0; place < 2; place++) { /* once both are there, the one below is taken */
        int mark = 3 * place;
        char name[64];
        for (int file = 1; file <= 4; file++) { /* 3 is missing */
            snprintf(name, sizeof name, "%sdata_batch_%d.bin", places[place], file == 3 ? 5 : file);
            write_batch(f, name, file + mark, file + 1, 0);
        }
        snprintf(name, sizeof name, "%stest_batch.bin", places[place]);
        write_batch(f, name, 6 + mark, 4, 0);
        car_data_rig_open(f, f->name, &images);
        car_dataset_info info = car_dataset_get_info(f->dataset);
        assert_int_equal(info.kind, CAR_DATASET_CIFAR10);
        assert_int_equal(info.domain, CAR_DOMAIN_IMAGES);
        assert_int_equal(info.samples[CAR_SPLIT_TRAIN], 2 + 3 + 4 + 5);
        assert_int_equal(info.samples[CAR_SPLIT_EVALUATION], 4);
        assert_int_equal(info.classes, 10);
        assert_int_equal(info.width, SIDE);
        assert_null(car_dataset_class_name(f->dataset, 0));
        check_record(f, CAR_SPLIT_TRAIN, 0, 1 + mark, 0);
        check_record(f, CAR_SPLIT_TRAIN, 1, 1 + mark, 1);
        check_record(f, CAR_SPLIT_TRAIN, 2, 2 + mark, 0);
        check_record(f, CAR_SPLIT_TRAIN, 9, 4 + mark, 4);
        check_record(f, CAR_SPLIT_TRAIN, 10, 3 + mark, 0); /* data_batch_5 */
        check_record(f, CAR_SPLIT_TRAIN, 13, 3 + mark, 3);
        check_record(f, CAR_SPLIT_EVALUATION, 3, 6 + mark, 3);
        car_image image;
        assert_int_equal(car_reader_image(f->reader, CAR_SPLIT_TRAIN, 14, &image), CAR_ERROR_ARGUMENT);
        assert_int_equal(car_reader_image(f->reader, CAR_SPLIT_EVALUATION, -1, &image), CAR_ERROR_ARGUMENT);
        car_context_clear_error(f->context);
        car_data_rig_close(f);
    }
}

static void cifar_classes_have_names_if_the_file_is_there(void **state) {
    car_data_rig *f = *state;
    static const char names[] = "airplane\nautomobile\r\nbird\n";
    write_batch(f, "data_batch_1.bin", 1, 1, 0);
    write_batch(f, "test_batch.bin", 6, 1, 0);
    car_scratch_put(&f->scratch, "batches.meta.txt", names, sizeof names - 1);
    car_data_rig_open(f, f->name, NULL);
    assert_string_equal(car_dataset_class_name(f->dataset, 0), "airplane");
    assert_string_equal(car_dataset_class_name(f->dataset, 1), "automobile");
    assert_string_equal(car_dataset_class_name(f->dataset, 2), "bird");
    assert_null(car_dataset_class_name(f->dataset, 3));
    assert_null(car_dataset_class_name(f->dataset, 10));
    assert_null(car_dataset_class_name(f->dataset, -1));
}

static void wrong_cifar_files_are_refused(void **state) {
    car_data_rig *f = *state;
    uint8_t bytes[RECORD + 1] = {0};
    car_data_rig_refuse(f, f->name, &images, CAR_ERROR_IO, "found no data_batch_1.bin");
    write_batch(f, "data_batch_2.bin", 1, 1, 0);
    car_data_rig_refuse(f, f->name, &images, CAR_ERROR_IO, "found no test_batch.bin");
    car_scratch_put(&f->scratch, "test_batch.bin", bytes, sizeof bytes);
    car_data_rig_refuse(f, f->name, &images, CAR_ERROR_FORMAT, "test_batch.bin has 3074 bytes");
    car_scratch_put(&f->scratch, "test_batch.bin", bytes, 0);
    car_data_rig_refuse(f, f->name, &images, CAR_ERROR_FORMAT, "test_batch.bin has 0 bytes");
    car_scratch_put(&f->scratch, "test_batch.bin", bytes, RECORD);
    car_data_rig_open(f, f->name, &images);
}

static void a_wrong_label_is_a_problem_of_its_sample(void **state) {
    car_data_rig *f = *state;
    static float values[3 * PLANE];
    int32_t label;
    write_batch(f, "data_batch_1.bin", 8, 2, 1); /* labels 9 and 10 */
    write_batch(f, "data_batch_2.bin", 2, 1, 0);
    write_batch(f, "test_batch.bin", 9, 1, 1);
    car_data_rig_open(f, f->name, &images);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_TRAIN, 0, 1, values, &label), CAR_OK);
        assert_int_equal(label, 2);
        assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_EVALUATION, 0, 0, values, &label), CAR_OK);
        assert_int_equal(label, -1);
        for (int i = 0; i < 3 * PLANE; i++) {
            assert_true(values[i] == 0);
        }
    }
    car_dataset_problems problems;
    car_dataset_get_problems(f->dataset, &problems);
    assert_int_equal(problems.unreadable, 2);
    assert_int_equal(problems.damaged, 0);
    assert_int_equal(problems.name_count, 2);
    assert_string_equal(problems.names[0], "data_batch_1.bin: record 1 has label 10, which must be below 10");
}

static void a_file_that_shrinks_ends_in_a_message(void **state) {
    car_data_rig *f = *state;
    static float values[3 * PLANE];
    int32_t label;
    write_batch(f, "data_batch_1.bin", 1, 3, 0);
    write_batch(f, "test_batch.bin", 6, 1, 0);
    car_data_rig_open(f, f->name, &images);
    assert_int_equal(truncate(car_scratch_in(&f->scratch, "data_batch_1.bin").text, RECORD + 100), 0);
    assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_TRAIN, 0, 0, values, &label), CAR_OK);
    assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_TRAIN, 0, 1, values, &label), CAR_ERROR_IO);
    assert_non_null(strstr(car_context_error(f->context), "data_batch_1.bin: the file became shorter"));
}

/* ---- what does not fit ----------------------------------------------------------------------- */

static void what_does_not_fit_the_model_is_refused(void **state) {
    car_data_rig *f = *state;
    static float values[3 * PLANE];
    int32_t label;
    car_dataset_config config = images;
    write_batch(f, "data_batch_1.bin", 1, 3, 0);
    write_batch(f, "test_batch.bin", 6, 1, 0);
    config.model.classes = 9;
    car_data_rig_refuse(f, f->name, &config, CAR_ERROR_SHAPE, "10 classes, but the model only 9");
    config = images;
    config.model.channels = 1;
    car_data_rig_refuse(f, f->name, &config, CAR_ERROR_SHAPE, "3 channels");
    config = (car_dataset_config){.domain = CAR_DOMAIN_TOKENS, .model = {.seq_len = 12, .vocabulary = 50}, .seed = 3};
    car_data_rig_refuse(f, f->name, &config, CAR_ERROR_SHAPE, "it has images, but the model needs tokens");
    config = images;
    config.model.classes = 1000;
    car_data_rig_open(f, f->name, &config);
    car_data_rig_close(f);
    car_data_rig_open(f, f->name, NULL);
    assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_TRAIN, 0, 0, values, &label), CAR_ERROR_ARGUMENT);
    car_image image;
    assert_int_equal(car_reader_image(f->reader, CAR_SPLIT_TRAIN, 0, &image), CAR_OK);
}

static void digests_tell_data_apart(void **state) {
    car_data_rig *f = *state;
    char digests[3][65];
    for (int i = 0; i < 3; i++) {
        write_batch(f, "data_batch_1.bin", i == 2 ? 5 : 1, 3, 0);
        write_batch(f, "test_batch.bin", 6, 1, 0);
        car_data_rig_open(f, f->name, NULL);
        assert_int_equal(car_dataset_digest(f->dataset, digests[i]), CAR_OK);
        assert_int_equal(strlen(digests[i]), 64);
        car_data_rig_close(f);
    }
    assert_string_equal(digests[0], digests[1]);
    assert_string_not_equal(digests[0], digests[2]);
}

static void memory_that_runs_out_leaves_nothing_behind(void **state) {
    car_data_rig *f = *state;
    static float values[3 * PLANE];
    write_batch(f, "data_batch_1.bin", 8, 2, 1);
    write_batch(f, "test_batch.bin", 6, 1, 0);
    car_data_rig_exhaust(f, &images, values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_are_understood, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(synthetic_samples_are_those_of_before, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(cifar_files_are_read, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(cifar_classes_have_names_if_the_file_is_there, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(wrong_cifar_files_are_refused, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(a_wrong_label_is_a_problem_of_its_sample, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(a_file_that_shrinks_ends_in_a_message, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_fit_the_model_is_refused, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(digests_tell_data_apart, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(memory_that_runs_out_leaves_nothing_behind, set_up, car_data_rig_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
