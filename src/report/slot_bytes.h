/* The bytes that all ranks send in each slot of a step: as planned, and as measured. */
#ifndef CAR_REPORT_SLOT_BYTES_H
#define CAR_REPORT_SLOT_BYTES_H

#include "report/record.h"

typedef struct car_slot_bytes {
    int slots;        /* slots per step */
    double *plan;     /* bytes per slot, in steady state */
    double *measured; /* mean over the recorded steps; NULL if no step's length is known, or nothing was sent */
} car_slot_bytes;

/* A measured slot is an equal share of the time between the first forwards of two consecutive steps. */
car_status car_slot_bytes_create(const car_record *record, car_slot_bytes *out);
void car_slot_bytes_release(const car_record *record, car_slot_bytes *bytes);

#endif
