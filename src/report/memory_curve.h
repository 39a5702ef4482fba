/* Live activation bytes over time, from what micro-batches held at each recorded operation. */
#ifndef CAR_REPORT_MEMORY_CURVE_H
#define CAR_REPORT_MEMORY_CURVE_H

#include "report/record.h"

/* From `when` on, a micro-batch holds this many bytes on a rank. */
typedef struct car_sample {
    double when;
    size_t bytes;
    int number, rank; /* number: the micro-batch's number in its step */
} car_sample;

typedef struct car_samples {
    car_sample *samples; /* sorted by time */
    int count, capacity;
} car_samples;

/* From `when` on, this many bytes are alive. */
typedef struct car_level {
    double when;
    size_t bytes;
} car_level;

typedef struct car_levels {
    car_level *levels;
    int count, capacity;
    size_t peak;
} car_levels;

car_status car_samples_create(const car_record *record, car_samples *out);
void car_samples_release(const car_record *record, car_samples *samples);

/* The bytes held during the time that is shown: by one worker over all ranks, on one rank, or (both CAR_NONE) by
 * everything. Begins with what was alive at the zero. Has at most `most` levels; where they are dense, only the
 * extremes remain. */
car_status car_levels_create(const car_record *record, const car_samples *samples, int worker, int rank, int most,
                             car_levels *out);
void car_levels_release(const car_record *record, car_levels *levels);

#endif
