/* Shows the progress of a run: one line that is updated on a terminal, or a line every few seconds in a log. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "carousel/convention.h"
#include "train.h"

enum { FORETELLING_STEPS = 3, DEFAULT_COLUMNS = 80, LEAST_BAR = 8, MOST_BAR = 30 };

static const double foretelling_seconds = 1; /* of training, before the duration is estimated */
static const double terminal_pause = 0.1, log_pause = 2.0;
static const double megabyte = 1e6;

/* ---- estimated duration ---------------------------------------------------------------------- */

/* Writes a duration in words: "12 minutes". */
static void describe_duration(double seconds, char *text, size_t capacity) {
    static const struct {
        double seconds;
        const char *name;
    } units[] = {{86400, "day"}, {3600, "hour"}, {60, "minute"}, {1, "second"}};
    size_t u = 0;
    while (u < 3 && seconds < 2 * units[u].seconds) {
        u++;
    }
    double count = fmax(seconds / units[u].seconds, 1);
    snprintf(text, capacity, "%.*f %s%s", count < 9.95 && u < 3 ? 1 : 0, count, units[u].name, count < 1.5 ? "" : "s");
}

/* Prints the estimated duration, once. The first step does not count: it fills the cycle, and memory and caches are
 * cold. */
static void show_duration(car_train_run *t, double now) {
    const car_train_options *o = &t->options;
    double trained = now - t->first_reported - t->aside;
    int64_t steps = o->steps - car_run_first_step(t->run);
    if (t->foretold || t->reported < FORETELLING_STEPS || trained < foretelling_seconds) {
        return;
    }
    t->foretold = true;
    if (t->reported >= steps) {
        return;
    }
    char duration[64];
    double rate = (double)(t->reported - 1) / trained;
    bool pauses = o->eval_every && (!t->has_ranks || o->patience > 0);
    describe_duration((double)steps / rate, duration, sizeof duration);
    printf("%sabout %s for %lld steps at %.0f samples/s%s\n", t->terminal ? "\r\033[K" : "", duration, (long long)steps,
           rate * car_train_step_samples(o), pauses ? ", without evaluations" : "");
}

/* ---- the progress line ----------------------------------------------------------------------- */

/* "1:02:03" or "2:03". */
static void describe_rest(double seconds, char *text, size_t capacity) {
    long long s = (long long)fmin(fmax(seconds, 0), 1e12);
    if (s >= 3600) {
        snprintf(text, capacity, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(text, capacity, "%lld:%02lld", s / 60, s % 60);
    }
}

/* Activations now, their peak so far, and the peak that the plan predicts. */
static void describe_memory(const car_train_run *t, char *text, size_t capacity) {
    char planned[48] = "";
    if (car_run_planned(t->run) > 0) {
        snprintf(planned, sizeof planned, " (plan: %.1f MB)", car_run_planned(t->run) / megabyte);
    }
    snprintf(text, capacity, "activations%s %.1f MB, peak %.1f MB%s", t->has_ranks ? " of rank 0" : "",
             (double)car_arena_live(car_run_arena(t->run), CAR_MEMORY_ACTIVATIONS) / megabyte,
             (double)car_arena_peak(car_run_arena(t->run), CAR_MEMORY_ACTIVATIONS) / megabyte, planned);
}

static int columns(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : DEFAULT_COLUMNS;
}

/* The bar fills the space that the text leaves. A line too long for the terminal is cut off, since a wrapped line
 * cannot be updated. */
static void show_on_terminal(const char *rest, double share) {
    char bar[MOST_BAR + 1] = "";
    int wide = columns() - 1, room = wide - (int)strlen(rest) - (int)strlen("[] 100%  ");
    room = room > MOST_BAR ? MOST_BAR : room;
    int filled = (int)(share * room);
    if (room < LEAST_BAR) {
        printf("\r\033[K%3.0f%%  %.*s", floor(100 * share), wide > 6 ? wide - 6 : 0, rest);
        return;
    }
    memset(bar, ' ', (size_t)room);
    memset(bar, '=', (size_t)filled);
    if (filled < room && filled > 0) {
        bar[filled - 1] = '>';
    }
    printf("\r\033[K[%.*s] %3.0f%%  %s", room, bar, floor(100 * share), rest);
}

static void show_step(car_train_run *t, double now) {
    const car_train_options *o = &t->options;
    int64_t step = car_run_first_step(t->run) + t->reported;
    bool last = step == o->steps;
    char epoch[40] = "", memory[160], left[48], line[512];
    if (!last && t->reported != 1 && now - t->shown < (t->terminal ? terminal_pause : log_pause)) {
        return;
    }
    double elapsed = now - t->started - t->aside, samples = (double)t->reported * car_train_step_samples(o);
    t->shown = now;
    if (car_run_epoch_steps(t->run) > 0) {
        snprintf(epoch, sizeof epoch, "epoch %.2f  ", (double)step / (double)car_run_epoch_steps(t->run));
    }
    describe_memory(t, memory, sizeof memory);
    describe_rest(elapsed / (double)t->reported * (double)(o->steps - step), left, sizeof left);
    snprintf(line, sizeof line, "%sstep %lld/%d  loss %.4f  %.1f samples/s  %s left  %s", epoch, (long long)step,
             o->steps, t->loss, samples / elapsed, left, memory);
    if (t->terminal) {
        show_on_terminal(line, (double)step / o->steps);
        fputs(last ? "\n" : "", stdout);
    } else {
        puts(line);
    }
    fflush(stdout);
}

void car_train_show_progress(car_train_run *t, double now) {
    show_duration(t, now);
    show_step(t, now);
}
