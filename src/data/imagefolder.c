/* A folder of JPEG files, a folder for each class.
 *
 *   train/CLASS/NAME.jpg with val/ or test/ beside it (val is taken if both are there), or
 *   CLASS/NAME.jpg, or only train/: then every tenth file of them all is held out for evaluation.
 *
 * Classes are numbered in the order of their names' bytes, and so are the files of a class, as torchvision does. Hidden
 * files and folders are passed over, links followed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/jpeg.h"
#include "data/source.h"

enum { HELD_OUT = 10 };          /* one of so many */
enum { SIZES_IN_DIGEST = 1024 }; /* files whose sizes are looked up: asking for all takes minutes on some networks */

/* The files below one folder. Names lie one behind the other, each ended by a zero: a million of them must fit. */
typedef struct listing {
    char place[8]; /* "train/", "val/", "test/" or "" */
    char *names;
    int name_bytes, name_capacity;
    int32_t *starts; /* where a file's name begins */
    int count, capacity;
    int32_t *firsts; /* by class, and one more: the number of its first file */
} listing;

typedef struct image_folder {
    car_context *context;
    int root;
    char **classes;
    int class_count, class_capacity;
    listing files[CAR_SPLITS];
    bool held_out; /* both splits are in the first listing */
} image_folder;

/* ---- folders --------------------------------------------------------------------------------- */

static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int is_image(const struct dirent *entry) {
    const char *dot = strrchr(entry->d_name, '.');
    return is_visible(entry) && dot && (strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0);
}

/* Whether an entry is of a type, S_IFREG or S_IFDIR, itself or what it links to. A link to nothing counts as a file: it
 * will be among the unreadable ones rather than go unnoticed. */
static bool is_of_type(int directory, const struct dirent *entry, mode_t type) {
    struct stat found;
    if (entry->d_type != DT_UNKNOWN && entry->d_type != DT_LNK) {
        return (mode_t)DTTOIF(entry->d_type) == type;
    }
    if (fstatat(directory, entry->d_name, &found, 0) != 0) {
        return type == S_IFREG;
    }
    return (found.st_mode & S_IFMT) == type;
}

typedef car_status (*entry_visitor)(image_folder *folder, void *user, const char *name);

/* Calls `visit` for all entries of a folder that pass `filter` and are of the type, in the order of their names. */
static car_status visit_entries(image_folder *folder, const char *path, int (*filter)(const struct dirent *),
                                mode_t type, entry_visitor visit, void *user) {
    struct dirent **entries = NULL;
    car_status status = CAR_OK;
    int directory = openat(folder->root, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int count = directory < 0 ? -1 : scandirat(directory, ".", &entries, filter, compare_names);
    if (count < 0) {
        CAR_TRY(car_context_fail(folder->context, errno == ENOMEM ? CAR_ERROR_MEMORY : CAR_ERROR_IO,
                                 "data imagefolder: folder '%s': %s", path, strerror(errno)));
    }
    for (int e = 0; e < count; e++) {
        if (is_of_type(directory, entries[e], type)) {
            CAR_TRY(visit(folder, user, entries[e]->d_name));
        }
    }
done:
    for (int e = 0; e < count; e++) {
        free(entries[e]);
    }
    free(entries);
    if (directory >= 0) {
        close(directory);
    }
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

static car_status add_class(image_folder *folder, void *user, const char *name) {
    car_status status = CAR_OK;
    (void)user;
    CAR_TRY(car_context_grow(folder->context, &folder->classes, &folder->class_capacity, folder->class_count + 1,
                             sizeof *folder->classes));
    CAR_TRY(car_context_copy_text(folder->context, name, &folder->classes[folder->class_count]));
    folder->class_count++;
done:
    return status;
}

static car_status count_entry(image_folder *folder, void *user, const char *name) {
    (void)folder;
    (void)name;
    ++*(int *)user;
    return CAR_OK;
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A class that only evaluation has could not be learnt, and would shift the numbers of the others. */
static car_status check_class(image_folder *folder, void *user, const char *name) {
    const listing *list = user;
    if (!bsearch(&name, folder->classes, (size_t)folder->class_count, sizeof *folder->classes, compare_texts)) {
        return car_context_fail(folder->context, CAR_ERROR_FORMAT,
                                "data imagefolder: there is a class %s%s, but no class %s to train on", list->place,
                                name, name);
    }
    return CAR_OK;
}

static car_status add_file(image_folder *folder, void *user, const char *name) {
    listing *list = user;
    size_t bytes = strlen(name) + 1;
    car_status status = CAR_OK;
    /* Capacities double, and are ints. */
    if (bytes > (size_t)(INT_MAX / 2 - list->name_bytes) || list->count >= INT_MAX / 2) {
        CAR_TRY(car_context_fail(folder->context, CAR_ERROR_UNSUPPORTED, "data imagefolder: more than %d files",
                                 list->count));
    }
    CAR_TRY(car_context_grow(folder->context, &list->names, &list->name_capacity, list->name_bytes + (int)bytes, 1));
    CAR_TRY(car_context_grow(folder->context, &list->starts, &list->capacity, list->count + 1, sizeof *list->starts));
    memcpy(list->names + list->name_bytes, name, bytes);
    list->starts[list->count++] = list->name_bytes;
    list->name_bytes += (int)bytes;
done:
    return status;
}

static car_status list_files(image_folder *folder, listing *list, bool must_have) {
    car_status status = CAR_OK;
    CAR_TRY(
        car_context_allocate(folder->context, (size_t)folder->class_count + 1, sizeof *list->firsts, &list->firsts));
    for (int c = 0; c < folder->class_count; c++) {
        char path[NAME_MAX + sizeof list->place + 1];
        struct stat found;
        snprintf(path, sizeof path, "%s%s", list->place, folder->classes[c]);
        list->firsts[c] = list->count;
        if (must_have || fstatat(folder->root, path, &found, 0) == 0) {
            CAR_TRY(visit_entries(folder, path, is_image, S_IFREG, add_file, list));
        }
        if (must_have && list->count == list->firsts[c]) {
            CAR_TRY(car_context_fail(folder->context, CAR_ERROR_FORMAT,
                                     "data imagefolder: class '%s' has no .jpg or .jpeg file; remove its folder, or "
                                     "hide it by a dot",
                                     path));
        }
    }
    list->firsts[folder->class_count] = list->count;
done:
    return status;
}

static bool is_folder(const image_folder *folder, const char *name) {
    struct stat found;
    return fstatat(folder->root, name, &found, 0) == 0 && S_ISDIR(found.st_mode);
}

/* Finds out which layout it is. A folder train/ without folders in it is a class of its own: pictures of trains. */
static car_status find_layout(image_folder *folder) {
    listing *train = &folder->files[CAR_SPLIT_TRAIN], *evaluation = &folder->files[CAR_SPLIT_EVALUATION];
    int below = 0;
    car_status status = CAR_OK;
    if (is_folder(folder, "train")) {
        CAR_TRY(visit_entries(folder, "train", is_visible, S_IFDIR, count_entry, &below));
    }
    if (below > 0) {
        snprintf(train->place, sizeof train->place, "train/");
        if (is_folder(folder, "val") || is_folder(folder, "test")) {
            snprintf(evaluation->place, sizeof evaluation->place, "%s", is_folder(folder, "val") ? "val/" : "test/");
        }
    }
    folder->held_out = !*evaluation->place;
done:
    return status;
}

static car_status find_files(image_folder *folder, const char *path, car_dataset_info *info) {
    listing *train = &folder->files[CAR_SPLIT_TRAIN], *evaluation = &folder->files[CAR_SPLIT_EVALUATION];
    car_status status = CAR_OK;
    CAR_TRY(find_layout(folder));
    CAR_TRY(visit_entries(folder, train->place, is_visible, S_IFDIR, add_class, NULL));
    if (folder->class_count == 0) {
        CAR_TRY(car_context_fail(folder->context, CAR_ERROR_FORMAT,
                                 "data imagefolder:%s: there are no folders in it; wanted is train/CLASS/NAME.jpg, or "
                                 "CLASS/NAME.jpg",
                                 path));
    }
    CAR_TRY(list_files(folder, train, true));
    info->samples[CAR_SPLIT_TRAIN] = train->count;
    if (folder->held_out) {
        info->samples[CAR_SPLIT_EVALUATION] = train->count / HELD_OUT;
        info->samples[CAR_SPLIT_TRAIN] -= train->count / HELD_OUT;
    } else {
        CAR_TRY(visit_entries(folder, evaluation->place, is_visible, S_IFDIR, check_class, evaluation));
        CAR_TRY(list_files(folder, evaluation, false));
        info->samples[CAR_SPLIT_EVALUATION] = evaluation->count;
    }
    info->domain = CAR_DOMAIN_IMAGES;
    info->classes = folder->class_count;
done:
    return status;
}

static void close_folder(void *state) {
    image_folder *folder = state;
    car_context *context = folder->context;
    for (int s = 0; s < CAR_SPLITS; s++) {
        listing *list = &folder->files[s];
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
    image_folder *folder = NULL;
    car_status status = CAR_OK;
    (void)config;
    *state = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *folder, &folder));
    folder->context = context;
    folder->root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->root < 0) {
        CAR_TRY(car_context_fail(context, CAR_ERROR_IO, "data imagefolder:%s: %s", path, strerror(errno)));
    }
    CAR_TRY(find_files(folder, path, info));
    *state = folder;
    folder = NULL;
done:
    if (folder) {
        close_folder(folder);
    }
    return status;
}

/* ---- looking --------------------------------------------------------------------------------- */

enum { PATH_CAPACITY = 2 * NAME_MAX + 16 };

/* A file by its number in a listing: its path below the root, and its class. */
static int32_t locate(const image_folder *folder, const listing *list, int64_t file, char path[PATH_CAPACITY]) {
    int low = 0, high = folder->class_count; /* the last class whose first file is not behind this one */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        *(list->firsts[middle] <= file ? &low : &high) = middle;
    }
    snprintf(path, PATH_CAPACITY, "%s%s/%s", list->place, folder->classes[low], list->names + list->starts[file]);
    return low;
}

static const char *name_class(const void *state, int index) {
    return ((const image_folder *)state)->classes[index];
}

/* All names, and the sizes of some files. */
static car_status digest_folder(const void *state, car_sha256 *sha) {
    const image_folder *folder = state;
    for (int s = 0; s < CAR_SPLITS; s++) {
        const listing *list = &folder->files[s];
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

/* Reads a whole file into `buffer`. What is wrong with this file alone is not a failure: *bytes is then -1, and errno
 * says why. */
static car_status read_file(const image_folder *folder, const char *path, car_source_buffer *buffer, int64_t *bytes) {
    car_status status = CAR_OK;
    struct stat found;
    int handle = openat(folder->root, path, O_RDONLY | O_CLOEXEC);
    *bytes = -1;
    if (handle < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        CAR_TRY(car_context_fail(folder->context, CAR_ERROR_IO, "data imagefolder: %s: %s", path, strerror(errno)));
    }
    if (handle < 0 || fstat(handle, &found) != 0) {
        goto done;
    }
    CAR_TRY(car_source_reserve(buffer, (size_t)found.st_size));
    int64_t have = 0;
    while (have < found.st_size) {
        ssize_t got = read(handle, buffer->data + have, (size_t)(found.st_size - have));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            goto done;
        }
        if (got == 0) {
            break; /* it became shorter: decoded as far as it goes */
        }
        have += got;
    }
    *bytes = have;
done:
    if (handle >= 0) {
        int why = errno;
        close(handle);
        errno = why;
    }
    return status;
}

static car_status read_image(void *state, car_source_scratch *scratch, car_split split, int64_t sample,
                             const car_source_wish *wish, car_source_image *out) {
    const image_folder *folder = state;
    const listing *list = &folder->files[split];
    int64_t file = sample, bytes = 0;
    char path[PATH_CAPACITY];
    car_status status = CAR_OK;
    if (folder->held_out) {
        list = &folder->files[CAR_SPLIT_TRAIN];
        file = split == CAR_SPLIT_TRAIN ? sample + sample / (HELD_OUT - 1) : sample * HELD_OUT + HELD_OUT - 1;
    }
    out->image.label = locate(folder, list, file, path);
    CAR_TRY(read_file(folder, path, &scratch->file, &bytes));
    if (bytes < 0) {
        car_source_describe(out, CAR_SOURCE_UNREADABLE, path, strerror(errno));
    } else {
        CAR_TRY(car_jpeg_decode(path, scratch->file.data, (size_t)bytes, wish, &scratch->pixels, out));
    }
done:
    return status;
}

const car_source_methods car_source_imagefolder = {
    .open = open_folder,
    .close = close_folder,
    .class_name = name_class,
    .digest = digest_folder,
    .image = read_image,
};
