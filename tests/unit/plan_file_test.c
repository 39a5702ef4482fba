/* Plans from files: a schedule of one's own is executed as it is written, repeats its period, and is refused with the cell of
 * each mistake; a plan that names a rule is what that rule makes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "carousel/plan.h"
#include "support/common.h"
#include "support/plans.h"

enum { MOST_TEXT = 1 << 16 };

static char *dump(car_plan_config config, const car_partition *partition, int64_t steps) {
    char *text = malloc(MOST_TEXT), *printed = NULL;
    car_plan *plan = car_plans_make(partition, config);
    assert_non_null(text);
    car_common_expect_ok(car_plan_print(plan, steps, &printed));
    assert_true(strlen(printed) < MOST_TEXT);
    strcpy(text, printed);
    car_plan_release_text(plan, printed);
    car_plan_destroy(plan);
    return text;
}

/* Replaces the first `from` behind the first `after`. */
static void replace(char *text, const char *after, const char *from, const char *to) {
    char *start = strstr(text, after), *at = start ? strstr(start, from) : NULL;
    if (!at) {
        fail_msg("'%s' behind '%s' is not in the text", from, after);
        return;
    }
    assert_true(strlen(text) + strlen(to) < MOST_TEXT);
    memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
    memcpy(at, to, strlen(to));
}

/* The cycle as a schedule of one's own: three workers, of which slots 12 to 17 repeat. */
static char *custom_text(car_placement placement, const car_partition *partition, bool repeats) {
    char *text = dump((car_plan_config){.workers = 3, .rule = CAR_RULE_CDP_V2, .placement = placement}, partition, 4);
    replace(text, "", "rule=cdp-v2", "rule=custom");
    if (repeats) {
        replace(text, "", "steps=4", "steps=4 period=12:18");
    }
    return text;
}

/* ---- what is executed ------------------------------------------------------------------------ */

static bool is_same(const car_task *a, const car_task *b) {
    return a->kind == b->kind && a->cargo == b->cargo && a->micro_batch == b->micro_batch && a->stage == b->stage &&
           a->bundle == b->bundle && a->step == b->step && a->version == b->version &&
           a->tied_version == b->tied_version && a->peer == b->peer && a->tag == b->tag && a->slot == b->slot &&
           (a->kind != CAR_TASK_SEND || a->due == b->due);
}

static car_task_list all_tasks(const car_plan *plan, int rank, int64_t steps) {
    car_task_list all = {0}, list = {0};
    for (int64_t window = 0; window < car_plan_windows(plan, steps); window++) {
        car_common_expect_ok(car_plan_expand_rank(plan, rank, window, steps, &list));
        car_common_expect_ok(
            car_context_grow(car_common_context, &all.tasks, &all.capacity, all.count + list.count, sizeof *all.tasks));
        for (int n = 0; n < list.count; n++) {
            all.tasks[all.count++] = list.tasks[n];
        }
    }
    car_task_list_release(plan, &list);
    return all;
}

/* The cycle's table with a period is the cycle's table for any number of steps. */
static void check_repeats(car_placement placement, const car_partition *partition) {
    char *text = custom_text(placement, partition, true);
    car_plan *plan = NULL, *rule = NULL;
    car_proof proof;
    car_common_expect_ok(car_plan_read(car_common_context, partition, "file", text, &plan));
    rule = car_plans_make(partition, (car_plan_config){.workers = 3, .rule = CAR_RULE_CDP_V2, .placement = placement});
    car_common_expect_ok(car_plan_prove(plan, &proof));
    assert_true(car_plan_is_proven(plan) && proof.whole && proof.period == 1);
    assert_true(car_plan_drains_exactly(plan));
    for (int64_t steps = 1; steps < 12; steps++) {
        for (int rank = 0; rank < car_plan_ranks(plan); rank++) {
            car_task_list a = all_tasks(plan, rank, steps), b = all_tasks(rule, rank, steps);
            assert_int_equal(a.count, b.count);
            for (int n = 0; n < a.count; n++) {
                assert_true(is_same(&a.tasks[n], &b.tasks[n]));
            }
            car_task_list_release(plan, &a);
            car_task_list_release(rule, &b);
        }
    }
    for (int worker = 0; worker < 3; worker++) {
        for (int stage = 0; stage < 3; stage++) {
            assert_int_equal(car_plan_delay(plan, worker, stage), car_plan_delay(rule, worker, stage));
            assert_int_equal(car_plan_forward_slot(plan, 40, worker, stage),
                             car_plan_forward_slot(rule, 40, worker, stage));
        }
    }
    car_plan_destroy(rule);
    car_plan_destroy(plan);
    free(text);
}

static void a_period_repeats(void **state) {
    car_partition *partition = car_plans_uniform(3, 2.0);
    car_plans_model tied = car_plans_open_model("gpt2-nano", 3);
    (void)state;
    check_repeats(CAR_PLACEMENT_SHARED, partition);
    check_repeats(CAR_PLACEMENT_PIPELINE, partition);
    check_repeats(CAR_PLACEMENT_SHARED, tied.partition);
    check_repeats(CAR_PLACEMENT_PIPELINE, tied.partition); /* with messages for the tied parameter */
    car_plans_close_model(&tied);
    car_partition_destroy(partition);
}

/* A rule's plan as one's own. */
static char *own_text(const car_partition *partition, car_plan_config config) {
    car_plan *plan = car_plans_make(partition, config);
    char *text = malloc(MOST_TEXT), *printed = NULL;
    assert_non_null(text);
    car_common_expect_ok(car_plan_print_custom(plan, &printed));
    assert_true(strlen(printed) < MOST_TEXT);
    strcpy(text, printed);
    car_plan_release_text(plan, printed);
    car_plan_destroy(plan);
    return text;
}

/* It is the rule's table until the run ends, which it may do in another way. */
static void check_own(const car_partition *partition, car_plan_config config) {
    enum { LAST = 9, DRAIN = 2 };
    char *text = own_text(partition, config);
    car_plan *plan = NULL, *rule = car_plans_make(partition, config);
    car_proof proof;
    car_common_expect_ok(car_plan_read(car_common_context, partition, "file", text, &plan));
    car_common_expect_ok(car_plan_prove(plan, &proof));
    assert_true(proof.whole && car_plan_is_proven(plan));
    for (int rank = 0; rank < car_plan_ranks(plan); rank++) {
        car_task_list a = all_tasks(plan, rank, LAST), b = all_tasks(rule, rank, LAST);
        int compared = 0;
        for (int n = 0; n < a.count && n < b.count && a.tasks[n].slot < (LAST - DRAIN) * car_plan_period(rule); n++) {
            assert_true(is_same(&a.tasks[n], &b.tasks[n]));
            compared++;
        }
        assert_true(compared > a.count / 2);
        car_task_list_release(plan, &a);
        car_task_list_release(rule, &b);
    }
    car_plan_destroy(rule);
    car_plan_destroy(plan);
    free(text);
}

static void every_placement_has_its_own(void **state) {
    static const car_rule rules[] = {CAR_RULE_CDP_V1, CAR_RULE_CDP_V2, CAR_RULE_STAGGER};
    car_partition *partition = car_plans_uniform(3, 2.0);
    car_plans_model tied = car_plans_open_model("gpt2-nano", 3);
    (void)state;
    for (car_placement placement = CAR_PLACEMENT_SHARED; placement < CAR_PLACEMENTS; placement++) {
        for (int r = 0; r < 3; r++) {
            car_plan_config config = {.workers = 3, .rule = rules[r], .placement = placement};
            check_own(tied.partition, config);
            config.accumulate = 2;
            check_own(partition, config);
        }
    }
    check_own(tied.partition, (car_plan_config){.workers = 3,
                                                .rule = CAR_RULE_CDP_V2,
                                                .placement = CAR_PLACEMENT_ZERO,
                                                .zero_copies = 1,
                                                .piece_bytes = 64});
    car_plans_close_model(&tied);
    car_partition_destroy(partition);
}

/* Nothing is cut off: a grid of 24 repeats itself after millions of steps, one of 10 after 252 with too many tasks. */
static void what_is_too_long_is_refused(void **state) {
    static const int workers[] = {24, 10};
    (void)state;
    for (int n = 0; n < 2; n++) {
        car_partition *partition = car_plans_uniform(workers[n], 2.0);
        car_plan *plan = car_plans_make(
            partition,
            (car_plan_config){.workers = workers[n], .rule = CAR_RULE_CDP_V1, .placement = CAR_PLACEMENT_GRID});
        char *text = NULL;
        assert_int_equal(car_plan_print_custom(plan, &text), CAR_ERROR_UNSUPPORTED);
        assert_null(text);
        assert_non_null(strstr(car_context_error(car_common_context), "more than 200000 tasks"));
        car_context_clear_error(car_common_context);
        car_plan_destroy(plan);
        car_partition_destroy(partition);
    }
}

/* What is printed of a custom plan is read as the same plan. */
static void a_custom_plan_is_printed(void **state) {
    car_partition *partition = car_plans_uniform(3, 2.0);
    char *text = custom_text(CAR_PLACEMENT_PIPELINE, partition, true), *first = NULL, *second = NULL;
    car_plan *plan = NULL, *again = NULL;
    (void)state;
    car_common_expect_ok(car_plan_read(car_common_context, partition, "file", text, &plan));
    car_common_expect_ok(car_plan_print(plan, 4, &first));
    assert_non_null(strstr(first, "rule=custom"));
    assert_non_null(strstr(first, "period=12:18"));
    car_common_expect_ok(car_plan_read(car_common_context, partition, "printed", first, &again));
    car_common_expect_ok(car_plan_print(again, 4, &second));
    assert_string_equal(first, second);
    car_plan_release_text(plan, first);
    car_plan_release_text(again, second);
    car_plan_destroy(again);
    car_plan_destroy(plan);
    free(text);
    car_partition_destroy(partition);
}

/* ---- what is refused ------------------------------------------------------------------------- */

typedef struct mistake {
    const char *after, *from, *to, *message;
    bool marked; /* the message ends in the grid with a cell marked */
} mistake;

/* Returns whether it was. */
static bool is_refused(const car_partition *partition, const char *text, const mistake *m) {
    car_plan *plan = NULL;
    car_proof proof;
    car_status status = car_plan_read(car_common_context, partition, "file", text, &plan);
    status = status == CAR_OK ? car_plan_prove(plan, &proof) : status;
    const char *message = car_context_error(car_common_context);
    bool refused = status != CAR_OK && strstr(message, m->message) && (!m->marked || strstr(message, "[ ] marks"));
    if (!refused) {
        print_error("'%s' for '%s' behind '%s': '%s' was expected of: %s\n", m->to, m->from, m->after, m->message,
                    status == CAR_OK ? "nothing" : message);
    }
    assert_true(!plan || !car_plan_is_proven(plan));
    car_context_clear_error(car_common_context);
    car_plan_destroy(plan);
    return refused;
}

static void check_mistakes(car_placement placement, bool repeats, const mistake *mistakes, size_t count) {
    car_partition *partition = car_plans_uniform(3, 2.0);
    int wrong = 0;
    for (size_t n = 0; n < count; n++) {
        char *text = custom_text(placement, partition, repeats);
        replace(text, mistakes[n].after, mistakes[n].from, mistakes[n].to);
        wrong += !is_refused(partition, text, &mistakes[n]);
        free(text);
    }
    assert_int_equal(wrong, 0);
    car_partition_destroy(partition);
}

static void mistakes_of_shared_are_refused(void **state) {
    static const mistake mistakes[] = {
        {"device 1", "9: F1.1@1", "9: F1.1@0", "its forward used version 0", true},
        {"device 1", "B1.1@1", "B1.1@0", "its forward used version 1", true},
        {"device 0", "12: F0.0@1", "12: F0.0@0", "weights are 2 steps old, but max-delay is 1", true},
        {"device 0", "8: F2.0@1", "8: F2.0@2", "weights of version 2 in step 1", true},
        {"device 0", "7: F1.0@0", "7: F1.0@1", "version 1 of bundle 1 is not on this device", true},
        {"device 2", "7: B2.2@0 U2.2@1", "7: B2.2@0", "bundle 2 is updated 0 times in step 0", true},
        {"device 2", "7: B2.2@0 U2.2@1", "7: U2@1 B2.2@0", "the sum of bundle 2 is over 2 workers", true},
        {"device 2", "7: B2.2@0 U2.2@1", "7: U2.2@1 B2.2@0", "comes after a task that must follow it", true},
        {"device 0", "7: F1.0@0", "7: F0.0@0", "belongs to a later step", true},
        {"device 0", "3: B2.0@0\n", "", "must come after the previous task of micro-batch 0", true},
        {"device 0", "3: B2.0@0\n4: B1.0@0", "3: B1.0@0\n4: B2.0@0", "must come after the previous task", true},
        {"device 1", "8: F0.1@0", "8: Rp0.0<0 F0.1@0", "awaited, but never sent", true},
        {"device 0", "0: F0.0@0", "0: F0.0@0 F0.1@0", "belongs on device", true},
        {"", "steps=4", "steps=3", "belongs to a later step", true},
        {"", "steps=4", "steps=9", "says steps=9, but the plan has tasks of only 4 steps", false},
        {"", "stages=3", "stages=6", "is for 6 stages", false},
        {"", "placement=shared", "placement=replica", "the sum of bundle 2 is over 1 workers", true},
        {"", "rule=custom", "rule=mine", "there is no rule 'mine'", false},
        {"", "slack=0", "slack=0 slack=0", "occurs twice", false},
        {"", " slack=0", "", "the header lacks 'slack='", false},
        {"", "steps=4", "steps=4 period=5:5", "write period=A:B", false},
        {"", "steps=4", "steps=4 max-delay=9", "from 0 to 4", false},
        {"", "steps=4", "steps=4 max-delay=0", "1 steps old, but max-delay is 0", true},
        {"device 0", "5: B0.0@0", "5: Bx.0@0", "file, line 8: in 'Bx.0@0' the number of a stage", false},
        {"device 0", "5: B0.0@0", "900000: B0.0@0", "does not come after slot 900000", false},
        {"device 0", "0: F0.0@0", "0: F0@0", "lacks a micro-batch", false},
        {"device 0", "0: F0.0@0", "0: F0.0@0{stage=7}", "lacks a micro-batch or a device, or names one", false},
        {"device 0", "0: F0.0@0", "0: F0.0@0/77777", "step or version 77777", false},
    };
    (void)state;
    check_mistakes(CAR_PLACEMENT_SHARED, false, mistakes, sizeof mistakes / sizeof mistakes[0]);
}

static void mistakes_of_periods_are_refused(void **state) {
    static const mistake mistakes[] = {
        {"", "period=12:18", "period=12:16", "not a whole number of steps", true},
        {"", "period=12:18", "period=12:17", "does not repeat the period", true},
        {"", "period=12:18", "period=12:99", "ends with slot 98, but its last task is in slot", false},
        {"device 0", "18: F0.0@2", "18: F0.0@1", "after its period", true},
        {"device 0", "14: F2.0@2", "14: F2.0@1", "after its period", true},
    };
    (void)state;
    check_mistakes(CAR_PLACEMENT_SHARED, true, mistakes, sizeof mistakes / sizeof mistakes[0]);
}

static void mistakes_of_pipelines_are_refused(void **state) {
    static const mistake mistakes[] = {
        {"device 0", "Sa1.0>1", "Sa1.0>2", "its receiver expects Ra1.0/0<0", true},
        {"device 0", "Sa1.0>1", "Sa1.0", "lacks a micro-batch or a device", false},
        {"device 0", " Sa1.0>1", "", "received before it can arrive", true},
        {"device 1", "Ra1.0<0 ", "", "sent, but never received", true},
        {"device 1", "1: Ra1.0<0 F1.0@0", "1: F1.0@0\n2: Ra1.0<0", "received before it can arrive", true},
        {"device 2", "2: Ra2.0<1 F2.0@0", "2: Ra2.0<1 Ra2.0<1 F2.0@0", "belongs to a later step", true},
        {"device 0", "0: F0.0@0 Sa1.0>1", "0: Sa1.0>1 F0.0@0", "comes after a task that must follow it", true},
    };
    (void)state;
    check_mistakes(CAR_PLACEMENT_PIPELINE, false, mistakes, sizeof mistakes / sizeof mistakes[0]);
}

/* ---- a task too few, a task too many ----------------------------------------------------------- */

/* The next task of the text; its length is in *length. */
static char *next_task(char *at, size_t *length) {
    at = *at == ' ' ? at + 1 : at;
    while (*at && !(at[-1] == ' ' && strchr("FBUSR", *at))) {
        at++;
    }
    *length = strcspn(at, " \n");
    return *at ? at : NULL;
}

/* Each task is left out, and each stands there twice: all of it is refused, and all but a few words of the reader show the
 * cell. */
static void check_each_task(const car_partition *partition, car_plan_config config) {
    char *text = own_text(partition, config), changed[MOST_TEXT];
    size_t length = 0;
    int count = 0, survivors = 0, shown = 0;
    for (char *at = next_task(strstr(text, "device 0"), &length); at; at = next_task(at + length, &length)) {
        for (int twice = 0; twice < 2; twice++) {
            car_plan *plan = NULL;
            car_proof proof;
            int before = (int)(at - text);
            snprintf(changed, sizeof changed, "%.*s%.*s%s", before, text, twice ? (int)length + 1 : 0,
                     twice ? at - 1 : "", twice ? at - 1 : at + length);
            car_status status = car_plan_read(car_common_context, partition, "file", changed, &plan);
            status = status == CAR_OK ? car_plan_prove(plan, &proof) : status;
            count++;
            shown += strstr(car_context_error(car_common_context), "[ ] marks") != NULL;
            if (status == CAR_OK) {
                print_error("%s: %.*s %s survives\n", car_placement_text(config.placement), (int)length, at,
                            twice ? "twice" : "left out");
                survivors++;
            }
            car_context_clear_error(car_common_context);
            car_plan_destroy(plan);
        }
    }
    print_message("%s: %d, %d with their cell\n", car_placement_text(config.placement), count, shown);
    assert_int_equal(survivors, 0);
    assert_true(shown > count * 9 / 10);
    free(text);
}

static void each_task_counts(void **state) {
    car_partition *partition = car_plans_uniform(2, 2.0);
    (void)state;
    for (car_placement placement = CAR_PLACEMENT_SHARED; placement < CAR_PLACEMENTS; placement++) {
        check_each_task(partition, (car_plan_config){.workers = 2, .rule = CAR_RULE_CDP_V2, .placement = placement});
    }
    check_each_task(
        partition,
        (car_plan_config){.workers = 2, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_ZERO, .zero_copies = 1});
    car_partition_destroy(partition);
}

/* A rule's name in the header asks for that rule's table. */
static void a_rule_is_compared(void **state) {
    car_partition *partition = car_plans_uniform(4, 2.0);
    (void)state;
    for (car_placement placement = CAR_PLACEMENT_SHARED; placement < CAR_PLACEMENTS; placement++) {
        car_plan_config config = {.workers = 4, .rule = CAR_RULE_CDP_V2, .placement = placement};
        char *text = dump(config, partition, 3);
        car_plan *plan = NULL;
        car_common_expect_ok(car_plan_read(car_common_context, partition, "file", text, &plan));
        assert_int_equal(car_plan_config_of(plan)->rule, CAR_RULE_CDP_V2);
        assert_false(car_plan_is_proven(plan));
        car_plan_destroy(plan);
        replace(text, "device 0", "F0.0@0", "F0.0@1");
        assert_true(is_refused(partition, text, &(mistake){"", "F0.0@0", "F0.0@1", "rule cdp-v2 has F0.0@0", true}));
        free(text);
    }
    car_partition_destroy(partition);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_period_repeats),
        cmocka_unit_test(every_placement_has_its_own),
        cmocka_unit_test(what_is_too_long_is_refused),
        cmocka_unit_test(a_custom_plan_is_printed),
        cmocka_unit_test(each_task_counts),
        cmocka_unit_test(mistakes_of_shared_are_refused),
        cmocka_unit_test(mistakes_of_periods_are_refused),
        cmocka_unit_test(mistakes_of_pipelines_are_refused),
        cmocka_unit_test(a_rule_is_compared),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
