/* How sums of gradients become whole on a rank.
 *
 * Each micro-batch adds its gradient to what the one before it passed on, or each worker its own sum to what worker i-1 did. Where that comes by a message, the backward does not wait
 * for it: whichever is there last, the sum or the gradient, finds the other and they are added. The operands and their
 * order are the same, so the bits are.
 *
 *   in time   R p (arrives)   B: adds, operation by operation   S p
 *   late      B: keeps its gradient apart      R p (arrives): adds what was kept   S p
 *
 * A tied parameter's sum is added to its home's once both are whole. */
#include "engine/rank_internal.h"
#include "kernels/vector/vector.h"

/* ---- what was kept apart ----------------------------------------------------------------------- */

/* A worker's gradient to the sum over those before it; or its own sum, where it has several micro-batches in a step. */
static void add_block(const car_rank *rank, const car_layout *layout, char *sum, const char *own) {
    bool apart = car_usage_adds_by_worker(rank->usage) || car_usage_keeps_apart(rank->usage);
    int several = apart ? rank->batches / rank->workers : 1;
    car_kernel_mode mode = car_kernels_enter(car_program_threads(rank->program)); /* sums too flush denormals */
    for (int c = 0; c < layout->count; c++) {
        const car_part *part = &layout->parts[c];
        const car_op *op = car_graph_op(rank->graph, part->op);
        if (several > 1) {
            car_engine_join(rank->program, op, part->slot, sum + part->sum_offset, own + part->sum_offset, several);
        } else {
            car_engine_add(rank->program, op, part->slot, sum + part->sum_offset, own + part->sum_offset, false);
        }
    }
    car_kernels_leave(mode);
}

/* Of parameters that a stage uses more than once. */
static void add_uses(const car_rank *rank, const car_layout *layout, char *sum) {
    car_kernel_mode mode = car_kernels_enter(car_program_threads(rank->program));
    for (int c = 0; c < layout->count; c++) {
        const car_part *part = &layout->parts[c];
        if (!part->first) {
            car_vector_select()->accumulate((float *)(sum + part->home_offset), (const float *)(sum + part->sum_offset),
                                            (int64_t)(part->bytes / sizeof(float)));
        }
    }
    car_kernels_leave(mode);
}

void car_rank_add_parts(car_rank *rank, int bundle, int64_t step) {
    const car_layout *layout = &rank->holding[bundle].layout;
    const car_sum *sum = car_rank_find_sum(rank, bundle, step);
    bool apart = car_usage_keeps_apart(rank->usage);
    if (!sum || (!apart && layout->sum_bytes == layout->master_bytes)) {
        return;
    }
    char *data = sum->block->data;
    for (int i = 1; apart && i < rank->workers; i++) {
        const char *own = car_rank_find_sum_of(rank, bundle, step, i)->block->data;
        pthread_mutex_unlock(&rank->lock);
        add_block(rank, layout, data, own);
        pthread_mutex_lock(&rank->lock);
    }
    pthread_mutex_unlock(&rank->lock);
    if (bundle < rank->stages) { /* a tied one's uses go to its home one by one */
        add_uses(rank, layout, data);
    }
    pthread_mutex_lock(&rank->lock);
}

/* ---- ties ------------------------------------------------------------------------------------ */

car_status car_rank_add_ties(car_rank *rank, int home, int64_t step) {
    for (int b = rank->stages; b < rank->bundles; b++) {
        const car_bundle *tied = &rank->partition->bundles[b];
        if (tied->home != home || tied->bytes == 0) {
            continue;
        }
        car_sum *sum = car_rank_find_sum(rank, home, step), *other = car_rank_find_sum(rank, b, step);
        if (!sum || !other) {
            return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "rank %d: a sum of tied bundle %d is missing",
                                    rank->device, b);
        }
        car_arena_assign(rank->arena, other->block->data, CAR_MEMORY_GRADIENTS);
        car_rank_add_parts(rank, b, step);
        const car_layout *layout = &rank->holding[b].layout;
        float *to = (float *)(sum->block->data + car_rank_home_part(rank, b)->sum_offset);
        const char *from = other->block->data;
        car_kernel_mode mode = car_kernels_enter(car_program_threads(rank->program));
        pthread_mutex_unlock(&rank->lock);
        for (int c = 0; c < layout->count; c++) {
            car_vector_select()->accumulate(to, (const float *)(from + layout->parts[c].sum_offset),
                                            (int64_t)(layout->parts[c].bytes / sizeof(float)));
        }
        pthread_mutex_lock(&rank->lock);
        car_kernels_leave(mode);
        car_rank_drop_sum(rank, b, step);
    }
    return CAR_OK;
}

/* ---- late sums ------------------------------------------------------------------------------- */

car_status car_rank_put_own(car_rank *rank, int bundle, int64_t step, int worker, car_block *block) {
    car_sum *own = rank->holding[bundle].own;
    for (int s = 0; s < rank->sums_held; s++) {
        if (!own[s].block) {
            own[s] = (car_sum){.step = step, .worker = worker, .block = block};
            return CAR_OK;
        }
    }
    return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "rank %d holds too many gradients of bundle %d",
                            rank->device, bundle);
}

/* Takes it out of the table; NULL if there is none. */
static car_block *take_own(car_rank *rank, int bundle, int64_t step, int worker) {
    car_sum *own = rank->holding[bundle].own;
    for (int s = 0; s < rank->sums_held; s++) {
        if (own[s].block && own[s].step == step && own[s].worker == worker) {
            car_block *block = own[s].block;
            own[s] = (car_sum){.step = CAR_NONE};
            return block;
        }
    }
    return NULL;
}

car_status car_rank_settle(car_rank *rank, int bundle, int64_t step, int number, bool computed) {
    car_sum *sum = car_rank_find_sum(rank, bundle, step);
    car_block *own = sum ? take_own(rank, bundle, step, number % rank->workers) : NULL;
    if (own) {
        car_block *to = sum->block;
        pthread_mutex_unlock(&rank->lock);
        add_block(rank, &rank->holding[bundle].layout, to->data, own->data);
        pthread_mutex_lock(&rank->lock);
        car_block_drop(rank, own);
    }
    bool whole = own || (sum && computed);
    bool last = number == rank->batches - 1 && bundle < rank->stages;
    return whole && last && car_usage_adds_ties_early(rank->usage) ? car_rank_add_ties(rank, bundle, step) : CAR_OK;
}

car_status car_rank_join(car_rank *rank, int bundle, const car_task *task) {
    car_sum *own = car_rank_find_sum_of(rank, bundle, task->step, car_usage_own_of(rank->usage, task));
    car_block *block = own->block;
    *own = (car_sum){.step = CAR_NONE};
    car_status status = car_rank_put_own(rank, bundle, task->step, task->worker % rank->workers, block);
    if (status != CAR_OK) {
        car_block_drop(rank, block);
    } else if (!car_rank_find_sum(rank, bundle, task->step)) {
        car_arena_assign(rank->arena, block->data, CAR_MEMORY_MESSAGES); /* it waits for one */
    }
    return status;
}
