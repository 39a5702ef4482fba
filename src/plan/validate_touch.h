/* What tasks touch (validate_touch.c), and whether edges keep apart those that must not meet (validate_things.c): for
 * validate_edges.c. */
#ifndef CAR_VALIDATE_TOUCH_H
#define CAR_VALIDATE_TOUCH_H

#include "plan/validate_internal.h"

typedef enum car_touch_mode {
    CAR_TOUCH_READ,
    CAR_TOUCH_FOLLOW,
    CAR_TOUCH_WRITE
} car_touch_mode; /* FOLLOW: after those who read, beside each other */

/* A task that touched a thing, in a list. */
typedef struct car_touch_mark {
    int place, next;
} car_touch_mark;

/* Touches that need not keep an order among themselves make a round. */
typedef struct car_touch_thing {
    uint64_t key; /* 0: free */
    int current, before;
    car_touch_mode mode;
    int64_t content;
} car_touch_thing;

typedef struct car_toucher {
    const car_validation *v;
    const car_usage *usage;
    int rank, place; /* the task at hand, in the rank's order */
    const car_task *task;
    bool from_start;  /* the table begins with the run: what lies in each place is known */
    bool goes_on;     /* the run goes on after a drain */
    bool ring, moves; /* sums in ring order; weights that move with their users */
    car_touch_thing *things;
    size_t capacity, used; /* capacity: a power of two */
    car_touch_mark *marks;
    int mark_count, mark_capacity;
    int *seen, *visited, *stack; /* per place: see comes_after */
    int stamp, query;
} car_toucher;

/* What lies in a thing, if it is no number: nothing, or something from before the table. */
enum { CAR_TOUCH_EMPTY = -3, CAR_TOUCH_UNKNOWN = -4 };

/* A thing by its kind, from 1 to 15, and two numbers. Valid until the next call. */
car_status car_touch_find(car_toucher *c, int kind, int64_t a, int64_t b, car_touch_thing **out);
/* The task at hand touches it: it must come after all that touched it in another way, or wrote it. */
car_status car_touch_order(car_toucher *c, car_touch_thing *t, car_touch_mode mode);

/* Before the first task of a rank: nothing was touched, and its places hold what a run begins with. */
car_status car_touch_begin(car_toucher *c);
/* What the task at hand touches comes after all that must be before it. */
car_status car_touch_all(car_toucher *c);
/* After the last task of a rank, if the table is a whole run: no micro-batch is left on a tape. */
car_status car_touch_end(car_toucher *c);

#endif
