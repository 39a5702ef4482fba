/* CIFAR-10 in its published form: files of records, each a label byte and 32 x 32 pixels, one plane per colour.
 *
 * Records are read by pread, which copies from the page cache. Unlike with a mapping, a truncated file gives an
 * error message instead of a crash. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/source.h"

enum { SIDE = 32, PLANE = SIDE * SIDE, RECORD = 1 + 3 * PLANE, CLASSES = 10, FILES = 6, NAME_CAPACITY = 64 };
enum { HEAD = 4096 }; /* bytes of each file that go into the digest */

static const char folder[] = "cifar-10-batches-bin";
static const struct {
    const char *name;
    car_split split;
} files[FILES] = {
    {"data_batch_1.bin", CAR_SPLIT_TRAIN}, {"data_batch_2.bin", CAR_SPLIT_TRAIN},
    {"data_batch_3.bin", CAR_SPLIT_TRAIN}, {"data_batch_4.bin", CAR_SPLIT_TRAIN},
    {"data_batch_5.bin", CAR_SPLIT_TRAIN}, {"test_batch.bin", CAR_SPLIT_EVALUATION},
};

typedef struct cifar {
    car_context *context;
    int handles[FILES];     /* -1: the file does not exist */
    int64_t records[FILES]; /* samples of a split are numbered across its files */
    char names[CLASSES][NAME_CAPACITY];
} cifar;

/* ---- opening --------------------------------------------------------------------------------- */

static void close_cifar(void *state) {
    cifar *c = state;
    for (int f = 0; f < FILES; f++) {
        if (c->handles[f] >= 0) {
            close(c->handles[f]);
        }
    }
    car_context_release(c->context, c, 1, sizeof *c);
}

/* A missing file is not a failure here. */
static car_status open_file(cifar *c, int directory, const char *path, int f) {
    struct stat found;
    c->handles[f] = openat(directory, files[f].name, O_RDONLY | O_CLOEXEC);
    if (c->handles[f] < 0 && errno == ENOENT) {
        return CAR_OK;
    }
    if (c->handles[f] < 0 || fstat(c->handles[f], &found) != 0) {
        return car_context_fail(c->context, CAR_ERROR_IO, "data cifar10:%s: %s: %s", path, files[f].name,
                                strerror(errno));
    }
    if (!S_ISREG(found.st_mode) || found.st_size == 0 || found.st_size % RECORD != 0) {
        return car_context_fail(c->context, CAR_ERROR_FORMAT,
                                "data cifar10:%s: %s has %lld bytes, which is not a multiple of the record size, %d "
                                "bytes (the published file has 30730000); download it again",
                                path, files[f].name, (long long)found.st_size, RECORD);
    }
    c->records[f] = found.st_size / RECORD;
    return CAR_OK;
}

/* Reads the names of the classes, one per line, if the file exists. */
static void read_names(cifar *c, int directory) {
    int handle = openat(directory, "batches.meta.txt", O_RDONLY | O_CLOEXEC);
    FILE *file = handle >= 0 ? fdopen(handle, "r") : NULL;
    if (!file) {
        if (handle >= 0) {
            close(handle);
        }
        return;
    }
    for (int i = 0; i < CLASSES && fgets(c->names[i], NAME_CAPACITY, file); i++) {
        c->names[i][strcspn(c->names[i], "\r\n")] = '\0';
    }
    fclose(file);
}

static car_status open_files(cifar *c, const char *path, car_dataset_info *info) {
    car_status status = CAR_OK;
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), below = -1;
    if (directory < 0) {
        CAR_TRY(car_context_fail(c->context, CAR_ERROR_IO, "data cifar10:%s: %s", path, strerror(errno)));
    }
    below = openat(directory, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int place = below >= 0 ? below : directory;
    for (int f = 0; f < FILES; f++) {
        CAR_TRY(open_file(c, place, path, f));
        info->samples[files[f].split] += c->records[f];
    }
    read_names(c, place);
    if (info->samples[CAR_SPLIT_TRAIN] == 0 || info->samples[CAR_SPLIT_EVALUATION] == 0) {
        CAR_TRY(car_context_fail(c->context, CAR_ERROR_IO,
                                 "data cifar10:%s: found no %s, neither here nor in %s; cifar10 reads the binary "
                                 "version of CIFAR-10 (for a folder of JPEG files use imagefolder:%s)",
                                 path, info->samples[CAR_SPLIT_TRAIN] ? files[FILES - 1].name : files[0].name, folder,
                                 path));
    }
done:
    if (below >= 0) {
        close(below);
    }
    if (directory >= 0) {
        close(directory);
    }
    return status;
}

static car_status open_cifar(car_context *context, const char *path, const car_dataset_config *config,
                             car_dataset_info *info, void **state) {
    cifar *c = NULL;
    car_status status = CAR_OK;
    (void)config;
    *state = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *c, &c));
    c->context = context;
    for (int f = 0; f < FILES; f++) {
        c->handles[f] = -1;
    }
    info->domain = CAR_DOMAIN_IMAGES;
    info->classes = CLASSES;
    info->width = info->height = SIDE;
    CAR_TRY(open_files(c, path, info));
    *state = c;
    c = NULL;
done:
    if (c) {
        close_cifar(c);
    }
    return status;
}

/* ---- inspecting ------------------------------------------------------------------------------ */

static const char *name_class(const void *state, int index) {
    const cifar *c = state;
    return *c->names[index] ? c->names[index] : NULL;
}

/* Reads exactly `bytes` bytes. */
static car_status read_at(const cifar *c, int f, uint8_t *to, size_t bytes, int64_t offset) {
    while (bytes > 0) {
        ssize_t got = pread(c->handles[f], to, bytes, offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return car_context_fail(c->context, CAR_ERROR_IO, "%s: %s at byte %lld", files[f].name,
                                    got < 0 ? strerror(errno) : "the file became shorter and now ends",
                                    (long long)offset);
        }
        to += got;
        bytes -= (size_t)got;
        offset += got;
    }
    return CAR_OK;
}

static car_status digest_cifar(const void *state, car_sha256 *sha) {
    const cifar *c = state;
    uint8_t head[HEAD];
    car_status status = CAR_OK;
    for (int f = 0; f < FILES; f++) {
        car_sha256_add(sha, &c->records[f], sizeof c->records[f]);
        if (c->handles[f] >= 0) {
            size_t bytes = c->records[f] > 1 ? HEAD : RECORD;
            CAR_TRY(read_at(c, f, head, bytes, 0));
            car_sha256_add(sha, head, bytes);
        }
    }
done:
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

static car_status read_image(void *state, car_source_scratch *scratch, car_split split, int64_t sample,
                             const car_source_wish *wish, car_source_image *out) {
    const cifar *c = state;
    car_status status = CAR_OK;
    int64_t record = sample;
    int f = 0;
    (void)wish;
    while (files[f].split != split || record >= c->records[f]) {
        record -= files[f].split == split ? c->records[f] : 0;
        f++;
    }
    CAR_TRY(car_source_reserve(&scratch->file, RECORD));
    CAR_TRY(car_source_reserve(&scratch->pixels, 3 * PLANE));
    const uint8_t *data = scratch->file.data;
    CAR_TRY(read_at(c, f, scratch->file.data, RECORD, record * RECORD));
    for (int colour = 0; colour < 3; colour++) {
        for (int p = 0; p < PLANE; p++) {
            scratch->pixels.data[3 * p + colour] = data[1 + colour * PLANE + p];
        }
    }
    out->image = (car_image){scratch->pixels.data, SIDE, SIDE, data[0]};
    out->stored_width = out->stored_height = SIDE;
    if (data[0] >= CLASSES) {
        char reason[80];
        snprintf(reason, sizeof reason, "record %lld has label %d, which must be below %d", (long long)record, data[0],
                 CLASSES);
        car_source_describe(out, CAR_SOURCE_UNREADABLE, files[f].name, reason);
    }
done:
    return status;
}

const car_source_methods car_source_cifar10 = {
    .open = open_cifar,
    .close = close_cifar,
    .class_name = name_class,
    .digest = digest_cifar,
    .image = read_image,
};
