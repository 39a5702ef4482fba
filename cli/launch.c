/* carousel launch: starts the ranks of a run with mpirun, and starts them again from the last checkpoint if one dies. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "carousel/checkpoint.h"
#include "cli.h"

enum { PATH_CAPACITY = 4096 };

typedef struct launch_options {
    int ranks, restarts;
    const char *mpirun;
    char program[PATH_CAPACITY]; /* this one; found once, since it may be replaced while the run goes on */
} launch_options;

static volatile pid_t child;         /* for the signal handler */
static volatile sig_atomic_t ending; /* we were asked to end */

/* mpirun kills its ranks a second after a SIGTERM; SIGUSR1 it hands on, and they write a checkpoint and end. Who asks
 * twice does not want to wait for that. */
static void on_end(int number) {
    (void)number;
    if (child > 0) {
        kill(child, ending ? SIGTERM : SIGUSR1);
    }
    ending = 1;
}

static int read_options(int argc, char **argv, int *used, launch_options *o) {
    const car_cli_option options[] = {
        {"n", "R", "ranks to start (required)", CAR_CLI_INT, &o->ranks, 1, 1 << 20},
        {"restarts", "K", "how often to go on from the last checkpoint after a failure", CAR_CLI_INT, &o->restarts, 0,
         1e6},
        {"mpirun", "PROGRAM", "what starts them", CAR_CLI_TEXT, &o->mpirun, 0, 0},
    };
    const car_cli_command command = {
        "launch", "Starts the ranks of a run, and restarts them after a failure.",
        "carousel launch -n R [OPTIONS] -- train ...",
        "SIGTERM or SIGINT (Ctrl-C) makes the run write a checkpoint and end; a second one ends it at once.\n"};
    int split = 1;
    while (split < argc && strcmp(argv[split], "--") != 0) {
        if (strcmp(argv[split], "-n") == 0) {
            argv[split] = "--n"; /* as mpirun has it */
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

/* The step of the newest checkpoint of the run, -1 if there is none. */
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
    /* Open MPI refuses both unless told; for others these mean nothing. */
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

/* Ctrl-C is for us: mpirun would kill the ranks. Nor does anybody read what is typed. */
static void leave_terminal(void) {
    int nothing = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    if (nothing >= 0) {
        dup2(nothing, STDIN_FILENO);
        close(nothing);
    }
}

/* The exit code of the job, 128 and more for a signal. */
static int run_once(const launch_options *o, char **train, bool resume) {
    int state = 0;
    pid_t started = fork();
    if (started < 0) {
        return car_cli_fail(CAR_CLI_FAILED, "launch: could not start a process: %s", strerror(errno));
    }
    if (started == 0) {
        leave_terminal();
        become_mpirun(o, train, resume);
    }
    child = started;
    if (ending) { /* asked between the last look and now */
        kill(started, SIGUSR1);
    }
    while (waitpid(started, &state, 0) < 0) {
        if (errno != EINTR) {
            return car_cli_fail(CAR_CLI_FAILED, "launch: could not wait for %s: %s", o->mpirun, strerror(errno));
        }
    }
    child = 0;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

/* What trying again may help against: a rank that died, was stopped or ran out of memory. Not options, nor a loss that is not finite. */
static bool is_accident(int code) {
    return code != CAR_CLI_OK && code != CAR_CLI_FAILED && code != CAR_CLI_USAGE;
}

int car_cli_launch(int argc, char **argv) {
    launch_options o = {.mpirun = "mpirun"};
    int split = argc, code = read_options(argc, argv, &split, &o);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    if (o.ranks < 1 || split + 1 >= argc || strcmp(argv[split + 1], "train") != 0) {
        return car_cli_fail(CAR_CLI_USAGE, "launch: it goes 'carousel launch -n RANKS [--restarts K] -- train ...'");
    }
    char **train = argv + split + 1;
    const char *out = find_value(train, "--out");
    if (o.restarts > 0 && (!out || !find_value(train, "--checkpoint-every"))) {
        return car_cli_fail(CAR_CLI_USAGE,
                            "launch: --restarts wants a run with --out DIR and --checkpoint-every STEPS");
    }
    if (o.restarts > 0 && find_value(train, "--resume-step")) {
        return car_cli_fail(CAR_CLI_USAGE,
                            "launch: --restarts go on from the newest checkpoint, so --resume-step cannot "
                            "be among the run's options: go on from that step once, without --restarts");
    }
    if (readlink("/proc/self/exe", o.program, sizeof o.program - 1) <= 0) {
        return car_cli_fail(CAR_CLI_FAILED, "launch: could not find this program: %s", strerror(errno));
    }
    struct sigaction action = {.sa_handler = on_end};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGCHLD, SIG_DFL); /* whoever started us may ignore it, and then nobody could wait for mpirun */
    bool resume = has_flag(train, "--resume");
    code = run_once(&o, train, false);
    for (int k = 1; k <= o.restarts && is_accident(code) && !ending; k++) {
        long long step = newest_checkpoint(out);
        fprintf(stderr, "carousel: the job ended with code %d; start %d of %d again, from %s%lld\n", code, k,
                o.restarts, step >= 0 ? "step " : "the beginning, step ", step >= 0 ? step : 0);
        code = run_once(&o, train, step >= 0 && !resume);
    }
    return code;
}
