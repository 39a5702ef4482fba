/* Creates and releases the simulated machine. See machine.h. */
#include <float.h>
#include <string.h>

#include "plan/machine.h"

/* Under dp the ranks do the same at the same time, connected only by collectives. So one rank can stand for all, if
 * there is an executor for each. */
static bool are_alike(const car_plan *plan, const car_machine_config *config) {
    return car_plan_reduces(plan) && !plan->placement->info.by_stage && config->executors >= plan->devices;
}

static void add_distance(car_machine *m, int64_t ahead) {
    bool known = false;
    for (int d = 0; d < m->distance_count; d++) {
        known = known || m->distances[d] == ahead;
    }
    if (!known && m->distance_count < CAR_MACHINE_AHEAD) {
        m->distances[m->distance_count++] = ahead;
    }
    m->reach = ahead > m->reach ? ahead : m->reach;
}

/* Collects the distances of all kinds of receives. Those of sums depend on whether their bundle is cut. */
static void set_distances(car_machine *m) {
    car_task probe = {.kind = CAR_TASK_BROADCAST};
    m->broadcast_ahead = m->reach = car_plan_slots_ahead(m->plan, &probe);
    probe.kind = CAR_TASK_RECEIVE;
    for (int cargo = CAR_CARGO_ACTIVATION; cargo < CAR_CARGOS; cargo++) {
        probe.cargo = (car_cargo)cargo;
        for (probe.bundle = 0; probe.bundle < m->partition->bundle_count; probe.bundle++) {
            add_distance(m, car_plan_slots_ahead(m->plan, &probe));
        }
    }
    /* Executors list the window that they work on and the next: what nothing blocks leaves long before its slot. */
    m->reach = m->config.cluster && m->plan->period > m->reach ? m->plan->period : m->reach;
}

static void set_sizes(car_machine *m) {
    const car_plan *plan = m->plan;
    int ranks = car_plan_ranks(plan);
    m->config.executors = m->config.executors > 0 ? m->config.executors : ranks;
    m->free = m->config.executors;
    m->batches = plan->batches;
    m->stages = plan->stages;
    m->ranks = are_alike(plan, &m->config) ? 1 : ranks;
    m->copies = ranks / m->ranks;
    m->one_process = plan->placement->info.one_process;
    m->in_order = plan->placement->info.by_stage;
    m->orders_sums = m->config.cluster && car_plan_orders_sums(plan);
    m->end = car_plan_windows(plan, m->config.steps) * plan->period;
    m->moment = 1e-11 * m->config.compute;
    m->spare = CAR_NONE;
    m->group_count = 1;
    if (car_plan_reduces(plan)) {
        m->group_count = car_plan_collective_group(plan, plan->devices - 1) + 1;
    }
    for (m->leaves = 1; m->leaves < m->batches; m->leaves *= 2) {
    }
    set_distances(m);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

typedef car_status (*array_function)(car_context *context, void *array_pointer, size_t count, size_t size);

static car_status allocate_array(car_context *context, void *array_pointer, size_t count, size_t size) {
    return car_context_allocate(context, count, size, array_pointer);
}

static car_status release_array(car_context *context, void *array_pointer, size_t count, size_t size) {
    void *block = NULL;
    memcpy(&block, array_pointer, sizeof block);
    car_context_release(context, block, count, size);
    return CAR_OK;
}

/* All arrays in one list, so that exactly what was allocated is released. */
static car_status for_all_arrays(car_machine *m, array_function visit) {
    size_t batches = (size_t)m->batches, ranks = (size_t)m->ranks, steps = (size_t)m->config.steps;
    struct {
        void *array;
        size_t count, size;
    } arrays[] = {
        {&m->rank, ranks, sizeof *m->rank},
        {&m->queue, ranks, sizeof *m->queue},
        {&m->runners, batches, sizeof *m->runners},
        {&m->ready.entries, batches, sizeof *m->ready.entries},
        {&m->unlisted.entries, batches, sizeof *m->unlisted.entries},
        {&m->slowest, 2 * (size_t)m->leaves, sizeof *m->slowest},
        {&m->closes, (size_t)m->partition->bundle_count, sizeof *m->closes},
        {&m->groups, (size_t)m->group_count, sizeof *m->groups},
        {&m->pools, ranks + 1, sizeof *m->pools},
        {&m->changed, ranks + 1, sizeof *m->changed},
        {&m->unfinished, steps, sizeof *m->unfinished},
        {&m->finished, steps, sizeof *m->finished},
    };
    car_status status = CAR_OK;
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++) {
        CAR_TRY(visit(m->context, arrays[a].array, arrays[a].count, arrays[a].size));
    }
done:
    return status;
}

/* ---- creating and releasing ---------------------------------------------------------------------- */

static car_status create_rank(car_machine *m, int at) {
    car_machine_rank *rank = &m->rank[at];
    const car_machine_line none = {CAR_NONE, CAR_NONE};
    int like = car_plan_rank_like(m->plan, at);
    car_status status = CAR_OK;
    for (int d = 0; d < CAR_MACHINE_AHEAD; d++) {
        rank->arrivals[d] = none;
    }
    rank->calls[0] = rank->calls[1] = rank->joined[0] = rank->joined[1] = none;
    rank->last_compute = rank->waiting = CAR_NONE;
    CAR_TRY(car_usage_create_like(m->plan, at, like < at ? m->rank[like].usage : NULL, &rank->usage));
    car_usage_set_steps(rank->usage, m->config.steps);
    CAR_TRY(car_edges_create(m->context, &rank->edges));
done:
    return status;
}

/* Assigns runners to ranks where each runner is on a single simulated rank. */
static void place_runners(car_machine *m) {
    int64_t simulated = 0;
    for (int runner = 0; runner < m->batches; runner++) {
        int rank = car_plan_rank_of(m->plan, car_plan_device(m->plan, 0, runner, 0));
        bool here = rank < m->ranks;
        m->runners[runner].rank = here && !m->in_order ? rank : CAR_NONE;
        simulated += here || m->in_order;
    }
    for (int64_t step = 0; step < m->config.steps; step++) {
        m->unfinished[step] = simulated;
    }
}

car_status car_machine_create(const car_plan *plan, const car_machine_config *config, car_machine *out) {
    car_machine *m = out;
    car_status status = CAR_OK;
    *m = (car_machine){.plan = plan, .partition = plan->partition, .context = plan->context, .config = *config};
    m->agenda.context = m->context;
    set_sizes(m);
    CAR_TRY(for_all_arrays(m, allocate_array));
    for (int rank = 0; rank < m->ranks; rank++) {
        CAR_TRY(create_rank(m, rank));
    }
    place_runners(m);
    for (int node = 0; node < 2 * m->leaves; node++) {
        m->slowest[node] = DBL_MAX; /* leaves beyond the runners hold nobody back */
    }
    CAR_TRY(car_machine_create_groups(m));
    CAR_TRY(car_network_create(m->context, m->config.cluster, m->ranks, m->group_count + m->batches, &m->agenda,
                               &m->network));
done:
    return status;
}

void car_machine_release(car_machine *m) {
    for (int r = m->rank ? m->ranks - 1 : -1; r >= 0; r--) {
        car_machine_rank *rank = &m->rank[r];
        car_machine_release_tasks(m, rank);
        car_context_release(m->context, rank->held, (size_t)rank->held_capacity, sizeof *rank->held);
        car_context_release(m->context, rank->ways, (size_t)rank->way_capacity, sizeof *rank->ways);
        car_edges_destroy(rank->edges);
        car_usage_destroy(rank->usage);
    }
    if (m->network.context) {
        car_network_release(&m->network);
    }
    car_machine_release_groups(m);
    car_context_release(m->context, m->due, (size_t)m->due_capacity, sizeof *m->due);
    car_context_release(m->context, m->dependents, (size_t)m->dependent_capacity, sizeof *m->dependents);
    car_use_list_release(m->plan, &m->uses);
    car_task_list_release(m->plan, &m->list);
    for_all_arrays(m, release_array);
    car_agenda_release(&m->agenda);
}
