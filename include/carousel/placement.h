/* The placements: which device computes what, and holds what. Each has a file in src/plan/placements/;
 * docs/design.md compares them. */
#ifndef CAROUSEL_PLACEMENT_H
#define CAROUSEL_PLACEMENT_H

#include <stdbool.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Code and name. The name is also that of the file and, after car_placement_, of its class. */
#define CAR_PLACEMENT_LIST(X)           \
    X(CAR_PLACEMENT_SHARED, shared)     \
    X(CAR_PLACEMENT_REPLICA, replica)   \
    X(CAR_PLACEMENT_ZERO, zero)         \
    X(CAR_PLACEMENT_PIPELINE, pipeline) \
    X(CAR_PLACEMENT_GRID, grid)

typedef enum car_placement {
#define CAR_PLACEMENT_ENUM(code, name) code,
    CAR_PLACEMENT_LIST(CAR_PLACEMENT_ENUM)
#undef CAR_PLACEMENT_ENUM
        CAR_PLACEMENTS
} car_placement;

/* Which workers share a rank, and which ranks share a machine (mapping.h). */
typedef enum car_mapping { CAR_MAPPING_INTERLEAVED, CAR_MAPPING_CONTIGUOUS } car_mapping;

/* A placement's description and properties. Code that treats placements differently asks for properties, not for
 * names. */
typedef struct car_placement_info {
    const char *name, *summary;
    bool one_process; /* devices are the workers of one process: no messages, shared memory */
    bool by_stage;    /* a device computes some stages for many workers, rather than all stages for its own workers */
    bool fewer_ranks; /* a rank may host several workers: --ranks */
    bool owned;       /* each stage has an owner, which keeps its optimizer state; weights travel from user to user */
    bool repeated;    /* several devices keep a stage's weights, and each makes all updates from the same sums */
} car_placement_info;

/* `placement` must be below CAR_PLACEMENTS. */
const car_placement_info *car_placement_info_of(car_placement placement);
const char *car_placement_text(car_placement placement);
const char *car_mapping_text(car_mapping mapping);
/* Finds a placement by name. CAR_ERROR_UNKNOWN_NAME, with the known names, for any other. */
car_status car_placement_find(car_context *context, const char *name, car_placement *out);
bool car_placement_is_known(const char *name, car_placement *out); /* the same without a message */
car_status car_mapping_find(car_context *context, const char *name, car_mapping *out);

/* Whether ranks are whole workers, so that it matters which of them share a rank or a machine. */
static inline bool car_placement_maps_workers(car_placement placement) {
    const car_placement_info *info = car_placement_info_of(placement);
    return !info->one_process && !info->by_stage;
}

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
