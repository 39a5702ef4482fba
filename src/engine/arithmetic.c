/* See arithmetic.h. */
#include "engine/arithmetic.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "engine/internal.h"
#include "kernels/vector/vector.h"

uint64_t car_engine_key(uint64_t seed, int64_t step, int batches, int number) {
    return car_random_u64(car_random_key(seed, "dropout"), (uint64_t)(step * batches + number));
}

/* Adds elements first .. end - 1. */
static void accumulate_range(const car_program *program, int param, int64_t first, int64_t end, void *sum,
                             const void *own) {
    if (!car_program_is_double(program, param)) {
        car_vector_select()->accumulate((float *)sum + first, (const float *)own + first, end - first);
        return;
    }
    double *to = sum;
    const double *from = own;
    for (int64_t i = first; i < end; i++) {
        to[i] += from[i];
    }
}

void car_engine_accumulate(const car_program *program, int param, void *sum, const void *own) {
    accumulate_range(program, param, 0, car_engine_count(program, param), sum, own);
}

/* Finds how a running statistic is mixed: sum = keep * sum + weight * own. */
static void find_mix(const car_op *op, const car_addend *addend, float *keep, float *weight) {
    double momentum = op->config.batchnorm.momentum;
    switch (addend->kind) {
    case CAR_ADDEND_NEXT:
        *weight = (float)momentum;
        *keep = 1 - *weight;
        break;
    case CAR_ADDEND_WORKER:
        *weight = 1;
        *keep = (float)pow(1 - momentum, addend->count);
        break;
    default:
        *weight = (float)(momentum * pow(1 - momentum, addend->count));
        *keep = 1;
    }
    *keep = addend->first ? 0 : *keep;
}

void car_engine_add(const car_program *program, const car_op *op, int index, size_t begin, size_t end, void *sum,
                    const void *own, car_addend addend) {
    int param = op->params[index];
    size_t size = car_program_is_double(program, param) ? sizeof(double) : sizeof(float);
    int64_t first = (int64_t)(begin / size), last = (int64_t)(end / size), count = car_engine_count(program, param);
    last = last < count ? last : count; /* without the filling after the last element */
    if (first < last && car_engine_is_statistic(program, param)) {
        float keep = 0, weight = 0;
        find_mix(op, &addend, &keep, &weight);
        car_vector_select()->blend((float *)sum + first, (const float *)own + first, keep, weight, last - first);
    } else if (first < last && !addend.first) {
        accumulate_range(program, param, first, last, sum, own);
    }
}

static car_status renew_floats(const car_program *program, const car_op *op, int index, int64_t first, int64_t count,
                               const car_renewal *renewal, const float *from, float *to, const float *sum) {
    int param = op->params[index];
    car_status status = CAR_OK;
    car_optimizer_begin_average(renewal->optimizer, param, first, count, renewal->update, from);
    if (car_engine_is_statistic(program, param)) {
        size_t begin = (size_t)first * sizeof *to, end = begin + (size_t)count * sizeof *to;
        memmove(to + first, from + first, end - begin);
        car_engine_add(program, op, index, begin, end, to, sum,
                       (car_addend){CAR_ADDEND_WORKER, renewal->batches, false});
    } else {
        status = car_optimizer_update_range(renewal->optimizer, param, first, count, renewal->update, renewal->lr,
                                            renewal->scale / renewal->batches, from, to, sum);
    }
    car_optimizer_add_to_average(renewal->optimizer, param, first, count, to);
    return status;
}

car_status car_engine_renew(const car_program *program, const car_op *op, int index, int64_t first, int64_t count,
                            const car_renewal *renewal, const void *from, void *to, const void *sum) {
    int param = op->params[index];
    if (car_optimizer_is_frozen(renewal->optimizer, param)) {
        size_t size = car_dtype_bytes(car_graph_param(car_program_graph(program), param)->dtype);
        memmove((char *)to + (size_t)first * size, (const char *)from + (size_t)first * size, (size_t)count * size);
        return CAR_OK;
    }
    return car_program_is_double(program, param)
               ? car_optimizer_update_doubles(renewal->optimizer, param, first, count, renewal->update, renewal->lr,
                                              renewal->scale / renewal->batches, from, to, sum)
               : renew_floats(program, op, index, first, count, renewal, from, to, sum);
}

void car_engine_average(const car_program *program, int param, const void *sum, int workers, void *mean) {
    int64_t count = car_engine_count(program, param);
    for (int64_t i = 0; i < count && car_program_is_double(program, param); i++) {
        ((double *)mean)[i] = ((const double *)sum)[i] / workers;
    }
    for (int64_t i = 0; i < count && !car_program_is_double(program, param); i++) {
        ((float *)mean)[i] = ((const float *)sum)[i] / (float)workers;
    }
}

double car_engine_square(const car_program *program, int param, const void *sum) {
    int64_t count = car_engine_count(program, param);
    if (!car_program_is_double(program, param)) {
        return car_vector_select()->square_sum(sum, count);
    }
    double square = 0;
    for (int64_t i = 0; i < count; i++) {
        square += ((const double *)sum)[i] * ((const double *)sum)[i];
    }
    return square;
}

size_t car_engine_addend_bytes(const car_program *program, int first, int end) {
    size_t most = 0;
    for (int l = first; l < end; l++) {
        const car_op *op = car_graph_op(car_program_graph(program), l);
        size_t bytes = 0;
        for (int p = 0; p < op->param_count; p++) {
            bytes += car_round_up(car_program_param_bytes(program, op->params[p]), 64);
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}
