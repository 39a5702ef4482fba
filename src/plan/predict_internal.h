/* Declarations shared by the files that make predictions: reading the table, and the ledger of what is alive when. */
#ifndef CAR_PREDICT_INTERNAL_H
#define CAR_PREDICT_INTERNAL_H

#include "carousel/predict.h"
#include "plan/placement.h"
#include "plan/rules.h"
#include "plan/usage.h"

/* Predicts what follows from the table alone: memory for state (weights, sums, optimizer), and traffic in steady
 * state. */
car_status car_predict_table(const car_plan *plan, const car_optimizer_sizes *optimizer, car_prediction *out);
/* The same for the state of one device over a run of `steps` steps. */
car_status car_predict_device_table(const car_plan *plan, int device, int64_t steps,
                                    const car_optimizer_sizes *optimizer, car_device_prediction *out);

/* ---- what is alive on a device, and when ------------------------------------------------------ */

/* The time during which one version of a bundle's weights, or one step's sum, is alive. */
typedef struct car_life_span {
    int64_t id;         /* version or step */
    int64_t begin, end; /* moments, both inclusive */
    bool known;         /* this entry is used */
    bool held;          /* still held for later tasks; after its last use it may return */
} car_life_span;

typedef struct car_change {
    int64_t moment;
    double bytes;
    int bundle, count; /* count: +1 or -1 */
} car_change;

/* Everything that one device holds over the observed moments. */
typedef struct car_ledger {
    const car_plan *plan;
    int64_t begin;        /* the first observed moment; what was not made later has been there since then */
    int64_t from, to;     /* averages are taken over from .. to, where everything is fully known */
    bool merges;          /* several devices that share memory are recorded one after another, and nothing is freed */
    car_life_span *spans; /* `depth` entries for each bundle */
    int depth;            /* more than the ids of a bundle that are alive at once in the observed moments */
    car_change *changes;
    int count, capacity;
    int *alive, *most; /* scratch of car_ledger_close, by bundle */
    /* Set by the caller after opening: it counts copies of weights (in the precision used for computing), otherwise
     * sums. */
    bool copies;
} car_ledger;

enum { CAR_LEDGER_DEPTH = 8 }; /* more than the versions of a bundle, or the steps, in the observed moments */

/* Opens a ledger over `windows` windows of `window` moments each, from `begin` on. `parts`: how many ids one version
 * or step has. */
car_status car_ledger_open(const car_plan *plan, int64_t begin, int64_t window, int windows, int parts, bool merges,
                           car_ledger *out);
void car_ledger_release(car_ledger *ledger);

/* It is made or arrives. Does nothing if it is already there. */
car_status car_ledger_begin(car_ledger *ledger, int bundle, int64_t id, int64_t moment);
/* It is used. If it never began, it was there from the beginning. */
car_status car_ledger_use(car_ledger *ledger, int bundle, int64_t id, int64_t moment);
/* It is used if it is there; `last`: for the last time. */
void car_ledger_touch(car_ledger *ledger, int bundle, int64_t id, int64_t moment, bool last);
/* The next version is made from it, and takes its place unless it is used later. */
car_status car_ledger_renew(car_ledger *ledger, int bundle, int64_t id, int64_t moment);

/* True if a use is one of weights that are counted; and the id of those weights. Copies of a version have different
 * ids. */
static inline bool car_ledger_counts_weights(const car_use *use) {
    car_resource_kind kind = car_use_kind(use);
    return kind == CAR_RESOURCE_WEIGHTS || (kind == CAR_RESOURCE_SOURCE && use->mode == CAR_USE_READ);
}
static inline int64_t car_ledger_span(const car_plan *plan, const car_use *use) {
    return car_plan_has_chains(plan) ? use->id * CAR_COPIES + use->copy : use->id;
}
/* Records weights that a task uses from `begin` to `end`. What the task makes or receives begins; what an update is
 * made from may end. */
car_status car_ledger_account_weights(car_ledger *ledger, const car_task *task, const car_use *use, int64_t begin,
                                      int64_t end);

typedef struct car_balance {
    double peak, mean; /* bytes */
    double places;     /* bytes, if every bundle keeps room for the most it ever has at once */
    int most;          /* the most of one bundle at once */
} car_balance;

/* Closes the account of a device; the ledger is empty afterwards. If `changes` is not NULL, adds every change of
 * bytes to it, times `weight`, by moment from the ledger's beginning. */
car_status car_ledger_close(car_ledger *ledger, double weight, double *changes, car_balance *out);

#endif
