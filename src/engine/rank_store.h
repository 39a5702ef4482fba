/* What a rank holds: weights in versions, sums of gradients, and the state that training goes on from. */
#ifndef CAR_ENGINE_RANK_STORE_H
#define CAR_ENGINE_RANK_STORE_H

#include "carousel/rank.h"
#include "plan/usage.h"

/* Memory that several may look at: a table of the rank, and messages that carry it. */
typedef struct car_block {
    char *data;
    int references; /* guarded by the rank's lock */
} car_block;

/* One use of a parameter in a bundle. */
typedef struct car_part {
    int op, index; /* the use: parameter `index` of operation `op` */
    int param;
    bool first;                           /* of this parameter in the stage: the others have only a sum of their own */
    size_t offset;                        /* in blocks with weights, as they are computed with */
    size_t sum_offset, bytes;             /* in blocks with sums: floats */
    size_t home_offset;                   /* of the first use in those, which is where its master is as well */
    size_t derived_offset, derived_bytes; /* what the operation's kernel derives from its weights; 0 bytes: nothing */
} car_part;

/* How a bundle's weights, and the sums of their gradients, lie in a block: one parameter behind the other without
 * gaps, so that a block is a message. */
typedef struct car_layout {
    car_part *parts;
    int count;
    size_t bytes, sum_bytes, derived_bytes;
    size_t master_bytes; /* of the floats */
    bool rounded;        /* some are rounded to be computed with, so there is a master of floats beside them */
} car_layout;

/* A version of a bundle's weights. */
typedef struct car_held {
    car_block *block;
    void *derived; /* made with the version, where all workers are here; else NULL */
    int64_t version;
} car_held;

/* zero's chains: a copy of a version that came for a forward or a backward. */
typedef struct car_passing_copy {
    car_held held;
    int reads; /* that are to come: its use, and that it is sent on */
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

/* Of one bundle at once: the cycle overlaps two steps, and messages take their time. More if workers' are kept apart, or
 * sums travel in pieces. */
enum { CAR_SUMS_HELD = 6 };

/* What a rank has of a bundle. */
typedef struct car_holding_of_bundle {
    car_layout layout;
    int places;        /* versions held for good, 1 or 2; 0: none of it here, or (zero's cycle) only what comes by */
    car_held held[2];  /* by version mod places; what comes by: by version mod 2 */
    car_block *master; /* bf16, where updates are made: the floats of the newest version; else NULL */
    car_passing_copy copies[2]; /* zero's chains: for a forward, for a backward */
    bool owned;                 /* zero: its versions are made here */
    int64_t made;               /* zero: the newest of them */
    car_held source;  /* zero: a version that went on before the next was made of it, because its sum is late */
    car_block *older; /* after a restart: the version before the first, for those that are stale in the first step */
    car_block *kept;  /* the keeper's, at the end of a run: the version before the last */
    car_block *mean;  /* of a run for the gradient: the mean over workers, where the update would be made */
    car_sum *sums;    /* sums_held of them; free: with neither block */
} car_holding_of_bundle;

/* rank_store.c: blocks, layouts, versions and sums. All but creating need the lock. */
car_status car_rank_create_store(car_rank *rank);
void car_rank_destroy_store(car_rank *rank);
car_status car_block_create(car_rank *rank, car_memory category, size_t bytes, car_block **out);
void car_block_drop(car_rank *rank, car_block *block);
void car_block_clear(car_rank *rank, car_block **block); /* the same, and nothing is there any more */
car_block *car_rank_find_weights(car_rank *rank, int bundle, int64_t version);
void car_rank_put_weights(car_rank *rank, int bundle, int64_t version, car_block *block);
/* zero's chains: the copy that a task uses, brings or sends; NULL: it is about what is kept, see car_usage_copy. */
car_passing_copy *car_rank_find_copy(car_rank *rank, const car_task *task, int bundle);
/* One of its reads is over; after the last it goes. What is left of it then is on its way. */
void car_rank_read_copy(car_rank *rank, car_passing_copy *copy);
void car_rank_drop_copies(car_rank *rank, int bundle);
/* The sum of a leg, CAR_NONE: the finished one; the first worker's, if they are kept apart. NULL if there is none. */
car_sum *car_rank_find_sum(car_rank *rank, int bundle, int64_t step, int leg);
car_sum *car_rank_find_sum_of(car_rank *rank, int bundle, int64_t step, int worker);
/* The entry of a sum that is to come, or comes: one that a gradient has made, or a free one. */
car_status car_rank_open_sum(car_rank *rank, int bundle, const car_sum *sum, car_sum **out);
/* Takes the block of a sum over; its own part is not looked at. */
car_status car_rank_put_sum(car_rank *rank, int bundle, const car_sum *sum);
void car_rank_drop_sum(car_rank *rank, int bundle,
                       const car_sum *sum);          /* of its leg; where they are kept apart, all workers' */
void car_rank_drop_sums(car_rank *rank, int bundle); /* of all steps, and what waits for them */
/* The next part of a layout that is its parameter's first, behind `after` (NULL: from the beginning on); that of a parameter.
 * NULL if there is none. */
const car_part *car_layout_next(const car_layout *layout, const car_part *after);
const car_part *car_layout_find(const car_layout *layout, int param);
/* The same part of the home's layout, for a tied bundle. */
const car_part *car_rank_home_part(const car_rank *rank, int bundle);

/* rank_sums.c. All but the questions need the lock, and let it go while they add. */
/* What was kept apart: of workers, then of uses of one parameter in the stage, in ascending order. The sums must be the
 * caller's alone. */
void car_rank_add_parts(car_rank *rank, int bundle, int64_t step);
/* In ascending order of stages. The same. */
car_status car_rank_add_ties(car_rank *rank, int home, int64_t step);
/* A backward is done, whose gradient, or own sum, is to be added to the sum over all: takes the block over, and adds it to
 * what has come. */
car_status car_rank_keep_own(car_rank *rank, const car_task *backward, int bundle, car_block *block);
/* The same, whose gradient was added to a sum that was all here. */
car_status car_rank_finish_sum(car_rank *rank, const car_task *backward, int bundle);
/* A piece has come: adds what waits for it. */
car_status car_rank_settle_piece(car_rank *rank, const car_task *receive);
/* A worker's own sum is whole: it joins that over all, or waits for it. */
car_status car_rank_join(car_rank *rank, const car_task *task, int bundle);

/* rank_state.c */
/* A part of a snapshot of a parameter; those of a stage, one behind the other. To begin with: all zero. */
typedef struct car_segment {
    int which; /* car_snapshot_part */
    const car_part *part;
    size_t begin;
} car_segment;
/* The next one of a stage, of the parts in the mask (1 << car_snapshot_part) that there are; false if there is none. */
bool car_rank_next_segment(const car_rank *rank, int stage, int32_t parts, car_segment *s);
/* Called by all ranks, with how each fared: all fail if one did, so that nobody is left waiting for it. */
car_status car_rank_all_succeed(car_rank *rank, car_status own);
/* Room for the floats of any parameter. */
car_status car_rank_create_room(const car_rank *rank, float **out);
void car_rank_release_room(const car_rank *rank, float *room);
car_status car_rank_go_on(car_rank *rank);
/* The rank that has the newest version of a bundle, and the optimizer's state that goes with it. */
int car_rank_keeper_of(const car_rank *rank, int bundle);
/* Puts a part where this rank has room for it. Weights go to the first place: they are version 0 of what follows. */
car_status car_rank_put_part(car_rank *rank, int param, car_snapshot_part which, const float *data);
/* What is in the first places is version 0 of what follows; with what kernels derive of it. */
car_status car_rank_settle_versions(car_rank *rank, bool goes_on);

#endif
