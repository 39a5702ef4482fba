/* Bytes that all ranks send in each slot of a step: what the plan says, and when it really was. */
#ifndef CAR_REPORT_SLOT_BYTES_H
#define CAR_REPORT_SLOT_BYTES_H

#include "report/record.h"

typedef struct car_slot_bytes {
    int slots;        /* of a step */
    double *plan;     /* in steady state */
    double *measured; /* mean over the steps; NULL if no step's length is known, or nothing was sent */
} car_slot_bytes;

/* A slot of the clock is a share of a step's time, from one step's first forward to the next one's. */
car_status car_slot_bytes_create(const car_record *record, car_slot_bytes *out);
void car_slot_bytes_release(const car_record *record, car_slot_bytes *bytes);

#endif
