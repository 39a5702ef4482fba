/* The dimensions of the search, one row each. A row lists the possible values, given what the rows above have
 * chosen, and applies one of them.
 *
 * If a dimension means nothing for a choice, its row lists a single neutral value. */
#include <limits.h>

#include "plan/internal.h"
#include "plan/rules.h"
#include "recommend/search.h"

enum { MOST_VALUES = 256, MOST_WORKERS = 1 << 16, MOST_ACCUMULATED = 1 << 16 };

typedef struct dimension {
    /* Returns the number of values. */
    int (*values)(car_search *search, const car_choice *choice, int *values);
    void (*apply)(car_choice *choice, int value);
} dimension;

static int one(int value, int *values) {
    values[0] = value;
    return 1;
}

/* ---- rule and placement ---------------------------------------------------------------------- */

/* True if another rule makes the same table in the only placement that this one runs on. */
static bool is_duplicate(car_rule rule) {
    const car_rule_entry *entry = car_rule_entry_of(rule);
    bool found = false;
    for (int r = 0; r < CAR_RULES; r++) {
        const car_rule_entry *other = car_rule_entry_of((car_rule)r);
        found = found || (other->info.anywhere && entry->only && other->clock == entry->clock &&
                          other->stale_workers == entry->stale_workers);
    }
    return found;
}

static int list_rules(car_search *s, const car_choice *choice, int *values) {
    int count = 0;
    (void)choice;
    if (s->config->fixed.rule) {
        return one((int)s->config->given.plan.rule, values);
    }
    for (int r = 0; r < CAR_RULES; r++) {
        bool late = car_rule_info_of((car_rule)r)->late != CAR_LATE_NEVER;
        if (!(late && s->config->exact) && !is_duplicate((car_rule)r)) {
            values[count++] = r;
        }
    }
    return count;
}

static void apply_rule(car_choice *choice, int value) {
    choice->plan.rule = (car_rule)value;
}

static bool go_together(const car_search *s, car_rule rule, car_placement placement) {
    const car_rule_entry *entry = car_rule_entry_of(rule);
    const car_placement_class *class = car_placement_class_of(placement);
    if (class->info.one_process && s->config->cluster && !entry->info.in_turns) {
        return false; /* a device has one micro-batch at a time */
    }
    /* There it becomes another rule, which is tried under its own name. */
    bool renamed = class->in_line && entry->in_line && !s->config->fixed.rule;
    return (class->info.one_process || s->config->cluster) && (!entry->only || entry->only == class) && !renamed;
}

static int list_placements(car_search *s, const car_choice *choice, int *values) {
    int count = 0;
    for (int p = 0; p < CAR_PLACEMENTS; p++) {
        bool open = !s->config->fixed.placement || p == (int)s->config->given.plan.placement;
        if (open && go_together(s, choice->plan.rule, (car_placement)p)) {
            values[count++] = p;
        }
    }
    return count;
}

static void apply_placement(car_choice *choice, int value) {
    choice->plan.placement = (car_placement)value;
    if (!car_placement_info_of(choice->plan.placement)->one_process) {
        choice->plan.threads = 0;
    }
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static bool is_open(bool fixed, int given, int value) {
    return !fixed || given == value;
}

/* Divisors of the global batch for which there are enough devices. Where a rank may host several workers, list_ranks
 * decides about that. */
static int list_workers(car_search *s, const car_choice *choice, int *values) {
    const car_recommend_config *c = s->config;
    const car_placement_info *placement = car_placement_info_of(choice->plan.placement);
    int64_t most = c->global_batch < MOST_WORKERS ? c->global_batch : MOST_WORKERS;
    int count = 0;
    for (int n = 1; n <= most && count < MOST_VALUES; n++) {
        car_plan_config plan = choice->plan;
        plan.workers = n;
        bool enough = placement->one_process || placement->fewer_ranks || car_plan_config_devices(&plan) <= s->devices;
        bool right = c->global_batch % n == 0 && is_open(c->fixed.workers, c->given.plan.workers, n);
        if (enough && right) {
            values[count++] = n;
        }
    }
    return count;
}

static void apply_workers(car_choice *choice, int value) {
    choice->plan.workers = value;
}

/* True if timing a plan with so many micro-batches, and as many stages as workers, would exceed the budget of a
 * whole search. Where all workers do the same at once, only one is simulated. */
static bool is_too_much(const car_choice *choice, int accumulated) {
    const double passes = 2, steps = 5;
    double workers = choice->plan.workers;
    bool alike =
        car_rule_info_of(choice->plan.rule)->together && !car_placement_info_of(choice->plan.placement)->by_stage;
    return !alike && passes * steps * accumulated * workers * workers > CAR_SEARCH_EFFORT;
}

/* Divisors of a worker's samples per step, each at least half as large again as the one before, because plans in
 * between differ little. Where micro-batches take turns anyway, this is the same plan with more workers. */
static int list_accumulated(car_search *s, const car_choice *choice, int *values) {
    const car_recommend_config *c = s->config;
    int64_t samples = c->global_batch / choice->plan.workers;
    int64_t most = samples < MOST_ACCUMULATED ? samples : MOST_ACCUMULATED;
    bool in_turns = car_rule_info_of(choice->plan.rule)->in_turns && !c->fixed.accumulate;
    int count = 0, last = 0;
    for (int m = 1; m <= (in_turns ? 1 : most) && count < MOST_VALUES; m++) {
        int64_t batch = samples / m;
        bool right = samples % m == 0 && batch <= INT32_MAX && is_open(c->fixed.batch, c->given.batch, (int)batch);
        bool spread = 2 * m >= 3 * last || c->fixed.batch || c->fixed.accumulate;
        if (right && spread && is_open(c->fixed.accumulate, c->given.plan.accumulate, m)) {
            if (count > 0 && is_too_much(choice, m)) {
                s->cut_short = true;
                break;
            }
            values[count++] = last = m;
        }
    }
    return count;
}

static void apply_accumulated(car_choice *choice, int value) {
    choice->plan.accumulate = value;
}

/* Sums travel once per micro-batch, or once per step at the price of one more sum. Where a plan can have either,
 * both are tried. */
static int list_sum_orders(car_search *s, const car_choice *choice, int *values) {
    const car_recommend_config *c = s->config;
    const car_placement_info *placement = car_placement_info_of(choice->plan.placement);
    bool travels = !placement->one_process && !placement->by_stage && car_rule_info_of(choice->plan.rule)->spaced;
    if (choice->plan.accumulate == 1 || c->fixed.sum_order || !travels) {
        return one((int)c->given.plan.sum_order, values);
    }
    values[0] = CAR_SUM_ORDER_WORKER;
    values[1] = CAR_SUM_ORDER_MICRO_BATCH;
    return 2;
}

static void apply_sum_order(car_choice *choice, int value) {
    choice->plan.sum_order = (car_sum_order)value;
}

static int list_batches(car_search *s, const car_choice *choice, int *values) {
    return one((int)(s->config->global_batch / choice->plan.workers / choice->plan.accumulate), values);
}

static void apply_batch(car_choice *choice, int value) {
    choice->batch = value;
}

/* bf16 where its speed is known, or where memory may require it (see guesses_bf16). */
static int list_precisions(car_search *s, const car_choice *choice, int *values) {
    const car_recommend_config *c = s->config;
    (void)choice;
    if (c->fixed.precision || c->costs || !c->cluster || (c->cluster->bf16_flops <= 0 && s->available <= 0)) {
        return one((int)c->shape.precision, values);
    }
    values[0] = CAR_PRECISION_FP32;
    values[1] = CAR_PRECISION_BF16;
    return 2;
}

static void apply_precision(car_choice *choice, int value) {
    choice->precision = (car_precision)value;
}

/* Up to four workers per rank: more would take longer to simulate and gain nothing. For all workers on one rank
 * there is accumulation. */
static int list_ranks(car_search *s, const car_choice *choice, int *values) {
    const car_recommend_config *c = s->config;
    int count = 0, workers = choice->plan.workers;
    if (!car_placement_info_of(choice->plan.placement)->fewer_ranks) {
        return one(0, values);
    }
    for (int hosted = 1; hosted <= (c->fixed.ranks ? workers : 4); hosted++) {
        int ranks = workers / hosted;
        bool several = ranks > 1 || workers == 1;
        if (workers % hosted == 0 && several && ranks <= s->devices &&
            is_open(c->fixed.ranks, c->given.plan.ranks, ranks)) {
            values[count++] = ranks;
        }
    }
    return count;
}

static void apply_ranks(car_choice *choice, int value) {
    choice->plan.ranks = value;
}

/* With one worker per rank, neighbours are on neighbouring devices, as the cluster numbers them. */
static int list_mappings(car_search *s, const car_choice *choice, int *values) {
    const car_recommend_config *c = s->config;
    if (!car_placement_maps_workers(choice->plan.placement)) {
        return one(CAR_MAPPING_INTERLEAVED, values);
    }
    if (c->fixed.mapping) {
        return one((int)c->given.plan.mapping, values);
    }
    values[0] = CAR_MAPPING_CONTIGUOUS;
    values[1] = CAR_MAPPING_INTERLEAVED;
    bool several = choice->plan.ranks > 0 && choice->plan.ranks < choice->plan.workers;
    return several ? 2 : 1;
}

static void apply_mapping(car_choice *choice, int value) {
    choice->plan.mapping = (car_mapping)value;
}

const double car_search_shares[] = {0.5, 0.35, 0.25, 0.15};
enum { SHARES = sizeof car_search_shares / sizeof car_search_shares[0] };
const int car_search_share_count = SHARES;

/* What is recomputed: nothing, what is cheap, as much as the stages allow, or down to one of the shares. */
enum { RECOMPUTE_NOTHING, RECOMPUTE_CHEAP, RECOMPUTE_MOST, RECOMPUTE_SHARES };

static int list_recomputations(car_search *s, const car_choice *choice, int *values) {
    int count = RECOMPUTE_SHARES + SHARES;
    (void)choice;
    if (s->config->fixed.recompute || s->available == 0) {
        return one(0, values); /* if memory suffices, recomputation only costs time */
    }
    for (int n = 0; n < count; n++) {
        values[n] = n;
    }
    return count;
}

static void apply_recomputation(car_choice *choice, int value) {
    if (value == RECOMPUTE_CHEAP) {
        choice->recompute = (car_recompute_config){.how = CAR_RECOMPUTE_AUTO};
    } else if (value == RECOMPUTE_MOST) {
        choice->recompute = (car_recompute_config){.how = CAR_RECOMPUTE_FIRST, .tensors = INT_MAX};
    } else if (value >= RECOMPUTE_SHARES) {
        double share = car_search_shares[value - RECOMPUTE_SHARES];
        choice->recompute = (car_recompute_config){.how = CAR_RECOMPUTE_SHARE, .share = share};
    }
}

/* 1, 2, 4 and 8 stages per worker, as long as there are enough operations. */
static int list_stages(car_search *s, const car_choice *choice, int *values) {
    const car_recommend_config *c = s->config;
    const car_subject *subject = NULL;
    int count = 0, workers = choice->plan.workers;
    if (c->fixed.stages) {
        return c->given.stages % workers == 0 ? one(c->given.stages, values) : 0;
    }
    if (car_search_find_subject(s, choice, &subject) != CAR_OK) {
        return 0; /* the failure occurs again where it is reported */
    }
    for (int k = 1; k <= 8; k *= 2) {
        if (k == 1 || (int64_t)k * workers <= subject->costs.count) {
            values[count++] = k * workers;
        }
    }
    return car_placement_info_of(choice->plan.placement)->one_process ? 1 : count;
}

static void apply_stages(car_choice *choice, int value) {
    choice->stages = value;
}

static int list_slacks(car_search *s, const car_choice *choice, int *values) {
    const car_recommend_config *c = s->config;
    int count = one(0, values);
    if (!car_rule_info_of(choice->plan.rule)->has_slack) {
        return count;
    }
    if (c->fixed.slack) {
        return one(c->given.plan.freshness_slack, values);
    }
    bool jumps = car_placement_maps_workers(choice->plan.placement) && choice->plan.workers > 1;
    for (int slack = 1; jumps && slack <= 8 && slack <= choice->stages; slack *= 2) {
        values[count++] = slack;
    }
    return count;
}

static void apply_slack(car_choice *choice, int value) {
    choice->plan.freshness_slack = value;
}

/* ---- weights that travel --------------------------------------------------------------------- */

static bool moves_weights(const car_choice *choice) {
    return car_placement_info_of(choice->plan.placement)->owned && car_rule_info_of(choice->plan.rule)->spaced &&
           choice->plan.workers > 1;
}

static int64_t size_of(const car_choice *choice) {
    return (int64_t)choice->plan.workers * choice->plan.accumulate * choice->stages;
}

/* For a large plan only the ordinary form is tried, because timing or predicting one takes a good part of the
 * search. */
static bool is_large(const car_choice *choice) {
    return size_of(choice) > 1 << 14;
}

/* A single copy of each version is slower and needs less memory. A slack would not make it smaller. */
static int list_copies(car_search *s, const car_choice *choice, int *values) {
    const car_recommend_config *c = s->config;
    if (!moves_weights(choice)) {
        return one(0, values);
    }
    if (c->fixed.zero_copies || c->fixed.zero_ahead) {
        return one(c->fixed.zero_copies && c->given.plan.zero_copies > 0 ? c->given.plan.zero_copies : 2, values);
    }
    values[0] = 2;
    values[1] = 1;
    bool smaller = !is_large(choice) || (size_of(choice) <= 1 << 17 && choice->plan.freshness_slack == 0);
    return (s->available > 0 && smaller) || c->thorough ? 2 : 1;
}

static void apply_copies(car_choice *choice, int value) {
    choice->plan.zero_copies = value;
}

/* How early two copies are sent: the smallest value and its doubles. */
static int list_aheads(car_search *s, const car_choice *choice, int *values) {
    const car_recommend_config *c = s->config;
    int k = choice->stages / choice->plan.workers;
    if (choice->plan.zero_copies != 2) {
        return one(0, values);
    }
    if (c->fixed.zero_ahead && c->given.plan.zero_ahead > 0) {
        return one(c->given.plan.zero_ahead, values);
    }
    return is_large(choice) ? one(2 * k, values) : car_plan_list_aheads(choice->stages, k, true, values);
}

static void apply_ahead(car_choice *choice, int value) {
    choice->plan.zero_ahead = value;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static const dimension dimensions[] = {
    {list_rules, apply_rule},           {list_placements, apply_placement},
    {list_workers, apply_workers},      {list_accumulated, apply_accumulated},
    {list_sum_orders, apply_sum_order}, {list_batches, apply_batch},
    {list_precisions, apply_precision}, {list_ranks, apply_ranks},
    {list_mappings, apply_mapping},     {list_stages, apply_stages},
    {list_slacks, apply_slack},         {list_copies, apply_copies},
    {list_aheads, apply_ahead},         {list_recomputations, apply_recomputation},
};

enum { DIMENSIONS = sizeof dimensions / sizeof dimensions[0] };

static car_status enumerate_from(car_search *search, int at, const car_choice *so_far, car_choice_function visit) {
    int values[MOST_VALUES];
    car_status status = CAR_OK;
    if (at == DIMENSIONS) {
        return visit(search, so_far);
    }
    int count = dimensions[at].values(search, so_far, values);
    for (int v = 0; v < count && status == CAR_OK; v++) {
        car_choice choice = *so_far;
        dimensions[at].apply(&choice, values[v]);
        status = enumerate_from(search, at + 1, &choice, visit);
    }
    return status;
}

car_status car_search_enumerate(car_search *search, car_choice_function visit) {
    const car_recommend_config *c = search->config;
    car_choice nothing = {.plan = {.threads = c->cluster ? 1 : c->threads}};
    if (c->fixed.recompute) {
        nothing.recompute = c->given.recompute;
    }
    return enumerate_from(search, 0, &nothing, visit);
}
