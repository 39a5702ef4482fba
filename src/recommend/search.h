/* The private definitions of the search for the best plan of a model on a cluster.
 *
 *   dimensions.c   what can be chosen, one row per dimension
 *   bounds.c       lower bounds for a choice, without running its table
 *   alike.c        what earlier choices imply for similar ones
 *   recommend.c    which choices are timed, and which one is best
 *   subjects.c     the models and partitions that choices need, each made once */
#ifndef CAR_RECOMMEND_SEARCH_H
#define CAR_RECOMMEND_SEARCH_H

#include "base/base.h"
#include "carousel/predict.h"
#include "carousel/recommend.h"

typedef struct car_candidate {
    car_choice choice;
    double computes, links; /* lower bounds in seconds per step: for the busiest device, and for the busiest link */
    double memory;          /* bytes of a device: a lower bound, or if `predicted` what the plan needs */
    double memory_at_best;  /* the same if as much as possible is recomputed */
    double activations;     /* the part of `memory` that is activations, at least */
    double rest;            /* if `predicted`: `memory` without activations */
    double effort;          /* how many tasks timing it would simulate */
    int64_t devices;
    bool timed, predicted, over_memory;
    double step, bytes_sent, busiest;
    int gradient_delay;
} car_candidate;

/* A model with one micro-batch size, in one precision. */
typedef struct car_subject {
    int batch;
    car_precision precision;
    car_graph *graph;
    car_costs costs;
    double compute; /* seconds for the forwards and backwards of a micro-batch without recomputation */
} car_subject;

typedef struct car_cutting {
    int batch, stages;
    car_precision precision;
    car_recompute_config recompute;
    car_partition *partition; /* NULL: it cannot be cut like this */
} car_cutting;

/* The most tasks that one search simulates: a few minutes. If no plan is that small, one larger plan is timed. */
#define CAR_SEARCH_EFFORT 6e7

typedef struct car_search {
    car_context *context;
    const car_recommend_config *config;
    int64_t devices;  /* how many the cluster has */
    double available; /* bytes of each device; 0: unlimited */
    car_subject *subjects;
    car_cutting *cuttings;
    int subject_count, subject_capacity, cutting_count, cutting_capacity;
    car_candidate *candidates;
    int count, capacity;
    car_candidate plain; /* the last choice that was bounded, without recomputation */
    bool has_plain;
    int64_t timed;
    const car_candidate *best, *best_of_kind[CAR_RULES][CAR_PLACEMENTS]; /* the best so far that fit; NULL: none */
    const car_candidate **tried;                                         /* candidates that were timed or predicted */
    int tried_count, tried_capacity;
    double effort;       /* spent so far */
    double least_effort; /* the least that any candidate takes */
    bool cut_short;      /* there are more choices than were listed */
    /* The speed of bf16 is unknown but memory requires it, so it is assumed to be as fast as fp32. */
    bool guesses_bf16;
} car_search;

/* Makes room for one more element of an array. */
car_status car_search_grow(car_context *context, void *array_pointer, int count, int *capacity, size_t size);

/* ---- subjects.c ---- */

car_status car_search_find_subject(car_search *search, const car_choice *choice, const car_subject **out);
/* *out is NULL if these stages cannot hold so little. */
car_status car_search_find_partition(car_search *search, const car_choice *choice, const car_partition **out);
/* Seconds for the forwards and backwards of a micro-batch, including recomputation. */
double car_search_compute(const car_subject *subject, const car_partition *partition);
/* The plan of a choice. With a cluster, sums are cut into pieces that suit it. */
car_status car_search_plan(const car_search *search, const car_choice *choice, const car_subject *subject,
                           const car_partition *partition, car_plan **out);
/* The optimizer as configured for the plan's rule. */
car_optimizer_config car_search_optimizer(const car_search *search, const car_plan_config *plan);
void car_search_release_subjects(car_search *search);

/* ---- dimensions.c ---- */

/* The shares of activations that recomputation may leave held. */
extern const double car_search_shares[];
extern const int car_search_share_count;

/* Calls `visit` for every choice that can be planned. */
typedef car_status (*car_choice_function)(car_search *search, const car_choice *choice);
car_status car_search_enumerate(car_search *search, car_choice_function visit);

/* ---- alike.c ---- */

/* True if both have the same rule and placement. */
bool car_search_is_same_kind(const car_choice *a, const car_choice *b);
/* True if they differ in recomputation only. */
bool car_search_is_same_but_recomputed(const car_choice *a, const car_choice *b);
/* A candidate that was tried, does not fit, and needs no more than this one; or NULL. */
const car_candidate *car_search_find_over_memory(const car_search *search, const car_candidate *c);
/* A lower bound for the bytes of a device. */
double car_search_least_memory(const car_search *search, const car_candidate *c);
/* True if the same plan with less recomputation was timed and fits. */
bool car_search_is_needless(const car_search *search, const car_candidate *c);

/* ---- bounds.c ---- */

/* Fills in what follows from the choice alone. `out->devices` is 0 if there is no such plan, or if it cannot fit. */
car_status car_search_bound(car_search *search, const car_choice *choice, car_candidate *out);

static inline double car_candidate_bound(const car_candidate *c) {
    return c->computes > c->links ? c->computes : c->links;
}

#endif
