/* Ending early: all ranks end after the same step, as soon as they can.
 *
 *   rank 0   stop ──► asks all ─────────► takes the largest answer ──► tells all the end
 *   others            make no new version; answer how far they are     drop what lies behind it
 *
 * A step that somebody has begun to update is finished by all, which takes less than half a step: its forwards are done.
 * So is one whose loss was reported, or that a collective was started for. Where a rank cannot give the version before the
 * last, because it has one place for both, it is one step more: then that version is kept.
 *
 * What is dropped must not leave messages behind. All ranks list the windows that any of them has listed or sent to, and
 * messages of dropped tasks between them are sent with nothing in them, and what arrives for such tasks is thrown away. */
#include <string.h>

#include "engine/rank_internal.h"

/* What ranks tell each other. */
typedef struct ending_note {
    int64_t asks;    /* the order: 1, or 0: this run ends as it should */
    int64_t end;     /* steps of the plan: that cannot be taken back; that are made */
    int64_t windows; /* to be listed */
    int64_t squares; /* steps whose squares are waited for */
} ending_note;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- notes ----------------------------------------------------------------------------------- */

static car_status exchange(car_rank *rank, car_parcel_kind kind, bool sends, int peer, const ending_note *note) {
    const car_message message = {.kind = sends ? CAR_MESSAGE_SEND : CAR_MESSAGE_RECEIVE,
                                 .bytes = sizeof *note,
                                 .peer = peer,
                                 .tag = car_rank_highest_tag(rank) + car_rank_square_tags(rank) + (int)kind,
                                 .due = CAR_MESSAGE_AT_ONCE};
    car_block *block = NULL;
    car_parcel *parcel = NULL;
    car_status status = car_block_create(rank, CAR_MEMORY_MESSAGES, sizeof *note, &block);
    if (status == CAR_OK) {
        memcpy(block->data, note, sizeof *note);
        status = car_rank_ship(rank, &message, block, &parcel);
    }
    if (status == CAR_OK) {
        parcel->kind = kind;
    }
    return status;
}

static car_status tell_all(car_rank *rank, car_parcel_kind kind, const ending_note *note) {
    car_status status = CAR_OK;
    for (int r = 1; status == CAR_OK && r < rank->devices; r++) {
        status = exchange(rank, kind, true, r, note);
    }
    return status;
}

/* ---- how far a rank is ------------------------------------------------------------------------- */

/* Whether the version before the newest is gone once that was made. */
static bool loses_previous(const car_rank *rank) {
    for (int b = 0; b < rank->stages; b++) {
        const car_holding_of_bundle *h = &rank->holding[b];
        bool made_here = h->places == 1 || (h->places == 0 && h->owned);
        if (rank->partition->bundles[b].bytes > 0 && made_here && car_plan_delay(rank->plan, 0, b) > 0) {
            return true;
        }
    }
    return false;
}

static ending_note own_answer(const car_rank *rank) {
    int64_t end = rank->newest_begun + (loses_previous(rank) ? 1 : 0);
    if (rank->device == 0) {
        end = larger(end, car_rank_reported(rank) - rank->first_step);
    }
    return (ending_note){.end = end, .windows = rank->windows_used, .squares = car_rank_squares_expected(rank)};
}

/* ---- the end --------------------------------------------------------------------------------- */

static car_status apply(car_rank *rank, const ending_note *note) {
    rank->frozen = false;
    if (note->end < rank->limit) {
        rank->limit = note->end;
        rank->report_end = rank->first_step + rank->limit;
        rank->shortened = true;
        rank->windows = note->windows < rank->windows ? note->windows : rank->windows;
        pthread_cond_broadcast(&rank->changed);
        return car_rank_settle_squares(rank, note->squares);
    }
    pthread_cond_broadcast(&rank->changed);
    return CAR_OK;
}

/* An update may be listed up to so many windows after its step: where its version is first used. */
enum { WINDOWS_AFTER = 3 };

static car_status decide(car_rank *rank) {
    const ending_note note = {.end = rank->ending.end,
                              .windows = larger(rank->ending.windows, rank->ending.end + WINDOWS_AFTER),
                              .squares = rank->ending.squares};
    car_status status = CAR_OK;
    CAR_TRY(tell_all(rank, CAR_PARCEL_END, &note));
    CAR_TRY(apply(rank, &note));
done:
    return status;
}

static car_status take_answer(car_rank *rank, const ending_note *answer) {
    rank->ending.end = larger(rank->ending.end, answer->end);
    rank->ending.windows = larger(rank->ending.windows, answer->windows);
    rank->ending.squares = larger(rank->ending.squares, answer->squares);
    return ++rank->ending.answers == rank->devices ? decide(rank) : CAR_OK;
}

static car_status ask(car_rank *rank) {
    const ending_note order = {.asks = 1}, nothing = {0}, own = own_answer(rank);
    car_status status = CAR_OK;
    rank->asked = rank->frozen = true;
    rank->ending = (car_ending){0};
    for (int r = 1; r < rank->devices; r++) {
        CAR_TRY(exchange(rank, CAR_PARCEL_ANSWER, false, r, &nothing));
    }
    CAR_TRY(tell_all(rank, CAR_PARCEL_ORDER, &order));
    CAR_TRY(take_answer(rank, &own));
done:
    return status;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void note_failure(car_rank *rank, car_status status) {
    if (status != CAR_OK) {
        car_rank_fail(rank, status);
    }
}

car_status car_rank_await_order(car_rank *rank) {
    const ending_note nothing = {0};
    return rank->device == 0 ? CAR_OK : exchange(rank, CAR_PARCEL_ORDER, false, 0, &nothing);
}

car_status car_rank_give_last_order(car_rank *rank) {
    const ending_note over = {.asks = 0};
    return rank->device == 0 && !rank->asked ? tell_all(rank, CAR_PARCEL_ORDER, &over) : CAR_OK;
}

void car_rank_look_for_stop(car_rank *rank) {
    if (rank->device == 0 && !rank->asked && !rank->ended && atomic_load(&rank->stop)) {
        note_failure(rank, ask(rank));
    }
}

void car_rank_hear_note(car_rank *rank, const car_parcel *parcel) {
    ending_note note;
    memcpy(&note, parcel->block->data, sizeof note);
    if (parcel->kind == CAR_PARCEL_ANSWER) {
        note_failure(rank, take_answer(rank, &note));
    } else if (parcel->kind == CAR_PARCEL_END) {
        note_failure(rank, apply(rank, &note));
    } else if (note.asks) {
        const ending_note own = own_answer(rank), nothing = {0};
        rank->frozen = true;
        note_failure(rank, exchange(rank, CAR_PARCEL_ANSWER, true, 0, &own));
        note_failure(rank, exchange(rank, CAR_PARCEL_END, false, 0, &nothing));
    }
}

bool car_rank_is_dropped(const car_rank *rank, const car_task *task) {
    return task->step >= rank->limit;
}

bool car_rank_may_commit(const car_rank *rank, int64_t version) {
    return !rank->frozen || version <= rank->newest_begun;
}

void car_rank_commit(car_rank *rank, int64_t version) {
    rank->newest_begun = larger(rank->newest_begun, version);
}
