/* What the reports of a run read from a recorder: which part is shown, and which receive belongs to which send. */
#ifndef CAR_REPORT_RECORD_H
#define CAR_REPORT_RECORD_H

#include "recorder/recorder.h"

/* A message. Its receive may not have been recorded. */
typedef struct car_flight {
    const car_span *send, *receive;
    int from, to;             /* ranks */
    int from_track, to_track; /* threads there */
    double sent, arrived;     /* arrived: 0 if unknown */
} car_flight;

typedef struct car_record {
    const car_recorder *recorder;
    const car_plan *plan;
    int64_t first_step, end_step;
    double begin, end;   /* from the steps' first forward to their last backward, including everything in these slots */
    double zero;         /* the origin of times: a task of a neighbouring step may have begun before `begin` */
    car_flight *flights; /* sorted by time of sending */
    int flight_count, flight_capacity;
} car_record;

/* Opens steps first_step .. end_step - 1, as far as they were recorded. */
car_status car_record_open(const car_recorder *recorder, const car_plan *plan, int64_t first_step, int64_t end_step,
                           car_record *out);
void car_record_close(car_record *record);

/* True if a task falls into the time that is shown. */
bool car_record_shows(const car_record *record, const car_span *span);
/* The stage that a task is about; for sums and weights, the stage that uses them. */
int car_record_stage(const car_record *record, const car_task *task);
/* True if a track is that of the message thread. */
bool car_record_is_messages(const car_record *record, const car_journal *journal, int track);
/* "thread 0"; over ranks "rank 1", or "rank 1 thread 0" if it has several, and "rank 1 messages". */
void car_record_lane(const car_record *record, const car_journal *journal, int track, char *text, size_t capacity);
/* Nanoseconds since `zero`. */
int64_t car_record_ns(const car_record *record, double when);

#endif
