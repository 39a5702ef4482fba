/* The models: builders of graphs, by name.
 *
 * Parameter names, shapes and initial distributions are those of torchvision and Hugging Face, so weights can be
 * exchanged in both directions without translating names. */
#ifndef CAROUSEL_MODEL_H
#define CAROUSEL_MODEL_H

#include "carousel/graph.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum { CAR_MODEL_MOST_CLASSES = 1 << 24 }; /* of any model, and of data for it */

/* Zero in a field selects the model's own value. */
typedef struct car_model_config {
    int batch;      /* samples in a micro-batch */
    int classes;    /* image models */
    int image_size; /* image models: pixels per side */
    int channels;   /* image models; default 3 */
    int seq_len;    /* token models: tokens per sample */
    int vocabulary; /* token models */
    /* Variants: a transformer's width, depth and heads. For resnet, width is the channels of its first stage; for
     * mlp, depth is the number of hidden layers. */
    int width, depth, heads;
    double dropout;         /* transformers: after embeddings and on residual branches; default 0 */
    double label_smoothing; /* default 0 */
    car_precision precision;
} car_model_config;

typedef enum car_domain { CAR_DOMAIN_IMAGES, CAR_DOMAIN_TOKENS } car_domain;

/* A model's description. */
typedef struct car_model_info {
    const char *name, *summary;
    car_domain domain;
    bool on_paper;             /* for planning only: too large to train here, and not compared with any reference */
    car_model_config defaults; /* every field that the model reads is set */
} car_model_info;

car_model_config car_model_config_default(void); /* all zero, except batch = 1 */

/* The models that can be trained, by index. */
int car_model_count(void);
const car_model_info *car_model_info_at(int index);
int car_model_paper_count(void); /* models for planning only, which the other list does not contain */
const car_model_info *car_model_paper_at(int index);
const car_model_info *car_model_find(const char *name); /* in both lists; NULL if there is none */

/* Replaces zero fields by the model's own values and checks the result. CAR_ERROR_UNKNOWN_NAME, with the known
 * names, for an unknown model. */
car_status car_model_resolve(car_context *context, const char *name, const car_model_config *config,
                             car_model_config *out);

/* Builds and finishes a model's graph. Its inputs are "images" [B,C,X,X] f32 or "tokens" [B,T] i32, and "labels" [B]
 * or [B,T] i32. `config` may be NULL. */
car_status car_model_build(car_context *context, const char *name, const car_model_config *config, car_graph **out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
