/* Finds the files of an image folder: its layout, its classes, the files of each class at any depth, and what is not
 * used.
 *
 * The order is torchvision's: classes by the bytes of their names; within a class by the path of the folder; within
 * a folder by the name of the file. So files directly in a class's folder come before those of its subfolders. */
#include "data/imagefolder.h"

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

#include "base/shown.h"
#include "carousel/image.h"

/* ---- unused entries -------------------------------------------------------------------------- */

/* Counts an entry, and keeps the name that sorts first for each reason. A long name is shortened at its start. */
static void count_unused(car_imagefolder *folder, car_unused reason, const char *name) {
    char shown[sizeof folder->unused.first[0]];
    char *first = folder->unused.first[reason];
    size_t length = strlen(name), room = sizeof shown - sizeof "...";
    size_t left_out = length > room ? length - room : 0;
    while ((name[left_out] & 0xC0) == 0x80) { /* do not cut a character in two */
        left_out++;
    }
    size_t dots = (size_t)snprintf(shown, sizeof shown, "%s", left_out ? "..." : "");
    car_utf8_show(name + left_out, false, shown + dots, sizeof shown - dots);
    if (folder->unused.count[reason]++ == 0 || strcmp(shown, first) < 0) {
        memcpy(first, shown, sizeof shown);
    }
}

static bool has_ending(const char *name, const char *const *endings) {
    const char *dot = strrchr(name, '.');
    for (; dot && *endings; endings++) {
        if (strcasecmp(dot, *endings) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_other_image(const char *name) {
    static const char *const endings[] = {".ppm", ".pgm", ".bmp",  ".tif",  ".tiff", ".gif",
                                          ".jp2", ".jxl", ".avif", ".heic", ".jfif", NULL};
    return has_ending(name, endings);
}

/* ---- one folder ------------------------------------------------------------------------------ */

typedef enum entry_type { ENTRY_FILE, ENTRY_FOLDER, ENTRY_SPECIAL } entry_type;

/* The type of an entry, or of what it links to. A broken link counts as a file, so that it shows up among the
 * unreadable ones. */
static entry_type type_of(int directory, const struct dirent *entry) {
    struct stat found;
    mode_t mode = (mode_t)DTTOIF(entry->d_type);
    if (entry->d_type == DT_UNKNOWN || entry->d_type == DT_LNK) {
        mode = fstatat(directory, entry->d_name, &found, 0) == 0 ? found.st_mode : S_IFREG;
    }
    return S_ISREG(mode) ? ENTRY_FILE : S_ISDIR(mode) ? ENTRY_FOLDER : ENTRY_SPECIAL;
}

typedef car_status (*entry_visitor)(car_imagefolder *folder, void *user, const char *name, entry_type type);

static int compare_entries(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_entry(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* Calls `visit` for each entry of a folder, in the order of names. */
static car_status visit_entries(car_imagefolder *folder, const char *path, entry_visitor visit, void *user) {
    struct dirent **entries = NULL;
    car_status status = CAR_OK;
    int directory = openat(folder->root, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int count = directory < 0 ? -1 : scandirat(directory, ".", &entries, is_entry, compare_entries);
    if (count < 0) {
        CAR_TRY(car_context_fail(folder->context, errno == ENOMEM ? CAR_ERROR_MEMORY : CAR_ERROR_IO,
                                 "data imagefolder: folder '%s': %s", path, strerror(errno)));
    }
    for (int e = 0; e < count; e++) {
        CAR_TRY(visit(folder, user, entries[e]->d_name, type_of(directory, entries[e])));
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

/* ---- classes --------------------------------------------------------------------------------- */

/* Whether an entry of a split's folder may be a class; counts it as unused if not. */
static bool may_be_class(car_imagefolder *folder, const char *place, const char *name, entry_type type) {
    char path[NAME_MAX + sizeof folder->files[0].place];
    snprintf(path, sizeof path, "%s%s", place, name);
    if (name[0] == '.') {
        count_unused(folder, CAR_UNUSED_HIDDEN, path);
    } else if (type != ENTRY_FOLDER) {
        count_unused(folder, CAR_UNUSED_OUTSIDE, path);
    }
    return name[0] != '.' && type == ENTRY_FOLDER;
}

static car_status add_class(car_imagefolder *folder, void *user, const char *name, entry_type type) {
    const car_imagefolder_files *files = user;
    car_status status = CAR_OK;
    if (may_be_class(folder, files->place, name, type)) {
        CAR_TRY(car_context_grow(folder->context, &folder->classes, &folder->class_capacity, folder->class_count + 1,
                                 sizeof *folder->classes));
        CAR_TRY(car_context_copy_text(folder->context, name, &folder->classes[folder->class_count]));
        folder->class_count++;
    }
done:
    return status;
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A class that only evaluation has cannot be learnt, and would shift the numbers of the others. */
static car_status check_class(car_imagefolder *folder, void *user, const char *name, entry_type type) {
    const car_imagefolder_files *files = user;
    if (may_be_class(folder, files->place, name, type) &&
        !bsearch(&name, folder->classes, (size_t)folder->class_count, sizeof *folder->classes, compare_texts)) {
        return car_context_fail(folder->context, CAR_ERROR_FORMAT,
                                "data imagefolder: there is a class %s%s, but no class %s to train on", files->place,
                                name, name);
    }
    return CAR_OK;
}

/* ---- the files of a class -------------------------------------------------------------------- */

/* A folder to visit. Ancestors are identified by device and inode, to detect links back to one of them. */
typedef struct node {
    char *path; /* relative to the root */
    int parent; /* CAR_NONE for the root */
    dev_t device;
    ino_t inode;
} node;

typedef struct walk {
    car_imagefolder_files *files;
    size_t prefix; /* length of "train/CLASS/" */
    node *nodes;
    int count, capacity;
    int current; /* the node being visited */
    int64_t others;
} walk;

static bool leads_back(const walk *w, int parent, const struct stat *found) {
    for (int n = parent; n != CAR_NONE; n = w->nodes[n].parent) {
        if (w->nodes[n].device == found->st_dev && w->nodes[n].inode == found->st_ino) {
            return true;
        }
    }
    return false;
}

/* Queues a folder to visit later, so that only one folder is open at a time, however deep they are nested. */
static car_status add_node(car_imagefolder *folder, walk *w, const char *path, int parent) {
    struct stat found;
    car_status status = CAR_OK;
    if (fstatat(folder->root, *path ? path : ".", &found, 0) != 0) {
        CAR_TRY(car_context_fail(folder->context, CAR_ERROR_IO, "data imagefolder: folder '%s': %s", path,
                                 strerror(errno)));
    }
    if (leads_back(w, parent, &found)) {
        count_unused(folder, CAR_UNUSED_LOOP, path);
        return CAR_OK;
    }
    CAR_TRY(car_context_grow(folder->context, &w->nodes, &w->capacity, w->count + 1, sizeof *w->nodes));
    w->nodes[w->count] = (node){.parent = parent, .device = found.st_dev, .inode = found.st_ino};
    CAR_TRY(car_context_copy_text(folder->context, path, &w->nodes[w->count].path));
    w->count++;
done:
    return status;
}

static car_status add_file(car_imagefolder *folder, car_imagefolder_files *files, const char *name) {
    size_t bytes = strlen(name) + 1;
    car_status status = CAR_OK;
    /* Capacities are ints, and double. */
    if (bytes > (size_t)(INT_MAX / 2 - files->name_bytes) || files->count >= INT_MAX / 2) {
        CAR_TRY(car_context_fail(folder->context, CAR_ERROR_UNSUPPORTED,
                                 "data imagefolder: there are more than %d files", files->count));
    }
    CAR_TRY(car_context_grow(folder->context, &files->names, &files->name_capacity, files->name_bytes + (int)bytes, 1));
    CAR_TRY(
        car_context_grow(folder->context, &files->starts, &files->capacity, files->count + 1, sizeof *files->starts));
    memcpy(files->names + files->name_bytes, name, bytes);
    files->starts[files->count++] = files->name_bytes;
    files->name_bytes += (int)bytes;
done:
    return status;
}

static car_status take_entry(car_imagefolder *folder, void *user, const char *name, entry_type type) {
    walk *w = user;
    char path[PATH_MAX];
    const char *in = w->nodes[w->current].path;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", in, name) >= sizeof path) {
        return car_context_fail(folder->context, CAR_ERROR_UNSUPPORTED,
                                "data imagefolder: the path of '%s' in '%.200s...' is too long", name, in);
    }
    if (name[0] == '.') {
        count_unused(folder, CAR_UNUSED_HIDDEN, path);
    } else if (type == ENTRY_FOLDER) {
        return add_node(folder, w, path, w->current);
    } else if (type == ENTRY_SPECIAL) {
        count_unused(folder, CAR_UNUSED_SPECIAL, path);
    } else if (car_image_has_known_ending(name)) {
        return add_file(folder, w->files, path + w->prefix);
    } else {
        w->others += is_other_image(name);
        count_unused(folder, is_other_image(name) ? CAR_UNUSED_FORMAT : CAR_UNUSED_OTHER, path);
    }
    return CAR_OK;
}

/* Compares by the folder's path, then by the name. */
static int compare_files(const void *a, const void *b, void *names) {
    const char *left = (const char *)names + *(const int32_t *)a, *right = (const char *)names + *(const int32_t *)b;
    const char *left_slash = strrchr(left, '/'), *right_slash = strrchr(right, '/');
    size_t left_bytes = left_slash ? (size_t)(left_slash - left) : 0;
    size_t right_bytes = right_slash ? (size_t)(right_slash - right) : 0;
    int order = memcmp(left, right, left_bytes < right_bytes ? left_bytes : right_bytes);
    if (order == 0 && left_bytes != right_bytes) {
        order = left_bytes < right_bytes ? -1 : 1;
    }
    return order ? order : strcmp(left + left_bytes, right + right_bytes);
}

/* Visiting folders adds their subfolders, until none is left. */
static car_status walk_class(car_imagefolder *folder, walk *w, const char *path) {
    car_imagefolder_files *files = w->files;
    int first = files->count, above = 0;
    car_status status = CAR_OK;
    w->prefix = strlen(path) + 1;
    CAR_TRY(add_node(folder, w, "", CAR_NONE));
    if (*files->place) {
        CAR_TRY(add_node(folder, w, files->place, above));
        above = w->count - 1;
    }
    w->current = w->count;
    CAR_TRY(add_node(folder, w, path, above));
    for (; w->current < w->count; w->current++) {
        CAR_TRY(visit_entries(folder, w->nodes[w->current].path, take_entry, w));
    }
    if (files->count > first) {
        qsort_r(files->starts + first, (size_t)(files->count - first), sizeof *files->starts, compare_files,
                files->names);
    }
done:
    return status;
}

static car_status find_class_files(car_imagefolder *folder, car_imagefolder_files *files, const char *path,
                                   int64_t *others) {
    walk w = {.files = files};
    car_status status = walk_class(folder, &w, path);
    *others = w.others;
    for (int n = 0; n < w.count; n++) {
        car_context_release_text(folder->context, w.nodes[n].path);
    }
    car_context_release(folder->context, w.nodes, (size_t)w.capacity, sizeof *w.nodes);
    return status;
}

static car_status refuse_empty(car_imagefolder *folder, const char *path, int64_t others) {
    char hint[96] = "remove its folder, or start its name with a dot";
    if (others > 0) {
        snprintf(hint, sizeof hint, "it has %lld images of other types: convert them to JPEG, PNG or WebP",
                 (long long)others);
    }
    return car_context_fail(folder->context, CAR_ERROR_FORMAT,
                            "data imagefolder: class '%s' has no .jpg, .jpeg, .png or .webp file; %s", path, hint);
}

static car_status list_files(car_imagefolder *folder, car_imagefolder_files *files, bool must_have) {
    car_status status = CAR_OK;
    CAR_TRY(
        car_context_allocate(folder->context, (size_t)folder->class_count + 1, sizeof *files->firsts, &files->firsts));
    for (int c = 0; c < folder->class_count; c++) {
        char path[NAME_MAX + sizeof files->place + 1];
        struct stat found;
        int64_t others = 0;
        snprintf(path, sizeof path, "%s%s", files->place, folder->classes[c]);
        files->firsts[c] = files->count;
        if (must_have || fstatat(folder->root, path, &found, 0) == 0) {
            CAR_TRY(find_class_files(folder, files, path, &others));
        }
        if (files->count == files->firsts[c]) {
            CAR_TRY(must_have ? refuse_empty(folder, path, others) : CAR_OK);
            count_unused(folder, CAR_UNUSED_EMPTY, path);
        }
    }
    files->firsts[folder->class_count] = files->count;
done:
    return status;
}

/* ---- the layout ------------------------------------------------------------------------------ */

static bool is_folder(const car_imagefolder *folder, const char *name) {
    struct stat found;
    return fstatat(folder->root, name, &found, 0) == 0 && S_ISDIR(found.st_mode);
}

static car_status count_folder(car_imagefolder *folder, void *user, const char *name, entry_type type) {
    (void)folder;
    *(int *)user += name[0] != '.' && type == ENTRY_FOLDER;
    return CAR_OK;
}

/* Counts what is neither train/ nor the folder for evaluation. */
static car_status count_beside(car_imagefolder *folder, void *user, const char *name, entry_type type) {
    (void)user;
    size_t length = strlen(name);
    for (int s = 0; s < CAR_SPLITS; s++) {
        const char *place = folder->files[s].place;
        if (strncmp(place, name, length) == 0 && strcmp(place + length, "/") == 0) {
            return CAR_OK;
        }
    }
    if (may_be_class(folder, "", name, type)) {
        count_unused(folder, CAR_UNUSED_BESIDE, name);
    }
    return CAR_OK;
}

/* Detects the layout. A folder train/ without subfolders is a class itself: pictures of trains. */
static car_status find_layout(car_imagefolder *folder) {
    car_imagefolder_files *train = &folder->files[CAR_SPLIT_TRAIN], *evaluation = &folder->files[CAR_SPLIT_EVALUATION];
    int below = 0;
    car_status status = CAR_OK;
    if (is_folder(folder, "train")) {
        CAR_TRY(visit_entries(folder, "train", count_folder, &below));
    }
    if (below > 0) {
        snprintf(train->place, sizeof train->place, "train/");
        if (is_folder(folder, "val") || is_folder(folder, "test")) {
            snprintf(evaluation->place, sizeof evaluation->place, "%s", is_folder(folder, "val") ? "val/" : "test/");
        }
        CAR_TRY(visit_entries(folder, "", count_beside, NULL));
    }
    folder->held_out = !*evaluation->place;
done:
    return status;
}

car_status car_imagefolder_list(car_imagefolder *folder, const char *path, car_dataset_info *info) {
    car_imagefolder_files *train = &folder->files[CAR_SPLIT_TRAIN], *evaluation = &folder->files[CAR_SPLIT_EVALUATION];
    car_status status = CAR_OK;
    CAR_TRY(find_layout(folder));
    CAR_TRY(visit_entries(folder, train->place, add_class, train));
    if (folder->class_count == 0) {
        CAR_TRY(car_context_fail(
            folder->context, CAR_ERROR_FORMAT,
            "data imagefolder:%s: there are no folders in it; images must be at train/CLASS/NAME.jpg or CLASS/NAME.jpg",
            path));
    }
    CAR_TRY(list_files(folder, train, true));
    info->samples[CAR_SPLIT_TRAIN] = train->count;
    if (folder->held_out) {
        info->samples[CAR_SPLIT_EVALUATION] = train->count / CAR_IMAGEFOLDER_HELD_OUT;
        info->samples[CAR_SPLIT_TRAIN] -= train->count / CAR_IMAGEFOLDER_HELD_OUT;
    } else {
        CAR_TRY(visit_entries(folder, evaluation->place, check_class, evaluation));
        CAR_TRY(list_files(folder, evaluation, false));
        info->samples[CAR_SPLIT_EVALUATION] = evaluation->count;
    }
    info->domain = CAR_DOMAIN_IMAGES;
    info->classes = folder->class_count;
done:
    return status;
}
