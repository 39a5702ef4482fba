/* The arithmetic of sums and updates. Every executor uses it, so that the bits are the same. */
#ifndef CAR_ENGINE_ARITHMETIC_H
#define CAR_ENGINE_ARITHMETIC_H

#include "carousel/optimizer.h"
#include "carousel/tape.h"

/* The number of stored elements of a parameter, including the padding of its layout. Parameters of user-defined stages,
 * which are filled up to a multiple of 64 bytes, count without the filling. */
static inline int64_t car_engine_count(const car_program *program, int param) {
    const car_param *p = car_graph_param(car_program_graph(program), param);
    return p->filled ? car_shape_elements(p->shape)
                     : (int64_t)(car_program_param_bytes(program, param) / sizeof(float));
}
static inline bool car_engine_is_statistic(const car_program *program, int param) {
    return car_graph_param(car_program_graph(program), param)->role == CAR_PARAM_STATISTIC;
}

/* The key of dropout for micro-batch `number` of the `batches` in a step. */
uint64_t car_engine_key(uint64_t seed, int64_t step, int batches, int number);

/* Bytes of scratch for the gradients of any one operation among first .. end - 1, before they are added to sums. Each
 * parameter's gradient begins at a multiple of 64. */
size_t car_engine_addend_bytes(const car_program *program, int first, int end);

/* Computes sum += own for all elements of a parameter. */
void car_engine_accumulate(const car_program *program, int param, void *sum, const void *own);

/* What is added to a sum. Gradients are simply added. For running statistics with momentum m: */
typedef enum car_addend_kind {
    CAR_ADDEND_NEXT,     /* the next micro-batch in ring order: sum = (1 - m) * sum + m * own */
    CAR_ADDEND_WORKER,   /* the sum over `count` micro-batches of a worker: sum = (1 - m)^count * sum + own */
    CAR_ADDEND_ANY_ORDER /* a micro-batch before `count` others, added in any order: sum += m * (1 - m)^count * own */
} car_addend_kind;

typedef struct car_addend {
    car_addend_kind kind;
    int count;
    bool first; /* nothing was added before, and `own` is `sum` */
} car_addend;

/* Adds to the sum of parameter `index` of an operation, in bytes begin .. end - 1 of it. */
void car_engine_add(const car_program *program, const car_op *op, int index, size_t begin, size_t end, void *sum,
                    const void *own, car_addend addend);

/* The inputs of one update, besides weights and sum. */
typedef struct car_renewal {
    car_optimizer *optimizer;
    int64_t update; /* number of the optimizer update, from 0 */
    double lr;
    double scale; /* factor of the mean gradient, for clipping */
    int batches;  /* number of micro-batches in the sum */
} car_renewal;

/* Computes the next version of `count` elements, from `first` on, of parameter `index` of an operation, from the sum
 * over all micro-batches. `to` may be `from`. */
car_status car_engine_renew(const car_program *program, const car_op *op, int index, int64_t first, int64_t count,
                            const car_renewal *renewal, const void *from, void *to, const void *sum);

/* The mean of a sum over `workers` micro-batches. */
void car_engine_average(const car_program *program, int param, const void *sum, int workers, void *mean);
/* The sum of the squares of a parameter's summed gradient. */
double car_engine_square(const car_program *program, int param, const void *sum);

#endif
