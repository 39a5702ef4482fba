/* metrics.jsonl and evaluations.jsonl of a run, a line for each step and each evaluation. The same numbers go into
 * TensorBoard's files (train_tensorboard.c).
 *
 * A line that cannot be written does not end the run: that is said once, and at the end how many there are. A run
 * directory that is gone does: everything that comes would be lost. */
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

static const double look_after = 1.0; /* seconds from one look at the directory to the next */

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
            /* Half a line would spoil the next one. If this fails, too, the report leaves both out. */
            bool undone = ftruncate(file, before.st_size) == 0;
            (void)undone;
            return reason;
        }
        done += (size_t)count;
    }
    return 0;
}

void car_train_note_line(car_train_run *run, car_train_lines *lines, const char *name, int64_t step, int reason) {
    lines->written += reason == 0;
    lines->missing += reason != 0;
    if (reason != 0 && lines->missing == 1) {
        lines->reason = reason;
        car_context_log(run->context, CAR_LOG_WARNING, "%s/%s lacks the line of step %lld: %s; the run goes on",
                        run->options.out, name, (long long)step, strerror(reason));
    }
}

static void conclude(const car_train_run *run, const car_train_lines *lines, const char *name) {
    int64_t all = lines->missing + lines->written;
    if (lines->missing > 0) {
        car_context_log(run->context, CAR_LOG_WARNING, "%s/%s lacks %lld of %lld lines, the first because of: %s",
                        run->options.out, name, (long long)lines->missing, (long long)all, strerror(lines->reason));
    }
}

/* ---- what earlier starts left ---------------------------------------------------------------- */

/* The step of a line as it is written here; -1 if it is none. */
static int64_t step_of(const char *line, ssize_t length) {
    long long step = -1;
    bool whole = length >= 2 && strcmp(line + length - 2, "}\n") == 0;
    return whole && sscanf(line, "{\"step\": %lld,", &step) == 1 ? step : -1;
}

/* A run that goes on keeps the lines before step `end`; a killed one may have written of later steps, or half a line.
 * *newest gets the step of the last line kept, if there is one. */
static car_status keep_lines(car_train_run *run, const char *path, int64_t end, int64_t *newest) {
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
    CAR_TRY(car_file_create(run->context, path, &kept));
    while ((length = getline(&line, &capacity, old)) > 0) {
        int64_t step = step_of(line, length);
        damaged += step < 0 && line[length - 1] == '\n'; /* half a line at the end is what a kill leaves */
        if (step >= 0 && step < end) {
            CAR_TRY(car_file_write(kept, line, (size_t)length));
            *newest = step;
        }
    }
    CAR_TRY(car_file_finish(kept));
    if (damaged > 0) {
        car_context_log(run->context, CAR_LOG_WARNING, "%s: %lld damaged %s not kept", path, (long long)damaged,
                        damaged == 1 ? "line was" : "lines were");
    }
done:
    car_file_close(kept);
    free(line);
    fclose(old);
    return status;
}

/* A run that begins anew is not mistaken for the one before it. */
static car_status remove_results(car_train_run *run) {
    static const char *const names[] = {"evaluations.jsonl", "best.safetensors", "average.safetensors",
                                        "confusion.json"};
    char path[CAR_TRAIN_PATH];
    car_status status = CAR_OK;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        CAR_TRY(car_train_path(run->context, run->options.out, names[n], path));
        if (unlink(path) != 0 && errno != ENOENT) {
            return car_context_fail(run->context, CAR_ERROR_IO, "could not remove %s: %s", path, strerror(errno));
        }
    }
done:
    return status;
}

car_status car_train_open_metrics(car_train_run *run) {
    char path[CAR_TRAIN_PATH], evaluations[CAR_TRAIN_PATH];
    bool resumed = run->first_step > 0;
    int64_t reported = 0;
    struct stat directory;
    car_status status = CAR_OK;
    CAR_TRY(car_train_path(run->context, run->options.out, "metrics.jsonl", path));
    CAR_TRY(car_train_path(run->context, run->options.out, "evaluations.jsonl", evaluations));
    if (resumed) {
        CAR_TRY(keep_lines(run, path, run->first_step, &reported));
        /* They count the steps that were made. */
        CAR_TRY(keep_lines(run, evaluations, run->first_step + 1, &run->last_evaluated));
    } else {
        CAR_TRY(remove_results(run));
    }
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (resumed ? 0 : O_TRUNC), 0666);
    if (file < 0 || stat(run->options.out, &directory) != 0) {
        int reason = errno;
        if (file >= 0) {
            close(file);
        }
        return car_context_fail(run->context, CAR_ERROR_IO, "could not write %s: %s", path, strerror(reason));
    }
    run->metrics_file = file;
    run->out_device = directory.st_dev;
    run->out_number = directory.st_ino;
    run->writes = true;
    CAR_TRY(car_train_open_events(run));
done:
    return status;
}

void car_train_close_metrics(car_train_run *run) {
    if (!run->writes) {
        return;
    }
    if (close(run->metrics_file) != 0 && errno != EINTR) {
        car_context_log(run->context, CAR_LOG_WARNING, "%s/metrics.jsonl may lack lines: %s", run->options.out,
                        strerror(errno));
    }
    conclude(run, &run->metrics, "metrics.jsonl");
    conclude(run, &run->evaluations, "evaluations.jsonl");
    conclude(run, &run->events, "events.out.tfevents.*");
    car_train_close_events(run);
    run->writes = false;
}

/* ---- the directory --------------------------------------------------------------------------- */

/* Gone, or another one in its place. Some file systems number a directory anew now and then, so metrics.jsonl must be
 * missing as well. */
static bool is_gone(const car_train_run *run) {
    char path[CAR_TRAIN_PATH];
    struct stat entry;
    if (stat(run->options.out, &entry) != 0) {
        return errno == ENOENT || errno == ENOTDIR;
    }
    if (entry.st_dev == run->out_device && entry.st_ino == run->out_number) {
        return false;
    }
    snprintf(path, sizeof path, "%s/metrics.jsonl", run->options.out);
    return stat(path, &entry) != 0 && errno == ENOENT;
}

car_status car_train_find_directory(car_train_run *run) {
    run->out_is_gone = run->writes && is_gone(run);
    if (!run->out_is_gone) {
        return CAR_OK;
    }
    return car_context_fail(run->context, CAR_ERROR_IO,
                            "the run directory %s was removed while the run went on: what was trained since its last "
                            "checkpoint is lost, after %lld steps in all",
                            run->options.out, (long long)car_train_steps(run));
}

/* Asks the run to end; it finds out why when it has. */
static void look_for_directory(car_train_run *run, double now) {
    if (now - run->looked < look_after) {
        return;
    }
    run->looked = now;
    if (!is_gone(run)) {
        return;
    }
    if (run->rank) {
        car_rank_stop(run->rank);
    } else {
        car_trainer_stop(run->trainer);
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

static const char *number_or_null(double value, char text[32]) {
    snprintf(text, 32, "%.9g", value);
    return isfinite(value) ? text : "null"; /* JSON has no NaN */
}

void car_train_write_metrics(car_train_run *run, const car_step_report *report) {
    char line[512], loss[32], norm[64] = "", number[32];
    double now = report->when, trained = now - run->started - run->aside;
    double samples_per_s = (double)run->reported * car_train_step_samples(&run->options) / trained;
    if (!run->writes) {
        return;
    }
    if (isfinite(report->gradient_norm)) {
        snprintf(norm, sizeof norm, ", \"gradient_norm\": %s", number_or_null(report->gradient_norm, number));
    }
    int length = snprintf(
        line, sizeof line,
        "{\"step\": %lld, \"loss\": %s, \"lr\": %.9g, \"samples_per_s\": %.6g, \"seconds\": %.6g%s, \"skipped\": %s, "
        "\"activations_bytes\": %zu}\n",
        (long long)report->step, number_or_null(report->loss, loss), report->lr, samples_per_s, now - run->started,
        norm, report->skipped ? "true" : "false", car_arena_live(run->arena, CAR_MEMORY_ACTIVATIONS));
    int reason = car_train_append(run->metrics_file, line, (size_t)length);
    car_train_note_line(run, &run->metrics, "metrics.jsonl", report->step, reason);
    car_train_write_step_event(run, report, samples_per_s);
    look_for_directory(run, now);
}

/* They are rare, so the file is not kept open. */
void car_train_write_evaluation(car_train_run *run, int64_t step) {
    const car_evaluation *e = &run->evaluation;
    const char *accuracy = car_train_accuracy_name(run->data.domain);
    char path[CAR_TRAIN_PATH], line[640], loss[32], perplexity[64] = "", average[128] = "", number[32];
    if (!run->writes || car_train_path(run->context, run->options.out, "evaluations.jsonl", path) != CAR_OK) {
        return; /* opening has failed for it before */
    }
    int64_t before = 0;
    if (step == run->first_step && keep_lines(run, path, step, &before) != CAR_OK) { /* made again after a kill */
        car_context_log(run->context, CAR_LOG_WARNING, "%s", car_context_error(run->context));
        car_context_clear_error(run->context);
        return;
    }
    if (run->data.domain == CAR_DOMAIN_TOKENS) {
        snprintf(perplexity, sizeof perplexity, ", \"perplexity\": %s", number_or_null(exp(e->loss), number));
    }
    if (run->options.ema > 0) {
        snprintf(average, sizeof average, ", \"average_loss\": %s, \"average_%s\": %.9g",
                 number_or_null(run->average_evaluation.loss, number), accuracy, run->average_evaluation.top1);
    }
    int length = snprintf(line, sizeof line,
                          "{\"step\": %lld, \"loss\": %s%s, \"%s\": %.9g, \"%s_top5\": %.9g%s, \"seconds\": %.6g}\n",
                          (long long)step, number_or_null(e->loss, loss), perplexity, accuracy, e->top1, accuracy,
                          e->top5, average, car_clock_seconds() - run->started);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), reason = file < 0 ? errno : 0;
    if (file >= 0) {
        reason = car_train_append(file, line, (size_t)length);
        reason = close(file) != 0 && errno != EINTR && reason == 0 ? errno : reason;
    }
    car_train_note_line(run, &run->evaluations, "evaluations.jsonl", step, reason);
    car_train_write_evaluation_event(run, step);
}
