/* What a rank sends, and what it does with what arrives.
 *
 * A message of a sum, or of weights under zero, sends a block directly from where it lies, without a copy. A sum that
 * leaves for good is handed over with its memory: the block lives until the message has finished. Activations are
 * packed into a block of their own first, because several tensors may cross between two stages. */
#include <string.h>

#include "engine/rank_internal.h"
#include "kernels/vector/vector.h"

/* ---- sending --------------------------------------------------------------------------------- */

/* The order in which a rank's sends share its link: sums whose receives are posted first leave first, so that no
 * receiver waits for a sum that is queued after a later one. Receives of finished sums are posted earlier, so finished
 * sums leave before partial sums for the same slot. All other messages leave at once. */
static int64_t due_of(const car_rank *rank, const car_task *task) {
    const car_task receive = {.kind = CAR_TASK_RECEIVE, .cargo = task->cargo, .bundle = task->bundle};
    return car_task_moves_sum(task) && car_plan_orders_sums(rank->plan)
               ? task->due - car_plan_slots_ahead(rank->plan, &receive)
               : CAR_MESSAGE_AT_ONCE;
}

car_status car_rank_ship(car_rank *rank, const car_message *message, car_block *block) {
    car_parcel *parcel = NULL;
    car_status status = car_context_allocate(rank->context, 1, sizeof *parcel, &parcel);
    if (status != CAR_OK) {
        car_block_drop(rank, block);
        return status;
    }
    *parcel = (car_parcel){.message = *message, .block = block, .next = rank->parcels, .place = &rank->parcels};
    parcel->message.user = parcel;
    if (rank->parcels) {
        rank->parcels->place = &parcel->next;
    }
    rank->parcels = parcel;
    car_transport_start(rank->transport, &parcel->message);
    return CAR_OK;
}

static void drop_parcel(car_rank *rank, car_parcel *parcel) {
    *parcel->place = parcel->next;
    if (parcel->next) {
        parcel->next->place = parcel->place;
    }
    car_block_drop(rank, parcel->block);
    car_context_release(rank->context, parcel, 1, sizeof *parcel);
}

void car_rank_forget_parcels(car_rank *rank) {
    while (rank->parcels) {
        drop_parcel(rank, rank->parcels);
    }
}

/* Sends a block from this offset on. Takes over one reference of the block. Hold the lock. */
static car_status ship(car_rank *rank, const car_task *task, car_block *block, size_t offset) {
    const car_message message = {.kind = CAR_MESSAGE_SEND,
                                 .data = block->data + offset,
                                 .bytes = car_rank_is_dropped(rank, task) ? 0 : car_plan_task_bytes(rank->plan, task),
                                 .peer = task->peer,
                                 .tag = task->tag,
                                 .due = due_of(rank, task),
                                 .latest = car_rank_latest(rank, task)};
    return car_rank_ship(rank, &message, block);
}

/* Where a piece lies in the block of its sum. */
static size_t offset_of(const car_rank *rank, const car_task *task) {
    size_t offset = 0, bytes = 0;
    car_plan_piece_range(rank->plan, task->bundle, task->piece, &offset, &bytes);
    return offset;
}

static car_status send_sum(car_rank *rank, const car_task *task) {
    car_sum *sum = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_rank_get_sum(rank, task->bundle, task->step, car_usage_leg(rank->usage, task), &sum));
    sum->block->references++;
    status = ship(rank, task, sum->block, offset_of(rank, task));
done:
    return status;
}

/* zero: true if the owner sends a version away that it still needs to make the next version from, because the sum is
 * late. */
static bool is_wanted_here(const car_rank *rank, const car_task *task) {
    const car_holding_of_bundle *h = &rank->holding[task->bundle];
    return h->owned && task->bundle < rank->stages && h->made <= task->version && h->source.block == NULL &&
           car_usage_is_renewed(rank->usage, task);
}

/* zero with one copy: a version is sent away. If this is the rank's last use of it, it is dropped here, except for the
 * last two versions before an early end. */
static void part_with(car_rank *rank, const car_task *task, car_block *block) {
    car_holding_of_bundle *h = &rank->holding[task->bundle];
    car_held *held = &h->held[car_holding_place(h->places, task->version)];
    if (is_wanted_here(rank, task)) {
        h->source = *held;
        block->references++;
    }
    bool last = rank->shortened && task->version + 1 >= rank->limit; /* the run's last version, or the one before */
    if (car_usage_ends_weights(rank->usage, task, task->bundle) && !last) {
        car_held_clear(rank, held);
    }
}

/* Sends weights: under zero the block itself; otherwise a copy of a tied parameter, because tasks on this rank may use
 * or update the parameter meanwhile. On a rank that keeps the home of a tied bundle, the bundle's weights are a part of
 * the home's block. */
static car_status send_weights(car_rank *rank, const car_task *task) {
    car_held *passing = car_rank_find_copy(rank, task, task->bundle);
    int place = passing ? task->bundle : car_usage_kept_block(rank->usage, task->bundle);
    size_t offset = place == task->bundle ? 0 : car_rank_home_part(rank, task->bundle)->offset;
    car_block *block = passing ? passing->block : car_rank_find_weights(rank, place, task->version), *copy = NULL;
    car_status status = CAR_OK;
    if (!block || (passing && passing->version != task->version)) {
        return car_rank_fail_to_find(rank, task->bundle, task->version);
    }
    if (rank->placement->owned) {
        block->references++;
        if (!rank->chains) {
            part_with(rank, task, block);
        }
        CAR_TRY(ship(rank, task, block, offset));
        if (passing) {
            car_rank_read_copy(rank, passing);
        }
        return CAR_OK;
    }
    size_t bytes = car_plan_task_bytes(rank->plan, task);
    CAR_TRY(car_block_create(rank, CAR_MEMORY_MESSAGES, bytes, &copy));
    pthread_mutex_unlock(&rank->lock);
    memcpy(copy->data, block->data + offset, bytes);
    pthread_mutex_lock(&rank->lock);
    status = ship(rank, task, copy, 0);
done:
    return status;
}

static car_status send_activations(car_rank *rank, const car_task *task) {
    car_block *packed = NULL;
    car_tape *tape = rank->tapes[car_usage_tape_of(rank->usage, task)];
    car_status status = CAR_OK;
    CAR_TRY(car_block_create(rank, CAR_MEMORY_MESSAGES, car_plan_task_bytes(rank->plan, task), &packed));
    pthread_mutex_unlock(&rank->lock);
    car_tape_export(tape, task->cargo == CAR_CARGO_GRADIENT, packed->data);
    pthread_mutex_lock(&rank->lock);
    status = ship(rank, task, packed, 0);
done:
    return status;
}

/* Sends an empty message for a dropped task, because its receiver may have posted the receive. The message keeps its
 * place in the order of sends, because a message with the same tag that is not dropped may be waiting. */
static car_status send_nothing(car_rank *rank, const car_task *task) {
    car_block *block = NULL;
    car_status status = car_block_create(rank, CAR_MEMORY_MESSAGES, sizeof(float), &block);
    return status == CAR_OK ? ship(rank, task, block, 0) : status;
}

car_status car_rank_send(car_rank *rank, const car_task *task) {
    if (car_rank_is_dropped(rank, task)) {
        return send_nothing(rank, task);
    }
    switch (task->cargo) {
    case CAR_CARGO_ACTIVATION:
    case CAR_CARGO_GRADIENT:
        return send_activations(rank, task);
    case CAR_CARGO_WEIGHTS:
    case CAR_CARGO_BACKWARD_WEIGHTS:
        return send_weights(rank, task);
    default:
        return send_sum(rank, task);
    }
}

/* ---- starting receives and collectives -------------------------------------------------------- */

static car_status start_receive(car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    size_t bytes = car_plan_task_bytes(rank->plan, task), offset = 0;
    car_status status = CAR_OK;
    if (car_task_moves_sum(task)) {
        CAR_TRY(car_rank_expect_sum(rank, task, &entry->block));
        offset = offset_of(rank, task);
    } else {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_MESSAGES, bytes, &entry->block));
    }
    entry->message = (car_message){.kind = CAR_MESSAGE_RECEIVE,
                                   .data = entry->block->data + offset,
                                   .bytes = bytes,
                                   .peer = task->peer,
                                   .tag = task->tag};
done:
    return status;
}

static car_status start_collective(car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    car_holding_of_bundle *h = &rank->holding[task->bundle];
    car_message_kind kind = CAR_MESSAGE_BROADCAST;
    car_status status = CAR_OK;
    if (task->kind == CAR_TASK_REDUCE) {
        car_sum *sum = NULL;
        CAR_TRY(car_rank_get_sum(rank, task->bundle, task->step, CAR_NONE, &sum));
        kind = task->peer == CAR_NONE ? CAR_MESSAGE_ALL_REDUCE : CAR_MESSAGE_REDUCE;
        entry->block = sum->block;
        entry->block->references++;
    } else if (h->owned) {
        entry->block = h->held[0].block;
        entry->block->references++;
    } else {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_MESSAGES, h->layout.bytes, &entry->block));
    }
    entry->message =
        (car_message){.kind = kind,
                      .data = entry->block->data,
                      .bytes = car_plan_task_bytes(rank->plan, task),
                      .doubles = h->layout.count > 0 && car_program_is_double(rank->program, h->layout.parts[0].param),
                      .peer = task->peer == CAR_NONE ? CAR_NONE : car_plan_collective_member(rank->plan, task->peer)};
done:
    return status;
}

car_status car_rank_start_arrival(car_rank *rank, car_entry *entry) {
    bool receives = entry->task.kind == CAR_TASK_RECEIVE;
    car_status status = receives ? start_receive(rank, entry) : start_collective(rank, entry);
    if (!receives) {
        car_rank_commit(rank, entry->task.step + 1);
    }
    if (status == CAR_OK) {
        entry->message.user = NULL; /* marks it as part of an entry; see car_rank_message_finished */
        car_transport_start(rank->transport, &entry->message);
    }
    return status;
}

void car_rank_message_finished(void *user, car_message *message) {
    car_rank *rank = user;
    pthread_mutex_lock(&rank->lock);
    if (!message) {
        rank->status = rank->status == CAR_OK ? CAR_ERROR_IO : rank->status;
    } else if (message->user) {
        car_parcel *parcel = message->user;
        car_status status = message->name == CAR_MESSAGE_SNAPSHOT ? car_rank_note_piece(rank, parcel) : CAR_OK;
        drop_parcel(rank, parcel);
        car_rank_fail(rank, status);
    } else {
        car_entry *entry = (car_entry *)((char *)message - offsetof(car_entry, message));
        entry->arrived = true;
    }
    pthread_cond_broadcast(&rank->changed);
    pthread_mutex_unlock(&rank->lock);
}

/* ---- putting arrived data in place ------------------------------------------------------------ */

/* Arrived data counts as messages until a task uses it. */

static void take_weights(car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    car_holding_of_bundle *h = &rank->holding[task->bundle];
    if (rank->chains) {
        car_held *copy = car_rank_find_copy(rank, task, task->bundle);
        bool passes = car_usage_passing(rank->usage, task, task->bundle) != CAR_PASSING_NOT;
        car_block_drop(rank, copy->block); /* left over from tasks that an early end dropped */
        *copy = (car_held){.block = entry->block, .version = task->version, .reads = 1 + passes};
    } else if (h->owned && task->kind == CAR_TASK_BROADCAST) {
        car_block_drop(rank, entry->block); /* the owner has the weights already */
    } else if (h->places > 0) {             /* a tied parameter that is kept on this rank */
        car_held *held = &h->held[task->version % h->places];
        pthread_mutex_unlock(&rank->lock);
        memcpy(held->block->data, entry->block->data, h->layout.bytes);
        pthread_mutex_lock(&rank->lock);
        held->version = task->version;
        car_block_drop(rank, entry->block);
    } else {
        car_rank_put_weights(rank, task->bundle, task->version, entry->block);
    }
    entry->block = NULL;
}

static car_status take_activations(car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    bool gradient = task->cargo == CAR_CARGO_GRADIENT;
    car_tape *tape = rank->tapes[car_usage_tape_of(rank->usage, task)];
    pthread_mutex_unlock(&rank->lock);
    car_status status = gradient ? CAR_OK : car_rank_begin_tape(rank, task, tape);
    if (status == CAR_OK) {
        status = car_tape_import(tape, gradient, entry->block->data);
    }
    pthread_mutex_lock(&rank->lock);
    car_block_clear(rank, &entry->block);
    return status;
}

car_status car_rank_take_arrival(car_rank *rank, car_entry *entry) {
    const car_task *task = &entry->task;
    if (task->kind == CAR_TASK_REDUCE || car_rank_is_dropped(rank, task)) {
        car_block_clear(rank, &entry->block);
        return CAR_OK;
    }
    if (task->kind == CAR_TASK_BROADCAST || car_cargo_is_weights(task->cargo)) {
        take_weights(rank, entry);
        return CAR_OK;
    }
    if (car_task_crosses(task)) {
        return take_activations(rank, entry);
    }
    car_block_clear(rank, &entry->block); /* the sum has a reference of its own */
    return car_rank_settle_piece(rank, task);
}
