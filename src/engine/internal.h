/* The inside of optimizers, for executors. */
#ifndef CAR_ENGINE_INTERNAL_H
#define CAR_ENGINE_INTERNAL_H

#include "carousel/optimizer.h"
#include "tape/internal.h"

/* State only for the wanted parameters; NULL: for all. `threads` may update at a time: Muon has scratch for so many. */
car_status car_optimizer_create_for(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                    const bool *wanted, int threads, car_optimizer **out);

/* Of parameters that this optimizer has. Frozen ones are the caller's to copy. */
bool car_optimizer_is_frozen(const car_optimizer *optimizer, int param);
/* Around an update of some elements: before it, `from` may be where the average begins; after it, `to` is added. */
void car_optimizer_begin_average(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t update,
                                 const float *from);
void car_optimizer_add_to_average(car_optimizer *optimizer, int param, int64_t first, int64_t count, const float *to);
/* car_optimizer_update of some elements, in stored layout; the pointers are to the whole parameter. To the bit the same,
 * unless the parameter can only be updated as a whole. */
car_status car_optimizer_update_range(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                      double lr, double scale, const float *from, float *to, const float *sum);
/* The same for a parameter of doubles, in double, with its moving average. */
car_status car_optimizer_update_doubles(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                        double lr, double scale, const double *from, double *to, const double *sum);
bool car_optimizer_is_whole(const car_optimizer *optimizer, int param);

/* See car_snapshot_numbers. */
int64_t car_optimizer_since(const car_optimizer *optimizer);
void car_optimizer_set_since(car_optimizer *optimizer, int64_t since);

#endif
