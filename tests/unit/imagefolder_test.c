/* Folders of JPEG files: layouts, order, what is passed over, and samples that cannot be read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "carousel/data.h"
#include "support/data_rig.h"
#include "support/jpegs.h"

enum { SIDE = 16, ELEMENTS = 3 * SIDE * SIDE, LOSS = 2 };

static const car_dataset_config images = {
    .domain = CAR_DOMAIN_IMAGES, .model = {.classes = 10, .image_size = SIDE, .channels = 3}, .seed = 3};

static int set_up(void **state) {
    return car_data_rig_set_up(state, "imagefolder");
}

static void open_folder(car_data_rig *f) {
    car_data_rig_open(f, f->name, &images);
}

static void must_fail(const car_data_rig *f, car_status status, const char *part) {
    car_data_rig_refuse(f, f->name, &images, status, part);
}

/* An image of one colour, by which it is known again. */
static void paint(const car_data_rig *f, const char *name, int mark) {
    car_jpegs_config config = {.width = SIDE, .height = SIDE, .tint = {(uint8_t)(5 * mark), 100, 50}};
    car_jpegs_write(&f->scratch, name, &config);
}

static void check_image(car_data_rig *f, car_split split, int64_t sample, int mark, int label) {
    car_image image;
    assert_int_equal(car_reader_image(f->reader, split, sample, &image), CAR_OK);
    assert_int_equal(image.label, label);
    assert_int_equal(image.width, SIDE);
    assert_in_range(image.pixels[0] + LOSS, 5 * mark, 5 * mark + 2 * LOSS);
}

static void check_counts(car_data_rig *f, int64_t train, int64_t evaluation, int classes) {
    car_dataset_info info = car_dataset_get_info(f->dataset);
    assert_int_equal(info.kind, CAR_DATASET_IMAGEFOLDER);
    assert_int_equal(info.samples[CAR_SPLIT_TRAIN], train);
    assert_int_equal(info.samples[CAR_SPLIT_EVALUATION], evaluation);
    assert_int_equal(info.classes, classes);
}

/* ---- layouts --------------------------------------------------------------------------------- */

static void train_and_val_are_the_splits(void **state) {
    car_data_rig *f = *state;
    paint(f, "train/b/2.jpg", 1);
    paint(f, "train/b/10.JPEG", 2);
    paint(f, "train/a/x.jpeg", 3);
    paint(f, "train/B/x.JPG", 4); /* in the order of bytes, capitals come first */
    paint(f, "test/b/1.jpg", 5);
    open_folder(f);
    check_counts(f, 4, 1, 3);
    assert_string_equal(car_dataset_class_name(f->dataset, 0), "B");
    assert_string_equal(car_dataset_class_name(f->dataset, 1), "a");
    assert_string_equal(car_dataset_class_name(f->dataset, 2), "b");
    check_image(f, CAR_SPLIT_TRAIN, 0, 4, 0);
    check_image(f, CAR_SPLIT_TRAIN, 1, 3, 1);
    check_image(f, CAR_SPLIT_TRAIN, 2, 2, 2);
    check_image(f, CAR_SPLIT_TRAIN, 3, 1, 2);
    check_image(f, CAR_SPLIT_EVALUATION, 0, 5, 2);
    car_data_rig_close(f);
    paint(f, "val/a/1.jpg", 6);
    paint(f, "val/a/2.jpg", 7);
    open_folder(f);
    check_counts(f, 4, 2, 3); /* val is taken, not test */
    check_image(f, CAR_SPLIT_EVALUATION, 1, 7, 1);
}

static void every_tenth_is_held_out_where_there_is_one_split(void **state) {
    car_data_rig *f = *state;
    for (int layout = 0; layout < 2; layout++) {
        char name[64];
        for (int i = 0; i < 25; i++) {
            snprintf(name, sizeof name, "%s%s/%02d.jpg", layout ? "train/" : "", i < 13 ? "a" : "b", i);
            paint(f, name, i);
        }
        open_folder(f);
        check_counts(f, 23, 2, 2);
        check_image(f, CAR_SPLIT_TRAIN, 0, 0, 0);
        check_image(f, CAR_SPLIT_TRAIN, 8, 8, 0);
        check_image(f, CAR_SPLIT_TRAIN, 9, 10, 0);
        check_image(f, CAR_SPLIT_TRAIN, 17, 18, 1);
        check_image(f, CAR_SPLIT_TRAIN, 18, 20, 1);
        check_image(f, CAR_SPLIT_TRAIN, 22, 24, 1);
        check_image(f, CAR_SPLIT_EVALUATION, 0, 9, 0);
        check_image(f, CAR_SPLIT_EVALUATION, 1, 19, 1);
        car_data_rig_close(f);
    }
}

static void a_class_may_be_called_train(void **state) {
    car_data_rig *f = *state;
    paint(f, "train/1.jpg", 1);
    paint(f, "bus/1.jpg", 2);
    open_folder(f);
    check_counts(f, 2, 0, 2);
    assert_string_equal(car_dataset_class_name(f->dataset, 1), "train");
}

static void only_visible_jpeg_files_count_and_links_do(void **state) {
    car_data_rig *f = *state;
    paint(f, "a/1.jpg", 1);
    paint(f, "a/.2.jpg", 2);
    paint(f, ".b/1.jpg", 3);
    paint(f, "a/deeper.jpg/4.jpg", 4); /* a folder with an image's name */
    car_scratch_put(&f->scratch, "a/notes.txt", "x", 1);
    car_scratch_put(&f->scratch, "README.jpg", "x", 1);
    paint(f, ".else/c/5.jpg", 5);
    assert_int_equal(symlink(".else/c", car_scratch_in(&f->scratch, "c").text), 0);
    assert_int_equal(symlink("nowhere", car_scratch_in(&f->scratch, "a/broken.jpg").text), 0);
    assert_int_equal(symlink("../.else/c/5.jpg", car_scratch_in(&f->scratch, "a/link.jpg").text), 0);
    open_folder(f);
    check_counts(f, 5, 0, 2);
    check_image(f, CAR_SPLIT_TRAIN, 0, 1, 0);
    check_image(f, CAR_SPLIT_TRAIN, 2, 5, 0);
    check_image(f, CAR_SPLIT_TRAIN, 3, 4, 0);
    check_image(f, CAR_SPLIT_TRAIN, 4, 5, 1);
    car_image image;
    assert_int_equal(car_reader_image(f->reader, CAR_SPLIT_TRAIN, 1, &image), CAR_OK);
    assert_null(image.pixels); /* a link to nothing is not passed over, but unreadable */
}

/* ---- depth, and what is not used -------------------------------------------------------------- */

/* os.walk's folders, sorted as whole paths; then the names in each. */
static void files_lie_at_any_depth_in_the_order_of_torchvision(void **state) {
    car_data_rig *f = *state;
    static const char *const order[] = {"a/2.jpg",     "a/z.jpg",       "a/b/1.jpg", "a/b-c/1.jpg",
                                        "a/b/c/1.jpg", "a/b/c/d/0.jpg", "a/bb/1.jpg"};
    enum { FILES = sizeof order / sizeof order[0] };
    for (int i = FILES - 1; i >= 0; i--) {
        char name[64];
        snprintf(name, sizeof name, "train/%s", order[i]);
        paint(f, name, i + 1);
    }
    paint(f, "train/b/1.jpg", 20);
    paint(f, "val/b/deep/er/1.jpg", 21);
    open_folder(f);
    check_counts(f, FILES + 1, 1, 2);
    for (int i = 0; i < FILES; i++) {
        check_image(f, CAR_SPLIT_TRAIN, i, i + 1, 0);
    }
    check_image(f, CAR_SPLIT_TRAIN, FILES, 20, 1);
    check_image(f, CAR_SPLIT_EVALUATION, 0, 21, 1);
}

static void check_unused(const car_data_rig *f, car_unused reason, int64_t count, const char *first) {
    car_dataset_unused unused;
    car_dataset_get_unused(f->dataset, &unused);
    assert_int_equal(unused.count[reason], count);
    assert_string_equal(unused.first[reason], first);
}

static void what_is_not_used_is_counted_by_reason(void **state) {
    car_data_rig *f = *state;
    paint(f, "train/a/x/1.jpg", 1);
    paint(f, "train/b/1.jpg", 2);
    paint(f, "val/a/1.jpg", 3);
    paint(f, "test/a/1.jpg", 4);
    car_scratch_put(&f->scratch, "train/a/x/y.GIF", "x", 1);
    car_scratch_put(&f->scratch, "train/a/c.bmp", "x", 1);
    car_scratch_put(&f->scratch, "val/a/c.tiff", "x", 1);
    car_scratch_put(&f->scratch, "train/b/notes.txt", "x", 1);
    car_scratch_put(&f->scratch, "train/b/noending", "x", 1);
    paint(f, "train/b/.1.jpg", 5);
    paint(f, ".git/a/1.jpg", 5);
    car_scratch_put(&f->scratch, "train/loose.jpg", "x", 1);
    car_scratch_put(&f->scratch, "LICENSE", "x", 1);
    assert_int_equal(mkfifo(car_scratch_in(&f->scratch, "train/a/pipe.jpg").text, 0600), 0);
    assert_int_equal(symlink("../..", car_scratch_in(&f->scratch, "train/a/x/up").text), 0);
    assert_int_equal(symlink(".", car_scratch_in(&f->scratch, "train/b/self").text), 0);
    open_folder(f);
    check_counts(f, 2, 1, 2);
    check_unused(f, CAR_UNUSED_FORMAT, 3, "train/a/c.bmp");
    check_unused(f, CAR_UNUSED_OTHER, 2, "train/b/noending");
    check_unused(f, CAR_UNUSED_HIDDEN, 2, ".git");
    check_unused(f, CAR_UNUSED_OUTSIDE, 2, "LICENSE");
    check_unused(f, CAR_UNUSED_BESIDE, 1, "test");
    check_unused(f, CAR_UNUSED_EMPTY, 1, "val/b");
    check_unused(f, CAR_UNUSED_SPECIAL, 1, "train/a/pipe.jpg");
    check_unused(f, CAR_UNUSED_LOOP, 2, "train/a/x/up");
}

static void nothing_unused_is_nothing_counted(void **state) {
    car_data_rig *f = *state;
    paint(f, "a/1.jpg", 1);
    open_folder(f);
    for (int r = 0; r < CAR_UNUSED_REASONS; r++) {
        check_unused(f, (car_unused)r, 0, "");
    }
}

static void wrong_folders_are_refused(void **state) {
    car_data_rig *f = *state;
    must_fail(f, CAR_ERROR_FORMAT, "there are no folders in it");
    paint(f, "train/a/1.jpg", 1);
    paint(f, "val/a/1.jpg", 1);
    paint(f, "val/zebra/1.jpg", 1);
    must_fail(f, CAR_ERROR_FORMAT, "there is a class val/zebra, but no class zebra to train on");
    paint(f, "train/zebra/1.gif", 1);
    must_fail(f, CAR_ERROR_FORMAT, "class 'train/zebra' has no .jpg, .jpeg, .png or .webp file");
    must_fail(f, CAR_ERROR_FORMAT, "it has 1 images of other types: convert them to JPEG, PNG or WebP");
    char *end = f->name + strlen(f->name);
    snprintf(end, 16, "/none");
    must_fail(f, CAR_ERROR_IO, "/none: No such file");
    snprintf(end, 32, "/train/a/1.jpg");
    must_fail(f, CAR_ERROR_IO, "Not a directory");
}

/* ---- samples that cannot be read -------------------------------------------------------------- */

static void make_broken_folder(const car_data_rig *f) {
    paint(f, "train/a/0.jpg", 10);
    car_scratch_put(&f->scratch, "train/a/1.jpg", "none", 4);
    car_scratch_put(&f->scratch, "train/a/2.jpg", "", 0);
    car_jpegs_config config = {.width = 64, .height = 64, .tint = {100, 100, 50}, .slope = 1};
    car_jpegs_file file = car_jpegs_encode(&config);
    car_scratch_put(&f->scratch, "train/b/3.jpg", file.data, file.bytes * 9 / 10);
    free(file.data);
    car_scratch_put(&f->scratch, "train/b/4.jpg", "none", 4);
    car_scratch_put(&f->scratch, "val/b/0.jpg", "none", 4);
    paint(f, "val/b/1.jpg", 30);
}

static void unreadable_samples_are_replaced_or_left_out(void **state) {
    car_data_rig *f = *state;
    static const int source[] = {0, 3, 3, 3, 0}; /* the last one's next is the first */
    float samples[5][ELEMENTS], evaluated[ELEMENTS];
    int32_t labels[5], label;
    car_dataset_problems problems;
    make_broken_folder(f);
    open_folder(f);
    for (int round = 0; round < 2; round++) {
        for (int s = 0; s < 5; s++) {
            assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_TRAIN, round, s, samples[s], &labels[s]), CAR_OK);
        }
        for (int s = 0; s < 5; s++) {
            assert_int_equal(labels[s], source[s] == 3);
            assert_memory_equal(samples[s], samples[source[s]], sizeof samples[s]);
        }
        assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_EVALUATION, 0, 1, evaluated, &label), CAR_OK);
        assert_int_equal(label, 1);
        assert_true(evaluated[0] != 0);
        assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_EVALUATION, 0, 0, evaluated, &label), CAR_OK);
        assert_int_equal(label, -1);
        for (int i = 0; i < ELEMENTS; i++) {
            assert_true(evaluated[i] == 0);
        }
    }
    car_dataset_get_problems(f->dataset, &problems);
    assert_int_equal(problems.unreadable, 4);
    assert_int_equal(problems.damaged, 1);
    assert_int_equal(problems.name_count, 5);
    assert_int_equal(strncmp(problems.names[0], "train/a/1.jpg: Not a JPEG file", 30), 0);
    assert_string_equal(problems.names[2], "train/b/3.jpg: Premature end of JPEG file");
    car_image image = {.label = 3};
    assert_int_equal(car_reader_image(f->reader, CAR_SPLIT_TRAIN, 1, &image), CAR_OK);
    assert_null(image.pixels);
    assert_int_equal(image.label, -1);
    assert_int_equal(image.width, 0);
}

static void files_that_vanish_are_unreadable(void **state) {
    car_data_rig *f = *state;
    static float sample[ELEMENTS];
    int32_t label;
    car_dataset_problems problems;
    paint(f, "a/0.jpg", 1);
    paint(f, "b/1.jpg", 2);
    open_folder(f);
    assert_int_equal(unlink(car_scratch_in(&f->scratch, "a/0.jpg").text), 0);
    assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_TRAIN, 0, 0, sample, &label), CAR_OK);
    assert_int_equal(label, 1);
    car_dataset_get_problems(f->dataset, &problems);
    assert_int_equal(problems.unreadable, 1);
    assert_string_equal(problems.names[0], "a/0.jpg: No such file or directory");
    assert_int_equal(unlink(car_scratch_in(&f->scratch, "b/1.jpg").text), 0);
    assert_int_equal(car_reader_sample(f->reader, CAR_SPLIT_TRAIN, 0, 0, sample, &label), CAR_ERROR_FORMAT);
    assert_non_null(strstr(car_context_error(f->context), "b/1.jpg: No such file"));
}

static void long_names_fit(void **state) {
    car_data_rig *f = *state;
    char name[520] = "a/";
    car_dataset_problems problems;
    car_image image;
    memset(name + 2, 'n', 240);
    strcpy(name + 242, ".jpg");
    car_scratch_put(&f->scratch, name, "none", 4);
    open_folder(f);
    assert_int_equal(car_reader_image(f->reader, CAR_SPLIT_TRAIN, 0, &image), CAR_OK);
    car_dataset_get_problems(f->dataset, &problems);
    assert_int_equal(strncmp(problems.names[0], "...nnnn", 7), 0);
    assert_non_null(strstr(problems.names[0], "nnn.jpg: Not a JPEG file"));
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void digests_do_not_depend_on_the_place(void **state) {
    car_data_rig *f = *state;
    char digests[4][65], name[300];
    static const char *const places[] = {"here", "there", "there", "there"};
    snprintf(name, sizeof name, "%s", f->name);
    for (int i = 0; i < 4; i++) {
        char file[64];
        snprintf(file, sizeof file, "%s/train/a/1.jpg", places[i]);
        car_scratch_put(&f->scratch, file, "12345", i == 2 ? 4 : 5);
        snprintf(file, sizeof file, "%s/train/a/%s.jpg", places[i], i == 3 ? "3" : "2");
        car_scratch_put(&f->scratch, file, "x", 1);
        snprintf(f->name, sizeof f->name, "%.256s/%s", name, places[i]);
        open_folder(f);
        assert_int_equal(car_dataset_digest(f->dataset, digests[i]), CAR_OK);
        car_data_rig_close(f);
    }
    assert_string_equal(digests[0], digests[1]);
    assert_string_not_equal(digests[0], digests[2]);
    assert_string_not_equal(digests[0], digests[3]);
    assert_string_not_equal(digests[2], digests[3]);
}

static void memory_that_runs_out_leaves_nothing_behind(void **state) {
    car_data_rig *f = *state;
    float sample[ELEMENTS];
    make_broken_folder(f);
    car_data_rig_exhaust(f, &images, sample);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(train_and_val_are_the_splits, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(every_tenth_is_held_out_where_there_is_one_split, set_up,
                                        car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(a_class_may_be_called_train, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(only_visible_jpeg_files_count_and_links_do, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(files_lie_at_any_depth_in_the_order_of_torchvision, set_up,
                                        car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(what_is_not_used_is_counted_by_reason, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(nothing_unused_is_nothing_counted, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(wrong_folders_are_refused, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(unreadable_samples_are_replaced_or_left_out, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(files_that_vanish_are_unreadable, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(long_names_fit, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(digests_do_not_depend_on_the_place, set_up, car_data_rig_tear_down),
        cmocka_unit_test_setup_teardown(memory_that_runs_out_leaves_nothing_behind, set_up, car_data_rig_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
