/* What a rank holds: versions of weights, sums of gradients, and the state that the next run continues from. */
#ifndef CAR_ENGINE_RANK_STORE_H
#define CAR_ENGINE_RANK_STORE_H

#include "carousel/rank.h"
#include "plan/usage.h"

/* Memory with a reference count. The rank's tables and the messages that carry it share it. */
typedef struct car_block {
    char *data;
    int references; /* guarded by the rank's lock */
} car_block;

/* One use of a parameter in a bundle. */
typedef struct car_part {
    int op, index; /* parameter `index` of operation `op` */
    int param;
    bool first;               /* the parameter's first use in the stage; further uses have only a sum of their own */
    size_t offset;            /* in blocks of weights, which have the precision that kernels compute with */
    size_t sum_offset, bytes; /* in blocks of sums, which have full precision */
    size_t home_offset;       /* sum_offset of the parameter's first use; also its offset in the master block */
    size_t derived_offset, derived_bytes; /* the derived weights of the operation; 0 bytes = none */
} car_part;

/* How a bundle's weights, and the sums of their gradients, lie in a block: one parameter after another without gaps, so
 * that a block can be sent as one message. */
typedef struct car_layout {
    car_part *parts;
    int count;
    size_t bytes, sum_bytes, derived_bytes;
    size_t master_bytes; /* bytes of all parameters in full precision */
    /* Some parameters are computed with in bf16. Then there is also a master block of floats. */
    bool rounded;
} car_layout;

/* A version of a bundle's weights. */
typedef struct car_held {
    car_block *block;
    void *derived; /* derived weights, kept only if all workers are on this rank; else NULL */
    int64_t version;
    int reads; /* of a copy: uses still to come, which are this rank's own and the send to the next rank */
} car_held;

/* The sum of a bundle and step, and a gradient that waits to be added to it, piece by piece. Either may exist before
 * the other. */
typedef struct car_sum {
    int64_t step;
    int leg; /* see car_usage_leg */
    /* The worker whose gradients it adds up, where workers have sums of their own; 0 also stands for the sum over all
     * workers. */
    int worker;
    car_block *block; /* the sum; NULL = nothing of it is here */
    uint64_t missing; /* a bit for each piece that has not arrived */
    /* Once its last use is over: no task from this number on reads it, but earlier ones may; before that, 0. */
    int64_t readers_end;
    car_block *own;   /* the gradient that waits; NULL = none */
    uint64_t waiting; /* a bit for each of its pieces that no thread has begun to add */
    int adding;       /* number of threads that are adding one */
    bool takes_ties;  /* the gradient finishes the sum, so the sums of ties are added, too */
} car_sum;

/* How many sums of one bundle a rank holds at once, in general: steps overlap, and messages take time. More are needed
 * if each worker has a sum of its own, and over ranks, where sums travel in pieces. */
enum { CAR_SUMS_HELD = 6 };

/* What a rank has of a bundle. */
typedef struct car_holding_of_bundle {
    car_layout layout;
    /* Number of versions that stay on this rank, 1 or 2; 0 = none, or (zero) only versions that pass through. */
    int places;
    car_held held[2];   /* version v is at v mod places; versions that pass through are at v mod 2 */
    car_block *master;  /* with bf16, on ranks that make updates: the newest version in floats; else NULL */
    car_held copies[2]; /* zero's chains: versions that arrived for [0] a forward, [1] a backward */
    bool owned;         /* zero: this rank makes the versions */
    int64_t made;       /* the newest version made here */
    /* zero: a version that was sent on before the next one was made from it, because the sum is late. */
    car_held source;
    /* After a restart: the version before the first one, for stale micro-batches of the first step. */
    car_block *older;
    car_block *kept; /* at the end of a run, on the keeper: the version before the last */
    car_block *mean; /* in a run for the gradient: its mean over micro-batches, on ranks that update */
    car_sum *sums;   /* `sums_held` entries; one without `block` and `own` is free */
} car_holding_of_bundle;

/* rank_store.c: blocks, layouts, versions and sums. Hold the lock, except to create. */
car_status car_rank_create_store(car_rank *rank);
void car_rank_destroy_store(car_rank *rank);
car_status car_block_create(car_rank *rank, car_memory category, size_t bytes, car_block **out);
void car_block_drop(car_rank *rank, car_block *block);
void car_block_clear(car_rank *rank, car_block **block); /* drops a reference, and sets the pointer to NULL */
/* Drops a version. If a message still carries it, its memory counts as a message from then on. */
void car_held_clear(car_rank *rank, car_held *held);
car_block *car_rank_find_weights(car_rank *rank, int bundle, int64_t version);
car_status car_rank_fail_to_find(const car_rank *rank, int bundle, int64_t version); /* sets the error */
void car_rank_put_weights(car_rank *rank, int bundle, int64_t version, car_block *block);
/* zero's chains: the copy that a task uses, receives or sends; NULL if the task uses a version that stays
 * (car_usage_copy). */
car_held *car_rank_find_copy(car_rank *rank, const car_task *task, int bundle);
void car_rank_read_copy(car_rank *rank, car_held *copy); /* one of its reads is over; the last one drops it */
/* The sum of a worker, where workers have sums of their own, or with worker 0 the sum over all; of a leg or, with
 * CAR_NONE, of the highest leg. NULL if there is none. */
car_sum *car_rank_find_sum(car_rank *rank, int bundle, int64_t step, int worker, int leg);
/* The same for the sum over all workers. It is an error if there is none. */
car_status car_rank_get_sum(car_rank *rank, int bundle, int64_t step, int leg, car_sum **out);
/* The entry for a sum with this step, leg and worker: an existing one, or a free one. */
car_status car_rank_open_sum(car_rank *rank, int bundle, const car_sum *sum, car_sum **out);
/* Drops a sum; where workers keep their gradients apart, those of all workers. If a message still carries it, its
 * memory counts as a message from then on. */
void car_rank_drop_sum(car_rank *rank, int bundle, const car_sum *sum);
void car_rank_drop_sums(car_rank *rank, int bundle); /* all sums, and the gradients that wait */
/* Iterates over the parts that are a parameter's first use: the next one after `after` (NULL: the first). The second
 * function finds that part of a parameter. NULL if there is none. */
const car_part *car_layout_next(const car_layout *layout, const car_part *after);
const car_part *car_layout_find(const car_layout *layout, int param);
/* For a tied bundle: the part of its parameter in the home's layout. */
const car_part *car_rank_home_part(const car_rank *rank, int bundle);

/* rank_sums.c. Hold the lock; it is released during additions. */
/* Adds up the workers' sums, where each has its own, and then the sums of further uses of a parameter in the stage,
 * both in ascending order. Nothing else may use these sums meanwhile. */
void car_rank_add_parts(car_rank *rank, int bundle, int64_t step);
/* Adds the sums of the bundles tied to this one, in ascending order of stages. Nothing else may use these sums
 * meanwhile. */
car_status car_rank_add_ties(car_rank *rank, int home, int64_t step);
/* After a backward whose gradient, or whose worker's sum, must be added to a sum that arrives in a message. Takes over
 * the block, adds it to the pieces that are here, and keeps it until the others arrive. */
car_status car_rank_keep_own(car_rank *rank, const car_task *backward, int bundle, car_block *block);
/* After a backward that added its gradient to a sum on this rank: adds the sums of ties, if the sum is finished. */
car_status car_rank_finish_sum(car_rank *rank, const car_task *backward, int bundle);
/* A receive of a piece of a sum is posted: finds the block of the sum, with a reference for the message. The first
 * piece creates it. */
car_status car_rank_expect_sum(car_rank *rank, const car_task *receive, car_block **out);
/* A piece of a sum has arrived: adds the gradient that waits for it, if any. */
car_status car_rank_settle_piece(car_rank *rank, const car_task *receive);
/* A worker's own sum is complete: adds it to the sum over all workers, or keeps it until that arrives. */
car_status car_rank_join(car_rank *rank, const car_task *task, int bundle);

/* rank_state.c */
/* Iterates over the segments of a stage's snapshot, which lie one after another. Start with all members zero. */
typedef struct car_segment {
    int which; /* a car_snapshot_part */
    const car_part *part;
    size_t begin;
} car_segment;
/* Finds the next segment of a stage among the parts in the mask (1 << car_snapshot_part). Returns false if there is
 * none. */
bool car_rank_next_segment(const car_rank *rank, int stage, int32_t parts, car_segment *s);
/* All ranks call it with their own status. If one failed, all fail, so that none waits for it. */
car_status car_rank_all_succeed(car_rank *rank, car_status own);
/* A buffer that is large enough for any parameter. */
car_status car_rank_create_room(const car_rank *rank, float **out);
void car_rank_release_room(const car_rank *rank, float *room);
car_status car_rank_go_on(car_rank *rank);
/* The keeper of a bundle: the rank that has its newest version and the optimizer's state that goes with it. */
int car_rank_keeper_of(const car_rank *rank, int bundle);
/* On the keeper: finds a part of a parameter's state. `room` is for data that has to be converted. */
car_status car_rank_get_part(car_rank *rank, int bundle, const car_part *part, car_snapshot_part which, float *room,
                             float **out);
/* Copies a part of a parameter's state to where this rank keeps it, if it does. Weights go to the first place: they
 * become version 0. */
car_status car_rank_put_part(car_rank *rank, int param, car_snapshot_part which, const float *data);
/* Turns the weights in the first places into version 0, and computes their derived weights. */
car_status car_rank_settle_versions(car_rank *rank, bool goes_on);

#endif
