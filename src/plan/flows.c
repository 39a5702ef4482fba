/* The network model: messages that share links. See flows.h.
 *
 *   sent and posted    first byte                         last byte
 *          |-- latency --|--------- flowing -----------|
 *                   rate = min over its links of bandwidth / flows on the link,
 *                          computed anew whenever a flow on it begins or ends */
#include <math.h>

#include "plan/flows.h"

/* ---- the agenda ------------------------------------------------------------------------------ */

/* Branch-free, because a branch would be mispredicted half of the time. */
static bool is_earlier(car_event a, car_event b) {
    return (a.time < b.time) | ((a.time <= b.time) & (a.id < b.id));
}

static void put(car_agenda *agenda, int at, car_event event) {
    agenda->events[at] = event;
    agenda->place[event.id] = at + 1;
}

static void rise(car_agenda *agenda, int at, car_event event) {
    while (at > 0 && is_earlier(event, agenda->events[(at - 1) / 2])) {
        put(agenda, at, agenda->events[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(agenda, at, event);
}

static void sink(car_agenda *agenda, int at, car_event event) {
    for (int child = 2 * at + 1; child < agenda->count; child = 2 * at + 1) {
        if (child + 1 < agenda->count) {
            child += is_earlier(agenda->events[child + 1], agenda->events[child]);
        }
        if (!is_earlier(agenda->events[child], event)) {
            break;
        }
        put(agenda, at, agenda->events[child]);
        at = child;
    }
    put(agenda, at, event);
}

car_status car_agenda_set(car_agenda *agenda, int64_t id, double time) {
    car_event event = {time, id};
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(agenda->context, &agenda->place, &agenda->ids, (int)id + 1, sizeof *agenda->place));
    if (agenda->place[id] == 0) {
        CAR_TRY(car_context_grow(agenda->context, &agenda->events, &agenda->capacity, agenda->count + 1,
                                 sizeof *agenda->events));
        rise(agenda, agenda->count++, event);
    } else if (is_earlier(event, agenda->events[agenda->place[id] - 1])) {
        rise(agenda, agenda->place[id] - 1, event);
    } else {
        sink(agenda, agenda->place[id] - 1, event);
    }
done:
    return status;
}

static void remove_event(car_agenda *agenda, int64_t id) {
    int at = id < agenda->ids ? agenda->place[id] - 1 : -1;
    if (at < 0) {
        return;
    }
    car_event last = agenda->events[--agenda->count];
    agenda->place[id] = 0;
    if (last.id == id) {
        return;
    }
    if (at > 0 && is_earlier(last, agenda->events[(at - 1) / 2])) {
        rise(agenda, at, last);
    } else {
        sink(agenda, at, last);
    }
}

car_event car_agenda_pop(car_agenda *agenda) {
    car_event first = agenda->events[0];
    remove_event(agenda, first.id);
    return first;
}

void car_agenda_release(car_agenda *agenda) {
    car_context_release(agenda->context, agenda->place, (size_t)agenda->ids, sizeof *agenda->place);
    car_context_release(agenda->context, agenda->events, (size_t)agenda->capacity, sizeof *agenda->events);
}

/* ---- the network ----------------------------------------------------------------------------- */

enum { LISTS_PER_DEVICE = 8 };

car_status car_network_create(car_context *context, const car_cluster *cluster, int devices, int64_t first_id,
                              car_agenda *agenda, car_network *out) {
    car_network *n = out;
    car_status status = CAR_OK;
    *n = (car_network){.context = context,
                       .agenda = agenda,
                       .first_id = first_id,
                       .cluster = cluster,
                       .devices = devices,
                       .unused = CAR_NONE};
    n->nodes = cluster ? (devices + cluster->devices_per_node - 1) / cluster->devices_per_node : 0;
    n->wire_count = cluster ? 2 * (devices + n->nodes) : 0;
    for (n->table_size = 64; n->table_size < LISTS_PER_DEVICE * devices; n->table_size *= 2) {
    }
    CAR_TRY(car_context_allocate(context, (size_t)n->wire_count, sizeof *n->wires, &n->wires));
    CAR_TRY(car_context_allocate(context, (size_t)n->table_size, sizeof *n->table, &n->table));
    for (int w = 0; cluster && w < n->wire_count; w++) {
        n->wires[w].bandwidth = w < 2 * devices ? cluster->inside.bandwidth : cluster->between.bandwidth;
        n->wires[w].first = CAR_NONE;
    }
    for (int l = 0; l < n->table_size; l++) {
        n->table[l] = CAR_NONE;
    }
done:
    return status;
}

void car_network_release(car_network *n) {
    car_context_release(n->context, n->table, (size_t)n->table_size, sizeof *n->table);
    car_context_release(n->context, n->flows, (size_t)n->capacity, sizeof *n->flows);
    car_context_release(n->context, n->wires, (size_t)n->wire_count, sizeof *n->wires);
}

/* ---- sharing --------------------------------------------------------------------------------- */

void car_network_add_rate(car_network *n, double rate) {
    n->total_rate += rate;
    if (n->counting && n->total_rate > n->peak_rate) {
        n->peak_rate = n->total_rate;
    }
}

void car_network_start_counting(car_network *n) {
    n->counting = true;
    n->peak_rate = n->total_rate;
}

/* Lists the wires from one device to another. A node with a single device has no internal links. */
static void find_way(const car_network *n, car_flow *f) {
    int per_node = n->cluster->devices_per_node, from = f->from / per_node, to = f->to / per_node;
    f->link_count = 0;
    if (per_node > 1) {
        f->links[f->link_count++] = f->from;
        f->links[f->link_count++] = n->devices + f->to;
    }
    if (from != to) {
        f->links[f->link_count++] = 2 * n->devices + from;
        f->links[f->link_count++] = 2 * n->devices + n->nodes + to;
    }
}

static double latency_of(const car_network *n, const car_flow *f) {
    int per_node = n->cluster->devices_per_node;
    return f->from / per_node == f->to / per_node ? n->cluster->inside.latency : n->cluster->between.latency;
}

/* Books the bytes transferred so far and sets the flow's new rate. */
static car_status adjust(car_network *n, double now, int flow) {
    car_flow *f = &n->flows[flow];
    double rate = INFINITY;
    for (int l = 0; l < f->link_count; l++) {
        const car_wire *wire = &n->wires[f->links[l]];
        rate = fmin(rate, wire->bandwidth / wire->flows);
    }
    f->left = fmax(0, f->left - f->rate * (now - f->since));
    f->since = now;
    car_network_add_rate(n, rate - f->rate);
    f->rate = rate;
    return car_agenda_set(n->agenda, n->first_id + flow, now + f->left / rate);
}

/* Adjusts every flow that shares a wire with this one, and this one too if it still flows. */
static car_status adjust_neighbours(car_network *n, double now, int flow) {
    car_status status = CAR_OK;
    for (int l = 0; l < n->flows[flow].link_count; l++) {
        const car_wire *wire = &n->wires[n->flows[flow].links[l]];
        for (int other = wire->first; other != CAR_NONE;) {
            const car_flow *o = &n->flows[other];
            int next = CAR_NONE;
            for (int k = 0; k < o->link_count; k++) {
                next = o->links[k] == n->flows[flow].links[l] ? o->after[k] : next;
            }
            CAR_TRY(adjust(n, now, other));
            other = next;
        }
    }
done:
    return status;
}

static int place_on(const car_flow *f, int wire) {
    int l = 0;
    while (f->links[l] != wire) {
        l++;
    }
    return l;
}

static void enter_wires(car_network *n, int flow) {
    car_flow *f = &n->flows[flow];
    for (int l = 0; l < f->link_count; l++) {
        car_wire *wire = &n->wires[f->links[l]];
        f->before[l] = CAR_NONE;
        f->after[l] = wire->first;
        if (wire->first != CAR_NONE) {
            car_flow *second = &n->flows[wire->first];
            second->before[place_on(second, f->links[l])] = flow;
        }
        wire->first = flow;
        wire->flows++;
    }
}

static void leave_wires(car_network *n, int flow) {
    car_flow *f = &n->flows[flow];
    for (int l = 0; l < f->link_count; l++) {
        int w = f->links[l], before = f->before[l], after = f->after[l];
        n->wires[w].flows--;
        n->wires[w].carried += n->counting ? f->bytes : 0;
        if (before == CAR_NONE) {
            n->wires[w].first = after;
        } else {
            n->flows[before].after[place_on(&n->flows[before], w)] = after;
        }
        if (after != CAR_NONE) {
            n->flows[after].before[place_on(&n->flows[after], w)] = before;
        }
    }
}

/* ---- sending and receiving ------------------------------------------------------------------- */

static int *list_of(const car_network *n, int from, int to, int tag) {
    uint64_t key = car_random_u64(((uint64_t)(uint32_t)from << 32) | (uint32_t)to, (uint64_t)(uint32_t)tag);
    return &n->table[key & (uint64_t)(n->table_size - 1)];
}

/* The oldest message with this sender, receiver, tag and state; CAR_NONE if there is none. */
static int find(const car_network *n, int from, int to, int tag, car_flow_state state) {
    for (int f = *list_of(n, from, to, tag); f != CAR_NONE; f = n->flows[f].next) {
        const car_flow *flow = &n->flows[f];
        if (flow->from == from && flow->to == to && flow->tag == tag && flow->state == state) {
            return f;
        }
    }
    return CAR_NONE;
}

static car_status add(car_network *n, int from, int to, int tag, int *out) {
    int *end = list_of(n, from, to, tag), flow = n->unused;
    car_status status = CAR_OK;
    if (flow == CAR_NONE) {
        CAR_TRY(car_context_grow(n->context, &n->flows, &n->capacity, n->count + 1, sizeof *n->flows));
        flow = n->count++;
    } else {
        n->unused = n->flows[flow].next;
    }
    n->flows[flow] = (car_flow){.from = from, .to = to, .tag = tag, .next = CAR_NONE, .waiter = CAR_NONE};
    while (*end != CAR_NONE) {
        end = &n->flows[*end].next;
    }
    *end = flow;
    *out = flow;
done:
    return status;
}

static void forget(car_network *n, int flow) {
    car_flow *f = &n->flows[flow];
    int *link = list_of(n, f->from, f->to, f->tag);
    while (*link != flow) {
        link = &n->flows[*link].next;
    }
    *link = f->next;
    f->state = CAR_FLOW_UNUSED;
    f->next = n->unused;
    n->unused = flow;
}

static void arrive(car_network *n, int flow, int64_t *woken) {
    n->sent += n->counting ? n->flows[flow].bytes : 0;
    *woken = n->flows[flow].waiter;
    forget(n, flow);
}

/* Starts a message that was sent and whose receive is posted. */
static car_status depart(car_network *n, double now, int flow, int64_t *woken) {
    car_flow *f = &n->flows[flow];
    if (!n->cluster) {
        arrive(n, flow, woken);
        return CAR_OK;
    }
    f->state = CAR_FLOW_LATENT;
    find_way(n, f);
    return car_agenda_set(n->agenda, n->first_id + flow, now + latency_of(n, f));
}

car_status car_network_send(car_network *n, double now, int from, int to, int tag, double bytes, int64_t *woken) {
    int flow = find(n, from, to, tag, CAR_FLOW_WANTED);
    bool posted = flow != CAR_NONE;
    car_status status = CAR_OK;
    *woken = CAR_NONE;
    if (!posted) {
        CAR_TRY(add(n, from, to, tag, &flow));
        n->flows[flow].state = CAR_FLOW_OFFERED;
    }
    n->flows[flow].bytes = n->flows[flow].left = bytes;
    if (posted) {
        CAR_TRY(depart(n, now, flow, woken));
    }
done:
    return status;
}

car_status car_network_post(car_network *n, double now, int from, int to, int tag, int64_t waiter, int64_t *woken) {
    int flow = find(n, from, to, tag, CAR_FLOW_OFFERED);
    bool sent = flow != CAR_NONE;
    car_status status = CAR_OK;
    *woken = CAR_NONE;
    if (!sent) {
        CAR_TRY(add(n, from, to, tag, &flow));
        n->flows[flow].state = CAR_FLOW_WANTED;
    }
    n->flows[flow].waiter = waiter;
    if (sent) {
        CAR_TRY(depart(n, now, flow, woken));
    }
done:
    return status;
}

car_status car_network_proceed(car_network *n, double now, int flow, int64_t *woken) {
    car_flow *f = &n->flows[flow];
    car_status status = CAR_OK;
    *woken = CAR_NONE;
    if (f->state == CAR_FLOW_LATENT) {
        f->state = CAR_FLOW_FLOWING;
        f->since = now;
        enter_wires(n, flow);
        return adjust_neighbours(n, now, flow);
    }
    leave_wires(n, flow);
    car_network_add_rate(n, -f->rate);
    CAR_TRY(adjust_neighbours(n, now, flow));
    arrive(n, flow, woken);
done:
    return status;
}
