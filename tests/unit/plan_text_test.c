/* The text form of plans: names, the notation, the round trip, what is refused, and the drawing. */
#include "carousel/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/report.h"
#include "support/allocator.h"
#include "support/expect.h"
#include "support/nets.h"

typedef struct fixture {
    car_context *context;
    car_graph *graph;
    car_partition *partition;
    car_plan *plan;
} fixture;

static fixture f;

static void expect_ok(car_status status) {
    car_expect_ok(f.context, status);
}

static int set_up(void **state) {
    (void)state;
    f = (fixture){0};
    return car_context_create(NULL, &f.context) == CAR_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    car_plan_destroy(f.plan);
    car_partition_destroy(f.partition);
    car_graph_destroy(f.graph);
    car_context_destroy(f.context);
    return 0;
}

/* Replaces the plan, keeping the partition; false if the two do not go together. */
static bool make_plan(car_rule rule, car_placement placement, int workers) {
    car_plan_config config = car_plan_config_default();
    config.rule = rule;
    config.placement = placement;
    config.workers = workers;
    car_plan_destroy(f.plan);
    f.plan = NULL;
    car_status status = car_plan_create(f.context, f.partition, &config, &f.plan);
    if (status == CAR_ERROR_ARGUMENT) {
        car_context_clear_error(f.context);
        return false;
    }
    expect_ok(status);
    return true;
}

static void make_uniform(int stages) {
    car_plan_destroy(f.plan);
    f.plan = NULL;
    car_partition_destroy(f.partition);
    f.partition = NULL;
    expect_ok(car_partition_create_uniform(f.context, stages, 2, &f.partition));
}

static void make_tied(int stages) {
    expect_ok(car_graph_create(f.context, &f.graph));
    expect_ok(car_graph_finish(f.graph, car_net_language(f.graph)));
    car_partition_config config = {.stages = stages, .measure = CAR_MEASURE_FLOPS};
    expect_ok(car_partition_create(f.graph, &config, &f.partition));
    assert_true(f.partition->bundle_count > stages);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void names_go_both_ways(void **state) {
    (void)state;
    car_rule rule;
    car_placement placement;
    car_mapping mapping;
    for (int r = 0; r < CAR_RULES; r++) {
        expect_ok(car_rule_find(f.context, car_rule_text((car_rule)r), &rule));
        assert_int_equal(rule, r);
    }
    for (int p = 0; p < CAR_PLACEMENTS; p++) {
        expect_ok(car_placement_find(f.context, car_placement_text((car_placement)p), &placement));
        assert_int_equal(placement, p);
    }
    for (int m = 0; m < 2; m++) {
        expect_ok(car_mapping_find(f.context, car_mapping_text((car_mapping)m), &mapping));
        assert_int_equal(mapping, m);
    }
    assert_string_equal(car_rule_text((car_rule)99), "unknown rule");
    assert_int_equal(car_rule_find(f.context, "cdp", &rule), CAR_ERROR_UNKNOWN_NAME);
    assert_string_equal(car_context_error(f.context),
                        "there is no rule 'cdp'; use one of dp, cdp-v1, cdp-v2, accumulate, stagger, gpipe, 1f1b, 2bw");
    car_context_clear_error(f.context);
    assert_int_equal(car_placement_find(f.context, "", &placement), CAR_ERROR_UNKNOWN_NAME);
    assert_non_null(strstr(car_context_error(f.context), "shared, replica, zero, pipeline, grid"));
}

/* ---- the notation ---------------------------------------------------------------------------- */

static void expect_text(const car_task *task, const char *expected) {
    char text[192];
    assert_int_equal(car_task_format(f.plan, task, text, sizeof text), (int)strlen(expected));
    assert_string_equal(text, expected);
    assert_int_equal(car_task_format(f.plan, task, text, 3), (int)strlen(expected)); /* as snprintf does */
    assert_int_equal(strlen(text), 2);
}

static const car_task *find_task(const car_task_list *list, car_task_kind kind, int64_t slot) {
    for (int n = 0; n < list->count; n++) {
        if (list->tasks[n].kind == kind && list->tasks[n].slot == slot) {
            return &list->tasks[n];
        }
    }
    fail_msg("no task of kind %d in slot %lld", (int)kind, (long long)slot);
    return NULL;
}

/* Worker 1 of three in the replica's second window, slot 11: its backward of stage 2 between two hops of the sum. */
static void one_task(void **state) {
    (void)state;
    car_task_list list = {0};
    make_uniform(3);
    assert_true(make_plan(CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, 3));
    expect_ok(car_plan_expand(f.plan, 1, 1, 4, &list));
    expect_text(find_task(&list, CAR_TASK_RECEIVE, 11), "Rp2.0<0");
    expect_text(find_task(&list, CAR_TASK_BACKWARD, 11), "B2.1@1");
    expect_text(find_task(&list, CAR_TASK_SEND, 11), "Sp2.1>2");
    car_task odd = *find_task(&list, CAR_TASK_BACKWARD, 11);
    odd.step = 7;
    odd.tag = 5;
    expect_text(&odd, "B2.1@1{step=7,tag=5}");
    car_task_list_release(f.plan, &list);
}

/* ---- the round trip -------------------------------------------------------------------------- */

static void expect_same(const car_task *a, const car_task *b) {
    char text[2][192];
    bool same = a->kind == b->kind && a->cargo == b->cargo && a->micro_batch == b->micro_batch &&
                a->stage == b->stage && a->bundle == b->bundle && a->step == b->step && a->version == b->version &&
                a->tied_version == b->tied_version && a->peer == b->peer && a->tag == b->tag && a->slot == b->slot;
    if (!same) {
        car_task_format(f.plan, a, text[0], sizeof text[0]);
        car_task_format(f.plan, b, text[1], sizeof text[1]);
        fail_msg("slot %lld: %s became %s in slot %lld", (long long)a->slot, text[0], text[1], (long long)b->slot);
    }
}

enum { MOST_DEVICES = 32 };

static car_status parse(const char *text, car_task_list *devices) {
    assert_true(car_plan_devices(f.plan) <= MOST_DEVICES);
    return car_plan_parse(f.plan, text, devices, car_plan_devices(f.plan));
}

static void release(car_task_list *devices) {
    for (int d = 0; d < car_plan_devices(f.plan); d++) {
        car_task_list_release(f.plan, &devices[d]);
    }
}

/* Prints, reads, and compares with the table itself. Returns the number of tasks. */
static int expect_round_trip(int64_t steps) {
    car_task_list devices[MOST_DEVICES] = {0}, list = {0};
    char *text = NULL;
    int total = 0;
    expect_ok(car_plan_print(f.plan, steps, &text));
    expect_ok(parse(text, devices));
    for (int d = 0; d < car_plan_devices(f.plan); d++) {
        int at = 0;
        for (int64_t window = 0; window < car_plan_windows(f.plan, steps); window++) {
            expect_ok(car_plan_expand(f.plan, d, window, steps, &list));
            assert_true(at + list.count <= devices[d].count);
            for (int n = 0; n < list.count; n++) {
                expect_same(&list.tasks[n], &devices[d].tasks[at++]);
            }
        }
        assert_int_equal(at, devices[d].count);
        total += at;
    }
    assert_null(strchr(text, '{')); /* everything that is left out follows from the rest */
    release(devices);
    car_task_list_release(f.plan, &list);
    car_plan_release_text(f.plan, text);
    return total;
}

static void every_plan_round_trips(void **state) {
    (void)state;
    int plans = 0;
    for (int workers = 1; workers <= 5; workers++) {
        for (int k = 1; k <= 3; k++) {
            make_uniform(k * workers);
            for (int rp = 0; rp < CAR_RULES * CAR_PLACEMENTS; rp++) {
                if (make_plan((car_rule)(rp % CAR_RULES), (car_placement)(rp / CAR_RULES), workers)) {
                    assert_true(expect_round_trip(4) >= 4 * 2 * workers * k * workers);
                    plans++;
                }
            }
        }
    }
    assert_int_equal(plans, 5 * 3 * (5 + 4 + 4 + 7 + 4));
}

static void ties_round_trip(void **state) {
    (void)state;
    int plans = 0;
    make_tied(4);
    for (int workers = 1; workers <= 4; workers *= 2) {
        for (int rp = 0; rp < CAR_RULES * CAR_PLACEMENTS; rp++) {
            if (make_plan((car_rule)(rp % CAR_RULES), (car_placement)(rp / CAR_RULES), workers)) {
                expect_round_trip(4);
                plans++;
            }
        }
    }
    assert_int_equal(plans, 3 * 24);
}

/* A wrong table must survive too: it is what bug reports are about. Each field in turn gets another value. */
static void wrong_tasks_round_trip(void **state) {
    (void)state;
    make_tied(4);
    assert_true(make_plan(CAR_RULE_CDP_V2, CAR_PLACEMENT_ZERO, 4));
    car_task_list list = {0}, devices[MOST_DEVICES] = {0};
    char header[512], task_text[192], text[1024], *whole = NULL;
    expect_ok(car_plan_print(f.plan, 4, &whole));
    snprintf(header, sizeof header, "%.*s\n", (int)strcspn(whole, "\n"), whole);
    expect_ok(car_plan_expand(f.plan, 1, 2, 4, &list));
    assert_true(list.count > 20);
    for (int n = 0; n < list.count * 8; n++) {
        car_task task = list.tasks[n / 8];
        int *fields[] = {&task.micro_batch, &task.stage, &task.bundle, &task.peer, &task.tag};
        switch (n % 8) {
        case 5:
            task.step += 3;
            break;
        case 6:
            task.version = task.version == 1 ? 0 : 1;
            break;
        case 7:
            task.tied_version = task.tied_version == 1 ? CAR_NONE : 1;
            break;
        default:
            *fields[n % 8] = *fields[n % 8] == 2 ? 1 : 2;
        }
        car_task_format(f.plan, &task, task_text, sizeof task_text);
        snprintf(text, sizeof text, "%sdevice 0\n%lld: %s\ndevice 1\ndevice 2\ndevice 3\n", header,
                 (long long)task.slot, task_text);
        expect_ok(parse(text, devices));
        assert_int_equal(devices[0].count, 1);
        expect_same(&task, &devices[0].tasks[0]);
    }
    release(devices);
    car_task_list_release(f.plan, &list);
    car_plan_release_text(f.plan, whole);
}

/* ---- what is refused ------------------------------------------------------------------------- */

#define HEADER                                                                                                  \
    "carousel-plan 2 rule=cdp-v2 placement=replica workers=2 stages=2 bundles=2 devices=2 mapping=interleaved " \
    "threads=2 slack=0 steps=4\n"

static void expect_refused(const char *text, const char *message) {
    car_task_list devices[MOST_DEVICES] = {0};
    assert_int_equal(parse(text, devices), CAR_ERROR_FORMAT);
    assert_string_equal(car_context_error(f.context), message);
    car_context_clear_error(f.context);
    release(devices);
}

static void mistakes_are_named(void **state) {
    (void)state;
    static const struct {
        const char *body, *message;
    } mistakes[] = {
        {"", "line 1: device 0 is missing"},
        {"device 0\n", "line 2: device 1 is missing"},
        {"device 2\n", "line 2: 'device' needs a number from 0 to 1"},
        {"device x\n", "line 2: 'device' needs a number from 0 to 1"},
        {"device 0\ndevice 0\n", "line 3: device 0 occurs twice"},
        {"0: F0.0@0\n", "line 2: there are tasks before the first 'device D'"},
        {"device 0\n0 F0.0@0\n", "line 3: '0 F0.0@0' is neither 'device D' nor 'SLOT: TASKS'"},
        {"device 0\n1: F0.0@0\n\n# a remark\n1: F0.0@0\n", "line 6: slot 1 does not come after slot 1"},
        {"device 0\n0: X0.0@0\n", "line 3: 'X0.0@0' is not a task; a task begins with one of RCFBDUS"},
        {"device 0\n0: F\n", "line 3: in 'F' the number of a stage is missing"},
        {"device 0\n0: F2.0@0\n", "line 3: in 'F2.0@0' there is no stage 2"},
        {"device 0\n0: Sp~0.0>1\n", "line 3: in 'Sp~0.0>1' there is no tied parameter 0"},
        {"device 0\n0: F0.2@0\n", "line 3: in 'F0.2@0' the micro-batch is 2, but must be from 0 to 1"},
        {"device 0\n0: F0.@0\n", "line 3: in 'F0.@0' a number is missing after '.'"},
        {"device 0\n0: F0.0@-1\n", "line 3: in 'F0.0@-1' the version is -1, but must be from 0 to 9223372036854775807"},
        {"device 0\n0: Sp0.0>7\n", "line 3: in 'Sp0.0>7' the device is 7, but must be from 0 to 1"},
        {"device 0\n0: B0.0@0-x\n",
         "line 3: in 'B0.0@0-x' there is an error at '-x': plans no longer say what a task frees"},
        {"device 0\n0: F0.0@0/999\n",
         "line 3: in 'F0.0@0/999' the step is 999, but its slot or version belongs to step 0"},
        {"device 0\n0: U0@1/1\n", "line 3: in 'U0@1/1' the step is 1, but its slot or version belongs to step 0"},
        {"device 0\n0: F0.0@0{size=3}\n",
         "line 3: in 'F0.0@0{size=3}' the braces must have stage=, bundle=, step= or tag= and a number"},
        {"device 0\n0: F0.0@0{step=3\n", "line 3: in 'F0.0@0{step=3' the closing brace is missing"},
        {"device 0\n0: F0.0@0 F1.0@0!?\n", "line 3: in 'F1.0@0!?' there is an error at '!?'"},
    };
    make_uniform(2);
    assert_true(make_plan(CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, 2));
    for (size_t m = 0; m < sizeof mistakes / sizeof mistakes[0]; m++) {
        char text[512], message[512];
        snprintf(text, sizeof text, HEADER "%s", mistakes[m].body);
        snprintf(message, sizeof message, "plan text, %s", mistakes[m].message);
        expect_refused(text, message);
    }
}

static void another_plan_is_refused(void **state) {
    (void)state;
    car_task_list devices[MOST_DEVICES] = {0};
    make_uniform(2);
    assert_true(make_plan(CAR_RULE_CDP_V1, CAR_PLACEMENT_REPLICA, 2));
    expect_refused("", "plan text, line 0: the text is empty");
    expect_refused(HEADER, "plan text, line 1: the header has 'rule=cdp-v2', but this plan has 'rule=cdp-v1'");
    expect_refused("carousel-plan 3\n", "plan text, line 1: the header has '3', but this plan has '2'");
    expect_refused("carousel-plan 2 rule=cdp-v1\n",
                   "plan text, line 1: the header has '', but this plan has 'placement=replica'");
    assert_true(make_plan(CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, 2));
    assert_int_equal(car_plan_parse(f.plan, HEADER, devices, 3), CAR_ERROR_ARGUMENT);
    car_context_clear_error(f.context);
    /* Steps are the text's own, and lines may end as Windows ends them. */
    expect_ok(parse(HEADER "device 0\r\n0: F0.0@0\r\ndevice 1\r\n", devices));
    assert_int_equal(devices[0].count, 1);
    release(devices);
}

/* ---- the drawing ----------------------------------------------------------------------------- */

static void expect_drawing(int64_t window, const car_task *marked, const char *expected) {
    char *text = NULL;
    expect_ok(car_plan_draw(f.plan, window, 6, marked, &text));
    assert_string_equal(text, expected);
    car_plan_release_text(f.plan, text);
}

static void drawings(void **state) {
    (void)state;
    make_uniform(3);
    assert_true(make_plan(CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, 3));
    expect_drawing(0, NULL,
                   "slot      0  1  2  3  4  5\n"
                   "worker 0  0  1  2  2' 1' 0'\n"
                   "worker 1  .  .  0  1  2  2'\n"
                   "worker 2  .  .  .  .  0  1\n");
    car_task marked = {.kind = CAR_TASK_BACKWARD,
                       .micro_batch = 1,
                       .stage = 1,
                       .bundle = 1,
                       .step = 0,
                       .version = 0,
                       .tied_version = CAR_NONE,
                       .peer = CAR_NONE,
                       .tag = CAR_NONE,
                       .slot = 6};
    expect_drawing(1, &marked,
                   "slot      6    7    8    9    10   11\n"
                   "worker 0  0    1    2    2'   1'   0'\n"
                   "worker 1  [1'] 0'   0    1    2    2'\n"
                   "worker 2  2    2'   1'   0'   0    1\n"
                   "[ ] marks B1.1@0 in slot 6\n");
    assert_true(make_plan(CAR_RULE_CDP_V2, CAR_PLACEMENT_PIPELINE, 3));
    expect_drawing(2, NULL,
                   "slot    12   13   14   15   16   17\n"
                   "rank 0  0.0  0.1' 0.1  0.2' 0.2  0.0'\n"
                   "rank 1  1.1' 1.0  1.2' 1.1  1.0' 1.2\n"
                   "rank 2  2.2  2.2' 2.0  2.0' 2.1  2.1'\n");
}

static void workers_that_share_a_rank(void **state) {
    (void)state;
    make_uniform(2);
    car_plan_config config = {.workers = 2, .rule = CAR_RULE_CDP_V1, .placement = CAR_PLACEMENT_REPLICA, .ranks = 1};
    expect_ok(car_plan_create(f.context, f.partition, &config, &f.plan));
    expect_drawing(1, NULL,
                   "slot              4  5  6  7\n"
                   "rank 0, worker 0  0  1  1' 0'\n"
                   "rank 0, worker 1  1' 0' 0  1\n");
}

static void large_drawings_are_cut(void **state) {
    (void)state;
    char *text = NULL;
    make_uniform(80);
    assert_true(make_plan(CAR_RULE_CDP_V2, CAR_PLACEMENT_SHARED, 80));
    expect_ok(car_plan_draw(f.plan, 2, 6, NULL, &text));
    assert_non_null(strstr(text, "\nworker 63 "));
    assert_null(strstr(text, "\nworker 64 "));
    assert_non_null(strstr(text, "(only 100 of 160 slots are shown)\n(only 64 of 80 workers are shown)\n"));
    car_plan_release_text(f.plan, text);
    /* Around a mark, so that an error message has room for it. */
    car_task marked = {.kind = CAR_TASK_FORWARD,
                       .micro_batch = 70,
                       .stage = 3,
                       .bundle = 3,
                       .step = 2,
                       .version = 1,
                       .tied_version = CAR_NONE,
                       .peer = CAR_NONE,
                       .tag = CAR_NONE,
                       .slot = 2 * 160 + 140 + 3};
    expect_ok(car_plan_draw(f.plan, 2, 6, &marked, &text));
    assert_non_null(strstr(text, "[3]"));
    assert_non_null(strstr(text, "slot       453 "));  /* slot 463 in the middle of 20 */
    assert_non_null(strstr(text, " 472\nworker 64 ")); /* worker 70 of 12 */
    assert_non_null(
        strstr(text, "(only 20 of 160 slots are shown)\n(only 12 of 80 workers are shown)\n[ ] marks F3.70@1"));
    car_plan_release_text(f.plan, text);
}

/* ---- without memory -------------------------------------------------------------------------- */

static car_status print_parse_draw(void) {
    car_task_list devices[MOST_DEVICES] = {0};
    char *text = NULL, *drawing = NULL, *svg = NULL;
    car_status status = car_plan_print(f.plan, 3, &text);
    status = status == CAR_OK ? parse(text, devices) : status;
    status = status == CAR_OK ? car_plan_draw(f.plan, 1, 3, &devices[0].tasks[0], &drawing) : status;
    status = status == CAR_OK ? car_report_plan_svg(f.plan, "a < b & c", &svg) : status;
    if (status == CAR_OK) {
        assert_non_null(strstr(svg, "<title>a &lt; b &amp; c</title>"));
    }
    car_plan_release_text(f.plan, svg);
    car_plan_release_text(f.plan, drawing);
    car_plan_release_text(f.plan, text);
    release(devices);
    return status;
}

static void every_lack_of_memory_is_survived(void **state) {
    (void)state;
    car_checking checking = {0};
    car_context_config config = car_context_config_default();
    config.allocator = car_checking_hooks(&checking);
    car_context_destroy(f.context);
    expect_ok(car_context_create(&config, &f.context));
    make_uniform(3);
    assert_true(make_plan(CAR_RULE_CDP_V2, CAR_PLACEMENT_REPLICA, 3));
    long blocks = checking.live_blocks, failures = 0;
    car_status status;
    do {
        checking.fail_at = checking.calls + ++failures;
        status = print_parse_draw();
        assert_true(status == CAR_OK || status == CAR_ERROR_MEMORY);
        assert_int_equal(checking.live_blocks, blocks);
        car_context_clear_error(f.context);
    } while (status != CAR_OK);
    assert_true(failures > 20);
    assert_int_equal(checking.wrong_sizes, 0);
    checking.fail_at = 0;
    car_plan_destroy(f.plan);
    car_partition_destroy(f.partition);
    car_context_destroy(f.context);
    f = (fixture){0};
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_go_both_ways, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_task, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_plan_round_trips, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ties_round_trip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_tasks_round_trip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(mistakes_are_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(another_plan_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(drawings, set_up, tear_down),
        cmocka_unit_test_setup_teardown(workers_that_share_a_rank, set_up, tear_down),
        cmocka_unit_test_setup_teardown(large_drawings_are_cut, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_lack_of_memory_is_survived, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
