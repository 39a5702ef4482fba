/* A plan's table that can be changed, to test whether the validator notices, and the kinds of changes. */
#ifndef CAR_TESTS_MUTANT_H
#define CAR_TESTS_MUTANT_H

#include "plan/validate.h"

enum { CAR_MUTANT_DEVICES = 64 };

/* The tasks of one device over the whole run. */
typedef struct car_mutant_row {
    car_task *tasks;
    int count, capacity;
} car_mutant_row;

typedef struct car_mutant {
    const car_plan *plan;
    int64_t steps, period;
    int devices, workers, stages;
    car_placement placement;
    car_mutant_row rows[CAR_MUTANT_DEVICES];
    uint64_t seed, rolls;
    /* A change that is not in the table: which uses of tasks are marked as last. */
    /* Selects the uses whose `last` is changed, or NULL. */
    bool (*ends)(struct car_mutant *mutant, const car_task *task, int use_kind);
    car_task chosen;
    bool last; /* the new value */
} car_mutant;

/* Reads the whole table of a plan, which must outlive the mutant. `seed` decides where changes are made. */
void car_mutant_open(car_mutant *mutant, const car_plan *plan, int64_t steps, uint64_t seed);
void car_mutant_close(car_mutant *mutant);
/* The source that the validator reads instead of the plan. */
car_task_source car_mutant_source(car_mutant *mutant);

/* ---- changing it ---------------------------------------------------------------------------------------- */

/* The position of a task; device CAR_NONE: none. */
typedef struct car_spot {
    int device, at;
} car_spot;

int car_mutant_roll(car_mutant *mutant, int sides);
car_task *car_mutant_task(car_mutant *mutant, car_spot spot);
void car_mutant_insert(car_mutant *mutant, car_spot spot, car_task task);
/* Inserts a task as the first or the last one of its slot. */
void car_mutant_insert_in_slot(car_mutant *mutant, int device, car_task task, bool first);
car_task car_mutant_erase(car_mutant *mutant, car_spot spot);

typedef bool (*car_mutant_wanted)(car_mutant *mutant, car_spot spot, const car_task *task);

/* A random task among those that `wanted` accepts. */
car_spot car_mutant_find(car_mutant *mutant, car_mutant_wanted wanted);
/* The RECEIVE of a SEND, or the SEND of a RECEIVE. */
car_spot car_mutant_other_end(car_mutant *mutant, car_spot spot);

/* ---- the kinds of changes ------------------------------------------------------------------------------- */

int car_mutation_count(void);
const char *car_mutation_name(int kind);
/* Makes a change at a random place. Returns false, with nothing changed, if the plan has no place for it. Every
 * change is a mistake: none leaves an equivalent table. */
bool car_mutation_apply(int kind, car_mutant *mutant);

#endif
