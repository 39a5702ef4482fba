/* Mapped files: what is refused, and a file that becomes shorter while it is mapped. */
#include "base/mapped.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct fixture {
    car_context *context;
    char directory[256], path[300];
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    const char *place = getenv("TMPDIR");
    assert_non_null(f);
    snprintf(f->directory, sizeof f->directory, "%s/carousel_XXXXXX", place != NULL ? place : P_tmpdir);
    assert_non_null(mkdtemp(f->directory));
    snprintf(f->path, sizeof f->path, "%s/file", f->directory);
    assert_int_equal(car_context_create(NULL, &f->context), CAR_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    unlink(f->path);
    rmdir(f->directory);
    car_context_destroy(f->context);
    free(f);
    return 0;
}

static void write_text(const fixture *f, const char *text) {
    FILE *file = fopen(f->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

static void expect_failure(fixture *f, const char *path, const char *message) {
    car_mapped file = {.path = f->path};
    assert_int_equal(car_mapped_open(f->context, path, &file), CAR_ERROR_IO);
    assert_non_null(strstr(car_context_error(f->context), message));
    assert_non_null(strstr(car_context_error(f->context), path));
    assert_null(file.path);
    car_mapped_close(&file);
    car_context_clear_error(f->context);
}

static void test_reads(void **state) {
    fixture *f = *state;
    car_mapped file;
    write_text(f, "fourteen bytes");
    assert_int_equal(car_mapped_open(f->context, f->path, &file), CAR_OK);
    assert_int_equal(file.size, 14);
    assert_memory_equal(file.data, "fourteen bytes", 14);
    assert_int_equal(car_mapped_check(&file), CAR_OK);
    car_mapped_close(&file);
    car_mapped_close(&file);

    write_text(f, "");
    assert_int_equal(car_mapped_open(f->context, f->path, &file), CAR_OK);
    assert_int_equal(file.size, 0);
    assert_null(file.data);
    assert_int_equal(car_mapped_check(&file), CAR_OK);
    car_mapped_close(&file);
}

static void test_refuses(void **state) {
    fixture *f = *state;
    expect_failure(f, f->path, "No such file");
    expect_failure(f, f->directory, "not a regular file");
    assert_int_equal(mkfifo(f->path, 0600), 0);
    expect_failure(f, f->path, "not a regular file");
    assert_int_equal(unlink(f->path), 0);
    if (geteuid() != 0) { /* root may read everything */
        write_text(f, "secret");
        assert_int_equal(chmod(f->path, 0), 0);
        expect_failure(f, f->path, "Permission denied");
    }
}

static void test_becomes_shorter(void **state) {
    fixture *f = *state;
    car_mapped file;
    write_text(f, "fourteen bytes");
    assert_int_equal(car_mapped_open(f->context, f->path, &file), CAR_OK);
    assert_int_equal(truncate(f->path, 20), 0);
    assert_int_equal(car_mapped_check(&file), CAR_OK);
    assert_int_equal(truncate(f->path, 13), 0);
    assert_int_equal(car_mapped_check(&file), CAR_ERROR_IO);
    assert_non_null(
        strstr(car_context_error(f->context), "became shorter while it was in use, 13 bytes instead of 14"));
    assert_non_null(strstr(car_context_error(f->context), f->path));
    car_mapped_close(&file);
}

/* Another file of the same name is not the one that is mapped. */
static void test_replaced(void **state) {
    fixture *f = *state;
    car_mapped file;
    write_text(f, "fourteen bytes");
    assert_int_equal(car_mapped_open(f->context, f->path, &file), CAR_OK);
    assert_int_equal(unlink(f->path), 0);
    write_text(f, "new");
    assert_int_equal(car_mapped_check(&file), CAR_OK);
    assert_memory_equal(file.data, "fourteen bytes", 14);
    car_mapped_close(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refuses, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_becomes_shorter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_replaced, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
