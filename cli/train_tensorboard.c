/* --tensorboard: writes the numbers of metrics.jsonl and evaluations.jsonl to a TensorBoard event file in the run
 * directory. Every start of a run writes a new file. Steps are counted from 1; an evaluation has the number of the step
 * before it. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "carousel/convention.h"
#include "carousel/events.h"
#include "train.h"

static double seconds_since_1970(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A record that could not be made counts as missing, like one that could not be written. */
static void append(car_train_run *t, int64_t step, car_status status, const car_event_record *record) {
    int reason = status == CAR_OK ? car_train_append(t->events_file, record->data, record->bytes) : ENOMEM;
    car_train_note_line(t, &t->events, "events.out.tfevents.*", step, reason);
}

/* Creates a file with a name that TensorBoard recognizes and no earlier start has used. */
static car_status create_file(car_train_run *t, double now) {
    char host[128] = "", name[256], path[CAR_TRAIN_PATH];
    car_status status = CAR_OK;
    gethostname(host, sizeof host - 1);
    t->events_file = -1;
    for (int n = 0; t->events_file < 0; n++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", (long long)now, host[0] ? host : "host",
                 (long)getpid(), n);
        CAR_TRY(car_train_path(t->context, t->options.out, name, path));
        t->events_file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (t->events_file < 0 && errno != EEXIST) {
            return car_context_fail(t->context, CAR_ERROR_IO, "could not write %s: %s", path, strerror(errno));
        }
    }
done:
    return status;
}

car_status car_train_open_events(car_train_run *t) {
    car_event_record record;
    double now = seconds_since_1970();
    int64_t first = car_run_first_step(t->run);
    car_status status = CAR_OK;
    if (!t->options.tensorboard) {
        return CAR_OK;
    }
    CAR_TRY(car_events_create(t->context, &t->step_events));
    CAR_TRY(car_events_create(t->context, &t->evaluation_events));
    CAR_TRY(create_file(t, now));
    t->writes_events = true;
    append(t, first, car_events_begin(t->step_events, now, first + 1, &record), &record);
done:
    return status;
}

void car_train_close_events(car_train_run *t) {
    if (t->writes_events) {
        close(t->events_file);
        t->writes_events = false;
    }
    car_events_destroy(t->evaluation_events);
    car_events_destroy(t->step_events);
    t->step_events = t->evaluation_events = NULL;
}

/* A scalar of an event. */
typedef struct scalar {
    const char *tag;
    double value;
} scalar;

static void write_event(car_train_run *t, car_events *events, int64_t step, const scalar *scalars, size_t count) {
    car_event_record record;
    car_status status = CAR_OK;
    for (size_t s = 0; s < count && status == CAR_OK; s++) {
        status = car_events_add(events, scalars[s].tag, scalars[s].value);
    }
    status = status == CAR_OK ? car_events_write(events, seconds_since_1970(), step, &record) : status;
    append(t, step, status, &record);
}

void car_train_write_step_event(car_train_run *t, const car_step_report *report, double samples_per_s) {
    if (!t->writes_events) {
        return;
    }
    const scalar scalars[] = {
        {"train/loss", report->loss},
        {"train/lr", report->lr},
        {"train/samples_per_s", samples_per_s},
        {"memory/activations_bytes", (double)car_arena_live(car_run_arena(t->run), CAR_MEMORY_ACTIVATIONS)},
        {"memory/activations_peak_bytes", (double)car_arena_peak(car_run_arena(t->run), CAR_MEMORY_ACTIVATIONS)},
        {"memory/resident_bytes", car_run_resident()},
        {"train/gradient_norm", report->gradient_norm}}; /* last, because some steps have none */
    size_t count = sizeof scalars / sizeof *scalars - (isnan(report->gradient_norm) ? 1 : 0);
    write_event(t, t->step_events, report->step + 1, scalars, count);
}

void car_train_write_evaluation_event(car_train_run *t, int64_t step) {
    const car_evaluation *e = &t->evaluation;
    char accuracy[96], best_five[104];
    if (!t->writes_events) {
        return;
    }
    snprintf(accuracy, sizeof accuracy, "evaluation/%s", car_train_accuracy_name(t->domain));
    snprintf(best_five, sizeof best_five, "%s_top5", accuracy);
    const scalar scalars[] = {{"evaluation/loss", e->loss}, {accuracy, e->top1}, {best_five, e->top5}};
    write_event(t, t->evaluation_events, step, scalars, sizeof scalars / sizeof *scalars);
}
