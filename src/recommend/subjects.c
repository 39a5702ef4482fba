/* The models and partitions of a search, cached: one graph for each micro-batch size and precision, one partition
 * for each of these and number of stages. */
#include <string.h>

#include "carousel/correction.h"
#include "recommend/search.h"

car_status car_search_grow(car_context *context, void *array_pointer, int count, int *capacity, size_t size) {
    car_status status = CAR_OK;
    void *old = NULL, *grown = NULL;
    if (count < *capacity) {
        return CAR_OK;
    }
    size_t room = *capacity > 0 ? 2 * (size_t)*capacity : 16;
    CAR_TRY(car_context_allocate(context, room, size, &grown));
    memcpy(&old, array_pointer, sizeof old);
    if (old) {
        memcpy(grown, old, (size_t)count * size);
    }
    car_context_release(context, old, (size_t)*capacity, size);
    memcpy(array_pointer, &grown, sizeof grown);
    *capacity = (int)room;
done:
    return status;
}

static car_status make_subject(car_search *search, const car_choice *choice, car_subject *out) {
    const car_recommend_config *config = search->config;
    car_model_config shape = config->shape;
    double cost = 0;
    car_status status = CAR_OK;
    *out = (car_subject){.batch = choice->batch, .precision = choice->precision};
    shape.batch = choice->batch;
    shape.precision = choice->precision;
    CAR_TRY(car_model_build(search->context, config->model, &shape, &out->graph));
    CAR_TRY(car_costs_from_flops(out->graph, &out->costs));
    if (config->costs && config->costs->count != out->costs.count) {
        CAR_TRY(car_context_fail(search->context, CAR_ERROR_ARGUMENT,
                                 "there are measured costs of %d operations, but %s has %d: measure it again",
                                 config->costs->count, config->model, out->costs.count));
    }
    for (int l = 0; l < out->costs.count; l++) {
        if (config->costs) {
            out->costs.forward[l] = config->costs->forward[l];
            out->costs.backward[l] = config->costs->backward[l];
        }
        cost += out->costs.forward[l] + out->costs.backward[l];
    }
    out->compute =
        config->costs || !config->cluster ? cost : cost / car_cluster_flops(config->cluster, choice->precision);
done:
    return status;
}

static void release_subject(car_subject *subject) {
    if (subject->graph) {
        car_costs_release(subject->graph, &subject->costs);
    }
    car_graph_destroy(subject->graph);
}

car_status car_search_find_subject(car_search *search, const car_choice *choice, const car_subject **out) {
    car_subject made = {0};
    car_status status = CAR_OK;
    for (int n = 0; n < search->subject_count; n++) {
        if (search->subjects[n].batch == choice->batch && search->subjects[n].precision == choice->precision) {
            *out = &search->subjects[n];
            return CAR_OK;
        }
    }
    CAR_TRY(make_subject(search, choice, &made));
    CAR_TRY(car_search_grow(search->context, &search->subjects, search->subject_count, &search->subject_capacity,
                            sizeof *search->subjects));
    search->subjects[search->subject_count] = made;
    *out = &search->subjects[search->subject_count++];
    made = (car_subject){0};
done:
    release_subject(&made);
    return status;
}

car_status car_search_find_partition(car_search *search, const car_choice *choice, const car_partition **out) {
    const car_subject *subject = NULL;
    car_partition *made = NULL;
    car_status status = CAR_OK;
    for (int n = 0; n < search->cutting_count; n++) {
        const car_cutting *cutting = &search->cuttings[n];
        if (cutting->batch == choice->batch && cutting->precision == choice->precision &&
            cutting->stages == choice->stages && cutting->recompute.how == choice->recompute.how &&
            cutting->recompute.share == choice->recompute.share) {
            *out = cutting->partition;
            return CAR_OK;
        }
    }
    *out = NULL;
    CAR_TRY(car_search_find_subject(search, choice, &subject));
    const car_partition_config cut = {
        .stages = choice->stages, .costs = &subject->costs, .recompute = choice->recompute};
    status = car_partition_create(subject->graph, &cut, &made);
    if (status == CAR_ERROR_ARGUMENT && choice->recompute.how == CAR_RECOMPUTE_SHARE &&
        !search->config->fixed.recompute) { /* these stages cannot hold so little; that result is cached, too */
        car_context_clear_error(search->context);
        status = CAR_OK;
    }
    CAR_TRY(status);
    CAR_TRY(car_search_grow(search->context, &search->cuttings, search->cutting_count, &search->cutting_capacity,
                            sizeof *search->cuttings));
    search->cuttings[search->cutting_count++] =
        (car_cutting){choice->batch, choice->stages, choice->precision, choice->recompute, made};
    *out = made;
    made = NULL;
done:
    car_partition_destroy(made);
    return status;
}

double car_search_compute(const car_subject *subject, const car_partition *partition) {
    return subject->compute * (1 + partition->recomputation.cost);
}

car_status car_search_plan(const car_search *search, const car_choice *choice, const car_subject *subject,
                           const car_partition *partition, car_plan **out) {
    car_plan_config config = choice->plan;
    const car_cluster *cluster = search->config->cluster;
    if (cluster && config.piece_bytes == 0) {
        config.piece_bytes = car_cluster_piece_bytes(cluster, config.workers, car_search_compute(subject, partition));
    }
    return car_plan_create(search->context, partition, &config, out);
}

car_optimizer_config car_search_optimizer(const car_search *search, const car_plan_config *plan) {
    car_optimizer_config optimizer = search->config->optimizer;
    if (search->config->correction_by_rule) {
        optimizer.correction = car_correction_choose(plan, &optimizer);
    }
    return optimizer;
}

void car_search_release_subjects(car_search *search) {
    for (int n = 0; n < search->cutting_count; n++) {
        car_partition_destroy(search->cuttings[n].partition);
    }
    for (int n = 0; n < search->subject_count; n++) {
        release_subject(&search->subjects[n]);
    }
    car_context_release(search->context, search->cuttings, (size_t)search->cutting_capacity, sizeof *search->cuttings);
    car_context_release(search->context, search->subjects, (size_t)search->subject_capacity, sizeof *search->subjects);
}
