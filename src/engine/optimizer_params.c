/* Settings of single parameters: which are frozen, their learning rates, and their moving average. */
#include <fnmatch.h>
#include <string.h>

#include "base/base.h"
#include "engine/optimizer_internal.h"
#include "kernels/vector/vector.h"

/* ---- rules ----------------------------------------------------------------------------------- */

static bool matches(const car_param_rule *rule, const char *name) {
    return fnmatch(rule->pattern, name, 0) == 0;
}

static bool is_named(const car_optimizer_config *config, const car_graph *graph, int param) {
    for (int r = 0; r < config->rule_count; r++) {
        if (config->rules[r].frozen && matches(&config->rules[r], car_graph_param(graph, param)->name)) {
            return true;
        }
    }
    return false;
}

/* True if all trained parameters of the normalisation that a statistic belongs to are frozen. */
static bool is_norm_frozen(const car_optimizer_config *config, const car_graph *graph, int statistic) {
    const car_op *op = car_optimizer_user_of(graph, statistic);
    bool frozen = op != NULL;
    for (int p = 0; frozen && p < op->param_count; p++) {
        bool trained = car_graph_param(graph, op->params[p])->role != CAR_PARAM_STATISTIC;
        frozen = !trained || is_named(config, graph, op->params[p]);
    }
    return frozen;
}

bool car_optimizer_freezes(const car_optimizer_config *config, const car_graph *graph, int param) {
    if (config->rule_count == 0) {
        return false;
    }
    bool statistic = car_graph_param(graph, param)->role == CAR_PARAM_STATISTIC;
    return is_named(config, graph, param) || (statistic && is_norm_frozen(config, graph, param));
}

double car_optimizer_lr_scale(const car_optimizer_config *config, const car_graph *graph, int param) {
    double scale = 1;
    for (int r = 0; r < config->rule_count; r++) {
        const car_param_rule *rule = &config->rules[r];
        scale = !rule->frozen && matches(rule, car_graph_param(graph, param)->name) ? rule->lr_scale : scale;
    }
    return scale;
}

static car_status check_pattern(const car_graph *graph, const car_param_rule *rule) {
    int params = car_graph_param_count(graph);
    for (int p = 0; p < params; p++) {
        if (matches(rule, car_graph_param(graph, p)->name)) {
            return CAR_OK;
        }
    }
    return car_context_fail(
        car_graph_context(graph), CAR_ERROR_ARGUMENT,
        "no parameter matches '%s'; the model's parameters go from %s to %s, and * matches any part of a name",
        rule->pattern, car_graph_param(graph, 0)->name, car_graph_param(graph, params - 1)->name);
}

car_status car_optimizer_check(const car_optimizer_config *config, const car_graph *graph) {
    CAR_REQUIRE(NULL, graph);
    CAR_REQUIRE(car_graph_context(graph), config);
    bool trains = false;
    car_status status = CAR_OK;
    if (config->own) {
        CAR_TRY(car_optimizer_check_own(car_graph_context(graph), config->own, graph));
    }
    for (int r = 0; r < config->rule_count; r++) {
        CAR_TRY(check_pattern(graph, &config->rules[r]));
    }
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        bool statistic = car_graph_param(graph, p)->role == CAR_PARAM_STATISTIC;
        trains = trains || (!statistic && !car_optimizer_freezes(config, graph, p));
    }
    if (!trains) {
        status = car_context_fail(car_graph_context(graph), CAR_ERROR_ARGUMENT,
                                  "every parameter is frozen: there is nothing to train");
    }
done:
    return status;
}

const car_op *car_optimizer_user_of(const car_graph *graph, int param) {
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        const car_op *op = car_graph_op(graph, l);
        for (int p = 0; p < op->param_count; p++) {
            if (op->params[p] == param) {
                return op;
            }
        }
    }
    return NULL;
}

/* ---- the rules of an optimizer ---------------------------------------------------------------- */

car_status car_optimizer_resolve_rules(car_optimizer *optimizer) {
    const car_graph *graph = car_program_graph(optimizer->program);
    int params = car_graph_param_count(graph);
    car_status status = CAR_OK;
    if (optimizer->config.rule_count == 0) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(car_program_context(optimizer->program), (size_t)params, sizeof *optimizer->lr_scale,
                                 &optimizer->lr_scale));
    for (int p = 0; p < params; p++) {
        bool frozen = car_optimizer_freezes(&optimizer->config, graph, p);
        optimizer->lr_scale[p] = frozen ? car_optimizer_no_rate : car_optimizer_lr_scale(&optimizer->config, graph, p);
    }
done:
    return status;
}

bool car_optimizer_is_frozen(const car_optimizer *optimizer, int param) {
    return optimizer->lr_scale && optimizer->lr_scale[param] == car_optimizer_no_rate;
}

/* ---- the moving average ---------------------------------------------------------------------- */

void car_optimizer_begin_average(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t update,
                                 const float *from) {
    float *average = car_optimizer_state(optimizer, CAR_OPTIMIZER_AVERAGE, param);
    if (average && update == 0 && !optimizer->averaged) {
        memcpy(average + first, from + first, (size_t)count * sizeof *average);
    }
}

void car_optimizer_add_to_average(car_optimizer *optimizer, int param, int64_t first, int64_t count, const float *to) {
    float *average = car_optimizer_state(optimizer, CAR_OPTIMIZER_AVERAGE, param);
    double decay = optimizer->config.average;
    if (average) {
        car_vector_select()->blend(average + first, to + first, (float)decay, (float)(1 - decay), count);
    }
}
