/* The arithmetic of sums and updates, which every executor must do alike to the bit. */
#include "engine/arithmetic.h"

#include <math.h>
#include <string.h>

#include "base/base.h"
#include "engine/internal.h"
#include "kernels/vector/vector.h"

uint64_t car_engine_key(uint64_t seed, int64_t step, int workers, int worker) {
    return car_random_u64(car_random_key(seed, "dropout"), (uint64_t)(step * workers + worker));
}

void car_engine_add(const car_program *program, const car_op *op, int slot, float *sum, const float *own, bool first) {
    int64_t count = car_engine_count(program, op->params[slot]);
    if (!first) {
        car_engine_add_range(program, op, slot, 0, count, sum, own);
    } else if (car_engine_is_statistic(program, op->params[slot])) {
        car_vector_select()->blend(sum, own, 0, (float)op->config.batchnorm.momentum, count);
    }
}

void car_engine_add_range(const car_program *program, const car_op *op, int slot, int64_t first_element, int64_t count,
                          float *sum, const float *own) {
    sum += first_element;
    own += first_element;
    if (car_engine_is_statistic(program, op->params[slot])) {
        float momentum = (float)op->config.batchnorm.momentum;
        car_vector_select()->blend(sum, own, 1 - momentum, momentum, count);
    } else {
        car_vector_select()->accumulate(sum, own, count);
    }
}

void car_engine_add_any_order(const car_program *program, const car_op *op, int slot, float *sum, const float *own,
                              bool first, int worker, int workers) {
    int64_t count = car_engine_count(program, op->params[slot]);
    if (car_engine_is_statistic(program, op->params[slot])) {
        double momentum = op->config.batchnorm.momentum;
        double weight = momentum * pow(1 - momentum, workers - 1 - worker);
        car_vector_select()->blend(sum, own, first ? 0 : 1, (float)weight, count);
    } else if (!first) {
        car_vector_select()->accumulate(sum, own, count);
    }
}

car_status car_engine_renew(const car_program *program, const car_op *op, int slot, int64_t first, int64_t count,
                            const car_renewal *renewal, const float *from, float *to, const float *sum) {
    int param = op->params[slot];
    car_status status = CAR_OK;
    if (car_optimizer_is_frozen(renewal->optimizer, param)) {
        memmove(to + first, from + first, (size_t)count * sizeof *to);
        return CAR_OK;
    }
    car_optimizer_begin_average(renewal->optimizer, param, first, count, renewal->update, from);
    if (car_engine_is_statistic(program, param)) {
        float keep = (float)pow(1.0 - op->config.batchnorm.momentum, renewal->workers);
        memmove(to + first, from + first, (size_t)count * sizeof *to);
        car_vector_select()->blend(to + first, sum + first, keep, 1.0f, count);
    } else {
        status = car_optimizer_update_range(renewal->optimizer, param, first, count, renewal->update, renewal->lr,
                                            renewal->scale / renewal->workers, from, to, sum);
    }
    car_optimizer_add_to_average(renewal->optimizer, param, first, count, to);
    return status;
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
