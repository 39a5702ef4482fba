/* Sums of a rank that queue up for one link. Only a few are in flight at once, those whose receives are posted
 * first. Two sums sent one after the other finish no later than two sent in parallel, and the first one can be used
 * earlier. transport/mpi does the same. */
#include "plan/machine.h"

static bool comes_before(const car_machine_sum *a, const car_machine_sum *b) {
    return a->key < b->key || (a->key == b->key && a->order < b->order);
}

static void push(car_machine_rank *rank, car_machine_sum sum) {
    int at = rank->held_count++;
    while (at > 0 && comes_before(&sum, &rank->held[(at - 1) / 2])) {
        rank->held[at] = rank->held[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    rank->held[at] = sum;
}

static car_machine_sum pop(car_machine_rank *rank) {
    car_machine_sum top = rank->held[0], moved = rank->held[--rank->held_count];
    int at = 0;
    for (int child = 1; child < rank->held_count; child = 2 * at + 1) {
        if (child + 1 < rank->held_count && comes_before(&rank->held[child + 1], &rank->held[child])) {
            child++;
        }
        if (!comes_before(&rank->held[child], &moved)) {
            break;
        }
        rank->held[at] = rank->held[child];
        at = child;
    }
    rank->held[at] = moved;
    return top;
}

/* A sum that is needed before all those in flight is never held back: their receivers may be waiting for it. */
static bool may_go(const car_machine_rank *rank) {
    bool first = true;
    for (int w = 0; w < rank->way_count; w++) {
        first = first && rank->held[0].key < rank->ways[w].key;
    }
    return rank->way_count < CAR_SENDS_AT_ONCE || first;
}

static car_status release(car_machine *m, int at) {
    car_machine_rank *rank = &m->rank[at];
    car_status status = CAR_OK;
    while (rank->held_count > 0 && may_go(rank)) {
        car_machine_sum sum = pop(rank);
        int64_t woken = CAR_NONE;
        CAR_TRY(
            car_context_grow(m->context, &rank->ways, &rank->way_capacity, rank->way_count + 1, sizeof *rank->ways));
        rank->ways[rank->way_count++] = sum;
        CAR_TRY(car_network_send(&m->network, m->now, at, sum.peer, sum.tag, sum.bytes, &woken));
        CAR_TRY(car_machine_arrive_by_name(m, woken));
    }
done:
    return status;
}

car_status car_machine_send_sum(car_machine *m, int at, const car_machine_task *task, double bytes) {
    car_machine_rank *rank = &m->rank[at];
    const car_task receive = {.kind = CAR_TASK_RECEIVE, .cargo = (car_cargo)task->cargo, .bundle = task->bundle};
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(m->context, &rank->held, &rank->held_capacity, rank->held_count + 1, sizeof *rank->held));
    push(rank, (car_machine_sum){.key = task->due - car_plan_slots_ahead(m->plan, &receive),
                                 .order = rank->sums++,
                                 .peer = task->peer,
                                 .tag = task->tag,
                                 .bytes = bytes});
    CAR_TRY(release(m, at));
done:
    return status;
}

car_status car_machine_note_sum(car_machine *m, int at, int to, int tag) {
    car_machine_rank *rank = &m->rank[at];
    int w = 0;
    while (rank->ways[w].peer != to || rank->ways[w].tag != tag) {
        w++;
    }
    rank->way_count--;
    for (; w < rank->way_count; w++) {
        rank->ways[w] = rank->ways[w + 1];
    }
    return release(m, at);
}
