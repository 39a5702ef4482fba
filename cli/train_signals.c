/* How a run is told to end. A thread waits for signals, so that no work is done inside a signal handler.
 *
 *   SIGINT, SIGTERM, SIGHUP, SIGUSR1    no further step begins; writes a checkpoint and a summary; exit code 4
 *   a second one, except SIGUSR1        the signal kills the run at once
 *   10 s later, still training          the run ends and keeps its newest checkpoint; exit code 4
 *
 * Before there is anything to save, a signal kills the run, as it does by default. Ranks that mpirun started treat
 * SIGTERM differently: mpirun sends it only to kill, because another rank died or the job was ended, and sends SIGKILL
 * within a second. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "carousel/checkpoint.h"
#include "carousel/convention.h"
#include "train.h"

static const double patience = 10;      /* seconds for the current step to finish */
static const double same_request = 0.5; /* seconds: `timeout` and shells signal first a process, then its group */

enum { LISTENER_STACK = 1 << 18 }; /* bytes: a default stack is too much if addresses are limited */

/* What a signal does depends on the run's activity. */
typedef enum activity {
    STARTING, /* nothing to save yet */
    TRAINING, /* or evaluating; must end soon */
    SAVING    /* may take as long as it needs */
} activity;

/* A process has one run, and one thread that listens for it. */
static struct {
    car_train_run *train;
    _Atomic(car_run *) run; /* NULL until it is created */
    pthread_t thread;
    bool started, over_ranks, killed_by_mpirun;
    atomic_bool leaving;     /* the run is over */
    atomic_bool interrupted; /* a signal has asked it to end */
    double asked;            /* time of that signal; used by the thread only */
    _Atomic(activity) activity;
} listener;

static bool is_interrupted(void) {
    return atomic_load(&listener.interrupted);
}

/* ask_to_end sets `interrupted` and then reads `activity`; this does the reverse. So one of the two stops the run. */
static void enter(activity now) {
    atomic_store(&listener.activity, now);
    if (is_interrupted() && now == TRAINING) {
        car_run_stop(atomic_load(&listener.run));
    }
}

void car_train_on_activity(void *user, car_run_activity activity) {
    (void)user;
    enter(activity == CAR_RUN_SAVING ? SAVING : TRAINING);
}

void car_train_listen_for(car_train_run *t) {
    atomic_store(&listener.run, t->run);
    enter(TRAINING);
}

/* ---- actions --------------------------------------------------------------------------------- */

static void die_of(int number) {
    sigset_t set;
    signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    _exit(128 + number); /* not reached: the signal kills */
}

static void explain_and_die(void) {
    char text[4096] = "";
    car_run *run = atomic_load(&listener.run);
    if (run) {
        car_rank_explain(car_run_engine(run), text, sizeof text);
    }
    fprintf(stderr, "carousel: ended by SIGTERM, probably because another rank died; %s\n", text);
    _exit(128 + SIGTERM);
}

/* The step of the newest checkpoint, or -1. It uses its own context, because the run's belongs to the run. */
static int64_t find_newest(void) {
    const car_train_options *o = &listener.train->options;
    char path[CAR_TRAIN_PATH];
    car_context *context = NULL;
    int64_t step = -1;
    if (!o->out || car_context_create(NULL, &context) != CAR_OK) {
        return -1;
    }
    if (car_train_path(context, o->out, "checkpoints", path) != CAR_OK ||
        car_checkpoint_newest(context, path, &step) != CAR_OK) {
        step = -1;
    }
    car_context_destroy(context);
    return step;
}

/* The current step takes too long. If there is no checkpoint yet, keeps waiting. */
static void end_with_newest(void) {
    int64_t step = find_newest();
    if (car_run_rank(atomic_load(&listener.run)) > 0) {
        return; /* rank 0 ends the job */
    }
    if (step < 0) {
        fprintf(stderr, "carousel: there is no checkpoint yet, so the run goes on until it can write one; a second "
                        "signal ends it at once\n");
        return;
    }
    fprintf(stderr,
            "carousel: the run did not end within %.0f s and is stopped; its newest checkpoint is of step %lld; "
            "continue from it with --resume\n",
            patience, (long long)step);
    _exit(CAR_CLI_INTERRUPTED);
}

static void ask_to_end(int number) {
    car_run *run = atomic_load(&listener.run);
    atomic_store(&listener.interrupted, true);
    if (atomic_load(&listener.activity) == STARTING) {
        return; /* over ranks: all end together, after the first steps */
    }
    car_run_stop(run);
    if (car_run_rank(run) == 0) {
        fprintf(stderr, "%scarousel: SIG%s: ending the run cleanly; a second signal ends it at once\n",
                listener.train->terminal ? "\n" : "", sigabbrev_np(number));
    }
}

/* ---- listening ------------------------------------------------------------------------------- */

static void fill(sigset_t *set) {
    struct sigaction hang_up;
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGUSR1);
    if (sigaction(SIGHUP, NULL, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN) { /* nohup ignores SIGHUP */
        sigaddset(set, SIGHUP);
    }
}

/* Waits for a signal. Returns 0 at `deadline` (monotonic clock; 0 = wait for ever). */
static int await_signal(const sigset_t *set, double deadline) {
    int number = -1;
    while (number < 0) {
        double left = deadline - car_clock_seconds();
        struct timespec wait = {.tv_sec = left > 0 ? (time_t)left : 0,
                                .tv_nsec = left > 0 ? (long)((left - (double)(time_t)left) * 1e9) : 0};
        number = deadline > 0 ? sigtimedwait(set, NULL, &wait) : sigwaitinfo(set, NULL);
        if (number < 0 && errno == EAGAIN) {
            return 0;
        }
    }
    return number;
}

/* True if the signal belongs to the first request: sent with it, or SIGUSR1 from the launcher, which repeats it until
 * heard. */
static bool is_repeated(int number) {
    return is_interrupted() && (number == SIGUSR1 || car_clock_seconds() - listener.asked < same_request);
}

static void *listen_to_signals(void *argument) {
    double deadline = 0;
    sigset_t set;
    (void)argument;
    fill(&set);
    for (;;) {
        int number = await_signal(&set, deadline);
        activity now = atomic_load(&listener.activity);
        if (atomic_load(&listener.leaving)) {
            return NULL;
        }
        if (number == 0) {
            deadline = 0; /* print it only once */
            if (now == TRAINING) {
                end_with_newest();
            }
        } else if (number == SIGTERM && listener.killed_by_mpirun) {
            explain_and_die();
        } else if (is_repeated(number)) {
            continue;
        } else if ((now == STARTING && !listener.over_ranks) || is_interrupted()) {
            die_of(number);
        } else {
            ask_to_end(number);
            listener.asked = car_clock_seconds();
            deadline = listener.asked + patience;
        }
    }
}

void car_train_listen(car_train_run *t) {
    car_placement placement = CAR_PLACEMENTS;
    bool known = car_placement_is_known(t->options.placement, &placement); /* an unknown one fails later */
    sigset_t set;
    listener.train = t;
    listener.over_ranks = (!known || !car_placement_info_of(placement)->one_process) && car_transport_is_launched();
    /* srun sends SIGTERM when the time limit is reached, so there it is a normal request to end. */
    listener.killed_by_mpirun = listener.over_ranks && (getenv("OMPI_COMM_WORLD_RANK") || !getenv("SLURM_STEP_ID"));
    signal(SIGPIPE, SIG_IGN); /* a closed log must not end the run; main reports it */
    fill(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* in all threads, those of MPI included */
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, LISTENER_STACK);
    listener.started = pthread_create(&listener.thread, &small, listen_to_signals, NULL) == 0;
    pthread_attr_destroy(&small);
}

void car_train_stop_listening(void) {
    if (listener.started) {
        atomic_store(&listener.leaving, true);
        pthread_kill(listener.thread, SIGUSR1);
        pthread_join(listener.thread, NULL);
        listener.started = false;
    }
}
