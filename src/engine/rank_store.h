/* What a rank holds: weights in versions, sums of gradients, and the state that training goes on from. */
#ifndef CAR_ENGINE_RANK_STORE_H
#define CAR_ENGINE_RANK_STORE_H

#include "carousel/rank.h"
#include "plan/usage.h"

/* Memory with a reference count: the rank's tables and the messages that carry it share it. */
typedef struct car_block {
    char *data;
    int references; /* guarded by the rank's lock */
} car_block;

/* One use of a parameter in a bundle. */
typedef struct car_part {
    int op, index; /* the use: parameter `index` of operation `op` */
    int param;
    bool first;               /* the parameter's first use in the stage; further uses only have their own sum */
    size_t offset;            /* in blocks of weights, in the precision that kernels compute with */
    size_t sum_offset, bytes; /* in blocks of sums, which are floats */
    size_t home_offset;       /* sum_offset of the first use; in the master block it is the same */
    size_t derived_offset, derived_bytes; /* what the operation's kernel derives from its weights; 0 bytes = nothing */
} car_part;

/* How a bundle's weights, and the sums of their gradients, lie in a block: one parameter after the other without gaps, so
 * that a block can be sent as one message. */
typedef struct car_layout {
    car_part *parts;
    int count;
    size_t bytes, sum_bytes, derived_bytes;
    size_t master_bytes; /* bytes of all parameters as floats */
    bool rounded;        /* some are kept in bf16 for computing, so there is a master block of floats besides */
} car_layout;

/* A version of a bundle's weights. */
typedef struct car_held {
    car_block *block;
    void *derived; /* what kernels derive from it, kept if all workers are on this rank; else NULL */
    int64_t version;
} car_held;

/* zero's chains: a copy of a version that was received for a forward or a backward. */
typedef struct car_passing_copy {
    car_held held;
    int reads; /* still to come: its use, and its send to the next rank */
} car_passing_copy;

/* A bundle's sum of one step, and a gradient that waits for it to be added, piece by piece. Either may be here first. */
typedef struct car_sum {
    int64_t step;
    int leg;          /* see car_usage_leg */
    int worker;       /* 0, or whose gradients it is of, if those are kept apart */
    car_block *block; /* the sum; NULL: nothing of it is here */
    uint64_t missing; /* a bit for each piece that has not come */
    int64_t freed;    /* number of the task that has freed it, while others before that still read it; 0: none */
    car_block *own;   /* the gradient; NULL: none waits */
    uint64_t waiting; /* a bit for each of its pieces that nobody has begun to add */
    int adding;       /* threads that do */
    bool takes_ties;  /* it finishes the sum, and adds those of its ties */
} car_sum;

/* Sums of one bundle at once: steps overlap, and messages take time. More are needed where each worker has a sum of its own,
 * or sums travel in pieces. */
enum { CAR_SUMS_HELD = 6 };

/* What a rank has of a bundle. */
typedef struct car_holding_of_bundle {
    car_layout layout;
    int places;        /* versions that stay here, 1 or 2; 0 = none, or (zero) only versions on their way through */
    car_held held[2];  /* at version mod places; versions on their way through: at version mod 2 */
    car_block *master; /* bf16, on ranks that make updates: the newest version in floats; else NULL */
    car_passing_copy copies[2]; /* zero's chains: for forwards, for backwards */
    bool owned;                 /* zero: this rank makes its versions */
    int64_t made;               /* zero: the newest version made here */
    car_held source;  /* zero: a version that was sent on before the next was made from it, because its sum is late */
    car_block *older; /* after a restart: the version before the first, for stale micro-batches of the first step */
    car_block *kept;  /* on the keeper, at the end of a run: the version before the last */
    car_block *mean;  /* in a run for the gradient, where the update would be made: the mean over workers */
    car_sum *sums;    /* sums_held of them; free: with neither block */
} car_holding_of_bundle;

/* rank_store.c: blocks, layouts, versions and sums. Hold the lock, except to create. */
car_status car_rank_create_store(car_rank *rank);
void car_rank_destroy_store(car_rank *rank);
car_status car_block_create(car_rank *rank, car_memory category, size_t bytes, car_block **out);
void car_block_drop(car_rank *rank, car_block *block);
void car_block_clear(car_rank *rank, car_block **block); /* drops it and sets the pointer to NULL */
car_block *car_rank_find_weights(car_rank *rank, int bundle, int64_t version);
void car_rank_put_weights(car_rank *rank, int bundle, int64_t version, car_block *block);
/* zero's chains: the copy that a task uses, receives or sends; NULL if the task uses a version that stays (car_usage_copy). */
car_passing_copy *car_rank_find_copy(car_rank *rank, const car_task *task, int bundle);
/* One of its reads is over; the last one drops it. If a message still carries it, it counts as a message from then on. */
void car_rank_read_copy(car_rank *rank, car_passing_copy *copy);
void car_rank_drop_copies(car_rank *rank, int bundle);
/* The sum of a leg, or with CAR_NONE the one of the highest leg; where workers have sums of their own, the first worker's.
 * NULL if there is none. */
car_sum *car_rank_find_sum(car_rank *rank, int bundle, int64_t step, int leg);
car_sum *car_rank_find_sum_of(car_rank *rank, int bundle, int64_t step, int worker);
/* The entry of a sum that is to come, or comes: one that a gradient has made, or a free one. */
car_status car_rank_open_sum(car_rank *rank, int bundle, const car_sum *sum, car_sum **out);
/* Takes the block of a sum over; its own part is not looked at. */
car_status car_rank_put_sum(car_rank *rank, int bundle, const car_sum *sum);
/* Drops a sum; where workers have sums of their own, those of all workers. */
void car_rank_drop_sum(car_rank *rank, int bundle, const car_sum *sum);
void car_rank_drop_sums(car_rank *rank, int bundle); /* all of them, with the gradients that wait */
/* The next part after `after` (NULL: the first part) that is its parameter's first use; and that part of a parameter. NULL if
 * there is none. */
const car_part *car_layout_next(const car_layout *layout, const car_part *after);
const car_part *car_layout_find(const car_layout *layout, int param);
/* For a tied bundle: the part of its parameter in the home's layout. */
const car_part *car_rank_home_part(const car_rank *rank, int bundle);

/* rank_sums.c. Hold the lock; it is released while they add. */
/* Adds the sums of the workers where each has its own, then those of further uses of a parameter in the stage, both in
 * ascending order. Nobody else may use these sums meanwhile. */
void car_rank_add_parts(car_rank *rank, int bundle, int64_t step);
/* Adds the sums of the bundles tied to this one, in ascending order of stages. Likewise. */
car_status car_rank_add_ties(car_rank *rank, int home, int64_t step);
/* After a backward whose gradient, or whose worker's sum, must be added to a sum that comes by message: takes the block over,
 * adds it to the pieces that are here, and keeps the rest until they come. */
car_status car_rank_keep_own(car_rank *rank, const car_task *backward, int bundle, car_block *block);
/* After a backward that added its gradient to a sum which was here. */
car_status car_rank_finish_sum(car_rank *rank, const car_task *backward, int bundle);
/* A piece of a sum was received: adds the gradient that waits for it. */
car_status car_rank_settle_piece(car_rank *rank, const car_task *receive);
/* A worker's own sum is complete: adds it to the sum over all workers, or keeps it until that comes. */
car_status car_rank_join(car_rank *rank, const car_task *task, int bundle);

/* rank_state.c */
/* Iterates over the parts of a stage's snapshot, which lie one after the other. Start with all zero. */
typedef struct car_segment {
    int which; /* car_snapshot_part */
    const car_part *part;
    size_t begin;
} car_segment;
/* The next segment of a stage among the parts in the mask (1 << car_snapshot_part); false if there is none. */
bool car_rank_next_segment(const car_rank *rank, int stage, int32_t parts, car_segment *s);
/* Called by all ranks with their own status: if one failed all fail, so that nobody waits for it. */
car_status car_rank_all_succeed(car_rank *rank, car_status own);
/* A buffer for the floats of any parameter. */
car_status car_rank_create_room(const car_rank *rank, float **out);
void car_rank_release_room(const car_rank *rank, float *room);
car_status car_rank_go_on(car_rank *rank);
/* The rank that has the newest version of a bundle, and the optimizer's state that goes with it. */
int car_rank_keeper_of(const car_rank *rank, int bundle);
/* Copies a part to where this rank keeps it, if it does. Weights go to the first place: they become version 0. */
car_status car_rank_put_part(car_rank *rank, int param, car_snapshot_part which, const float *data);
/* Makes the weights in the first places version 0, with what kernels derive from them. */
car_status car_rank_settle_versions(car_rank *rank, bool goes_on);

#endif
