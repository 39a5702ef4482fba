/* The validator: weights. Every forward and backward uses the rule's version, a backward that of its forward, and that
 * version is on the device then: there from the start, made by an UPDATE, or received, and not freed or overwritten
 * since. A version v lives in place v mod 2, so there are at most two of a bundle on a device by construction; that two
 * suffice is what the replay shows. */
#include "plan/validate_internal.h"

enum { BUFFERS = 2, NOTHING = -1 };

typedef struct replay {
    const car_validation *v;
    int64_t *versions; /* [row][buffer] */
} replay;

static int64_t *place_of(const replay *r, int device, int bundle, int64_t version) {
    int64_t row = car_validate_row(r->v, device, bundle);
    return row == CAR_NONE ? NULL : &r->versions[row * BUFFERS + version % BUFFERS];
}

static bool is_here(const replay *r, int device, int bundle, int64_t version) {
    const int64_t *place = place_of(r, device, bundle, version);
    return place && *place == version;
}

static bool moves(const car_validation *v) {
    return v->config.placement == CAR_PLACEMENT_ZERO;
}

/* Where zero keeps weights that nobody uses: each bundle at the owner of its home. */
static bool is_owner(const car_validation *v, int device, int bundle) {
    return moves(v) && device == car_validate_owner(v, v->partition->bundles[bundle].home);
}

static bool ends_weights(const car_validation *v, int index, int bundle, int64_t version) {
    return car_validate_ends(v, index, CAR_RESOURCE_WEIGHTS, bundle, version);
}

/* A version comes to a device. It may replace what no one needs any longer (whether it was needed shows later), but
 * where weights move, what is not needed was to be freed. */
static car_status put(replay *r, int index, int bundle, int64_t version) {
    const car_validation *v = r->v;
    int device = v->device_of[index];
    int64_t *place = place_of(r, device, bundle, version);
    if (!place) {
        return car_validate_fail(v, index, "bundle %d has nothing to do with this device", bundle);
    }
    if (ends_weights(v, index, bundle, version)) {
        return car_validate_fail(v, index, "frees version %lld of bundle %d, which it brings", (long long)version,
                                 bundle);
    }
    if (*place == version) {
        return car_validate_fail(v, index, "version %lld of bundle %d is here already", (long long)version, bundle);
    }
    if (moves(v) && *place != NOTHING && !(v->spread && is_owner(v, device, bundle))) {
        return car_validate_fail(v, index, "version %lld of bundle %d was never freed", (long long)*place, bundle);
    }
    *place = version;
    return CAR_OK;
}

static void take(const replay *r, int device, int bundle, int64_t version) {
    int64_t *place = place_of(r, device, bundle, version);
    if (place && *place == version) {
        *place = NOTHING;
    }
}

/* ---- uses --------------------------------------------------------------------------------------- */

static int first_tied(const car_validation *v, int stage) {
    for (int b = v->stages; b < v->bundles; b++) {
        if (v->partition->bundles[b].stage == stage) {
            return b;
        }
    }
    return CAR_NONE;
}

/* A custom plan: weights of its own step or of at most so many before it, and in backward those of the forward. */
static car_status check_age(const car_validation *v, int index) {
    const car_task *task = &v->tasks[index];
    const car_task *forward =
        &v->tasks[v->computes[car_validate_compute(v, task->step, task->worker, task->stage, false)]];
    bool tied = task->tied_version != CAR_NONE;
    int64_t oldest = tied && task->tied_version < task->version ? task->tied_version : task->version;
    int64_t newest = tied && task->tied_version > task->version ? task->tied_version : task->version;
    if (newest > task->step) {
        return car_validate_fail(v, index, "weights of step %lld in step %lld", (long long)newest,
                                 (long long)task->step);
    }
    if (task->step - oldest > v->max_delay) {
        return car_validate_fail(v, index, "its weights are %lld steps old, and max-delay is %lld",
                                 (long long)(task->step - oldest), (long long)v->max_delay);
    }
    if (task->version != forward->version || task->tied_version != forward->tied_version) {
        return car_validate_fail(v, index, "its forward used version %lld", (long long)forward->version);
    }
    return tied == (first_tied(v, task->stage) != CAR_NONE)
               ? CAR_OK
               : car_validate_fail(v, index, tied ? "its stage has no tied parameter" : "~VERSION is missing");
}

car_status car_validate_rule(const car_validation *v, int index) {
    const car_task *task = &v->tasks[index];
    if (v->custom) {
        return check_age(v, index);
    }
    int64_t version = car_validate_version(v, task->step, task->worker, task->stage);
    int tied = first_tied(v, task->stage);
    int64_t tied_version = CAR_NONE;
    if (tied != CAR_NONE) {
        tied_version = car_validate_version(v, task->step, task->worker, v->partition->bundles[tied].home);
    }
    if (task->version != version || task->tied_version != tied_version) {
        bool own = task->version != version;
        return car_validate_fail(v, index, "the rule says version %lld%s", (long long)(own ? version : tied_version),
                                 own ? "" : " of the tied parameter");
    }
    return CAR_OK;
}

/* The last micro-batch that uses a version, be it in this run or after it. */
static int64_t last_user(const car_validation *v, int64_t version, int home) {
    return (version + 1) * v->batches + car_validate_first_fresh(v, home) - 1;
}

/* In the cycle a forward or backward ends a version only if it is the last user of all: others send it on. */
static car_status end(replay *r, int index, int bundle, int64_t version) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    bool last = task->kind == CAR_TASK_BACKWARD &&
                task->step * v->batches + task->worker == last_user(v, version, v->partition->bundles[bundle].home);
    if (!v->spread && !v->custom && !last) {
        return car_validate_fail(v, index, "frees version %lld of bundle %d before its last use", (long long)version,
                                 bundle);
    }
    take(r, v->device_of[index], bundle, version);
    return CAR_OK;
}

static car_status use(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int device = v->device_of[index];
    car_status status = CAR_OK;
    CAR_TRY(car_validate_rule(v, index));
    for (int b = car_bundle_of_stage(v->partition, task->stage, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_stage(v->partition, task->stage, b)) {
        int home = v->partition->bundles[b].home;
        int64_t version = !v->custom      ? car_validate_version(v, task->step, task->worker, home)
                          : b < v->stages ? task->version
                                          : task->tied_version;
        if (!is_here(r, device, b, version)) {
            CAR_TRY(car_validate_fail(v, index, "version %lld of bundle %d is not here", (long long)version, b));
        }
        CAR_TRY(ends_weights(v, index, b, version) ? end(r, index, b, version) : CAR_OK);
    }
done:
    return status;
}

/* ---- comings and goings ------------------------------------------------------------------------- */

static car_status send(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int device = v->device_of[index];
    if (!is_here(r, device, task->bundle, task->version)) {
        return car_validate_fail(v, index, "sends weights that are not here");
    }
    bool ends = ends_weights(v, index, task->bundle, task->version);
    if (moves(v) && !ends) {
        return car_validate_fail(v, index, "weights that were handed on are kept");
    }
    if (ends) {
        take(r, device, task->bundle, task->version);
    }
    return CAR_OK;
}

/* theta_{t+1} is made of theta_t, which must be here, and may end with it where weights move. */
static car_status update(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    car_status status = CAR_OK;
    for (int b = car_bundle_of_home(v->partition, task->bundle, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_home(v->partition, task->bundle, b)) {
        if (b == task->bundle && !is_here(r, v->device_of[index], b, task->version - 1)) {
            CAR_TRY(car_validate_fail(v, index, "version %lld, from which it is made, is not here",
                                      (long long)task->version - 1));
        }
        if (b == task->bundle && ends_weights(v, index, b, task->version - 1)) {
            take(r, v->device_of[index], b, task->version - 1);
        }
        CAR_TRY(put(r, index, b, task->version));
    }
done:
    return status;
}

static car_status broadcast(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int owner = car_validate_owner(v, v->partition->bundles[task->bundle].home);
    if (!v->spread || !moves(v) || task->peer != owner) {
        return car_validate_fail(v, index, "there is nothing to broadcast like this");
    }
    if (!is_here(r, owner, task->bundle, task->version)) {
        return car_validate_fail(v, index, "the owner does not have it");
    }
    return v->device_of[index] == owner ? CAR_OK : put(r, index, task->bundle, task->version);
}

static car_status step_replay(replay *r, int index) {
    const car_task *task = &r->v->tasks[index];
    bool weights = task->cargo == CAR_CARGO_WEIGHTS;
    switch (task->kind) {
    case CAR_TASK_FORWARD:
    case CAR_TASK_BACKWARD:
        return use(r, index);
    case CAR_TASK_UPDATE:
        return update(r, index);
    case CAR_TASK_BROADCAST:
        return broadcast(r, index);
    case CAR_TASK_SEND:
        return weights ? send(r, index) : CAR_OK;
    case CAR_TASK_RECEIVE:
        return weights ? put(r, index, task->bundle, task->version) : CAR_OK;
    default:
        return CAR_OK;
    }
}

/* ---- beginning and end -------------------------------------------------------------------------- */

/* theta_0 is on every device that computes with it or that makes theta_1 of it; zero: on its owner. */
static void begin(replay *r) {
    const car_validation *v = r->v;
    for (int device = 0; device < v->devices; device++) {
        for (int b = 0; b < v->bundles; b++) {
            int64_t *place = place_of(r, device, b, 0);
            int group = v->partition->bundles[b].stage / v->per_worker;
            bool here = moves(v) ? is_owner(v, device, b) : !car_validate_in_groups(v) || v->groups[device] == group;
            if (place && here) {
                *place = 0;
            }
        }
    }
}

/* The last version stays with its owner; of a tied bundle others, too, whose last user is not in this run. An owner that
 * broadcasts keeps what it has. */
static bool may_stay(const car_validation *v, int device, int bundle, int64_t version) {
    int64_t last = last_user(v, version, v->partition->bundles[bundle].home);
    bool newest = version == v->steps && is_owner(v, device, bundle);
    return v->spread ? is_owner(v, device, bundle) : newest || (bundle >= v->stages && last >= v->steps * v->batches);
}

/* zero: what will not be used again has been freed everywhere. */
static car_status check_left(const replay *r) {
    const car_validation *v = r->v;
    for (int device = 0; moves(v) && device < v->devices; device++) {
        for (int b = 0; b < v->bundles; b++) {
            for (int64_t buffer = 0; buffer < BUFFERS; buffer++) {
                int64_t left = *place_of(r, device, b, buffer);
                if (v->partition->bundles[b].bytes > 0 && left != NOTHING && !may_stay(v, device, b, left)) {
                    return car_validate_fail(v, CAR_NONE, "version %lld of bundle %d is never freed on device %d",
                                             (long long)left, b, device);
                }
            }
        }
    }
    return CAR_OK;
}

car_status car_validate_versions(car_validation *v) {
    replay r = {.v = v};
    size_t places = car_validate_rows(v) * BUFFERS;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(v->context, places, sizeof *r.versions, &r.versions));
    for (size_t place = 0; place < places; place++) {
        r.versions[place] = NOTHING;
    }
    begin(&r);
    for (int n = 0; n < v->count; n++) {
        CAR_TRY(step_replay(&r, v->order[n]));
    }
    CAR_TRY(check_left(&r));
done:
    car_context_release(v->context, r.versions, places, sizeof *r.versions);
    return status;
}
