/* The validator: the weights of zero, where two copies of each version travel from user to user.
 *
 *   owner     keeps a version from the update that makes it to the one that makes the next from it
 *   copies    of each bundle a rank has at most one copy received for a forward and one for a backward. A copy comes
 *             from the previous user, or from the owner to the first user, at most L slots before it is used
 *   the end   a copy ends when it was used and was sent on to the next user, if the run has one */
#include "plan/validate_internal.h"

enum { KEPT = 2, CHAINS = 2, NOTHING = -1 };

typedef struct copy {
    int64_t version; /* NOTHING: there is no copy */
    bool used, sent;
} copy;

typedef struct holding {
    int64_t kept[KEPT]; /* of a home, on its owner: by version mod 2 */
    copy copies[CHAINS];
} holding;

typedef struct replay {
    const car_validation *v;
    holding *holdings; /* by row */
} replay;

/* ---- the definition ----------------------------------------------------------------------------- */

int64_t car_validate_first_user(const car_validation *v, int64_t version, int home) {
    return version == 0 ? 0 : version * v->batches + car_validate_first_fresh(v, home);
}

int64_t car_validate_last_user(const car_validation *v, int64_t version, int home) {
    return (version + 1) * v->batches + car_validate_first_fresh(v, home) - 1;
}

bool car_validate_uses_kept(const car_validation *v, int64_t n, int64_t version, int home) {
    return n % v->workers == car_validate_owner(v, home) && n == car_validate_first_user(v, version, home);
}

static int64_t slot_of(const car_validation *v, int64_t n, int stage, bool backward) {
    return car_validate_slot(v, n / v->batches, (int)(n % v->batches), stage, backward);
}

/* A message carries only the number within a step. Finds the first micro-batch with that number that can use the
 * version: not before the slot of a receive, and only after the slot of a send. */
int64_t car_validate_weights_user(const car_validation *v, const car_task *task) {
    bool backward = task->cargo == CAR_CARGO_BACKWARD_WEIGHTS;
    int64_t earliest = task->slot + (task->kind == CAR_TASK_SEND), n = task->micro_batch;
    int home = v->partition->bundles[task->bundle].home;
    while (slot_of(v, n, task->stage, backward) < earliest ||
           car_validate_version(v, n / v->batches, task->micro_batch, home) < task->version) {
        n += v->batches;
    }
    return n;
}

/* ---- what a rank has ---------------------------------------------------------------------------- */

static holding *at(const replay *r, int device, int bundle) {
    return &r->holdings[car_validate_row(r->v, device, bundle)];
}

static bool keeps(const replay *r, int device, int home, int64_t version) {
    return at(r, device, home)->kept[version % KEPT] == version;
}

/* Called when a copy was used or sent on. Executors must be told when it ends, and not earlier. */
static car_status end_if_over(const car_validation *v, int index, int bundle, copy *c, bool passed_on) {
    bool over = c->used && (c->sent || !passed_on);
    if (over != car_validate_ends(v, index, CAR_RESOURCE_WEIGHTS, bundle, c->version)) {
        return car_validate_fail(v, index,
                                 over ? "version %lld of bundle %d is not freed after its last use"
                                      : "frees version %lld of bundle %d before its last use",
                                 (long long)c->version, bundle);
    }
    *c = over ? (copy){.version = NOTHING} : *c;
    return CAR_OK;
}

/* A custom plan may send a copy on before or after its use. If a copy ends too early, a later use fails; if it never
 * ends, it is found at the end of the replay. */
static car_status end_if_said(const car_validation *v, int index, int bundle, copy *c) {
    bool ends = car_validate_ends(v, index, CAR_RESOURCE_WEIGHTS, bundle, c->version);
    *c = ends ? (copy){.version = NOTHING} : *c;
    return CAR_OK;
}

/* A kept version ends only when the next one is made from it. */
static car_status check_kept(const car_validation *v, int index, int home, int64_t version) {
    return car_validate_ends(v, index, CAR_RESOURCE_WEIGHTS, home, version)
               ? car_validate_fail(v, index, "frees version %lld of bundle %d, which its owner keeps",
                                   (long long)version, home)
               : CAR_OK;
}

/* True if another micro-batch of the run gets the copy after n. */
static bool is_passed_on(const car_validation *v, int64_t n, int64_t version, int home) {
    return n < car_validate_last_user(v, version, home) && n + 1 < v->steps * v->batches;
}

/* ---- tasks -------------------------------------------------------------------------------------- */

static car_status use(void *held, int index, int bundle, int64_t version) {
    replay *r = held;
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int device = v->device_of[index], home = v->partition->bundles[bundle].home;
    int64_t n = task->step * v->batches + task->micro_batch;
    copy *c = &at(r, device, bundle)->copies[task->kind == CAR_TASK_BACKWARD];
    bool kept = v->custom ? c->version != version || c->used : car_validate_uses_kept(v, n, version, home);
    if (kept) {
        return keeps(r, device, home, version)
                   ? check_kept(v, index, home, version)
                   : car_validate_fail(v, index, "its owner does not keep version %lld of bundle %d",
                                       (long long)version, home);
    }
    if (c->version != version) {
        return car_validate_fail(v, index, "version %lld of bundle %d is not on this device", (long long)version,
                                 bundle);
    }
    c->used = true;
    return v->custom ? end_if_said(v, index, bundle, c)
                     : end_if_over(v, index, bundle, c, is_passed_on(v, n, version, home));
}

/* Not earlier than L slots before its use. An owner may send a kept version earlier, before it makes the next one
 * from it. */
static car_status check_time(const car_validation *v, int index, int64_t n, bool kept) {
    const car_task *task = &v->tasks[index];
    int64_t used = slot_of(v, n, task->stage, task->cargo == CAR_CARGO_BACKWARD_WEIGHTS);
    bool early = used - task->slot > v->config.zero_ahead && !(kept && task->kind == CAR_TASK_SEND);
    return early ? car_validate_fail(v, index, "it is sent %lld slots before its use in slot %lld; %d are allowed",
                                     (long long)(used - task->slot), (long long)used, v->config.zero_ahead)
                 : CAR_OK;
}

/* A copy is for one worker, which must be on the receiving device. */
static car_status check_worker(const car_validation *v, int index) {
    const car_task *task = &v->tasks[index];
    int receiver = task->kind == CAR_TASK_SEND ? task->peer : v->device_of[index];
    return receiver == task->micro_batch % v->workers
               ? CAR_OK
               : car_validate_fail(v, index, "this copy is for a worker of another rank");
}

/* A custom plan: sends the received copy if it was not sent yet, otherwise the kept version. */
static car_status send_any(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int device = v->device_of[index], home = v->partition->bundles[task->bundle].home;
    copy *c = &at(r, device, task->bundle)->copies[task->cargo == CAR_CARGO_BACKWARD_WEIGHTS];
    if (c->version == task->version && !c->sent) {
        c->sent = true;
        return end_if_said(v, index, task->bundle, c);
    }
    return keeps(r, device, home, task->version)
               ? check_kept(v, index, home, task->version)
               : car_validate_fail(v, index, "it sends weights that are not on this device");
}

static car_status send_by_rule(replay *r, int index) {
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int device = v->device_of[index], home = v->partition->bundles[task->bundle].home;
    int64_t n = car_validate_weights_user(v, task), first = car_validate_first_user(v, task->version, home);
    bool kept = n == first || car_validate_uses_kept(v, n - 1, task->version, home);
    int from = n == first ? car_validate_owner(v, home) : (int)((n - 1) % v->workers);
    copy *c = &at(r, device, task->bundle)->copies[task->cargo == CAR_CARGO_BACKWARD_WEIGHTS];
    if (device != from) {
        return car_validate_fail(v, index, "micro-batch %d should get this copy from device %d", task->micro_batch,
                                 from);
    }
    if (kept ? !keeps(r, device, home, task->version) : c->version != task->version || c->sent) {
        return car_validate_fail(v, index, "it sends weights that are not on this device");
    }
    c->sent = c->sent || !kept;
    car_status status = kept ? check_kept(v, index, home, task->version) : end_if_over(v, index, task->bundle, c, true);
    return status == CAR_OK ? check_time(v, index, n, kept) : status;
}

static car_status send(void *held, int index) {
    replay *r = held;
    car_status status = check_worker(r->v, index);
    if (status != CAR_OK) {
        return status;
    }
    return r->v->custom ? send_any(r, index) : send_by_rule(r, index);
}

static car_status receive(void *held, int index) {
    replay *r = held;
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int home = v->partition->bundles[task->bundle].home;
    copy *c = &at(r, v->device_of[index], task->bundle)->copies[task->cargo == CAR_CARGO_BACKWARD_WEIGHTS];
    car_status status = check_worker(v, index);
    if (status != CAR_OK) {
        return status;
    }
    int64_t n = v->custom ? 0 : car_validate_weights_user(v, task);
    if (!v->custom && (car_validate_version(v, n / v->batches, task->micro_batch, home) != task->version ||
                       car_validate_uses_kept(v, n, task->version, home))) {
        return car_validate_fail(v, index, "nothing on this device uses this copy");
    }
    if (c->version != NOTHING) {
        return car_validate_fail(v, index, "version %lld of bundle %d was never freed", (long long)c->version,
                                 task->bundle);
    }
    *c = (copy){.version = task->version};
    status = check_kept(v, index, task->bundle, task->version); /* receiving does not end it */
    return status == CAR_OK && !v->custom ? check_time(v, index, n, false) : status;
}

static car_status update(void *held, int index) {
    replay *r = held;
    const car_validation *v = r->v;
    const car_task *task = &v->tasks[index];
    int64_t *kept = at(r, v->device_of[index], task->bundle)->kept;
    if (kept[(task->version - 1) % KEPT] != task->version - 1) {
        return car_validate_fail(v, index, "version %lld, from which it is made, is not on this device",
                                 (long long)task->version - 1);
    }
    if (!car_validate_ends(v, index, CAR_RESOURCE_WEIGHTS, task->bundle, task->version - 1)) {
        return car_validate_fail(v, index, "version %lld of bundle %d is not freed after its last use",
                                 (long long)task->version - 1, task->bundle);
    }
    kept[(task->version - 1) % KEPT] = NOTHING;
    kept[task->version % KEPT] = task->version;
    return CAR_OK;
}

/* ---- beginning and end -------------------------------------------------------------------------- */

static void begin(replay *r) {
    const car_validation *v = r->v;
    for (int device = 0; device < v->devices; device++) {
        for (int b = 0; b < v->bundles; b++) {
            bool owned = b < v->stages && v->partition->bundles[b].bytes > 0 && car_validate_owner(v, b) == device;
            *at(r, device, b) = (holding){.kept = {owned ? 0 : NOTHING, NOTHING},
                                          .copies = {{.version = NOTHING}, {.version = NOTHING}}};
        }
    }
}

/* At the end every copy must have ended, and owners must have the last version. */
static car_status check_left(const replay *r) {
    const car_validation *v = r->v;
    for (int device = 0; device < v->devices; device++) {
        for (int b = 0; b < v->bundles; b++) {
            const holding *h = at(r, device, b);
            for (int c = 0; c < CHAINS; c++) {
                int64_t left = h->copies[c].version;
                int64_t old = h->kept[c] != NOTHING && h->kept[c] != v->steps ? h->kept[c] : NOTHING;
                if (left != NOTHING || old != NOTHING) {
                    return car_validate_fail(v, CAR_NONE, "version %lld of bundle %d is never freed on device %d",
                                             (long long)(left != NOTHING ? left : old), b, device);
                }
            }
        }
    }
    return CAR_OK;
}

car_status car_validate_chains(car_validation *v) {
    const car_weights_holding holding = {.use = use, .update = update, .send = send, .receive = receive};
    replay r = {.v = v};
    size_t rows = car_validate_rows(v);
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(v->context, rows, sizeof *r.holdings, &r.holdings));
    begin(&r);
    CAR_TRY(car_validate_replay_weights(v, &holding, &r));
    CAR_TRY(check_left(&r));
done:
    car_context_release(v->context, r.holdings, rows, sizeof *r.holdings);
    return status;
}
