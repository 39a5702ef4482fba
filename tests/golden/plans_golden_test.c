/* Plans against grids that were written without the code: plans/PLACEMENT-N.txt, see make_plans.py. And a model with a
 * tied parameter in every placement: printed, read back, proven. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/model.h"
#include "carousel/plan.h"

enum { STEPS = 3, MOST_DEVICES = 16, MOST_SLOTS = 128, CELL = 16, MOST_TEXT = 1 << 16 };

static car_context *context;

static void expect_ok(car_status status) {
    if (status != CAR_OK) {
        fail_msg("%s", car_context_error(context));
    }
}

static int set_up(void **state) {
    (void)state;
    return car_context_create(NULL, &context) == CAR_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    car_context_destroy(context);
    return 0;
}

/* ---- grids with versions, from the printed text ---------------------------------------------- */

typedef struct cells {
    char text[MOST_DEVICES][MOST_SLOTS][CELL];
    int devices, slots;
} cells;

/* One word of the printed text, "F2.0@1" or "B2.0@1", as a cell: 2@1, 2'@1, or 2.0@1 where rows serve several workers. */
static void read_word(cells *c, const char *word, int device, int slot, bool several) {
    char kind;
    int stage, worker, version;
    if (sscanf(word, "%c%d.%d@%d", &kind, &stage, &worker, &version) != 4 || (kind != 'F' && kind != 'B')) {
        return;
    }
    char *cell = c->text[device][slot], whose[8] = "";
    assert_true(device < MOST_DEVICES && slot >= 0 && slot < MOST_SLOTS);
    assert_string_equal(cell, "");
    if (several) {
        snprintf(whose, sizeof whose, ".%d", worker);
    }
    snprintf(cell, CELL, "%d%s%s@%d", stage, whose, kind == 'B' ? "'" : "", version);
    c->slots = slot + 1 > c->slots ? slot + 1 : c->slots;
}

static void read_printed(char *text, cells *c, bool several) {
    int device = -1, slot = 0;
    char *line_state = NULL;
    for (char *line = strtok_r(text, "\n", &line_state); line; line = strtok_r(NULL, "\n", &line_state)) {
        if (sscanf(line, "device %d", &device) == 1 || sscanf(line, "%d:", &slot) != 1) {
            continue;
        }
        char *word_state = NULL;
        for (char *word = strtok_r(line, " ", &word_state); word; word = strtok_r(NULL, " ", &word_state)) {
            read_word(c, word, device, slot, several);
        }
    }
}

typedef struct output {
    char text[MOST_TEXT];
    size_t length;
} output;

static void put(output *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(output *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    out->length += (size_t)vsnprintf(out->text + out->length, sizeof out->text - out->length, format, arguments);
    va_end(arguments);
    assert_true(out->length < sizeof out->text);
}

static void end_line(output *out) {
    while (out->length > 0 && out->text[out->length - 1] == ' ') {
        out->length--;
    }
    put(out, "\n");
}

static void put_block(output *out, const cells *c, int first, int period, const char *label) {
    char name[24];
    int left = snprintf(name, sizeof name, "%s %d", label, c->devices - 1) + 2;
    int wide = snprintf(name, sizeof name, "%d", first + period - 1);
    for (int d = 0; d < c->devices; d++) {
        for (int s = first; s < first + period; s++) {
            wide = (int)strlen(c->text[d][s]) > wide ? (int)strlen(c->text[d][s]) : wide;
        }
    }
    put(out, "%-*s", left, "slot");
    for (int s = first; s < first + period; s++) {
        put(out, "%-*d", wide + 1, s);
    }
    end_line(out);
    for (int d = 0; d < c->devices; d++) {
        snprintf(name, sizeof name, "%s %d", label, d);
        put(out, "%-*s", left, name);
        for (int s = first; s < first + period; s++) {
            put(out, "%-*s", wide + 1, c->text[d][s][0] ? c->text[d][s] : ".");
        }
        end_line(out);
    }
}

/* ---- one plan as make_plans.py writes it ----------------------------------------------------- */

static void put_plan(output *out, car_rule rule, car_placement placement, int workers, int stages, int threads,
                     int accumulate) {
    static cells c;
    car_plan_config config = {
        .workers = workers, .accumulate = accumulate, .rule = rule, .placement = placement, .threads = threads};
    bool several = placement == CAR_PLACEMENT_PIPELINE || placement == CAR_PLACEMENT_GRID;
    const char *label = placement == CAR_PLACEMENT_SHARED ? "worker" : "rank";
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    char *text = NULL;
    memset(&c, 0, sizeof c);
    expect_ok(car_partition_create_uniform(context, stages, 2, &partition));
    expect_ok(car_plan_create(context, partition, &config, &plan));
    put(out, "plan %s %s workers=%d stages=%d threads=%d", car_rule_text(rule), car_placement_text(placement), workers,
        stages, threads);
    if (accumulate > 1) {
        put(out, " accumulate=%d", accumulate);
    }
    put(out, "\none period of a long run:\n");
    expect_ok(car_plan_draw(plan, 2, 6, NULL, &text));
    put(out, "%s", text);
    car_plan_release_text(plan, text);
    expect_ok(car_plan_print(plan, STEPS, &text));
    c.devices = car_plan_devices(plan);
    char *copy = strdup(text);
    assert_non_null(copy);
    read_printed(copy, &c, several);
    free(copy);
    car_plan_release_text(plan, text);
    put(out, "a run of %d steps, with versions:\n", STEPS);
    int period = (int)car_plan_period(plan);
    for (int first = 0; first < c.slots; first += period) {
        put_block(out, &c, first, period, label);
    }
    car_plan_destroy(plan);
    car_partition_destroy(partition);
}

static bool goes_with(car_rule rule, car_placement placement) {
    bool pipelines = rule == CAR_RULE_GPIPE || rule == CAR_RULE_1F1B || rule == CAR_RULE_2BW;
    return (!pipelines || placement == CAR_PLACEMENT_PIPELINE) &&
           (rule != CAR_RULE_ACCUMULATE || placement == CAR_PLACEMENT_SHARED);
}

static void put_file(output *out, car_placement placement, int workers) {
    static const car_rule order[] = {CAR_RULE_DP,    CAR_RULE_CDP_V1, CAR_RULE_CDP_V2, CAR_RULE_ACCUMULATE,
                                     CAR_RULE_GPIPE, CAR_RULE_1F1B,   CAR_RULE_2BW,    CAR_RULE_STAGGER};
    const int count = (int)(sizeof order / sizeof order[0]);
    out->length = 0;
    for (int r = 0; r < count; r++) {
        if (goes_with(order[r], placement)) {
            put(out, "%s", out->length ? "\n" : "");
            put_plan(out, order[r], placement, workers, workers,
                     order[r] == CAR_RULE_ACCUMULATE ? (workers + 1) / 2 : workers, 1);
        }
    }
    for (int r = 1; workers == 2 && r <= 2; r++) {
        put(out, "\n");
        put_plan(out, order[r], placement, workers, 2 * workers, workers, 1);
    }
    for (int r = 0; workers == 2 && r < count; r++) {
        if (goes_with(order[r], placement)) {
            put(out, "\n");
            put_plan(out, order[r], placement, workers, workers, workers, 2);
        }
    }
}

/* ---- the comparison -------------------------------------------------------------------------- */

static void expect_file(const char *path, const char *text) {
    FILE *file = fopen(path, "r");
    char line[512];
    int number = 0;
    if (!file) {
        fail_msg("cannot open %s", path);
    }
    while (fgets(line, sizeof line, file)) {
        size_t length = strlen(line);
        number++;
        if (strncmp(text, line, length) != 0) {
            fail_msg("%s, line %d:\nexpected %sgot      %.*s", path, number, line, (int)strcspn(text, "\n"), text);
        }
        text += length;
    }
    fclose(file);
    assert_true(number > 10);
    assert_string_equal(text, "");
}

static void grids(void **state) {
    (void)state;
    static output out;
    for (int placement = 0; placement < CAR_PLACEMENTS; placement++) {
        for (int workers = 2; workers <= 4; workers++) {
            char path[512];
            snprintf(path, sizeof path, "%s/plans/%s-%d.txt", CAR_TEST_DATA_DIR,
                     car_placement_text((car_placement)placement), workers);
            put_file(&out, (car_placement)placement, workers);
            expect_file(path, out.text);
        }
    }
}

/* ---- a tied parameter ------------------------------------------------------------------------ */

/* Every version that is printed for the last stage's tied weights must be the home's. */
static void expect_home_versions(const car_plan *plan, const car_task_list *list) {
    const car_partition *partition = car_plan_partition(plan);
    for (int n = 0; n < list->count; n++) {
        const car_task *task = &list->tasks[n];
        bool computes = task->kind == CAR_TASK_FORWARD || task->kind == CAR_TASK_BACKWARD;
        for (int b = partition->stage_count; computes && b < partition->bundle_count; b++) {
            int64_t due = task->step - car_plan_delay(plan, task->micro_batch, partition->bundles[b].home);
            bool here = partition->bundles[b].stage == task->stage;
            assert_int_equal(task->tied_version, !here ? CAR_NONE : due > 0 ? due : 0);
        }
    }
}

static void tie_in_a_plan(car_plan *plan) {
    car_task_list devices[MOST_DEVICES] = {0};
    char *text = NULL;
    int count = car_plan_devices(plan);
    assert_true(count <= MOST_DEVICES);
    expect_ok(car_plan_validate(plan, 6));
    expect_ok(car_plan_print(plan, 4, &text));
    assert_non_null(strstr(text, "# ~0: transformer.wte.weight of stage 0, used again in stage"));
    expect_ok(car_plan_parse(plan, text, devices, count));
    for (int d = 0; d < count; d++) {
        expect_home_versions(plan, &devices[d]);
        car_task_list_release(plan, &devices[d]);
    }
    car_plan_release_text(plan, text);
}

static void a_tied_parameter_in_every_placement(void **state) {
    (void)state;
    car_graph *graph = NULL;
    int plans = 0;
    expect_ok(car_model_build(context, "gpt2-nano", NULL, &graph));
    for (int workers = 2; workers <= 4; workers++) {
        car_partition_config cut = {.stages = workers * (workers == 2 ? 2 : 1)};
        car_partition *partition = NULL;
        expect_ok(car_partition_create(graph, &cut, &partition));
        assert_int_equal(partition->bundle_count, cut.stages + 1);
        for (int rp = 0; rp < CAR_RULES * CAR_PLACEMENTS; rp++) {
            car_plan_config config = {.workers = workers, .rule = rp % CAR_RULES, .placement = rp / CAR_RULES};
            car_plan *plan = NULL;
            if (car_plan_create(context, partition, &config, &plan) == CAR_OK) {
                tie_in_a_plan(plan);
                plans++;
            }
            car_context_clear_error(context);
            car_plan_destroy(plan);
        }
        car_partition_destroy(partition);
    }
    assert_int_equal(plans, 3 * 24);
    car_graph_destroy(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(grids, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_tied_parameter_in_every_placement, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
