/* The validator: weights, in every placement except zero with two copies (validate_chains.c). The version that a
 * task uses must be on its device: there from the start, made by an UPDATE, or received, and not freed or
 * overwritten since. Version v is in place v mod 2, so a device has at most two of a bundle; the replay shows that
 * two are enough. */
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

/* zero keeps weights that nobody uses at the owner of their home. */
static bool is_owner(const car_validation *v, int device, int bundle) {
    return moves(v) && device == car_validate_owner(v, v->partition->bundles[bundle].home);
}

static bool ends_weights(const car_validation *v, int index, int bundle, int64_t version) {
    return car_validate_ends(v, index, CAR_RESOURCE_WEIGHTS, bundle, version);
}

/* A version is made or arrives on a device. It may replace one that nobody needs any more (a later use would show
 * otherwise). Where weights move, the old one must have been freed. */
static car_status put(replay *r, int index, int bundle, int64_t version) {
    const car_validation *v = r->v;
    int device = v->device_of[index];
    int64_t *place = place_of(r, device, bundle, version);
    if (!place) {
        return car_validate_fail(v, index, "bundle %d is not used on this device", bundle);
    }
    if (ends_weights(v, index, bundle, version)) {
        return car_validate_fail(v, index, "it frees version %lld of bundle %d, which it receives or makes",
                                 (long long)version, bundle);
    }
    if (*place == version) {
        return car_validate_fail(v, index, "version %lld of bundle %d is already on this device", (long long)version,
                                 bundle);
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

/* In the cycle a forward or backward ends a version only if it is the version's last user; others send it on. */
static car_status end(replay *r, int index, int bundle, int64_t version) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    bool last =
        task->kind == CAR_TASK_BACKWARD && task->step * v->batches + task->micro_batch ==
                                               car_validate_last_user(v, version, v->partition->bundles[bundle].home);
    if (!v->spread && !v->custom && !last) {
        return car_validate_fail(v, index, "it frees version %lld of bundle %d before its last use", (long long)version,
                                 bundle);
    }
    take(r, v->device_of[index], bundle, version);
    return CAR_OK;
}

static car_status use(void *held, int index, int bundle, int64_t version) {
    replay *r = held;
    const car_validation *v = r->v;
    if (!is_here(r, v->device_of[index], bundle, version)) {
        return car_validate_fail(v, index, "version %lld of bundle %d is not on this device", (long long)version,
                                 bundle);
    }
    return ends_weights(v, index, bundle, version) ? end(r, index, bundle, version) : CAR_OK;
}

/* ---- sending and receiving ---------------------------------------------------------------------- */

static car_status send(void *held, int index) {
    replay *r = held;
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int device = v->device_of[index];
    if (!is_here(r, device, task->bundle, task->version)) {
        return car_validate_fail(v, index, "it sends weights that are not on this device");
    }
    bool ends = ends_weights(v, index, task->bundle, task->version);
    if (moves(v) && !ends) {
        return car_validate_fail(v, index, "weights that were sent on must not be kept");
    }
    if (ends) {
        take(r, device, task->bundle, task->version);
    }
    return CAR_OK;
}

/* theta_{t+1} is made from theta_t, which must be here and may end with the update where weights move. */
static car_status update(void *held, int index) {
    replay *r = held;
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    car_status status = CAR_OK;
    for (int b = car_bundle_of_home(v->partition, task->bundle, CAR_NONE); b != CAR_NONE;
         b = car_bundle_of_home(v->partition, task->bundle, b)) {
        if (b == task->bundle && !is_here(r, v->device_of[index], b, task->version - 1)) {
            CAR_TRY(car_validate_fail(v, index, "version %lld, from which it is made, is not on this device",
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

static car_status broadcast(void *held, int index) {
    replay *r = held;
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int owner = car_validate_owner(v, v->partition->bundles[task->bundle].home);
    if (!v->spread || !moves(v) || task->peer != owner) {
        return car_validate_fail(v, index, "this rule and placement have no such broadcast");
    }
    if (!is_here(r, owner, task->bundle, task->version)) {
        return car_validate_fail(v, index, "the owner does not have these weights");
    }
    return v->device_of[index] == owner ? CAR_OK : put(r, index, task->bundle, task->version);
}

static car_status receive(void *held, int index) {
    replay *r = held;
    const car_task *task = &r->v->tasks[index];
    return put(r, index, task->bundle, task->version);
}

/* ---- beginning and end -------------------------------------------------------------------------- */

/* theta_0 is on every device that computes with it or makes theta_1 from it; zero: on its owner. */
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

/* At the end, the last version stays on its owner. Of a tied bundle other versions may stay, too, if their last user
 * is not in this run. An owner that broadcasts keeps what it has. */
static bool may_stay(const car_validation *v, int device, int bundle, int64_t version) {
    int64_t last = car_validate_last_user(v, version, v->partition->bundles[bundle].home);
    bool newest = version == v->steps && is_owner(v, device, bundle);
    if (v->custom) { /* an owner makes a tied bundle with its home, whether or not anybody needs it */
        return newest || (bundle >= v->stages && is_owner(v, device, bundle));
    }
    return v->spread ? is_owner(v, device, bundle) : newest || (bundle >= v->stages && last >= v->steps * v->batches);
}

/* zero: what will not be used again must have been freed everywhere. */
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
    const car_weights_holding holding = {
        .use = use, .update = update, .send = send, .receive = receive, .broadcast = broadcast};
    replay r = {.v = v};
    size_t places = car_validate_rows(v) * BUFFERS;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(v->context, places, sizeof *r.versions, &r.versions));
    for (size_t place = 0; place < places; place++) {
        r.versions[place] = NOTHING;
    }
    begin(&r);
    CAR_TRY(car_validate_replay_weights(v, &holding, &r));
    CAR_TRY(check_left(&r));
done:
    car_context_release(v->context, r.versions, places, sizeof *r.versions);
    return status;
}
