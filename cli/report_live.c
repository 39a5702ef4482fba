/* carousel report --live: writes the page again whenever a file of the runs changes, until all runs have ended. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "carousel/report.h"
#include "report.h"

enum { PATH_CAPACITY = 4096 };

static const char *const watched[] = {"config.json", "summary.json", "metrics.jsonl", "evaluations.jsonl",
                                      "timeline.json"};

/* ---- state of the runs ----------------------------------------------------------------------- */

static bool path_in(const char *directory, const char *name, char *path) {
    return snprintf(path, PATH_CAPACITY, "%s/%s", directory, name) < PATH_CAPACITY;
}

/* A number that changes when a file of the runs changes. */
static uint64_t find_state(const char *const *directories, int count) {
    uint64_t state = 0;
    char path[PATH_CAPACITY];
    struct stat entry;
    for (int d = 0; d < count; d++) {
        for (size_t w = 0; w < sizeof watched / sizeof watched[0]; w++) {
            if (path_in(directories[d], watched[w], path) && stat(path, &entry) == 0) {
                state = state * 31 + (uint64_t)entry.st_mtim.tv_sec * 1000000000u + (uint64_t)entry.st_mtim.tv_nsec;
                state = state * 31 + (uint64_t)entry.st_size + (uint64_t)entry.st_ino;
            }
        }
    }
    return state;
}

/* True if the run holds the lock of its directory. If locks cannot be queried, a lock file counts. */
static bool goes_on(const char *directory) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[PATH_CAPACITY];
    int file = path_in(directory, "lock", path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
        return false;
    }
    bool held = fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
    close(file);
    return held;
}

static bool any_goes_on(const char *const *directories, int count) {
    for (int d = 0; d < count; d++) {
        if (goes_on(directories[d])) {
            return true;
        }
    }
    return false;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void block_signals(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    sigprocmask(SIG_BLOCK, set, NULL);
}

/* True if a signal comes within `seconds`. */
static bool interrupted_within(const sigset_t *set, double seconds) {
    const struct timespec pause = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (time_t)seconds) * 1e9)};
    return sigtimedwait(set, NULL, &pause) > 0;
}

/* Writes the page if the runs have changed since `written` (0 = never written). */
static int write_if_changed(const car_cli_report_options *o, const char *const *directories, int count,
                            uint64_t *written) {
    uint64_t state = find_state(directories, count);
    bool first = *written == 0;
    if (state == 0 || state == *written) { /* the run is being set up, or nothing has changed */
        return CAR_CLI_OK;
    }
    int code = car_cli_report_write(o, directories, count, o->every, first);
    if (code == CAR_CLI_OK) {
        *written = state;
    }
    return first ? code : CAR_CLI_OK; /* later, a file may be half written: try again in the next round */
}

int car_cli_report_live(const car_cli_report_options *o, const char *const *directories, int count) {
    uint64_t written = 0;
    bool going = any_goes_on(directories, count), stopped = false;
    sigset_t set;
    block_signals(&set);
    if (going) {
        printf("%s: updated while the %s on; open it in a browser, and press Ctrl-C to stop updating\n", o->output,
               count == 1 ? "run goes" : "runs go");
        fflush(stdout);
    }
    while (going && !stopped) {
        int code = write_if_changed(o, directories, count, &written);
        if (code != CAR_CLI_OK) {
            return code;
        }
        stopped = interrupted_within(&set, o->every);
        going = any_goes_on(directories, count);
    }
    /* The last page does not reload itself. */
    int code = car_cli_report_write(o, directories, count, 0, true);
    if (code == CAR_CLI_OK) {
        printf("%s: %s\n", o->output,
               going ? "no longer updated; the run goes on" : "all runs have ended; the page is final");
    }
    return code;
}
