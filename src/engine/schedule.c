/* Learning-rate schedules. */
#include <math.h>

#include "carousel/optimizer.h"

static const double pi = 3.141592653589793;

double car_schedule_lr(const car_schedule *schedule, int64_t step) {
    if (schedule->own) {
        return schedule->own(schedule->own_user, step);
    }
    if (step < schedule->warmup) {
        return schedule->lr * (double)(step + 1) / (double)schedule->warmup;
    }
    int64_t done = step - schedule->warmup;
    switch (schedule->kind) {
    case CAR_SCHEDULE_STEP: {
        int64_t drops = schedule->every > 0 ? step / schedule->every : 0;
        return schedule->lr * pow(schedule->gamma, (double)drops);
    }
    case CAR_SCHEDULE_COSINE: {
        int64_t length = schedule->total - schedule->warmup;
        double share = length > 0 && done < length ? (double)done / (double)length : 1.0;
        return schedule->lr * 0.5 * (1.0 + cos(pi * share));
    }
    default:
        return schedule->lr;
    }
}
