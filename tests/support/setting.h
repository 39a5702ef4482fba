/* Plans of the cycle for many N and k, in the common context, and the clock to compare them with:
 *
 *     F(i,j,t) = 2S*t + 2k*i + j        B(i,j,t) = 2S*t + 2k*i + 2S-1-j
 *
 * The clock is searched by brute force, without using code under test. */
#ifndef CAR_TESTS_SETTING_H
#define CAR_TESTS_SETTING_H

#include "carousel/plan.h"

enum { CAR_SETTING_MOST_WORKERS = 12, CAR_SETTING_MOST_PER_WORKER = 4, CAR_SETTING_STEPS = 5 };

typedef struct car_setting {
    int N, k, S;
    car_partition *partition;
    car_plan *plan;
} car_setting;

car_setting car_setting_open(int N, int k, car_rule rule, car_placement placement);
void car_setting_close(car_setting *s);

typedef void (*car_setting_check_function)(const car_setting *s);
/* The same for zero, with the slots ahead of its two copies; 0: with one copy. */
car_setting car_setting_open_zero(int N, int k, car_rule rule, int ahead);
/* Runs `check` for every N and k up to the limits. */
void car_setting_for_all(car_rule rule, car_placement placement, car_setting_check_function check);

/* ---- the clock ------------------------------------------------------------------------------------------ */

static inline int64_t F(const car_setting *s, int i, int j, int64_t t) {
    return 2 * (int64_t)s->S * t + 2 * (int64_t)s->k * i + j;
}

static inline int64_t B(const car_setting *s, int i, int j, int64_t t) {
    return 2 * (int64_t)s->S * t + 2 * (int64_t)s->k * i + 2 * (int64_t)s->S - 1 - j;
}

/* When the last worker has finished a stage, by search. */
int64_t car_setting_last_backward(const car_setting *s, int j, int64_t t);
/* Fresh where timing allows: the forward of the next step is not before the update. */
bool car_setting_is_fresh(const car_setting *s, int i, int j);

/* ---- the table ------------------------------------------------------------------------------------------ */

typedef void (*car_setting_task_function)(const car_setting *s, int device, const car_task *task, void *user);
/* Calls `function` for all tasks of all devices in CAR_SETTING_STEPS steps. */
void car_setting_for_tasks(const car_setting *s, car_setting_task_function function, void *user);

#endif
