/* The arithmetic of sums and updates, which every executor must do alike to the bit. */
#ifndef CAR_ENGINE_ARITHMETIC_H
#define CAR_ENGINE_ARITHMETIC_H

#include "carousel/optimizer.h"
#include "carousel/tape.h"

/* Elements as they are stored; of stages of one's own without what fills them up. */
static inline int64_t car_engine_count(const car_program *program, int param) {
    const car_param *p = car_graph_param(car_program_graph(program), param);
    return p->filled ? car_shape_elements(p->shape)
                     : (int64_t)(car_program_param_bytes(program, param) / sizeof(float));
}
static inline bool car_engine_is_statistic(const car_program *program, int param) {
    return car_graph_param(car_program_graph(program), param)->role == CAR_PARAM_STATISTIC;
}

/* What dropout is keyed with in one micro-batch: number `number` of the `batches` of a step. */
uint64_t car_engine_key(uint64_t seed, int64_t step, int batches, int number);

/* Room for the gradients of the operation among first .. end - 1 that needs most, computed apart before they are added;
 * each parameter's begins at a multiple of 64. */
size_t car_engine_addend_bytes(const car_program *program, int first, int end);

/* sum += own, over all of a parameter's elements. */
void car_engine_accumulate(const car_program *program, int param, void *sum, const void *own);

/* In ring order: adds a micro-batch's gradient of parameter `index` of an operation to the sum over those before it. Of
 * the first, `own` is `sum`. For a running statistic, sum = (1 - m) * sum + m * own. */
void car_engine_add(const car_program *program, const car_op *op, int index, void *sum, const void *own, bool first);

/* The same of bytes begin .. end - 1 of the parameter's, for a worker that is not the first. */
void car_engine_add_range(const car_program *program, const car_op *op, int index, size_t begin, size_t end, void *sum,
                          const void *own);
/* By worker: adds the sum over a worker's own `several` micro-batches. For a running statistic, sum = (1 - m)^several * sum + own. */
void car_engine_join(const car_program *program, const car_op *op, int index, void *sum, const void *own, int several);

/* The same where sums are added over ranks in any order: a statistic gets the weight that the ring would give it. */
void car_engine_add_any_order(const car_program *program, const car_op *op, int index, void *sum, const void *own,
                              bool first, int number, int batches);

/* What one update is made with. */
typedef struct car_renewal {
    car_optimizer *optimizer;
    int64_t update; /* of the optimizer, from 0 */
    double lr;
    double scale; /* of the mean gradient: clipping */
    int batches;  /* micro-batches that the sum is over */
} car_renewal;

/* The next version of `count` elements, from `first` on, of parameter `index` of an operation, from the sum over all micro-batches;
 * `to` may be `from`. */
car_status car_engine_renew(const car_program *program, const car_op *op, int index, int64_t first, int64_t count,
                            const car_renewal *renewal, const void *from, void *to, const void *sum);

/* Mean over workers of a sum. */
void car_engine_average(const car_program *program, int param, const void *sum, int workers, void *mean);
/* Sum of the squares of a parameter's gradient. */
double car_engine_square(const car_program *program, int param, const void *sum);

#endif
