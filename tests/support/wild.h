/* Wild graphs: random operations on random tensors, with branches, joins and shared weights unlike any model's. */
#ifndef CAR_TESTS_WILD_H
#define CAR_TESTS_WILD_H

#include "carousel/graph.h"

typedef enum car_wild_family { CAR_WILD_ROWS, CAR_WILD_SEQUENCES, CAR_WILD_IMAGES, CAR_WILD_FAMILIES } car_wild_family;

typedef struct car_wild {
    car_wild_family family;
    uint64_t seed;
    int operations; /* approximate number */
} car_wild;

/* Appends the graph and returns its loss. The same arguments give the same graph. */
int car_wild_build(car_graph *graph, const car_wild *wild);

#endif
