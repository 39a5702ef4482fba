/* The table of placements by name, and the properties of a plan that depend on its placement. */
#include "plan/placement.h"

#include "plan/names.h"
#include "plan/script.h"
#include "plan/usage.h"

static const car_placement_class *const classes[CAR_PLACEMENTS] = {
#define CLASS(code, name) [code] = &car_placement_##name,
    CAR_PLACEMENT_LIST(CLASS)
#undef CLASS
};

const car_placement_class *car_placement_class_of(car_placement placement) {
    return classes[placement];
}

const car_placement_info *car_placement_info_of(car_placement placement) {
    return &classes[placement]->info;
}

const char *car_placement_text(car_placement placement) {
    return (unsigned)placement < CAR_PLACEMENTS ? classes[placement]->info.name : "unknown placement";
}

static const char *name_at(int n) {
    return classes[n]->info.name;
}

car_status car_placement_find(car_context *context, const char *name, car_placement *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, out);
    int found = 0;
    car_status status = car_names_find(context, "placement", name_at, CAR_PLACEMENTS, name, &found);
    if (status == CAR_OK) {
        *out = (car_placement)found;
    }
    return status;
}

bool car_placement_is_known(const char *name, car_placement *out) {
    int found = car_names_index(name_at, CAR_PLACEMENTS, name);
    *out = found == CAR_NONE ? *out : (car_placement)found;
    return found != CAR_NONE;
}

/* ---- properties of a plan ----------------------------------------------------------------------- */

int car_plan_pattern_steps(const car_plan *plan, int rank) {
    if (plan->script) {
        return (int)(plan->script->steps + plan->script->repeated);
    }
    return plan->placement->pattern_steps ? plan->placement->pattern_steps(plan, rank) : 1;
}

int car_plan_rank_like(const car_plan *plan, int rank) {
    return plan->placement->like && !plan->script ? plan->placement->like(plan, rank) : rank;
}

/* Sums that are cut into pieces take longer. A piece's hop is meant to take a quarter of the 2k slots between two
 * workers, so each piece is allowed k/2 slots. An eighth of a period is the limit, to save memory. */
int64_t car_plan_slots_ahead(const car_plan *plan, const car_task *task) {
    int64_t k = plan->per_worker, most = plan->period / 8;
    int64_t ahead = plan->placement->slots_ahead ? plan->placement->slots_ahead(plan, task) : 2 * k;
    bool sum = task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
    if (!sum || plan->most_pieces == 1 || car_plan_pieces(plan, task->bundle) == 1) {
        return ahead;
    }
    int64_t longer = ahead + (plan->most_pieces * k + 1) / 2;
    longer = longer < most ? longer : most;
    return longer > ahead ? longer : ahead;
}

bool car_plan_needs_beats(const car_plan *plan) {
    return car_plan_keeps_no_distance(plan) && car_plan_is_spaced(plan) && plan->devices > 1;
}

bool car_plan_orders_sums(const car_plan *plan) {
    return plan->placement->sums_queue_up || plan->most_pieces > 1;
}

int car_plan_collective_group(const car_plan *plan, int device) {
    bool groups = plan->placement->group_of_device && car_plan_reduces(plan);
    return groups ? plan->placement->group_of_device(plan, device) : 0;
}

int car_plan_collective_member(const car_plan *plan, int device) {
    bool groups = plan->placement->group_of_device && car_plan_reduces(plan);
    return groups ? device - car_plan_group_first(plan, plan->placement->group_of_device(plan, device)) : device;
}
