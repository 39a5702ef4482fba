/* Snapshots: copies of the state after step t, taken while the cycle goes on.
 *
 * A stage reaches version t when its update of step t - 1 is made. The rank that keeps the stage's state copies it
 * right then, before the next version can be made. Rank 0 puts the copies together. The other ranks send theirs in
 * pieces, after all messages of the plan:
 *
 *   rank 2, stage 2   .... U copy ─ piece ─ piece ─┐
 *   rank 1, stage 1   ..... U copy ─ piece ─ piece ─┼─► rank 0 hands the snapshot over when it is complete
 *   rank 0, stage 0   ...... U copy ───────────────┘
 *
 * Memory is bounded, because a rank works on one snapshot at a time. An update that has to copy for the next snapshot
 * waits until this rank's part of the last one has left; on rank 0, until the last one was given back. Rank 0 receives
 * the stages in a fixed order, from the highest, with one receive posted at a time. */
#include <math.h>
#include <string.h>

#include "engine/rank_internal.h"
#include "engine/snapshot_internal.h"

enum { PIECE = 1 << 20 }; /* bytes of a message; small, so that it does not delay messages of the plan */

struct car_snapshots {
    int64_t version; /* counted in steps of training: that of the current snapshot, or of the next one */
    /* Mask of its parts: the whole state, or only the weights and their average. */
    int32_t parts;
    int stages;  /* number of stages that this rank copies; on rank 0, of all stages with weights */
    int done;    /* how many of them are complete */
    int sending; /* pieces that this rank is sending */
    /* On rank 0: */
    car_snapshot *snapshot;
    bool away;       /* it was handed over, and not given back yet */
    int stage;       /* the stage that is received now; -1 = all have arrived */
    size_t received; /* bytes of that stage received so far */
    bool posted;     /* a receive is posted */
    /* If norms are needed: the numbers of coming snapshots that are known already, in order. */
    car_snapshot_numbers *numbers;
    int number_count, number_capacity;
};

/* ---- which versions, and who copies them ------------------------------------------------------ */

static int64_t next_multiple(int64_t after, int64_t every) {
    return every > 0 ? (after / every + 1) * every : INT64_MAX;
}

/* The first version after this one that a snapshot is taken of. */
static int64_t next_due(const car_rank *rank, int64_t after) {
    int64_t whole = next_multiple(after, rank->config.snapshot_every),
            weights = next_multiple(after, rank->config.weights_every);
    return whole < weights ? whole : weights;
}

static bool is_due(const car_rank *rank, int64_t version) {
    return next_due(rank, version - 1) == version;
}

/* The rank that copies a stage is the one that owns its update. CAR_NONE if the stage has no parameters. */
static int keeper_of(const car_rank *rank, int64_t version, int stage) {
    int64_t step = version - rank->first_step - 1;
    return rank->partition->bundles[stage].bytes > 0 ? car_rank_owner(rank, step, stage) : CAR_NONE;
}

/* True if this rank has to copy the version that this update makes. */
static bool concerns(const car_rank *rank, const car_task *task) {
    int64_t version = rank->first_step + task->version;
    return rank->snapshots && is_due(rank, version) && keeper_of(rank, version, task->bundle) == rank->device;
}

/* The next stage, from `stage` downwards, that rank 0 receives from another rank; -1 = none. */
static int next_remote(const car_rank *rank, int64_t version, int stage) {
    while (stage >= 0 && keeper_of(rank, version, stage) <= 0) {
        stage--;
    }
    return stage;
}

static void aim(car_rank *rank, int64_t version) {
    struct car_snapshots *s = rank->snapshots;
    s->version = version;
    bool whole = rank->config.snapshot_every > 0 && version % rank->config.snapshot_every == 0;
    s->parts = whole ? (1 << CAR_SNAPSHOT_PARTS) - 1 : 1 << CAR_SNAPSHOT_WEIGHTS | 1 << CAR_SNAPSHOT_AVERAGE;
    s->parts &= car_rank_has_previous(rank) ? -1 : ~(1 << CAR_SNAPSHOT_PREVIOUS);
    s->stages = s->done = 0;
    for (int j = 0; j < rank->stages; j++) {
        int keeper = keeper_of(rank, version, j);
        s->stages += keeper != CAR_NONE && (rank->device == 0 || keeper == rank->device);
    }
    s->stage = next_remote(rank, version, rank->stages - 1);
    s->received = 0;
}

/* ---- creating -------------------------------------------------------------------------------- */

car_status car_rank_create_snapshot(const car_rank *rank, car_snapshot **out) {
    CAR_REQUIRE(NULL, rank);
    CAR_REQUIRE(rank->context, out);
    return car_snapshot_create_for(rank->program, rank->arena, car_rank_has_previous(rank), &rank->config.optimizer,
                                   out);
}

car_status car_rank_create_snapshots(car_rank *rank) {
    const car_trainer_config *config = &rank->config;
    car_status status = CAR_OK;
    if (config->snapshot_every == 0 && config->weights_every == 0) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(rank->context, 1, sizeof *rank->snapshots, &rank->snapshots));
    if (rank->device == 0) {
        CAR_TRY(config->snapshot_every > 0
                    ? car_rank_create_snapshot(rank, &rank->snapshots->snapshot)
                    : car_snapshot_create_evaluated(rank->program, rank->arena, &config->optimizer,
                                                    &rank->snapshots->snapshot));
    }
done:
    return status;
}

void car_rank_destroy_snapshots(car_rank *rank) {
    struct car_snapshots *s = rank->snapshots;
    if (s) {
        car_snapshot_destroy(s->snapshot);
        car_context_release(rank->context, s->numbers, (size_t)s->number_capacity, sizeof *s->numbers);
        car_context_release(rank->context, s, 1, sizeof *s);
    }
}

void car_rank_rewind_snapshots(car_rank *rank) {
    if (rank->snapshots) {
        rank->snapshots->number_count = 0;
        aim(rank, next_due(rank, rank->first_step));
    }
}

/* ---- the size of a copy ----------------------------------------------------------------------- */

static size_t bytes_of(const car_rank *rank, int stage) {
    size_t bytes = 0;
    for (car_segment s = {0}; car_rank_next_segment(rank, stage, rank->snapshots->parts, &s);) {
        bytes = s.begin + s.part->bytes;
    }
    return bytes;
}

/* ---- copying --------------------------------------------------------------------------------- */

bool car_rank_may_copy(const car_rank *rank, const car_task *task) {
    const struct car_snapshots *s = rank->snapshots;
    return !concerns(rank, task) || (rank->first_step + task->version == s->version && !s->away);
}

car_status car_rank_begin_copy(car_rank *rank, const car_task *task, car_block **room) {
    *room = NULL;
    return concerns(rank, task) && rank->device != 0
               ? car_block_create(rank, CAR_MEMORY_SNAPSHOT, bytes_of(rank, task->bundle), room)
               : CAR_OK;
}

/* True if a part must be copied before the update: the previous version, which an update in place overwrites. If the
 * stage has only one version and no micro-batch ever uses an older one, the new version is copied in its place. */
static bool is_copied_before(const car_rank *rank, int stage, int which) {
    bool used = car_plan_delay(rank->plan, 0, stage) > 0 || rank->holding[stage].places == 2;
    return which == CAR_SNAPSHOT_PREVIOUS && used;
}

/* Copies the weights of a version as floats. Those of the newest version come from the master block, if there is
 * one. */
static void copy_weights(const car_rank *rank, int bundle, const car_part *part, const car_block *weights, bool newest,
                         void *to) {
    const car_block *master = rank->holding[bundle].master;
    if (master && newest) {
        memcpy(to, master->data + part->home_offset, part->bytes);
    } else {
        car_engine_unround(rank->program, part->param, weights->data + part->offset, to);
    }
}

void car_rank_copy(car_rank *rank, const car_task *task, const car_block *room, const car_block *weights, bool before) {
    if (!concerns(rank, task)) {
        return;
    }
    for (car_segment s = {0}; car_rank_next_segment(rank, task->bundle, rank->snapshots->parts, &s);) {
        if (is_copied_before(rank, task->bundle, s.which) != before) {
            continue;
        }
        int state = s.which - CAR_SNAPSHOT_STATE_0, param = s.part->param;
        void *to = room ? (void *)(room->data + s.begin)
                        : (void *)car_snapshot_data(rank->snapshots->snapshot, (car_snapshot_part)s.which, param);
        if (state >= 0) {
            memcpy(to, car_optimizer_state(rank->optimizer, state, param), s.part->bytes);
        } else {
            copy_weights(rank, task->bundle, s.part, weights, s.which == CAR_SNAPSHOT_WEIGHTS, to);
        }
    }
}

/* Sends or receives a piece. Pieces of a stage share a tag, so they arrive in order. Takes over a reference of the
 * block. */
static car_status exchange(car_rank *rank, car_message_kind kind, int peer, int stage, car_block *block, size_t at,
                           size_t bytes) {
    const car_message message = {.kind = kind,
                                 .name = CAR_MESSAGE_SNAPSHOT,
                                 .data = block->data + at,
                                 .bytes = bytes,
                                 .peer = peer,
                                 .tag = stage,
                                 .due = CAR_MESSAGE_LAST};
    return car_rank_ship(rank, &message, block);
}

static car_status send_pieces(car_rank *rank, int stage, car_block *room) {
    struct car_snapshots *s = rank->snapshots;
    size_t bytes = bytes_of(rank, stage);
    car_status status = CAR_OK;
    for (size_t at = 0; status == CAR_OK && at < bytes; at += PIECE) {
        s->sending++;
        room->references++;
        status = exchange(rank, CAR_MESSAGE_SEND, 0, stage, room, at, bytes - at < PIECE ? bytes - at : PIECE);
    }
    return status;
}

car_status car_rank_end_copy(car_rank *rank, const car_task *task, car_block *room) {
    car_status status = CAR_OK;
    if (concerns(rank, task)) {
        rank->snapshots->done++;
        status = room ? send_pieces(rank, task->bundle, room) : CAR_OK;
    }
    car_block_drop(rank, room);
    return status;
}

/* ---- rank 0: receiving the copies of other ranks ---------------------------------------------- */

/* Copies a received piece into the snapshot. Hold the lock; it is released meanwhile. */
static void take_piece(car_rank *rank, int stage, const car_block *piece, size_t bytes) {
    const struct car_snapshots *snapshots = rank->snapshots;
    size_t at = snapshots->received, end = at + bytes;
    pthread_mutex_unlock(&rank->lock);
    for (car_segment s = {0}; car_rank_next_segment(rank, stage, rank->snapshots->parts, &s);) {
        size_t from = s.begin > at ? s.begin : at, last = s.begin + s.part->bytes, to = last < end ? last : end;
        if (from < to) {
            char *data = (char *)car_snapshot_data(snapshots->snapshot, (car_snapshot_part)s.which, s.part->param);
            memcpy(data + (from - s.begin), piece->data + (from - at), to - from);
        }
    }
    pthread_mutex_lock(&rank->lock);
}

static car_status expect_piece(car_rank *rank) {
    struct car_snapshots *s = rank->snapshots;
    bool comes = s->version <= rank->first_step + rank->limit && s->stage >= 0;
    if (rank->device != 0 || s->posted || s->away || rank->frozen || !comes) {
        return CAR_OK;
    }
    size_t left = bytes_of(rank, s->stage) - s->received, bytes = left < PIECE ? left : PIECE;
    car_block *block = NULL;
    car_status status = car_block_create(rank, CAR_MEMORY_SNAPSHOT, bytes, &block);
    s->posted = true;
    return status == CAR_OK
               ? exchange(rank, CAR_MESSAGE_RECEIVE, keeper_of(rank, s->version, s->stage), s->stage, block, 0, bytes)
               : status;
}

car_status car_rank_note_piece(car_rank *rank, const car_parcel *parcel) {
    struct car_snapshots *s = rank->snapshots;
    if (parcel->message.kind == CAR_MESSAGE_SEND) {
        s->sending--;
        return CAR_OK;
    }
    if (s->version <= rank->first_step + rank->limit) { /* otherwise the run ends before this version */
        take_piece(rank, s->stage, parcel->block, parcel->message.bytes);
        s->received += parcel->message.bytes;
        if (s->received == bytes_of(rank, s->stage)) {
            s->stage = next_remote(rank, s->version, s->stage - 1);
            s->received = 0;
            s->done++;
        }
    }
    s->posted = false;
    return expect_piece(rank);
}

/* ---- complete snapshots ----------------------------------------------------------------------- */

car_status car_rank_note_numbers(car_rank *rank, int64_t steps) {
    struct car_snapshots *s = rank->snapshots;
    int64_t version = rank->first_step + steps;
    car_status status = CAR_OK;
    if (s && rank->device == 0 && is_due(rank, version)) {
        CAR_TRY(
            car_context_grow(rank->context, &s->numbers, &s->number_capacity, s->number_count + 1, sizeof *s->numbers));
        s->numbers[s->number_count++] = (car_snapshot_numbers){
            .step = version, .updates = car_rank_updates_after(rank, steps), .norm = car_rank_norm_after(rank, steps)};
    }
done:
    return status;
}

/* Finds the numbers of the current snapshot. Returns false if its norm is not known yet. */
static bool take_numbers(car_rank *rank, car_snapshot_numbers *out) {
    struct car_snapshots *s = rank->snapshots;
    *out = (car_snapshot_numbers){
        .step = s->version, .updates = rank->updates + s->version - rank->first_step, .norm = NAN};
    if (rank->measures && s->number_count == 0) {
        return false;
    }
    if (rank->measures) {
        *out = s->numbers[0];
        memmove(&s->numbers[0], &s->numbers[1], (size_t)--s->number_count * sizeof *s->numbers);
    }
    car_optimizer_get_since(rank->optimizer, out);
    return true;
}

/* Releases the lock during the callback, which may give the snapshot back at once. */
static void hand_over(car_rank *rank, const car_snapshot_numbers *numbers) {
    struct car_snapshots *s = rank->snapshots;
    car_snapshot_set_numbers(s->snapshot, numbers);
    s->away = true;
    aim(rank, next_due(rank, s->version));
    pthread_mutex_unlock(&rank->lock);
    rank->config.on_snapshot(rank->config.snapshot_user, s->snapshot);
    pthread_mutex_lock(&rank->lock);
}

car_status car_rank_tend_snapshots(car_rank *rank) {
    struct car_snapshots *s = rank->snapshots;
    car_snapshot_numbers numbers;
    if (!s) {
        return CAR_OK;
    }
    if (rank->device == 0 && s->done == s->stages && !s->away && take_numbers(rank, &numbers)) {
        hand_over(rank, &numbers);
    }
    while (rank->device != 0 && s->done == s->stages && s->sending == 0 &&
           s->version <= rank->first_step + rank->steps_used) { /* this rank has nothing to copy for some snapshots */
        aim(rank, next_due(rank, s->version));
    }
    return expect_piece(rank);
}

bool car_rank_snapshots_are_done(const car_rank *rank) {
    return rank->device != 0 || !rank->snapshots || rank->snapshots->version > rank->first_step + rank->limit;
}

bool car_rank_snapshot_is_away(const car_rank *rank) {
    return rank->snapshots && rank->snapshots->away;
}

void car_rank_return_snapshot(car_rank *rank) {
    if (!rank || !rank->snapshots) {
        return;
    }
    pthread_mutex_lock(&rank->lock);
    rank->snapshots->away = false;
    pthread_cond_broadcast(&rank->changed);
    pthread_mutex_unlock(&rank->lock);
}

/* ---- an early end ---------------------------------------------------------------------------- */

int64_t car_rank_snapshot_expected(const car_rank *rank) {
    return rank->snapshots && rank->snapshots->posted ? rank->snapshots->version - rank->first_step : 0;
}

/* No rank has begun to make this version, so rank 0 is waiting for its first piece. */
car_status car_rank_settle_snapshot(car_rank *rank, int64_t version) {
    int64_t of_run = rank->first_step + version;
    int stage = version > rank->limit ? next_remote(rank, of_run, rank->stages - 1) : -1;
    car_block *nothing = NULL;
    car_status status = CAR_OK;
    if (stage >= 0 && keeper_of(rank, of_run, stage) == rank->device) {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_SNAPSHOT, sizeof(float), &nothing));
        rank->snapshots->sending++;
        status = exchange(rank, CAR_MESSAGE_SEND, 0, stage, nothing, 0, sizeof(float));
    }
done:
    return status;
}
