/* One run at a time in a run directory.
 *
 * DIR/lock is locked as long as the run goes, and says who has it. The lock belongs to the open file, so the system gives
 * it back when the process ends, however that happens: a file that a killed run left behind holds nobody up. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "carousel/convention.h"
#include "train.h"

enum {
    HOLDER = 160,       /* bytes of who has it, at most */
    READS = 20,         /* tries to read that: whoever took the lock writes it a moment later */
    RANK_PATIENCE = 40, /* tries to lock over MPI: the ranks of a job that was started again may still be ending */
    PAUSE_MS = 50
};

static void pause_briefly(void) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    nanosleep(&pause, NULL);
}

/* "process PID on HOST", as the holder wrote it; what cannot be printed is left out. */
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

/* For people: a disk without room for it is no reason not to run. */
static void write_holder(int file) {
    char host[HOLDER - 64] = "", holder[HOLDER];
    gethostname(host, sizeof host - 1);
    int length =
        snprintf(holder, sizeof holder, "process %ld on %s\n", (long)getpid(), host[0] ? host : "this machine");
    bool written = ftruncate(file, 0) == 0 && pwrite(file, holder, (size_t)length, 0) == length;
    (void)written;
}

/* Whether the file is still the one that the path names: who ends removes it while he has the lock. */
static bool is_current(int file, const char *path) {
    struct stat opened, named;
    return fstat(file, &opened) == 0 && stat(path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

static int try_lock(int file) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(file, F_OFD_SETLK, &whole) == 0 ? 0 : errno;
}

/* Takes the lock of the file that the path names. `reason` is 0, or why it could not be taken. */
static int open_locked(const car_train_run *run, const char *path, int *reason) {
    int patience = run->transport ? RANK_PATIENCE : 0;
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

static car_status create_directory(car_train_run *run) {
    const char *out = run->options.out;
    run->out_is_new = mkdir(out, 0777) == 0;
    if (!run->out_is_new && errno != EEXIST) {
        return car_context_fail(run->context, CAR_ERROR_IO, "could not create the run directory %s: %s", out,
                                strerror(errno));
    }
    return CAR_OK;
}

car_status car_train_lock(car_train_run *run) {
    const char *out = run->options.out;
    bool resume = run->options.resume || run->options.resume_step != CAR_NONE;
    char path[CAR_TRAIN_PATH], holder[HOLDER];
    int reason = 0;
    car_status status = CAR_OK;
    if (!out || (resume && access(out, F_OK) != 0)) { /* there is nothing to go on from, which will be said */
        return CAR_OK;
    }
    CAR_TRY(create_directory(run));
    CAR_TRY(car_train_path(run->context, out, "lock", path));
    int file = open_locked(run, path, &reason);
    if (file < 0) {
        return car_context_fail(run->context, CAR_ERROR_IO, "could not open %s: %s", path, strerror(reason));
    }
    if (reason == EAGAIN || reason == EACCES) {
        read_holder(file, holder);
        close(file);
        return car_context_fail(run->context, CAR_ERROR_IO,
                                "%s is in use by another run%s%s: wait for its end, stop it, or choose another --out",
                                out, holder[0] ? ", " : "", holder);
    }
    if (reason != 0) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "%s cannot be locked (%s): make sure that no other run writes there", out, strerror(reason));
    }
    run->locked = true;
    run->lock_file = file;
    write_holder(file);
done:
    return status;
}

void car_train_unlock(car_train_run *run) {
    char path[CAR_TRAIN_PATH];
    if (!run->locked) {
        return;
    }
    if (car_train_path(run->context, run->options.out, "lock", path) == CAR_OK && is_current(run->lock_file, path)) {
        unlink(path);
    }
    if (run->out_is_new) {
        rmdir(run->options.out); /* only if nothing was written */
    }
    close(run->lock_file);
    run->locked = false;
}
