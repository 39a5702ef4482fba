/* A model of the network for the simulated machine: messages in flight share the bandwidth of their links. Also the
 * agenda, a queue of future events ordered by time, from which the machine takes what happens next. */
#ifndef CAR_PLAN_FLOWS_H
#define CAR_PLAN_FLOWS_H

#include "base/base.h"
#include "carousel/cluster.h"

/* ---- events ---------------------------------------------------------------------------------- */

typedef struct car_event {
    double time;
    int64_t id;
} car_event;

/* A heap ordered by time. Each id is in it at most once and can be moved. */
typedef struct car_agenda {
    car_context *context;
    car_event *events;
    int *place; /* by id: 1 + its index in `events`; 0 if it is not in the heap */
    int count, capacity, ids;
} car_agenda;

car_status car_agenda_set(car_agenda *agenda, int64_t id, double time); /* adds or moves it */
car_event car_agenda_pop(car_agenda *agenda);
void car_agenda_release(car_agenda *agenda);

/* ---- messages -------------------------------------------------------------------------------- */

enum { CAR_FLOW_LINKS = 4 };

typedef enum car_flow_state {
    CAR_FLOW_UNUSED,
    CAR_FLOW_WANTED,  /* its receive is posted, but it was not sent yet */
    CAR_FLOW_OFFERED, /* sent, but its receive is not posted yet */
    CAR_FLOW_LATENT,  /* sent and posted; the latency is running */
    CAR_FLOW_FLOWING  /* transferring bytes, sharing its links */
} car_flow_state;

/* A message. It starts when it was sent and its receive is posted. Messages with the same sender, receiver and tag
 * are matched first in, first out. */
typedef struct car_flow {
    car_flow_state state;
    int from, to, tag;
    int next;       /* the next flow in its hash list, or in the list of unused ones */
    int64_t waiter; /* the receive; CAR_NONE while it is not posted */
    double bytes;
    double left, rate, since; /* left: bytes remaining at time `since`; rate: bytes per second */
    int links[CAR_FLOW_LINKS], link_count;
    /* Neighbours in each link's list of flows; CAR_NONE at the ends. */
    int before[CAR_FLOW_LINKS], after[CAR_FLOW_LINKS];
} car_flow;

typedef struct car_wire {
    double bandwidth, carried; /* carried: bytes, counted only while `counting` */
    int flows, first;
} car_wire;

typedef struct car_network {
    car_context *context;
    car_agenda *agenda;
    int64_t first_id;           /* the agenda id of flow 0 */
    const car_cluster *cluster; /* NULL: messages take no time */
    int devices, nodes, wire_count;
    car_wire *wires; /* out of each device, into each device, out of each node, into each node */
    car_flow *flows;
    int count, capacity, unused;
    int *table; /* hash table: the first flow of each list */
    int table_size;
    double total_rate;
    bool counting;
    double sent, peak_rate; /* counted only while `counting` */
} car_network;

/* `cluster` NULL: messages take no time. */
car_status car_network_create(car_context *context, const car_cluster *cluster, int devices, int64_t first_id,
                              car_agenda *agenda, car_network *out);
void car_network_release(car_network *network);
/* Sends a message, or posts the receive `waiter` for one. If that completes the message, *woken is its receive, else
 * CAR_NONE. */
car_status car_network_send(car_network *network, double now, int from, int to, int tag, double bytes, int64_t *woken);
car_status car_network_post(car_network *network, double now, int from, int to, int tag, int64_t waiter,
                            int64_t *woken);
/* Handles the event of flow `flow`: its first or its last byte has arrived. */
car_status car_network_proceed(car_network *network, double now, int flow, int64_t *woken);
/* Adds `rate` bytes per second (negative to remove them) for a ring collective, which shares no links. */
void car_network_add_rate(car_network *network, double rate);
void car_network_start_counting(car_network *network);

#endif
