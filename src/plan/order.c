/* Defines the order of a device's tasks inside a slot, and sorts by it.
 *
 * The generator emits the tasks of a window nearly in order. Tasks are large, so this sorts a list of short keys and
 * moves each task once at the end. */
#include "plan/internal.h"
#include "plan/usage.h"

/* An update that makes weights for a forward of the same slot comes before that forward. An update from the sum of a
 * backward of the same slot comes after that backward. Only the latter has a micro-batch. */
static car_subslot subslot_of(const car_task *task) {
    switch (task->kind) {
    case CAR_TASK_RECEIVE:
        return CAR_SUBSLOT_RECEIVE;
    case CAR_TASK_BROADCAST:
        return CAR_SUBSLOT_BROADCAST;
    case CAR_TASK_UPDATE:
        return task->micro_batch == CAR_NONE ? CAR_SUBSLOT_UPDATE_FIRST : CAR_SUBSLOT_UPDATE_LAST;
    case CAR_TASK_REDUCE:
        return CAR_SUBSLOT_REDUCE;
    case CAR_TASK_SEND:
        return CAR_SUBSLOT_SEND;
    default:
        return CAR_SUBSLOT_COMPUTE;
    }
}

int car_task_compare_numbers(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

/* Compares two tasks of the same slot and subslot. */
static int compare_rest(const car_task *a, const car_task *b) {
    int order = car_task_compare_numbers(a->micro_batch, b->micro_batch);
    order = order ? order : car_task_compare_numbers(a->cargo, b->cargo);
    order = order ? order : car_task_compare_numbers(a->stage, b->stage);
    order = order ? order : car_task_compare_numbers(a->bundle, b->bundle);
    order = order ? order : car_task_compare_numbers(a->version, b->version);
    order = order ? order : car_task_compare_numbers(a->piece, b->piece);
    return order ? order : car_task_compare_numbers(a->peer, b->peer);
}

int car_task_compare_moments(const car_task *a, const car_task *b) {
    int order = car_task_compare_numbers(a->slot, b->slot);
    return order ? order : (int)subslot_of(a) - (int)subslot_of(b);
}

int car_task_compare(const car_task *a, const car_task *b) {
    int order = car_task_compare_moments(a, b);
    return order ? order : compare_rest(a, b);
}

/* ---- sorting --------------------------------------------------------------------------------- */

enum { SHORT = 8, ON_STACK = 256 };

typedef struct key {
    int64_t moment; /* slot and subslot in one number */
    int at;         /* the task's index before sorting */
} key;

static bool comes_after(const car_task *tasks, key a, key b) {
    return a.moment > b.moment || (a.moment == b.moment && compare_rest(&tasks[a.at], &tasks[b.at]) > 0);
}

static void insert_in_order(const car_task *tasks, key *keys, int count) {
    for (int k = 1; k < count; k++) {
        key moved = keys[k];
        int at = k;
        for (; at > 0 && comes_after(tasks, keys[at - 1], moved); at--) {
            keys[at] = keys[at - 1];
        }
        keys[at] = moved;
    }
}

/* Stable: of equal keys, the left one comes first. */
static void merge(const car_task *tasks, const key *keys, int begin, int middle, int end, key *out) {
    int left = begin, right = middle;
    for (int k = begin; k < end; k++) {
        bool from_right = left == middle || (right < end && comes_after(tasks, keys[left], keys[right]));
        out[k] = keys[from_right ? right++ : left++];
    }
}

static int smaller(int a, int b) {
    return a < b ? a : b;
}

/* Merge sort. Returns whichever of the two arrays holds the result. */
static key *sort_keys(const car_task *tasks, key *keys, key *other, int count) {
    for (int begin = 0; begin < count; begin += SHORT) {
        insert_in_order(tasks, keys + begin, smaller(SHORT, count - begin));
    }
    for (int length = SHORT; length < count; length *= 2) {
        for (int begin = 0; begin < count; begin += 2 * length) {
            merge(tasks, keys, begin, smaller(begin + length, count), smaller(begin + 2 * length, count), other);
        }
        key *sorted = other;
        other = keys;
        keys = sorted;
    }
    return keys;
}

/* Moves the task at keys[k].at to k, following the cycles of the permutation. */
static void move_tasks(car_task *tasks, key *keys, int count) {
    for (int k = 0; k < count; k++) {
        if (keys[k].at == k) {
            continue;
        }
        car_task first = tasks[k];
        int to = k;
        for (int from = keys[to].at; from != k; from = keys[to].at) {
            tasks[to] = tasks[from];
            keys[to].at = to;
            to = from;
        }
        tasks[to] = first;
        keys[to].at = to;
    }
}

static bool is_sorted(const car_task_list *list) {
    for (int k = 1; k < list->count; k++) {
        if (car_task_compare(&list->tasks[k - 1], &list->tasks[k]) > 0) {
            return false;
        }
    }
    return true;
}

car_status car_task_list_sort(const car_plan *plan, car_task_list *list) {
    key few[2 * ON_STACK], *keys = few, *many = NULL;
    size_t wanted = list->count > ON_STACK ? 2 * (size_t)list->count : 0;
    car_status status = CAR_OK;
    if (is_sorted(list)) {
        return CAR_OK;
    }
    if (wanted > 0) {
        CAR_TRY(car_context_allocate(plan->context, wanted, sizeof *many, &many));
        keys = many;
    }
    for (int k = 0; k < list->count; k++) {
        const car_task *task = &list->tasks[k];
        keys[k] = (key){task->slot * (CAR_SUBSLOT_SEND + 1) + (int64_t)subslot_of(task), k};
    }
    move_tasks(list->tasks, sort_keys(list->tasks, keys, keys + list->count, list->count), list->count);
done:
    car_context_release(plan->context, many, wanted, sizeof *many);
    return status;
}
