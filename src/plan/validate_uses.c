/* The validator: last uses. Executors drop weights, sums and tapes when the table says that a use is the last on its
 * rank. This collects these uses as executors see them. The other checks replay the consequences: what was dropped
 * must not be used again, and what is not used again must have been dropped. */
#include "plan/validate_internal.h"

car_status car_validate_usage(car_validation *v, int rank, const car_usage **out) {
    car_status status = CAR_OK;
    if (!v->usages[rank]) {
        CAR_TRY(car_usage_create(v->plan, rank, &v->usages[rank]));
        car_usage_set_steps(v->usages[rank], v->steps);
    }
    *out = v->usages[rank];
done:
    return status;
}

car_status car_validate_list_uses(car_validation *v, int rank, int number, const car_task *task, car_use_list *uses) {
    const car_usage *usage = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_validate_usage(v, rank, &usage));
    CAR_TRY(car_usage_list(usage, task, uses));
    if (v->source && v->source->change_uses) {
        v->source->change_uses(v->source->user, rank, number, task, uses);
    }
done:
    return status;
}

static bool is_part_of_sum(car_resource_kind kind) {
    return kind == CAR_RESOURCE_SUM || kind == CAR_RESOURCE_OWN;
}

bool car_validate_ends(const car_validation *v, int index, car_resource_kind kind, int bundle, int64_t id) {
    for (int e = v->ends_of[index]; e != CAR_NONE; e = v->ends[e].next) {
        const car_validate_end *end = &v->ends[e];
        if (end->kind == kind && end->bundle == bundle && end->id == id) {
            return true;
        }
    }
    return false;
}

/* Both parts of a sum must end together. */
static car_status check_parts(const car_validation *v, int index, const car_use_list *uses, const car_use *use) {
    for (int u = 0; u < uses->count; u++) {
        const car_use *other = &uses->uses[u];
        bool same = is_part_of_sum(car_use_kind(other)) && other->bundle == use->bundle && other->id == use->id &&
                    other->part == 0;
        if (same && other->last != use->last) {
            return car_validate_fail(v, index, "it frees one part of the sum of bundle %d and keeps the other",
                                     use->bundle);
        }
    }
    return CAR_OK;
}

/* Weights end only where they move. Under dp the owner's never end. */
static car_status check_weights(const car_validation *v, int index, const car_use *use) {
    bool moves = v->config.placement == CAR_PLACEMENT_ZERO;
    if (!moves ||
        (v->spread && v->device_of[index] == car_validate_owner(v, v->partition->bundles[use->bundle].home))) {
        return car_validate_fail(v, index, "it frees weights that must be kept");
    }
    return CAR_OK;
}

static car_status note_end(car_validation *v, int index, const car_use_list *uses, const car_use *use) {
    car_resource_kind kind = car_use_kind(use);
    car_status status = CAR_OK;
    if (use->part > 0) { /* a worker's own sum, which is not the one over all */
        CAR_TRY(v->tasks[index].kind == CAR_TASK_BACKWARD
                    ? CAR_OK
                    : car_validate_fail(v, index, "it frees a resource that it cannot free"));
    } else if (is_part_of_sum(kind)) {
        CAR_TRY(check_parts(v, index, uses, use));
        kind = CAR_RESOURCE_SUM;
    } else if (kind == CAR_RESOURCE_WEIGHTS) {
        CAR_TRY(check_weights(v, index, use));
    } else if (kind != CAR_RESOURCE_TAPE) {
        CAR_TRY(car_validate_fail(v, index, "it frees a resource that it cannot free"));
    }
    CAR_TRY(car_context_grow(v->context, &v->ends, &v->end_capacity, v->end_count + 1, sizeof *v->ends));
    v->ends[v->end_count] = (car_validate_end){kind, use->bundle, v->ends_of[index], use->id};
    v->ends_of[index] = v->end_count++;
done:
    return status;
}

car_status car_validate_uses(car_validation *v) {
    car_use_list uses = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(v->context, (size_t)v->ranks, sizeof *v->usages, &v->usages));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->count, sizeof *v->ends_of, &v->ends_of));
    for (int n = 0; n < v->count; n++) {
        v->ends_of[n] = CAR_NONE;
    }
    for (int rank = 0; rank < v->ranks; rank++) {
        int first = v->rank_first[rank];
        for (int place = first; place < v->rank_first[rank + 1]; place++) {
            int index = v->sequence[place];
            CAR_TRY(car_validate_list_uses(v, rank, place - first, &v->tasks[index], &uses));
            for (int u = 0; u < uses.count; u++) {
                CAR_TRY(uses.uses[u].last ? note_end(v, index, &uses, &uses.uses[u]) : CAR_OK);
            }
        }
    }
done:
    car_use_list_release(v->plan, &uses);
    return status;
}

void car_validate_release_uses(car_validation *v) {
    for (int rank = 0; v->usages && rank < v->ranks; rank++) {
        car_usage_destroy(v->usages[rank]);
    }
    car_context_release(v->context, v->usages, (size_t)v->ranks, sizeof *v->usages);
    car_context_release(v->context, v->ends_of, (size_t)v->count, sizeof *v->ends_of);
    car_context_release(v->context, v->ends, (size_t)v->end_capacity, sizeof *v->ends);
}
