/* Decides how much of a plan to prove: a whole period of its table where that is quick, otherwise its beginning and
 * samples.
 *
 *   cells times steps   proven
 *   few                 a run of a whole period, with filling and draining
 *   more                the first steps, and samples over the period (a grid's is long)
 *   many                samples only */
#include <stdio.h>

#include "plan/script.h"
#include "plan/validate_internal.h"

static const int64_t affordable = 28672; /* micro-batches per step * stages * steps that take less than a second */
static const int64_t most_cells = (int64_t)1 << 22;

enum { FILL_AND_DRAIN = 4, PLACES = 2, LEAST_STEPS = 4, SAMPLES = 12 };

/* The greatest common divisor of two numbers above 0. */
static int64_t divisor(int64_t a, int64_t b) {
    while (b > 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a > 0 ? a : 1;
}

/* The number of steps after which the table repeats. In group r of a grid micro-batches take turns on N-r ranks. */
static int64_t period_of(const car_plan *plan) {
    const car_plan_config *config = car_plan_config_of(plan);
    int64_t N = config->workers, MN = N * config->accumulate, period = 1, most = INT64_MAX / (1 << 20);
    for (int64_t ranks = N; config->placement == CAR_PLACEMENT_GRID && config->rule != CAR_RULE_DP && ranks > 0;
         ranks--) {
        int64_t steps = ranks / divisor(MN, ranks);
        period = period < most ? period / divisor(period, steps) * steps : most;
    }
    return period;
}

/* Validates runs of all lengths up to where a custom plan only repeats itself. */
static car_status prove_script(car_plan *plan, int64_t cells, car_proof *out) {
    const car_script *script = plan->script;
    int64_t longest = script->end > 0 ? script->steps + 2 * script->repeated : script->steps, spent = 0;
    car_status status = CAR_OK;
    out->period = script->end > 0 ? script->repeated : longest;
    out->whole = true;
    out->steps = longest;
    CAR_TRY(car_plan_validate(plan, longest));
    for (int64_t steps = 1; steps < longest; steps++) { /* runs of different lengths end differently */
        spent += cells * steps;
        if (spent <= affordable) {
            CAR_TRY(car_plan_validate(plan, steps));
        }
    }
done:
    return status;
}

/* Checks samples spread over ranks and the period, always the same ones. */
static car_status prove_samples(car_plan *plan, int64_t cells, car_proof *out) {
    int devices = car_plan_devices(plan), samples = cells <= 65536 ? SAMPLES : cells <= 1 << 20 ? SAMPLES / 3 : 2;
    car_status status = CAR_OK;
    for (int n = 0; n < samples; n++) {
        int device = (int)((int64_t)devices * n / samples);
        int64_t window =
            n % 2 == 0 ? n / 2 % 2 : 2 + (int64_t)(car_random_u64(17, (uint64_t)n) % (uint64_t)out->period);
        CAR_TRY(car_validate_sample(plan, device, window));
        out->samples++;
    }
done:
    return status;
}

car_status car_plan_prove(car_plan *plan, car_proof *out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), out);
    int64_t cells = (int64_t)car_plan_micro_batches(plan) * car_plan_partition(plan)->stage_count;
    car_status status = CAR_OK;
    *out = (car_proof){.period = period_of(plan)};
    if (plan->script) {
        return prove_script(plan, cells, out);
    }
    /* Weights have two places, so an odd number of steps goes through them twice. */
    int64_t whole = out->period % PLACES == 0 ? out->period : PLACES * out->period;
    whole += FILL_AND_DRAIN;
    out->whole = whole <= affordable / cells;
    out->steps = out->whole ? whole : affordable / cells;
    out->steps = out->steps >= LEAST_STEPS ? out->steps : 0;
    if (out->steps > 0) {
        CAR_TRY(car_plan_validate(plan, out->steps));
    }
    if (!out->whole && cells <= most_cells) {
        CAR_TRY(prove_samples(plan, cells, out));
    }
    plan->proven = true; /* as far as possible: car_proof_text says how far */
done:
    return status;
}

int car_proof_text(const car_proof *proof, char *text, size_t capacity) {
    if (proof->whole) {
        return snprintf(text, capacity,
                        "Proven on the table of %lld steps, which includes the whole period (%lld %s): order, sums, "
                        "versions, messages, buffers, edges, no deadlock.",
                        (long long)proof->steps, (long long)proof->period, proof->period == 1 ? "step" : "steps");
    }
    if (proof->samples == 0) {
        return snprintf(text, capacity,
                        "Not proven, because the plan is too large; smaller plans of the same kind are.");
    }
    char first[96] = "";
    if (proof->steps > 0) {
        snprintf(first, sizeof first, "the table of the first %lld steps, and on ", (long long)proof->steps);
    }
    return snprintf(text, capacity,
                    "Proven on %s%d samples of three windows of a device: slots, versions, messages, edges. Not "
                    "proven, because the plan is too large: sums and deadlocks %s.",
                    first, proof->samples,
                    proof->steps > 0 ? "in the rest of its long period" : "(smaller plans of the same kind are)");
}
