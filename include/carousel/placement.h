/* The placements: which device computes and holds what. Each is one file in src/plan/placements/. docs/design.md
 * compares them. */
#ifndef CAROUSEL_PLACEMENT_H
#define CAROUSEL_PLACEMENT_H

#include <stdbool.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The name of each is also that of its file and, behind car_placement_, of its class. */
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

/* Which workers share a rank, or ranks a machine. */
typedef enum car_mapping { CAR_MAPPING_INTERLEAVED, CAR_MAPPING_CONTIGUOUS } car_mapping;

/* What a placement is, for help texts and for whoever has to tell placements apart. */
typedef struct car_placement_info {
    const char *name, *summary;
    bool one_process; /* its devices are the workers of one process: no messages, one memory */
    bool by_stage;    /* a device computes a group of stages for many workers; else all stages for its own workers */
    bool fewer_ranks; /* a rank may host several workers: --ranks */
    bool owned;       /* each stage has an owner with its optimizer's state, and its weights move from user to user */
    bool repeated;    /* several devices keep a stage's weights, and each makes all its updates, from the same sums */
} car_placement_info;

/* Of any placement below CAR_PLACEMENTS. */
const car_placement_info *car_placement_info_of(car_placement placement);
const char *car_placement_text(car_placement placement);
const char *car_mapping_text(car_mapping mapping);
/* By name; CAR_ERROR_UNKNOWN_NAME with the known ones in the message. */
car_status car_placement_find(car_context *context, const char *name, car_placement *out);
bool car_placement_is_known(const char *name, car_placement *out); /* the same without a message */
car_status car_mapping_find(car_context *context, const char *name, car_mapping *out);

/* Whether its ranks are whole workers, so that it matters which of them share a rank or a machine. */
static inline bool car_placement_maps_workers(car_placement placement) {
    const car_placement_info *info = car_placement_info_of(placement);
    return !info->one_process && !info->by_stage;
}

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
