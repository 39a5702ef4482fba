/* The safetensors reader: a sound file in every detail, and every kind of unsound one with its message. */
#include "carousel/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/scratch.h"

static car_scratch_path path_of(const car_scratch *f) {
    return car_scratch_in(f, "file.safetensors");
}

/* A file with this header and `data_bytes` bytes of data that count up. */
static void write_file(const car_scratch *f, const char *header, size_t header_bytes, size_t data_bytes) {
    size_t total = 8 + header_bytes + data_bytes;
    unsigned char *bytes = malloc(total);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)((uint64_t)header_bytes >> 8 * i);
    }
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) {
        bytes[8 + header_bytes + i] = (unsigned char)i;
    }
    car_scratch_write(path_of(f).text, bytes, total);
    free(bytes);
}

/* Opening must fail with this status and a message that says this; nothing may be left behind. */
static void expect_failure(car_scratch *f, const char *what, car_status expected, const char *message) {
    car_safetensors *file = (car_safetensors *)f; /* anything: it must be overwritten */
    car_status status = car_safetensors_open(f->context, path_of(f).text, &file);
    if (status != expected || strstr(car_context_error(f->context), message) == NULL) {
        fail_msg("%s: status '%s', message '%s', wanted '%s' with '%s'", what, car_status_text(status),
                 car_context_error(f->context), car_status_text(expected), message);
    }
    assert_null(file);
    car_context_clear_error(f->context);
}

/* ---- sound files ----------------------------------------------------------------------------- */

static void test_reads_everything(void **state) {
    car_scratch *f = *state;
    /* Out of order in the header, an empty tensor, a scalar, escapes in a name, metadata, padding at the end. */
    const char *header =
        "{\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
        "\"a\":{\"data_offsets\":[0,8],\"shape\":[],\"dtype\":\"I64\"},"
        "\"none\":{\"dtype\":\"U8\",\"shape\":[4,0],\"data_offsets\":[32,32]},"
        "\"\\u00e9 \\\\u0000\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,3],\"data_offsets\":[32,38]},"
        "\"__metadata__\":{\"format\":\"pt\",\"empty\":\"\"}}   ";
    car_safetensors *file = NULL;
    write_file(f, header, strlen(header), 38);
    assert_int_equal(car_safetensors_open(f->context, path_of(f).text, &file), CAR_OK);
    assert_int_equal(car_safetensors_count(file), 4);
    assert_string_equal(car_safetensors_at(file, 0)->name, "a");
    assert_string_equal(car_safetensors_at(file, 1)->name, "b");
    assert_null(car_safetensors_at(file, 4));
    assert_null(car_safetensors_at(file, -1));

    const car_safetensors_tensor *tensor = car_safetensors_find(file, "b");
    assert_ptr_equal(tensor, car_safetensors_at(file, 1));
    assert_int_equal(tensor->dtype, CAR_SAFETENSORS_F32);
    assert_string_equal(car_safetensors_dtype_text(tensor->dtype), "F32");
    assert_int_equal(tensor->rank, 2);
    assert_int_equal(tensor->shape[0], 2);
    assert_int_equal(tensor->shape[1], 3);
    assert_int_equal(tensor->elements, 6);
    assert_int_equal(tensor->bytes, 24);
    assert_int_equal(*(const unsigned char *)tensor->data, 8);
    assert_int_equal(((const unsigned char *)tensor->data)[23], 31);

    tensor = car_safetensors_find(file, "a");
    assert_int_equal(tensor->rank, 0);
    assert_int_equal(tensor->elements, 1);
    assert_int_equal(car_safetensors_find(file, "none")->elements, 0);
    tensor = car_safetensors_find(file, "\xc3\xa9 \\u0000"); /* a backslash, not an escaped zero */
    assert_non_null(tensor);
    assert_int_equal(tensor->rank, 8);
    assert_int_equal(tensor->bytes, 6);
    assert_null(car_safetensors_find(file, "B"));
    assert_null(car_safetensors_find(file, "__metadata__"));
    assert_string_equal(car_safetensors_metadata(file, "format"), "pt");
    assert_string_equal(car_safetensors_metadata(file, "empty"), "");
    assert_null(car_safetensors_metadata(file, "absent"));
    car_safetensors_close(file);
}

static void test_empty_and_lookalikes(void **state) {
    car_scratch *f = *state;
    car_safetensors *file = NULL;
    write_file(f, "{}", 2, 0);
    assert_int_equal(car_safetensors_open(f->context, path_of(f).text, &file), CAR_OK);
    assert_int_equal(car_safetensors_count(file), 0);
    assert_null(car_safetensors_find(file, "a"));
    assert_null(car_safetensors_metadata(file, "a"));
    car_safetensors_close(file);

    /* Only the exact spelling is metadata. */
    const char *header = "{\"__METADATA__\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    write_file(f, header, strlen(header), 1);
    assert_int_equal(car_safetensors_open(f->context, path_of(f).text, &file), CAR_OK);
    assert_int_equal(car_safetensors_count(file), 1);
    assert_non_null(car_safetensors_find(file, "__METADATA__"));
    car_safetensors_close(file);
    car_safetensors_close(NULL);
}

static void test_dtypes(void **state) {
    car_scratch *f = *state;
#define DTYPE_CHECK(name, size)                                                                                    \
    do {                                                                                                           \
        car_safetensors *file = NULL;                                                                              \
        char header[128];                                                                                          \
        snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}", #name, \
                 3 * (size));                                                                                      \
        write_file(f, header, strlen(header), 3 * (size));                                                         \
        assert_int_equal(car_safetensors_open(f->context, path_of(f).text, &file), CAR_OK);                        \
        assert_int_equal(car_safetensors_at(file, 0)->dtype, CAR_SAFETENSORS_##name);                              \
        assert_string_equal(car_safetensors_dtype_text(CAR_SAFETENSORS_##name), #name);                            \
        car_safetensors_close(file);                                                                               \
    } while (0);
    CAR_SAFETENSORS_DTYPE_LIST(DTYPE_CHECK)
#undef DTYPE_CHECK
    assert_string_equal(car_safetensors_dtype_text(CAR_SAFETENSORS_DTYPES), "unknown");
}

/* ---- unsound files --------------------------------------------------------------------------- */

#define ENTRY(dtype, shape, offsets) "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define TENSOR(dtype, shape, offsets) "{\"x\":" ENTRY(dtype, shape, offsets) "}"

static const struct {
    const char *header;
    size_t data_bytes;
    car_status status;
    const char *message;
} unsound[] = {
    {"[]", 0, CAR_ERROR_FORMAT, "not a JSON object"},
    {" {}", 0, CAR_ERROR_FORMAT, "not a JSON object"},
    {"{\"x\":", 0, CAR_ERROR_FORMAT, "not valid JSON"},
    {"{} {}", 0, CAR_ERROR_FORMAT, "not valid JSON near byte 3"},
    {"{\"x\":7}", 0, CAR_ERROR_FORMAT, "'x' has no dtype"},
    {"{\"x\":[\"dtype\"]}", 0, CAR_ERROR_FORMAT, "'x' has no dtype"},
    {"{\"x\":{\"DTYPE\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, CAR_ERROR_FORMAT, "'x' has no dtype"},
    {TENSOR("5", "[1]", "[0,4]"), 4, CAR_ERROR_FORMAT, "'x' has no dtype"},
    {TENSOR("\"F33\"", "[1]", "[0,4]"), 4, CAR_ERROR_UNSUPPORTED, "type 'F33'"},
    {TENSOR("\"f32\"", "[1]", "[0,4]"), 4, CAR_ERROR_UNSUPPORTED, "type 'f32'"},
    {TENSOR("\"F32\"", "1", "[0,4]"), 4, CAR_ERROR_FORMAT, "'x' has no shape"},
    {TENSOR("\"F32\"", "[1,\"1\"]", "[0,4]"), 4, CAR_ERROR_FORMAT, "dimension 1 of tensor 'x'"},
    {TENSOR("\"F32\"", "[-1]", "[0,4]"), 4, CAR_ERROR_FORMAT, "dimension 0 of tensor 'x'"},
    {TENSOR("\"F32\"", "[1.5]", "[0,4]"), 4, CAR_ERROR_FORMAT, "dimension 0 of tensor 'x'"},
    {TENSOR("\"F32\"", "[1e300]", "[0,4]"), 4, CAR_ERROR_FORMAT, "dimension 0 of tensor 'x'"},
    {TENSOR("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, CAR_ERROR_UNSUPPORTED, "more than 8 dimensions"},
    /* 2^32 * 2^32 * 4 wraps to 0 in 64 bits. */
    {TENSOR("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, CAR_ERROR_FORMAT, "is too large"},
    {TENSOR("\"F32\"", "[1]", "4"), 4, CAR_ERROR_FORMAT, "'x' has no data_offsets"},
    {TENSOR("\"F32\"", "[1]", "[0]"), 4, CAR_ERROR_FORMAT, "'x' has no data_offsets"},
    {TENSOR("\"F32\"", "[1]", "[0,4,8]"), 4, CAR_ERROR_FORMAT, "'x' has no data_offsets"},
    {TENSOR("\"F32\"", "[1]", "[-4,0]"), 4, CAR_ERROR_FORMAT, "'x' has no data_offsets"},
    {TENSOR("\"F32\"", "[1]", "[4,0]"), 4, CAR_ERROR_FORMAT, "bytes 4 to 0"},
    {TENSOR("\"F32\"", "[2]", "[0,8]"), 7, CAR_ERROR_FORMAT, "bytes 0 to 8 of 7; the file is cut short"},
    {TENSOR("\"F32\"", "[1]", "[9007199254740988,9007199254740992]"), 4, CAR_ERROR_FORMAT, "cut short"},
    {TENSOR("\"F32\"", "[2]", "[0,4]"), 4, CAR_ERROR_FORMAT, "has 4 bytes, but its shape and type need 8"},
    {TENSOR("\"I64\"", "[]", "[0,4]"), 4, CAR_ERROR_FORMAT, "has 4 bytes, but its shape and type need 8"},
    {TENSOR("\"F32\"", "[1]", "[0,4]"), 6, CAR_ERROR_FORMAT, "the last 2 bytes belong to no tensor"},
    {TENSOR("\"F32\"", "[1]", "[2,6]"), 6, CAR_ERROR_FORMAT, "'x' comes after a gap"},
    {"{\"x\":" ENTRY("\"U8\"", "[4]", "[0,4]") ",\"y\":" ENTRY("\"U8\"", "[4]", "[3,7]") "}", 7, CAR_ERROR_FORMAT,
     "'y' overlaps another tensor"},
    {"{\"x\":" ENTRY("\"U8\"", "[4]", "[0,4]") ",\"y\":" ENTRY("\"U8\"", "[4]", "[0,4]") "}", 4, CAR_ERROR_FORMAT,
     "overlaps another tensor"},
    {"{\"x\":" ENTRY("\"U8\"", "[4]", "[0,4]") ",\"x\":" ENTRY("\"U8\"", "[4]", "[4,8]") "}", 8, CAR_ERROR_FORMAT,
     "'x' occurs twice"},
    {"{\"x\\u0000y\":" ENTRY("\"U8\"", "[4]", "[0,4]") "}", 4, CAR_ERROR_FORMAT, "not a JSON object"},
    {"{\"__metadata__\":7}", 0, CAR_ERROR_FORMAT, "__metadata__ is not one JSON object"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, CAR_ERROR_FORMAT, "__metadata__ is not one JSON object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, CAR_ERROR_FORMAT, "entry 'a' of __metadata__ is not text"},
};

static void test_unsound_headers(void **state) {
    car_scratch *f = *state;
    for (size_t i = 0; i < sizeof unsound / sizeof unsound[0]; i++) {
        write_file(f, unsound[i].header, strlen(unsound[i].header), unsound[i].data_bytes);
        expect_failure(f, unsound[i].header, unsound[i].status, unsound[i].message);
    }
    write_file(f, "{\"x\0\":1}", 9, 0);
    expect_failure(f, "a zero byte", CAR_ERROR_FORMAT, "not a JSON object");
}

static void test_deep_nesting(void **state) {
    car_scratch *f = *state;
    enum { DEPTH = 100000 };
    char *header = malloc(5 + DEPTH);
    assert_non_null(header);
    memcpy(header, "{\"x\":", 5);
    memset(header + 5, '[', DEPTH);
    write_file(f, header, 5 + DEPTH, 0);
    free(header);
    expect_failure(f, "deep nesting", CAR_ERROR_FORMAT, "not valid JSON");
}

static void test_lengths(void **state) {
    car_scratch *f = *state;
    car_scratch_write(path_of(f).text, "", 0);
    expect_failure(f, "an empty file", CAR_ERROR_FORMAT, "too short for a safetensors file, with 0 bytes");
    car_scratch_write(path_of(f).text, "\2\0\0\0\0\0\0\0{", 9);
    expect_failure(f, "nine bytes", CAR_ERROR_FORMAT, "too short for a safetensors file, with 9 bytes");
    car_scratch_write(path_of(f).text, "\3\0\0\0\0\0\0\0{}", 10);
    expect_failure(f, "a header beyond the end", CAR_ERROR_FORMAT, "claims 3 bytes, but the file has 10");
    car_scratch_write(path_of(f).text, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    expect_failure(f, "a header of 2^64-1", CAR_ERROR_FORMAT, "claims 18446744073709551615 bytes");
    car_scratch_write(path_of(f).text, "\0\0\0\0\0\0\0\0{}", 10);
    expect_failure(f, "no header", CAR_ERROR_FORMAT, "not a JSON object");
}

static void test_not_a_file(void **state) {
    car_scratch *f = *state;
    expect_failure(f, "no such file", CAR_ERROR_IO, "cannot open");
    assert_int_equal(mkfifo(path_of(f).text, 0600), 0);
    expect_failure(f, "a pipe", CAR_ERROR_IO, "not a regular file");
    unlink(path_of(f).text);
    assert_int_equal(mkdir(path_of(f).text, 0700), 0);
    expect_failure(f, "a directory", CAR_ERROR_IO, "not a regular file");
    rmdir(path_of(f).text);
}

/* Every prefix of a sound file, and every single byte changed: nothing may crash, and no prefix may pass. */
static void test_damage(void **state) {
    car_scratch *f = *state;
    const char *header = "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    unsigned char sound[128];
    size_t length = strlen(header), total = 8 + length + 8;
    memset(sound, 0, sizeof sound);
    sound[0] = (unsigned char)length;
    memcpy(sound + 8, header, length);
    for (size_t i = 0; i < total; i++) {
        car_safetensors *file = NULL;
        car_scratch_write(path_of(f).text, sound, i);
        assert_int_equal(car_safetensors_open(f->context, path_of(f).text, &file), CAR_ERROR_FORMAT);
        car_context_clear_error(f->context);
        for (int bit = 0; bit < 8; bit++) {
            sound[i] ^= (unsigned char)(1 << bit);
            car_scratch_write(path_of(f).text, sound, total);
            sound[i] ^= (unsigned char)(1 << bit);
            car_status status = car_safetensors_open(f->context, path_of(f).text, &file);
            assert_true((status == CAR_OK) == (file != NULL));
            assert_true((status == CAR_OK) == (car_context_error(f->context)[0] == '\0'));
            car_safetensors_close(file);
            car_context_clear_error(f->context);
        }
    }
}

/* What torch.save wrote is named as such, with the way out; what only looks like it is not. */
static void test_files_of_torch(void **state) {
    car_scratch *f = *state;
    static const unsigned char old[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";
    unsigned char zip[64] = "PK\x03\x04";
    static const char *const names[] = {"model/data.pkl", "archive/version"};
    for (int i = 0; i < 2; i++) {
        zip[26] = (unsigned char)strlen(names[i]);
        memcpy(zip + 30, names[i], strlen(names[i]));
        car_scratch_write(path_of(f).text, zip, sizeof zip);
        expect_failure(f, names[i], CAR_ERROR_FORMAT,
                       i == 0 ? "import torch, safetensors.torch\nsafetensors.torch.save_file(" : "the header claims");
    }
    zip[26] = zip[27] = 255; /* a name longer than the file */
    car_scratch_write(path_of(f).text, zip, sizeof zip);
    expect_failure(f, "a long name", CAR_ERROR_FORMAT, "the header claims");
    for (size_t bytes = 10; bytes < sizeof old; bytes++) {
        car_scratch_write(path_of(f).text, old, bytes);
        expect_failure(f, "an old pickle", CAR_ERROR_FORMAT,
                       bytes >= 15 ? "was written by PyTorch's torch.save" : "the header claims");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads_everything, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_empty_and_lookalikes, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_dtypes, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_unsound_headers, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_deep_nesting, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_lengths, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_not_a_file, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_damage, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_files_of_torch, car_scratch_set_up, car_scratch_tear_down),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
