/* Live activation bytes over time, from what micro-batches held at their operations. */
#ifndef CAR_REPORT_MEMORY_CURVE_H
#define CAR_REPORT_MEMORY_CURVE_H

#include "report/record.h"

/* From `when` on, a micro-batch holds so much on a rank. */
typedef struct car_sample {
    double when;
    size_t bytes;
    int number, rank; /* of a micro-batch in its step */
} car_sample;

typedef struct car_samples {
    car_sample *samples; /* in order of time */
    int count, capacity;
} car_samples;

/* From `when` on, so many bytes are alive. */
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

/* What was held in the time that is shown: by one worker over all ranks, on one rank, or (both CAR_NONE) altogether.
 * Begins with what was alive at the zero. At most `most` levels: of what lies close together the extremes stay. */
car_status car_levels_create(const car_record *record, const car_samples *samples, int worker, int rank, int most,
                             car_levels *out);
void car_levels_release(const car_record *record, car_levels *levels);

#endif
