/* Ending early: all ranks end after the same step, as soon as possible.
 *
 *   rank 0   stop ──► asks all ─────────► takes the largest answer ──► tells all the end
 *   others            make no new version; answer how far they are     drop the steps after it
 *
 * If a rank has begun to update in a step, all ranks finish this step. That takes less than half a step, because its
 * forwards are done. They also finish a step whose loss was reported, or for which a collective was started. A rank
 * with a single place for two versions has already overwritten the version before the newest. Then one more step is
 * made, and it keeps the version before that step.
 *
 * Dropped tasks must not leave messages behind. So all ranks list the windows that any rank has listed or sent to.
 * Within these windows, messages of dropped tasks are sent empty, and the receiver discards them. */
#include "engine/rank_internal.h"

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- how far a rank is ------------------------------------------------------------------------- */

/* True if making a version overwrites the one before, which the next run needs. */
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

static car_ending own_answer(const car_rank *rank) {
    int64_t end = rank->newest_begun + (loses_previous(rank) ? 1 : 0);
    if (rank->device == 0) {
        end = larger(end, car_rank_reported(rank));
    }
    return (car_ending){.end = end, .windows = rank->windows_used};
}

/* ---- the end --------------------------------------------------------------------------------- */

static car_status apply(car_rank *rank, const car_ending *ending) {
    rank->frozen = false;
    rank->released = true;
    pthread_cond_broadcast(&rank->changed);
    if (ending->end >= rank->limit) {
        return CAR_OK;
    }
    rank->limit = ending->end;
    rank->shortened = true;
    rank->windows = ending->windows < rank->windows ? ending->windows : rank->windows;
    return car_rank_settle_snapshot(rank, ending->snapshot);
}

/* An update is listed where its version is first used. That is up to this many windows after its step. */
enum { WINDOWS_AFTER = 3 };

/* Called when all ranks have answered. */
static car_status decide(car_rank *rank) {
    car_ending *end = &rank->ending;
    car_status status = CAR_OK;
    end->windows = larger(end->windows, end->end + WINDOWS_AFTER);
    end->snapshot = car_rank_snapshot_expected(rank);
    CAR_TRY(car_rank_send_note(rank, CAR_NONE, (car_rank_note){.kind = CAR_NOTE_END, .ending = *end}));
    CAR_TRY(apply(rank, end));
done:
    return status;
}

static car_status take_answer(car_rank *rank, const car_ending *answer) {
    car_ending *end = &rank->ending;
    end->end = larger(end->end, answer->end);
    end->windows = larger(end->windows, answer->windows);
    return ++rank->answers == rank->devices ? decide(rank) : CAR_OK;
}

static car_status ask(car_rank *rank) {
    const car_ending own = own_answer(rank);
    car_status status = CAR_OK;
    rank->asked = rank->frozen = true;
    rank->ending = (car_ending){0};
    rank->answers = 0;
    CAR_TRY(car_rank_send_note(rank, CAR_NONE, (car_rank_note){.kind = CAR_NOTE_ASK}));
    CAR_TRY(take_answer(rank, &own));
done:
    return status;
}

/* ---- calls ----------------------------------------------------------------------------------- */

car_status car_rank_release(car_rank *rank) {
    const car_rank_note over = {.kind = CAR_NOTE_END, .ending = {.end = INT64_MAX}};
    return rank->device == 0 && !rank->asked ? car_rank_send_note(rank, CAR_NONE, over) : CAR_OK;
}

void car_rank_look_for_stop(car_rank *rank) {
    if (rank->device == 0 && !rank->asked && !rank->ended && atomic_load(&rank->stop)) {
        car_rank_fail(rank, ask(rank));
    }
}

car_status car_rank_hear_of_end(car_rank *rank, const car_rank_note *note) {
    if (note->kind == CAR_NOTE_ANSWER) {
        return take_answer(rank, &note->ending);
    }
    if (note->kind == CAR_NOTE_END) {
        return apply(rank, &note->ending);
    }
    rank->frozen = true;
    return car_rank_send_note(rank, 0, (car_rank_note){.kind = CAR_NOTE_ANSWER, .ending = own_answer(rank)});
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
