/* Writes metrics.jsonl and evaluations.jsonl: one line for each step and each evaluation. The same numbers go to
 * TensorBoard's files (train_tensorboard.c).
 *
 * If a line cannot be written, the run goes on. It warns once, and at the end gives the number of missing lines. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carousel/convention.h"
#include "carousel/file.h"
#include "train.h"

/* ---- lines ----------------------------------------------------------------------------------- */

int car_train_append(int file, const void *line, size_t length) {
    struct stat before;
    if (fstat(file, &before) != 0) {
        return errno;
    }
    for (size_t done = 0; done < length;) {
        ssize_t count = write(file, (const char *)line + done, length - done);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            int reason = count < 0 ? errno : ENOSPC;
            /* Half a line would spoil the next one. If this fails too, readers skip both. */
            bool undone = ftruncate(file, before.st_size) == 0;
            (void)undone;
            return reason;
        }
        done += (size_t)count;
    }
    return 0;
}

void car_train_note_line(car_train_run *t, car_train_lines *lines, const char *name, int64_t step, int reason) {
    lines->written += reason == 0;
    lines->missing += reason != 0;
    if (reason != 0 && lines->missing == 1) {
        lines->reason = reason;
        car_context_log(t->context, CAR_LOG_WARNING,
                        "%s/%s: could not write the line of step %lld: %s; the run goes on", t->options.out, name,
                        (long long)step, strerror(reason));
    }
}

static void conclude(const car_train_run *t, const car_train_lines *lines, const char *name) {
    int64_t all = lines->missing + lines->written;
    if (lines->missing > 0) {
        car_context_log(t->context, CAR_LOG_WARNING, "%s/%s: %lld of %lld lines are missing; the first error was: %s",
                        t->options.out, name, (long long)lines->missing, (long long)all, strerror(lines->reason));
    }
}

/* ---- lines of earlier starts ----------------------------------------------------------------- */

/* The step of a line, or -1 if the line is damaged. */
static int64_t step_of(const char *line, ssize_t length) {
    long long step = -1;
    bool whole = length >= 2 && strcmp(line + length - 2, "}\n") == 0;
    return whole && sscanf(line, "{\"step\": %lld,", &step) == 1 ? step : -1;
}

/* A resumed run keeps the lines before step `end`. A killed run may have left lines of later steps, or half a line. */
static car_status keep_lines(car_train_run *t, const char *path, int64_t end) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length = 0;
    int64_t damaged = 0;
    car_file *kept = NULL;
    car_status status = CAR_OK;
    FILE *old = fopen(path, "r");
    if (!old) {
        return CAR_OK; /* nothing to keep */
    }
    CAR_TRY(car_file_create(t->context, path, &kept));
    while ((length = getline(&line, &capacity, old)) > 0) {
        int64_t step = step_of(line, length);
        damaged += step < 0 && line[length - 1] == '\n'; /* half a last line is normal after a kill */
        if (step >= 0 && step < end) {
            CAR_TRY(car_file_write(kept, line, (size_t)length));
        }
    }
    CAR_TRY(car_file_finish(kept));
    if (damaged > 0) {
        car_context_log(t->context, CAR_LOG_WARNING, "%s: %lld damaged %s not kept", path, (long long)damaged,
                        damaged == 1 ? "line was" : "lines were");
    }
done:
    car_file_close(kept);
    free(line);
    fclose(old);
    return status;
}

/* Removes the results of an earlier run, so that nobody takes them for those of a new one. */
static car_status remove_results(car_train_run *t) {
    static const char *const names[] = {"evaluations.jsonl", "best.safetensors", "average.safetensors",
                                        "confusion.json"};
    char path[CAR_TRAIN_PATH];
    car_status status = CAR_OK;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        CAR_TRY(car_train_path(t->context, t->options.out, names[n], path));
        if (unlink(path) != 0 && errno != ENOENT) {
            return car_context_fail(t->context, CAR_ERROR_IO, "could not remove %s: %s", path, strerror(errno));
        }
    }
done:
    return status;
}

car_status car_train_open_metrics(car_train_run *t) {
    char path[CAR_TRAIN_PATH], evaluations[CAR_TRAIN_PATH];
    int64_t first = car_run_first_step(t->run);
    car_status status = CAR_OK;
    CAR_TRY(car_train_path(t->context, t->options.out, "metrics.jsonl", path));
    CAR_TRY(car_train_path(t->context, t->options.out, "evaluations.jsonl", evaluations));
    if (first > 0) {
        CAR_TRY(keep_lines(t, path, first));
        CAR_TRY(keep_lines(t, evaluations, first + 1)); /* they count finished steps */
    } else {
        CAR_TRY(remove_results(t));
    }
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (first > 0 ? 0 : O_TRUNC), 0666);
    if (file < 0) {
        return car_context_fail(t->context, CAR_ERROR_IO, "could not write %s: %s", path, strerror(errno));
    }
    t->metrics_file = file;
    t->writes = true;
    CAR_TRY(car_train_open_events(t));
done:
    return status;
}

void car_train_close_metrics(car_train_run *t) {
    if (!t->writes) {
        return;
    }
    if (close(t->metrics_file) != 0 && errno != EINTR) {
        car_context_log(t->context, CAR_LOG_WARNING, "%s/metrics.jsonl: lines may be missing: %s", t->options.out,
                        strerror(errno));
    }
    conclude(t, &t->metrics, "metrics.jsonl");
    conclude(t, &t->evaluations, "evaluations.jsonl");
    conclude(t, &t->events, "events.out.tfevents.*");
    car_train_close_events(t);
    t->writes = false;
}

/* ---- writing --------------------------------------------------------------------------------- */

static const char *number_or_null(double value, char text[32]) {
    snprintf(text, 32, "%.9g", value);
    return isfinite(value) ? text : "null"; /* JSON has no NaN */
}

void car_train_write_metrics(car_train_run *t, const car_step_report *report) {
    char line[512], loss[32], norm[64] = "", number[32];
    double now = report->when, trained = now - t->started - t->aside;
    double samples_per_s = (double)t->reported * car_train_step_samples(&t->options) / trained;
    if (!t->writes) {
        return;
    }
    if (isfinite(report->gradient_norm)) {
        snprintf(norm, sizeof norm, ", \"gradient_norm\": %s", number_or_null(report->gradient_norm, number));
    }
    int length = snprintf(
        line, sizeof line,
        "{\"step\": %lld, \"loss\": %s, \"lr\": %.9g, \"samples_per_s\": %.6g, \"seconds\": %.6g%s, \"skipped\": %s, "
        "\"activations_bytes\": %zu}\n",
        (long long)report->step, number_or_null(report->loss, loss), report->lr, samples_per_s, now - t->started, norm,
        report->skipped ? "true" : "false", car_arena_live(car_run_arena(t->run), CAR_MEMORY_ACTIVATIONS));
    int reason = car_train_append(t->metrics_file, line, (size_t)length);
    car_train_note_line(t, &t->metrics, "metrics.jsonl", report->step, reason);
    car_train_write_step_event(t, report, samples_per_s);
}

/* Evaluations are rare, so the file is opened for each. */
void car_train_write_evaluation(car_train_run *t, int64_t step) {
    const car_evaluation *e = &t->evaluation, *averaged = car_run_average(t->run);
    const char *accuracy = car_train_accuracy_name(t->domain);
    char path[CAR_TRAIN_PATH], line[640], loss[32], perplexity[64] = "", average[128] = "", number[32];
    if (!t->writes || car_train_path(t->context, t->options.out, "evaluations.jsonl", path) != CAR_OK) {
        return; /* not reached: car_train_open_metrics has checked the path */
    }
    if (step == car_run_first_step(t->run) && keep_lines(t, path, step) != CAR_OK) { /* repeated after a kill */
        car_context_log(t->context, CAR_LOG_WARNING, "%s", car_context_error(t->context));
        car_context_clear_error(t->context);
        return;
    }
    if (t->domain == CAR_DOMAIN_TOKENS) {
        snprintf(perplexity, sizeof perplexity, ", \"perplexity\": %s", number_or_null(exp(e->loss), number));
    }
    if (averaged) {
        snprintf(average, sizeof average, ", \"average_loss\": %s, \"average_%s\": %.9g",
                 number_or_null(averaged->loss, number), accuracy, averaged->top1);
    }
    int length = snprintf(line, sizeof line,
                          "{\"step\": %lld, \"loss\": %s%s, \"%s\": %.9g, \"%s_top5\": %.9g%s, \"seconds\": %.6g}\n",
                          (long long)step, number_or_null(e->loss, loss), perplexity, accuracy, e->top1, accuracy,
                          e->top5, average, car_clock_seconds() - t->started);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), reason = file < 0 ? errno : 0;
    if (file >= 0) {
        reason = car_train_append(file, line, (size_t)length);
        reason = close(file) != 0 && errno != EINTR && reason == 0 ? errno : reason;
    }
    car_train_note_line(t, &t->evaluations, "evaluations.jsonl", step, reason);
    car_train_write_evaluation_event(t, step);
}
