/* The definition of rules and placements as the validator implements it: slots, versions, devices, and who updates
 * what.
 *
 *   F(n,j) = 2k*n + j, B(n,j) = 2k*n + 2S-1-j, where micro-batch n = t*M*N + i is number i of step t     cyclic
 *   it uses theta_t where k*(i+1) + j >= S + slack, else theta_{t-1}                                     cdp-v2
 *
 * The generator has its own implementation of all this. The duplication is deliberate. */
#include "plan/validate_internal.h"

/* ---- the clock ---------------------------------------------------------------------------------- */

int64_t car_validate_slot(const car_validation *v, int64_t step, int micro_batch, int stage, bool backward) {
    int64_t S = v->stages, N = v->workers, k = v->per_worker, i = micro_batch, MN = v->batches, n = step * MN + i;
    /* Position within a worker's micro-batch, if it never waits. */
    int64_t inside = backward ? 2 * S - 1 - stage : stage;
    bool flush = v->config.rule == CAR_RULE_GPIPE ||
                 (v->config.rule == CAR_RULE_DP && v->config.placement == CAR_PLACEMENT_PIPELINE);
    bool one_by_one = v->config.rule == CAR_RULE_1F1B || (v->config.rule == CAR_RULE_STAGGER && !v->spaced);
    if (one_by_one || v->custom) {
        return CAR_NONE;
    }
    if (flush) {
        /* A rank moves on to the next micro-batch after its k stages; backwards begin when all forwards are done. */
        return 2 * (S + k * (MN - 1)) * step + k * i + inside + (backward ? k * (MN - 1) : 0);
    }
    if (v->config.rule == CAR_RULE_ACCUMULATE) {
        int64_t P = v->config.threads < N ? v->config.threads : N, groups = (MN + P - 1) / P;
        return 2 * S * (groups * step + i / P) + inside;
    }
    if (v->spaced) { /* without the cycle, a step begins when the last micro-batch of the one before has ended */
        return 2 * k * n + (v->cyclic ? 0 : (2 * S - 2 * k) * step) + inside;
    }
    return 2 * S * (n / N) + inside;
}

/* ---- versions ----------------------------------------------------------------------------------- */

int64_t car_validate_version(const car_validation *v, int64_t step, int micro_batch, int home) {
    bool stale = false;
    if (v->config.rule == CAR_RULE_CDP_V1 || v->config.rule == CAR_RULE_2BW) {
        /* Only a worker's first one of the step: the update is made before it begins the others. */
        stale = micro_batch < v->workers;
    } else if (v->config.rule == CAR_RULE_CDP_V2) {
        stale = micro_batch < v->workers &&
                v->per_worker * (micro_batch + 1) + home < v->stages + v->config.freshness_slack;
    }
    return stale && step > 0 ? step - 1 : step; /* theta_{-1} is theta_0 */
}

int car_validate_first_fresh(const car_validation *v, int home) {
    int i = 0;
    while (i < v->workers && car_validate_version(v, 1, i, home) != 1) {
        i++;
    }
    return i;
}

/* ---- devices ------------------------------------------------------------------------------------ */

void car_validate_group(const car_validation *v, int group, int *first, int *ranks) {
    int N = v->workers;
    *first = group;
    *ranks = 1;
    if (v->config.placement == CAR_PLACEMENT_GRID) {
        /* In the cycle there are N + (N-1) + ... ranks before group r. */
        *ranks = v->passes ? N - group : N;
        *first = v->passes ? group * (2 * N - group + 1) / 2 : group * N;
    }
}

int car_validate_device(const car_validation *v, int64_t step, int micro_batch, int stage) {
    int first = 0, ranks = 1, worker = micro_batch % v->workers;
    switch (v->config.placement) {
    case CAR_PLACEMENT_REPLICA:
        return v->config.mapping == CAR_MAPPING_INTERLEAVED ? worker % v->devices : worker / (v->workers / v->devices);
    case CAR_PLACEMENT_PIPELINE:
    case CAR_PLACEMENT_GRID:
        car_validate_group(v, stage / v->per_worker, &first, &ranks);
        return first + (int)((step * v->batches + micro_batch) % ranks);
    default:
        return worker;
    }
}

int car_validate_owner(const car_validation *v, int stage) {
    return v->workers - 1 - stage / v->per_worker;
}

/* As few pieces as the configured size allows, equal except for rounding to 64 bytes. */
int car_validate_pieces(const car_validation *v, int bundle) {
    const car_bundle *b = &v->partition->bundles[bundle];
    int first = 0, ranks = v->devices, count = 1;
    if (car_validate_in_groups(v)) {
        car_validate_group(v, b->stage / v->per_worker, &first, &ranks);
    }
    if (!v->passes || v->by_worker || v->config.placement == CAR_PLACEMENT_SHARED || ranks == 1) {
        return 1;
    }
    while (count < CAR_MOST_PIECES && (int64_t)b->bytes > count * v->config.piece_bytes) {
        count++;
    }
    size_t lines = (b->bytes + 63) / 64, lines_of_piece = lines / (size_t)count + (lines % (size_t)count > 0);
    return lines == 0 ? 1 : (int)(lines / lines_of_piece) + (lines % lines_of_piece > 0);
}

bool car_validate_updates(const car_validation *v, int64_t step, int bundle, int device) {
    switch (v->config.placement) {
    case CAR_PLACEMENT_ZERO:
        return device == car_validate_owner(v, bundle);
    case CAR_PLACEMENT_PIPELINE:
    case CAR_PLACEMENT_GRID:
        /* The last version of a run is made only by the rank that finishes its sum. */
        return v->groups[device] == bundle / v->per_worker &&
               (v->spread || v->custom || step + 1 < v->steps ||
                device == car_validate_device(v, step, v->batches - 1, bundle));
    default:
        return true;
    }
}

int car_validate_update_count(const car_validation *v) {
    bool everywhere =
        v->config.placement == CAR_PLACEMENT_REPLICA || (v->config.placement == CAR_PLACEMENT_GRID && v->spread);
    int ranks = v->config.placement == CAR_PLACEMENT_REPLICA ? v->devices : v->workers;
    return everywhere ? ranks : 1;
}

/* ---- rows --------------------------------------------------------------------------------------- */

static int rows_of_device(const car_validation *v) {
    return car_validate_in_groups(v) ? v->per_worker + v->bundles - v->stages : v->bundles;
}

size_t car_validate_rows(const car_validation *v) {
    size_t devices = v->config.placement == CAR_PLACEMENT_SHARED ? 1 : (size_t)v->devices;
    return devices * (size_t)rows_of_device(v);
}

int64_t car_validate_row(const car_validation *v, int device, int bundle) {
    int64_t row = bundle;
    if (car_validate_in_groups(v)) {
        /* A device's own stages, then all ties: these pass through homes as well as users. */
        if (bundle < v->stages && bundle / v->per_worker != v->groups[device]) {
            return CAR_NONE;
        }
        row = bundle < v->stages ? bundle % v->per_worker : v->per_worker + bundle - v->stages;
    }
    return row + (v->config.placement == CAR_PLACEMENT_SHARED ? 0 : (int64_t)device * rows_of_device(v));
}
