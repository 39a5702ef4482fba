/* What the fuzz targets share: see fuzz.h. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t most_bytes;
static long live_blocks;
static char folder[256];

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "fuzz: %s\n", what);
        abort();
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *allocate(void *user, size_t bytes) {
    (void)user;
    if (bytes > most_bytes) {
        fprintf(stderr, "fuzz: %zu bytes were asked for where the input justifies %zu\n", bytes, most_bytes);
        abort();
    }
    void *block = NULL;
    require(posix_memalign(&block, 64, bytes) == 0, "no memory");
    live_blocks++;
    return block;
}

static void release(void *user, void *block, size_t bytes) {
    (void)user;
    (void)bytes;
    live_blocks--;
    free(block);
}

car_context *car_fuzz_context(size_t most) {
    car_context_config config = car_context_config_default();
    car_context *context = NULL;
    config.allocator = (car_allocator){.allocate = allocate, .release = release};
    most_bytes = most + 4096; /* the context itself */
    require(car_context_create(&config, &context) == CAR_OK, "no context");
    return context;
}

void car_fuzz_end(car_context *context) {
    car_context_destroy(context);
    require(live_blocks == 0, "blocks were left");
}

/* ---- files ----------------------------------------------------------------------------------- */

static void remove_folder(void) {
    rmdir(folder);
}

const char *car_fuzz_path(const char *name) {
    static char path[512];
    if (folder[0] == '\0') {
        const char *place = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : P_tmpdir; /* memory is faster */
        snprintf(folder, sizeof folder, "%s/carousel_fuzz_XXXXXX", place);
        require(mkdtemp(folder) != NULL, "no folder");
        atexit(remove_folder);
    }
    snprintf(path, sizeof path, "%s%s%s", folder, name[0] != '\0' ? "/" : "", name);
    return path;
}

void car_fuzz_write(const char *name, const void *data, size_t size) {
    FILE *file = fopen(car_fuzz_path(name), "wb");
    require(file != NULL && (size == 0 || fwrite(data, 1, size, file) == size) && fclose(file) == 0, "cannot write");
}

void car_fuzz_remove(const char *name) {
    unlink(car_fuzz_path(name));
}

void car_fuzz_touch(const void *data, size_t size) {
    const volatile uint8_t *bytes = data;
    uint8_t sum = 0;
    for (size_t i = 0; i < size; i++) {
        sum = (uint8_t)(sum + bytes[i]);
    }
    (void)sum;
}
