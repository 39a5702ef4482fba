/* The models: builders of graphs, by name.
 *
 * Parameter names, shapes and initial distributions are those of torchvision's and Hugging Face's
 * state dicts, so that weights move in both directions without a mapping table. */
#ifndef CAROUSEL_MODEL_H
#define CAROUSEL_MODEL_H

#include "carousel/graph.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Zero in a field below means the model's own value. */
typedef struct car_model_config {
    int batch;      /* samples in a micro-batch */
    int classes;    /* image models */
    int image_size; /* image models, pixels on a side */
    int channels;   /* image models, 3 if zero */
    int seq_len;    /* token models, tokens in a sample */
    int vocabulary; /* token models */
    /* Variants: a transformer's width, depth and heads; resnet's width is its first
     * stage's channels; mlp's depth counts its hidden layers. */
    int width, depth, heads;
    double dropout;         /* transformers: after embeddings and on residual branches, 0 by default */
    double label_smoothing; /* 0 by default */
    car_precision precision;
} car_model_config;

typedef enum car_domain { CAR_DOMAIN_IMAGES, CAR_DOMAIN_TOKENS } car_domain;

/* What a model is, for help texts and data sources. */
typedef struct car_model_info {
    const char *name, *summary;
    car_domain domain;
    bool on_paper;             /* only to be planned: larger than what is trained here, and compared with nothing */
    car_model_config defaults; /* every field that the model reads is set */
} car_model_info;

car_model_config car_model_config_default(void); /* all zero but batch = 1 */

int car_model_count(void);
const car_model_info *car_model_info_at(int index);
int car_model_paper_count(void); /* of those that are only to be planned, which are not among the others */
const car_model_info *car_model_paper_at(int index);
const car_model_info *car_model_find(const char *name); /* NULL if there is none */

/* The config with the model's own values in the fields that are zero, checked.
 * CAR_ERROR_UNKNOWN_NAME lists the known ones in its message. */
car_status car_model_resolve(car_context *context, const char *name, const car_model_config *config,
                             car_model_config *out);

/* Builds and finishes the graph. Its inputs are "images" [B,C,X,X] f32 or "tokens" [B,T] i32, and
 * "labels" [B] or [B,T] i32. `config` may be NULL. */
car_status car_model_build(car_context *context, const char *name, const car_model_config *config, car_graph **out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
