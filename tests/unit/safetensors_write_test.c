/* The safetensors writer, and what reads without the mapping: copies, and half precision as floats. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sha256.h"
#include "support/expect.h"
#include "support/raw_tensors.h"
#include "support/scratch.h"

static car_scratch_path path_of(const car_scratch *f) {
    return car_scratch_in(f, "file.safetensors");
}

static const int64_t two_by_three[] = {2, 3}, none[] = {4, 0}, four[] = {4};
static const car_safetensors_entry entries[] = {{"b", 2, two_by_three, false, false},
                                                {"\xc3\xa9 \"quoted\" \\ \n", 0, NULL, false, false},
                                                {"none", 2, none, false, false},
                                                {"a", 1, four, false, false}};
enum { COUNT = sizeof entries / sizeof *entries };
static const float values[COUNT][6] = {{1, 2, 3, -4, 5e-42F, 6}, {7}, {0}, {8, 9, 10, INFINITY}};

/* ---- writing --------------------------------------------------------------------------------- */

static void test_written_file(void **state) {
    car_scratch *f = *state;
    static const char *const metadata[] = {"format", "pt", "note", "a \"b\"", NULL};
    car_safetensors_writer *writer = NULL;
    car_safetensors *file = NULL;
    char digest[CAR_SHA256_TEXT], wanted[CAR_SHA256_TEXT];
    assert_int_equal(car_safetensors_writer_create(f->context, path_of(f).text, entries, COUNT, metadata, &writer),
                     CAR_OK);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(access(path_of(f).text, F_OK), -1); /* not before it is whole */
        assert_int_equal(car_safetensors_writer_add(writer, values[i]), CAR_OK);
    }
    assert_int_equal(car_safetensors_writer_finish(writer, digest), CAR_OK);
    size_t bytes = 0;
    char *data = car_scratch_read(path_of(f).text, &bytes);
    assert_int_equal(car_safetensors_writer_bytes(writer), bytes);
    car_safetensors_writer_destroy(writer);
    assert_int_equal(car_scratch_count(f->directory, ""), 1);
    car_sha256 sha = car_sha256_begin();
    car_sha256_add(&sha, data, bytes);
    car_sha256_end(&sha, wanted);
    assert_string_equal(digest, wanted);
    assert_int_equal((bytes - 11 * sizeof(float)) % 8, 0); /* data begin at a multiple of 8 */
    free(data);

    assert_int_equal(car_safetensors_open(f->context, path_of(f).text, &file), CAR_OK);
    assert_int_equal(car_safetensors_count(file), COUNT);
    assert_string_equal(car_safetensors_metadata(file, "format"), "pt");
    assert_string_equal(car_safetensors_metadata(file, "note"), "a \"b\"");
    for (int i = 0; i < COUNT; i++) {
        const car_safetensors_tensor *tensor = car_safetensors_find(file, entries[i].name);
        float found[6] = {0};
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, CAR_SAFETENSORS_F32);
        assert_int_equal(tensor->rank, entries[i].rank);
        assert_int_equal(car_safetensors_copy(file, tensor, found), CAR_OK);
        assert_memory_equal(found, values[i], tensor->bytes);
        assert_memory_equal(tensor->data, values[i], tensor->bytes);
    }
    car_safetensors_close(file);
}

static void test_empty_file(void **state) {
    car_scratch *f = *state;
    car_safetensors_writer *writer = NULL;
    car_safetensors *file = NULL;
    assert_int_equal(car_safetensors_writer_create(f->context, path_of(f).text, NULL, 0, NULL, &writer), CAR_OK);
    assert_int_equal(car_safetensors_writer_finish(writer, NULL), CAR_OK);
    car_safetensors_writer_destroy(writer);
    assert_int_equal(car_safetensors_open(f->context, path_of(f).text, &file), CAR_OK);
    assert_int_equal(car_safetensors_count(file), 0);
    car_safetensors_close(file);
}

/* Left off in the middle: the old file is as it was, and nothing else is there. */
static void test_unfinished(void **state) {
    car_scratch *f = *state;
    car_safetensors_writer *writer = NULL;
    size_t bytes = 0;
    car_scratch_write(path_of(f).text, "old", 3);
    assert_int_equal(car_safetensors_writer_create(f->context, path_of(f).text, entries, COUNT, NULL, &writer), CAR_OK);
    assert_int_equal(car_safetensors_writer_add(writer, values[0]), CAR_OK);
    car_expect_failure(f->context, car_safetensors_writer_finish(writer, NULL), CAR_ERROR_ARGUMENT,
                       "only 1 of 4 tensors");
    assert_int_equal(car_scratch_count(f->directory, ".file.safetensors."), 1);
    car_safetensors_writer_destroy(writer);
    assert_int_equal(car_scratch_count(f->directory, ""), 1);
    char *data = car_scratch_read(path_of(f).text, &bytes);
    assert_int_equal(bytes, 3);
    free(data);
    car_safetensors_writer_destroy(NULL);
}

static void test_wrong_use(void **state) {
    car_scratch *f = *state;
    const int64_t negative[] = {2, -1}, huge[] = {1LL << 40, 1LL << 40};
    const car_safetensors_entry wrong[][2] = {
        {{"a", 1, four, false, false}, {"a", 1, four, false, false}},
        {{"a", 1, four, false, false}, {"b", 9, four, false, false}},
        {{"a", 1, four, false, false}, {"b", 2, negative, false, false}},
        {{"a", 1, four, false, false}, {"__metadata__", 1, four, false, false}},
        {{"a", 1, four, false, false}, {"b", 2, huge, false, false}},
    };
    static const char *const messages[] = {"two tensors are called 'a'", "'b' has 9 dimensions",
                                           "dimension 1 of tensor 'b'", "not allowed as the name of a tensor",
                                           "too large"};
    car_safetensors_writer *writer = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        car_expect_failure(f->context,
                           car_safetensors_writer_create(f->context, path_of(f).text, wrong[i], 2, NULL, &writer),
                           CAR_ERROR_ARGUMENT, messages[i]);
        assert_null(writer);
    }
    assert_int_equal(car_safetensors_writer_create(f->context, path_of(f).text, entries, 1, NULL, &writer), CAR_OK);
    assert_int_equal(car_safetensors_writer_add(writer, values[0]), CAR_OK);
    car_expect_failure(f->context, car_safetensors_writer_add(writer, values[0]), CAR_ERROR_ARGUMENT, "all 1 tensors");
    car_safetensors_writer_destroy(writer);
    car_scratch_path nowhere = car_scratch_in(f, "not/there.safetensors");
    car_expect_failure(f->context, car_safetensors_writer_create(f->context, nowhere.text, entries, 1, NULL, &writer),
                       CAR_ERROR_IO, "No such file or directory");
    /* A directory gets the name meanwhile: seen at the end, and cleared up. If it has it before, at once. */
    assert_int_equal(car_safetensors_writer_create(f->context, path_of(f).text, NULL, 0, NULL, &writer), CAR_OK);
    assert_int_equal(mkdir(path_of(f).text, 0777), 0);
    car_expect_failure(f->context, car_safetensors_writer_finish(writer, NULL), CAR_ERROR_IO,
                       "rename the temporary file to this name");
    car_safetensors_writer_destroy(writer);
    car_expect_failure(f->context, car_safetensors_writer_create(f->context, path_of(f).text, NULL, 0, NULL, &writer),
                       CAR_ERROR_IO, "not a regular file");
    assert_int_equal(car_scratch_count(f->directory, ""), 1);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Cut while it is open: an error, where touching the mapping would have been the end. */
static void test_shrinking_file(void **state) {
    car_scratch *f = *state;
    enum { LARGE = 100000 };
    const int64_t shape[] = {LARGE};
    float *data = calloc(LARGE, sizeof *data);
    car_raw_tensors raw = {0};
    car_safetensors *file = NULL;
    assert_non_null(data);
    car_raw_add(&raw, "x", "F32", 1, shape, data, LARGE * sizeof *data);
    car_raw_finish(&raw, path_of(f).text);
    assert_int_equal(car_safetensors_open(f->context, path_of(f).text, &file), CAR_OK);
    const car_safetensors_tensor *tensor = car_safetensors_at(file, 0);
    assert_int_equal(car_safetensors_copy(file, tensor, data), CAR_OK);
    assert_int_equal(truncate(path_of(f).text, LARGE), 0);
    car_expect_failure(f->context, car_safetensors_copy(file, tensor, data), CAR_ERROR_IO,
                       "became shorter while it was in use");
    car_safetensors_close(file);
    free(data);
}

/* What a half-precision number is by definition. */
static float define_half(uint16_t bits, int fraction_bits, int bias) {
    int exponent = (bits & 0x7fff) >> fraction_bits, top = (1 << (15 - fraction_bits)) - 1;
    double fraction = (double)(bits & ((1 << fraction_bits) - 1)) / (1 << fraction_bits);
    double size = exponent == top ? fraction == 0 ? INFINITY : NAN
                  : exponent == 0 ? ldexp(fraction, 1 - bias)
                                  : ldexp(1 + fraction, exponent - bias);
    return (float)(bits >> 15 ? -size : size);
}

static void check_halves(car_scratch *f, const char *dtype, int fraction_bits, int bias) {
    enum { PATTERNS = 1 << 16 };
    const int64_t shape[] = {PATTERNS};
    uint16_t *halves = malloc(PATTERNS * sizeof *halves);
    float *found = malloc(PATTERNS * sizeof *found);
    car_raw_tensors raw = {0};
    car_safetensors *file = NULL;
    assert_true(halves && found);
    for (int i = 0; i < PATTERNS; i++) {
        halves[i] = (uint16_t)i;
    }
    car_raw_add(&raw, "odd", "U8", 1, (const int64_t[]){1}, halves, 1); /* so that what follows is not aligned */
    car_raw_add(&raw, "x", dtype, 1, shape, halves, PATTERNS * sizeof *halves);
    car_raw_finish(&raw, path_of(f).text);
    assert_int_equal(car_safetensors_open(f->context, path_of(f).text, &file), CAR_OK);
    assert_int_equal(car_safetensors_copy_floats(file, car_safetensors_find(file, "x"), found), CAR_OK);
    for (int i = 0; i < PATTERNS; i++) {
        float wanted = define_half((uint16_t)i, fraction_bits, bias);
        bool same = isnan(wanted) ? isnan(found[i]) && (signbit(found[i]) != 0) == i >> 15
                                  : wanted == found[i] && (signbit(wanted) != 0) == (signbit(found[i]) != 0);
        if (!same) {
            fail_msg("%s %04x became %a instead of %a", dtype, (unsigned)i, (double)found[i], (double)wanted);
        }
    }
    car_expect_failure(f->context, car_safetensors_copy_floats(file, car_safetensors_find(file, "odd"), found),
                       CAR_ERROR_UNSUPPORTED, "'odd' has elements of type U8");
    car_safetensors_close(file);
    free(halves);
    free(found);
}

static void test_halves(void **state) {
    check_halves(*state, "F16", 10, 15);
    check_halves(*state, "BF16", 7, 127);
}

/* Rounded to the nearest, halves to even; beside a tensor that is not rounded. */
static void test_rounding(void **state) {
    car_scratch *f = *state;
    static const float exact[] = {1.0F, -0.0F, INFINITY, 0x1.02p0F},
                       given[] = {0x1.01p0F, 0x1.03p0F, -0x1.0101p0F, 0x1.00ffp0F, 0x1.fffp127F, NAN};
    static const float rounded[] = {1.0F, 0x1.04p0F, -0x1.02p0F, 1.0F, INFINITY, NAN};
    const car_safetensors_entry both[] = {{"x", 2, two_by_three, true, false}, {"y", 1, four, false, false}};
    car_safetensors_writer *writer = NULL;
    car_safetensors *file = NULL;
    float found[6];
    assert_int_equal(car_safetensors_writer_create(f->context, path_of(f).text, both, 2, NULL, &writer), CAR_OK);
    assert_int_equal(car_safetensors_writer_add(writer, given), CAR_OK);
    assert_int_equal(car_safetensors_writer_add(writer, exact), CAR_OK);
    assert_int_equal(car_safetensors_writer_finish(writer, NULL), CAR_OK);
    car_safetensors_writer_destroy(writer);
    assert_int_equal(car_safetensors_open(f->context, path_of(f).text, &file), CAR_OK);
    const car_safetensors_tensor *x = car_safetensors_find(file, "x"), *y = car_safetensors_find(file, "y");
    assert_true(x->dtype == CAR_SAFETENSORS_BF16 && x->bytes == 12 && y->dtype == CAR_SAFETENSORS_F32);
    assert_int_equal(car_safetensors_copy_floats(file, x, found), CAR_OK);
    assert_memory_equal(found, rounded, 5 * sizeof *found);
    assert_true(isnan(found[5]));
    assert_int_equal(car_safetensors_copy_floats(file, y, found), CAR_OK);
    assert_memory_equal(found, exact, sizeof exact);
    car_safetensors_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_written_file, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_empty_file, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_unfinished, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_wrong_use, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_shrinking_file, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_rounding, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_halves, car_scratch_set_up, car_scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
