/* A folder of image files, with one folder per class; files may be at any depth in it.
 *
 *   train/CLASS/NAME.jpg, with val/ or test/ beside it (val/ if both exist), or
 *   CLASS/NAME.jpg, or only train/: then every tenth file is held out for evaluation.
 *
 * imagefolder_list.c finds the files and numbers them as torchvision does; this file reads them. */
#include "data/imagefolder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/image_file.h"
#include "data/source.h"

enum { HELD_OUT = CAR_IMAGEFOLDER_HELD_OUT };
/* Number of files whose sizes go into the digest: looking up all takes minutes on some network file systems. */
enum { SIZES_IN_DIGEST = 1024 };

static void close_folder(void *state) {
    car_imagefolder *folder = state;
    car_context *context = folder->context;
    for (int s = 0; s < CAR_SPLITS; s++) {
        car_imagefolder_files *list = &folder->files[s];
        car_context_release(context, list->firsts, (size_t)folder->class_count + 1, sizeof *list->firsts);
        car_context_release(context, list->starts, (size_t)list->capacity, sizeof *list->starts);
        car_context_release(context, list->names, (size_t)list->name_capacity, 1);
    }
    for (int c = 0; c < folder->class_count; c++) {
        car_context_release_text(context, folder->classes[c]);
    }
    car_context_release(context, folder->classes, (size_t)folder->class_capacity, sizeof *folder->classes);
    if (folder->root >= 0) {
        close(folder->root);
    }
    car_context_release(context, folder, 1, sizeof *folder);
}

static car_status open_folder(car_context *context, const char *path, const car_dataset_config *config,
                              car_dataset_info *info, void **state) {
    car_imagefolder *folder = NULL;
    car_status status = CAR_OK;
    (void)config;
    *state = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *folder, &folder));
    folder->context = context;
    folder->root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->root < 0) {
        CAR_TRY(car_context_fail(context, CAR_ERROR_IO, "data imagefolder:%s: %s", path, strerror(errno)));
    }
    CAR_TRY(car_imagefolder_list(folder, path, info));
    *state = folder;
    folder = NULL;
done:
    if (folder) {
        close_folder(folder);
    }
    return status;
}

/* ---- inspecting ------------------------------------------------------------------------------ */

enum { PATH_CAPACITY = PATH_MAX };

/* Finds a file by its number in a list: its path below the root, and its class. */
static int32_t locate(const car_imagefolder *folder, const car_imagefolder_files *list, int64_t file,
                      char path[PATH_CAPACITY]) {
    int low = 0, high = folder->class_count; /* find the last class that begins at or before this file */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        *(list->firsts[middle] <= file ? &low : &high) = middle;
    }
    snprintf(path, PATH_CAPACITY, "%s%s/%s", list->place, folder->classes[low], list->names + list->starts[file]);
    return low;
}

static const char *name_class(const void *state, int index) {
    return ((const car_imagefolder *)state)->classes[index];
}

static void count_unused(const void *state, car_dataset_unused *out) {
    *out = ((const car_imagefolder *)state)->unused;
}

/* All names, and the sizes of some files. */
static car_status digest_folder(const void *state, car_sha256 *sha) {
    const car_imagefolder *folder = state;
    for (int s = 0; s < CAR_SPLITS; s++) {
        const car_imagefolder_files *list = &folder->files[s];
        int every = list->count / SIZES_IN_DIGEST + 1;
        car_sha256_add(sha, list->place, sizeof list->place);
        for (int f = 0; f < list->count; f++) {
            char path[PATH_CAPACITY];
            struct stat found;
            locate(folder, list, f, path);
            car_sha256_add(sha, path, strlen(path) + 1);
            if (f % every == 0) {
                int64_t size = fstatat(folder->root, path, &found, 0) == 0 ? found.st_size : -1;
                car_sha256_add(sha, &size, sizeof size);
            }
        }
    }
    return CAR_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static car_status read_image(void *state, car_source_scratch *scratch, car_split split, int64_t sample,
                             const car_source_wish *wish, car_source_image *out) {
    const car_imagefolder *folder = state;
    const car_imagefolder_files *list = &folder->files[split];
    int64_t file = sample, bytes = 0;
    char path[PATH_CAPACITY];
    car_status status = CAR_OK;
    if (folder->held_out) {
        list = &folder->files[CAR_SPLIT_TRAIN];
        file = split == CAR_SPLIT_TRAIN ? sample + sample / (HELD_OUT - 1) : sample * HELD_OUT + HELD_OUT - 1;
    }
    out->image.label = locate(folder, list, file, path);
    CAR_TRY(car_image_file_read(folder->context, folder->root, path, &scratch->file, &bytes));
    if (bytes < 0) {
        car_source_describe(out, CAR_SOURCE_UNREADABLE, path, strerror(errno));
    } else {
        CAR_TRY(car_image_file_decode(path, scratch->file.data, (size_t)bytes, wish, &scratch->pixels, out));
    }
done:
    return status;
}

const car_source_methods car_source_imagefolder = {
    .open = open_folder,
    .close = close_folder,
    .class_name = name_class,
    .digest = digest_folder,
    .unused = count_unused,
    .image = read_image,
};
