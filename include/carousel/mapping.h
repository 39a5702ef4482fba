/* Which workers belong together: on one rank, and on the ranks of one machine.
 *
 * Spread over the cycle (interleaved), the workers of a machine hold a steady amount of activations together; side by
 * side (contiguous), most messages stay inside it. So choose by memory where it is scarce, by the network elsewhere. */
#ifndef CAROUSEL_MAPPING_H
#define CAROUSEL_MAPPING_H

#include "carousel/plan.h"
#include "carousel/transport.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Where the ranks of a plan run. */
typedef struct car_machines {
    int count;            /* alike, with as many ranks on each; the number of ranks is a multiple of it */
    size_t memory;        /* bytes of one; 0: not known, taken for enough */
    int optimizer_states; /* floats kept for each weight */
} car_machines;

/* By car_mapping, for one machine and for all. */
typedef struct car_mapping_choice {
    car_mapping mapping;     /* the better one */
    size_t rank_bytes[2];    /* activations of a rank, at most */
    size_t machine_bytes[2]; /* weights, sums, optimizer and activations of a machine, at most */
    double crossing[2];      /* bytes that go from machine to machine in a step */
    bool scarce;             /* memory decided, because the contiguous mapping does not fit */
} car_mapping_choice;

/* For placements replica and zero; `config->mapping` is not looked at. On one machine, memory decides; over several,
 * what crosses between them, unless a machine has not got the memory for it. */
car_status car_plan_choose_mapping(car_context *context, const car_partition *partition, const car_plan_config *config,
                                   const car_machines *machines, car_mapping_choice *out);

/* The machines of the ranks of a transport, with the memory of the smallest; called by all ranks. */
car_status car_transport_find_machines(car_context *context, car_transport *transport, car_machines *out);
/* Sets config->mapping for the ranks of a transport: by comparison where there is something to compare (`*compared`, with the
 * numbers in *choice), side by side over machines that have not equally many ranks, else as it is. A function of what all ranks
 * know, so they choose alike. */
car_status car_plan_choose_mapping_over(car_context *context, const car_partition *partition,
                                        const car_transport *transport, const car_machines *machines,
                                        car_plan_config *config, car_mapping_choice *choice, bool *compared);

/* The machine of a device when devices are numbered for a mapping: in turn over the machines, or one after the other. */
int car_machines_of_device(const car_machines *machines, int devices, car_mapping mapping, int device);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
