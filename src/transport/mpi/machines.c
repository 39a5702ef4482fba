/* Which ranks share a machine, and an order of the ranks that suits the machines. */
#include "transport/mpi/mpi_internal.h"

/* The lowest rank of the machine that this one is on. */
static car_status find_lowest(car_transport *transport, int *out) {
    MPI_Comm node = MPI_COMM_NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_transport_check(
        transport, MPI_Comm_split_type(transport->world, MPI_COMM_TYPE_SHARED, transport->rank, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type"));
    MPI_Comm_size(node, &transport->local_size);
    *out = transport->rank;
    status = car_transport_check(transport, MPI_Bcast(out, 1, MPI_INT, 0, node), "MPI_Bcast");
    MPI_Comm_free(&node);
done:
    return status;
}

car_status car_transport_find_machines(car_transport *transport) {
    size_t size = (size_t)transport->size;
    int lowest = 0, *machine = NULL;
    car_status status = CAR_OK;
    CAR_TRY(find_lowest(transport, &lowest));
    if (!transport->machine) {
        CAR_TRY(car_context_allocate(transport->context, size, sizeof *machine, &transport->machine));
    }
    machine = transport->machine;
    CAR_TRY(car_transport_all_gather(transport, &lowest, sizeof lowest, machine));
    /* From the lowest rank of a machine to its number: a lower one has its number already. */
    transport->machines = 0;
    for (int r = 0; r < transport->size; r++) {
        machine[r] = machine[r] == r ? transport->machines++ : machine[machine[r]];
    }
done:
    return status;
}

/* What ranks are sorted by; equals stay in their order. `moved`: whether any gets another number. */
static car_status find_key(const car_transport *transport, bool in_turn, int *key, bool *moved) {
    size_t machines = (size_t)transport->machines;
    int *seen = NULL, last = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(transport->context, machines, sizeof *seen, &seen));
    *moved = false;
    for (int r = 0; r < transport->size; r++) {
        int machine = transport->machine[r];
        int here = in_turn ? seen[machine]++ * transport->machines + machine : machine;
        *moved = *moved || here < last;
        *key = r == transport->rank ? here : *key;
        last = here;
    }
    car_context_release(transport->context, seen, machines, sizeof *seen);
done:
    return status;
}

car_status car_transport_renumber(car_transport *transport, bool in_turn) {
    MPI_Comm renumbered = MPI_COMM_NULL;
    bool moved = false;
    int key = 0;
    car_status status = CAR_OK;
    CAR_TRY(find_key(transport, in_turn, &key, &moved));
    if (!moved) {
        return CAR_OK;
    }
    CAR_TRY(car_transport_check(transport, MPI_Comm_split(transport->world, 0, key, &renumbered), "MPI_Comm_split"));
    if (transport->world != MPI_COMM_WORLD) {
        MPI_Comm_free(&transport->world);
    }
    transport->world = renumbered;
    MPI_Comm_set_errhandler(transport->world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(transport->world, &transport->rank);
    MPI_Comm_free(&transport->control);
    CAR_TRY(car_transport_duplicate(transport, "carousel control", &transport->control));
    CAR_TRY(car_transport_find_machines(transport));
done:
    return status;
}
