/* Without MPI: there are no ranks to join. */
#include "base/base.h"
#include "transport/transport.h"

car_status car_transport_open(car_context *context, car_transport **out) {
    *out = NULL;
    return car_context_fail(context, CAR_ERROR_UNSUPPORTED,
                            "this build has no MPI: install it (Debian: libopenmpi-dev) and build with -DCAR_MPI=ON");
}

/* The rest is never reached: there is no transport to call it with. */
void car_transport_close(car_transport *transport) {
    (void)transport;
}
void car_transport_abort(car_transport *transport, int code) {
    (void)transport;
    (void)code;
}
int car_transport_rank(const car_transport *transport) {
    (void)transport;
    return 0;
}
int car_transport_size(const car_transport *transport) {
    (void)transport;
    return 1;
}
int car_transport_local_size(const car_transport *transport) {
    (void)transport;
    return 1;
}
int car_transport_machines(const car_transport *transport) {
    (void)transport;
    return 1;
}
int car_transport_machine(const car_transport *transport, int rank) {
    (void)transport;
    (void)rank;
    return 0;
}
const char *car_transport_name(const car_transport *transport) {
    (void)transport;
    return "none";
}
car_status car_transport_prepare(car_transport *transport, int highest_tag, int group) {
    (void)transport;
    (void)highest_tag;
    (void)group;
    return CAR_ERROR_UNSUPPORTED;
}
car_status car_transport_begin(car_transport *transport, const car_transport_events *events) {
    (void)transport;
    (void)events;
    return CAR_ERROR_UNSUPPORTED;
}
void car_transport_start(car_transport *transport, car_message *message) {
    (void)transport;
    (void)message;
}
void car_transport_beat(car_transport *transport, int64_t run, int64_t number, double seconds) {
    (void)transport;
    (void)run;
    (void)number;
    (void)seconds;
}
void car_transport_end(car_transport *transport, bool failed) {
    (void)transport;
    (void)failed;
}
int64_t car_transport_loops(const car_transport *transport) {
    (void)transport;
    return 0;
}
car_status car_transport_poll(car_transport *transport) {
    (void)transport;
    return CAR_ERROR_UNSUPPORTED;
}
void car_transport_forget(car_transport *transport) {
    (void)transport;
}
void car_transport_give_up(car_transport *transport) {
    (void)transport;
}
car_traffic car_transport_traffic(const car_transport *transport) {
    (void)transport;
    return (car_traffic){0};
}
car_status car_transport_all_gather(car_transport *transport, const void *in, size_t bytes, void *out) {
    (void)transport;
    (void)in;
    (void)bytes;
    (void)out;
    return CAR_ERROR_UNSUPPORTED;
}
car_status car_transport_broadcast(car_transport *transport, int from, void *data, size_t bytes) {
    (void)transport;
    (void)from;
    (void)data;
    (void)bytes;
    return CAR_ERROR_UNSUPPORTED;
}
car_status car_transport_hand_over(car_transport *transport, int from, int to, void *data, size_t bytes) {
    (void)transport;
    (void)from;
    (void)to;
    (void)data;
    (void)bytes;
    return CAR_ERROR_UNSUPPORTED;
}
car_status car_transport_renumber(car_transport *transport, bool in_turn) {
    (void)transport;
    (void)in_turn;
    return CAR_ERROR_UNSUPPORTED;
}
