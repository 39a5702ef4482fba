/* What tasks touch (validate_touch.c), and whether edges order those that must not touch the same thing at once
 * (validate_things.c). validate_edges.c uses both. */
#ifndef CAR_VALIDATE_TOUCH_H
#define CAR_VALIDATE_TOUCH_H

#include "plan/validate_internal.h"

typedef enum car_touch_mode {
    CAR_TOUCH_READ,
    CAR_TOUCH_FOLLOW,
    CAR_TOUCH_WRITE
} car_touch_mode; /* FOLLOW: after all readers, concurrent with each other */

/* A task that touched a thing, as a list entry. */
typedef struct car_touch_mark {
    int place, next;
} car_touch_mark;

/* Touches that need no order among themselves form a round. */
typedef struct car_touch_thing {
    uint64_t key; /* 0: this entry is free */
    int current, before;
    car_touch_mode mode;
    int64_t content;
} car_touch_thing;

typedef struct car_toucher {
    const car_validation *v;
    const car_usage *usage;
    int rank, place; /* place: the current task, in the rank's order */
    const car_task *task;
    bool from_start;  /* the table begins with the run, so the content of each place is known */
    bool goes_on;     /* the run goes on after a drain */
    bool ring, moves; /* ring: sums are added in ring order; moves: weights move with their users */
    car_touch_thing *things;
    size_t capacity, used; /* capacity: a power of two */
    car_touch_mark *marks;
    int mark_count, mark_capacity;
    int *seen, *visited, *stack; /* by place: see comes_after */
    int stamp, query;
} car_toucher;

/* Special contents of a thing: empty, or unknown because it is from before the table. */
enum { CAR_TOUCH_EMPTY = -3, CAR_TOUCH_UNKNOWN = -4 };

/* Finds a thing by its kind (1 to 15) and two numbers. Valid until the next call. */
car_status car_touch_find(car_toucher *c, int kind, int64_t a, int64_t b, car_touch_thing **out);
/* The current task touches a thing. Fails unless edges put it after every conflicting touch. */
car_status car_touch_order(car_toucher *c, car_touch_thing *t, car_touch_mode mode);

/* Starts a rank: nothing was touched, and its places hold what a run begins with. */
car_status car_touch_begin(car_toucher *c);
/* Checks everything that the current task touches. */
car_status car_touch_all(car_toucher *c);
/* After the last task of a rank, if the table is a whole run: checks that no micro-batch is left on a tape. */
car_status car_touch_end(car_toucher *c);

#endif
