/* A temporary folder: see folder.h. */
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

void car_folder_create(car_folder *folder) {
    const char *place = getenv("TMPDIR");
    snprintf(folder->path, sizeof folder->path, "%s/carousel_XXXXXX", place ? place : P_tmpdir);
    assert_non_null(mkdtemp(folder->path));
}

static int remove_entry(const char *path, const struct stat *found, int type, struct FTW *at) {
    (void)found;
    (void)type;
    (void)at;
    return remove(path);
}

void car_folder_remove(car_folder *folder) {
    assert_int_equal(nftw(folder->path, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

const char *car_folder_path(const car_folder *folder, const char *name) {
    static _Thread_local char paths[4][1024];
    static _Thread_local int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder->path, name);
    return path;
}

void car_folder_write(const car_folder *folder, const char *name, const void *bytes, size_t count) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    for (char *slash = path + strlen(folder->path) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0777); /* it may be there */
        *slash = '/';
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}
