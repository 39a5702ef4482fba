/* zero with two copies: chooses how many slots before its use a copy may be sent on (L, zero_ahead). A larger L
 * gives messages more time but holds each copy longer. Candidates are timed on the cluster; the smallest L that is
 * about as fast as the fastest and fits into memory wins. */
#include "carousel/predict.h"
#include "plan/internal.h"
#include "plan/machine.h"

/* Candidates for L, as multiples of k. After the last one it doubles. */
static const int multiples[] = {1, 2, 3, 4, 6, 8};
static const double worth = 0.99; /* a gain of less than 1 % of the step is not worth the memory */
/* Limits on the size of a plan (micro-batches per step times stages): up to `few` all candidates are timed, up to
 * `some` only 2k and its doubles. */
static const int64_t few = 1 << 14, some = 1 << 17;

static car_status plan_with(car_context *context, const car_partition *partition, const car_plan_config *config,
                            int ahead, car_plan **out) {
    car_plan_config with = *config;
    with.zero_copies = 2;
    with.zero_ahead = ahead;
    return car_plan_create(context, partition, &with, out);
}

static car_status time_trial(car_context *context, const car_partition *partition, const car_plan_config *config,
                             const car_cluster *cluster, double compute, car_ahead_trial *trial) {
    car_plan *plan = NULL;
    car_timing timing;
    car_status status = CAR_OK;
    CAR_TRY(plan_with(context, partition, config, trial->ahead, &plan));
    CAR_TRY(car_plan_time_step(plan, cluster, compute, &timing));
    trial->step = timing.step;
done:
    car_plan_destroy(plan);
    return status;
}

static car_status predict_trial(car_context *context, const car_partition *partition, const car_plan_config *config,
                                const car_optimizer_config *optimizer, car_ahead_trial *trial) {
    car_plan *plan = NULL;
    car_prediction prediction;
    car_status status = CAR_OK;
    CAR_TRY(plan_with(context, partition, config, trial->ahead, &plan));
    CAR_TRY(car_plan_predict_optimizer(plan, optimizer, &prediction));
    trial->memory = (double)car_prediction_memory(&prediction);
done:
    car_plan_destroy(plan);
    return status;
}

int car_plan_list_aheads(int stages, int per_worker, bool powers, int *values) {
    enum { LISTED = sizeof multiples / sizeof *multiples };
    int count = 0, multiple = multiples[0];
    for (int t = 1; count < CAR_AHEAD_TRIALS && (int64_t)multiple * per_worker <= 2 * (int64_t)stages; t++) {
        if (!powers || multiple == 2 || multiple % 4 == 0) {
            values[count++] = multiple * per_worker;
        }
        multiple = t < LISTED ? multiples[t] : 2 * multiple;
    }
    return count;
}

/* True if the last trial gains too little over the one with half its L. All L up to `listed` are tried regardless. */
static bool has_levelled_off(const car_ahead_choice *choice, int listed) {
    const car_ahead_trial *last = choice->count > 0 ? &choice->trials[choice->count - 1] : NULL;
    for (int t = 0; last && last->ahead >= listed && t < choice->count; t++) {
        if (2 * choice->trials[t].ahead == last->ahead) {
            return last->step > worth * choice->trials[t].step;
        }
    }
    return false;
}

/* Among the trials whose memory was not predicted yet: the smallest L that is as fast as the fastest, else the
 * fastest. */
static car_ahead_trial *find_next(car_ahead_choice *choice, double fastest) {
    car_ahead_trial *best = NULL;
    for (int t = 0; t < choice->count; t++) {
        car_ahead_trial *trial = &choice->trials[t];
        bool near = worth * trial->step <= fastest, best_near = best && worth * best->step <= fastest;
        if (trial->memory == 0 && !best_near && (!best || near || trial->step < best->step)) {
            best = trial;
        }
    }
    return best;
}

static double find_fastest(const car_ahead_choice *choice) {
    double fastest = choice->trials[0].step;
    for (int t = 1; t < choice->count; t++) {
        fastest = choice->trials[t].step < fastest ? choice->trials[t].step : fastest;
    }
    return fastest;
}

car_status car_plan_choose_ahead(car_context *context, const car_partition *partition, const car_plan_config *config,
                                 const car_cluster *cluster, double compute, const car_optimizer_config *optimizer,
                                 double memory, car_ahead_choice *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, partition);
    CAR_REQUIRE(context, config);
    CAR_REQUIRE(context, cluster);
    CAR_REQUIRE(context, out);
    int k = partition->stage_count / config->workers, accumulate = config->accumulate > 1 ? config->accumulate : 1;
    int64_t size = (int64_t)config->workers * accumulate * partition->stage_count;
    const car_ahead_trial *least = NULL;
    car_status status = CAR_OK;
    *out = (car_ahead_choice){.ahead = 2 * k};
    int listed = (size > few ? 4 : 8) * k;
    int aheads[CAR_AHEAD_TRIALS], count = car_plan_list_aheads(partition->stage_count, k, size > few, aheads);
    for (int t = 0; t < count && size <= some && !has_levelled_off(out, listed); t++) {
        out->trials[out->count].ahead = aheads[t];
        CAR_TRY(time_trial(context, partition, config, cluster, compute, &out->trials[out->count]));
        out->count++;
    }
    double fastest = out->count > 0 ? find_fastest(out) : 0;
    for (car_ahead_trial *next = find_next(out, fastest); next; next = find_next(out, fastest)) {
        out->ahead = next->ahead;
        if (memory <= 0) {
            goto done;
        }
        CAR_TRY(predict_trial(context, partition, config, optimizer, next));
        if (next->memory <= memory) {
            goto done;
        }
        least = least && least->memory <= next->memory ? least : next;
    }
    out->ahead = least ? least->ahead : out->ahead;
done:
    return status;
}
