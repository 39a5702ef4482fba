/* The table of a custom plan (rule=custom), read from the user's own schedule file. The file lists the tasks up to
 * the end of a marked period, and the period then repeats.
 *
 *     slot   0 ......... begin ......... end
 *            once        repeated, each time `repeated` steps later
 *
 * Without a period the table ends there, and no run can be longer. */
#ifndef CAR_PLAN_SCRIPT_H
#define CAR_PLAN_SCRIPT_H

#include "plan/internal.h"
#include "plan/text.h"
#include "plan/usage.h"

/* What a task has to know about the tasks around it. Under a built-in rule this follows from the clock. The int64_t
 * members are numbers of steps: the statement holds in runs of more steps than that; INT64_MAX: in no run. */
typedef struct car_script_fact {
    int64_t needed;    /* the task is part of the run */
    int64_t sum_again; /* the device uses the sum again */
    /* The device uses these weights again: [0] the task's bundle (for an update, the version before it), [1] the
     * stage's ties. */
    int64_t weights_again[2];
    int64_t passed;     /* a receive of weights: this device sends them on */
    bool passed_before; /* and does so before using them */
    car_copy copy[2];   /* which copy of the weights it uses, sends or brings; indexed like weights_again */
    bool renewed;       /* a send of weights: an update before it makes the next version from them */
    /* A backward: late: it is the first to add to a received sum; finishes: it is the last to add. */
    bool late, finishes;
    bool begins; /* a backward: it starts a new sum */
    int leg;     /* see car_usage_leg: which of the sums of its bundle and step on this device */
} car_script_fact;

/* The table of several periods, with the devices one after another. */
typedef struct car_script_layout {
    car_task *tasks;
    car_script_fact *facts;
    int count;
    int *first;  /* device d: tasks first[d] .. first[d + 1] - 1 */
    int *before; /* by device: how many of the file's tasks come before the period */
} car_script_layout;

typedef struct car_script {
    int64_t begin, end; /* slots of the period; both 0: there is none */
    int64_t repeated;   /* steps per period */
    int64_t steps;      /* number of steps in the file */
    int64_t max_delay;
    int64_t window;    /* slots per window */
    int64_t first_end; /* the slot of the first step's last backward */
    car_task_list *devices;
    car_script_layout layout;
    unsigned char *delays; /* [micro-batch of a step][stage]: 1 if it uses last step's weights */
    bool exact; /* true if draining and going on changes nothing, because each delay is the same in every step */
} car_script;

/* Takes over the tasks of all devices, which must be sorted by slot. CAR_ERROR_FORMAT if the marked period does not
 * repeat, or if the tasks after it differ from what it repeats. */
car_status car_script_create(car_plan *plan, const car_plan_header *header, car_task_list *devices);
void car_script_destroy(car_plan *plan);

/* Appends the tasks of a device in slots from .. to-1. */
car_status car_script_expand(const car_plan *plan, int device, int64_t from, int64_t to, int64_t steps,
                             car_task_list *list);
int64_t car_script_windows(const car_plan *plan, int64_t steps);
/* The slot of a forward or backward; 0 if there is none. */
int64_t car_script_slot(const car_plan *plan, int64_t step, int micro_batch, int stage, bool backward);
/* The first device that makes the update of a stage in a step. */
int car_script_maker(const car_plan *plan, int64_t step, int stage);
/* The same task `times` periods later. */
car_task car_script_repeat(const car_script *script, const car_task *task, int64_t times);

/* ---- script_facts.c --------------------------------------------------------------------------- */

/* Fills in the layout, and the slots in which sends are due. */
car_status car_script_find_facts(car_plan *plan);
void car_script_release_layout(car_plan *plan, car_script_layout *layout);
/* The `needed` of task n of a device's part of the file, `times` periods later. */
int64_t car_script_needed(const car_script *script, int device, int n, int64_t times);
/* The fact of any task. Add *since to its numbers of steps. A task that is not in the table gets a neutral fact. */
const car_script_fact *car_script_fact_of(const car_plan *plan, int device, const car_task *task, int64_t *since);

#endif
