/* The tasks of a rank that are not over, in the plan's order, with the tasks that wait for them. Two lists hold the
 * ready set and the receives and collectives that have not been started. */
#include "engine/rank_internal.h"

/* Makes room for one more entry. */
static car_status make_room(car_rank *rank) {
    enum { FIRST_CAPACITY = 256 };
    int64_t old = rank->capacity, capacity = old ? 2 * old : FIRST_CAPACITY;
    car_entry **entries = NULL;
    car_status status = CAR_OK;
    if (rank->listed - rank->oldest < old) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(rank->context, (size_t)capacity, sizeof *entries, &entries));
    for (int64_t n = rank->oldest; n < rank->listed; n++) {
        entries[n & (capacity - 1)] = car_rank_entry(rank, n);
    }
    car_context_release(rank->context, rank->entries, (size_t)old, sizeof *entries);
    rank->entries = entries;
    rank->capacity = capacity;
done:
    return status;
}

/* Finds the tasks that a new entry waits for. */
static car_status block_on_earlier(car_rank *rank, car_entry *entry) {
    const int64_t *before = NULL;
    int count = 0;
    car_status status = CAR_OK;
    car_edges_forget(rank->edges, rank->oldest);
    CAR_TRY(car_usage_list(rank->usage, &entry->task, &rank->uses));
    CAR_TRY(car_edges_add(rank->edges, &rank->uses, &before, &count));
    for (int b = 0; b < count; b++) {
        car_entry *earlier = car_rank_entry(rank, before[b]);
        if (!earlier->over) {
            CAR_TRY(car_context_grow(rank->context, &earlier->dependents, &earlier->dependent_capacity,
                                     earlier->dependent_count + 1, sizeof *earlier->dependents));
            earlier->dependents[earlier->dependent_count++] = entry;
            entry->blockers++;
        }
    }
done:
    return status;
}

static void count_sends(car_rank *rank, const car_task *task) {
    if (task->kind != CAR_TASK_SEND) {
        return;
    }
    rank->sends_in_slot = task->slot == rank->send_slot ? rank->sends_in_slot + 1 : 1;
    rank->send_slot = task->slot;
    rank->most_sends = rank->sends_in_slot > rank->most_sends ? rank->sends_in_slot : rank->most_sends;
}

/* Removes the first entry. */
static void put_aside(car_rank *rank) {
    const car_entry *entry = car_rank_entry(rank, rank->oldest++);
    for (int a = 0; a < entry->addition_count; a++) { /* a backward that was dropped or failed before its end */
        car_block_drop(rank, entry->additions[a].kind == CAR_ADDITION_WAITS ? entry->additions[a].block : NULL);
    }
}

/* Inserts an entry into the ready set, which is in the plan's order. */
static void make_ready(car_rank *rank, car_entry *entry) {
    car_entry **place = &rank->ready;
    while (*place && (*place)->number < entry->number) {
        place = &(*place)->next_ready;
    }
    entry->next_ready = *place;
    *place = entry;
}

/* The window in which a message is used. */
static int64_t window_used(const car_rank *rank, const car_task *task) {
    int64_t slot = task->kind == CAR_TASK_SEND ? task->due : task->slot;
    return slot > 0 ? slot / car_plan_period(rank->plan) : 0;
}

/* Counts a newly listed task, for an early end and for reports. */
static void count_use(car_rank *rank, const car_task *task, int64_t window) {
    int64_t used = window_used(rank, task) > window ? window_used(rank, task) : window;
    rank->windows_used = used >= rank->windows_used ? used + 1 : rank->windows_used;
    rank->steps_used = task->step >= rank->steps_used ? task->step + 1 : rank->steps_used;
    count_sends(rank, task);
}

static void append_arrival(car_rank *rank, car_entry *entry) {
    car_entry **place = &rank->arrivals;
    while (*place) {
        place = &(*place)->next_arrival;
    }
    *place = entry;
}

static car_status append(car_rank *rank, const car_task *task, int64_t window) {
    car_entry **place = NULL, *entry = NULL;
    car_status status = CAR_OK;
    CAR_TRY(make_room(rank));
    place = &rank->entries[rank->listed & (rank->capacity - 1)];
    if (!*place) {
        CAR_TRY(car_context_allocate(rank->context, 1, sizeof *entry, place));
    }
    entry = *place;
    *entry = (car_entry){.task = *task,
                         .window = window,
                         .number = rank->listed++,
                         .at = CAR_NONE,
                         .dependents = entry->dependents,
                         .dependent_capacity = entry->dependent_capacity};
    count_use(rank, task, window);
    status = block_on_earlier(rank, entry);
    if (car_task_arrives(task)) {
        append_arrival(rank, entry);
    }
    if (entry->blockers == 0) {
        make_ready(rank, entry);
    }
done:
    return status;
}

void car_rank_retire(car_rank *rank, car_entry *entry) {
    car_entry **place = &rank->ready;
    while (*place != entry) {
        place = &(*place)->next_ready;
    }
    *place = entry->next_ready;
    for (int d = 0; d < entry->dependent_count; d++) {
        if (--entry->dependents[d]->blockers == 0) {
            make_ready(rank, entry->dependents[d]);
        }
    }
    entry->dependent_count = 0;
    while (rank->oldest < rank->listed && car_rank_first(rank)->over) {
        put_aside(rank);
    }
}

/* True if a task is listed. After an early end dropped tasks are not, except for messages whose other end is listed. */
static bool is_listed(const car_rank *rank, const car_task *task) {
    bool message = task->kind == CAR_TASK_SEND || task->kind == CAR_TASK_RECEIVE;
    return !rank->shortened || (message ? window_used(rank, task) < rank->windows : !car_rank_is_dropped(rank, task));
}

/* After an early end: retires dropped tasks without running them. A task is retired only when nothing blocks it,
 * because tasks that wait for it still depend on what it waits for. */
static void cancel(car_rank *rank) {
    for (car_entry **place = &rank->arrivals; *place;) {
        if (is_listed(rank, &(*place)->task)) {
            place = &(*place)->next_arrival;
        } else {
            *place = (*place)->next_arrival;
        }
    }
    for (car_entry *entry = rank->ready; entry;) {
        if (entry->running || is_listed(rank, &entry->task)) {
            entry = entry->next_ready;
            continue;
        }
        entry->over = true;
        car_rank_retire(rank, entry);
        entry = rank->ready;
    }
}

/* True if another window has to be listed: a rank lists the window of its first task, and the next one. */
static bool wants_window(const car_rank *rank) {
    const car_entry *first = car_rank_first(rank);
    return rank->window < rank->windows && !rank->frozen && (!first || rank->window <= first->window + 1);
}

static car_status list_window(car_rank *rank) {
    car_status status = CAR_OK;
    CAR_TRY(car_plan_expand_rank(rank->plan, rank->device, rank->window, rank->planned, &rank->list));
    if (rank->goes_on) {
        car_usage_go_on(rank->usage, &rank->list);
    }
    for (int k = 0; k < rank->list.count; k++) {
        if (is_listed(rank, &rank->list.tasks[k])) {
            CAR_TRY(append(rank, &rank->list.tasks[k], rank->window));
        }
    }
    rank->window++;
done:
    return status;
}

car_status car_rank_fill(car_rank *rank) {
    car_status status = CAR_OK;
    do {
        while (wants_window(rank)) {
            CAR_TRY(list_window(rank));
        }
        if (rank->shortened) {
            cancel(rank);
        }
    } while (wants_window(rank));
done:
    return status;
}

void car_rank_forget_entries(car_rank *rank) {
    while (rank->oldest < rank->listed) {
        car_block_drop(rank, car_rank_first(rank)->block);
        put_aside(rank);
    }
    for (int64_t n = 0; n < rank->capacity; n++) {
        car_entry *entry = rank->entries[n];
        if (entry) {
            car_context_release(rank->context, entry->dependents, (size_t)entry->dependent_capacity,
                                sizeof *entry->dependents);
            car_context_release(rank->context, entry, 1, sizeof *entry);
        }
    }
    car_context_release(rank->context, rank->entries, (size_t)rank->capacity, sizeof *rank->entries);
    rank->entries = NULL;
    rank->ready = rank->arrivals = NULL;
    rank->capacity = rank->oldest = rank->listed = 0;
    if (rank->edges) {
        car_edges_clear(rank->edges);
    }
}
