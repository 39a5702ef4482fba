/* A model made ready to train on synthetic samples, for the engine and for what it is compared with. */
#ifndef CAR_TESTS_WORLD_H
#define CAR_TESTS_WORLD_H

#include "carousel/data.h"
#include "carousel/tape.h"

enum { CAR_WORLD_SEED = 5 };

typedef struct car_small_model {
    const char *name;
    car_model_config config;
    car_convolutions convolutions;
} car_small_model;

typedef struct car_world {
    car_context *context;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_synthetic source;
    float input_scale; /* of images, 1 */
    float **start;     /* theta_0, canonical */
    int input, labels; /* tensors */
} car_world;

/* A failure ends the test. */
void car_world_open(car_world *world, const car_small_model *model);
void car_world_close(car_world *world);
/* Ends the test with the context's message unless status is CAR_OK. */
void car_world_must(const car_world *world, car_status status);

/* A car_feed_function whose user is the world: samples that no other micro-batch has. */
car_status car_world_feed(void *world, int64_t step, int worker, car_tape *tape);
/* Sets the weights to theta_0. */
void car_world_start(const car_world *world, car_weights *weights);

#endif
