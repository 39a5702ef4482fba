/* The functions that every transport has. They call those of its kind. */
#include "transport/transport.h"

#include "base/base.h"
#include "kernels/vector/vector.h"

void car_transport_close(car_transport *transport) {
    if (transport) {
        car_pace_destroy(&transport->pace, transport->context);
        transport->class->close(transport);
    }
}
void car_transport_abort(car_transport *transport, int code) {
    if (transport) {
        transport->class->abort(transport, code);
    }
}

int car_transport_rank(const car_transport *transport) {
    return transport ? transport->rank : 0;
}
int car_transport_size(const car_transport *transport) {
    return transport ? transport->size : 0;
}
int car_transport_local_size(const car_transport *transport) {
    return transport ? transport->local_size : 0;
}
int car_transport_machines(const car_transport *transport) {
    return transport ? transport->machines : 0;
}
int car_transport_machine(const car_transport *transport, int rank) {
    return transport && rank >= 0 && rank < transport->size ? transport->machine[rank] : -1;
}
const char *car_transport_name(const car_transport *transport) {
    return transport ? transport->name : "";
}
void car_transport_count(car_transport *transport, const car_message *message) {
    car_traffic *traffic = &transport->traffic;
    traffic->collectives += message->kind > CAR_MESSAGE_RECEIVE;
    if (message->kind == CAR_MESSAGE_SEND) {
        traffic->messages += message->name == CAR_MESSAGE_OF_PLAN;
        traffic->bytes_sent += message->name == CAR_MESSAGE_OF_PLAN ? message->bytes : 0;
        traffic->snapshot_bytes += message->name == CAR_MESSAGE_SNAPSHOT ? message->bytes : 0;
    }
}
void car_transport_count_held(car_transport *transport, car_message *message) {
    transport->traffic.held += !message->paced;
    message->paced = true;
}
void car_message_add(const car_message *collective, void *sum, const void *addend, size_t bytes) {
    double *to = sum;
    const double *from = addend;
    if (!collective->doubles) {
        car_vector_select()->accumulate(sum, addend, (int64_t)(bytes / sizeof(float)));
        return;
    }
    for (size_t e = 0; e < bytes / sizeof *to; e++) {
        to[e] += from[e];
    }
}
void car_message_append(car_message **list, car_message *message) {
    while (*list) {
        list = &(*list)->next;
    }
    message->next = NULL;
    *list = message;
}
void car_message_hold(car_message **list, car_message *message) {
    while (*list && (*list)->due <= message->due) {
        list = &(*list)->next;
    }
    message->next = *list;
    *list = message;
}
car_traffic car_transport_traffic(const car_transport *transport) {
    return transport->traffic;
}
int64_t car_transport_loops(const car_transport *transport) {
    return transport->loops;
}

/* ---- the loop -------------------------------------------------------------------------------- */

car_status car_transport_prepare(car_transport *transport, int highest_tag, int group) {
    return transport->class->prepare(transport, highest_tag, group);
}
car_status car_transport_pace(car_transport *transport, const double *bytes) {
    car_pace_destroy(&transport->pace, transport->context);
    return bytes ? car_pace_create(&transport->pace, transport->context, bytes, transport->size) : CAR_OK;
}
void car_transport_note_slot(car_transport *transport, int64_t slot) {
    if (transport->pace.links > 0) {
        car_pace_note_slot(&transport->pace, slot);
    }
}
bool car_transport_note_step(car_transport *transport, double computed) {
    return transport->pace.links > 0 && car_pace_note_step(&transport->pace, car_clock_seconds(), computed);
}
car_status car_transport_begin(car_transport *transport, const car_transport_events *events) {
    car_pace_rewind(&transport->pace);
    transport->events = *events;
    transport->loops++;
    return transport->class->begin(transport);
}
void car_transport_start(car_transport *transport, car_message *message) {
    transport->class->start(transport, message);
}
void car_transport_end(car_transport *transport, bool failed) {
    transport->class->end(transport, failed);
}
void car_transport_forget(car_transport *transport) {
    transport->events = (car_transport_events){0};
}
void car_transport_give_up(car_transport *transport, car_status why) {
    transport->class->give_up(transport, why);
}

/* ---- around the loop -------------------------------------------------------------------------- */

car_status car_transport_all_gather(car_transport *transport, const void *in, size_t bytes, void *out) {
    CAR_REQUIRE(NULL, transport);
    if (bytes > 0) {
        CAR_REQUIRE(transport->context, in);
        CAR_REQUIRE(transport->context, out);
    }
    return transport->class->all_gather(transport, in, bytes, out);
}
car_status car_transport_broadcast(car_transport *transport, int from, void *data, size_t bytes) {
    CAR_REQUIRE(NULL, transport);
    if (bytes > 0) {
        CAR_REQUIRE(transport->context, data);
    }
    return transport->class->broadcast(transport, from, data, bytes);
}
car_status car_transport_hand_over(car_transport *transport, int from, int to, void *data, size_t bytes) {
    return transport->class->hand_over(transport, from, to, data, bytes);
}
car_status car_transport_renumber(car_transport *transport, bool in_turn) {
    CAR_REQUIRE(NULL, transport);
    return transport->class->renumber ? transport->class->renumber(transport, in_turn) : CAR_OK;
}
