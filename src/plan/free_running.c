/* Predicts the peak of activations of N workers that run freely, evenly spaced by 1/N of a step, and derives from it
 * the numbers that pacing uses (pace.h).
 *
 *   one worker's curve      /\          /\        peak A
 *                          /  \        /  \
 *   N of them, shifted    ~~~~~~~~~~~~~~~~~~      peak about N*A*limit
 *
 * A sum of step functions changes only where one of them does, and all are shifted copies of one curve. So it is
 * enough to look at the moments when one worker begins an event. */
#include "carousel/predict.h"
#include "plan/pace.h"

/* Shifted times that should coincide differ by rounding. Times closer than this are the same moment. */
static const double moment = 1e-9;

/* Bytes of one worker at a point of its step, in [0, 1). Skips events without length. */
static size_t bytes_at(const car_curve *curve, double share) {
    int low = 0, high = curve->events; /* invariant: the event is in low .. high - 1 */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (curve->begin[middle] <= share + moment) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return curve->during[low];
}

/* Bytes of all workers together when worker 0 begins event e. */
static double bytes_of_all(const car_curve *curve, int e, int workers) {
    double sum = (double)curve->during[e];
    for (int i = 1; i < workers; i++) {
        double share = curve->begin[e] + (double)i / workers;
        share -= share + moment >= 1 ? 1 : 0;
        sum += (double)bytes_at(curve, share);
    }
    return sum;
}

double car_pace_budget(const car_partition *partition, int workers) {
    double peak = 0;
    for (int e = 0; e < partition->curve.events; e++) {
        double sum = bytes_of_all(&partition->curve, e, workers);
        peak = sum > peak ? sum : peak;
    }
    return peak;
}

double car_predict_free_running(const car_partition *partition, int workers) {
    size_t alone = partition->curve.peak;
    return alone > 0 ? car_pace_budget(partition, workers) / ((double)workers * (double)alone) : 1;
}

/* ---- pacing ----------------------------------------------------------------------------------- */

/* How much further than one portion a worker may run ahead. A forward may be faster than its share of the cost, and
 * the backward is then slower. Without this slack one of two workers would always wait for the other; with it they
 * even out half a micro-batch later. */
static const double drift = 0.03;

double car_pace_portion(const car_curve *curve) {
    double longest = 1.0 / 256; /* finer would only cost locking */
    for (int e = 0; e < curve->events; e++) {
        double cost = (e + 1 < curve->events ? curve->begin[e + 1] : 1.0) - curve->begin[e];
        longest = cost > longest ? cost : longest;
    }
    return longest;
}

double car_pace_lead(const car_curve *curve) {
    return car_pace_portion(curve) + drift;
}
