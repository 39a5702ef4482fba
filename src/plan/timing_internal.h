/* The machine that a plan's table is timed on: devices that walk, messages under way, links that they share. */
#ifndef CAR_TIMING_INTERNAL_H
#define CAR_TIMING_INTERNAL_H

#include "carousel/cluster.h"
#include "plan/internal.h"

/* ---- events ---------------------------------------------------------------------------------- */

typedef struct car_event {
    double time;
    int64_t id;
} car_event;

/* A heap by time in which each id is at most once, and can be moved. */
typedef struct car_agenda {
    car_context *context;
    car_event *events;
    int *place; /* by id: in `events`, plus 1; 0 if it is not there */
    int count, capacity, ids;
} car_agenda;

car_status car_agenda_set(car_agenda *agenda, int64_t id, double time); /* adds or moves it */
void car_agenda_remove(car_agenda *agenda, int64_t id);
car_event car_agenda_pop(car_agenda *agenda);
void car_agenda_release(car_agenda *agenda);

/* ---- messages -------------------------------------------------------------------------------- */

enum { CAR_FLOW_LINKS = 4 };

typedef enum car_flow_state {
    CAR_FLOW_UNUSED,
    CAR_FLOW_WANTED,  /* somebody waits for what was not sent yet */
    CAR_FLOW_LATENT,  /* sent; its first byte is under way */
    CAR_FLOW_FLOWING, /* shares its links */
    CAR_FLOW_ARRIVED
} car_flow_state;

/* A message. Those of one key follow each other, first in first out. */
typedef struct car_flow {
    car_flow_state state;
    int from, to, tag;
    int next;       /* in its list of the table, or of unused ones */
    int64_t waiter; /* what its arrival wakes, or CAR_NONE */
    double bytes;
    double left, rate, since; /* bytes, as of that time; bytes a second */
    int links[CAR_FLOW_LINKS], link_count;
    int before[CAR_FLOW_LINKS], after[CAR_FLOW_LINKS]; /* among the flows of each link; CAR_NONE at the ends */
} car_flow;

typedef struct car_wire {
    double bandwidth, carried; /* carried: bytes, while it is counted */
    int flows, first;
} car_wire;

typedef struct car_network {
    car_context *context;
    car_agenda *agenda;
    int64_t first_id; /* of flow 0 in the agenda */
    const car_cluster *cluster;
    bool immediate; /* messages take no time */
    int devices, nodes, wire_count;
    car_wire *wires; /* out of each device, into each, out of each node, into each */
    car_flow *flows;
    int count, capacity, unused;
    int *table; /* first flow of each list, by key */
    int table_size;
    double total_rate;
    bool counting;
    double sent, peak_rate; /* while counting */
} car_network;

/* `cluster` NULL: messages take no time. */
car_status car_network_create(car_context *context, const car_cluster *cluster, int devices, int64_t first_id,
                              car_agenda *agenda, car_network *out);
void car_network_release(car_network *network);
/* Sends. If that wakes somebody at once, `woken` says whom, else CAR_NONE. */
car_status car_network_send(car_network *network, double now, int from, int to, int tag, double bytes, int64_t *woken);
/* Takes a message if it is there; else `waiter` is woken by its arrival, and need not ask again. */
car_status car_network_receive(car_network *network, int from, int to, int tag, int64_t waiter, bool *there);
/* Flow `flow`'s event has come: its first byte, or its last. */
car_status car_network_proceed(car_network *network, double now, int flow, int64_t *woken);
/* A ring's traffic, which shares nothing: `rate` bytes a second more, or less. */
void car_network_add_rate(car_network *network, double rate);
void car_network_start_counting(car_network *network);

/* ---- what devices do ------------------------------------------------------------------------- */

typedef enum car_deed_kind {
    CAR_DEED_COMPUTE, /* a: stage, b: 1 for backward */
    CAR_DEED_SEND,    /* a: peer, b: tag */
    CAR_DEED_RECEIVE, /* a: peer, b: tag */
    CAR_DEED_JOB,     /* the next a deeds are done beside: receives first, then the rest when all have come */
    CAR_DEED_ISSUE,   /* b: 1 for to all; joins the group's next collective */
    CAR_DEED_WAIT,    /* until the group's collective `number` is done */
    CAR_DEED_MADE,    /* a: place; version `number` is made there */
    CAR_DEED_NEED     /* a: place; waits until it is */
} car_deed_kind;

typedef struct car_deed {
    car_deed_kind kind;
    int a, b;
    union {
        double bytes; /* SEND, ISSUE */
        int64_t number;
        int64_t step; /* COMPUTE */
    } of;
    int64_t slot; /* COMPUTE */
} car_deed;

typedef struct car_deed_list {
    car_deed *deeds;
    int count, capacity;
} car_deed_list;

/* Collectives of a group of ranks: all devices, or those of a grid's stage group. */
typedef struct car_ring {
    int ranks, members; /* members: devices that join here; one may stand for all */
    int64_t done, next; /* finished; the one that would start next */
    bool running;
    double rate;               /* of the running one, all ranks together */
    double carried, bandwidth; /* bytes through each link of the ring, while it is counted; what it can carry */
    int room;                  /* the arrays below go round */
    int *joined;
    double *seconds, *rates; /* of each */
    int first_waiting;       /* device, CAR_NONE */
} car_ring;

typedef struct car_slot_mark {
    int early, ahead, body;
} car_slot_mark;

/* Turns tasks of the table into deeds. All-reduces that follow each other go together, in buckets. */
typedef struct car_compiler {
    const car_plan *plan;
    int groups;
    int *per_step;  /* by group: buckets */
    int *bucket_of; /* by bundle: the bucket of its group's step that it is in */
    double *closes; /* by bundle: bytes of the bucket that it is the last of, else 0 */
    int64_t *asked; /* by device: collectives in what was compiled */
    car_task_list tasks;
    unsigned char *parts; /* of the tasks of a slot */
    int part_capacity;
    car_deed_list early, ahead, body; /* of all slots of a window, see timing_table.c */
    car_slot_mark *marks;             /* where each slot's part of them begins, and where the last ends */
    int mark_count, mark_capacity;
    int job;                                       /* where the last job is in its list; CAR_NONE */
    int64_t reduced, reduced_here, reduced_before; /* reductions in `body`; before this slot; before the one before */
} car_compiler;

/* A bucket is full when it has `bucket` bytes. */
car_status car_compiler_create(const car_plan *plan, double bucket, car_compiler *out);
void car_compiler_release(car_compiler *compiler);
/* The deeds of a device and window, in order. */
car_status car_compiler_window(car_compiler *compiler, int device, int64_t window, int64_t steps, car_deed_list *out);
/* Groups that have collectives, at least 1; the group whose collectives a device joins. */
int car_timing_groups(const car_plan *plan);
int car_timing_group(const car_plan *plan, int device);
/* Places at which a device counts versions. */
int car_timing_places(const car_plan *plan);

#endif
