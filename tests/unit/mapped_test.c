/* Mapped files: what is refused, and a file that becomes shorter while it is mapped. */
#include "base/mapped.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/expect.h"
#include "support/scratch.h"

static void expect_failure(const car_scratch *folder, const char *path, const char *message) {
    car_mapped file = {.path = (char *)path};
    car_status status = car_mapped_open(folder->context, path, &file);
    assert_null(file.path);
    car_mapped_close(&file);
    car_expect_failure(folder->context, status, CAR_ERROR_IO, message);
}

static car_mapped map_bytes(const car_scratch *folder, const char *path, const char *bytes) {
    car_mapped file;
    car_scratch_write(path, bytes, strlen(bytes));
    assert_int_equal(car_mapped_open(folder->context, path, &file), CAR_OK);
    return file;
}

static void test_reads(void **state) {
    const car_scratch *folder = *state;
    car_scratch_path path = car_scratch_in(folder, "file");
    car_mapped file = map_bytes(folder, path.text, "fourteen bytes");
    assert_int_equal(file.size, 14);
    assert_memory_equal(file.data, "fourteen bytes", 14);
    assert_string_equal(file.path, path.text);
    assert_int_equal(car_mapped_check(&file), CAR_OK);
    car_mapped_close(&file);
    car_mapped_close(&file);

    file = map_bytes(folder, path.text, "");
    assert_int_equal(file.size, 0);
    assert_null(file.data);
    assert_int_equal(car_mapped_check(&file), CAR_OK);
    car_mapped_close(&file);
}

static void test_refuses(void **state) {
    const car_scratch *folder = *state;
    car_scratch_path path = car_scratch_in(folder, "file");
    expect_failure(folder, path.text, "No such file");
    expect_failure(folder, folder->directory, "not a regular file");
    assert_int_equal(mkfifo(path.text, 0600), 0);
    expect_failure(folder, path.text, "not a regular file");
    assert_int_equal(unlink(path.text), 0);
    if (geteuid() != 0) { /* root may read everything */
        car_scratch_write(path.text, "secret", 6);
        assert_int_equal(chmod(path.text, 0), 0);
        expect_failure(folder, path.text, "Permission denied");
    }
}

static void test_becomes_shorter(void **state) {
    const car_scratch *folder = *state;
    car_scratch_path path = car_scratch_in(folder, "file");
    car_mapped file = map_bytes(folder, path.text, "fourteen bytes");
    assert_int_equal(truncate(path.text, 20), 0);
    assert_int_equal(car_mapped_check(&file), CAR_OK);
    assert_int_equal(truncate(path.text, 13), 0);
    car_expect_failure(folder->context, car_mapped_check(&file), CAR_ERROR_IO,
                       "file became shorter while it was in use, 13 bytes instead of 14");
    car_mapped_close(&file);
}

/* Another file of the same name is not the one that is mapped. */
static void test_replaced(void **state) {
    const car_scratch *folder = *state;
    car_scratch_path path = car_scratch_in(folder, "file");
    car_mapped file = map_bytes(folder, path.text, "fourteen bytes");
    assert_int_equal(unlink(path.text), 0);
    car_scratch_write(path.text, "new", 3);
    assert_int_equal(car_mapped_check(&file), CAR_OK);
    assert_memory_equal(file.data, "fourteen bytes", 14);
    car_mapped_close(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_refuses, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_becomes_shorter, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_replaced, car_scratch_set_up, car_scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
