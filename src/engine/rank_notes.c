/* Notes: messages between ranks besides those of the plan. What they are about is in rank_norm.c (squares), rank_losses.c
 * (losses), rank_stop.c (the end) and rank_snapshot.c (pieces of snapshots). All but the last are small.
 *
 * A note is of a kind, a step and an index, a stage or a worker. Its receiver waits for it from some steps ahead on. Of one
 * kind, index and sender they come in order, so steps may share a tag. */
#include <string.h>

#include "engine/rank_internal.h"

static int tag_of(const car_rank *rank, car_note_kind kind, int64_t step, int index) {
    int most = rank->batches > rank->stages ? rank->batches : rank->stages;
    return ((int)kind * most + index) * CAR_NOTE_STEPS + (int)(step % CAR_NOTE_STEPS);
}

/* Takes the block over. */
static car_status exchange(car_rank *rank, car_message *message, car_note_kind kind, int64_t step, int index,
                           car_block *block) {
    car_parcel *parcel = NULL;
    message->name = kind == CAR_NOTE_SNAPSHOT ? CAR_MESSAGE_SNAPSHOT : CAR_MESSAGE_NOTE;
    message->tag = kind == CAR_NOTE_SNAPSHOT ? index : tag_of(rank, kind, step, index);
    car_status status = car_rank_ship(rank, message, block, &parcel);
    if (status == CAR_OK) { /* it is not looked at before the lock is free */
        parcel->note = kind;
        parcel->step = step;
        parcel->index = index;
    }
    return status;
}

car_status car_rank_send_note(car_rank *rank, car_note_kind kind, int64_t step, int index, int to, const void *data,
                              size_t bytes) {
    car_message message = {.kind = CAR_MESSAGE_SEND, .bytes = bytes, .peer = to, .due = CAR_MESSAGE_AT_ONCE};
    car_block *block = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_block_create(rank, CAR_MEMORY_MESSAGES, bytes, &block));
    memcpy(block->data, data, bytes);
    status = exchange(rank, &message, kind, step, index, block);
done:
    return status;
}

car_status car_rank_expect_note(car_rank *rank, car_note_kind kind, int64_t step, int index, int from, size_t bytes) {
    car_memory category = kind == CAR_NOTE_SNAPSHOT ? CAR_MEMORY_SNAPSHOT : CAR_MEMORY_MESSAGES;
    car_message message = {.kind = CAR_MESSAGE_RECEIVE, .bytes = bytes, .peer = from};
    car_block *block = NULL;
    car_status status = car_block_create(rank, category, bytes, &block);
    return status == CAR_OK ? exchange(rank, &message, kind, step, index, block) : status;
}

car_status car_rank_send_piece(car_rank *rank, int64_t version, int stage, car_block *block, size_t at, size_t bytes) {
    car_message message = {.kind = CAR_MESSAGE_SEND, .data = block->data + at, .bytes = bytes, .due = CAR_MESSAGE_LAST};
    return exchange(rank, &message, CAR_NOTE_SNAPSHOT, version, stage, block);
}

void car_rank_hear_note(car_rank *rank, const car_parcel *parcel) {
    car_status status = CAR_OK;
    switch (parcel->note) {
    case CAR_NOTE_SQUARE:
        status = car_rank_hear_square(rank, parcel);
        break;
    case CAR_NOTE_LOSS:
        status = car_rank_hear_loss(rank, parcel);
        break;
    case CAR_NOTE_SNAPSHOT:
        status = car_rank_hear_piece(rank, parcel);
        break;
    default:
        status = car_rank_hear_of_end(rank, parcel);
    }
    if (status == CAR_OK) { /* a step may have been reported */
        status = car_rank_expect_losses(rank);
    }
    if (status != CAR_OK) {
        car_rank_fail(rank, status);
    }
}
