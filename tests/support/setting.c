/* Plans of the cycle for many N and k: see setting.h. */
#include "support/setting.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/plans.h"

car_setting car_setting_open(int N, int k, car_rule rule, car_placement placement) {
    car_setting s = {.N = N, .k = k, .S = k * N};
    car_plan_config config = {.workers = N, .rule = rule, .placement = placement};
    s.partition = car_plans_uniform(s.S, 1.0);
    s.plan = car_plans_make(s.partition, config);
    return s;
}

car_setting car_setting_open_zero(int N, int k, car_rule rule, int ahead) {
    car_setting s = {.N = N, .k = k, .S = k * N};
    car_plan_config config = {.workers = N,
                              .rule = rule,
                              .placement = CAR_PLACEMENT_ZERO,
                              .zero_copies = ahead > 0 ? 2 : 1,
                              .zero_ahead = ahead};
    s.partition = car_plans_uniform(s.S, 1.0);
    s.plan = car_plans_make(s.partition, config);
    return s;
}

void car_setting_close(car_setting *s) {
    car_plan_destroy(s->plan);
    car_partition_destroy(s->partition);
}

void car_setting_for_all(car_rule rule, car_placement placement, car_setting_check_function check) {
    for (int N = 1; N <= CAR_SETTING_MOST_WORKERS; N++) {
        for (int k = 1; k <= CAR_SETTING_MOST_PER_WORKER; k++) {
            car_setting s = car_setting_open(N, k, rule, placement);
            check(&s);
            car_setting_close(&s);
        }
    }
}

int64_t car_setting_last_backward(const car_setting *s, int j, int64_t t) {
    int64_t last = B(s, 0, j, t);
    for (int i = 1; i < s->N; i++) {
        last = B(s, i, j, t) > last ? B(s, i, j, t) : last;
    }
    return last;
}

bool car_setting_is_fresh(const car_setting *s, int i, int j) {
    return F(s, i, j, 1) > car_setting_last_backward(s, j, 0);
}

void car_setting_for_tasks(const car_setting *s, car_setting_task_function function, void *user) {
    car_task_list list = {0};
    for (int device = 0; device < car_plan_devices(s->plan); device++) {
        for (int64_t window = 0; window < car_plan_windows(s->plan, CAR_SETTING_STEPS); window++) {
            assert_int_equal(car_plan_expand(s->plan, device, window, CAR_SETTING_STEPS, &list), CAR_OK);
            for (int n = 0; n < list.count; n++) {
                function(s, device, &list.tasks[n], user);
            }
        }
    }
    car_task_list_release(s->plan, &list);
}
