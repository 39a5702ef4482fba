/* The table of a plan from a file whose schedule is the user's own (rule=custom): tasks up to the end of the marked
 * period, which repeats.
 *
 *     slot   0 ......... begin ......... end
 *            once        again and again, each time `repeated` steps further on
 *
 * Without a period the table ends, and with it the longest run. */
#ifndef CAR_PLAN_SCRIPT_H
#define CAR_PLAN_SCRIPT_H

#include "plan/internal.h"
#include "plan/text.h"
#include "plan/usage.h"

/* What a task has to know of those around it. Under a rule it follows from the clock. Numbers of steps: something is
 * so in runs of more steps than that, INT64_MAX: in none. */
typedef struct car_script_fact {
    int64_t needed;    /* the task is part of the run */
    int64_t sum_again; /* its device uses the sum again */
    int64_t weights_again
        [2];        /* the same of weights: the task's bundle (of an update, the version before), the stage's ties */
    int64_t passed; /* a receive of weights: they are sent on from here */
    bool passed_before;  /* and that before their use */
    car_copy copy[2];    /* which weights it uses, sends or brings, as above */
    bool renewed;        /* a send of weights: an update comes before it that makes the next version of them */
    bool late, finishes; /* a backward: it is the first to add to a sum that came by a message; the last to add */
    bool begins;         /* a sum of its own */
    int leg;             /* see car_usage_leg: the how-manieth sum of its bundle and step here */
} car_script_fact;

/* The table of some periods, the devices one behind the other. */
typedef struct car_script_layout {
    car_task *tasks;
    car_script_fact *facts;
    int count;
    int *first;  /* device d: tasks first[d] .. first[d + 1] - 1 */
    int *before; /* device -> how many of the file's come before the period */
} car_script_layout;

typedef struct car_script {
    int64_t begin, end; /* slots of the period; both 0: none */
    int64_t repeated;   /* steps of a period */
    int64_t steps;      /* that the file has */
    int64_t max_delay;
    int64_t window;    /* slots of one */
    int64_t first_end; /* the slot of the first step's last backward */
    car_task_list *devices;
    car_script_layout layout;
    unsigned char *delays; /* [micro-batch of a step][stage]: 1 if it uses last step's weights */
    bool exact; /* a run that drains and goes on does what it would without: each delay is the same in every step */
} car_script;

/* Takes over the tasks of all devices, in order, their slots ascending. CAR_ERROR_FORMAT if the period is none, or
 * what comes behind it is not what it repeats. */
car_status car_script_create(car_plan *plan, const car_plan_header *header, car_task_list *devices);
void car_script_destroy(car_plan *plan);

/* Appends the tasks of a device in slots from..to-1. */
car_status car_script_expand(const car_plan *plan, int device, int64_t from, int64_t to, int64_t steps,
                             car_task_list *list);
int64_t car_script_windows(const car_plan *plan, int64_t steps);
/* The slot of a forward or backward; 0 if there is none. */
int64_t car_script_slot(const car_plan *plan, int64_t step, int micro_batch, int stage, bool backward);
/* The first device that makes the update of a stage in a step. */
int car_script_maker(const car_plan *plan, int64_t step, int stage);
/* A task of the file, so many periods later. */
car_task car_script_repeat(const car_script *script, const car_task *task, int64_t times);

/* ---- script_facts.c --------------------------------------------------------------------------- */

/* Fills in the layout, and when sends are due. */
car_status car_script_take_notes(car_plan *plan);
void car_script_release_layout(car_plan *plan, car_script_layout *layout);
/* Of task n of a device's part of the file, so many periods later. */
int64_t car_script_needed(const car_script *script, int device, int n, int64_t times);
/* Of any task; its numbers of steps are to be raised by *since. One that is not in the table has facts that say
 * nothing. */
const car_script_fact *car_script_fact_of(const car_plan *plan, int device, const car_task *task, int64_t *since);

#endif
