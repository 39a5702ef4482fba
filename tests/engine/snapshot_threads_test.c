/* Snapshots of runs whose ranks are threads of one process: all placements and rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "engine/snapshots.h"
#include "engine/thread_ranks.h"
#include "transport/transport.h"

static void *take(void *argument) {
    car_thread_rank *m = argument;
    car_context *context = NULL;
    car_transport *transport = NULL;
    if (car_context_create(NULL, &context) == CAR_OK && car_hub_join(m->hub, context, m->rank, &transport) == CAR_OK) {
        m->good = car_placement_snapshots(transport, m->setting, m->model, m->rule, m->guarded);
        car_transport_close(transport);
    }
    car_context_destroy(context);
    return NULL;
}

static void run_case(const car_placement_setting *like, const char *model, car_rule rule, bool guarded, int every,
                     int weights_every, const car_trouble *trouble) {
    car_placement_setting setting = *like;
    setting.snapshot_every = every;
    setting.weights_every = weights_every;
    const car_thread_rank member = {.setting = &setting, .model = model, .rule = rule, .guarded = guarded};
    assert_true(car_thread_ranks_run(car_placement_ranks(&setting, rule), &member, trouble, take, NULL, NULL));
}

static bool is_chosen(const car_placement_setting *s) {
    return !s->full && (s->workers == 3 || (s->workers == 4 && s->ranks == 2));
}

/* Every placement under every rule; the snapshot is held until the next step is over. */
static void test_drained_and_not(void **state) {
    (void)state;
    for (int s = 0, n = 0; s < car_placement_setting_count; s++) {
        for (int r = 0; r < 3 && is_chosen(&car_placement_settings[s]); r++, n++) {
            run_case(&car_placement_settings[s], "mlp", car_placement_rules[r], n % 2 == 1, 3, 0, NULL);
            run_case(&car_placement_settings[s], n % 3 == 0 ? "gpt2-nano" : "mlp", car_placement_rules[r], n % 2 == 0,
                     2, 3, NULL);
        }
    }
}

/* After every step, with messages that are late and overtake each other. */
static void test_in_trouble(void **state) {
    (void)state;
    const car_trouble late = {
        .seed = 5, .late = 0.001, .very_late = 0.02, .slow = 1, .fails = CAR_NONE, .silent = CAR_NONE};
    for (int s = 0; s < car_placement_setting_count; s++) {
        const car_placement_setting *setting = &car_placement_settings[s];
        if (is_chosen(setting) && setting->placement != CAR_PLACEMENT_SHARED) {
            run_case(setting, "mlp", car_placement_rules[s % 3], s % 2 == 0, 2, 1, &late);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_drained_and_not), cmocka_unit_test(test_in_trouble)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
