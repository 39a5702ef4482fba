/* carousel launch: starts the ranks of a run with mpirun. If a rank dies, restarts all from the last checkpoint. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "carousel/checkpoint.h"
#include "carousel/convention.h"
#include "cli.h"

enum { PATH_CAPACITY = 4096, LINE_CAPACITY = 1024 };

static const double settling = 1; /* seconds until mpirun handles signals */

typedef struct launch_options {
    int ranks, restarts;
    const char *mpirun;
    char program[PATH_CAPACITY]; /* this program; found at the start, since the file may be replaced during the run */
} launch_options;

static volatile pid_t child;         /* for the signal handler */
static volatile sig_atomic_t ending; /* number of signals that asked to end */

/* After the first signal await_end asks the ranks to end. A second one kills mpirun at once. */
static void on_end(int number) {
    (void)number;
    if (child > 0 && ending > 0) {
        kill(child, SIGTERM);
    }
    ending = ending + 1;
}

static int read_options(int argc, char **argv, int *used, launch_options *o) {
    const car_cli_option options[] = {
        {"n", "R", "number of ranks to start (required)", CAR_CLI_INT, &o->ranks, 1, 1 << 20},
        {"restarts", "K", "restart up to K times after a failure, from the newest checkpoint (default: 0)", CAR_CLI_INT,
         &o->restarts, 0, 1e6},
        {"mpirun", "PROGRAM", "MPI launcher to use", CAR_CLI_TEXT, &o->mpirun, 0, 0},
    };
    const car_cli_command command = {
        "launch", "Starts the ranks of a run with mpirun, and restarts them after a failure.",
        "carousel launch -n R [OPTIONS] -- train ...",
        "SIGTERM, SIGHUP or SIGINT (Ctrl-C) makes the run write a checkpoint and end; a second one ends it at once.\n"
        "exit codes: 0 done, 1 failed, 2 wrong command line, 3 a rank was lost and no restart was left, 4 ended by a "
        "signal\n"};
    int split = 1;
    while (split < argc && strcmp(argv[split], "--") != 0) {
        if (strcmp(argv[split], "-n") == 0) {
            argv[split] = "--n"; /* mpirun calls it -n too */
        }
        split++;
    }
    *used = split;
    return car_cli_parse(&command, options, (int)(sizeof options / sizeof options[0]), split, argv);
}

/* The value of an option in the ranks' arguments, or NULL. */
static const char *find_value(char **argv, const char *name) {
    size_t length = strlen(name);
    for (int a = 0; argv[a]; a++) {
        if (strcmp(argv[a], name) == 0) {
            return argv[a + 1];
        }
        if (strncmp(argv[a], name, length) == 0 && argv[a][length] == '=') {
            return argv[a] + length + 1;
        }
    }
    return NULL;
}

static bool has_flag(char **argv, const char *name) {
    for (int a = 0; argv[a]; a++) {
        if (strcmp(argv[a], name) == 0) {
            return true;
        }
    }
    return false;
}

/* The step of the run's newest checkpoint, or -1. */
static long long newest_checkpoint(const char *out) {
    char path[PATH_CAPACITY];
    car_context *context = NULL;
    int64_t step = -1;
    if (!out || snprintf(path, sizeof path, "%s/checkpoints", out) >= (int)sizeof path) {
        return -1;
    }
    if (car_context_create(NULL, &context) == CAR_OK && car_checkpoint_newest(context, path, &step) != CAR_OK) {
        step = -1;
    }
    car_context_destroy(context);
    return (long long)step;
}

/* ---- one start ------------------------------------------------------------------------------- */

static void become_mpirun(const launch_options *o, char **train, bool resume) {
    char ranks[32];
    int count = 0;
    while (train[count]) {
        count++;
    }
    char **arguments = calloc((size_t)count + 8, sizeof *arguments);
    if (!arguments) {
        _exit(CAR_CLI_FAILED);
    }
    snprintf(ranks, sizeof ranks, "%d", o->ranks);
    int a = 0;
    arguments[a++] = (char *)o->mpirun;
    arguments[a++] = "-n";
    arguments[a++] = ranks;
    arguments[a++] = (char *)o->program;
    for (int t = 0; t < count; t++) {
        arguments[a++] = train[t];
    }
    if (resume) {
        arguments[a++] = "--resume";
    }
    /* Open MPI refuses both by default. Other MPIs ignore these variables. */
    if (o->ranks > sysconf(_SC_NPROCESSORS_ONLN)) {
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    }
    if (geteuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    execvp(o->mpirun, arguments);
    fprintf(stderr, "carousel: could not start %s: %s\n", o->mpirun, strerror(errno));
    _exit(CAR_CLI_USAGE);
}

/* Makes a process group without the terminal: Ctrl-C must reach only the launcher, since mpirun would kill the ranks.
 * Ranks read no input. */
static void leave_terminal(void) {
    int nothing = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* end the ranks if the launcher dies */
    if (nothing >= 0) {
        dup2(nothing, STDIN_FILENO);
        close(nothing);
    }
}

/* ---- output of the job ----------------------------------------------------------------------- */

/* How a job ended. */
typedef struct job_end {
    int code;                     /* of mpirun; 128 + number for a signal */
    int lost_rank, lost_by;       /* the rank that died first, and its signal; -1 if unknown */
    bool obeys;                   /* rank 0 has printed that it ends the run as asked */
    double started;               /* wall-clock seconds */
    char line[LINE_CAPACITY + 1]; /* the current line of output */
    size_t length;
} job_end;

/* Open MPI names the process: "... process rank 2 with PID 0 on node n1 exited on signal 9 (Killed)." Rank 0 prints a
 * line when it is asked to end. */
static void read_line(job_end *end) {
    const char *rank = strstr(end->line, "process rank "), *by = strstr(end->line, "exited on signal ");
    if (end->lost_rank < 0 && rank && by && sscanf(rank, "process rank %d", &end->lost_rank) == 1 &&
        sscanf(by, "exited on signal %d", &end->lost_by) != 1) {
        end->lost_rank = -1;
    }
    end->obeys = end->obeys || strstr(end->line, "ending the run cleanly");
}

/* Forwards the job's output to stderr, and parses its lines. */
static void hand_on(job_end *end, const char *text, size_t length) {
    fwrite(text, 1, length, stderr);
    for (size_t c = 0; c < length; c++) {
        if (text[c] != '\n' && end->length < LINE_CAPACITY) {
            end->line[end->length++] = text[c];
        } else if (text[c] == '\n') {
            end->line[end->length] = '\0';
            read_line(end);
            end->length = 0;
        }
    }
}

static double seconds_of(const struct timespec *time) {
    return (double)time->tv_sec + 1e-9 * (double)time->tv_nsec;
}

/* Waits until mpirun has ended and its output has been read. */
static bool await_end(pid_t started, int said, job_end *end) {
    double begun = car_clock_seconds(), asked = 0;
    bool over = false;
    for (;;) {
        /* After SIGTERM mpirun kills its ranks within a second. SIGUSR1 it forwards, and they write a checkpoint and
         * end. mpirun and ranks may not be ready for signals yet, so the request is repeated until they have ended. */
        double now = car_clock_seconds();
        if (ending > 0 && !over && now - begun > settling && now - asked > 1) {
            kill(started, SIGUSR1);
            asked = now;
        }
        char text[LINE_CAPACITY];
        struct pollfd poller = {.fd = said, .events = POLLIN};
        int ready = poll(&poller, 1, over ? 0 : 100);
        ssize_t length = ready > 0 ? read(said, text, sizeof text) : -1;
        if (length > 0) {
            hand_on(end, text, (size_t)length);
            continue;
        }
        if (over) {
            return true;
        }
        int state = 0;
        pid_t ended = waitpid(started, &state, length == 0 ? 0 : WNOHANG); /* end of output: wait */
        if (ended < 0 && errno != EINTR) {
            return false;
        }
        if (ended == started) {
            end->code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
            over = true;
        }
    }
}

static job_end run_once(const launch_options *o, char **train, bool resume) {
    job_end end = {.code = CAR_CLI_FAILED, .lost_rank = -1, .lost_by = -1};
    struct timespec now;
    int said[2];
    clock_gettime(CLOCK_REALTIME, &now);
    end.started = seconds_of(&now);
    if (pipe(said) != 0) {
        car_cli_fail(CAR_CLI_FAILED, "launch: could not create a pipe: %s", strerror(errno));
        return end;
    }
    pid_t started = fork();
    if (started == 0) {
        leave_terminal();
        dup2(said[1], STDERR_FILENO);
        close(said[0]);
        close(said[1]);
        become_mpirun(o, train, resume);
    }
    close(said[1]);
    child = started > 0 ? started : 0;
    if (started < 0 || !await_end(started, said[0], &end)) {
        car_cli_fail(CAR_CLI_FAILED, "launch: could not start %s or wait for it: %s", o->mpirun, strerror(errno));
    }
    child = 0;
    close(said[0]);
    return end;
}

/* True if this job has written a summary that says that all steps were made. A summary of an earlier job does not
 * count. */
static bool says_done(const job_end *end, const char *out) {
    char path[PATH_CAPACITY], line[LINE_CAPACITY];
    struct stat info;
    bool done = false;
    snprintf(path, sizeof path, "%s/summary.json", out);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        done = done || (strstr(line, "\"interrupted\"") && strstr(line, "false"));
    }
    bool written = file && fstat(fileno(file), &info) == 0 && seconds_of(&info.st_mtim) > end->started;
    if (file) {
        fclose(file);
    }
    return done && written;
}

/* True if a job that was asked to end, and exited with 0, has steps left. MPICH's mpirun often exits with 0 after it
 * has forwarded a signal, whatever the ranks' exit codes. */
static bool was_interrupted(const job_end *end, const char *out) {
    return out ? !says_done(end, out) : end->obeys;
}

/* True if a restart may help: a rank died, was stopped or ran out of memory. Wrong options, a loss that is not finite
 * and a requested end do not count. */
static bool is_accident(const job_end *end) {
    return end->code != CAR_CLI_OK && end->code != CAR_CLI_FAILED && end->code != CAR_CLI_USAGE &&
           end->code != CAR_CLI_INTERRUPTED;
}

/* "rank 2 died (signal 9)" */
static void describe_end(const job_end *end, char *text, size_t capacity) {
    if (end->lost_rank >= 0) {
        snprintf(text, capacity, "rank %d died (signal %d)", end->lost_rank, end->lost_by);
    } else {
        snprintf(text, capacity, "a rank was lost (the job ended with code %d)", end->code);
    }
}

/* Prints the closing line after an accident, and returns the exit code. */
static int close_lost(const job_end *end, const char *out) {
    char what[128], saved[PATH_CAPACITY + 128] = "no checkpoint was written";
    long long step = newest_checkpoint(out);
    describe_end(end, what, sizeof what);
    if (step >= 0) {
        snprintf(saved, sizeof saved, "the newest checkpoint in %s is of step %lld; continue from it with --resume",
                 out, step);
    }
    return car_cli_fail(CAR_CLI_LOST, "%s; %s", what, saved);
}

static int run_with_restarts(const launch_options *o, char **train, const char *out) {
    bool resume = has_flag(train, "--resume");
    job_end end = run_once(o, train, false);
    for (int k = 1; k <= o->restarts && is_accident(&end) && !ending; k++) {
        char what[128];
        long long step = newest_checkpoint(out);
        describe_end(&end, what, sizeof what);
        fprintf(stderr, "carousel: %s; restart %d of %d, from %s%lld\n", what, k, o->restarts,
                step >= 0 ? "step " : "the beginning, step ", step >= 0 ? step : 0);
        end = run_once(o, train, step >= 0 && !resume);
    }
    if (end.code == CAR_CLI_OK && ending > 0 && was_interrupted(&end, out)) {
        return CAR_CLI_INTERRUPTED;
    }
    return is_accident(&end) && ending < 2 ? close_lost(&end, out) : end.code;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_end}, hang_up;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (sigaction(SIGHUP, NULL, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN) { /* nohup ignores SIGHUP */
        sigaction(SIGHUP, &action, NULL);
    }
    signal(SIGCHLD, SIG_DFL); /* if the parent ignores it, waitpid would not work */
}

int car_cli_launch(int argc, char **argv) {
    launch_options o = {.mpirun = "mpirun"};
    int split = argc, code = read_options(argc, argv, &split, &o);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    if (o.ranks < 1 || split + 1 >= argc || strcmp(argv[split + 1], "train") != 0) {
        return car_cli_fail(CAR_CLI_USAGE, "launch: usage: carousel launch -n RANKS [--restarts K] -- train ...");
    }
    char **train = argv + split + 1;
    const char *out = find_value(train, "--out");
    if (o.restarts > 0 && (!out || !find_value(train, "--checkpoint-every"))) {
        return car_cli_fail(CAR_CLI_USAGE,
                            "launch: --restarts requires a run with --out DIR and --checkpoint-every STEPS");
    }
    if (o.restarts > 0 && find_value(train, "--resume-step")) {
        return car_cli_fail(CAR_CLI_USAGE, "launch: --restarts continues from the newest checkpoint, so --resume-step "
                                           "cannot be used with it; resume from that step once without --restarts");
    }
    if (readlink("/proc/self/exe", o.program, sizeof o.program - 1) <= 0) {
        return car_cli_fail(CAR_CLI_FAILED, "launch: could not find the path of this program: %s", strerror(errno));
    }
    catch_signals();
    return run_with_restarts(&o, train, out);
}
