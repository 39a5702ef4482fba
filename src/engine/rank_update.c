/* Updates. An update makes a new version of a bundle's weights from the version before and the sum of gradients. */
#include <string.h>

#include "engine/rank_internal.h"

/* ---- the new version ------------------------------------------------------------------------- */

/* Makes the new version, without the lock. A skipped step leaves the weights as they are. */
static car_status renew(car_rank_thread *thread, const car_task *task, const car_verdict *verdict,
                        const car_block *from, const car_held *to, const car_block *sum) {
    car_rank *rank = thread->rank;
    car_status status = CAR_OK;
    const car_layout *layout = &rank->holding[task->bundle].layout;
    const car_stage *stage = &rank->partition->stages[task->stage];
    const car_renewal renewal = {.optimizer = rank->optimizer,
                                 .update = verdict->update,
                                 .lr = car_schedule_lr(&rank->config.schedule, car_rank_step_of(rank, task)),
                                 .scale = verdict->scale,
                                 .batches = rank->batches};
    if (rank->purpose == CAR_PURPOSE_GRADIENT) {
        car_rank_average(rank, task->bundle, sum);
    }
    if (verdict->skipped && from != to->block) {
        memcpy(to->block->data, from->data, layout->bytes);
    } else if (!verdict->skipped) {
        status = car_rank_renew(rank, task->bundle, &renewal, from, to->block, sum);
    }
    if (status == CAR_OK && to->derived) {
        car_rank_bind(&thread->view, layout, to);
        status = car_weights_refresh(&thread->view, thread->lane, stage->first, stage->end);
    }
    return status;
}

/* zero: the owner also makes the new version of the bundles tied to this one, because they travel separately. */
static car_status copy_ties(car_rank *rank, const car_task *task, const car_block *home) {
    car_status status = CAR_OK;
    for (int b = car_bundle_of_home(rank->partition, task->bundle, task->bundle); b != CAR_NONE;
         b = car_bundle_of_home(rank->partition, task->bundle, b)) {
        const car_holding_of_bundle *h = &rank->holding[b];
        if (!h->owned) {
            continue;
        }
        car_block *copy = h->places > 0 ? h->held[0].block : NULL;
        if (!copy) {
            CAR_TRY(car_block_create(rank, CAR_MEMORY_WEIGHTS, h->layout.bytes, &copy));
        }
        memcpy(copy->data, home->data + car_rank_home_part(rank, b)->offset, h->layout.bytes);
        car_rank_put_weights(rank, b, task->version, copy);
    }
done:
    return status;
}

/* On the keeper: copies the version before the last one of this run, which the next run needs. With two places it is
 * there anyway. */
static car_status keep_previous(car_rank *rank, const car_task *task, const car_block *from) {
    car_holding_of_bundle *h = &rank->holding[task->bundle];
    bool keeper = car_rank_owner(rank, task->step, task->bundle) == rank->device;
    car_status status = CAR_OK;
    if (task->version != rank->limit || !keeper || car_plan_delay(rank->plan, 0, task->bundle) == 0 || h->places == 2) {
        return CAR_OK;
    }
    CAR_TRY(car_block_create(rank, CAR_MEMORY_SNAPSHOT, h->layout.bytes, &h->kept));
    memcpy(h->kept->data, from->data, h->layout.bytes);
done:
    return status;
}

/* zero: finds a block for a new version. If this is the last use of the version before, its block is reused, unless (in
 * a chain) a message still carries it. */
static car_status make_place(car_rank *rank, const car_task *task) {
    car_holding_of_bundle *h = &rank->holding[task->bundle];
    car_held *before = &h->held[(task->version - 1) % 2];
    car_block *block = NULL;
    car_status status = CAR_OK;
    bool ends = car_usage_ends_weights(rank->usage, task, task->bundle);
    if (ends && (!rank->chains || before->block->references == 1)) {
        block = before->block;
        *before = (car_held){.version = CAR_NONE};
    } else {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_WEIGHTS, h->layout.bytes, &block));
    }
    car_rank_put_weights(rank, task->bundle, task->version, block);
done:
    return status;
}

/* ---- an update ------------------------------------------------------------------------------- */

/* Completes the sum over all workers and uses, and measures its square if norms are needed. */
static car_status complete_sum(car_rank *rank, const car_task *task) {
    car_status status = CAR_OK;
    if (!car_usage_adds_ties_early(rank->usage)) {
        car_rank_add_parts(rank, task->bundle, task->step);
        CAR_TRY(car_rank_add_ties(rank, task->bundle, task->step));
    }
    if (rank->measures) {
        CAR_TRY(car_rank_measure(rank, task));
    }
done:
    return status;
}

/* Finds the weights and the sum from which the new version is made. Hold the lock. */
static car_status find_operands(car_rank *rank, const car_task *task, car_block **from, car_block **sum) {
    const car_holding_of_bundle *h = &rank->holding[task->bundle];
    car_sum *s = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_rank_get_sum(rank, task->bundle, task->step, CAR_NONE, &s));
    *from = h->source.block && h->source.version == task->version - 1
                ? h->source.block
                : car_rank_find_weights(rank, task->bundle, task->version - 1);
    if (!*from) {
        return car_rank_fail_to_find(rank, task->bundle, task->version - 1);
    }
    *sum = s->block;
    car_arena_assign(rank->arena, s->block->data, CAR_MEMORY_GRADIENTS);
    if (*from != h->source.block) { /* a source is being sent, so it counts as a message */
        car_arena_assign(rank->arena, (*from)->data, CAR_MEMORY_WEIGHTS);
    }
done:
    return status;
}

static car_status make_version(car_rank_thread *thread, const car_task *task) {
    car_rank *rank = thread->rank;
    car_holding_of_bundle *h = &rank->holding[task->bundle];
    car_block *from = NULL, *sum = NULL, *room = NULL;
    car_verdict verdict;
    car_status status = CAR_OK;
    CAR_TRY(find_operands(rank, task, &from, &sum));
    if (rank->purpose == CAR_PURPOSE_TRAINING) {
        CAR_TRY(car_rank_judge(rank, task, &verdict));
    } else {
        verdict = (car_verdict){.skipped = true};
        CAR_TRY(car_rank_begin_average(rank, task->bundle));
    }
    CAR_TRY(keep_previous(rank, task, from));
    if (h->places == 0) {
        CAR_TRY(make_place(rank, task));
    }
    CAR_TRY(car_rank_begin_copy(rank, task, &room));
    car_rank_commit(rank, task->version);
    car_held *to = &h->held[car_holding_place(h->places, task->version)];
    const car_held made = *to;
    pthread_mutex_unlock(&rank->lock);
    car_rank_copy(rank, task, room, from, true);
    status = renew(thread, task, &verdict, from, &made, sum);
    if (status == CAR_OK) {
        car_rank_copy(rank, task, room, made.block, false);
    }
    pthread_mutex_lock(&rank->lock);
    if (status != CAR_OK) {
        car_block_drop(rank, room);
        goto done;
    }
    CAR_TRY(car_rank_end_copy(rank, task, room));
    to->version = h->made = task->version;
    if (rank->chains && from != to->block) { /* without chains it leaves with its last message */
        car_held_clear(rank, &h->held[(task->version - 1) % 2]);
    }
    car_held_clear(rank, &h->source);
    CAR_TRY(copy_ties(rank, task, to->block));
done:
    return status;
}

bool car_rank_may_update(const car_rank *rank, const car_entry *entry) {
    bool measured = entry->at != CAR_NONE;
    return car_rank_may_commit(rank, entry->task.version) && car_rank_may_copy(rank, &entry->task) &&
           (!measured || car_rank_may_judge(rank, &entry->task));
}

/* Runs in two portions if the second one has to wait for the squares of other stages, for an early end to be decided
 * or, under zero, for its turn. */
car_status car_rank_update(car_rank_thread *thread, car_entry *entry) {
    car_rank *rank = thread->rank;
    car_status status = CAR_OK;
    if (entry->at == CAR_NONE) {
        CAR_TRY(complete_sum(rank, &entry->task));
        if (car_rank_is_dropped(rank, &entry->task)) { /* measuring released the lock */
            return CAR_OK;
        }
        /* Under zero an update may measure before its turn, but not make the new version. */
        bool moves = rank->measures && rank->holding[entry->task.bundle].places == 0;
        if (moves || !car_rank_may_judge(rank, &entry->task) || !car_rank_may_commit(rank, entry->task.version)) {
            entry->at = 0;
            return CAR_OK;
        }
    }
    CAR_TRY(make_version(thread, &entry->task));
    entry->at = CAR_NONE;
done:
    return status;
}
