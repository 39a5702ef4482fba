/* The inside of the search for a plan.
 *
 *   dimensions.c   what can be chosen, a row each
 *   bounds.c       what a choice takes at least, without running its table
 *   alike.c        what follows from choices that were looked at before
 *   recommend.c    which choices are timed, and which is the best
 *   subjects.c     the models and partitions that choices need, each made once */
#ifndef CAR_RECOMMEND_SEARCH_H
#define CAR_RECOMMEND_SEARCH_H

#include "base/base.h"
#include "carousel/predict.h"
#include "carousel/recommend.h"

typedef struct car_candidate {
    car_choice choice;
    double computes, links; /* seconds of a step that the busiest device and the busiest link need at least */
    double memory;          /* bytes of a device: at least, or if `predicted` what the plan needs */
    double memory_at_best;  /* the same if as much as possible is recomputed */
    double activations;     /* of `memory`, at least */
    double rest;            /* if `predicted`: of `memory`, without activations */
    double effort;          /* tasks that timing it simulates */
    int64_t devices;
    bool timed, predicted, over_memory;
    double step, bytes_sent, busiest;
    int gradient_delay;
} car_candidate;

/* A model with one size of micro-batch, in one precision. */
typedef struct car_subject {
    int batch;
    car_precision precision;
    car_graph *graph;
    car_costs costs;
    double compute; /* seconds of the forwards and backwards of a micro-batch, if nothing is recomputed */
} car_subject;

typedef struct car_cutting {
    int batch, stages;
    car_precision precision;
    car_recompute_config recompute;
    car_partition *partition; /* NULL: it cannot be cut so */
} car_cutting;

/* Tasks that are simulated in one search, at most: some minutes. If no plan is that small, one that is larger is timed. */
#define CAR_SEARCH_EFFORT 6e7

typedef struct car_search {
    car_context *context;
    const car_recommend_config *config;
    int64_t devices;  /* that there are */
    double available; /* bytes of each; 0: enough */
    car_subject *subjects;
    car_cutting *cuttings;
    int subject_count, subject_capacity, cutting_count, cutting_capacity;
    car_candidate *candidates;
    int count, capacity;
    car_candidate plain; /* the last choice that was bounded without recomputation */
    bool has_plain;
    int64_t timed;
    const car_candidate *best, *best_of_kind[CAR_RULES][CAR_PLACEMENTS]; /* so far, that fit; NULL: none */
    const car_candidate **tried;                                         /* what was timed or predicted */
    int tried_count, tried_capacity;
    double effort;       /* spent */
    double least_effort; /* that one of the candidates takes */
    bool cut_short;      /* more choices than are listed */
    bool guesses_bf16;   /* nobody says how fast bf16 is, and memory asks for it: it is taken to be as fast as fp32 */
} car_search;

/* Makes room for one more element of an array. */
car_status car_search_grow(car_context *context, void *array_pointer, int count, int *capacity, size_t size);

/* ---- subjects.c ---- */

car_status car_search_find_subject(car_search *search, const car_choice *choice, const car_subject **out);
/* NULL if so little cannot be held with these stages. */
car_status car_search_find_partition(car_search *search, const car_choice *choice, const car_partition **out);
/* Seconds of the forwards and backwards of a micro-batch, what runs again included. */
double car_search_compute(const car_subject *subject, const car_partition *partition);
/* The plan of a choice, with pieces of sums that suit the cluster if there is one. */
car_status car_search_plan(const car_search *search, const car_choice *choice, const car_subject *subject,
                           const car_partition *partition, car_plan **out);
/* The optimizer as a rule has it. */
car_optimizer_config car_search_optimizer(const car_search *search, const car_plan_config *plan);
void car_search_release_subjects(car_search *search);

/* ---- dimensions.c ---- */

/* Of the activations, what is held and not made again. */
extern const double car_search_shares[];
extern const int car_search_share_count;

/* Calls `visit` for every choice that could be planned. */
typedef car_status (*car_choice_function)(car_search *search, const car_choice *choice);
car_status car_search_enumerate(car_search *search, car_choice_function visit);

/* ---- alike.c ---- */

/* Of one rule and placement. */
bool car_search_is_same_kind(const car_choice *a, const car_choice *b);
/* But for recomputation. */
bool car_search_is_same_but_recomputed(const car_choice *a, const car_choice *b);
/* One that was tried, does not fit, and needs no more than this one; or NULL. */
const car_candidate *car_search_find_over_memory(const car_search *search, const car_candidate *c);
/* Bytes of a device, at least. */
double car_search_least_memory(const car_search *search, const car_candidate *c);
/* Whether the same with less recomputed was timed and fits. */
bool car_search_is_needless(const car_search *search, const car_candidate *c);

/* ---- bounds.c ---- */

/* Fills in what follows from the choice alone. `out->devices` is 0 if there is no such plan, or none that could fit. */
car_status car_search_bound(car_search *search, const car_choice *choice, car_candidate *out);

static inline double car_candidate_bound(const car_candidate *c) {
    return c->computes > c->links ? c->computes : c->links;
}

#endif
