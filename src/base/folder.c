/* Makes, removes and cleans up directories: see folder.h. */
#include "base/folder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"

static const char suffix[] = ".tmp";

/* ---- making and removing --------------------------------------------------------------------- */

car_status car_folder_of(car_context *context, const char *path, char **out) {
    const char *slash = strrchr(path, '/');
    car_text text = {.context = context};
    if (slash == NULL) {
        car_text_add(&text, ".");
    } else {
        car_text_add(&text, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    }
    return car_text_finish(&text, out);
}

car_status car_folder_sync(car_context *context, const char *path) {
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot flush directories and return EINVAL. Nothing can be done about that. */
    bool flushed = descriptor >= 0 && (fsync(descriptor) == 0 || errno == EINVAL);
    car_status status =
        flushed ? CAR_OK : car_context_fail(context, CAR_ERROR_IO, "%s: cannot flush: %s", path, strerror(errno));
    if (descriptor >= 0) {
        close(descriptor);
    }
    return status;
}

static car_status make_one(car_context *context, const char *path) {
    struct stat info;
    char *above = NULL;
    car_status status = CAR_OK;
    if (mkdir(path, 0777) == 0) {
        CAR_TRY(car_folder_of(context, path, &above));
        CAR_TRY(car_folder_sync(context, above));
        goto done;
    }
    int reason = errno;
    if (stat(path, &info) != 0) {
        status =
            car_context_fail(context, CAR_ERROR_IO, "%s: cannot create this directory: %s", path, strerror(reason));
    } else if (!S_ISDIR(info.st_mode)) {
        status = car_context_fail(context, CAR_ERROR_IO, "%s: is a file, not a directory; choose another path", path);
    }
done:
    car_context_release_text(context, above);
    return status;
}

car_status car_folder_make(car_context *context, const char *path) {
    char *part = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_copy_text(context, path, &part));
    for (char *end = part; *end;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char kept = *end;
        *end = '\0';
        status = make_one(context, part);
        *end = kept;
        if (status != CAR_OK) {
            goto done;
        }
        end += strspn(end, "/");
    }
done:
    car_context_release_text(context, part);
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info;
    (void)type;
    (void)place;
    return remove(path);
}

bool car_folder_remove(const char *path) {
    enum { OPEN_AT_ONCE = 8 };
    return nftw(path, remove_entry, OPEN_AT_ONCE, FTW_DEPTH | FTW_PHYS) == 0;
}

/* ---- temporary names ------------------------------------------------------------------------- */

car_status car_folder_temporary(car_context *context, const char *directory, const char *name, char **out) {
    car_text text = {.context = context};
    car_text_add(&text, "%s/.%s.%ld%s", directory, name, (long)getpid(), suffix);
    return car_text_finish(&text, out);
}

/* The process id in a temporary name that begins with .NAME; 0 if it is not such a name. */
static long writer_of(const char *entry, const char *name) {
    size_t length = strlen(entry), begin = 1 + strlen(name), end = length - strlen(suffix);
    if (length < begin + strlen(suffix) + 2 || entry[0] != '.' || strncmp(entry + 1, name, begin - 1) != 0 ||
        strcmp(entry + end, suffix) != 0) {
        return 0;
    }
    size_t digits = end;
    while (digits > begin && isdigit((unsigned char)entry[digits - 1])) {
        digits--;
    }
    long pid = digits < end && entry[digits - 1] == '.' ? strtol(entry + digits, NULL, 10) : 0;
    return pid <= INT32_MAX ? pid : 0;
}

/* Process ids are reused, especially in containers. So a file with our own id is a leftover, not another process's. */
static bool is_other_process(long pid) {
    return pid != (long)getpid() && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

void car_folder_clear(car_context *context, const char *directory, const char *name) {
    DIR *folder = opendir(directory);
    if (folder == NULL) {
        return;
    }
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        long pid = writer_of(entry->d_name, name);
        if (pid <= 0 || is_other_process(pid)) {
            continue;
        }
        car_text text = {.context = context};
        char *path = NULL;
        car_text_add(&text, "%s/%s", directory, entry->d_name);
        if (car_text_finish(&text, &path) == CAR_OK) {
            car_folder_remove(path);
        }
        car_context_release_text(context, path);
    }
    closedir(folder);
}
