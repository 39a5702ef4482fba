/* Cutting a graph to a limit of memory: the least recomputation that fits. See carousel/predict.h. */
#include <limits.h>

#include "base/base.h"
#include "carousel/predict.h"

typedef struct fit {
    const car_graph *graph;
    const car_plan_config *plan;
    const car_optimizer_config *optimizer;
    car_partition_config *cut;
    car_partition *partition; /* of the last try */
    double bytes;             /* that it needs */
} fit;

/* Cuts with the first n tensors of the list made again, and predicts what that needs. */
static car_status try_out(fit *f, int n, car_prediction *predicted) {
    car_plan *plan = NULL;
    car_status status = CAR_OK;
    car_partition_destroy(f->partition);
    f->partition = NULL;
    f->cut->recompute = (car_recompute_config){.how = n > 0 ? CAR_RECOMPUTE_FIRST : CAR_RECOMPUTE_OFF, .tensors = n};
    CAR_TRY(car_partition_create(f->graph, f->cut, &f->partition));
    CAR_TRY(car_plan_create(car_graph_context(f->graph), f->partition, f->plan, &plan));
    CAR_TRY(car_plan_predict_optimizer(plan, f->optimizer, predicted));
    f->bytes = (double)car_prediction_memory(predicted);
done:
    car_plan_destroy(plan);
    return status;
}

static car_status refuse(const fit *f, double limit, const car_prediction *least) {
    return car_context_fail(
        car_graph_context(f->graph), CAR_ERROR_MEMORY,
        "%s: the run needs at least %s, %s more (activations %s with as much recomputation as possible, weights %s, "
        "gradients %s, optimizer %s); a smaller batch or fewer workers need less",
        car_size_shown(limit).text, car_size_shown(f->bytes).text, car_size_shown(f->bytes - limit).text,
        car_size_shown((double)least->timed.device_peak).text, car_size_shown((double)least->weights_device).text,
        car_size_shown((double)least->gradients_device).text, car_size_shown((double)least->optimizer_device).text);
}

/* How many tensors are made again: a number that fits while one less does not. */
static car_status search(fit *f, double limit, car_prediction *predicted) {
    int below = 0, fits = 0;
    car_status status = CAR_OK;
    CAR_TRY(try_out(f, 0, predicted));
    if (f->bytes > limit) {
        CAR_TRY(try_out(f, INT_MAX, predicted));
        fits = f->partition->recomputation.tensors;
        if (f->bytes > limit) {
            status = refuse(f, limit, predicted);
            goto done;
        }
    }
    while (fits - below > 1) {
        int middle = below + (fits - below) / 2;
        CAR_TRY(try_out(f, middle, predicted));
        *(f->bytes <= limit ? &fits : &below) = middle;
    }
    CAR_TRY(try_out(f, fits, predicted));
done:
    return status;
}

car_status car_plan_cut_within(const car_graph *graph, const car_plan_config *plan,
                               const car_optimizer_config *optimizer, double limit, car_partition_config *cut,
                               car_prediction *predicted, car_partition **out) {
    CAR_REQUIRE(NULL, graph);
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(NULL, cut);
    CAR_REQUIRE(NULL, predicted);
    CAR_REQUIRE(NULL, out);
    fit f = {.graph = graph, .plan = plan, .optimizer = optimizer, .cut = cut};
    *out = NULL;
    *predicted = (car_prediction){0};
    if (cut->recompute.how != CAR_RECOMPUTE_OFF) {
        return car_context_fail(
            car_graph_context(graph), CAR_ERROR_ARGUMENT,
            "%s: with a memory limit the amount of recomputation is chosen automatically; leave out recompute",
            car_size_shown(limit).text);
    }
    if (plan->rule == CAR_RULE_CUSTOM) {
        return car_context_fail(car_graph_context(graph), CAR_ERROR_ARGUMENT,
                                "%s: a memory limit needs predictions, which custom plans do not have; use recompute",
                                car_size_shown(limit).text);
    }
    car_status status = search(&f, limit, predicted);
    if (status == CAR_OK) {
        *out = f.partition;
        f.partition = NULL;
    }
    car_partition_destroy(f.partition);
    return status;
}
