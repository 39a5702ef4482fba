/* Finds the machines of the ranks, and chooses which workers each rank gets: see carousel/mapping.h. */
#include "base/base.h"
#include "carousel/available.h"
#include "carousel/mapping.h"

/* Uses the memory of the smallest machine, because all ranks must choose the same. */
car_status car_transport_find_machines(car_context *context, car_transport *transport, car_machines *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, transport);
    CAR_REQUIRE(context, out);
    size_t ranks = (size_t)car_transport_size(transport);
    uint64_t own = car_available_physical(), *all = NULL;
    car_status status = CAR_OK;
    *out = (car_machines){.count = car_transport_machines(transport)};
    CAR_TRY(car_context_allocate(context, ranks, sizeof *all, &all));
    CAR_TRY(car_transport_all_gather(transport, &own, sizeof own, all));
    for (size_t r = 0; r < ranks; r++) {
        own = all[r] < own ? all[r] : own;
    }
    out->memory = (size_t)own;
done:
    car_context_release(context, all, all ? ranks : 0, sizeof *all);
    return status;
}

static bool is_even(const car_transport *transport) {
    int size = car_transport_size(transport), machines = car_transport_machines(transport);
    for (int m = 0; m < machines; m++) {
        int here = 0;
        for (int r = 0; r < size; r++) {
            here += car_transport_machine(transport, r) == m;
        }
        if (here * machines != size) {
            return false;
        }
    }
    return true;
}

car_status car_plan_choose_mapping_over(car_context *context, const car_partition *partition,
                                        const car_transport *transport, const car_machines *machines,
                                        car_plan_config *config, car_mapping_choice *choice, bool *compared) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, partition);
    CAR_REQUIRE(context, transport);
    CAR_REQUIRE(context, machines);
    CAR_REQUIRE(context, config);
    int ranks = car_transport_size(transport);
    bool fewer = car_placement_info_of(config->placement)->fewer_ranks;
    car_status status = CAR_OK;
    *compared = false;
    if (!car_placement_maps_workers(config->placement)) {
        return CAR_OK;
    }
    bool possible = fewer ? config->workers % ranks == 0 : config->workers == ranks; /* if not, making the plan fails */
    bool several = machines->count > 1 || ranks < config->workers;
    if (possible && several && is_even(transport)) {
        CAR_TRY(car_plan_choose_mapping(context, partition, config, machines, choice));
        config->mapping = choice->mapping;
        *compared = true;
    } else if (machines->count > 1) {
        config->mapping = CAR_MAPPING_CONTIGUOUS; /* for unequal machines: least traffic */
    }
done:
    return status;
}
