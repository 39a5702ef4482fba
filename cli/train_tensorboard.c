/* --tensorboard: the numbers of metrics.jsonl and evaluations.jsonl as scalars in an event file of TensorBoard's, in the
 * run directory. Every start of a run writes a file of its own. Steps count those that were made, so the first is 1; what
 * is evaluated after a step has the step's number. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "report/events.h"
#include "train.h"

static double seconds_since_1970(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void append(car_train_run *run, int64_t step, const uint8_t *record, size_t bytes) {
    int reason = car_train_append(run->events_file, record, bytes);
    car_train_note_line(run, &run->events, "events.out.tfevents.*", step, reason);
}

/* A name that TensorBoard looks for, and that no earlier start has taken. */
static car_status create_file(car_train_run *run, double now) {
    char host[128] = "", name[256], path[CAR_TRAIN_PATH];
    car_status status = CAR_OK;
    gethostname(host, sizeof host - 1);
    run->events_file = -1;
    for (int n = 0; run->events_file < 0; n++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", (long long)now, host[0] ? host : "host",
                 (long)getpid(), n);
        CAR_TRY(car_train_path(run->context, run->options.out, name, path));
        run->events_file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (run->events_file < 0 && errno != EEXIST) {
            return car_context_fail(run->context, CAR_ERROR_IO, "could not write %s: %s", path, strerror(errno));
        }
    }
done:
    return status;
}

car_status car_train_open_events(car_train_run *run) {
    uint8_t record[CAR_EVENT_RECORD];
    double now = seconds_since_1970();
    car_status status = CAR_OK;
    if (!run->options.tensorboard) {
        return CAR_OK;
    }
    CAR_TRY(create_file(run, now));
    run->writes_events = true;
    append(run, run->first_step, record, car_event_write_version(now, record));
    append(run, run->first_step, record, car_event_write_start(now, run->first_step + 1, record));
done:
    return status;
}

void car_train_close_events(car_train_run *run) {
    if (run->writes_events) {
        close(run->events_file);
        run->writes_events = false;
    }
}

void car_train_write_step_event(car_train_run *run, const car_step_report *report, double samples_per_s) {
    car_event event = {.seconds = seconds_since_1970(), .step = report->step + 1};
    uint8_t record[CAR_EVENT_RECORD];
    if (!run->writes_events) {
        return;
    }
    car_event_add(&event, "train/loss", report->loss);
    car_event_add(&event, "train/lr", report->lr);
    car_event_add(&event, "train/samples_per_s", samples_per_s);
    if (!isnan(report->gradient_norm)) {
        car_event_add(&event, "train/gradient_norm", report->gradient_norm);
    }
    car_event_add(&event, "memory/activations_bytes", (double)car_arena_live(run->arena, CAR_MEMORY_ACTIVATIONS));
    car_event_add(&event, "memory/activations_peak_bytes", (double)car_arena_peak(run->arena, CAR_MEMORY_ACTIVATIONS));
    car_event_add(&event, "memory/resident_bytes", car_train_resident_bytes());
    append(run, report->step, record, car_event_write(&event, record));
}

void car_train_write_evaluation_event(car_train_run *run, int64_t step) {
    const car_evaluation *e = &run->evaluation;
    car_event event = {.seconds = seconds_since_1970(), .step = step};
    uint8_t record[CAR_EVENT_RECORD];
    char tag[96];
    if (!run->writes_events) {
        return;
    }
    car_event_add(&event, "evaluation/loss", e->loss);
    snprintf(tag, sizeof tag, "evaluation/%s", car_train_accuracy_name(run->data.domain));
    car_event_add(&event, tag, e->top1);
    snprintf(tag, sizeof tag, "evaluation/%s_top5", car_train_accuracy_name(run->data.domain));
    car_event_add(&event, tag, e->top5);
    append(run, event.step, record, car_event_write(&event, record));
}
