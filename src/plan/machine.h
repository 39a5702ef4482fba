/* The simulated machine. It runs a plan's table in simulated time and finds how long steps take and how much memory
 * activations need.
 *
 * It reads what executors read: the tasks of each rank (car_plan_expand), their uses (usage.h) and their edges
 * (car_edges). Nothing here knows a rule or a placement by name. A task starts as soon as
 *
 *   all tasks        the tasks that its edges name are over;
 *   R, C             the rank is at most car_plan_slots_ahead slots before the task's own: then it is posted. A message
 *                    starts when it is sent and posted, and takes its time over the links (flows.h);
 *   C, D             it is its turn among the collectives of its kind, and all ranks of the group have reached it;
 *   F, B             its rank computes nothing else (in one process: an executor is free), and pacing allows it: its
 *                    phase is at most the slowest worker's plus the lead. If several could start, the smallest phase
 *                    goes first.
 *
 * Sends and updates take no time. Where sums queue up for one link, a rank has CAR_SENDS_AT_ONCE of them in flight,
 * those with the earliest posted receives first.
 *
 *   machine.c              events: what starts, what ends
 *   machine_list.c         the unfinished tasks of a rank, and which tasks wait for them
 *   machine_sends.c        sums that wait for one link
 *   machine_collectives.c  collectives
 *   machine_memory.c       bytes of activations, and the time of each operation
 *   machine_setup.c        creating and releasing */
#ifndef CAR_PLAN_MACHINE_H
#define CAR_PLAN_MACHINE_H

#include "plan/flows.h"
#include "plan/placement.h"
#include "plan/rules.h"
#include "plan/usage.h"

enum {
    CAR_MACHINE_FILL = 2,  /* the first steps, which are not counted; the last one is not counted either */
    CAR_MACHINE_AHEAD = 6, /* the most different distances at which receives are posted */
};

typedef struct car_machine_config {
    int64_t steps;              /* at least CAR_MACHINE_FILL + 2 */
    double compute;             /* seconds for all forwards and backwards of one micro-batch */
    const car_cluster *cluster; /* NULL: messages take no time */
    double bucket;              /* dp: bytes that an all-reduce combines */
    bool staggered;             /* in the cycle, ranks begin one after another as in the clock */
    int executors;              /* how many tasks compute at once, over all ranks; 0: one per rank */
    bool paced;
    double lead;    /* see pace.h */
    bool by_memory; /* follow the bytes of activations operation by operation */
    double jitter;  /* operations take up to this share more or less than their cost, depending on the seed */
    uint64_t seed;
} car_machine_config;

/* ---- tasks ----------------------------------------------------------------------------------- */

/* A task that is listed: known to the machine and not over. */
typedef struct car_machine_task {
    unsigned char kind, cargo;
    bool arrived;
    int stage, bundle, micro_batch, peer, tag;
    int piece;
    int step, slot;
    int due;  /* S: the slot in which the receiver uses it */
    int next; /* the number of the next task in one of the rank's lists, or CAR_NONE */
} car_machine_task;

/* Which tasks wait for a task, and how many it waits for itself. Kept apart from the task because it is accessed at
 * random. */
typedef struct car_machine_wait {
    int blockers;  /* number of tasks that it waits for */
    int dependent; /* the latest task found to wait for it, or CAR_NONE */
    int more;      /* the other ones: the first in the machine's pool, or CAR_NONE */
    bool over;
} car_machine_wait;

/* A queue of a rank's tasks, by number. */
typedef struct car_machine_line {
    int first, last; /* CAR_NONE if it is empty */
} car_machine_line;

/* A sum that is in flight or waits to be sent. */
typedef struct car_machine_sum {
    int64_t key, order; /* key: when its receive is posted; order: the order of sending */
    int peer, tag;
    double bytes;
} car_machine_sum;

typedef struct car_machine_rank {
    car_usage *usage;
    car_edges *edges;
    car_machine_task *tasks; /* by number mod capacity, a power of two */
    car_machine_wait *waits; /* the same */
    int capacity, first, end;
    int last_compute;                             /* the last listed forward or backward, or CAR_NONE */
    int computes;                                 /* forwards and backwards that are listed and not over */
    int64_t listed;                               /* slots below this one are listed */
    car_machine_line arrivals[CAR_MACHINE_AHEAD]; /* receives that are not posted yet, by distance */
    car_machine_line calls[2], joined[2];         /* [0] D, [1] C: not begun; in progress */
    int64_t collectives[2];                       /* how many it has joined */
    car_machine_sum *held, *ways;                 /* held: sums that wait, a heap; ways: sums in flight */
    int held_count, held_capacity, way_count, way_capacity;
    int64_t sums;     /* number of sums sent so far */
    bool busy, begun; /* busy: it computes now; begun: it has ever computed */
    bool queued;      /* it is in the machine's `queue` */
    int waiting;      /* first runner whose task is ready while the rank is busy, or CAR_NONE */
} car_machine_rank;

typedef struct car_dependent {
    int task, next;
} car_dependent;

typedef struct car_machine_due {
    int rank, task;
} car_machine_due;

/* ---- runners --------------------------------------------------------------------------------- */

/* The micro-batches with one number within their steps, one after another. A runner has at most one forward or
 * backward that could run. A worker consists of M runners, which take turns on its tape. */
typedef struct car_runner {
    int rank, task;   /* its current task; before the first one, the rank of all its tasks if that is a single one */
    int64_t done;     /* finished tasks: 2S per micro-batch, one micro-batch per step */
    int64_t listed;   /* number of tasks that were listed */
    int next_waiting; /* the next runner waiting for the same rank */
    double phase;     /* of its next task */
    int event, end;   /* events of the curve: the running one, and the end of the task's */
    int64_t after;    /* bytes held from the end of the task to the beginning of the next */
    int64_t bytes;    /* bytes of activations now */
} car_runner;

typedef struct car_ready {
    double phase;
    int runner;
} car_ready;

/* A heap: the smallest phase comes first, then the smallest runner. */
typedef struct car_ready_heap {
    car_ready *entries;
    int count;
} car_ready_heap;

/* The bytes of a rank, or of all ranks. Several changes may happen in one moment, and their order means nothing. So
 * only the bytes before the moment, the bytes after it, and the extra bytes of operations that take no time count
 * for the peak. */
typedef struct car_pool {
    int64_t bytes, before, on_top, peak;
    bool changed;
} car_pool;

/* ---- collectives ----------------------------------------------------------------------------- */

/* The collectives of one kind in a group. The arrays are circular: no rank is two steps ahead of another. */
typedef struct car_machine_sequence {
    int64_t next; /* the next one to start */
    int *joined;
    int64_t *order; /* the order in which they became complete */
    double *seconds, *rates;
} car_machine_sequence;

/* A group of ranks that take part in the same collectives. */
typedef struct car_machine_group {
    int ranks, first, members; /* members: how many of the ranks are simulated; one may stand for all */
    int room;
    car_machine_sequence sequences[2]; /* reductions, broadcasts */
    int64_t complete;                  /* number of collectives that all ranks have joined */
    int running;                       /* the kind of the running one, or CAR_NONE */
    double rate;                       /* bytes per second of the running one, over all ranks */
    /* carried: bytes through each link of the ring, while counting; bandwidth: what the link can carry */
    double carried, bandwidth;
} car_machine_group;

/* ---- the machine ----------------------------------------------------------------------------- */

typedef struct car_machine {
    const car_plan *plan;
    const car_partition *partition;
    car_context *context;
    car_machine_config config;
    /* Sizes and settings. */
    int batches, stages, leaves; /* batches: micro-batches per step; leaves: number of leaves of the tree `slowest` */
    int ranks, copies;           /* ranks: how many are simulated; copies: how many real ones each stands for */
    int group_count, distance_count;
    bool one_process; /* one rank with all workers, which compute in parallel */
    bool in_order;    /* ranks compute in the table's order */
    bool orders_sums; /* sums queue up for one link and take time on it */
    bool steady;      /* the counted steps have begun */
    bool known;       /* everything counted is over; only the last step still runs */
    int64_t end;      /* number of slots in the run */
    int64_t distances[CAR_MACHINE_AHEAD], broadcast_ahead; /* how many slots ahead receives and broadcasts are posted */
    int64_t reach;                                         /* how many slots ahead tasks are listed */
    double moment;                                         /* times closer than this are equal */
    /* Tasks. */
    car_machine_rank *rank;
    car_task_list list;
    car_use_list uses;
    car_dependent *dependents;
    car_machine_due *due;                           /* sends and updates that nothing blocks */
    int *queue;                                     /* ranks that may have something to list or to post */
    int dependent_count, dependent_capacity, spare; /* spare: the first unused entry of `dependents`, or CAR_NONE */
    int due_first, due_count, due_capacity, queue_count;
    /* Workers. */
    car_runner *runners;
    car_ready_heap ready;    /* runners whose next task could run */
    car_ready_heap unlisted; /* runners whose next task is not listed yet */
    /* A tree of minima over the runners' phases: [1] is the root, the leaves start at [leaves]. */
    double *slowest;
    /* Messages and collectives. */
    double *closes; /* by bundle: if it is the last one of an all-reduce bucket, the bytes of the bucket; else 0 */
    car_machine_group *groups;
    car_agenda agenda; /* its ids are groups, then runners, then messages */
    car_network network;
    /* Memory and time. */
    car_pool *pools; /* by rank, then the total */
    int *changed;    /* pools that changed in this moment */
    int changed_count;
    int free, computing; /* executors */
    int64_t *unfinished; /* by step: micro-batches that are not finished */
    double *finished;    /* by step: when the last micro-batch finished */
    double now;
    double area, work; /* bytes * time and executors * time, over the counted steps */
} car_machine;

/* Initialises `out`. Call car_machine_release even after a failure. */
car_status car_machine_create(const car_plan *plan, const car_machine_config *config, car_machine *out);
void car_machine_release(car_machine *machine);
/* Runs until the last step, which only serves to keep the one before in steady state. CAR_ERROR_INTERNAL if it
 * stalls earlier. */
car_status car_machine_run(car_machine *machine);
/* Seconds of all counted steps, and of one step. */
double car_machine_seconds(const car_machine *machine);
double car_machine_step(const car_machine *machine);

/* timing.c: car_plan_time without its second run, which finds free_step and exposed; and the number of steps that a
 * run has. */
car_status car_plan_time_step(const car_plan *plan, const car_cluster *cluster, double compute, car_timing *out);
int64_t car_plan_timed_steps(const car_plan *plan);

/* ---- shared by the machine's files --------------------------------------------------------------- */

static inline car_machine_task *car_machine_at(const car_machine_rank *rank, int task) {
    return &rank->tasks[task & (rank->capacity - 1)];
}

static inline car_machine_wait *car_machine_wait_of(const car_machine_rank *rank, int task) {
    return &rank->waits[task & (rank->capacity - 1)];
}

/* machine_list.c */
void car_machine_release_tasks(car_machine *machine, car_machine_rank *rank);
void car_machine_append(car_machine_rank *rank, car_machine_line *line, int task);
/* Removes the first of a line that is not empty. */
int car_machine_take(car_machine_rank *rank, car_machine_line *line);
/* Lists what a rank needs now; lists a runner's next task, where all its tasks are on one rank. */
car_status car_machine_list(car_machine *machine, int at);
car_status car_machine_list_runner(car_machine *machine, int runner);
/* The slot that a rank has reached: that of its first unfinished task. */
int64_t car_machine_slot(const car_machine_rank *rank);
/* Marks a task as over and unblocks those that waited for it. */
car_status car_machine_retire(car_machine *machine, int at, int number);

/* machine.c */
/* Called when nothing blocks a task any more. */
car_status car_machine_unblock(car_machine *machine, int at, int number);
void car_machine_enqueue(car_machine *machine, int rank);
/* A message or collective has arrived. The second form is for a receive, by the name that the network knows. */
car_status car_machine_arrive(car_machine *machine, int at, int number);
car_status car_machine_arrive_by_name(car_machine *machine, int64_t name);

/* machine_sends.c */
/* Sends a sum of a rank now, or when its turn comes. Delivers what that completes. */
car_status car_machine_send_sum(car_machine *machine, int at, const car_machine_task *task, double bytes);
/* A sum from rank `at` has arrived at `to`, so the next one may go. */
car_status car_machine_note_sum(car_machine *machine, int at, int to, int tag);

/* machine_collectives.c */
car_status car_machine_create_groups(car_machine *machine);
void car_machine_release_groups(car_machine *machine);
/* Starts the collectives that a rank can start. */
car_status car_machine_call(car_machine *machine, int at);
car_status car_machine_end_collective(car_machine *machine, int group);

/* machine_memory.c */
/* Begins the operations of a runner's task. Returns false if they take no time. */
bool car_machine_begin(car_machine *machine, int runner, double *seconds);
/* An operation, or the task, has ended. Returns true if another operation follows, which takes `seconds`. */
bool car_machine_proceed(car_machine *machine, int runner, double *seconds);
void car_machine_hold_after(car_machine *machine, int runner);
void car_machine_close_moment(car_machine *machine);

#endif
