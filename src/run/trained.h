/* The inside of a trained model: trained.c opens and evaluates it, classify.c classifies images with it. */
#ifndef CAR_RUN_TRAINED_H
#define CAR_RUN_TRAINED_H

#include "base/base.h"
#include "carousel/trained.h"

struct car_trained {
    car_context *context;
    char path[4096]; /* of the file of weights */
    const car_model_info *model;
    car_model_config shape;  /* with all sizes filled in */
    car_image_recipe recipe; /* how images are prepared; unused for tokens */
    car_card *card;
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_weights *weights;
    car_weights_load_report report;
    car_dataset *data;     /* NULL without data; the same for the feeder */
    car_dataset *own_data; /* NULL if the options have the dataset */
    car_feeder *feeder;
};

#endif
