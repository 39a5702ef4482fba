/* Forwards and backwards. A backward also adds its gradients to sums. */
#include <math.h>
#include <string.h>

#include "engine/rank_internal.h"

/* ---- simulated speed -------------------------------------------------------------------------- */

/* A random number in [-1, 1) for each task. It depends on the seed and the task, not on the rule that orders tasks. */
static double draw(const car_rank *rank, const car_task *task) {
    uint64_t number = (uint64_t)car_rank_step_of(rank, task) * (uint64_t)rank->batches + (uint64_t)task->micro_batch;
    uint64_t counter =
        (number * (uint64_t)rank->stages + (uint64_t)task->stage) * 2 + (task->kind == CAR_TASK_BACKWARD);
    return 2 * (double)car_random_uniform(car_random_key(rank->config.seed, "jitter"), counter) - 1;
}

/* With many ranks on few cores the ranks slow each other down. For benchmarks, `step_seconds` therefore gives each
 * forward or backward a fixed time: its share of `step_seconds`. It sleeps for what is left of that time. `step_jitter`
 * varies the shares at random. Tasks are not cut into portions then, because the share is that of a whole task. */
static void pretend(const car_rank *rank, const car_task *task, double begin) {
    if (rank->config.step_seconds <= 0) {
        return;
    }
    const car_stage *stage = &rank->partition->stages[task->stage];
    double share = task->kind == CAR_TASK_BACKWARD ? stage->backward : stage->forward;
    share *= rank->config.step_jitter > 0 ? 1 + rank->config.step_jitter * draw(rank, task) : 1;
    car_clock_sleep(begin + rank->config.step_seconds * share - car_clock_seconds());
}

/* ---- weights for a stage --------------------------------------------------------------------- */

void car_rank_bind(car_weights *view, const car_layout *layout, const car_held *held) {
    for (int c = 0; c < layout->count; c++) {
        const car_part *part = &layout->parts[c];
        view->param[part->param] = held->block->data + part->offset;
        if (part->derived_bytes > 0) {
            view->derived[part->op] = held->derived ? (char *)held->derived + part->derived_offset : NULL;
        }
    }
}

/* Finds the version of a bundle that a task uses; *place becomes the bundle whose block it lies in. In the first step
 * after a restart, stale micro-batches use the version from before it. */
static car_held find_version(car_rank *rank, int bundle, const car_task *task, int64_t version, int *place) {
    int home = rank->partition->bundles[bundle].home;
    const car_held *copy = car_rank_find_copy(rank, task, bundle);
    *place = car_usage_holding(rank->usage, bundle)->block;
    const car_holding_of_bundle *h = &rank->holding[*place];
    bool stale =
        version == CAR_VERSION_BEFORE || (task->step == 0 && car_plan_delay(rank->plan, task->micro_batch, home) > 0);
    if (h->older && stale) {
        return (car_held){.block = h->older};
    }
    if (copy) {
        return copy->version == version ? *copy : (car_held){.block = NULL};
    }
    *place = car_usage_kept_block(rank->usage, bundle);
    h = &rank->holding[*place];
    return car_rank_find_weights(rank, *place, version) ? h->held[car_holding_place(h->places, version)]
                                                        : (car_held){.block = NULL};
}

static car_status bind_stage(car_rank_thread *thread, const car_task *task) {
    car_rank *rank = thread->rank;
    for (int b = car_bundle_of_stage(rank->partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(rank->partition, task->stage, b)) {
        int64_t version = b < rank->stages ? task->version : task->tied_version;
        int place = b;
        const car_held held = find_version(rank, b, task, version, &place);
        if (!held.block) {
            return car_rank_fail_to_find(rank, b, version);
        }
        car_arena_assign(rank->arena, held.block->data, CAR_MEMORY_WEIGHTS);
        if (place == b) {
            car_rank_bind(&thread->view, &rank->holding[b].layout, &held);
        } else {
            thread->view.param[rank->partition->bundles[b].param] =
                held.block->data + car_rank_home_part(rank, b)->offset;
        }
    }
    return CAR_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

car_status car_rank_begin_tape(car_rank *rank, const car_task *task, car_tape *tape) {
    int64_t step = car_rank_step_of(rank, task);
    car_tape_begin(tape, car_engine_key(rank->config.seed, step, rank->batches, task->micro_batch),
                   rank->purpose != CAR_PURPOSE_LOSS);
    return rank->feeds ? rank->config.feed(rank->config.feed_user, step, task->micro_batch, tape) : CAR_OK;
}

/* Runs a portion, from operation *at on (CAR_NONE: the first). *at becomes the next operation, or CAR_NONE at the
 * end. */
static car_status forward(car_rank_thread *thread, const car_entry *entry, int *at) {
    car_rank *rank = thread->rank;
    const car_task *task = &entry->task;
    const car_stage *stage = &rank->partition->stages[task->stage];
    car_tape *tape = rank->tapes[car_usage_tape_of(rank->usage, task)];
    int from = *at != CAR_NONE ? *at : stage->first, end = entry->until;
    car_status status = CAR_OK;
    if (task->stage == 0 && *at == CAR_NONE) {
        CAR_TRY(car_rank_begin_tape(rank, task, tape));
    }
    CAR_TRY(car_tape_forward(tape, thread->lane, &thread->view, from, end));
    *at = end < stage->end ? end : CAR_NONE;
done:
    return status;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Finds what a backward does with its gradient of a bundle. If it adds to a sum, all of which is here, finds that: the
 * sum over all workers or, where workers have sums of their own, its worker's. */
static car_addition_kind find_addition(car_rank *rank, const car_task *task, int bundle, car_block **block) {
    int own = car_usage_own_of(rank->usage, task), leg = own > 0 ? CAR_NONE : car_usage_leg(rank->usage, task);
    if (own > 0 && car_usage_keeps_apart(rank->usage) && rank->batches == rank->workers) {
        return CAR_ADDITION_APART;
    }
    const car_sum *sum = car_rank_find_sum(rank, bundle, task->step, own, leg);
    if (sum && sum->missing == 0) {
        *block = sum->block;
        return CAR_ADDITION_ADDS;
    }
    bool late = !car_usage_adds_by_worker(rank->usage) && car_usage_adds_late(rank->usage, task);
    return late ? CAR_ADDITION_WAITS : CAR_ADDITION_BEGINS;
}

/* Decides where a backward's gradient of a bundle goes. Hold the lock. */
static car_status bind_sum(car_rank *rank, const car_task *task, int bundle, car_addition *out) {
    int own = car_usage_own_of(rank->usage, task), leg = car_usage_leg(rank->usage, task);
    size_t bytes = rank->holding[bundle].layout.sum_bytes;
    car_sum *sum = NULL;
    car_status status = CAR_OK;
    *out = (car_addition){.bundle = bundle};
    out->kind = find_addition(rank, task, bundle, &out->block);
    bool begins = out->kind == CAR_ADDITION_BEGINS, apart = out->kind == CAR_ADDITION_APART;
    bool first = task->micro_batch == own && !apart; /* the first micro-batch of the step, or of its worker */
    if (car_usage_adds_in_order(rank->usage) && begins != first) {
        return car_context_fail(rank->context, CAR_ERROR_INTERNAL,
                                "rank %d: the sum of bundle %d is not what worker %d should find", rank->device, bundle,
                                task->micro_batch);
    }
    if (out->kind == CAR_ADDITION_ADDS) {
        car_arena_assign(rank->arena, out->block->data, CAR_MEMORY_GRADIENTS);
        return CAR_OK;
    }
    if (begins || apart) {
        CAR_TRY(car_rank_open_sum(rank, bundle, &(car_sum){.step = task->step, .leg = leg, .worker = own}, &sum));
    }
    CAR_TRY(car_block_create(rank, CAR_MEMORY_GRADIENTS, bytes, &out->block));
    if (rank->purpose == CAR_PURPOSE_LOSS) {
        memset(out->block->data, 0, bytes); /* nothing will be computed into it */
    }
    if (sum) {
        sum->block = out->block;
    }
done:
    return status;
}

static car_status bind_sums(car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    car_status status = CAR_OK;
    entry->addition_count = 0;
    for (int b = car_bundle_of_stage(rank->partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(rank->partition, task->stage, b)) {
        if (entry->addition_count == CAR_MAX_ADDITIONS) {
            return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "stage %d has more than %d sums", task->stage,
                                    CAR_MAX_ADDITIONS);
        }
        CAR_TRY(bind_sum(rank, task, b, &entry->additions[entry->addition_count]));
        entry->addition_count++;
    }
done:
    return status;
}

/* What happens to the gradient of a parameter of operation l, and where in the block it goes. */
static const car_addition *addition_of(const car_rank *rank, const car_entry *entry, int l, int index, void **place) {
    for (int a = 0; a < entry->addition_count; a++) {
        const car_addition *addition = &entry->additions[a];
        const car_layout *layout = &rank->holding[addition->bundle].layout;
        for (int c = 0; c < layout->count; c++) {
            if (layout->parts[c].op == l && layout->parts[c].index == index) {
                *place = addition->block->data + layout->parts[c].sum_offset;
                return addition;
            }
        }
    }
    return NULL;
}

/* The position of a micro-batch in the order in which a step's running statistics are combined. */
static int place_in_order(const car_rank *rank, int number) {
    bool by_worker = car_plan_config_of(rank->plan)->sum_order == CAR_SUM_ORDER_WORKER;
    return by_worker ? number % rank->workers * (rank->batches / rank->workers) + number / rank->workers : number;
}

static car_status backward_op(car_rank_thread *thread, const car_entry *entry, int l) {
    car_rank *rank = thread->rank;
    const car_task *task = &entry->task;
    const car_op *op = car_graph_op(rank->graph, l);
    car_addition_kind kinds[CAR_MAX_PARAMS] = {CAR_ADDITION_BEGINS};
    void *places[CAR_MAX_PARAMS] = {NULL};
    char *addend = thread->addend;
    car_status status = CAR_OK;
    for (int p = 0; p < op->param_count; p++) {
        const car_addition *to = addition_of(rank, entry, l, p, &places[p]);
        if (!to) {
            return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "rank %d has no sum for parameter %d of %s",
                                    rank->device, p, op->name);
        }
        kinds[p] = to->kind;
        thread->gradients.use[op->first_use + p] = to->kind == CAR_ADDITION_ADDS ? (void *)addend : places[p];
        addend += car_round_up(car_program_param_bytes(rank->program, op->params[p]), 64);
    }
    bool derives = car_program_derived_bytes(rank->program, l) > 0 && !thread->view.derived[l];
    if (derives) {
        thread->view.derived[l] = thread->derived;
        CAR_TRY(car_weights_refresh(&thread->view, thread->lane, l, l + 1));
    }
    CAR_TRY(car_tape_backward(rank->tapes[car_usage_tape_of(rank->usage, task)], thread->lane, &thread->view,
                              &thread->gradients, l, l + 1));
    car_addend how = {.kind = car_usage_is_ring(rank->usage) ? CAR_ADDEND_NEXT : CAR_ADDEND_ANY_ORDER,
                      .count = rank->batches - 1 - place_in_order(rank, task->micro_batch)};
    for (int p = 0; p < op->param_count; p++) {
        how.first = kinds[p] == CAR_ADDITION_BEGINS;
        if (how.first || kinds[p] == CAR_ADDITION_ADDS) {
            car_engine_add(rank->program, op, p, 0, SIZE_MAX, places[p], thread->gradients.use[op->first_use + p], how);
        }
    }
done:
    thread->view.derived[l] = derives ? NULL : thread->view.derived[l];
    return status;
}

/* The same for a backward, which runs the operations in descending order. */
static car_status backward(car_rank_thread *thread, const car_entry *entry, int *at) {
    const car_rank *rank = thread->rank;
    const car_stage *stage = &rank->partition->stages[entry->task.stage];
    int l = *at != CAR_NONE ? *at : stage->end - 1;
    if (rank->purpose == CAR_PURPOSE_LOSS) { /* its messages and sums are sent nevertheless */
        *at = CAR_NONE;
        return CAR_OK;
    }
    car_kernel_mode mode = car_kernels_enter(car_program_threads(rank->program)); /* additions also flush denormals */
    car_status status = CAR_OK;
    for (; status == CAR_OK && l > entry->until; l--) {
        status = backward_op(thread, entry, l);
    }
    *at = l >= stage->first ? l : CAR_NONE;
    car_kernels_leave(mode);
    return status;
}

/* After a backward: adds a gradient that was kept apart to its sum, or keeps it until the sum arrives; joins a complete
 * sum of the worker to the sum over all workers; finishes the other sums. Hold the lock. */
static car_status settle_sums(car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    car_status status = CAR_OK;
    for (int a = 0; a < entry->addition_count; a++) {
        car_addition *addition = &entry->additions[a];
        if (addition->kind == CAR_ADDITION_WAITS) {
            addition->kind = CAR_ADDITION_ADDS; /* the store owns the block now */
            CAR_TRY(car_rank_keep_own(rank, task, addition->bundle, addition->block));
        } else if (car_usage_joins(rank->usage, task)) {
            CAR_TRY(car_rank_join(rank, task, addition->bundle));
        } else {
            CAR_TRY(car_rank_finish_sum(rank, task, addition->bundle));
        }
    }
done:
    return status;
}

/* ---- forward or backward ---------------------------------------------------------------------- */

/* zero: drops weights that arrived for this use, or the version that passes through, if this rank no longer needs
 * them. */
static void free_weights(car_rank *rank, const car_task *task) {
    for (int b = car_bundle_of_stage(rank->partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(rank->partition, task->stage, b)) {
        int64_t version = b < rank->stages ? task->version : task->tied_version;
        if (version < 0) {
            continue;
        }
        car_held *copy = car_rank_find_copy(rank, task, b);
        if (copy) {
            car_rank_read_copy(rank, copy);
        }
        if (rank->chains || !car_usage_ends_weights(rank->usage, task, b)) {
            continue;
        }
        car_held *held = &rank->holding[b].held[version % 2];
        if (held->version == version) {
            car_held_clear(rank, held);
        }
    }
}

/* Runs one portion. Releases the lock meanwhile. */
static car_status run_portion(car_rank_thread *thread, car_entry *entry) {
    car_rank *rank = thread->rank;
    int at = entry->at; /* other threads read entry->at, with the lock */
    pthread_mutex_unlock(&rank->lock);
    double begin = car_clock_seconds();
    car_status status =
        entry->task.kind == CAR_TASK_BACKWARD ? backward(thread, entry, &at) : forward(thread, entry, &at);
    pretend(rank, &entry->task, begin);
    pthread_mutex_lock(&rank->lock);
    entry->at = at;
    return status;
}

static car_status check_loss(const car_rank *rank, const car_task *task, double loss) {
    bool may_be_any = rank->config.skip_nonfinite || rank->purpose != CAR_PURPOSE_TRAINING;
    if (isfinite(loss) || may_be_any) {
        return CAR_OK;
    }
    return car_context_fail(rank->context, CAR_ERROR_NOT_FINITE,
                            "the loss of worker %d in step %lld is not finite: try a smaller learning rate, warm-up, "
                            "clip-norm or skip-nonfinite",
                            task->micro_batch % rank->workers, (long long)car_rank_step_of(rank, task) + 1);
}

car_status car_rank_compute(car_rank_thread *thread, car_entry *entry) {
    car_rank *rank = thread->rank;
    const car_task *task = &entry->task;
    car_status status = CAR_OK;
    CAR_TRY(bind_stage(thread, task));
    if (task->kind == CAR_TASK_BACKWARD && entry->at == CAR_NONE) {
        CAR_TRY(bind_sums(rank, entry));
    }
    CAR_TRY(run_portion(thread, entry));
    if (entry->at != CAR_NONE) {
        return CAR_OK; /* more portions follow */
    }
    if (car_rank_makes_loss(rank, task)) {
        double loss = rank->tapes[car_usage_tape_of(rank->usage, task)]->loss;
        CAR_TRY(check_loss(rank, task, loss));
        CAR_TRY(car_rank_note_loss(rank, task, loss));
    }
    CAR_TRY(settle_sums(rank, entry));
    if (rank->placement->owned) {
        free_weights(rank, task);
    }
done:
    return status;
}
