/* Sets up the simulator's machine: the tasks of a worker's step, what makes a version, the order on devices. */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "plan/simulate_internal.h"

enum {
    DEFAULT_STEPS = 8,
    LARGE_TASKS = 100000 /* a step with more is simulated as few times as possible */
};

static void fill_positions(car_machine *m) {
    const car_curve *curve = &m->partition->curve;
    int forward = 0;
    for (int j = 0; j < m->stages; j++) {
        const car_stage *stage = &m->partition->stages[j];
        m->position_of[j] = CAR_NONE;
        if (stage->first == stage->end) {
            continue;
        }
        m->position_of[j] = forward;
        m->positions[forward] = (car_position){.stage = j, .first = stage->first, .end = stage->end};
        m->positions[m->count - 1 - forward] = (car_position){
            .stage = j, .backward = true, .first = curve->events - stage->end, .end = curve->events - stage->first};
        forward++;
    }
    for (int p = 0; p < m->count; p++) {
        car_position *here = &m->positions[p];
        here->before = curve->begin[here->first];
        if (p + 1 < m->count) {
            size_t last = curve->during[here->end - 1], next = curve->during[here->end];
            here->after = last < next ? last : next;
        }
    }
}

static void fill_homes(car_machine *m) {
    for (int b = 0; b < m->partition->bundle_count; b++) {
        const car_bundle *bundle = &m->partition->bundles[b];
        m->needed[bundle->home] += m->position_of[bundle->stage] == CAR_NONE ? 0 : m->workers;
    }
    for (int j = 0; j < m->stages; j++) {
        m->missing[2 * j] = m->missing[2 * j + 1] = m->needed[j];
    }
}

/* ---- the order on devices -------------------------------------------------------------------- */

static int compare_appointments(const void *left, const void *right) {
    const car_appointment *a = left, *b = right;
    return (a->slot > b->slot) - (a->slot < b->slot);
}

/* Adds every task of the run to its device's; the first time only to their number. */
static void visit_tasks(car_machine *m, bool counting) {
    for (int64_t task = 0; task < m->steps * m->workers * m->count; task++) {
        int64_t n = task / m->count, step = n / m->workers;
        const car_position *p = &m->positions[task % m->count];
        int worker = (int)(n % m->workers), device = car_plan_device(m->plan, step, worker, p->stage);
        int64_t at = m->end_appointment[device]++;
        if (!counting) {
            int64_t slot = p->backward ? car_plan_backward_slot(m->plan, step, worker, p->stage)
                                       : car_plan_forward_slot(m->plan, step, worker, p->stage);
            m->appointments[at] = (car_appointment){slot, task};
        }
    }
}

static void fill_appointments(car_machine *m) {
    int64_t before = 0;
    visit_tasks(m, true);
    for (int d = 0; d < m->devices; d++) {
        int64_t count = m->end_appointment[d];
        m->next_appointment[d] = m->end_appointment[d] = before;
        before += count;
    }
    visit_tasks(m, false);
    for (int d = 0; d < m->devices; d++) {
        int64_t first = m->next_appointment[d];
        qsort(m->appointments + first, (size_t)(m->end_appointment[d] - first), sizeof *m->appointments,
              compare_appointments);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

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

/* All arrays in one list, so that what is released is what was allocated. */
static car_status for_all_arrays(car_machine *m, array_function visit) {
    size_t workers = (size_t)m->workers, stages = (size_t)m->stages, devices = (size_t)m->devices;
    size_t ordered = m->in_order ? devices : 0;
    size_t tasks = m->in_order ? (size_t)(m->steps * m->workers * m->count) : 0;
    struct {
        void *array;
        size_t count, size;
    } arrays[] = {
        {&m->positions, (size_t)m->count, sizeof *m->positions},
        {&m->position_of, stages, sizeof *m->position_of},
        {&m->runners, workers, sizeof *m->runners},
        {&m->timers.entries, workers, sizeof *m->timers.entries},
        {&m->ready.entries, workers, sizeof *m->ready.entries},
        {&m->slowest, 2 * (size_t)m->leaves, sizeof *m->slowest},
        {&m->queues, stages + 1 + devices, sizeof *m->queues},
        {&m->needed, stages, sizeof *m->needed},
        {&m->missing, 2 * stages, sizeof *m->missing},
        {&m->newest, stages, sizeof *m->newest},
        {&m->pools, devices + 1, sizeof *m->pools},
        {&m->changed, devices + 1, sizeof *m->changed},
        {&m->busy, devices, sizeof *m->busy},
        {&m->appointments, tasks, sizeof *m->appointments},
        {&m->next_appointment, ordered, sizeof *m->next_appointment},
        {&m->end_appointment, ordered, sizeof *m->end_appointment},
    };
    car_status status = CAR_OK;
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++) {
        CAR_TRY(visit(m->context, arrays[a].array, arrays[a].count, arrays[a].size));
    }
done:
    return status;
}

static void set_sizes(car_machine *m, const car_simulation_config *config) {
    const car_plan_config *plan = car_plan_config_of(m->plan);
    m->workers = plan->workers;
    m->stages = m->partition->stage_count;
    m->devices = car_plan_devices(m->plan);
    for (int j = 0; j < m->stages; j++) {
        m->count += m->partition->stages[j].first < m->partition->stages[j].end ? 2 : 0;
    }
    m->steps = config->steps > 0 ? config->steps : DEFAULT_STEPS;
    if (m->steps < CAR_MACHINE_LEAST || (config->steps <= 0 && (int64_t)m->workers * m->count > LARGE_TASKS)) {
        m->steps = CAR_MACHINE_LEAST;
    }
    for (m->leaves = 1; m->leaves < m->workers; m->leaves *= 2) {
    }
}

static void set_rules(car_machine *m, const car_simulation_config *config) {
    const car_plan_config *plan = car_plan_config_of(m->plan);
    m->cyclic = car_plan_is_cyclic(m->plan);
    m->shared = plan->placement == CAR_PLACEMENT_SHARED;
    m->zero = m->cyclic && plan->placement == CAR_PLACEMENT_ZERO;
    m->in_order = plan->placement == CAR_PLACEMENT_PIPELINE || plan->placement == CAR_PLACEMENT_GRID;
    m->paced = config->paced && m->cyclic && !m->zero && !m->in_order;
    m->window = config->window > 0 ? config->window : m->partition->longest_task;
    m->jitter = config->jitter;
    m->seed = config->seed;
    m->executors = config->executors > 0 ? config->executors : m->shared ? plan->threads : m->devices;
    m->free = m->executors;
    m->steady_begin = m->steady_end = -1;
}

car_status car_machine_create(const car_plan *plan, const car_simulation_config *config, car_machine *out) {
    car_machine *m = out;
    car_status status = CAR_OK;
    *m = (car_machine){.plan = plan, .partition = car_plan_partition(plan), .context = car_plan_context(plan)};
    set_sizes(m, config);
    set_rules(m, config);
    CAR_TRY(for_all_arrays(m, allocate_array));
    fill_positions(m);
    fill_homes(m);
    for (int q = 0; q < m->stages + 1 + m->devices; q++) {
        m->queues[q] = CAR_NONE;
    }
    for (int i = 0; i < m->workers; i++) {
        m->runners[i].queue = CAR_NONE;
    }
    for (int node = 0; node < 2 * m->leaves; node++) {
        m->slowest[node] = DBL_MAX; /* leaves beyond the workers hold nobody up */
    }
    if (m->in_order) {
        fill_appointments(m);
    }
done:
    return status;
}

void car_machine_release(car_machine *machine) {
    for_all_arrays(machine, release_array);
}
