/* Functions of optimizers that only the engine calls. */
#ifndef CAR_ENGINE_INTERNAL_H
#define CAR_ENGINE_INTERNAL_H

#include "carousel/optimizer.h"
#include "carousel/snapshot.h"
#include "tape/internal.h"

/* Creates the state of the wanted parameters; NULL means all. Up to `threads` threads may update at once, so scratch
 * memory is allocated for that many. */
car_status car_optimizer_create_for(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                    const bool *wanted, int threads, car_optimizer **out);

/* True if a parameter that this optimizer has is frozen. The caller copies frozen parameters itself. */
bool car_optimizer_is_frozen(const car_optimizer *optimizer, int param);
/* Called around the update of some elements, for the moving average. Before the first update the average begins as
 * `from`; after each update `to` is added. */
void car_optimizer_begin_average(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t update,
                                 const float *from);
void car_optimizer_add_to_average(car_optimizer *optimizer, int param, int64_t first, int64_t count, const float *to);
/* The same as car_optimizer_update, for some elements. Elements are in stored layout, and the pointers are to the whole
 * parameter. The bits are the same as those of a single call, unless the parameter can only be updated as a whole. */
car_status car_optimizer_update_range(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                      double lr, double scale, const float *from, float *to, const float *sum);
/* The same for a parameter of doubles, computed in double, including its moving average. */
car_status car_optimizer_update_doubles(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                        double lr, double scale, const double *from, double *to, const double *sum);
bool car_optimizer_is_whole(const car_optimizer *optimizer, int param);

/* Copies `since` and `averaged` from or to the optimizer. */
void car_optimizer_get_since(const car_optimizer *optimizer, car_snapshot_numbers *out);
void car_optimizer_set_since(car_optimizer *optimizer, const car_snapshot_numbers *numbers);

#endif
