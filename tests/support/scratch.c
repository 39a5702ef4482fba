/* A temporary directory for a test, and a context: see scratch.h. */
#include "support/scratch.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/folder.h"

void car_scratch_open(car_scratch *scratch) {
    const char *place = getenv("TMPDIR");
    snprintf(scratch->directory, sizeof scratch->directory, "%s/carousel_XXXXXX", place != NULL ? place : P_tmpdir);
    assert_non_null(mkdtemp(scratch->directory));
    assert_int_equal(car_context_create(NULL, &scratch->context), CAR_OK);
}

void car_scratch_close(car_scratch *scratch) {
    assert_true(car_folder_remove(scratch->directory));
    car_context_destroy(scratch->context);
}

int car_scratch_set_up(void **state) {
    *state = calloc(1, sizeof(car_scratch));
    assert_non_null(*state);
    car_scratch_open(*state);
    return 0;
}

int car_scratch_tear_down(void **state) {
    car_scratch_close(*state);
    free(*state);
    return 0;
}

car_scratch_path car_scratch_in(const car_scratch *scratch, const char *format, ...) {
    car_scratch_path path;
    va_list arguments;
    int length = snprintf(path.text, sizeof path.text, "%s/", scratch->directory);
    va_start(arguments, format);
    length += vsnprintf(path.text + length, sizeof path.text - (size_t)length, format, arguments);
    va_end(arguments);
    assert_true(length < (int)sizeof path.text);
    return path;
}

int car_scratch_count(const char *directory, const char *prefix) {
    DIR *folder = opendir(directory);
    int count = 0;
    assert_non_null(folder);
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        bool self = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        count += !self && strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    }
    closedir(folder);
    return count;
}

void *car_scratch_read(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    assert_int_equal(fclose(file), 0);
    return data;
}

void car_scratch_write(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

void car_scratch_put(const car_scratch *scratch, const char *name, const void *data, size_t bytes) {
    car_scratch_path path = car_scratch_in(scratch, "%s", name);
    for (char *slash = path.text + strlen(scratch->directory) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path.text, 0777); /* it may exist already */
        *slash = '/';
    }
    car_scratch_write(path.text, data, bytes);
}
