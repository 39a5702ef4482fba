/* How a rank completes sums of gradients.
 *
 * Each micro-batch adds its gradient to the sum over the micro-batches before it; by worker, each worker adds its own
 * sum to the sum over the workers before it. If that sum comes in a message, the backward does not wait for it.
 * Whichever of the two comes last, the sum or the gradient, finds the other, and they are added. The operands and their
 * order are the same either way, so the bits are, too.
 *
 *   in time   R p (arrives)   B: adds, operation by operation   S p
 *   late      B: keeps its gradient apart      R p (arrives): adds what was kept   S p
 *
 * Sums arrive in pieces (car_plan_pieces), and each piece is added to and sent on separately. The sum of a tied
 * parameter is added to its home's sum once both are complete, also piece by piece. */
#include "engine/rank_internal.h"
#include "kernels/vector/vector.h"

/* ---- gradients that were kept apart ----------------------------------------------------------- */

/* Adds bytes begin .. end - 1 of a worker's gradient, or of its own sum over several micro-batches, to the sum over the
 * workers before it. */
static void add_range(const car_rank *rank, const car_layout *layout, size_t begin, size_t end, char *sum,
                      const char *own) {
    bool apart = car_usage_adds_by_worker(rank->usage) || car_usage_keeps_apart(rank->usage);
    int several = apart ? rank->batches / rank->workers : 1;
    const car_addend addend = {several > 1 ? CAR_ADDEND_WORKER : CAR_ADDEND_NEXT, several, false};
    car_kernel_mode mode = car_kernels_enter(car_program_threads(rank->program)); /* additions also flush denormals */
    for (int c = 0; c < layout->count; c++) {
        const car_part *part = &layout->parts[c];
        const car_op *op = car_graph_op(rank->graph, part->op);
        size_t from = part->sum_offset > begin ? part->sum_offset : begin, to = part->sum_offset + part->bytes;
        to = to < end ? to : end;
        if (from < to) {
            car_engine_add(rank->program, op, part->index, from - part->sum_offset, to - part->sum_offset,
                           sum + part->sum_offset, own + part->sum_offset, addend);
        }
    }
    car_kernels_leave(mode);
}

/* Adds up the sums of all uses of a parameter, where a stage uses it more than once. */
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
    const car_sum *sum = car_rank_find_sum(rank, bundle, step, 0, CAR_NONE);
    bool apart = car_usage_keeps_apart(rank->usage);
    if (!sum || (!apart && layout->sum_bytes == layout->master_bytes)) {
        return;
    }
    char *data = sum->block->data;
    for (int i = 1; apart && i < rank->workers; i++) {
        const char *own = car_rank_find_sum(rank, bundle, step, i, CAR_NONE)->block->data;
        pthread_mutex_unlock(&rank->lock);
        add_range(rank, layout, 0, layout->sum_bytes, data, own);
        pthread_mutex_lock(&rank->lock);
    }
    pthread_mutex_unlock(&rank->lock);
    if (bundle < rank->stages) { /* the uses of a tied bundle are added to its home one by one */
        add_uses(rank, layout, data);
    }
    pthread_mutex_lock(&rank->lock);
}

/* ---- ties ------------------------------------------------------------------------------------ */

/* The next bundle that is tied to a home, after another tied one or after the home itself; CAR_NONE = no more. */
static int next_tie(const car_rank *rank, int home, int after) {
    return car_bundle_of_home(rank->partition, home, after);
}

/* Adds the sums of the bundles that are tied to a home, within bytes begin .. end - 1 of the home's sum. Releases the
 * lock meanwhile. */
static car_status add_ties_to(car_rank *rank, int home, int64_t step, char *sum, size_t begin, size_t end) {
    car_sum *other = NULL;
    car_status status = CAR_OK;
    for (int b = next_tie(rank, home, home); b != CAR_NONE; b = next_tie(rank, home, b)) {
        CAR_TRY(car_rank_get_sum(rank, b, step, CAR_NONE, &other));
        const car_layout *layout = &rank->holding[b].layout;
        size_t place = car_rank_home_part(rank, b)->sum_offset;
        const char *from = other->block->data;
        car_arena_assign(rank->arena, other->block->data, CAR_MEMORY_GRADIENTS);
        pthread_mutex_unlock(&rank->lock);
        car_kernel_mode mode = car_kernels_enter(car_program_threads(rank->program));
        for (int c = 0; c < layout->count; c++) { /* the sum of each use is as large as the parameter */
            size_t first = place > begin ? place : begin, last = place + layout->parts[c].bytes;
            last = last < end ? last : end;
            if (first < last) {
                car_vector_select()->accumulate((float *)(sum + first),
                                                (const float *)(from + layout->parts[c].sum_offset + first - place),
                                                (int64_t)((last - first) / sizeof(float)));
            }
        }
        car_kernels_leave(mode);
        pthread_mutex_lock(&rank->lock);
    }
done:
    return status;
}

static void drop_ties(car_rank *rank, int home, int64_t step) {
    for (int b = next_tie(rank, home, home); b != CAR_NONE; b = next_tie(rank, home, b)) {
        const car_sum *sum = car_rank_find_sum(rank, b, step, 0, CAR_NONE);
        if (sum) {
            car_rank_drop_sum(rank, b, sum);
        }
    }
}

car_status car_rank_add_ties(car_rank *rank, int home, int64_t step) {
    car_sum *sum = NULL;
    car_status status = CAR_OK;
    for (int b = next_tie(rank, home, home); b != CAR_NONE; b = next_tie(rank, home, b)) {
        car_rank_add_parts(rank, b, step);
    }
    CAR_TRY(car_rank_get_sum(rank, home, step, CAR_NONE, &sum));
    CAR_TRY(add_ties_to(rank, home, step, sum->block->data, 0, rank->holding[home].layout.master_bytes));
    drop_ties(rank, home, step);
done:
    return status;
}

/* ---- sums that arrive late -------------------------------------------------------------------- */

static uint64_t bit_of(int piece) {
    return (uint64_t)1 << piece;
}

static uint64_t all_pieces(const car_rank *rank, int bundle) {
    return UINT64_MAX >> (CAR_MOST_PIECES - car_plan_pieces(rank->plan, bundle));
}

car_status car_rank_expect_sum(car_rank *rank, const car_task *receive, car_block **out) {
    const car_sum wanted = {.step = receive->step, .leg = car_usage_leg(rank->usage, receive)};
    size_t bytes = rank->holding[receive->bundle].layout.master_bytes;
    car_sum *sum = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_rank_open_sum(rank, receive->bundle, &wanted, &sum));
    if (!sum->block) {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_MESSAGES, bytes, &sum->block));
        sum->missing = all_pieces(rank, receive->bundle);
    }
    sum->block->references++;
    *out = sum->block;
done:
    return status;
}

/* True if the backward finishes the sum and has to add the sums of its ties, because the finished sum travels on. */
static bool takes_ties(const car_rank *rank, const car_task *backward, int bundle) {
    return bundle < rank->stages && car_usage_adds_ties_early(rank->usage) && car_usage_finishes(rank->usage, backward);
}

/* Adds one piece of the gradient that waited to the sum, whose piece has arrived. The sum stays until this task is
 * over. Releases the lock while it adds. */
static car_status add_piece(car_rank *rank, int bundle, car_sum *sum, int piece) {
    size_t begin = 0, bytes = 0;
    int64_t step = sum->step;
    bool ties = sum->takes_ties;
    char *to = sum->block->data;
    const char *from = sum->own->data;
    car_status status = CAR_OK;
    car_plan_piece_range(rank->plan, bundle, piece, &begin, &bytes);
    sum->waiting &= ~bit_of(piece);
    sum->adding++;
    pthread_mutex_unlock(&rank->lock);
    add_range(rank, &rank->holding[bundle].layout, begin, begin + bytes, to, from);
    pthread_mutex_lock(&rank->lock);
    if (ties) {
        status = add_ties_to(rank, bundle, step, to, begin, begin + bytes);
    }
    if (--sum->adding == 0 && sum->waiting == 0) { /* this was the last piece */
        car_block_clear(rank, &sum->own);
        if (ties) {
            drop_ties(rank, bundle, step);
        }
    }
    return status;
}

car_status car_rank_keep_own(car_rank *rank, const car_task *backward, int bundle, car_block *block) {
    const car_sum wanted = {.step = backward->step, .leg = car_usage_leg(rank->usage, backward)};
    int pieces = car_plan_pieces(rank->plan, bundle);
    car_sum *sum = NULL;
    car_status status = car_rank_open_sum(rank, bundle, &wanted, &sum);
    if (status != CAR_OK) {
        car_block_drop(rank, block);
        return status;
    }
    sum->own = block;
    sum->waiting = all_pieces(rank, bundle);
    sum->takes_ties = takes_ties(rank, backward, bundle);
    if (!sum->block || sum->missing) {
        car_arena_assign(rank->arena, block->data, CAR_MEMORY_MESSAGES); /* it waits for a message */
    }
    for (int piece = 0; sum->block && sum->own && piece < pieces; piece++) {
        if (sum->waiting & bit_of(piece) & ~sum->missing) {
            CAR_TRY(add_piece(rank, bundle, sum, piece));
        }
    }
done:
    return status;
}

car_status car_rank_finish_sum(car_rank *rank, const car_task *backward, int bundle) {
    return takes_ties(rank, backward, bundle) ? car_rank_add_ties(rank, bundle, backward->step) : CAR_OK;
}

car_status car_rank_settle_piece(car_rank *rank, const car_task *receive) {
    int leg = car_usage_leg(rank->usage, receive);
    car_sum *sum = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_rank_get_sum(rank, receive->bundle, receive->step, leg, &sum));
    sum->missing &= ~bit_of(receive->piece);
    status = sum->own ? add_piece(rank, receive->bundle, sum, receive->piece) : CAR_OK;
done:
    return status;
}

car_status car_rank_join(car_rank *rank, const car_task *task, int bundle) {
    car_sum *own = car_rank_find_sum(rank, bundle, task->step, car_usage_own_of(rank->usage, task), CAR_NONE);
    car_block *block = own->block;
    *own = (car_sum){.step = CAR_NONE};
    return car_rank_keep_own(rank, task, bundle, block);
}
