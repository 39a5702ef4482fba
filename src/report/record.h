/* What the reports of a run read off a recorder: which part of it is shown, and which send is which receive's. */
#ifndef CAR_REPORT_RECORD_H
#define CAR_REPORT_RECORD_H

#include "recorder/recorder.h"

/* A message from its send to its receive, which may not have been recorded. */
typedef struct car_flight {
    const car_span *send, *receive;
    int from, to;             /* ranks */
    int from_track, to_track; /* threads there */
    double sent, arrived;     /* arrived: 0 if that is not known */
} car_flight;

typedef struct car_record {
    const car_recorder *recorder;
    const car_plan *plan;
    int64_t first_step, end_step;
    double begin, end;   /* from the steps' first forward to the last backward, and what belongs to these slots */
    double zero;         /* where times are counted from: something of a neighbouring step may have begun before */
    car_flight *flights; /* in order of sending */
    int flight_count, flight_capacity;
} car_record;

/* Steps first_step .. end_step - 1, as far as they were recorded. */
car_status car_record_open(const car_recorder *recorder, const car_plan *plan, int64_t first_step, int64_t end_step,
                           car_record *out);
void car_record_close(car_record *record);

/* Whether a task falls into the time that is shown. */
bool car_record_shows(const car_record *record, const car_span *span);
/* The stage that a task is about: of sums and weights, where they are used. */
int car_record_stage(const car_record *record, const car_task *task);
/* Whether a track is that of the thread for messages. */
bool car_record_is_messages(const car_record *record, const car_journal *journal, int track);
/* "thread 0"; over ranks "rank 1", or "rank 1 thread 0" if it has several, and "rank 1 messages". */
void car_record_lane(const car_record *record, const car_journal *journal, int track, char *text, size_t capacity);
/* Nanoseconds since the zero. */
int64_t car_record_ns(const car_record *record, double when);

#endif
