/* The unfinished tasks of a rank, in the plan's order, and which tasks wait for them. Tasks are listed stretch by
 * stretch, no further ahead than needed. */
#include "plan/machine.h"

enum { FIRST_CAPACITY = 16 };

/* ---- lines ----------------------------------------------------------------------------------- */

void car_machine_append(car_machine_rank *rank, car_machine_line *line, int task) {
    car_machine_at(rank, task)->next = CAR_NONE;
    if (line->first == CAR_NONE) {
        line->first = task;
    } else {
        car_machine_at(rank, line->last)->next = task;
    }
    line->last = task;
}

int car_machine_take(car_machine_rank *rank, car_machine_line *line) {
    int task = line->first;
    line->first = car_machine_at(rank, task)->next;
    return task;
}

/* ---- listing --------------------------------------------------------------------------------- */

void car_machine_release_tasks(car_machine *m, car_machine_rank *rank) {
    car_context_release(m->context, rank->tasks, (size_t)rank->capacity, sizeof *rank->tasks);
    car_context_release(m->context, rank->waits, (size_t)rank->capacity, sizeof *rank->waits);
}

/* Makes room for `more` tasks between the first and the last. */
static car_status make_room(car_machine *m, car_machine_rank *rank, int more) {
    int capacity = rank->capacity ? rank->capacity : FIRST_CAPACITY;
    car_machine_task *tasks = NULL;
    car_machine_wait *waits = NULL;
    car_status status = CAR_OK;
    while (rank->end - rank->first + more > capacity) {
        capacity *= 2;
    }
    if (capacity == rank->capacity) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(m->context, (size_t)capacity, sizeof *tasks, &tasks));
    CAR_TRY(car_context_allocate(m->context, (size_t)capacity, sizeof *waits, &waits));
    for (int task = rank->first; task < rank->end; task++) {
        tasks[task & (capacity - 1)] = *car_machine_at(rank, task);
        waits[task & (capacity - 1)] = *car_machine_wait_of(rank, task);
    }
    car_machine_release_tasks(m, rank);
    rank->tasks = tasks;
    rank->waits = waits;
    rank->capacity = capacity;
    tasks = NULL;
done:
    car_context_release(m->context, tasks, (size_t)capacity, sizeof *tasks);
    return status;
}

/* Most tasks have one dependent, which is stored without a pool entry. */
static car_status push_to_pool(car_machine *m, car_machine_wait *before) {
    int place = m->spare;
    car_status status = CAR_OK;
    if (place == CAR_NONE) {
        CAR_TRY(car_context_grow(m->context, &m->dependents, &m->dependent_capacity, m->dependent_count + 1,
                                 sizeof *m->dependents));
        place = m->dependent_count++;
    } else {
        m->spare = m->dependents[place].next;
    }
    m->dependents[place] = (car_dependent){before->dependent, before->more};
    before->more = place;
done:
    return status;
}

static car_status wait_for(car_machine *m, car_machine_rank *rank, int earlier, int task) {
    car_machine_wait *before = car_machine_wait_of(rank, earlier);
    car_status status = CAR_OK;
    if (earlier < rank->first || before->over) {
        return CAR_OK;
    }
    if (before->dependent != CAR_NONE) {
        CAR_TRY(push_to_pool(m, before));
    }
    before->dependent = task;
    car_machine_wait_of(rank, task)->blockers++;
done:
    return status;
}

/* The index of a receive's distance in `distances`. */
static int distance_of(const car_machine *m, const car_task *task) {
    int64_t ahead = car_plan_slots_ahead(m->plan, task);
    int d = 0;
    while (m->distances[d] != ahead) {
        d++;
    }
    return d;
}

/* Queues receives and collectives, to be posted later. */
static void put_in_line(car_machine *m, car_machine_rank *rank, const car_task *task, int number) {
    if (task->kind == CAR_TASK_RECEIVE) {
        car_machine_append(rank, &rank->arrivals[distance_of(m, task)], number);
    } else if (task->kind == CAR_TASK_REDUCE || task->kind == CAR_TASK_BROADCAST) {
        car_machine_append(rank, &rank->calls[task->kind == CAR_TASK_BROADCAST], number);
    }
}

static car_status append(car_machine *m, int at, const car_task *task) {
    car_machine_rank *rank = &m->rank[at];
    int number = rank->end++, count = 0;
    const int64_t *before = NULL;
    car_status status = CAR_OK;
    *car_machine_at(rank, number) = (car_machine_task){.kind = (unsigned char)task->kind,
                                                       .cargo = (unsigned char)task->cargo,
                                                       .stage = task->stage,
                                                       .bundle = task->bundle,
                                                       .micro_batch = task->micro_batch,
                                                       .peer = task->peer,
                                                       .tag = task->tag,
                                                       .piece = task->piece,
                                                       .step = (int)task->step,
                                                       .slot = (int)task->slot,
                                                       .due = (int)task->due,
                                                       .next = CAR_NONE};
    *car_machine_wait_of(rank, number) =
        (car_machine_wait){.blockers = 1, .dependent = CAR_NONE, .more = CAR_NONE}; /* 1 while it is being listed */
    CAR_TRY(car_usage_list(rank->usage, task, &m->uses));
    CAR_TRY(car_edges_add(rank->edges, &m->uses, &before, &count));
    for (int b = 0; b < count; b++) {
        CAR_TRY(wait_for(m, rank, (int)before[b], number));
    }
    bool computes = car_task_computes(task);
    if (rank->last_compute != CAR_NONE &&
        ((m->in_order && computes) || car_usage_follows_computes(rank->usage, task))) {
        CAR_TRY(wait_for(m, rank, rank->last_compute, number));
    }
    if (computes) {
        rank->last_compute = number;
        rank->computes++;
        m->runners[task->micro_batch].listed++;
    }
    put_in_line(m, rank, task, number);
    if (--car_machine_wait_of(rank, number)->blockers == 0) {
        CAR_TRY(car_machine_unblock(m, at, number));
    }
done:
    return status;
}

static car_status list_stretch(car_machine *m, int at) {
    car_machine_rank *rank = &m->rank[at];
    int64_t end = car_plan_stretch_end(m->plan, rank->listed);
    car_status status = CAR_OK;
    CAR_TRY(car_plan_expand_rank_slots(m->plan, at, rank->listed, end, m->config.steps, &m->list));
    CAR_TRY(make_room(m, rank, m->list.count));
    car_edges_forget(rank->edges, rank->first);
    for (int k = 0; k < m->list.count; k++) {
        CAR_TRY(append(m, at, &m->list.tasks[k]));
    }
    rank->listed = end;
done:
    return status;
}

int64_t car_machine_slot(const car_machine_rank *rank) {
    return rank->first < rank->end ? car_machine_at(rank, rank->first)->slot : rank->listed;
}

/* List more if something could be posted, or if a rank that keeps to the table's order has no forward or backward
 * left. */
static bool wants_more(const car_machine *m, const car_machine_rank *rank) {
    return rank->listed <= car_machine_slot(rank) + m->reach || (m->in_order && rank->computes == 0);
}

car_status car_machine_list(car_machine *m, int at) {
    car_machine_rank *rank = &m->rank[at];
    car_status status = CAR_OK;
    while (rank->listed < m->end && wants_more(m, rank)) {
        CAR_TRY(list_stretch(m, at));
    }
done:
    return status;
}

car_status car_machine_list_runner(car_machine *m, int runner) {
    const car_runner *r = &m->runners[runner];
    car_status status = CAR_OK;
    while (r->listed <= r->done && m->rank[r->rank].listed < m->end) {
        CAR_TRY(list_stretch(m, r->rank));
    }
done:
    return status;
}

/* ---- finished tasks ------------------------------------------------------------------------------ */

car_status car_machine_retire(car_machine *m, int at, int number) {
    car_machine_rank *rank = &m->rank[at];
    car_machine_wait *wait = car_machine_wait_of(rank, number);
    car_status status = CAR_OK;
    int dependent = wait->dependent, more = wait->more;
    wait->over = true;
    while (dependent != CAR_NONE) {
        if (--car_machine_wait_of(rank, dependent)->blockers == 0) {
            CAR_TRY(car_machine_unblock(m, at, dependent));
        }
        dependent = CAR_NONE;
        if (more != CAR_NONE) {
            int place = more;
            dependent = m->dependents[place].task;
            more = m->dependents[place].next;
            m->dependents[place].next = m->spare;
            m->spare = place;
        }
    }
    bool first = number == rank->first;
    while (rank->first < rank->end && car_machine_wait_of(rank, rank->first)->over) {
        rank->first++;
    }
    if (first) {
        car_machine_enqueue(m, at);
    }
done:
    return status;
}
