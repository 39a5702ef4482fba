/* Everything needed to run a graph, in one struct. */
#ifndef CAR_TESTS_RIG_H
#define CAR_TESTS_RIG_H

#include "carousel/model.h"
#include "carousel/tape.h"
#include "support/nets.h"
#include "support/wild.h"

typedef struct car_rig_config {
    car_net_function build; /* builds the graph; if NULL, ... */
    const car_wild *wild;   /* ... builds a wild graph; if NULL, ... */
    const char *model;      /* ... a model by name */
    car_model_config model_config;
    car_kernels kernels;
    const car_allocator *allocator; /* of the context; NULL: the default */
    size_t limit;                   /* of the arena */
    uint64_t seed;                  /* of the weights */
} car_rig_config;

typedef struct car_rig {
    car_context *context;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_weights *weights;
    car_gradients *gradients;
    car_lane *lane;
    car_tape *tape;
} car_rig;

/* On failure, what was created so far stays in the rig. Always call car_rig_close. */
car_status car_rig_try_open(car_rig *rig, const car_rig_config *config);
/* A failure ends the test. */
void car_rig_open(car_rig *rig, const car_rig_config *config);
void car_rig_close(car_rig *rig);

/* Ends the test with the context's message unless status is CAR_OK. */
void car_rig_expect_ok(const car_rig *rig, car_status status);
/* Ends the test unless the status is the expected one and the context's message contains `part`. Clears the message. */
void car_rig_expect_failure(const car_rig *rig, car_status status, car_status expected, const char *part);

/* Fills the arena's next memory with NaNs, to expose reads of uninitialised memory. */
void car_rig_soil(const car_rig *rig, size_t bytes);

/* Begins a micro-batch and feeds every input with values that depend on `sample` and the input's name. */
car_status car_rig_feed(const car_rig *rig, car_tape *tape, uint64_t sample, bool training);
/* A whole training step: feed, forward, backward. */
car_status car_rig_step(const car_rig *rig, uint64_t sample);

/* The stored gradients of all uses, one after the other. The caller frees them. */
size_t car_rig_gradient_bytes(const car_rig *rig);
unsigned char *car_rig_copy_gradients(const car_rig *rig);
/* Overwrites all gradients with NaNs. */
void car_rig_spoil_gradients(const car_rig *rig);

#endif
