/* The mapping: which workers share a rank, and which ranks share a machine.
 *
 * Interleaved: workers of a machine are spread over the cycle, so that together they hold a steady amount of
 * activations. Contiguous: neighbours share a machine, so that most messages stay inside it. Choose by memory where
 * that is scarce, and by the network elsewhere. */
#ifndef CAROUSEL_MAPPING_H
#define CAROUSEL_MAPPING_H

#include "carousel/plan.h"
#include "carousel/transport.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The machines that the ranks of a plan run on. */
typedef struct car_machines {
    int count;            /* equal machines, each with the same number of ranks */
    size_t memory;        /* bytes of one machine; 0: unknown, assumed to be enough */
    int optimizer_states; /* floats kept for each weight */
} car_machines;

/* How the two mappings compare. Arrays are indexed by car_mapping. */
typedef struct car_mapping_choice {
    car_mapping mapping;     /* the better one */
    size_t rank_bytes[2];    /* peak activations of a rank */
    size_t machine_bytes[2]; /* peak of weights, sums, optimizer and activations of a machine */
    double crossing[2];      /* bytes sent between machines in a step */
    bool scarce;             /* memory decided: the contiguous mapping does not fit */
} car_mapping_choice;

/* Chooses a mapping for placements replica and zero; ignores `config->mapping`. On one machine memory decides. Over
 * several the traffic between them decides, unless a machine lacks the memory. */
car_status car_plan_choose_mapping(car_context *context, const car_partition *partition, const car_plan_config *config,
                                   const car_machines *machines, car_mapping_choice *out);

/* Finds the machines of a transport's ranks, with the memory of the smallest. All ranks must call it. */
car_status car_transport_find_machines(car_context *context, car_transport *transport, car_machines *out);
/* Sets config->mapping for the ranks of a transport. If both mappings are possible, they are compared: *compared is
 * true, and *choice has the numbers. Machines with unequal numbers of ranks get the contiguous one. Otherwise the
 * mapping stays. The choice uses only what all ranks know, so all make the same one. */
car_status car_plan_choose_mapping_over(car_context *context, const car_partition *partition,
                                        const car_transport *transport, const car_machines *machines,
                                        car_plan_config *config, car_mapping_choice *choice, bool *compared);

/* The machine of a device. Devices are dealt to the machines in turn (interleaved) or fill one after the other
 * (contiguous). */
int car_machines_of_device(const car_machines *machines, int devices, car_mapping mapping, int device);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
