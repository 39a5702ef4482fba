/* A directory of a test's own: see scratch.h. */
#include "support/scratch.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/folder.h"

void car_scratch_open(car_scratch *scratch) {
    const char *place = getenv("TMPDIR");
    snprintf(scratch->directory, sizeof scratch->directory, "%s/carousel_XXXXXX", place != NULL ? place : P_tmpdir);
    assert_non_null(mkdtemp(scratch->directory));
}

void car_scratch_close(car_scratch *scratch) {
    assert_true(car_folder_remove(scratch->directory));
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

char *car_scratch_read(const char *path, size_t *bytes) {
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
