/* Notes: small messages between ranks besides those of the plan. What they are about is in rank_norm.c (squares),
 * rank_losses.c (losses) and rank_stop.c (the end).
 *
 * A note is of a kind, a step and an index, a stage or a worker. Its receiver waits for it from some steps ahead on. Of one
 * kind, index and sender they come in order, so steps may share a tag. */
#include <string.h>

#include "engine/rank_internal.h"

static int tag_of(const car_rank *rank, car_note_kind kind, int64_t step, int index) {
    int most = rank->workers > rank->stages ? rank->workers : rank->stages;
    return ((int)kind * most + index) * CAR_NOTE_STEPS + (int)(step % CAR_NOTE_STEPS);
}

static car_status exchange(car_rank *rank, const car_message *message, car_note_kind kind, int64_t step, int index,
                           const void *data) {
    car_block *block = NULL;
    car_parcel *parcel = NULL;
    car_status status = car_block_create(rank, CAR_MEMORY_MESSAGES, message->bytes, &block);
    if (status == CAR_OK && data) {
        memcpy(block->data, data, message->bytes);
    }
    if (status == CAR_OK) {
        status = car_rank_ship(rank, message, block, &parcel);
    }
    if (status == CAR_OK) { /* it is not looked at before the lock is free */
        parcel->note = kind;
        parcel->step = step;
        parcel->index = index;
    }
    return status;
}

car_status car_rank_send_note(car_rank *rank, car_note_kind kind, int64_t step, int index, int to, const void *data,
                              size_t bytes) {
    const car_message message = {.kind = CAR_MESSAGE_SEND,
                                 .note = true,
                                 .bytes = bytes,
                                 .peer = to,
                                 .tag = tag_of(rank, kind, step, index),
                                 .due = CAR_MESSAGE_AT_ONCE};
    return exchange(rank, &message, kind, step, index, data);
}

car_status car_rank_expect_note(car_rank *rank, car_note_kind kind, int64_t step, int index, int from, size_t bytes) {
    const car_message message = {.kind = CAR_MESSAGE_RECEIVE,
                                 .note = true,
                                 .bytes = bytes,
                                 .peer = from,
                                 .tag = tag_of(rank, kind, step, index)};
    return exchange(rank, &message, kind, step, index, NULL);
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
