/* Optimizers: from gradients to new weights, as PyTorch defines them. */
#ifndef CAROUSEL_OPTIMIZER_H
#define CAROUSEL_OPTIMIZER_H

#include "carousel/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct car_optimizer car_optimizer;

/* Stochastic gradient descent: g = gradient + weight_decay * w; m = momentum * m + g (m = g at the
 * first step); w -= lr * m, or with Nesterov w -= lr * (g + momentum * m). */
typedef struct car_optimizer_config {
    double momentum, weight_decay;
    bool nesterov;
} car_optimizer_config;

car_optimizer_config car_optimizer_config_default(void); /* momentum 0.9, weight decay 0, no Nesterov */

car_status car_optimizer_create(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                car_optimizer **out);
void car_optimizer_destroy(car_optimizer *optimizer);

/* Updates all weights in place and remakes what is derived from them. Running statistics move by
 * their layer's momentum towards the batch's. A parameter's gradient is the sum over its uses. */
car_status car_optimizer_step(car_optimizer *optimizer, car_lane *lane, car_weights *weights, car_gradients *gradients,
                              double lr);

#ifdef __cplusplus
}
#endif
#endif
