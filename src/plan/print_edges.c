/* Prints which tasks wait for which: the part that `carousel plan --dump --edges` adds after the table. All lines
 * are remarks, so that the whole can still be read back as a table.
 *
 *     # ahead a 2, g 2, p 2, s 4, w 2, b 2, C 2
 *     # rank 1
 *     # 4: 0 3                                  task 4 of the rank waits for 0 and 3
 *
 * The tasks of a rank are counted from 0 in the order in which the table prints them. */
#include "base/text.h"
#include "plan/placement.h"
#include "plan/usage.h"

/* The state while the edges of a rank are printed. */
typedef struct printer {
    const car_plan *plan;
    car_text text;
    car_usage *usage;
    car_edges *edges;
    car_task_list list;
    car_use_list uses;
    int *printed; /* by device: how many tasks the table prints before its next one */
    int *numbers; /* by place in the rank's order: its printed number */
    int count, capacity;
    int last_compute;
} printer;

static const char cargo_letters[] = {
#define LETTER(code, text) text[0],
    CAR_CARGO_LIST(LETTER)
#undef LETTER
};

/* A bundle whose sums are cut, or (`cut` false) are not; 0 if there is none. */
static int find_bundle(const printer *p, bool cut) {
    for (int b = 0; b < p->plan->partition->bundle_count; b++) {
        if ((car_plan_pieces(p->plan, b) > 1) == cut) {
            return b;
        }
    }
    return 0;
}

/* The distances for sums that are cut. */
static void add_ahead_of_pieces(printer *p) {
    car_task task = {.kind = CAR_TASK_RECEIVE, .cargo = CAR_CARGO_PARTIAL, .bundle = find_bundle(p, true)};
    car_text_add(&p->text, ", P %lld", (long long)car_plan_slots_ahead(p->plan, &task));
    task.cargo = CAR_CARGO_FINISHED;
    car_text_add(&p->text, ", S %lld", (long long)car_plan_slots_ahead(p->plan, &task));
}

static void add_ahead(printer *p) {
    car_task task = {.kind = CAR_TASK_RECEIVE, .bundle = find_bundle(p, false)};
    car_text_add(&p->text, "# ahead");
    for (int cargo = CAR_CARGO_ACTIVATION; cargo < CAR_CARGOS; cargo++) {
        task.cargo = (car_cargo)cargo;
        car_text_add(&p->text, " %c %lld,", cargo_letters[cargo], (long long)car_plan_slots_ahead(p->plan, &task));
    }
    task = (car_task){.kind = CAR_TASK_BROADCAST};
    car_text_add(&p->text, " C %lld", (long long)car_plan_slots_ahead(p->plan, &task));
    if (p->plan->most_pieces > 1) {
        add_ahead_of_pieces(p);
    }
    car_text_add(&p->text, "\n");
}

/* The table prints the devices one after another. */
static car_status count_printed(printer *p, int rank, int64_t steps) {
    int before = 0;
    car_status status = CAR_OK;
    for (int device = 0; device < p->plan->devices; device++) {
        p->printed[device] = before;
        for (int64_t w = 0; w < car_plan_windows(p->plan, steps) && car_plan_rank_of(p->plan, device) == rank; w++) {
            CAR_TRY(car_plan_expand(p->plan, device, w, steps, &p->list));
            before += p->list.count;
        }
    }
done:
    return status;
}

/* The device of a task: in one process each worker is a device. */
static int device_of(const printer *p, int rank, const car_task *task) {
    return p->plan->placement->info.one_process ? task->micro_batch : rank;
}

static void add_edge(printer *p, int *edges, int place, int64_t before) {
    if ((*edges)++ == 0) {
        car_text_add(&p->text, "# %d:", p->numbers[place]);
    }
    car_text_add(&p->text, " %d", p->numbers[before]);
}

static car_status add_task(printer *p, int rank, const car_task *task) {
    int place = p->count++, count = 0, edges = 0;
    const int64_t *before = NULL;
    bool follows = p->last_compute != CAR_NONE && car_usage_follows_computes(p->usage, task);
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(p->plan->context, &p->numbers, &p->capacity, p->count, sizeof *p->numbers));
    p->numbers[place] = p->printed[device_of(p, rank, task)]++;
    CAR_TRY(car_usage_list(p->usage, task, &p->uses));
    CAR_TRY(car_edges_add(p->edges, &p->uses, &before, &count));
    for (int b = 0; b < count; b++) {
        follows = follows && before[b] != p->last_compute;
        add_edge(p, &edges, place, before[b]);
    }
    if (follows) {
        add_edge(p, &edges, place, p->last_compute);
    }
    p->last_compute = car_task_computes(task) ? place : p->last_compute;
    car_text_add(&p->text, "%s", edges > 0 ? "\n" : "");
done:
    return status;
}

static car_status add_rank(printer *p, int rank, int64_t steps) {
    car_status status = CAR_OK;
    CAR_TRY(count_printed(p, rank, steps));
    CAR_TRY(car_usage_create(p->plan, rank, &p->usage));
    car_usage_set_steps(p->usage, steps);
    CAR_TRY(car_edges_create(p->plan->context, &p->edges));
    p->count = 0;
    p->last_compute = CAR_NONE;
    car_text_add(&p->text, "# rank %d\n", rank);
    for (int64_t w = 0; w < car_plan_windows(p->plan, steps); w++) {
        CAR_TRY(car_plan_expand_rank(p->plan, rank, w, steps, &p->list));
        for (int k = 0; k < p->list.count; k++) {
            CAR_TRY(add_task(p, rank, &p->list.tasks[k]));
        }
    }
done:
    car_edges_destroy(p->edges);
    car_usage_destroy(p->usage);
    p->edges = NULL;
    p->usage = NULL;
    return status;
}

car_status car_plan_print_edges(const car_plan *plan, int64_t steps, char **out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), out);
    printer p = {.plan = plan, .text = {.context = plan->context}};
    size_t devices = (size_t)plan->devices;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(plan->context, devices, sizeof *p.printed, &p.printed));
    add_ahead(&p);
    for (int rank = 0; rank < car_plan_ranks(plan); rank++) {
        CAR_TRY(add_rank(&p, rank, steps));
    }
done:
    car_context_release(plan->context, p.printed, p.printed ? devices : 0, sizeof *p.printed);
    car_context_release(plan->context, p.numbers, (size_t)p.capacity, sizeof *p.numbers);
    car_use_list_release(plan, &p.uses);
    car_task_list_release(plan, &p.list);
    p.text.status = status == CAR_OK ? p.text.status : status;
    return car_text_finish(&p.text, out);
}
