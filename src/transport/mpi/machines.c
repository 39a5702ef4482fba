/* Finds out which ranks share a machine, and numbers the ranks to suit the machines. */
#include "transport/mpi/mpi_internal.h"

/* Finds the lowest rank on this rank's machine. */
static car_status find_lowest(car_mpi *mpi, int *out) {
    MPI_Comm node = MPI_COMM_NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_mpi_check(mpi,
                          MPI_Comm_split_type(mpi->world, MPI_COMM_TYPE_SHARED, mpi->base.rank, MPI_INFO_NULL, &node),
                          "MPI_Comm_split_type"));
    MPI_Comm_size(node, &mpi->base.local_size);
    *out = mpi->base.rank;
    status = car_mpi_check(mpi, MPI_Bcast(out, 1, MPI_INT, 0, node), "MPI_Bcast");
    MPI_Comm_free(&node);
done:
    return status;
}

car_status car_mpi_find_machines(car_mpi *mpi) {
    size_t size = (size_t)mpi->base.size;
    int lowest = 0, *machine = NULL;
    car_status status = CAR_OK;
    CAR_TRY(find_lowest(mpi, &lowest));
    if (!mpi->base.machine) {
        CAR_TRY(car_context_allocate(mpi->base.context, size, sizeof *machine, &mpi->base.machine));
    }
    machine = mpi->base.machine;
    CAR_TRY(car_mpi_all_gather(&mpi->base, &lowest, sizeof lowest, machine));
    /* Turns the lowest rank of a machine into the machine's number. The lowest rank comes first, so it already has the
     * number. */
    mpi->base.machines = 0;
    for (int r = 0; r < mpi->base.size; r++) {
        machine[r] = machine[r] == r ? mpi->base.machines++ : machine[machine[r]];
    }
done:
    return status;
}

/* Finds the key by which ranks are sorted; equal keys keep their order. *moved: some rank gets another number. */
static car_status find_key(const car_mpi *mpi, bool in_turn, int *key, bool *moved) {
    size_t machines = (size_t)mpi->base.machines;
    int *seen = NULL, last = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(mpi->base.context, machines, sizeof *seen, &seen));
    *moved = false;
    for (int r = 0; r < mpi->base.size; r++) {
        int machine = mpi->base.machine[r];
        int here = in_turn ? seen[machine]++ * mpi->base.machines + machine : machine;
        *moved = *moved || here < last;
        *key = r == mpi->base.rank ? here : *key;
        last = here;
    }
    car_context_release(mpi->base.context, seen, machines, sizeof *seen);
done:
    return status;
}

car_status car_mpi_renumber(car_transport *transport, bool in_turn) {
    car_mpi *mpi = car_mpi_of(transport);
    MPI_Comm renumbered = MPI_COMM_NULL;
    bool moved = false;
    int key = 0;
    car_status status = CAR_OK;
    CAR_TRY(find_key(mpi, in_turn, &key, &moved));
    if (!moved) {
        return CAR_OK;
    }
    CAR_TRY(car_mpi_check(mpi, MPI_Comm_split(mpi->world, 0, key, &renumbered), "MPI_Comm_split"));
    MPI_Comm_free(&mpi->world);
    mpi->world = renumbered;
    MPI_Comm_set_errhandler(mpi->world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->world, &mpi->base.rank);
    MPI_Comm_free(&mpi->control);
    CAR_TRY(car_mpi_open_way(mpi, CAR_MPI_ALL, "carousel control", &mpi->control));
    CAR_TRY(car_mpi_find_machines(mpi));
done:
    return status;
}
