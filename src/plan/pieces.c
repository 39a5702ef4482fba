/* Cuts sums into pieces.
 *
 * A hop of a whole sum can only begin when all of it has arrived, so N hops take N times as long as one. The hops of
 * pieces overlap:
 *
 *   worker 0   [0][1][2][3]
 *   worker 1      [0][1][2][3]
 *   worker 2         [0][1][2][3]
 *
 * Each piece is a separate message, with a send and a receive in the table. Pieces should not be smaller than the
 * ring needs, because each one costs a latency and adds tasks to the plan. */
#include "carousel/cluster.h"
#include "plan/placement.h"

enum {
    ALIGNMENT = 64, /* bytes: pieces start at vector boundaries */
    /* The default minimum size of a piece: a smaller one is not worth its latency on current networks. */
    LEAST_BYTES = 4 << 20,
    MOST_ADDED = 256 /* by default, the pieces of all sums of a step are at most this many more than the sums */
};

/* A hop takes at least this many latencies, and at most this share of the time between two workers' backwards. */
static const double least_latencies = 4, share_of_gap = 0.25;

static size_t round_up(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Equal pieces no larger than `wanted`, unless that would make too many. */
static size_t size_of_pieces(size_t bytes, int64_t wanted) {
    size_t least = (bytes + CAR_MOST_PIECES - 1) / CAR_MOST_PIECES;
    size_t most = wanted < 1 ? 1 : (size_t)wanted;
    most = most > least ? most : least;
    size_t count = (bytes + most - 1) / most;
    return round_up((bytes + count - 1) / count);
}

/* True if a bundle's sum travels from rank to rank and each gradient is added to it separately. */
static bool travels(const car_plan *plan, int bundle) {
    const car_bundle *b = &plan->partition->bundles[bundle];
    return b->bytes > 0 && car_plan_passes_sums(plan) && !car_plan_sums_by_worker(plan) &&
           !plan->placement->info.one_process && car_plan_stage_ranks(plan, b->stage) > 1;
}

car_status car_plan_cut_sums(car_plan *plan) {
    size_t bundles = (size_t)plan->partition->bundle_count;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, bundles, sizeof *plan->pieces, &plan->pieces));
    plan->most_pieces = 1;
    for (size_t b = 0; b < bundles; b++) {
        size_t bytes = plan->partition->bundles[b].bytes, size = bytes;
        int count = 1;
        if (travels(plan, (int)b)) {
            size = size_of_pieces(bytes, plan->config.piece_bytes);
            count = (int)((bytes + size - 1) / size);
        }
        plan->pieces[b] = (car_sum_pieces){.size = size, .count = count};
        plan->most_pieces = count > plan->most_pieces ? count : plan->most_pieces;
    }
done:
    return status;
}

int car_plan_pieces(const car_plan *plan, int bundle) {
    return plan->pieces[bundle].count;
}

void car_plan_piece_range(const car_plan *plan, int bundle, int piece, size_t *offset, size_t *bytes) {
    size_t all = plan->partition->bundles[bundle].bytes, size = plan->pieces[bundle].size;
    *offset = size * (size_t)piece;
    *bytes = all - *offset < size ? all - *offset : size;
}

int64_t car_plan_default_piece_bytes(const car_partition *partition) {
    size_t all = 0;
    for (int b = 0; b < partition->bundle_count; b++) {
        all += partition->bundles[b].bytes;
    }
    return all / MOST_ADDED > LEAST_BYTES ? (int64_t)(all / MOST_ADDED) : LEAST_BYTES;
}

int64_t car_cluster_piece_bytes(const car_cluster *cluster, int workers, double compute) {
    const double most = 1e15; /* larger than any sum */
    const car_link *link = &cluster->between;
    double hop = share_of_gap * compute / workers - link->latency, least = least_latencies * link->latency;
    double bytes = link->bandwidth * (hop > least ? hop : least);
    return bytes > most ? (int64_t)most : bytes < ALIGNMENT ? ALIGNMENT : (int64_t)bytes;
}
