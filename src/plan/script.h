/* The table of a plan from a file whose schedule is the user's own (rule=custom): tasks up to the end of the marked period,
 * which repeats.
 *
 *     slot   0 ......... begin ......... end
 *            once        again and again, each time `repeated` steps further on
 *
 * Without a period the table ends, and with it the longest run. */
#ifndef CAR_PLAN_SCRIPT_H
#define CAR_PLAN_SCRIPT_H

#include "plan/internal.h"
#include "plan/text.h"

typedef struct car_script {
    int64_t begin, end; /* slots of the period; both 0: none */
    int64_t repeated;   /* steps of a period */
    int64_t steps;      /* that the file has */
    int64_t max_delay;
    int64_t window;    /* slots of one */
    int64_t first_end; /* the slot of the first step's last backward */
    car_task_list *devices;
    int64_t **needed;      /* [device][task]: the task is part of runs of more steps than this */
    unsigned char *delays; /* [worker][stage]: 1 if it uses last step's weights */
    bool
        exact; /* a run that drains and goes on does what it would have done without: each delay is the same in every step */
} car_script;

/* Takes over the tasks of all devices, in order, their slots ascending. CAR_ERROR_FORMAT if the period is none, or what comes
 * behind it is not what it repeats. */
car_status car_script_create(car_plan *plan, const car_plan_header *header, car_task_list *devices);
void car_script_destroy(car_plan *plan);

/* Appends the tasks of a device in slots from..to-1. */
car_status car_script_expand(const car_plan *plan, int device, int64_t from, int64_t to, int64_t steps,
                             car_task_list *list);
int64_t car_script_windows(const car_plan *plan, int64_t steps);
/* The slot of a forward or backward; 0 if there is none. */
int64_t car_script_slot(const car_plan *plan, int64_t step, int worker, int stage, bool backward);

#endif
