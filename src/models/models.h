/* What the families of models share with the registry: the entry of a model, and helpers for building graphs. */
#ifndef CAR_MODELS_H
#define CAR_MODELS_H

#include "carousel/model.h"

/* One model. The registry fills in defaults and checks each field by itself. `check` checks how the fields fit
 * together, and `build` may rely on both. */
typedef struct car_model_entry {
    car_model_info info;
    bool takes_dropout; /* the default is 0, so `info.defaults` cannot tell */
    car_status (*check)(car_context *context, const char *name, const car_model_config *config);
    int (*build)(car_graph *graph, const car_model_config *config); /* appends all operations, returns the loss */
} car_model_entry;

extern const car_model_entry car_model_mlp;
extern const car_model_entry car_model_resnet20, car_model_resnet18, car_model_resnet50;
extern const car_model_entry car_model_vit_tiny, car_model_vit_b16;
extern const car_model_entry car_model_gpt2_nano, car_model_gpt2;
enum { CAR_MODELS_ON_PAPER = 7 };
extern const car_model_entry car_models_on_paper[CAR_MODELS_ON_PAPER];

/* A formatted name, returned by value so that builders can write it where it is used: car_graph_relu(graph,
 * car_model_label("layer%d.relu", i).text, x). */
typedef struct car_model_name {
    char text[96];
} car_model_name;
car_model_name car_model_label(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Replaces the initial distribution of OWNER.MEMBER. */
void car_model_init(car_graph *graph, const char *owner, const char *member, car_init_kind kind, double a);

/* Refuses tensors whose size in bytes would overflow. `elements` is a double because the product may not fit an
 * integer. */
car_status car_model_check_elements(car_context *context, const char *name, const char *what, double elements);
/* Checks that the number of heads divides a transformer's width. */
car_status car_model_check_heads(car_context *context, const char *name, const car_model_config *config);

/* Adds dropout if the configuration asks for it; otherwise returns x. */
int car_model_dropout(car_graph *graph, const car_model_config *config, const char *name, int x);

/* The inputs and outputs that all image models share. */
int car_model_images(car_graph *graph, const car_model_config *config);               /* input "images" */
int car_model_classify(car_graph *graph, const car_model_config *config, int logits); /* input "labels" and loss */

#endif
