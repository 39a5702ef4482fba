/* Cuts on the way: the state after step t, taken while the cycle goes on.
 *
 * A stage reaches version t when its update of step t - 1 is made; whoever made it copies the stage before anybody
 * can make the next one. The stages get there at different times, and when the last is copied the cut is whole:
 *
 *   stage 0   ...... U ......      U: version t is made, the stage is copied
 *   stage 1   ..... U .......      the cut is handed over after the last of them
 *   stage 2   .... U ........
 *
 * There is one cut. Until it is given back no update begins that would be due for the next one. */
#include <string.h>

#include "engine/cut_internal.h"
#include "engine/rank_internal.h"

struct car_cuts {
    car_cut *cut;
    int64_t version; /* of the run, that it is being filled with; CAR_NONE: none */
    int copied;      /* stages, so far */
    bool away;       /* handed over, and not yet given back */
};

car_status car_rank_create_cuts(car_rank *rank) {
    car_status status = CAR_OK;
    if (rank->config.cut_every == 0) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(rank->context, 1, sizeof *rank->cuts, &rank->cuts));
    rank->cuts->version = CAR_NONE;
    CAR_TRY(car_rank_create_cut(rank, &rank->cuts->cut));
done:
    return status;
}

void car_rank_destroy_cuts(car_rank *rank) {
    if (rank->cuts) {
        car_cut_destroy(rank->cuts->cut);
        car_context_release(rank->context, rank->cuts, 1, sizeof *rank->cuts);
    }
}

car_status car_rank_create_cut(const car_rank *rank, car_cut **out) {
    bool previous = car_plan_delay(rank->plan, 0, 0) > 0; /* if anybody is stale, the first worker is, at stage 0 */
    return car_cut_create_for(rank->program, rank->arena, previous, &rank->config.optimizer, out);
}

bool car_rank_cut_is_away(const car_rank *rank) {
    return rank->cuts && rank->cuts->away;
}

/* ---- while the cycle goes on ----------------------------------------------------------------- */

/* A version of the plan. */
static bool is_due(const car_rank *rank, int64_t version) {
    return rank->cuts && (rank->first_step + version) % rank->config.cut_every == 0;
}

bool car_rank_cut_is_free(const car_rank *rank, int64_t version) {
    const car_cuts *cuts = rank->cuts;
    return !is_due(rank, version) || cuts->version == rank->first_step + version ||
           (cuts->version == CAR_NONE && !cuts->away);
}

/* The claim comes with the update's start, so that no other version can take the cut in between. */
void car_rank_claim_cut(car_rank *rank, int64_t version) {
    if (is_due(rank, version) && rank->cuts->version == CAR_NONE) {
        rank->cuts->version = rank->first_step + version;
        rank->cuts->copied = 0;
    }
}

static void copy(const car_part *part, void *to, const void *from) {
    if (to && from) {
        memcpy(to, from, part->bytes);
    }
}

void car_rank_copy_to_cut(car_rank *rank, const car_task *task, const car_block *from, const car_block *made) {
    const car_layout *layout = &rank->holding[task->bundle].layout;
    for (int c = 0; is_due(rank, task->version) && c < layout->count; c++) {
        const car_part *part = &layout->parts[c];
        car_cut *cut = rank->cuts->cut;
        copy(part, car_cut_data(cut, CAR_CUT_WEIGHTS, part->param), made->data + part->offset);
        copy(part, car_cut_data(cut, CAR_CUT_PREVIOUS, part->param), from->data + part->offset);
        for (int s = 0; s < car_optimizer_states(rank->optimizer); s++) {
            copy(part, car_cut_data(cut, CAR_CUT_STATE_0 + (car_cut_part)s, part->param),
                 car_optimizer_state(rank->optimizer, s, part->param));
        }
    }
}

void car_rank_note_cut(car_rank *rank, int64_t version) {
    if (!is_due(rank, version) || ++rank->cuts->copied < rank->updates_per_step) {
        return;
    }
    const car_cut_numbers numbers = {.step = rank->first_step + version,
                                     .updates = car_rank_updates_after(rank, version),
                                     .norm = car_rank_norm_after(rank, version),
                                     .since = car_optimizer_since(rank->optimizer)};
    car_cut_set_numbers(rank->cuts->cut, &numbers);
    rank->cuts->version = CAR_NONE;
    rank->cuts->away = true;
    pthread_mutex_unlock(&rank->lock); /* it may be given back at once */
    rank->config.on_cut(rank->config.cut_user, rank->cuts->cut);
    pthread_mutex_lock(&rank->lock);
}

void car_rank_return_cut(car_rank *rank) {
    pthread_mutex_lock(&rank->lock);
    rank->cuts->away = false;
    pthread_cond_broadcast(&rank->changed);
    pthread_mutex_unlock(&rank->lock);
}

void car_rank_forget_cut(car_rank *rank) {
    if (rank->cuts) {
        rank->cuts->version = CAR_NONE;
    }
}
