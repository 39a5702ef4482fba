/* The directory of a run: its lock, the checkpoints that earlier runs left, and whether it still exists.
 *
 * DIRECTORY/lock is locked while the run exists, and names the process. The lock belongs to the open file, so the
 * system releases it whenever the process ends: the file of a killed run does not block the next one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/folder.h"
#include "run/internal.h"

enum {
    HOLDER = 160,       /* most bytes of the holder's name */
    READS = 20,         /* tries to read the name, which is written shortly after locking */
    RANK_PATIENCE = 40, /* tries to lock over MPI: ranks of a restarted job may still be ending */
    PAUSE_MS = 50
};

static const double look_after = 1.0; /* seconds between checks that the directory exists */

/* ---- paths ----------------------------------------------------------------------------------- */

car_status car_run_place_path(const car_run *run, const char *name, char path[CAR_RUN_PATH]) {
    const char *directory = run->options.directory;
    int length = snprintf(path, CAR_RUN_PATH, "%s%s%s", directory, *name ? "/" : "", name);
    if (length < 0 || length >= CAR_RUN_PATH) {
        return car_context_fail(run->context, CAR_ERROR_IO, "the path %s is too long", directory);
    }
    return CAR_OK;
}

car_status car_run_checkpoints(const car_run *run, char path[CAR_RUN_PATH]) {
    return car_run_place_path(run, run->options.run_directory ? "checkpoints" : "", path);
}

bool car_run_saves(const car_run *run) {
    return run->options.directory && !run->options.no_checkpoints;
}

/* ---- the lock -------------------------------------------------------------------------------- */

static void pause_briefly(void) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    nanosleep(&pause, NULL);
}

/* Reads "process PID on HOST" from the lock file, without characters that cannot be printed. */
static void read_holder(int file, char holder[HOLDER]) {
    ssize_t bytes = 0;
    for (int n = 0; n < READS && bytes <= 0; n++) {
        if (n > 0) {
            pause_briefly();
        }
        bytes = pread(file, holder, HOLDER - 1, 0);
    }
    size_t kept = 0;
    for (ssize_t n = 0; n < bytes && holder[n] != '\n'; n++) {
        if (holder[n] >= ' ' && holder[n] <= '~') {
            holder[kept++] = holder[n];
        }
    }
    holder[kept] = '\0';
}

/* The text only helps users, so a full disk is no reason to fail. */
static void write_holder(int file) {
    char host[HOLDER - 64] = "", holder[HOLDER];
    gethostname(host, sizeof host - 1);
    int length =
        snprintf(holder, sizeof holder, "process %ld on %s\n", (long)getpid(), host[0] ? host : "this machine");
    bool written = ftruncate(file, 0) == 0 && pwrite(file, holder, (size_t)length, 0) == length;
    (void)written;
}

/* True if the path still names this file. A run that ends removes its lock file while it holds the lock. */
static bool is_current(int file, const char *path) {
    struct stat opened, named;
    return fstat(file, &opened) == 0 && stat(path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

static int try_lock(int file) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(file, F_OFD_SETLK, &whole) == 0 ? 0 : errno;
}

/* Opens and locks the file at `path`. *reason: 0, or the errno that says why it is not locked. */
static int open_locked(const car_run *run, const char *path, int *reason) {
    int patience = run->launched ? RANK_PATIENCE : 0;
    for (;;) {
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        *reason = file < 0 ? errno : try_lock(file);
        bool held = file >= 0 && (*reason == EAGAIN || *reason == EACCES);
        if (file < 0 || (held && patience == 0) || (!held && (*reason != 0 || is_current(file, path)))) {
            return file;
        }
        close(file);
        if (held) {
            patience--;
            pause_briefly();
        }
    }
}

static car_status make_directory(car_run *run) {
    const char *path = run->options.directory;
    car_status status = CAR_OK;
    if (!run->options.run_directory) {
        return car_folder_make(run->context, path);
    }
    run->place.is_new = mkdir(path, 0777) == 0;
    if (!run->place.is_new && errno != EEXIST) {
        status = car_context_fail(run->context, CAR_ERROR_IO, "cannot create the run directory %s: %s", path,
                                  strerror(errno));
    }
    return status;
}

car_status car_run_lock(car_run *run) {
    const char *directory = run->options.directory;
    bool goes_on = run->options.run_directory && (run->options.resume || run->options.resume_step);
    char path[CAR_RUN_PATH], holder[HOLDER];
    struct stat entry;
    int reason = 0;
    car_status status = CAR_OK;
    if (!directory || (goes_on && access(directory, F_OK) != 0)) { /* nothing to resume: reported later */
        return CAR_OK;
    }
    CAR_TRY(make_directory(run));
    CAR_TRY(car_run_place_path(run, "lock", path));
    int file = open_locked(run, path, &reason);
    if (file < 0) {
        return car_context_fail(run->context, CAR_ERROR_IO, "cannot open %s: %s", path, strerror(reason));
    }
    if (reason == EAGAIN || reason == EACCES) {
        read_holder(file, holder);
        close(file);
        return car_context_fail(run->context, CAR_ERROR_IO,
                                "%s is in use by another run%s%s: wait until it ends, stop it, or choose another %s",
                                directory, holder[0] ? ", " : "", holder,
                                car_run_name(&run->options, "directory").text);
    }
    if (reason != 0) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "%s cannot be locked (%s): make sure that no other run writes there", directory,
                        strerror(reason));
    }
    run->place.locked = true;
    run->place.lock_file = file;
    write_holder(file);
    if (stat(directory, &entry) == 0) {
        run->place.device = entry.st_dev;
        run->place.number = entry.st_ino;
    }
done:
    return status;
}

void car_run_unlock(car_run *run) {
    char path[CAR_RUN_PATH];
    if (!run->place.locked) {
        return;
    }
    if (car_run_place_path(run, "lock", path) == CAR_OK && is_current(run->place.lock_file, path)) {
        unlink(path);
    }
    if (run->place.is_new) {
        rmdir(run->options.directory); /* fails, as it should, if anything was written */
    }
    close(run->place.lock_file);
    run->place.locked = false;
}

/* ---- checkpoints in it ----------------------------------------------------------------------- */

car_status car_run_look(car_run *run) {
    const car_run_options *o = &run->options;
    char path[CAR_RUN_PATH];
    int64_t newest = -1;
    bool resume = o->resume || o->resume_step;
    car_status status = CAR_OK;
    if (!o->directory) {
        return CAR_OK;
    }
    CAR_TRY(car_run_checkpoints(run, path));
    CAR_TRY(car_checkpoint_newest(run->context, path, &newest));
    if (!resume && newest >= 0) {
        return car_context_fail(
            run->context, CAR_ERROR_IO,
            "%s already has a run, saved after step %lld: continue it with %s, or choose another %s", o->directory,
            (long long)newest, car_run_name(o, "resume").text, car_run_name(o, "directory").text);
    }
    if (resume && newest < 0 && o->run_directory) {
        return car_context_fail(run->context, CAR_ERROR_IO, "%s: there is no checkpoint in %s",
                                car_run_name(o, "resume").text, path);
    }
    run->begin_step = o->resume_step ? o->resume_step : newest;
done:
    return status;
}

/* ---- whether it still exists ----------------------------------------------------------------- */

/* True if the directory was removed or replaced. Some file systems change a directory's inode number now and then, so
 * the lock must be missing too. */
static bool is_gone(const car_run *run) {
    char path[CAR_RUN_PATH];
    struct stat entry;
    if (!run->place.locked || !run->options.run_directory) {
        return false;
    }
    if (stat(run->options.directory, &entry) != 0) {
        return errno == ENOENT || errno == ENOTDIR;
    }
    if (entry.st_dev == run->place.device && entry.st_ino == run->place.number) {
        return false;
    }
    return car_run_place_path(run, "lock", path) == CAR_OK && stat(path, &entry) != 0 && errno == ENOENT;
}

void car_run_look_for_directory(car_run *run, double now) {
    if (now - run->place.looked < look_after) {
        return;
    }
    run->place.looked = now;
    if (is_gone(run)) {
        car_rank_stop(run->members[0].rank); /* car_run_find_directory reports why, after training */
    }
}

car_status car_run_find_directory(const car_run *run) {
    if (!is_gone(run)) {
        return CAR_OK;
    }
    return car_context_fail(run->context, CAR_ERROR_IO,
                            "the run directory %s was removed during the run: training stopped after %lld steps, and "
                            "everything since the last checkpoint is lost",
                            run->options.directory, (long long)car_run_steps(run));
}
