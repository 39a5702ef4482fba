/* Single steps that only compute the loss or the gradient; and weights that the caller sets or reads.
 *
 * The plan runs as it is, so this works in all placements. For the gradient, an update keeps the mean of the sum and
 * leaves the weights as they are. For the loss, backwards compute nothing and nothing is kept, but their messages and
 * sums are sent.
 *
 *     F F F B B B U      training
 *     F F F B B B mean   gradient
 *     F F F . . . .      loss
 */
#include <math.h>
#include <string.h>

#include "carousel/stage.h"
#include "engine/rank_internal.h"
#include "engine/snapshot_internal.h"

/* ---- the mean gradient ----------------------------------------------------------------------- */

car_status car_rank_begin_average(car_rank *rank, int bundle) {
    car_holding_of_bundle *h = &rank->holding[bundle];
    bool wanted = rank->purpose == CAR_PURPOSE_GRADIENT && !h->mean;
    return wanted ? car_block_create(rank, CAR_MEMORY_GRADIENTS, h->layout.master_bytes, &h->mean) : CAR_OK;
}

void car_rank_average(car_rank *rank, int bundle, const car_block *sum) {
    const car_holding_of_bundle *h = &rank->holding[bundle];
    for (const car_part *part = NULL; (part = car_layout_next(&h->layout, part));) {
        char *mean = h->mean->data + part->home_offset;
        if (car_engine_is_statistic(rank->program, part->param)) {
            memset(mean, 0, part->bytes);
        } else {
            car_engine_average(rank->program, part->param, sum->data + part->sum_offset, rank->batches, mean);
        }
    }
}

static void drop_means(car_rank *rank) {
    for (int b = 0; b < rank->bundles; b++) {
        car_block_clear(rank, &rank->holding[b].mean);
    }
}

/* ---- one step -------------------------------------------------------------------------------- */

/* What a step changes. It is restored afterwards. */
typedef struct numbers {
    int64_t first_step, updates;
    double norm;
    int skipped;
    struct car_snapshots *snapshots;
} numbers;

static numbers begin(car_rank *rank, car_purpose purpose) {
    const numbers n = {rank->first_step, rank->updates, rank->last_norm, rank->skipped_in_a_row, rank->snapshots};
    rank->purpose = purpose;
    rank->mean_loss = NAN;
    rank->snapshots = NULL;
    return n;
}

static void end(car_rank *rank, const numbers *n) {
    rank->purpose = CAR_PURPOSE_TRAINING;
    rank->first_step = n->first_step;
    rank->updates = n->updates;
    rank->last_norm = n->norm;
    rank->skipped_in_a_row = n->skipped;
    rank->snapshots = n->snapshots;
    car_rank_clear_tapes(rank);
}

/* If micro-batches may be stale there are two versions. This saves the older one, to restore it after the step; the
 * step itself uses only the newest one. */
static car_status set_aside(car_rank *rank, car_snapshot **out) {
    car_status status = CAR_OK;
    if (!car_rank_has_previous(rank)) {
        return CAR_OK;
    }
    CAR_TRY(car_rank_all_succeed(rank, rank->device == 0 ? car_snapshot_create(rank->program, rank->arena, true, 0, out)
                                                         : CAR_OK));
    CAR_TRY(car_rank_gather(rank, *out));
    for (int b = 0; b < rank->bundles; b++) {
        car_block_clear(rank, &rank->holding[b].older);
        rank->holding[b].held[1].version = rank->holding[b].places == 2 ? CAR_NONE : rank->holding[b].held[1].version;
    }
    rank->goes_on = false;
done:
    return status;
}

static car_status run_once(car_rank *rank, car_purpose purpose, double *loss) {
    car_snapshot *snapshot = NULL;
    car_status status = rank->status;
    CAR_TRY(status);
    CAR_TRY(car_rank_go_on(rank));
    CAR_TRY(set_aside(rank, &snapshot));
    const numbers n = begin(rank, purpose);
    status = car_rank_run(rank, rank->first_step + 1);
    end(rank, &n);
    CAR_TRY(status);
    if (car_rank_has_previous(rank)) {
        CAR_TRY(car_rank_spread(rank, snapshot));
    }
    *loss = rank->mean_loss;
    status = car_transport_broadcast(rank->transport, 0, loss, sizeof *loss);
done:
    car_snapshot_destroy(snapshot);
    return status;
}

/* ---- values of parameters -------------------------------------------------------------------- */

/* Sends a parameter's weights or mean gradient from the rank that has them to all ranks. */
static car_status hand_out(car_rank *rank, int bundle, const car_part *part, bool gradient, void *room, void *values) {
    int keeper = car_rank_keeper_of(rank, bundle);
    float *weights = NULL;
    car_status status = CAR_OK;
    if (keeper == rank->device && gradient) {
        memcpy(room, rank->holding[bundle].mean->data + part->home_offset, part->bytes);
    } else if (keeper == rank->device) {
        CAR_TRY(car_rank_get_part(rank, bundle, part, CAR_SNAPSHOT_WEIGHTS, room, &weights));
        memcpy(room, weights, part->bytes);
    }
    CAR_TRY(car_transport_broadcast(rank->transport, keeper, room, part->bytes));
    if (values) {
        CAR_TRY(car_program_export_param(rank->program, part->param, room, values));
    }
done:
    return status;
}

static car_status hand_out_all(car_rank *rank, bool gradient, void *const *values) {
    float *room = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_rank_all_succeed(rank, car_rank_create_room(rank, &room)));
    for (int b = 0; b < rank->stages; b++) {
        for (const car_part *part = NULL; (part = car_layout_next(&rank->holding[b].layout, part));) {
            CAR_TRY(hand_out(rank, b, part, gradient, room, values[part->param]));
        }
    }
done:
    car_rank_release_room(rank, room);
    return status;
}

/* ---- calls ----------------------------------------------------------------------------------- */

car_status car_rank_evaluate(car_rank *rank, double *loss) {
    CAR_REQUIRE(NULL, rank);
    CAR_REQUIRE(rank->context, loss);
    return run_once(rank, CAR_PURPOSE_LOSS, loss);
}

car_status car_rank_gradient(car_rank *rank, double *loss, void *const *gradients) {
    CAR_REQUIRE(NULL, rank);
    CAR_REQUIRE(rank->context, loss);
    CAR_REQUIRE(rank->context, gradients);
    car_status status = CAR_OK;
    CAR_TRY(run_once(rank, CAR_PURPOSE_GRADIENT, loss));
    if (!rank->shortened) {
        CAR_TRY(hand_out_all(rank, true, gradients));
    }
done:
    drop_means(rank);
    return status;
}

car_status car_rank_read(car_rank *rank, void *const *weights) {
    CAR_REQUIRE(NULL, rank);
    CAR_REQUIRE(rank->context, weights);
    return hand_out_all(rank, false, weights);
}

car_status car_rank_assign(car_rank *rank, const void *const *weights) {
    CAR_REQUIRE(NULL, rank);
    CAR_REQUIRE(rank->context, weights);
    float *room = NULL;
    car_status status = rank->status;
    CAR_TRY(status);
    CAR_TRY(car_rank_go_on(rank));
    CAR_TRY(car_rank_create_room(rank, &room));
    for (int p = 0; p < car_graph_param_count(rank->graph); p++) {
        if (weights[p]) {
            CAR_TRY(car_program_import_param(rank->program, p, weights[p], room));
            CAR_TRY(car_rank_put_part(rank, p, CAR_SNAPSHOT_WEIGHTS, room));
        }
    }
    status = car_rank_settle_versions(rank, false);
done:
    car_rank_release_room(rank, room);
    return status;
}
