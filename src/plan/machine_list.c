/* The tasks of a rank that are not over, in the plan's order, with who waits for them. They are listed piece by piece, no
 * further ahead than somebody looks. */
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

/* Room for so many more between the first and the last. */
static car_status make_room(car_machine *m, car_machine_rank *rank, int more) {
    int capacity = rank->capacity ? rank->capacity : FIRST_CAPACITY;
    car_machine_task *tasks = NULL;
    car_status status = CAR_OK;
    while (rank->end - rank->first + more > capacity) {
        capacity *= 2;
    }
    if (capacity == rank->capacity) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(m->context, (size_t)capacity, sizeof *tasks, &tasks));
    for (int task = rank->first; task < rank->end; task++) {
        tasks[task & (capacity - 1)] = *car_machine_at(rank, task);
    }
    car_context_release(m->context, rank->tasks, (size_t)rank->capacity, sizeof *tasks);
    rank->tasks = tasks;
    rank->capacity = capacity;
done:
    return status;
}

static car_status wait_for(car_machine *m, car_machine_rank *rank, int earlier, int task) {
    car_machine_task *before = car_machine_at(rank, earlier);
    int place = m->spare;
    car_status status = CAR_OK;
    if (earlier < rank->first || before->over) {
        return CAR_OK;
    }
    if (place == CAR_NONE) {
        CAR_TRY(car_context_grow(m->context, &m->dependents, &m->dependent_capacity, m->dependent_count + 1,
                                 sizeof *m->dependents));
        place = m->dependent_count++;
    } else {
        m->spare = m->dependents[place].next;
    }
    m->dependents[place] = (car_dependent){task, before->dependents};
    before->dependents = place;
    car_machine_at(rank, task)->blockers++;
done:
    return status;
}

/* Which distance a receive is posted at. */
static int distance_of(const car_machine *m, const car_task *task) {
    int64_t ahead = car_plan_slots_ahead(m->plan, task);
    int d = 0;
    while (m->distances[d] != ahead) {
        d++;
    }
    return d;
}

/* Puts what comes from others in line, to be posted. */
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
                                                       .worker = task->worker,
                                                       .peer = task->peer,
                                                       .tag = task->tag,
                                                       .piece = task->piece,
                                                       .step = (int)task->step,
                                                       .slot = (int)task->slot,
                                                       .due = (int)task->due,
                                                       .blockers = 1, /* while it is listed */
                                                       .dependents = CAR_NONE,
                                                       .next = CAR_NONE};
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
        m->runners[task->worker].listed++;
    }
    put_in_line(m, rank, task, number);
    if (--car_machine_at(rank, number)->blockers == 0) {
        CAR_TRY(car_machine_unblock(m, at, number));
    }
done:
    return status;
}

static car_status list_piece(car_machine *m, int at) {
    car_machine_rank *rank = &m->rank[at];
    int64_t end = car_plan_piece_end(m->plan, rank->listed);
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

/* What may be posted, and where ranks keep to the table's order their next forward or backward. */
static bool wants_more(const car_machine *m, const car_machine_rank *rank) {
    return rank->listed <= car_machine_slot(rank) + m->reach || (m->in_order && rank->computes == 0);
}

car_status car_machine_list(car_machine *m, int at) {
    car_machine_rank *rank = &m->rank[at];
    car_status status = CAR_OK;
    while (rank->listed < m->end && wants_more(m, rank)) {
        CAR_TRY(list_piece(m, at));
    }
done:
    return status;
}

car_status car_machine_list_worker(car_machine *m, int worker) {
    const car_runner *runner = &m->runners[worker];
    car_status status = CAR_OK;
    while (runner->listed <= runner->done && m->rank[runner->rank].listed < m->end) {
        CAR_TRY(list_piece(m, runner->rank));
    }
done:
    return status;
}

/* ---- what is over ---------------------------------------------------------------------------- */

car_status car_machine_retire(car_machine *m, int at, int number) {
    car_machine_rank *rank = &m->rank[at];
    car_machine_task *task = car_machine_at(rank, number);
    car_status status = CAR_OK;
    int dependent = task->dependents;
    task->over = true;
    task->dependents = CAR_NONE;
    while (dependent != CAR_NONE) {
        car_dependent here = m->dependents[dependent];
        m->dependents[dependent].next = m->spare;
        m->spare = dependent;
        dependent = here.next;
        if (--car_machine_at(rank, here.task)->blockers == 0) {
            CAR_TRY(car_machine_unblock(m, at, here.task));
        }
    }
    bool first = number == rank->first;
    while (rank->first < rank->end && car_machine_at(rank, rank->first)->over) {
        rank->first++;
    }
    if (first) {
        car_machine_look_at(m, at);
    }
done:
    return status;
}
