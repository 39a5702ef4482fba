/* What a rank computes: forward, backward with the sum, update. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "engine/rank_internal.h"

/* ---- pretending to be slower ------------------------------------------------------------------ */

/* Several ranks on few cores disturb each other's times. With `step_seconds` a forward or backward takes its share of
 * that time, whoever else computes meanwhile: asleep, once it is done. */
static void pretend(const car_rank *rank, const car_task *task, double begin) {
    const car_stage *stage = &rank->partition->stages[task->stage];
    double share = task->kind == CAR_TASK_BACKWARD ? stage->backward : stage->forward;
    double left = begin + rank->config.step_seconds * share - car_clock_seconds();
    if (rank->config.step_seconds > 0 && left > 0) {
        nanosleep(&(struct timespec){(time_t)left, (long)((left - floor(left)) * 1e9)}, NULL);
    }
}

/* ---- weights for a stage --------------------------------------------------------------------- */

static void bind_weights(car_rank_thread *thread, int bundle, const car_block *block) {
    const car_layout *layout = &thread->rank->holding[bundle].layout;
    for (int c = 0; c < layout->count; c++) {
        thread->view.param[layout->parts[c].param] = block->data + layout->parts[c].offset;
    }
}

/* After a restart, those that are stale in the first step use what was there before it. */
static car_block *find_version(car_rank *rank, int bundle, const car_task *task, int64_t version) {
    int home = rank->partition->bundles[bundle].home, place = car_usage_holding(rank->usage, bundle)->block;
    car_block *older = rank->holding[place].older;
    if (older && task->step == 0 && car_plan_delay(rank->plan, task->worker, home) > 0) {
        return older;
    }
    return car_rank_find_weights(rank, place, version);
}

static car_status bind_stage(car_rank_thread *thread, const car_task *task) {
    car_rank *rank = thread->rank;
    for (int b = task->stage; b < rank->bundles; b = b < rank->stages ? rank->stages : b + 1) {
        const car_bundle *bundle = &rank->partition->bundles[b];
        if (bundle->stage != task->stage || bundle->bytes == 0) {
            continue;
        }
        int64_t version = b < rank->stages ? task->version : task->tied_version;
        car_block *block = find_version(rank, b, task, version);
        if (!block) {
            return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "rank %d: version %lld of bundle %d is not here",
                                    rank->device, (long long)version, b);
        }
        car_arena_assign(rank->arena, block->data, CAR_MEMORY_WEIGHTS);
        if (car_usage_holding(rank->usage, b)->block == b) {
            bind_weights(thread, b, block);
        } else {
            thread->view.param[bundle->param] = block->data + car_rank_home_part(rank, b)->offset;
        }
    }
    return CAR_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* A portion, from operation *at on; *at becomes the next one, CAR_NONE if that was all. */
static car_status forward(car_rank_thread *thread, const car_task *task, int *at) {
    car_rank *rank = thread->rank;
    const car_stage *stage = &rank->partition->stages[task->stage];
    car_tape *tape = rank->tapes[car_usage_tape_of(rank->usage, task)];
    int64_t step = car_rank_step_of(rank, task);
    int from = *at != CAR_NONE ? *at : stage->first, end = from;
    car_status status = CAR_OK;
    if (task->stage == 0 && *at == CAR_NONE) {
        car_tape_begin(tape, car_engine_key(rank->config.seed, step, rank->workers, task->worker), true);
        CAR_TRY(rank->config.feed(rank->config.feed_user, step, task->worker, tape));
    }
    while (end < stage->end && !car_rank_portion_is_full(rank, task, from, end)) {
        end++;
    }
    CAR_TRY(car_tape_forward(tape, thread->lane, &thread->view, from, end));
    *at = end < stage->end ? end : CAR_NONE;
    if (*at == CAR_NONE && car_rank_makes_loss(rank, task) && !isfinite(car_tape_loss(tape))) {
        status = car_context_fail(rank->context, CAR_ERROR_NOT_FINITE,
                                  "the loss of worker %d in step %lld is not finite: a smaller learning rate or "
                                  "warm-up may help",
                                  task->worker, (long long)step + 1);
    }
done:
    return status;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* With the lock. */
static car_status bind_sum(car_rank *rank, const car_task *task, int bundle, car_addition *out) {
    car_sum *sum = car_rank_find_sum(rank, bundle, task->step);
    bool late = !sum && car_usage_adds_late(rank->usage, task);
    car_status status = CAR_OK;
    *out = (car_addition){sum    ? CAR_ADDITION_ADDS
                          : late ? CAR_ADDITION_WAITS
                                 : CAR_ADDITION_BEGINS,
                          bundle, sum ? sum->block : NULL};
    if (rank->ring && (out->kind == CAR_ADDITION_BEGINS) != (task->worker == 0)) {
        return car_context_fail(rank->context, CAR_ERROR_INTERNAL,
                                "rank %d: the sum of bundle %d is not what worker %d should find", rank->device, bundle,
                                task->worker);
    }
    if (sum) {
        car_arena_assign(rank->arena, sum->block->data, CAR_MEMORY_GRADIENTS);
    } else {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_GRADIENTS, rank->partition->bundles[bundle].bytes, &out->block));
    }
    if (out->kind == CAR_ADDITION_BEGINS) {
        status = car_rank_put_sum(rank, bundle, task->step, out->block);
    }
done:
    return status;
}

static car_status bind_sums(car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    car_status status = CAR_OK;
    entry->addition_count = 0;
    for (int b = task->stage; b < rank->bundles; b = b < rank->stages ? rank->stages : b + 1) {
        const car_bundle *bundle = &rank->partition->bundles[b];
        if (bundle->stage != task->stage || bundle->bytes == 0) {
            continue;
        }
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

/* What becomes of the gradient of a parameter of an operation, and its place in the block. */
static const car_addition *addition_of(const car_rank *rank, const car_entry *entry, int l, int slot, float **place) {
    for (int a = 0; a < entry->addition_count; a++) {
        const car_addition *addition = &entry->additions[a];
        const car_layout *layout = &rank->holding[addition->bundle].layout;
        for (int c = 0; c < layout->count; c++) {
            if (layout->parts[c].op == l && layout->parts[c].slot == slot) {
                *place = (float *)(addition->block->data + layout->parts[c].offset);
                return addition;
            }
        }
    }
    return NULL;
}

static void add_gradient(const car_rank *rank, const car_task *task, const car_op *op, int p, float *sum,
                         const float *own, bool first) {
    if (rank->ring) {
        car_engine_add(rank->program, op, p, sum, own, first);
    } else {
        car_engine_add_any_order(rank->program, op, p, sum, own, first, task->worker, rank->workers);
    }
}

static car_status backward_op(car_rank_thread *thread, const car_entry *entry, int l) {
    car_rank *rank = thread->rank;
    const car_task *task = &entry->task;
    const car_op *op = car_graph_op(rank->graph, l);
    const car_addition *to[CAR_MAX_PARAMS] = {NULL};
    float *places[CAR_MAX_PARAMS] = {NULL};
    char *addend = thread->addend;
    car_status status = CAR_OK;
    for (int p = 0; p < op->param_count; p++) {
        to[p] = addition_of(rank, entry, l, p, &places[p]);
        thread->gradients.use[op->first_use + p] =
            to[p]->kind == CAR_ADDITION_ADDS ? (void *)addend : (void *)places[p];
        addend += car_round_up(car_program_param_bytes(rank->program, op->params[p]), 64);
    }
    if (car_program_derived_bytes(rank->program, l) > 0) {
        thread->view.derived[l] = thread->derived;
        CAR_TRY(car_weights_refresh(&thread->view, thread->lane, l, l + 1));
    }
    CAR_TRY(car_tape_backward(rank->tapes[car_usage_tape_of(rank->usage, task)], thread->lane, &thread->view,
                              &thread->gradients, l, l + 1));
    for (int p = 0; p < op->param_count; p++) {
        if (to[p]->kind != CAR_ADDITION_WAITS) {
            add_gradient(rank, task, op, p, places[p], thread->gradients.use[op->first_use + p],
                         to[p]->kind == CAR_ADDITION_BEGINS);
        }
    }
done:
    return status;
}

/* A portion, from operation *at on; *at becomes the next one, CAR_NONE if that was all. */
static car_status backward(car_rank_thread *thread, const car_entry *entry, int *at) {
    const car_rank *rank = thread->rank;
    const car_stage *stage = &rank->partition->stages[entry->task.stage];
    int from = *at != CAR_NONE ? *at : stage->end - 1, l = from;
    car_kernel_mode mode = car_kernels_enter(car_program_threads(rank->program)); /* sums too flush denormals */
    car_status status = CAR_OK;
    for (; status == CAR_OK && l >= stage->first && !car_rank_portion_is_full(rank, &entry->task, from, l); l--) {
        status = backward_op(thread, entry, l);
    }
    *at = l >= stage->first ? l : CAR_NONE;
    car_kernels_leave(mode);
    return status;
}

static void drop_waiting(car_rank *rank, const car_entry *entry) {
    for (int a = 0; a < entry->addition_count; a++) {
        car_block_drop(rank, entry->additions[a].kind == CAR_ADDITION_WAITS ? entry->additions[a].block : NULL);
    }
}

/* With the lock. The sums are whole now, or wait for what is to come. */
static car_status settle_sums(car_rank *rank, const car_entry *entry) {
    const car_task *task = &entry->task;
    car_status status = CAR_OK;
    for (int a = 0; a < entry->addition_count; a++) {
        const car_addition *addition = &entry->additions[a];
        if (addition->kind == CAR_ADDITION_WAITS) {
            CAR_TRY(car_rank_put_own(rank, addition->bundle, task->step, addition->block));
            car_arena_assign(rank->arena, addition->block->data, CAR_MEMORY_MESSAGES); /* it waits for one */
        }
        CAR_TRY(car_rank_settle(rank, addition->bundle, task->step, task->worker, true));
    }
done:
    return status;
}

/* ---- forward or backward ---------------------------------------------------------------------- */

/* zero: whether what came for this use, or for all, is not needed here any more. The task says so of its stage's own
 * bundle; a tied one may have another last user in the cycle, and another owner under dp. */
static bool frees_weights(const car_rank *rank, const car_task *task, int bundle) {
    if (bundle < rank->stages || !rank->cyclic) {
        return (task->frees & CAR_FREES_WEIGHTS) && !(bundle >= rank->stages && rank->holding[bundle].owned);
    }
    /* Of a version the fresh workers of its step are the first users, and the stale ones of the next the last. */
    int home = rank->partition->bundles[bundle].home, last = rank->workers - 1;
    while (last >= 0 && car_plan_delay(rank->plan, last, home) == 0) {
        last--;
    }
    int64_t step = last >= 0 ? task->tied_version + 1 : task->tied_version;
    return task->kind == CAR_TASK_BACKWARD && task->step == step &&
           task->worker == (last >= 0 ? last : rank->workers - 1);
}

static void free_weights(car_rank *rank, const car_task *task) {
    for (int b = task->stage; b < rank->bundles; b = b < rank->stages ? rank->stages : b + 1) {
        int64_t version = b < rank->stages ? task->version : task->tied_version;
        if (rank->partition->bundles[b].stage != task->stage || version < 0 || !frees_weights(rank, task, b)) {
            continue;
        }
        car_held *held = &rank->holding[b].held[version % 2];
        if (held->block && held->version == version) {
            car_block_drop(rank, held->block);
            *held = (car_held){NULL, CAR_NONE};
        }
    }
}

/* Runs without the lock. */
static car_status run_portion(car_rank_thread *thread, car_entry *entry) {
    car_rank *rank = thread->rank;
    int at = entry->at; /* the entry's is read by others, with the lock */
    car_rank_note_portion(rank, entry, true);
    pthread_mutex_unlock(&rank->lock);
    double begin = car_clock_seconds();
    car_status status =
        entry->task.kind == CAR_TASK_BACKWARD ? backward(thread, entry, &at) : forward(thread, &entry->task, &at);
    pretend(rank, &entry->task, begin);
    pthread_mutex_lock(&rank->lock);
    entry->at = at;
    car_rank_note_portion(rank, entry, false);
    return status;
}

car_status car_rank_compute(car_rank_thread *thread, car_entry *entry) {
    car_rank *rank = thread->rank;
    const car_task *task = &entry->task;
    car_status status = CAR_OK;
    CAR_TRY(bind_stage(thread, task));
    if (task->kind == CAR_TASK_BACKWARD && entry->at == CAR_NONE) {
        CAR_TRY(bind_sums(rank, entry));
    }
    status = run_portion(thread, entry);
    if (status != CAR_OK) {
        drop_waiting(rank, entry);
        goto done;
    }
    if (entry->at != CAR_NONE) {
        return CAR_OK; /* there is more of it */
    }
    if (car_rank_makes_loss(rank, task)) {
        CAR_TRY(car_rank_note_loss(rank, car_rank_step_of(rank, task), task->worker,
                                   car_tape_loss(rank->tapes[car_usage_tape_of(rank->usage, task)])));
    }
    CAR_TRY(settle_sums(rank, entry));
    if (rank->placement->owned) {
        free_weights(rank, task);
    }
done:
    return status;
}

/* ---- update ---------------------------------------------------------------------------------- */

static car_status renew(car_rank *rank, const car_task *task, const car_block *from, car_block *to,
                        const car_block *sum) {
    car_status status = CAR_OK;
    const car_layout *layout = &rank->holding[task->bundle].layout;
    const car_renewal renewal = {.optimizer = rank->optimizer,
                                 .update = rank->updates + task->step,
                                 .lr = car_schedule_lr(&rank->config.schedule, car_rank_step_of(rank, task)),
                                 .scale = 1,
                                 .workers = rank->workers};
    car_kernel_mode mode = car_kernels_enter(car_program_threads(rank->program));
    for (int c = 0; status == CAR_OK && c < layout->count; c++) {
        const car_part *part = &layout->parts[c];
        status = car_engine_renew(rank->program, car_graph_op(rank->graph, part->op), part->slot, &renewal,
                                  (const float *)(from->data + part->offset), (float *)(to->data + part->offset),
                                  (const float *)(sum->data + part->offset));
    }
    car_kernels_leave(mode);
    return status;
}

/* zero: the owner makes the bundles tied to this one too, since they travel on their own. */
static car_status copy_ties(car_rank *rank, const car_task *task, const car_block *home) {
    car_status status = CAR_OK;
    for (int b = rank->stages; b < rank->bundles; b++) {
        car_holding_of_bundle *h = &rank->holding[b];
        if (rank->partition->bundles[b].home != task->bundle || !h->owned) {
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

/* The keeper of a run's last version keeps the one before, too, where the rule goes on from it. */
static bool keeps_previous(const car_rank *rank, const car_task *task) {
    int owner = car_plan_owner(rank->plan, task->step, task->bundle);
    bool keeper = car_plan_rank_of(rank->plan, owner) == rank->device;
    return task->version == rank->limit && keeper && car_plan_delay(rank->plan, 0, 0) > 0;
}

static car_status keep_previous(car_rank *rank, const car_task *task, const car_block *from) {
    car_holding_of_bundle *h = &rank->holding[task->bundle];
    car_status status = CAR_OK;
    CAR_TRY(car_block_create(rank, CAR_MEMORY_SNAPSHOT, h->layout.bytes, &h->kept));
    memcpy(h->kept->data, from->data, h->layout.bytes);
done:
    return status;
}

/* zero's cycle: the place of a new version. If the one before ends with it, that is where it is made. */
static car_status make_place(car_rank *rank, const car_task *task) {
    car_holding_of_bundle *h = &rank->holding[task->bundle];
    car_held *before = &h->held[(task->version - 1) % 2];
    car_block *block = NULL;
    car_status status = CAR_OK;
    if (task->frees & CAR_FREES_WEIGHTS) {
        block = before->block;
        *before = (car_held){NULL, CAR_NONE};
    } else {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_WEIGHTS, h->layout.bytes, &block));
    }
    car_rank_put_weights(rank, task->bundle, task->version, block);
done:
    return status;
}

car_status car_rank_update(car_rank_thread *thread, car_entry *entry) {
    car_rank *rank = thread->rank;
    const car_task *task = &entry->task;
    car_holding_of_bundle *h = &rank->holding[task->bundle];
    car_status status = CAR_OK;
    if (!car_usage_adds_ties_early(rank->usage)) {
        CAR_TRY(car_rank_add_ties(rank, task->bundle, task->step));
    }
    const car_sum *sum = car_rank_find_sum(rank, task->bundle, task->step);
    car_block *from = h->source.block && h->source.version == task->version - 1
                          ? h->source.block
                          : car_rank_find_weights(rank, task->bundle, task->version - 1);
    if (!sum || !from) {
        return car_context_fail(rank->context, CAR_ERROR_INTERNAL,
                                "rank %d: %s for version %lld of bundle %d is not here", rank->device,
                                sum ? "the weights" : "the sum", (long long)task->version, task->bundle);
    }
    const car_block *source = sum->block;
    car_arena_assign(rank->arena, source->data, CAR_MEMORY_GRADIENTS);
    if (from != h->source.block) { /* that is on its way */
        car_arena_assign(rank->arena, from->data, CAR_MEMORY_WEIGHTS);
    }
    if (keeps_previous(rank, task)) {
        CAR_TRY(keep_previous(rank, task, from));
    }
    if (h->places == 0) {
        CAR_TRY(make_place(rank, task));
    }
    car_held *to = &h->held[task->version % (h->places > 0 ? h->places : 2)];
    pthread_mutex_unlock(&rank->lock);
    status = renew(rank, task, from, to->block, source);
    pthread_mutex_lock(&rank->lock);
    CAR_TRY(status);
    to->version = h->made = task->version;
    car_block_drop(rank, h->source.block);
    h->source = (car_held){NULL, CAR_NONE};
    CAR_TRY(copy_ties(rank, task, to->block));
done:
    return status;
}
