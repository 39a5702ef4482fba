/* The validator: gradients. This replays the sums with names instead of numbers: it follows which gradients were
 * added, in which order, and where each sum is.
 *
 * Cyclic rules and pipelines: worker i adds its gradient to the sum over workers 0 .. i-1, which must be on its
 * device, in place or received. With several micro-batches per worker, either each micro-batch counts like a worker,
 * or (by worker) each worker first adds up its own and its last micro-batch adds that to the sum. dp over ranks:
 * every device adds up its own workers, and a collective combines them. dp and accumulate in one process: all
 * gradients are in one place and are added in worker order when all are there. */
#include <string.h>

#include "plan/validate_internal.h"

typedef struct sum {
    int64_t step;
    int added;     /* micro-batches 0 .. added - 1, or just how many (a device's own, a custom plan's); 0: no sum */
    int last;      /* custom plans: the last one added */
    bool complete; /* over all workers; where ranks share the work, only a collective completes it */
    int missing;   /* pieces that have not arrived */
    int sent;      /* pieces that were sent on */
} sum;

typedef struct replay {
    const car_validation *v;
    sum *sums;    /* [row][CAR_VALIDATE_SUMS] */
    sum *own;     /* [bundle][worker]: by worker, the sum of its own gradients */
    int *updates; /* [bundle][step]: number of devices that have made the update */
    int *marks;   /* device -> the last query in which it was counted */
    sum *carried; /* custom plans: task -> the sum that it sends */
} replay;

/* A bundle without parameters has no sum, and no task may mention one. */
static bool has_sum(const car_validation *v, int bundle) {
    return v->partition->bundles[bundle].bytes > 0;
}

static sum *find(const replay *r, int device, int bundle, int64_t step) {
    int64_t row = car_validate_row(r->v, device, bundle);
    for (int n = 0; row != CAR_NONE && n < CAR_VALIDATE_SUMS; n++) {
        sum *s = &r->sums[row * CAR_VALIDATE_SUMS + n];
        if (s->added > 0 && s->step == step) {
            return s;
        }
    }
    return NULL;
}

/* Begins a new sum on the device of a task. */
static car_status begin(replay *r, int index, int bundle, sum begun) {
    int64_t row = car_validate_row(r->v, r->v->device_of[index], bundle);
    if (row == CAR_NONE) {
        return car_validate_fail(r->v, index, "bundle %d is not used on this device", bundle);
    }
    if (find(r, r->v->device_of[index], bundle, begun.step)) {
        return car_validate_fail(r->v, index, "there is already a sum of bundle %d for step %lld", bundle,
                                 (long long)begun.step);
    }
    for (int n = 0; n < CAR_VALIDATE_SUMS; n++) {
        sum *s = &r->sums[row * CAR_VALIDATE_SUMS + n];
        if (s->added == 0) {
            *s = begun;
            return CAR_OK;
        }
    }
    return car_validate_fail(r->v, index, "there are too many sums of bundle %d on the device", bundle);
}

/* ---- adding ------------------------------------------------------------------------------------- */

/* True if workers must add in ring order. Otherwise each has its own buffer, and only their number counts. */
static bool in_ring_order(const car_validation *v) {
    return v->spaced || (v->custom && v->by_worker) || (v->config.placement == CAR_PLACEMENT_PIPELINE && !v->custom);
}

/* By worker: adds a gradient of worker i > 0 to its own sum. Its last micro-batch joins that to the sum over workers
 * 0 .. i-1. */
static car_status add_own(replay *r, int index, int bundle) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int M = v->config.accumulate, i = task->micro_batch % v->workers, round = task->micro_batch / v->workers;
    sum *own = &r->own[bundle * v->workers + i], *s = find(r, v->device_of[index], bundle, task->step);
    if (own->added != round || (round > 0 && own->step != task->step)) {
        return car_validate_fail(
            v, index, "%d micro-batches are in its worker's own sum of bundle %d, which is not the right number",
            own->added, bundle);
    }
    if (car_validate_ends(v, index, CAR_RESOURCE_OWN, bundle, task->step) != (round + 1 == M)) {
        return car_validate_fail(
            v, index, "its worker's own sum of bundle %d must end where it is added to the sum over all workers",
            bundle);
    }
    *own = (sum){.step = task->step, .added = round + 1};
    if (round + 1 < M) {
        return CAR_OK;
    }
    if (!s || s->added != M * i) {
        return car_validate_fail(v, index,
                                 "it adds to a sum over %d micro-batches of bundle %d, which is not the right number",
                                 s ? s->added : 0, bundle);
    }
    *own = (sum){0};
    s->added += M;
    s->complete = s->added == v->batches;
    return CAR_OK;
}

/* True if the task ends the sum of its step. */
static bool ends_sum(const replay *r, int index, int bundle) {
    return car_validate_ends(r->v, index, CAR_RESOURCE_SUM, bundle, r->v->tasks[index].step);
}

static car_status add_gradient(replay *r, int index, int bundle) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    sum *s = find(r, v->device_of[index], bundle, task->step);
    if (ends_sum(r, index, bundle)) {
        return car_validate_fail(v, index, "it frees the sum of bundle %d that it adds to", bundle);
    }
    if (in_ring_order(v) && v->by_worker && task->micro_batch % v->workers > 0) {
        return add_own(r, index, bundle);
    }
    if (in_ring_order(v)) {
        int before = v->by_worker ? task->micro_batch / v->workers : task->micro_batch;
        if ((task->micro_batch == 0) != (s == NULL)) {
            return car_validate_fail(v, index,
                                     s ? "worker 0 must begin the sum of bundle %d, but there already is one"
                                       : "there is no sum of bundle %d to add to",
                                     bundle);
        }
        if (s && s->added != before) {
            return car_validate_fail(v, index,
                                     "it adds to a sum over workers 0 .. %d of bundle %d, which is out of turn",
                                     s->added - 1, bundle);
        }
    }
    if (!s) {
        return begin(
            r, index, bundle,
            (sum){
                .step = task->step, .added = 1, .last = task->micro_batch, .complete = !v->spread && v->batches == 1});
    }
    if (s->complete || s->missing > 0 || s->sent > 0) {
        return car_validate_fail(
            v, index, "it adds to a sum of bundle %d that has not fully arrived, or is already finished", bundle);
    }
    s->added++;
    s->last = task->micro_batch;
    s->complete = !v->spread && s->added == v->batches;
    return CAR_OK;
}

/* The device that finishes the sum adds the sums of the ties, which must be there by then. */
bool car_validate_carries_ties(const car_validation *v) {
    return v->passes && (v->config.placement == CAR_PLACEMENT_REPLICA || v->config.placement == CAR_PLACEMENT_GRID);
}

static car_status add_ties(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    for (int b = v->stages; b < v->bundles; b++) {
        if (v->partition->bundles[b].home != task->stage || !has_sum(v, b)) {
            continue;
        }
        sum *s = find(r, v->device_of[index], b, task->step);
        if (!s || !s->complete || s->missing > 0) {
            return car_validate_fail(
                v, index, "it finishes a sum, but the sum of the tied bundle %d is not finished (%d workers)", b,
                s ? s->added : 0);
        }
        if (ends_sum(r, index, b)) { /* otherwise check_left finds it */
            *s = (sum){0};
        }
    }
    return CAR_OK;
}

static car_status backward(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    car_status status = CAR_OK;
    for (int b = car_bundle_of_stage(v->partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(v->partition, task->stage, b)) {
        CAR_TRY(add_gradient(r, index, b));
    }
    const sum *own = find(r, v->device_of[index], task->stage, task->step);
    v->finishing[index] = v->custom ? own && own->complete : task->micro_batch == v->batches - 1;
    if (car_validate_carries_ties(v) && v->finishing[index]) {
        CAR_TRY(add_ties(r, index));
    }
done:
    return status;
}

/* ---- passing on --------------------------------------------------------------------------------- */

/* How many gradients a sum contains that is sent after a micro-batch. */
static int added_by(const car_validation *v, const car_task *task) {
    int M = v->config.accumulate;
    return v->by_worker ? M * (task->micro_batch + 1 - (M - 1) * v->workers) : task->micro_batch + 1;
}

/* True if a sum is what the task says it is. A custom plan names the last one added. */
static bool is_as_said(const car_validation *v, const car_task *task, const sum *s) {
    bool finished = task->cargo == CAR_CARGO_FINISHED;
    if (v->custom && !v->by_worker) {
        return s->complete == finished && s->last == task->micro_batch;
    }
    if (v->spread) {
        /* A collective made it, so no micro-batch was the last. */
        return finished && s->complete && task->micro_batch != CAR_NONE;
    }
    return s->complete == finished && s->added == added_by(v, task);
}

static car_status send(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    sum *s = find(r, v->device_of[index], task->bundle, task->step);
    if (!s || !is_as_said(v, task, s)) {
        return car_validate_fail(
            v, index, s ? "the sum is over %d workers, or another worker was the last" : "there is no such sum (%d)",
            s ? s->added : 0);
    }
    int pieces = car_validate_pieces(v, task->bundle);
    r->carried[index] = *s;
    if (task->piece != s->sent || s->missing > 0) {
        return car_validate_fail(v, index, "the next piece to send is %d, and %d pieces have not arrived yet", s->sent,
                                 s->missing);
    }
    /* A partial sum continues elsewhere. If it were kept here, there would be two. */
    bool last = ++s->sent == pieces, frees = ends_sum(r, index, task->bundle);
    if (task->cargo == CAR_CARGO_PARTIAL && last && !frees) {
        return car_validate_fail(v, index, "a partial sum that was sent on must not be kept");
    }
    if (frees && !last) {
        return car_validate_fail(v, index, "it frees a sum of which only %d of %d pieces were sent", s->sent, pieces);
    }
    s->sent = last ? 0 : s->sent;
    if (frees) {
        *s = (sum){0};
    }
    return CAR_OK;
}

static car_status receive(replay *r, int index) {
    const car_task *task = &r->v->tasks[index];
    int pieces = car_validate_pieces(r->v, task->bundle);
    if (ends_sum(r, index, task->bundle)) {
        return car_validate_fail(r->v, index, "it frees the sum that it receives");
    }
    /* The sender's end was checked, and both ends agree. */
    const sum *sent = &r->carried[r->v->partner[index]];
    if (task->piece == 0) {
        return begin(r, index, task->bundle,
                     (sum){.step = task->step,
                           .added = sent->added,
                           .last = sent->last,
                           .complete = task->cargo == CAR_CARGO_FINISHED,
                           .missing = pieces - 1});
    }
    sum *s = find(r, r->v->device_of[index], task->bundle, task->step);
    if (!s || s->added != sent->added || s->missing != pieces - task->piece) {
        return car_validate_fail(r->v, index, "piece %d of %d arrives when %d are missing", task->piece, pieces,
                                 s ? s->missing : pieces);
    }
    s->missing--;
    return CAR_OK;
}

/* ---- collectives -------------------------------------------------------------------------------- */

/* The dry run shows that all ranks take part and agree on the owner. So here each rank only has to show that its own
 * workers are included. */
static car_status reduce(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    const car_bundle *bundle = &v->partition->bundles[task->bundle];
    int device = v->device_of[index];
    bool zero = v->config.placement == CAR_PLACEMENT_ZERO;
    int goal = zero ? car_validate_owner(v, bundle->home) : CAR_NONE;
    int own = v->config.accumulate * (v->config.placement == CAR_PLACEMENT_REPLICA ? v->workers / v->devices : 1);
    sum *s = find(r, device, task->bundle, task->step);
    if (!v->spread || task->peer != goal) {
        return car_validate_fail(v, index, "this rule and placement have no such reduction");
    }
    if (!s || s->added != own || s->complete) {
        return car_validate_fail(v, index, "it reduces a sum that lacks some of its workers, or was already reduced");
    }
    bool keeps = !zero || device == goal;
    if (keeps == ends_sum(r, index, task->bundle)) {
        return car_validate_fail(v, index,
                                 keeps ? "it frees the sum that it should keep"
                                       : "it keeps its part of the sum, but should free it");
    }
    *s = keeps ? (sum){.step = s->step, .added = s->added, .complete = true} : (sum){0};
    return CAR_OK;
}

/* ---- updates ------------------------------------------------------------------------------------ */

/* Where the sum is used on the device that finishes it, the update must come right after the last worker's backward.
 * In a grid the other ranks follow when the sum arrives. */
static bool is_on_time(const car_validation *v, const car_task *task, int device) {
    bool waits = v->custom || v->spread || v->config.placement == CAR_PLACEMENT_REPLICA ||
                 v->config.placement == CAR_PLACEMENT_ZERO;
    bool follows = v->config.placement == CAR_PLACEMENT_GRID &&
                   device != car_validate_device(v, task->step, v->batches - 1, task->stage);
    size_t last = car_validate_compute(v, task->step, v->batches - 1, task->stage, true);
    return waits || follows || task->slot == v->tasks[v->computes[last]].slot;
}

/* A bundle and those tied to it are updated together. All their sums must be complete here, unless they travel as
 * one. */
static car_status update(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int device = v->device_of[index];
    if (task->bundle >= v->stages || !car_validate_updates(v, task->step, task->bundle, device)) {
        return car_validate_fail(v, index, "this device has nothing to update");
    }
    if (!is_on_time(v, task, device)) {
        return car_validate_fail(v, index, "it must be in the slot of the backward that finishes its sum");
    }
    for (int b = car_bundle_of_home(v->partition, task->bundle, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_home(v->partition, task->bundle, b)) {
        if (b != task->bundle && car_validate_carries_ties(v)) {
            continue;
        }
        sum *s = find(r, device, b, task->step);
        if (!s || !s->complete || s->missing > 0) {
            return car_validate_fail(v, index, "the sum of bundle %d is over %d workers", b, s ? s->added : 0);
        }
        if (ends_sum(r, index, b)) {
            *s = (sum){0};
        }
    }
    r->updates[(size_t)task->bundle * (size_t)v->steps + (size_t)task->step]++;
    return CAR_OK;
}

/* True if worker i computes with the version that a step makes. The worker that makes it always counts, so that the
 * last version exists. */
static bool is_wanted_by(const car_validation *v, int64_t step, int bundle, int worker) {
    bool fresh = car_validate_version(v, step + 1, worker, bundle) == step + 1;
    /* If its first micro-batch of the next step does not use it, its second one does. */
    bool later = v->config.accumulate > 1;
    return step + (fresh || later ? 1 : 2) < v->steps || worker == v->workers - 1;
}

/* A sum that travels is made into weights on every rank. replica: as long as one of its workers needs them. grid:
 * except for the last version, because workers change ranks. */
static int expected_updates(replay *r, int64_t step, int bundle) {
    const car_validation *v = r->v;
    if (v->custom) {
        return 1;
    }
    if (v->config.placement == CAR_PLACEMENT_GRID && v->spaced) {
        return step + 1 < v->steps ? v->workers - bundle / v->per_worker : 1;
    }
    if (v->config.placement != CAR_PLACEMENT_REPLICA || !v->spaced) {
        return car_validate_update_count(v);
    }
    int count = 0, question = (int)step * v->stages + bundle + 1;
    for (int i = 0; i < v->workers; i++) {
        int device = car_validate_device(v, step, i, bundle);
        if (is_wanted_by(v, step, bundle, i) && r->marks[device] != question) {
            r->marks[device] = question;
            count++;
        }
    }
    return count;
}

static car_status check_updates(replay *r) {
    const car_validation *v = r->v;
    for (int64_t step = 0; step < v->steps; step++) {
        for (int bundle = 0; bundle < v->stages; bundle++) {
            int made = r->updates[(size_t)bundle * (size_t)v->steps + (size_t)step];
            int expected = has_sum(v, bundle) ? expected_updates(r, step, bundle) : 0;
            bool several = v->custom && car_validate_carries_ties(v); /* as many ranks as the custom plan says */
            if (several && expected > 0 ? made < 1 : made != expected) {
                size_t last = car_validate_compute(v, step, v->batches - 1, bundle, true);
                return car_validate_fail(v, v->computes[last],
                                         "bundle %d is updated %d times in step %lld instead of %d", bundle, made,
                                         (long long)step, expected);
            }
        }
    }
    return CAR_OK;
}

/* ---- the replay --------------------------------------------------------------------------------- */

static car_status step_replay(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    bool is_sum = task->cargo == CAR_CARGO_PARTIAL || task->cargo == CAR_CARGO_FINISHED;
    if ((is_sum || task->kind == CAR_TASK_REDUCE || task->kind == CAR_TASK_UPDATE) && !has_sum(v, task->bundle)) {
        return car_validate_fail(v, index, "bundle %d has no parameters", task->bundle);
    }
    switch (task->kind) {
    case CAR_TASK_BACKWARD:
        return backward(r, index);
    case CAR_TASK_REDUCE:
        return reduce(r, index);
    case CAR_TASK_UPDATE:
        return update(r, index);
    case CAR_TASK_SEND:
        return is_sum ? send(r, index) : CAR_OK;
    case CAR_TASK_RECEIVE:
        return is_sum ? receive(r, index) : CAR_OK;
    default:
        return CAR_OK;
    }
}

/* The last backward that added to the bundle of a row. */
static int find_last(const car_validation *v, int64_t row, int64_t step) {
    for (int device = 0; device < v->devices; device++) {
        for (int b = 0; b < v->bundles; b++) {
            if (car_validate_row(v, device, b) == row) {
                return v->computes[car_validate_compute(v, step, v->batches - 1, v->partition->bundles[b].stage, true)];
            }
        }
    }
    return CAR_NONE;
}

static car_status check_left(const replay *r, size_t places) {
    for (size_t place = 0; place < places; place++) {
        const sum *s = &r->sums[place];
        if (s->added > 0) {
            return car_validate_fail(r->v, find_last(r->v, (int64_t)place / CAR_VALIDATE_SUMS, s->step),
                                     "its sum of step %lld over %d workers is never freed", (long long)s->step,
                                     s->added);
        }
    }
    return CAR_OK;
}

car_status car_validate_sums(car_validation *v) {
    replay r = {.v = v};
    size_t places = car_validate_rows(v) * CAR_VALIDATE_SUMS, counts = (size_t)v->stages * (size_t)v->steps;
    size_t owns = v->by_worker ? (size_t)v->bundles * (size_t)v->workers : 0;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(v->context, places, sizeof *r.sums, &r.sums));
    CAR_TRY(car_context_allocate(v->context, owns, sizeof *r.own, &r.own));
    CAR_TRY(car_context_allocate(v->context, counts, sizeof *r.updates, &r.updates));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->devices, sizeof *r.marks, &r.marks));
    CAR_TRY(car_context_allocate(v->context, (size_t)v->count, sizeof *r.carried, &r.carried));
    for (int n = 0; n < v->count; n++) {
        CAR_TRY(step_replay(&r, v->order[n]));
    }
    CAR_TRY(check_updates(&r));
    CAR_TRY(check_left(&r, places));
done:
    car_context_release(v->context, r.carried, (size_t)v->count, sizeof *r.carried);
    car_context_release(v->context, r.marks, (size_t)v->devices, sizeof *r.marks);
    car_context_release(v->context, r.updates, counts, sizeof *r.updates);
    car_context_release(v->context, r.own, owns, sizeof *r.own);
    car_context_release(v->context, r.sums, places, sizeof *r.sums);
    return status;
}
