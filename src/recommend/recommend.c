/* The search itself. It bounds all choices, times those that may win, and finds the best of each kind (rule and
 * placement). */
#include "carousel/recommend.h"

#include <math.h>
#include <stdlib.h>

#include "plan/machine.h"
#include "recommend/search.h"

/* Steps that differ by less than 1 % count as equally long, and other things decide. A choice that cannot gain more
 * is not timed. */
static const double worth = 0.99;
static const double little_effort = 2e6; /* for everything that is timed only for comparison */
static const double far = 1.5;           /* times the best step */

car_recommend_config car_recommend_config_default(void) {
    return (car_recommend_config){.shape = car_model_config_default(),
                                  .global_batch = 32,
                                  .threads = 1,
                                  .optimizer = car_optimizer_config_default(),
                                  .correction_by_rule = true};
}

/* ---- candidates ------------------------------------------------------------------------------ */

static bool is_over(const car_search *search, double bytes) {
    return search->available > 0 && bytes > search->available;
}

static car_status add_candidate(car_search *search, const car_choice *choice) {
    car_candidate candidate;
    car_status status = CAR_OK;
    CAR_TRY(car_search_bound(search, choice, &candidate));
    if (candidate.devices == 0) {
        goto done;
    }
    candidate.over_memory = is_over(search, candidate.memory);
    if (!candidate.over_memory && (search->least_effort <= 0 || candidate.effort < search->least_effort)) {
        search->least_effort = candidate.effort;
    }
    if (search->config->progress) {
        search->config->progress(search->config->user, true, 0, search->count, 0);
    }
    CAR_TRY(car_search_grow(search->context, &search->candidates, search->count, &search->capacity,
                            sizeof *search->candidates));
    search->candidates[search->count++] = candidate;
done:
    return status;
}

static int compare_numbers(double a, double b) {
    return (a > b) - (a < b);
}

/* Makes bounds equal that differ only by rounding. */
static double round_bound(const car_candidate *c) {
    const double fineness = 1e6;
    return floor(fineness * log(car_candidate_bound(c)) + 0.5);
}

/* The most promising first. Of equal bounds, the simplest comes first: few workers, few micro-batches, few stages,
 * no slack. */
static int compare_promise(const void *left, const void *right) {
    const car_candidate *a = left, *b = right;
    int order = compare_numbers(round_bound(a), round_bound(b));
    order = order ? order : compare_numbers(a->computes, b->computes);
    order = order ? order : compare_numbers(a->choice.plan.workers, b->choice.plan.workers);
    order = order ? order : compare_numbers(a->choice.plan.accumulate, b->choice.plan.accumulate);
    order = order ? order : compare_numbers(a->choice.stages, b->choice.stages);
    order = order ? order : compare_numbers(a->choice.plan.freshness_slack, b->choice.plan.freshness_slack);
    order = order ? order : compare_numbers(b->choice.plan.zero_copies, a->choice.plan.zero_copies);
    order = order ? order : compare_numbers(a->choice.plan.zero_ahead, b->choice.plan.zero_ahead);
    order = order ? order : compare_numbers(a->choice.plan.rule, b->choice.plan.rule);
    order = order ? order : compare_numbers(a->choice.plan.placement, b->choice.plan.placement);
    return order ? order : compare_numbers(a->choice.plan.mapping, b->choice.plan.mapping);
}

/* ---- timing ---------------------------------------------------------------------------------- */

static car_status predict(car_search *search, const car_plan *plan, car_candidate *c, double *step) {
    car_optimizer_config optimizer = car_search_optimizer(search, &c->choice.plan);
    car_prediction p;
    car_status status = CAR_OK;
    CAR_TRY(car_plan_predict_optimizer(plan, &optimizer, &p));
    c->predicted = true;
    c->memory = (double)car_prediction_memory(&p);
    c->rest = c->memory - (double)p.timed.device_peak;
    c->over_memory = is_over(search, c->memory);
    c->bytes_sent = p.bytes_sent_device;
    *step = p.timed.step_time;
    search->effort += c->effort;
done:
    return status;
}

static car_status run(car_search *search, const car_plan *plan, double compute, car_candidate *c) {
    car_timing timing;
    car_status status = CAR_OK;
    CAR_TRY(car_plan_time_step(plan, search->config->cluster, compute, &timing));
    c->timed = true;
    c->step = timing.step;
    c->busiest = timing.busiest;
    search->effort += c->effort;
    search->timed++;
done:
    return status;
}

/* Finds how long a step takes and what a device needs. Without a `rival`, memory comes first, because nothing of
 * this kind is known to fit. With one, time comes first, and memory only if the candidate is faster. */
static car_status time_candidate(car_search *search, car_candidate *c, const car_candidate *rival) {
    bool one_process = car_placement_info_of(c->choice.plan.placement)->one_process;
    const car_subject *subject = NULL;
    const car_partition *partition = NULL;
    car_plan *plan = NULL;
    double step = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_search_find_partition(search, &c->choice, &partition));
    CAR_TRY(car_search_find_subject(search, &c->choice, &subject));
    CAR_TRY(car_search_plan(search, &c->choice, subject, partition, &plan));
    c->choice.plan.piece_bytes = car_plan_config_of(plan)->piece_bytes; /* recommend exactly what was timed */
    if (one_process || !rival) {
        CAR_TRY(predict(search, plan, c, &step));
    }
    if (one_process) { /* the prediction includes its time */
        c->timed = true;
        c->step = car_search_compute(subject, partition) * step;
        search->timed++;
    } else if (!c->over_memory) {
        CAR_TRY(run(search, plan, car_search_compute(subject, partition), c));
    }
    if (rival && !c->predicted && c->step < worth * rival->step) {
        CAR_TRY(predict(search, plan, c, &step));
    }
done:
    car_plan_destroy(plan);
    return status;
}

/* The best candidate of a kind so far, or (`kind` NULL) of all; NULL if none fits. */
static const car_candidate *best_of(const car_search *search, const car_candidate *kind) {
    return kind ? search->best_of_kind[kind->choice.plan.rule][kind->choice.plan.placement] : search->best;
}

static void keep_if_better(const car_candidate **best, const car_candidate *c) {
    bool known = c->timed && c->predicted && !c->over_memory;
    *best = known && (!*best || c->step < (*best)->step) ? c : *best;
}

/* True if bf16 may be chosen and its speed is unknown. */
static bool is_bf16_unknown(const car_recommend_config *config) {
    return config->cluster && config->cluster->bf16_flops <= 0 && !config->fixed.precision && !config->costs;
}

/* True for bf16 of unknown speed, which is tried only if memory requires it. */
static bool is_unwanted(const car_search *search, const car_candidate *c) {
    return is_bf16_unknown(search->config) && !search->guesses_bf16 && c->choice.precision == CAR_PRECISION_BF16;
}

static bool is_left(const car_search *search, const car_candidate *c) {
    return !c->timed && !c->over_memory && !is_unwanted(search, c);
}

static car_status consider(car_search *search, car_candidate *c) {
    const car_recommend_config *config = search->config;
    const car_candidate *best = best_of(search, NULL);
    const car_plan_config *p = &c->choice.plan;
    const car_candidate *smaller = config->thorough ? NULL : car_search_find_over_memory(search, c);
    car_status status = CAR_OK;
    double least = config->thorough ? c->memory : car_search_least_memory(search, c);
    if (smaller || is_over(search, least)) {
        c->over_memory = true;
        c->memory = smaller ? fmax(least, smaller->memory) : least;
        return CAR_OK;
    }
    if (config->progress) {
        int left = 0;
        for (int n = 0; n < search->count; n++) {
            left += is_left(search, &search->candidates[n]);
        }
        config->progress(config->user, false, (int)search->timed, (int)search->timed + left, best ? best->step : 0);
    }
    CAR_TRY(car_search_grow(search->context, &search->tried, search->tried_count, &search->tried_capacity,
                            sizeof *search->tried));
    search->tried[search->tried_count++] = c;
    CAR_TRY(time_candidate(search, c, config->thorough ? NULL : best_of(search, c)));
    keep_if_better(&search->best, c);
    keep_if_better(&search->best_of_kind[p->rule][p->placement], c);
done:
    return status;
}

/* `share`: the share of the whole search's budget that may be spent. */
static bool can_afford(const car_search *search, const car_candidate *c, double share) {
    bool smallest = search->effort <= 0 && c->effort <= search->least_effort;
    /* A second round may follow. */
    bool more = is_bf16_unknown(search->config) && !search->guesses_bf16 && search->available > 0;
    double most = (more ? 0.5 : 1) * share * CAR_SEARCH_EFFORT;
    return search->config->thorough || smallest || search->effort + c->effort <= most;
}

/* First times one candidate of each kind, so that all can be compared: the first that fits, in order of promise. A
 * kind that cannot come near the best is represented by its bound, unless timing it costs next to nothing. */
static car_status time_kinds(car_search *search) {
    const double share = 0.5;
    car_status status = CAR_OK;
    for (int n = 0; n < search->count && status == CAR_OK; n++) {
        car_candidate *c = &search->candidates[n];
        const car_candidate *best = best_of(search, NULL);
        bool near = !best || car_candidate_bound(c) < far * best->step || 20 * c->effort < little_effort;
        if (is_left(search, c) && near && !best_of(search, c) && can_afford(search, c, share)) {
            status = consider(search, c);
        }
    }
    return status;
}

/* Nothing that was tried fits: tries the candidates with the lowest memory bounds. */
static car_status time_smallest(car_search *search) {
    enum { TRIES = 4 };
    car_status status = CAR_OK;
    for (int t = 0; t < TRIES && !search->best && status == CAR_OK; t++) {
        car_candidate *least = NULL;
        for (int n = 0; n < search->count; n++) {
            car_candidate *c = &search->candidates[n];
            bool possible = is_left(search, c) && c->effort <= CAR_SEARCH_EFFORT;
            least = possible && (!least || c->memory < least->memory) ? c : least;
        }
        if (!least) {
            break;
        }
        status = consider(search, least);
    }
    return status;
}

/* Then times everything that may gain something over the best. */
static car_status time_rest(car_search *search) {
    car_status status = CAR_OK;
    for (int n = 0; n < search->count && status == CAR_OK; n++) {
        car_candidate *c = &search->candidates[n];
        const car_candidate *best = best_of(search, NULL);
        bool may_win = !best || car_candidate_bound(c) < worth * best->step;
        bool wanted = is_left(search, c) && (may_win || search->config->thorough) && can_afford(search, c, 1);
        if (wanted && (search->config->thorough || !car_search_is_needless(search, c))) {
            status = consider(search, c);
        }
    }
    return status;
}

/* Finally times what may improve the best of another kind, while that costs little. */
static car_status time_rivals(car_search *search) {
    double begun = search->effort;
    car_status status = CAR_OK;
    for (int n = 0; n < search->count && status == CAR_OK; n++) {
        car_candidate *c = &search->candidates[n];
        const car_candidate *own = best_of(search, c);
        bool gains = own && car_candidate_bound(c) < worth * own->step;
        bool cheap = search->effort + c->effort < begun + little_effort;
        if (is_left(search, c) && gains && cheap && !car_search_is_needless(search, c)) {
            status = consider(search, c);
        }
    }
    return status;
}

static car_status time_all(car_search *search) {
    car_status status = CAR_OK;
    CAR_TRY(time_kinds(search));
    CAR_TRY(time_smallest(search));
    CAR_TRY(time_rest(search));
    CAR_TRY(time_rivals(search));
done:
    return status;
}

/* ---- the result ------------------------------------------------------------------------------ */

static car_recommended row_of(const car_candidate *c) {
    return (car_recommended){.choice = c->choice,
                             .devices = c->devices,
                             .timed = c->timed,
                             .whole = c->predicted,
                             .step = c->timed ? c->step : car_candidate_bound(c),
                             .computes = c->computes,
                             .links = c->links,
                             .memory = c->memory,
                             .bytes_sent = c->bytes_sent,
                             .busiest = c->busiest,
                             .gradient_delay = c->gradient_delay};
}

/* The candidate that represents a kind: one that fits and is timed, else one that was not timed, else the one that
 * exceeds memory least. */
static const car_candidate *representative_of(const car_search *search, const car_candidate *kind) {
    const car_candidate *found = best_of(search, kind), *open = NULL, *least = NULL;
    for (int n = 0; n < search->count && !found; n++) {
        const car_candidate *c = &search->candidates[n];
        if (car_search_is_same_kind(&c->choice, &kind->choice)) {
            open = is_left(search, c) && !open ? c : open;
            least = c->over_memory && !is_unwanted(search, c) && (!least || c->memory < least->memory) ? c : least;
        }
    }
    return found ? found : open ? open : least;
}

static int lateness(const car_recommended *r) {
    car_lateness late = car_rule_info_of(r->choice.plan.rule)->late;
    return late == CAR_LATE_NEVER ? 0 : late == CAR_LATE_PARTLY ? 1 : 2;
}

/* True if `a` is preferable to `b`, where both fit, are timed, and are equally fast. */
static bool is_preferred(const car_recommended *a, const car_recommended *b) {
    if (lateness(a) != lateness(b)) {
        return lateness(a) < lateness(b);
    }
    if (a->choice.precision != b->choice.precision) {
        return a->choice.precision == CAR_PRECISION_FP32;
    }
    if (a->choice.batch != b->choice.batch) { /* costs do not show it, but kernels are faster on larger micro-batches */
        return a->choice.batch > b->choice.batch;
    }
    return a->memory != b->memory ? a->memory < b->memory : a->devices < b->devices;
}

static bool is_over_memory(const car_recommendation *r, const car_recommended *row) {
    return r->available > 0 && row->memory > r->available;
}

static car_reason reason_of(const car_recommendation *r, const car_recommended *row) {
    const car_recommended *best = &r->rows[0];
    if (row == best) {
        return r->fits ? CAR_REASON_BEST : is_over_memory(r, row) ? CAR_REASON_MEMORY : CAR_REASON_SKIPPED;
    }
    if (is_over_memory(r, row)) {
        return CAR_REASON_MEMORY;
    }
    if (row->timed && worth * row->step <= best->step) {
        return lateness(row) > lateness(best) ? CAR_REASON_LATE : CAR_REASON_EQUAL;
    }
    if (!row->timed && worth * row->step <= best->step) {
        return CAR_REASON_SKIPPED;
    }
    /* The reason why it is slower than the best: what it computes and sends at least, or the waiting on top of that. */
    double least = fmax(row->computes, row->links);
    if (!row->timed || row->step - least <= least - best->step) {
        return row->computes >= row->links ? CAR_REASON_COMPUTES : CAR_REASON_LINKS;
    }
    const double busy = 0.5; /* if the busiest link is busier than this, the wait is for it */
    return row->busiest > busy ? CAR_REASON_WAITS : CAR_REASON_IDLES;
}

static int compare_rows(const void *left, const void *right) {
    const car_recommended *a = left, *b = right;
    bool over_a = a->reason == CAR_REASON_MEMORY, over_b = b->reason == CAR_REASON_MEMORY;
    if (over_a != over_b) {
        return over_a - over_b;
    }
    return over_a ? compare_numbers(a->memory, b->memory) : compare_numbers(a->step, b->step);
}

/* Moves the recommended row to the front. */
static void choose(car_recommendation *r) {
    int chosen = 0;
    for (int n = 0; n < r->count; n++) {
        r->rows[n].reason = is_over_memory(r, &r->rows[n]) ? CAR_REASON_MEMORY : CAR_REASON_BEST;
    }
    car_sort(r->rows, (size_t)r->count, sizeof *r->rows, compare_rows);
    while (chosen + 1 < r->count && !r->rows[chosen].timed) { /* a mere bound is not recommended */
        chosen++;
    }
    r->fits = r->rows[chosen].timed && r->rows[chosen].reason == CAR_REASON_BEST;
    chosen = r->fits ? chosen : 0;
    double fastest = r->rows[chosen].step;
    for (int n = chosen + 1; n < r->count && r->fits; n++) {
        bool equal = r->rows[n].timed && r->rows[n].reason == CAR_REASON_BEST && worth * r->rows[n].step <= fastest;
        chosen = equal && is_preferred(&r->rows[n], &r->rows[chosen]) ? n : chosen;
    }
    car_recommended best = r->rows[chosen];
    for (int n = chosen; n > 0; n--) {
        r->rows[n] = r->rows[n - 1];
    }
    r->rows[0] = best;
    for (int n = 0; n < r->count; n++) {
        r->rows[n].reason = reason_of(r, &r->rows[n]);
    }
}

static car_status conclude(car_search *search, car_recommendation *out) {
    car_status status = CAR_OK;
    const car_candidate *best = best_of(search, NULL);
    for (int n = 0; n < search->count; n++) {
        const car_candidate *c = &search->candidates[n];
        bool first = true;
        if (is_unwanted(search, c)) {
            continue;
        }
        for (int row = 0; row < out->count && first; row++) {
            first = !car_search_is_same_kind(&out->rows[row].choice, &c->choice);
        }
        out->candidates++;
        out->over_memory += c->over_memory;
        bool may_win = !best || car_candidate_bound(c) < worth * best->step;
        out->skipped += is_left(search, c) && may_win && !car_search_is_needless(search, c);
        if (first) {
            CAR_TRY(car_search_grow(search->context, &out->rows, out->count, &out->capacity, sizeof *out->rows));
            out->rows[out->count++] = row_of(representative_of(search, c));
        }
    }
    out->timed = search->timed;
    out->available = search->available;
    out->cut_short = search->cut_short;
    const car_recommend_config *config = search->config;
    bool unknown = is_bf16_unknown(config);
    out->bf16_not_timed = unknown && !search->guesses_bf16;
    out->bf16_guessed = unknown && search->guesses_bf16;
    for (int n = 0; n < search->count; n++) {
        for (int row = 0; row < out->count; row++) {
            const car_candidate *c = &search->candidates[n];
            out->rows[row].candidates +=
                !is_unwanted(search, c) && car_search_is_same_kind(&c->choice, &out->rows[row].choice);
        }
    }
    choose(out);
done:
    return status;
}

/* ---- all ------------------------------------------------------------------------------------- */

static car_status check(car_context *context, const car_recommend_config *config) {
    const car_rule_info *rule = car_rule_info_of(config->given.plan.rule);
    if (config->global_batch < 1 || (!config->cluster && config->threads < 1)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a recommendation needs a global batch and a number of threads of at least 1");
    }
    if (config->cluster && config->cluster->devices < 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "the cluster's description does not give the number of devices: add \"devices\"");
    }
    if (config->exact && config->fixed.rule && rule->late != CAR_LATE_NEVER) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "rule %s has a delay, but only rules without a delay were asked for", rule->name);
    }
    if (config->costs && !config->fixed.batch) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "measured costs are valid for one size of micro-batch only; set the batch, too");
    }
    return CAR_OK;
}

car_status car_recommend(car_context *context, const car_recommend_config *config, car_recommendation *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, config);
    CAR_REQUIRE(context, out);
    car_search search = {.context = context, .config = config};
    car_status status = CAR_OK;
    *out = (car_recommendation){.context = context};
    CAR_TRY(check(context, config));
    search.devices = config->cluster ? config->cluster->devices : 1;
    search.available = config->cluster ? config->cluster->memory : config->memory;
    CAR_TRY(car_search_enumerate(&search, add_candidate));
    if (search.count == 0) {
        CAR_TRY(
            car_context_fail(context, CAR_ERROR_ARGUMENT,
                             "no plan fits these options: the %lld samples of a step must be workers x micro-batches "
                             "per worker x samples per micro-batch, %s, and the rule must fit the placement",
                             (long long)config->global_batch,
                             config->cluster ? "on no more devices than the cluster has"
                                             : "in one process (for plans over ranks, describe a cluster)"));
    }
    car_sort(search.candidates, (size_t)search.count, sizeof *search.candidates, compare_promise);
    CAR_TRY(time_all(&search));
    bool scarce = !search.best || search.best->choice.recompute.how != CAR_RECOMPUTE_OFF;
    if (is_bf16_unknown(config) && scarce && search.available > 0) {
        search.guesses_bf16 = true;
        CAR_TRY(time_all(&search));
    }
    CAR_TRY(conclude(&search, out));
done:
    car_context_release(context, search.tried, (size_t)search.tried_capacity, sizeof *search.tried);
    car_context_release(context, search.candidates, (size_t)search.capacity, sizeof *search.candidates);
    car_search_release_subjects(&search);
    return status;
}

void car_recommendation_release(car_recommendation *r) {
    if (r->context) {
        car_context_release(r->context, r->rows, (size_t)r->capacity, sizeof *r->rows);
    }
    *r = (car_recommendation){0};
}
