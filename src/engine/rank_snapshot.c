/* Snapshots: the state after step t, taken while the cycle goes on.
 *
 * A stage reaches version t when its update of step t - 1 is made. The rank that keeps the stage's state copies it right
 * then, before anybody can make the next version. Rank 0 puts the copies together. The others send theirs in pieces, behind
 * all messages of the plan:
 *
 *   rank 2, stage 2   .... U copy ─ piece ─ piece ─┐
 *   rank 1, stage 1   ..... U copy ─ piece ─ piece ─┼─► rank 0 hands the snapshot over when it is whole
 *   rank 0, stage 0   ...... U copy ───────────────┘
 *
 * Memory is bounded: a rank works on one snapshot at a time. An update that is due for the next one waits until this rank's
 * part of the last has left, on rank 0 until the last was given back. Rank 0 takes the stages in a fixed order, from the
 * highest, with one piece posted. */
#include <math.h>
#include <string.h>

#include "engine/cut_internal.h"
#include "engine/rank_internal.h"

enum { PIECE = 1 << 20 }; /* bytes per message; small, so that messages of the plan are not delayed */
enum { NUMBERS = 4 };     /* norms are known up to two versions before the copies are here */

struct car_snapshots {
    int64_t version; /* of the run: the one that is worked on, or comes next */
    bool whole;      /* all that training goes on from; otherwise the weights, and their average */
    int stages;      /* stages that this rank copies; on rank 0: all stages */
    int done;        /* how many of them are done */
    int sending;     /* pieces on their way from here */
    /* Rank 0's. */
    car_cut *cut;
    bool away;                        /* handed over, and not yet given back */
    int stage;                        /* that is received next; -1: all are here */
    size_t received;                  /* bytes of it */
    bool posted;                      /* a piece is waited for */
    car_cut_numbers numbers[NUMBERS]; /* where they depend on norms: of the last versions that are known */
};

/* ---- which, and whose ------------------------------------------------------------------------ */

static int64_t next_multiple(int64_t after, int64_t every) {
    return every > 0 ? (after / every + 1) * every : INT64_MAX;
}

/* The first version of the run behind this one that a snapshot is taken of. */
static int64_t next_due(const car_rank *rank, int64_t after) {
    int64_t whole = next_multiple(after, rank->config.cut_every),
            weights = next_multiple(after, rank->config.weights_every);
    return whole < weights ? whole : weights;
}

static bool is_due(const car_rank *rank, int64_t version) {
    return next_due(rank, version - 1) == version;
}

/* The rank that copies a stage: one that makes this version for certain. CAR_NONE if there is nothing to copy. */
static int keeper_of(const car_rank *rank, int64_t version, int stage) {
    int64_t step = version - rank->first_step - 1;
    return rank->partition->bundles[stage].bytes > 0
               ? car_plan_rank_of(rank->plan, car_plan_owner(rank->plan, step, stage))
               : CAR_NONE;
}

/* Whether this update is one that this rank copies. */
static bool concerns(const car_rank *rank, const car_task *task) {
    int64_t version = rank->first_step + task->version;
    return rank->snapshots && is_due(rank, version) && keeper_of(rank, version, task->bundle) == rank->device;
}

/* The next stage, from `stage` downwards, that rank 0 gets from another; -1: none. */
static int next_remote(const car_rank *rank, int64_t version, int stage) {
    while (stage >= 0 && keeper_of(rank, version, stage) <= 0) {
        stage--;
    }
    return stage;
}

static void aim(car_rank *rank, int64_t version) {
    struct car_snapshots *s = rank->snapshots;
    s->version = version;
    s->whole = version % (rank->config.cut_every > 0 ? rank->config.cut_every : INT64_MAX) == 0;
    s->stages = s->done = 0;
    for (int j = 0; j < rank->stages; j++) {
        int keeper = keeper_of(rank, version, j);
        s->stages += keeper != CAR_NONE && (rank->device == 0 || keeper == rank->device);
    }
    s->stage = next_remote(rank, version, rank->stages - 1);
    s->received = 0;
}

/* ---- creating -------------------------------------------------------------------------------- */

static bool has_previous(const car_rank *rank) {
    return car_plan_delay(rank->plan, 0, 0) > 0; /* if anybody is stale, the first worker is, at stage 0 */
}

car_status car_rank_create_cut(const car_rank *rank, car_cut **out) {
    return car_cut_create_for(rank->program, rank->arena, has_previous(rank), &rank->config.optimizer, out);
}

car_status car_rank_create_snapshots(car_rank *rank) {
    const car_trainer_config *config = &rank->config;
    car_status status = CAR_OK;
    if (config->cut_every == 0 && config->weights_every == 0) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(rank->context, 1, sizeof *rank->snapshots, &rank->snapshots));
    if (rank->device == 0) {
        CAR_TRY(config->cut_every > 0
                    ? car_rank_create_cut(rank, &rank->snapshots->cut)
                    : car_cut_create_evaluated(rank->program, rank->arena, &config->optimizer, &rank->snapshots->cut));
    }
done:
    return status;
}

void car_rank_destroy_snapshots(car_rank *rank) {
    if (rank->snapshots) {
        car_cut_destroy(rank->snapshots->cut);
        car_context_release(rank->context, rank->snapshots, 1, sizeof *rank->snapshots);
    }
}

void car_rank_rewind_snapshots(car_rank *rank) {
    if (rank->snapshots) {
        memset(rank->snapshots->numbers, 0, sizeof rank->snapshots->numbers);
        aim(rank, next_due(rank, rank->first_step));
    }
}

/* ---- what a stage's copy is made of ------------------------------------------------------------- */

/* A part of a parameter, and where it begins in the bytes that are sent. To begin with: all zero. */
typedef struct segment {
    int which, index;
    const car_part *part;
    size_t begin;
} segment;

static bool is_in(const car_rank *rank, int which, const car_part *part) {
    int state = which - CAR_CUT_STATE_0;
    bool kept = state < 0 ? which == CAR_CUT_WEIGHTS || has_previous(rank)
                          : car_optimizer_keeps(&rank->config.optimizer, rank->graph, part->param, state);
    bool evaluated = which == CAR_CUT_WEIGHTS || which == CAR_CUT_AVERAGE;
    return part->first && kept && (rank->snapshots->whole || evaluated);
}

static bool next_segment(const car_rank *rank, int stage, segment *s) {
    const car_layout *layout = &rank->holding[stage].layout;
    s->begin += s->part ? s->part->bytes : 0;
    for (; s->which < CAR_CUT_PARTS; s->which++, s->index = 0) {
        while (s->index < layout->count) {
            s->part = &layout->parts[s->index++];
            if (is_in(rank, s->which, s->part)) {
                return true;
            }
        }
    }
    return false;
}

static size_t bytes_of(const car_rank *rank, int stage) {
    size_t bytes = 0;
    for (segment s = {0}; next_segment(rank, stage, &s);) {
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

/* An update in place writes over the previous version. Where nobody ever uses that, the new one is copied for it. */
static bool is_copied_before(const car_rank *rank, int stage, int which) {
    bool used = car_plan_delay(rank->plan, 0, stage) > 0 || rank->holding[stage].places == 2;
    return which == CAR_CUT_PREVIOUS && used;
}

/* The floats of a version's weights: the newest one's are the master's. */
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
    for (segment s = {0}; next_segment(rank, task->bundle, &s);) {
        if (is_copied_before(rank, task->bundle, s.which) != before) {
            continue;
        }
        int state = s.which - CAR_CUT_STATE_0, param = s.part->param;
        void *to = room ? (void *)(room->data + s.begin)
                        : (void *)car_cut_data(rank->snapshots->cut, (car_cut_part)s.which, param);
        if (state >= 0) {
            memcpy(to, car_optimizer_state(rank->optimizer, state, param), s.part->bytes);
        } else {
            copy_weights(rank, task->bundle, s.part, weights, s.which == CAR_CUT_WEIGHTS, to);
        }
    }
}

/* The pieces of a stage share a tag, so they arrive in order. */
static car_status send_pieces(car_rank *rank, int stage, car_block *room) {
    struct car_snapshots *s = rank->snapshots;
    size_t bytes = bytes_of(rank, stage);
    car_status status = CAR_OK;
    for (size_t at = 0; status == CAR_OK && at < bytes; at += PIECE) {
        s->sending++;
        room->references++;
        status = car_rank_send_piece(rank, s->version - rank->first_step, stage, room, at,
                                     bytes - at < PIECE ? bytes - at : PIECE);
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

void car_rank_note_piece_sent(car_rank *rank) {
    rank->snapshots->sending--;
}

/* ---- rank 0: what the others copied ------------------------------------------------------------- */

/* With the lock, which it lets go while it copies: nobody else touches these parts of the cut. */
static void take_piece(car_rank *rank, int stage, const car_block *piece, size_t bytes) {
    const struct car_snapshots *snapshots = rank->snapshots;
    size_t at = snapshots->received, end = at + bytes;
    pthread_mutex_unlock(&rank->lock);
    for (segment s = {0}; next_segment(rank, stage, &s);) {
        size_t from = s.begin > at ? s.begin : at, last = s.begin + s.part->bytes, to = last < end ? last : end;
        if (from < to) {
            char *data = (char *)car_cut_data(snapshots->cut, (car_cut_part)s.which, s.part->param);
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
    size_t left = bytes_of(rank, s->stage) - s->received;
    s->posted = true;
    return car_rank_expect_note(rank, CAR_NOTE_SNAPSHOT, s->version - rank->first_step, s->stage,
                                keeper_of(rank, s->version, s->stage), left < PIECE ? left : PIECE);
}

car_status car_rank_hear_piece(car_rank *rank, const car_parcel *parcel) {
    struct car_snapshots *s = rank->snapshots;
    if (parcel->step <= rank->limit) { /* else the run ends before this version */
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

/* ---- whole ----------------------------------------------------------------------------------- */

void car_rank_note_numbers(car_rank *rank, int64_t steps) {
    struct car_snapshots *s = rank->snapshots;
    int64_t version = rank->first_step + steps;
    if (s && rank->device == 0 && is_due(rank, version)) {
        memmove(&s->numbers[1], &s->numbers[0], (NUMBERS - 1) * sizeof s->numbers[0]);
        s->numbers[0] = (car_cut_numbers){
            .step = version, .updates = car_rank_updates_after(rank, steps), .norm = car_rank_norm_after(rank, steps)};
    }
}

/* A norm is known a little after or before the last copy is here. */
static bool find_numbers(const car_rank *rank, car_cut_numbers *out) {
    const struct car_snapshots *s = rank->snapshots;
    int at = 0;
    while (rank->norm && at < NUMBERS - 1 && s->numbers[at].step != s->version) {
        at++;
    }
    *out = rank->norm ? s->numbers[at]
                      : (car_cut_numbers){
                            .step = s->version, .updates = rank->updates + s->version - rank->first_step, .norm = NAN};
    out->since = car_optimizer_since(rank->optimizer);
    return out->step == s->version;
}

/* It lets the lock go: the snapshot may be given back at once. */
static void hand_over(car_rank *rank, const car_cut_numbers *numbers) {
    struct car_snapshots *s = rank->snapshots;
    car_cut_set_numbers(s->cut, numbers);
    s->away = true;
    aim(rank, next_due(rank, s->version));
    pthread_mutex_unlock(&rank->lock);
    rank->config.on_cut(rank->config.cut_user, s->cut);
    pthread_mutex_lock(&rank->lock);
}

car_status car_rank_tend_snapshots(car_rank *rank) {
    struct car_snapshots *s = rank->snapshots;
    car_cut_numbers numbers;
    if (!s) {
        return CAR_OK;
    }
    if (rank->device == 0 && s->done == s->stages && !s->away && find_numbers(rank, &numbers)) {
        hand_over(rank, &numbers);
    }
    while (rank->device != 0 && s->done == s->stages && s->sending == 0 &&
           s->version <= rank->first_step + rank->steps_used) { /* of some this rank copies nothing */
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

void car_rank_return_cut(car_rank *rank) {
    pthread_mutex_lock(&rank->lock);
    rank->snapshots->away = false;
    pthread_cond_broadcast(&rank->changed);
    pthread_mutex_unlock(&rank->lock);
}

/* ---- an early end ---------------------------------------------------------------------------- */

int64_t car_rank_snapshot_expected(const car_rank *rank) {
    return rank->snapshots && rank->snapshots->posted ? rank->snapshots->version - rank->first_step : 0;
}

/* What no rank has begun to make, nobody has sent, so rank 0 waits for its first piece. */
car_status car_rank_settle_snapshot(car_rank *rank, int64_t version) {
    int64_t of_run = rank->first_step + version;
    int stage = version > rank->limit ? next_remote(rank, of_run, rank->stages - 1) : -1;
    car_block *nothing = NULL;
    car_status status = CAR_OK;
    if (stage >= 0 && keeper_of(rank, of_run, stage) == rank->device) {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_SNAPSHOT, sizeof(float), &nothing));
        rank->snapshots->sending++;
        status = car_rank_send_piece(rank, version, stage, nothing, 0, sizeof(float));
    }
done:
    return status;
}
