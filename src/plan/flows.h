/* Messages under way on links that they share, and the agenda of what happens when. */
#ifndef CAR_PLAN_FLOWS_H
#define CAR_PLAN_FLOWS_H

#include "base/base.h"
#include "carousel/cluster.h"

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
car_event car_agenda_pop(car_agenda *agenda);
void car_agenda_release(car_agenda *agenda);

/* ---- messages -------------------------------------------------------------------------------- */

enum { CAR_FLOW_LINKS = 4 };

typedef enum car_flow_state {
    CAR_FLOW_UNUSED,
    CAR_FLOW_WANTED,  /* its receive is posted, and it was not sent yet */
    CAR_FLOW_OFFERED, /* sent, and its receive is not posted yet */
    CAR_FLOW_LATENT,  /* both; its first byte is under way */
    CAR_FLOW_FLOWING  /* shares its links */
} car_flow_state;

/* A message. It goes when it is sent and its receive is posted. Those of one key follow each other, first in first out.
 */
typedef struct car_flow {
    car_flow_state state;
    int from, to, tag;
    int next;       /* in its list of the table, or of unused ones */
    int64_t waiter; /* the receive; CAR_NONE while it is not posted */
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
    int64_t first_id;           /* of flow 0 in the agenda */
    const car_cluster *cluster; /* NULL: messages take no time */
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
/* Sends, and posts a receive that is known as `waiter`. If the message has arrived with that, `woken` is its receive,
 * else CAR_NONE. */
car_status car_network_send(car_network *network, double now, int from, int to, int tag, double bytes, int64_t *woken);
car_status car_network_post(car_network *network, double now, int from, int to, int tag, int64_t waiter,
                            int64_t *woken);
/* Flow `flow`'s event has come: its first byte, or its last. */
car_status car_network_proceed(car_network *network, double now, int flow, int64_t *woken);
/* A ring's traffic, which shares nothing: `rate` bytes a second more, or less. */
void car_network_add_rate(car_network *network, double rate);
void car_network_start_counting(car_network *network);

#endif
