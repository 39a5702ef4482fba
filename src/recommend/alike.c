/* Deduces facts about a choice from others that were tried before and differ in one thing only. */
#include <math.h>

#include "recommend/search.h"

bool car_search_is_same_kind(const car_choice *a, const car_choice *b) {
    return a->plan.rule == b->plan.rule && a->plan.placement == b->plan.placement;
}

/* True if they differ at most in recomputation, and in how early copies of weights are sent. */
static bool is_same_plan(const car_choice *a, const car_choice *b) {
    const car_plan_config *p = &a->plan, *q = &b->plan;
    return car_search_is_same_kind(a, b) && p->workers == q->workers && p->accumulate == q->accumulate &&
           p->sum_order == q->sum_order && p->ranks == q->ranks && p->mapping == q->mapping &&
           p->freshness_slack == q->freshness_slack && p->zero_copies == q->zero_copies && a->stages == b->stages &&
           a->precision == b->precision;
}

bool car_search_is_same_but_recomputed(const car_choice *a, const car_choice *b) {
    return is_same_plan(a, b) && a->batch == b->batch && a->plan.zero_ahead == b->plan.zero_ahead;
}

/* A plan needs less memory if copies are sent later and sums have less time. So if that variant does not fit, this
 * one cannot. */
const car_candidate *car_search_find_over_memory(const car_search *search, const car_candidate *c) {
    for (int n = 0; n < search->tried_count; n++) {
        const car_candidate *other = search->tried[n];
        const car_plan_config *p = &c->choice.plan, *q = &other->choice.plan;
        bool less = q->zero_ahead <= p->zero_ahead && q->freshness_slack <= p->freshness_slack;
        car_choice alike = other->choice;
        alike.plan.freshness_slack = p->freshness_slack;
        if (other->over_memory && less && is_same_plan(&c->choice, &alike) &&
            other->choice.recompute.how == c->choice.recompute.how &&
            other->choice.recompute.share == c->choice.recompute.share) {
            return other;
        }
    }
    return NULL;
}

/* The memory that does not depend on recomputation is known once the same plan was predicted with another amount of
 * it. */
double car_search_least_memory(const car_search *search, const car_candidate *c) {
    double least = c->memory;
    for (int n = 0; n < search->tried_count; n++) {
        const car_candidate *other = search->tried[n];
        if (other->predicted && other->choice.plan.zero_ahead == c->choice.plan.zero_ahead &&
            is_same_plan(&c->choice, &other->choice)) {
            least = fmax(least, other->rest + c->activations);
        }
    }
    return least;
}

/* True if the same plan with less recomputation was timed and fits: then this one cannot win. */
bool car_search_is_needless(const car_search *search, const car_candidate *c) {
    for (int n = 0; n < search->tried_count && c->choice.recompute.how != CAR_RECOMPUTE_OFF; n++) {
        const car_candidate *other = search->tried[n];
        if (other->timed && !other->over_memory && other->computes <= c->computes &&
            other->choice.plan.zero_ahead == c->choice.plan.zero_ahead && is_same_plan(&c->choice, &other->choice)) {
            return true;
        }
    }
    return false;
}
