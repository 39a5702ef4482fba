/* zero: counts, slot by slot, how many bytes of weights all ranks hold together, including what is in flight.
 *
 *   k = 1, L = 2      slot  s     s+1   s+2
 *   user              copy  use                   leaves in the slot of its use, or by the slot in which it is due
 *   the next user     ----- buffer ----- use
 *
 * So a chain has two copies of a stage in every other slot and one in the slots between, or two in every slot if
 * sends take long. The two chains use a stage in different slots, and its owner keeps one more version. */
#include "plan/predict_internal.h"

enum { STEPS = 4, READINGS = 2, KINDS = 2 };

/* Moments are half slots: the beginning and the end of each slot. */
typedef struct count {
    const car_plan *plan;
    int64_t steps;
    car_task_list tasks;
    car_usage *usage;
    car_use_list uses;
    car_ledger ledgers[READINGS][KINDS]; /* [copy leaves at once, or as late as allowed][stages, ties] */
    double *changes[READINGS][KINDS];
    size_t moments;
} count;

/* The last slot in which the sender still needs what it sends. A message starts when it is sent and its receive is
 * posted. */
static int64_t sent_until(const car_plan *plan, const car_task *task, bool lasting) {
    int64_t posted = task->due - car_plan_slots_ahead(plan, task);
    int64_t goes = posted > task->slot ? posted : task->slot;
    return lasting && task->due - 1 > goes ? task->due - 1 : goes;
}

static car_status account(count *c, const car_task *task) {
    car_status status = CAR_OK;
    CAR_TRY(car_usage_list(c->usage, task, &c->uses));
    for (int u = 0; u < c->uses.count; u++) {
        const car_use *use = &c->uses.uses[u];
        if (!car_ledger_counts_weights(use)) {
            continue;
        }
        for (int lasting = 0; lasting < READINGS; lasting++) {
            int64_t ahead = task->kind == CAR_TASK_RECEIVE ? car_plan_slots_ahead(c->plan, task) : 0;
            int64_t end = task->kind == CAR_TASK_SEND ? sent_until(c->plan, task, lasting) : task->slot;
            car_ledger *ledger = &c->ledgers[lasting][use->bundle >= c->plan->stages];
            CAR_TRY(car_ledger_account_weights(ledger, task, use, 2 * (task->slot - ahead), 2 * end + 1));
        }
    }
done:
    return status;
}

static car_status walk_rank(count *c, int rank) {
    car_status status = CAR_OK;
    CAR_TRY(car_usage_create(c->plan, rank, &c->usage));
    car_usage_set_steps(c->usage, c->steps);
    for (int64_t window = 0; window < car_plan_windows(c->plan, c->steps); window++) {
        CAR_TRY(car_plan_expand(c->plan, rank, window, c->steps, &c->tasks));
        for (int t = 0; t < c->tasks.count; t++) {
            CAR_TRY(account(c, &c->tasks.tasks[t]));
        }
    }
    for (int l = 0; l < READINGS * KINDS; l++) {
        car_balance balance;
        CAR_TRY(car_ledger_close(&c->ledgers[l / KINDS][l % KINDS], 1, c->changes[l / KINDS][l % KINDS], &balance));
    }
done:
    car_usage_destroy(c->usage);
    c->usage = NULL;
    return status;
}

static size_t highest(const double *changes, size_t count) {
    double sum = 0, most = 0;
    for (size_t n = 0; n < count; n++) {
        sum += changes[n];
        most = sum > most ? sum : most;
    }
    return (size_t)(most + 0.5);
}

static void conclude(const count *c, car_weights_ledger *out) {
    const car_plan *plan = c->plan;
    out->left = highest(c->changes[0][0], c->moments);
    out->left_tied = highest(c->changes[0][1], c->moments);
    out->lasting = highest(c->changes[1][0], c->moments);
    out->lasting_tied = highest(c->changes[1][1], c->moments);
    for (int b = 0; b < plan->partition->bundle_count; b++) {
        size_t bytes = plan->partition->bundles[b].copy_bytes;
        *(b < plan->stages ? &out->parameters : &out->tied) += bytes;
    }
    for (int rank = 0; rank < plan->devices; rank++) {
        size_t owned = 0;
        for (int b = 0; b < plan->partition->bundle_count; b++) {
            bool own = car_plan_owner(plan, 0, plan->partition->bundles[b].home) == rank;
            owned += own ? plan->partition->bundles[b].copy_bytes : 0;
        }
        out->owned = owned > out->owned ? owned : out->owned;
    }
}

car_status car_plan_count_weights(const car_plan *plan, car_weights_ledger *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(NULL, out);
    count c = {.plan = plan, .steps = STEPS};
    int64_t before = 2 * plan->period; /* owners send initial weights before slot 0 */
    car_status status = CAR_OK;
    *out = (car_weights_ledger){0};
    if (!plan->placement->info.owned || !car_plan_is_spaced(plan)) {
        return car_context_fail(plan->context, CAR_ERROR_UNSUPPORTED,
                                "copies of weights can only be counted with placement zero, and not with rule dp");
    }
    int windows = (int)car_plan_windows(plan, c.steps) + 2; /* messages sent in the last one may arrive after it */
    c.moments = (size_t)(2 * plan->period * windows + 2);
    for (int l = 0; l < READINGS * KINDS; l++) {
        car_ledger *ledger = &c.ledgers[l / KINDS][l % KINDS];
        CAR_TRY(car_ledger_open(plan, -before, 2 * plan->period, windows, 1, false, ledger));
        ledger->copies = true;
        CAR_TRY(car_context_allocate(plan->context, c.moments, sizeof(double), &c.changes[l / KINDS][l % KINDS]));
    }
    for (int rank = 0; rank < plan->devices; rank++) {
        CAR_TRY(walk_rank(&c, rank));
    }
    conclude(&c, out);
done:
    for (int l = 0; l < READINGS * KINDS; l++) {
        car_context_release(plan->context, c.changes[l / KINDS][l % KINDS], c.moments, sizeof(double));
        car_ledger_release(&c.ledgers[l / KINDS][l % KINDS]);
    }
    car_use_list_release(plan, &c.uses);
    car_task_list_release(plan, &c.tasks);
    return status;
}
