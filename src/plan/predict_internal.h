/* What the files of the predictions share. */
#ifndef CAR_PREDICT_INTERNAL_H
#define CAR_PREDICT_INTERNAL_H

#include "carousel/predict.h"
#include "plan/placement.h"
#include "plan/rules.h"
#include "plan/usage.h"

/* What can be read off the table: states and traffic of steady state. */
car_status car_predict_table(const car_plan *plan, const car_optimizer_sizes *optimizer, car_prediction *out);
/* The states of one device, over a run of so many steps. */
car_status car_predict_device_table(const car_plan *plan, int device, int64_t steps,
                                    const car_optimizer_sizes *optimizer, car_device_prediction *out);

/* ---- what is alive on a device, and when ------------------------------------------------------ */

/* A version of a bundle's weights, or a step's sum of its gradients. */
typedef struct car_life_span {
    int64_t id;         /* version or step */
    int64_t begin, end; /* moments, both included */
    bool known;         /* this is in use */
    bool held;          /* for tasks; after its last use it may come again */
} car_life_span;

typedef struct car_change {
    int64_t moment;
    double bytes;
    int bundle, count; /* +1, -1 */
} car_change;

/* All holdings of one device over the moments that are looked at. */
typedef struct car_ledger {
    const car_plan *plan;
    int64_t begin;        /* what is not made later was there from here on */
    int64_t from, to;     /* what happens in between is fully known, so this is where averages are taken */
    bool merges;          /* nothing is freed: devices that share their memory are told one after the other */
    car_life_span *spans; /* `depth` for each bundle */
    int depth;            /* more than there are of a bundle in the moments that are looked at */
    car_change *changes;
    int count, capacity;
    int *alive, *most; /* scratch of car_ledger_close, by bundle */
    bool copies;       /* set by who opened it: of weights as they are computed with; otherwise of sums */
} car_ledger;

enum {
    CAR_LEDGER_DEPTH = 8
}; /* more than there are versions of a bundle, or steps, in the moments that are looked at */

/* `windows` of `window` moments each are looked at, from `begin` on. `parts`: ids that a version or step has. */
car_status car_ledger_open(const car_plan *plan, int64_t begin, int64_t window, int windows, int parts, bool merges,
                           car_ledger *out);
void car_ledger_release(car_ledger *ledger);

/* It comes into being, or arrives; does nothing if it is there. */
car_status car_ledger_begin(car_ledger *ledger, int bundle, int64_t id, int64_t moment);
/* It is used; what nobody began was there from the beginning. */
car_status car_ledger_use(car_ledger *ledger, int bundle, int64_t id, int64_t moment);
/* It is used if it is there, for the last time if it is so said. */
void car_ledger_touch(car_ledger *ledger, int bundle, int64_t id, int64_t moment, bool last);
/* The next version is made of it, in its place unless it is used later. */
car_status car_ledger_renew(car_ledger *ledger, int bundle, int64_t id, int64_t moment);

/* Whether a use is of weights, which are counted; and their id. Copies of a version are told apart. */
static inline bool car_ledger_counts_weights(const car_use *use) {
    car_resource_kind kind = car_use_kind(use);
    return kind == CAR_RESOURCE_WEIGHTS || (kind == CAR_RESOURCE_SOURCE && use->mode == CAR_USE_READ);
}
static inline int64_t car_ledger_span(const car_plan *plan, const car_use *use) {
    return car_plan_has_chains(plan) ? use->id * CAR_COPIES + use->copy : use->id;
}
/* Weights that a task uses from `begin` to `end`. What it makes, or what comes with it, begins; what an update is made
 * of may end with it. */
car_status car_ledger_account_weights(car_ledger *ledger, const car_task *task, const car_use *use, int64_t begin,
                                      int64_t end);

typedef struct car_balance {
    double peak, mean; /* bytes */
    double places;     /* bytes, if every bundle keeps room for as many as it ever has at once */
    int most;          /* that there were of one bundle at once */
} car_balance;

/* Ends the account of a device; the ledger is empty afterwards. Every change of its bytes is added to `changes`,
 * `weight` times, by moment from the ledger's beginning on; NULL: to nothing. */
car_status car_ledger_close(car_ledger *ledger, double weight, double *changes, car_balance *out);

#endif
