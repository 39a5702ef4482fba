/* Packed images: files made by hand, every way in which one can lie, and packing, which several threads do. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "data/packed.h"
#include "support/expect.h"
#include "support/scratch.h"

enum { SIDE = 32, RECORD = 1 + 3 * SIDE * SIDE, TRAIN = 150, EVALUATION = 7, BROKEN = 77, EPOCHS = 3 };

/* ---- files made by hand ---------------------------------------------------------------------- */

typedef struct image_spec {
    uint32_t width, height;
    int32_t label;
} image_spec;

/* Three classes; image n is a plain colour, n everywhere. The second one could not be read. */
static const image_spec differing[] = {{5, 3, 0}, {0, 0, -1}, {2, 8, 2}, {4, 4, 1}};
static const image_spec same[] = {{5, 3, 2}, {5, 3, 0}, {5, 3, 1}, {5, 3, 1}};
enum { IMAGES = 4, TRAIN_IMAGES = 3, MOST_BYTES = 4096 };

typedef struct hand_made {
    unsigned char bytes[MOST_BYTES];
    size_t size, tables;
} hand_made;

static void seal(hand_made *file) {
    char checksum[CAR_SHA256_TEXT];
    car_packed_checksum(file->bytes, file->bytes + file->tables, file->size - file->tables, checksum);
    memcpy(file->bytes + CAR_PACKED_CHECKSUM, checksum, 64);
}

static hand_made make_file(const image_spec *images, bool indexed) {
    static const char names[] = "cat\0\0dog"; /* the second class has no name */
    hand_made file = {.size = CAR_PACKED_HEADER};
    uint64_t offsets[IMAGES];
    for (int i = 0; i < IMAGES; i++) {
        size_t bytes = (size_t)3 * images[i].width * images[i].height;
        offsets[i] = bytes > 0 ? file.size : 0;
        memset(file.bytes + file.size, i, bytes);
        file.size += bytes;
    }
    file.tables = file.size;
    for (int i = 0; indexed && i < IMAGES; i++, file.size += CAR_PACKED_ENTRY) {
        car_bytes_put_u64(file.bytes + file.size, offsets[i]);
        car_bytes_put_u32(file.bytes + file.size + 8, images[i].width);
        car_bytes_put_u32(file.bytes + file.size + 12, images[i].height);
    }
    for (int i = 0; i < IMAGES; i++, file.size += CAR_PACKED_LABEL) {
        car_bytes_put_u32(file.bytes + file.size, (uint32_t)images[i].label);
    }
    memcpy(file.bytes + file.size, names, sizeof names);
    file.size += sizeof names;
    car_packed_header header = {.samples = {TRAIN_IMAGES, IMAGES - TRAIN_IMAGES},
                                .classes = 3,
                                .width = indexed ? 0 : images[0].width,
                                .height = indexed ? 0 : images[0].height,
                                .tables = file.tables,
                                .names_bytes = sizeof names};
    car_packed_put_header(&header, file.bytes);
    seal(&file);
    return file;
}

static car_status open_data(const car_scratch *folder, const char *kind, const char *name,
                            const car_dataset_config *config, car_dataset **out) {
    char text[700];
    snprintf(text, sizeof text, "%s:%s", kind, car_scratch_in(folder, "%s", name).text);
    return car_dataset_open(folder->context, text, config, out);
}

static void check_images(car_dataset *dataset, const image_spec *images) {
    car_reader *reader = NULL;
    assert_int_equal(car_reader_create(dataset, &reader), CAR_OK);
    for (int i = 0; i < IMAGES; i++) {
        car_image image;
        car_split split = i < TRAIN_IMAGES ? CAR_SPLIT_TRAIN : CAR_SPLIT_EVALUATION;
        assert_int_equal(car_reader_image(reader, split, i < TRAIN_IMAGES ? i : i - TRAIN_IMAGES, &image), CAR_OK);
        assert_int_equal(image.width, images[i].width);
        assert_int_equal(image.height, images[i].height);
        assert_int_equal(image.label, images[i].label);
        assert_true((image.pixels == NULL) == (image.width == 0));
        for (int p = 0; p < 3 * image.width * image.height; p++) {
            assert_int_equal(image.pixels[p], i);
        }
    }
    car_reader_destroy(reader);
}

static void test_reads(void **state) {
    const car_scratch *folder = *state;
    for (int indexed = 0; indexed < 2; indexed++) {
        hand_made file = make_file(indexed ? differing : same, indexed);
        car_dataset *dataset = NULL;
        car_dataset_problems problems;
        car_scratch_put(folder, "file", file.bytes, file.size);
        assert_int_equal(open_data(folder, "packed", "file", NULL, &dataset), CAR_OK);
        car_dataset_info info = car_dataset_get_info(dataset);
        assert_int_equal(info.domain, CAR_DOMAIN_IMAGES);
        assert_int_equal(info.samples[CAR_SPLIT_TRAIN], TRAIN_IMAGES);
        assert_int_equal(info.samples[CAR_SPLIT_EVALUATION], IMAGES - TRAIN_IMAGES);
        assert_int_equal(info.classes, 3);
        assert_int_equal(info.width, indexed ? 0 : 5);
        assert_int_equal(info.height, indexed ? 0 : 3);
        assert_string_equal(car_dataset_class_name(dataset, 0), "cat");
        assert_null(car_dataset_class_name(dataset, 1));
        assert_string_equal(car_dataset_class_name(dataset, 2), "dog");
        check_images(dataset, indexed ? differing : same);
        car_dataset_get_problems(dataset, &problems);
        assert_int_equal(problems.unreadable, indexed);
        assert_true(!indexed || strstr(problems.names[0], "training image 1") != NULL);
        car_dataset_close(dataset);
    }
}

/* ---- lies ------------------------------------------------------------------------------------ */

static void expect_refused(const car_scratch *folder, const hand_made *file, size_t size, const char *message) {
    car_dataset *dataset = (car_dataset *)folder;
    car_scratch_put(folder, "file", file->bytes, size);
    car_expect_failure(folder->context, open_data(folder, "packed", "file", NULL, &dataset), CAR_ERROR_FORMAT, message);
    assert_null(dataset);
}

/* The checksum alone refuses any change outside the pixels, and the length any cut. */
static void test_damage(void **state) {
    const car_scratch *folder = *state;
    for (int indexed = 0; indexed < 2; indexed++) {
        hand_made file = make_file(indexed ? differing : same, indexed);
        for (size_t size = 0; size < file.size; size++) {
            expect_refused(folder, &file, size, "file: ");
        }
        file.size++;
        expect_refused(folder, &file, file.size, "its length differs from what its header says");
        file.size--;
        for (size_t i = 16; i < file.size; i++) {
            if (i >= CAR_PACKED_HEADER && i < file.tables) {
                continue;
            }
            file.bytes[i] ^= 0x10;
            expect_refused(folder, &file, file.size, "damaged");
            file.bytes[i] ^= 0x10;
        }
    }
}

typedef struct lie {
    size_t at;    /* in the header; or in the tables, counted from their beginning */
    int bytes;    /* 4 or 8 */
    bool indexed; /* told by the file with an index */
    bool tables;
    uint64_t value;
    const char *message;
} lie;

/* Each with a checksum that fits. */
static void test_lies(void **state) {
    const car_scratch *folder = *state;
    static const char inside[] = "an image is outside the file, or has a class";
    const lie lies[] = {
        {16, 8, false, false, UINT64_MAX, "length differs from"},
        {16, 8, false, false, 0, "length differs from"},
        {16, 8, false, false, 0x4000000000000003, "length differs from"}, /* times 4 it is 12 again */
        {24, 8, false, false, 0x4000000000000001, "length differs from"},
        {32, 4, false, false, 0, "no classes"},
        {32, 4, false, false, (1 << 24) + 1, "more classes than a model can have"},
        {32, 4, false, false, 0x80000000, "more classes than a model can have"},
        {32, 4, false, false, 2, inside},
        {32, 4, false, false, 4, "not every class has a name"},
        {32, 4, false, false, 1 << 24, "not every class has a name"},
        {36, 4, false, false, 6, "images are not where"},
        {36, 4, false, false, 0, "images are not where"},
        {36, 4, false, false, 0xffffffff, "images are not where"},
        {36, 4, true, false, 3, "length differs from"},
        {48, 8, false, false, 127, "tables are outside"},
        {48, 8, false, false, UINT64_MAX, "tables are outside"},
        {48, 8, false, false, 128, "length differs from"},
        {56, 8, false, false, UINT64_MAX - 100, "tables are outside"},
        {56, 8, false, false, 0, "length differs from"},
        {0, 8, true, true, 127, inside},             /* in the header */
        {0, 8, true, true, UINT64_MAX - 10, inside}, /* its end wraps around */
        {0, 8, true, true, 241, inside},             /* reaches into the tables */
        {8, 4, true, true, 0, inside},
        {8, 4, true, true, 65536, inside},
        {16, 8, true, true, 128, inside}, /* the one that could not be read */
        {64, 4, true, true, 3, inside},
        {64, 4, true, true, 0xffffffff, inside},
        {64, 4, true, true, 0xfffffffe, inside},
        {68, 4, true, true, 0, inside},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        hand_made file = make_file(lies[i].indexed ? differing : same, lies[i].indexed);
        unsigned char *at = file.bytes + lies[i].at + (lies[i].tables ? file.tables : 0);
        if (lies[i].bytes == 8) {
            car_bytes_put_u64(at, lies[i].value);
        } else {
            car_bytes_put_u32(at, (uint32_t)lies[i].value);
        }
        seal(&file);
        expect_refused(folder, &file, file.size, lies[i].message);
    }
    hand_made file = make_file(same, false);
    file.bytes[file.size - 1] = 'x'; /* no zero at the end of the last name */
    seal(&file);
    expect_refused(folder, &file, file.size, "not every class has a name");
    file = make_file(same, false);
    file.bytes[file.size - 2] = 0; /* a name too many */
    seal(&file);
    expect_refused(folder, &file, file.size, "not every class has a name");
}

static void test_other_files(void **state) {
    const car_scratch *folder = *state;
    hand_made file = make_file(same, false);
    car_dataset *dataset = NULL;
    file.bytes[0] = 'x';
    expect_refused(folder, &file, file.size, "not a file of packed images");
    file = make_file(same, false);
    file.bytes[8] = 2;
    seal(&file);
    car_scratch_put(folder, "file", file.bytes, file.size);
    car_expect_failure(folder->context, open_data(folder, "packed", "file", NULL, &dataset), CAR_ERROR_UNSUPPORTED,
                       "version 2");
    car_expect_failure(folder->context, open_data(folder, "packed", "absent", NULL, &dataset), CAR_ERROR_IO, "absent");
}

/* A file that is cut, or overwritten, behind our back. */
static void test_changes(void **state) {
    const car_scratch *folder = *state;
    hand_made file = make_file(differing, true);
    car_dataset *dataset = NULL;
    car_reader *reader = NULL;
    car_image image;
    car_scratch_put(folder, "file", file.bytes, file.size);
    assert_int_equal(open_data(folder, "packed", "file", NULL, &dataset), CAR_OK);
    assert_int_equal(car_reader_create(dataset, &reader), CAR_OK);
    car_bytes_put_u64(file.bytes + file.tables, 1 << 30);
    car_scratch_put(folder, "file", file.bytes, file.size);
    car_expect_failure(folder->context, car_reader_image(reader, CAR_SPLIT_TRAIN, 0, &image), CAR_ERROR_IO,
                       "was overwritten");
    assert_int_equal(car_reader_image(reader, CAR_SPLIT_TRAIN, 2, &image), CAR_OK);
    assert_int_equal(truncate(car_scratch_in(folder, "file").text, 100), 0);
    car_expect_failure(folder->context, car_reader_image(reader, CAR_SPLIT_TRAIN, 2, &image), CAR_ERROR_IO,
                       "became shorter");
    car_reader_destroy(reader);
    car_dataset_close(dataset);
}

/* ---- packing --------------------------------------------------------------------------------- */

/* CIFAR's files with a few records of noise, one of them of a class that there is not. */
static void write_cifar(const car_scratch *folder) {
    static unsigned char bytes[TRAIN * RECORD];
    for (int n = 0; n < TRAIN; n++) {
        for (int i = 0; i < RECORD; i++) {
            bytes[n * RECORD + i] = (unsigned char)car_random_u64(1, (uint64_t)(n * RECORD + i));
        }
        bytes[n * RECORD] = (unsigned char)(n == BROKEN ? 200 : n % 10);
    }
    car_scratch_put(folder, "data_batch_1.bin", bytes, sizeof bytes);
    car_scratch_put(folder, "test_batch.bin", bytes + 5 * RECORD, EVALUATION * RECORD);
    car_scratch_put(folder, "batches.meta.txt", "airplane\nautomobile\nbird\n", 25);
}

static void count_progress(void *user, int64_t done, int64_t all) {
    int64_t *last = user;
    assert_in_range(done, *last + 1, all);
    *last = done;
}

/* Packed and as they are, samples are the same to the bit, augmented too, and so is what takes the broken one's place. */
static void test_trains_as_its_source(void **state) {
    const car_scratch *folder = *state;
    enum { FLOATS = 3 * SIDE * SIDE };
    static float inputs[2][FLOATS];
    car_dataset_config config = {.domain = CAR_DOMAIN_IMAGES,
                                 .model = {.batch = 1, .channels = 3, .image_size = SIDE, .classes = 10},
                                 .seed = 5,
                                 .augment = true};
    car_dataset *datasets[2] = {NULL, NULL};
    car_reader *readers[2] = {NULL, NULL};
    int64_t progress = 0;
    write_cifar(folder);
    assert_int_equal(open_data(folder, "cifar10", "", &config, &datasets[0]), CAR_OK);
    assert_int_equal(car_dataset_pack(datasets[0], 0, car_scratch_in(folder, "p").text, count_progress, &progress),
                     CAR_OK);
    assert_int_equal(progress, TRAIN + EVALUATION);
    assert_int_equal(open_data(folder, "packed", "p", &config, &datasets[1]), CAR_OK);
    for (int d = 0; d < 2; d++) {
        assert_int_equal(car_reader_create(datasets[d], &readers[d]), CAR_OK);
    }
    for (int n = 0; n < EPOCHS * TRAIN + EVALUATION; n++) {
        bool train = n < EPOCHS * TRAIN;
        int32_t labels[2] = {-7, -7};
        for (int d = 0; d < 2; d++) {
            assert_int_equal(car_reader_sample(readers[d], train ? CAR_SPLIT_TRAIN : CAR_SPLIT_EVALUATION, n / TRAIN,
                                               train ? n % TRAIN : n - EPOCHS * TRAIN, inputs[d], &labels[d]),
                             CAR_OK);
        }
        assert_memory_equal(inputs[0], inputs[1], sizeof inputs[0]);
        assert_int_equal(labels[0], labels[1]);
        assert_in_range(labels[0], 0, 9);
    }
    assert_string_equal(car_dataset_class_name(datasets[1], 2), "bird");
    assert_null(car_dataset_class_name(datasets[1], 3));
    for (int d = 0; d < 2; d++) {
        car_reader_destroy(readers[d]);
        car_dataset_close(datasets[d]);
    }
}

static void check_resized(const car_scratch *folder, const image_spec *images, int size, const image_spec *wanted) {
    hand_made file = make_file(images, true);
    car_dataset *dataset = NULL;
    car_scratch_put(folder, "file", file.bytes, file.size);
    assert_int_equal(open_data(folder, "packed", "file", NULL, &dataset), CAR_OK);
    assert_int_equal(car_dataset_pack(dataset, size, car_scratch_in(folder, "p").text, NULL, NULL), CAR_OK);
    car_dataset_close(dataset);
    assert_int_equal(open_data(folder, "packed", "p", NULL, &dataset), CAR_OK);
    check_images(dataset, wanted);
    car_dataset_close(dataset);
}

/* Resized, each keeps its shape, its colour (here it is plain) and its class; the broken one stays what it is. */
static void test_resizes(void **state) {
    const car_scratch *folder = *state;
    const image_spec resized[] = {{10, 6, 0}, {0, 0, -1}, {6, 24, 2}, {6, 6, 1}};
    const image_spec sound[] = {{2, 2, 0}, {4, 4, 1}, {4, 6, 2}, {2, 2, 1}};
    const image_spec sound_resized[] = {{3, 3, 0}, {3, 3, 1}, {3, 4, 2}, {3, 3, 1}};
    check_resized(folder, differing, 6, resized);
    check_resized(folder, sound, 3, sound_resized);

    car_dataset *dataset = NULL;
    hand_made file = make_file(same, false); /* nothing to do: the very same file */
    car_scratch_put(folder, "file", file.bytes, file.size);
    assert_int_equal(open_data(folder, "packed", "file", NULL, &dataset), CAR_OK);
    assert_int_equal(car_dataset_pack(dataset, 0, car_scratch_in(folder, "p").text, NULL, NULL), CAR_OK);
    car_dataset_close(dataset);
    size_t size = 0;
    unsigned char *bytes = car_scratch_read(car_scratch_in(folder, "p").text, &size);
    assert_int_equal(size, file.size);
    assert_memory_equal(bytes, file.bytes, size);
    free(bytes);
}

/* What goes wrong while packing leaves nothing behind, and what had the name before stays. */
static void test_fails_to_pack(void **state) {
    const car_scratch *folder = *state;
    hand_made file = make_file(differing, true);
    car_dataset *dataset = NULL, *tokens = NULL;
    struct rlimit before, limit;
    car_scratch_put(folder, "file", file.bytes, file.size);
    car_scratch_put(folder, "text", "some text", 9);
    car_scratch_put(folder, "p", "before", 6);
    assert_int_equal(open_data(folder, "packed", "file", NULL, &dataset), CAR_OK);
    assert_int_equal(open_data(folder, "tokens", "text", NULL, &tokens), CAR_OK);
    car_expect_failure(folder->context, car_dataset_pack(dataset, 0, car_scratch_in(folder, "p").text, NULL, NULL),
                       CAR_ERROR_SHAPE, "training image 2 has 2 x 8 pixels, but others have 5 x 3");
    car_expect_failure(folder->context, car_dataset_pack(dataset, 6, car_scratch_in(folder, "no/p").text, NULL, NULL),
                       CAR_ERROR_IO, "no/p: cannot create a temporary file next to it: No such file");
    car_expect_failure(folder->context, car_dataset_pack(dataset, 70000, car_scratch_in(folder, "p").text, NULL, NULL),
                       CAR_ERROR_ARGUMENT, "cannot be 70000 pixels");
    car_expect_failure(folder->context, car_dataset_pack(tokens, 0, car_scratch_in(folder, "p").text, NULL, NULL),
                       CAR_ERROR_UNSUPPORTED, "only stored images can be packed");

    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 100000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    car_status status = car_dataset_pack(dataset, 200, car_scratch_in(folder, "p").text, NULL, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    car_expect_failure(folder->context, status, CAR_ERROR_IO, "p: cannot write: File too large");

    assert_int_equal(car_scratch_count(folder->directory, ""), 3);
    size_t size = 0;
    unsigned char *bytes = car_scratch_read(car_scratch_in(folder, "p").text, &size);
    assert_int_equal(size, 6);
    free(bytes);
    car_dataset_close(tokens);
    car_dataset_close(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_damage, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_lies, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_other_files, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_changes, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_trains_as_its_source, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_resizes, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_fails_to_pack, car_scratch_set_up, car_scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
