/* The machine that a plan's table is run on in simulated time: how long steps take, and what activations need.
 *
 * It reads what executors read: the tasks of each rank (car_plan_expand), what they use (usage.h), and who waits for
 * whom (car_edges). Nothing here knows a rule or a placement. A task starts as soon as
 *
 *   all              the tasks that its edges name are over;
 *   R, C             the rank is at most car_plan_slots_ahead slots before its own: then it is posted. A message goes
 *                    when it is sent and posted, and takes its time over the links (flows.h);
 *   C, D             it is its turn among the collectives of its kind, and all ranks of the group have come to it;
 *   F, B             its rank computes nothing else (in one process: an executor is free), and the pace allows it: its
 *                    phase is at most the slowest worker's plus the lead. Of those that could start, the smallest
 *                    phase goes first.
 *
 * Sends and updates take no time. Where sums queue up for one way, a rank has CAR_SENDS_AT_ONCE of them under way,
 * those that are asked for first.
 *
 *   machine.c          events: what starts, what ends
 *   machine_list.c     the tasks of a rank that are not over, with who waits for them
 *   machine_sends.c    sums that wait for one way
 *   machine_collectives.c  collectives
 *   machine_memory.c   bytes of activations, and the time of each operation
 *   machine_setup.c    creating and releasing */
#ifndef CAR_PLAN_MACHINE_H
#define CAR_PLAN_MACHINE_H

#include "plan/flows.h"
#include "plan/placement.h"
#include "plan/rules.h"
#include "plan/usage.h"

enum {
    CAR_MACHINE_FILL = 2,  /* steps at the beginning that are not counted; nor is the last */
    CAR_MACHINE_AHEAD = 6, /* different distances at which receives are posted, at most */
};

typedef struct car_machine_config {
    int64_t steps;              /* at least CAR_MACHINE_FILL + 2 */
    double compute;             /* seconds of one micro-batch's forwards and backwards */
    const car_cluster *cluster; /* NULL: messages take no time */
    double bucket;              /* dp: bytes that go together in an all-reduce */
    bool staggered;             /* in the cycle ranks begin one after another, as the clock has it */
    int executors;              /* that compute at the same time, on all ranks; 0: as many as there are ranks */
    bool paced;
    double lead;    /* of the pace */
    bool by_memory; /* follow the bytes of activations, operation by operation */
    double jitter;  /* operations take up to this share more or less than they cost, differently for every seed */
    uint64_t seed;
} car_machine_config;

/* ---- tasks ----------------------------------------------------------------------------------- */

/* A task that is listed. */
typedef struct car_machine_task {
    unsigned char kind, cargo;
    bool arrived;
    int stage, bundle, micro_batch, peer, tag;
    int piece;
    int step, slot;
    int due;  /* S: the slot in which it is used */
    int next; /* number of the next in a list of its rank, or CAR_NONE */
} car_machine_task;

/* Who waits for a task, and whether it waits itself. Apart from the rest, because this is what is looked up at random.
 */
typedef struct car_machine_wait {
    int blockers;  /* tasks that it waits for */
    int dependent; /* the last that was found to wait for it, or CAR_NONE */
    int more;      /* the others: first in the machine's pool, or CAR_NONE */
    bool over;
} car_machine_wait;

/* Tasks of a rank, by number. */
typedef struct car_machine_line {
    int first, last; /* CAR_NONE if there are none */
} car_machine_line;

/* A sum that is on its way, or waits for it. */
typedef struct car_machine_sum {
    int64_t key, order; /* when its receive is posted; the order in which they were sent */
    int peer, tag;
    double bytes;
} car_machine_sum;

typedef struct car_machine_rank {
    car_usage *usage;
    car_edges *edges;
    car_machine_task *tasks; /* by number mod capacity, a power of two */
    car_machine_wait *waits; /* the same */
    int capacity, first, end;
    int last_compute;                             /* the last forward or backward that was listed, or CAR_NONE */
    int computes;                                 /* that are listed and not over */
    int64_t listed;                               /* slots below are */
    car_machine_line arrivals[CAR_MACHINE_AHEAD]; /* receives that are not posted, by distance */
    car_machine_line calls[2], joined[2];         /* D and C: not begun; under way */
    int64_t collectives[2];                       /* that it has joined */
    car_machine_sum *held, *ways;                 /* sums that wait, a heap; that are under way */
    int held_count, held_capacity, way_count, way_capacity;
    int64_t sums;     /* sent so far */
    bool busy, begun; /* it computes; it ever has */
    bool looked_for;  /* it is in the machine's list */
    int waiting;      /* runner whose task is ready while the rank is busy, CAR_NONE */
} car_machine_rank;

typedef struct car_dependent {
    int task, next;
} car_dependent;

typedef struct car_machine_due {
    int rank, task;
} car_machine_due;

/* ---- runners --------------------------------------------------------------------------------- */

/* The micro-batches of one number in their steps, which follow each other. It has one forward or backward at a time
 * that could run. A worker is M runners, which its tape keeps apart. */
typedef struct car_runner {
    int rank, task;   /* that one; until there is one, the rank of all its tasks if they are on one */
    int64_t done;     /* tasks: 2S a micro-batch, of which there is one in a step */
    int64_t listed;   /* tasks that were listed */
    int next_waiting; /* for the same rank */
    double phase;     /* of its next task */
    int event, end;   /* of the curve: that runs; the first that is not the task's */
    int64_t after;    /* bytes that are held from the task's end to the next one's begin */
    int64_t bytes;    /* of activations */
} car_runner;

typedef struct car_ready {
    double phase;
    int runner;
} car_ready;

/* The smallest phase comes first, of equal ones the smallest runner. */
typedef struct car_ready_heap {
    car_ready *entries;
    int count;
} car_ready_heap;

/* Bytes of a rank, or of all. Several change in one moment, and their order means nothing: only what is there before,
 * after, and on top in operations that take no time can be a peak. */
typedef struct car_pool {
    int64_t bytes, before, on_top, peak;
    bool changed;
} car_pool;

/* ---- collectives ----------------------------------------------------------------------------- */

/* The collectives of one kind in a group. The arrays go round: nobody is two steps ahead of another. */
typedef struct car_machine_sequence {
    int64_t next; /* that would start next */
    int *joined;
    int64_t *order; /* in which they were complete */
    double *seconds, *rates;
} car_machine_sequence;

/* A group of ranks. */
typedef struct car_machine_group {
    int ranks, first, members; /* members: ranks that are simulated; one may stand for all */
    int room;
    car_machine_sequence sequences[2]; /* reductions, broadcasts */
    int64_t complete;                  /* collectives that all have joined */
    int running;                       /* kind, or CAR_NONE */
    double rate;                       /* of the running one, all ranks together */
    double carried, bandwidth;         /* bytes through each link of the ring, while it is counted; what it can carry */
} car_machine_group;

/* ---- the machine ----------------------------------------------------------------------------- */

typedef struct car_machine {
    const car_plan *plan;
    const car_partition *partition;
    car_context *context;
    car_machine_config config;
    /* What there is. */
    int batches, stages, leaves; /* micro-batches of a step; leaves of the tree `slowest` */
    int ranks, copies;           /* that are simulated; and how many each of them stands for */
    int group_count, distance_count;
    bool one_process;                                      /* one rank with all workers, which compute side by side */
    bool in_order;                                         /* ranks compute in the table's order */
    bool orders_sums;                                      /* sums queue up for one way, and take time on it */
    bool steady;                                           /* what happens now is counted */
    bool known;                                            /* all that is counted is over, but for the last step */
    int64_t end;                                           /* slots of the run */
    int64_t distances[CAR_MACHINE_AHEAD], broadcast_ahead; /* slots ahead that receives and broadcasts are asked for */
    int64_t reach;                                         /* slots ahead that tasks are listed */
    double moment;                                         /* times that differ by less are equal */
    /* Tasks. */
    car_machine_rank *rank;
    car_task_list list;
    car_use_list uses;
    car_dependent *dependents;
    car_machine_due *due;                           /* sends and updates that nothing blocks */
    int *look;                                      /* ranks that may have something to list or to post */
    int dependent_count, dependent_capacity, spare; /* spare: first unused, CAR_NONE */
    int due_first, due_count, due_capacity, look_count;
    /* Workers. */
    car_runner *runners;
    car_ready_heap ready;    /* runners whose next task could run */
    car_ready_heap unlisted; /* runners whose next task is not listed */
    double *slowest;         /* a tree of minima of the runners' phases: [1] is the root, leaves from [leaves] on */
    /* What is between ranks. */
    double *closes; /* by bundle: bytes of the bucket of all-reduces that it is the last of, else 0 */
    car_machine_group *groups;
    car_agenda agenda; /* ids: groups, runners, messages */
    car_network network;
    /* Bytes and time. */
    car_pool *pools; /* by rank, then the total */
    int *changed;    /* pools, in this moment */
    int changed_count;
    int free, computing; /* executors */
    int64_t *unfinished; /* by step: micro-batches that are not done */
    double *finished;    /* by step: when the last was */
    double now;
    double area, work; /* bytes * time and executors * time, in steady state */
} car_machine;

/* Fills an empty machine; car_machine_release is due even after a failure. */
car_status car_machine_create(const car_plan *plan, const car_machine_config *config, car_machine *out);
void car_machine_release(car_machine *machine);
/* Runs it up to its last step, which only keeps the one before company. CAR_ERROR_INTERNAL if it halts before. */
car_status car_machine_run(car_machine *machine);
/* Seconds of steady state, and of a step in it. */
double car_machine_seconds(const car_machine *machine);
double car_machine_step(const car_machine *machine);

/* timing.c: as car_plan_time, without the second run that finds free_step and exposed; and how many steps either runs.
 */
car_status car_plan_time_step(const car_plan *plan, const car_cluster *cluster, double compute, car_timing *out);
int64_t car_plan_timed_steps(const car_plan *plan);

/* ---- between its files ----------------------------------------------------------------------- */

static inline car_machine_task *car_machine_at(const car_machine_rank *rank, int task) {
    return &rank->tasks[task & (rank->capacity - 1)];
}

static inline car_machine_wait *car_machine_wait_of(const car_machine_rank *rank, int task) {
    return &rank->waits[task & (rank->capacity - 1)];
}

/* machine_list.c */
void car_machine_release_tasks(car_machine *machine, car_machine_rank *rank);
void car_machine_append(car_machine_rank *rank, car_machine_line *line, int task);
int car_machine_take(car_machine_rank *rank, car_machine_line *line); /* the first of a line that has one */
/* Lists what a rank needs now; what a runner does next, where all its tasks are on one rank. */
car_status car_machine_list(car_machine *machine, int at);
car_status car_machine_list_runner(car_machine *machine, int runner);
/* The slot that a rank is in: of its first task that is not over. */
int64_t car_machine_slot(const car_machine_rank *rank);
/* A task is over: frees those that waited for it. */
car_status car_machine_retire(car_machine *machine, int at, int number);

/* machine.c */
/* Nothing blocks a task any more. */
car_status car_machine_unblock(car_machine *machine, int at, int number);
void car_machine_look_at(car_machine *machine, int rank);
/* A message or collective has come; the same of a receive that the network knows by name. */
car_status car_machine_arrive(car_machine *machine, int at, int number);
car_status car_machine_arrive_by_name(car_machine *machine, int64_t name);

/* machine_sends.c */
/* A rank sends a sum: now, or when its turn has come. What has arrived with that is in `woken`. */
car_status car_machine_send_sum(car_machine *machine, int at, const car_machine_task *task, double bytes);
/* A sum from a rank has arrived at `to`, so that the next may go. */
car_status car_machine_note_sum(car_machine *machine, int at, int to, int tag);

/* machine_collectives.c */
car_status car_machine_create_groups(car_machine *machine);
void car_machine_release_groups(car_machine *machine);
/* Begins what collectives a rank can. */
car_status car_machine_call(car_machine *machine, int at);
car_status car_machine_end_collective(car_machine *machine, int group);

/* machine_memory.c */
/* Begins the operations of a runner's task; false if they take no time. */
bool car_machine_begin(car_machine *machine, int runner, double *seconds);
/* The time of an operation, or of the task, is over: false if there is another, which takes `seconds`. */
bool car_machine_proceed(car_machine *machine, int runner, double *seconds);
void car_machine_hold_after(car_machine *machine, int runner);
void car_machine_close_moment(car_machine *machine);

#endif
