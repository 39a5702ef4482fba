/* A context and a folder of its own for tests of files. */
#include "support/folder.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLACES = 4, PATH_CAPACITY = 600 };

int car_folder_set_up(void **state) {
    car_folder *folder = calloc(1, sizeof *folder);
    const char *place = getenv("TMPDIR");
    assert_non_null(folder);
    snprintf(folder->name, sizeof folder->name, "%s/carousel_XXXXXX", place != NULL ? place : P_tmpdir);
    assert_non_null(mkdtemp(folder->name));
    assert_int_equal(car_context_create(NULL, &folder->context), CAR_OK);
    *state = folder;
    return 0;
}

static int remove_entry(const char *path, const struct stat *found, int type, struct FTW *at) {
    (void)found;
    (void)type;
    (void)at;
    return remove(path);
}

int car_folder_tear_down(void **state) {
    car_folder *folder = *state;
    assert_int_equal(nftw(folder->name, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    car_context_destroy(folder->context);
    free(folder);
    return 0;
}

const char *car_folder_path(const car_folder *folder, const char *name) {
    static char paths[PLACES][PATH_CAPACITY];
    static int next;
    next = (next + 1) % PLACES;
    snprintf(paths[next], sizeof paths[next], "%s/%s", folder->name, name);
    return paths[next];
}

void car_folder_write(const car_folder *folder, const char *name, const void *bytes, size_t count) {
    char path[PATH_CAPACITY];
    snprintf(path, sizeof path, "%s/%s", folder->name, name);
    for (char *slash = path + strlen(folder->name) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0777); /* it may be there already */
        *slash = '/';
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

unsigned char *car_folder_read(const car_folder *folder, const char *name, size_t *count) {
    FILE *file = fopen(car_folder_path(folder, name), "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *count = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*count + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *count, file), *count);
    assert_int_equal(fclose(file), 0);
    return bytes;
}

void car_folder_expect(const car_folder *folder, car_status status, car_status expected, const char *message) {
    if (status != expected || strstr(car_context_error(folder->context), message) == NULL) {
        fail_msg("status '%s', message '%s', wanted '%s' with '%s'", car_status_text(status),
                 car_context_error(folder->context), car_status_text(expected), message);
    }
    car_context_clear_error(folder->context);
}
