/* The page of runs: what is put into it, what is said of files that are missing or malformed, and that it is written
 * whole or not at all. What browsers make of it is tests/report's business. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "base/text.h"
#include "carousel/report.h"
#include "report/page.h"
#include "support/allocator.h"
#include "support/expect.h"
#include "support/scratch.h"

static const char summary[] = "{\"model\": \"mlp\", \"rule\": \"dp\", \"machine\": {\"cpu\": \"</script> & <!-- \"}}";
static const char config[] = "{\"model\": \"mlp\", \"workers\": 2}";
static const char metrics[] = "{\"step\": 0, \"loss\": 2.5, \"lr\": 0.1, \"seconds\": 1}\n"
                              "{\"step\": 1, \"loss\": null, \"skipped\": true}\n"
                              "{\"step\": 2, \"loss\": 1.5, \"gradient_norm\": 3}\n";
static const char evaluations[] = "{\"step\": 3, \"accuracy\": 0.5}\n";
#define TIMELINE(tasks, more)                                                                                         \
    "{\"carousel_timeline\": 1, \"workers\": 2, \"stages\": 2, \"lanes\": [\"thread 0\"], \"kinds\": [\"forward\"], " \
    "\"tasks\": " tasks more "}"
static const char timeline[] = TIMELINE("[[0, 5, 0, 0, 1, 1, 4, 4, 0]]", ", \"memory\": {\"workers\": [[[0, 1]], []]}");

static void put(const car_scratch *scratch, const char *name, const char *text) {
    car_scratch_put(scratch, name, text, strlen(text));
}

static void put_run(const car_scratch *scratch) {
    put(scratch, "run/config.json", config);
    put(scratch, "run/summary.json", summary);
    put(scratch, "run/metrics.jsonl", metrics);
    put(scratch, "run/evaluations.jsonl", evaluations);
    put(scratch, "run/timeline.json", timeline);
}

/* Makes a page of runs of the scratch directory; `second` may be NULL. */
static car_status make(const car_scratch *scratch, const char *first, const char *second, const char *title) {
    car_scratch_path one = car_scratch_in(scratch, "%s", first),
                     two = car_scratch_in(scratch, "%s", second ? second : "");
    car_scratch_path page = car_scratch_in(scratch, "page.html");
    const char *const directories[] = {one.text, two.text};
    return car_report_page(scratch->context, directories, second ? 2 : 1, title, page.text);
}

static char *read_page(const car_scratch *scratch) {
    size_t bytes = 0;
    car_scratch_path path = car_scratch_in(scratch, "page.html");
    char *data = car_scratch_read(path.text, &bytes), *text = calloc(bytes + 1, 1);
    assert_non_null(text);
    memcpy(text, data, bytes);
    free(data);
    return text;
}

/* The data in the page, as a browser would see it: up to the first end of a script element. */
static cJSON *read_data(const car_scratch *scratch) {
    static const char mark[] = "<script type=\"application/json\" id=\"report-data\">";
    char *page = read_page(scratch), *begin = strstr(page, mark);
    assert_non_null(begin);
    begin += strlen(mark);
    char *end = strstr(begin, "</script");
    assert_non_null(end);
    *end = '\0';
    cJSON *data = cJSON_Parse(begin);
    assert_non_null(data);
    free(page);
    return data;
}

static const cJSON *run_of(const cJSON *data, int index) {
    const cJSON *run = cJSON_GetArrayItem(cJSON_GetObjectItem(data, "runs"), index);
    assert_non_null(run);
    return run;
}

static const char *text_of(const cJSON *object, const char *name) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
    assert_non_null(text);
    return text;
}

static double number_of(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItem(object, name);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static bool has_note(const cJSON *run, const char *part) {
    const cJSON *note = NULL;
    cJSON_ArrayForEach(note, cJSON_GetObjectItem(run, "notes")) {
        if (strstr(note->valuestring, part)) {
            return true;
        }
    }
    return false;
}

static void expect_failure(const car_scratch *scratch, car_status expected, const char *part) {
    car_expect_failure(scratch->context, make(scratch, "run", NULL, NULL), expected, part);
    car_scratch_path page = car_scratch_in(scratch, "page.html");
    assert_int_not_equal(access(page.text, F_OK), 0);
    assert_int_equal(car_scratch_count(scratch->directory, ".page"), 0);
}

/* ---- what is in it ----------------------------------------------------------------------------- */

static void a_page_holds_all_of_a_run(void **state) {
    const car_scratch *scratch = *state;
    put_run(scratch);
    car_expect_ok(scratch->context, make(scratch, "run", NULL, "a < b & c"));
    char *page = read_page(scratch);
    assert_non_null(strstr(page, "<title>a &lt; b &amp; c</title>"));
    assert_null(strstr(page, "{{"));
    assert_null(strstr(page, "cpu\":\"</script>"));
    free(page);
    cJSON *data = read_data(scratch);
    const cJSON *run = run_of(data, 0), *read = cJSON_GetObjectItem(run, "metrics");
    assert_string_equal(text_of(data, "title"), "a < b & c");
    assert_string_equal(text_of(run, "name"), "run");
    assert_string_equal(text_of(cJSON_GetObjectItem(cJSON_GetObjectItem(run, "summary"), "machine"), "cpu"),
                        "</script> & <!-- ");
    assert_true(number_of(cJSON_GetObjectItem(run, "config"), "workers") == 2);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(cJSON_GetObjectItem(run, "timeline"), "tasks")), 1);
    assert_true(number_of(cJSON_GetArrayItem(cJSON_GetObjectItem(run, "evaluations"), 0), "accuracy") == 0.5);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(run, "notes")), 0);
    assert_true(number_of(read, "lines") == 3);
    assert_true(number_of(read, "skipped") == 1);
    assert_true(number_of(read, "not_finite") == 1);
    const cJSON *loss = cJSON_GetObjectItem(read, "loss");
    assert_int_equal(cJSON_GetArraySize(loss), 3);
    assert_true(cJSON_GetArrayItem(loss, 0)->valuedouble == 2.5);
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(loss, 1)));
    assert_true(cJSON_GetArrayItem(cJSON_GetObjectItem(read, "gradient_norm"), 2)->valuedouble == 3);
    cJSON_Delete(data);
}

static void runs_are_called_by_what_tells_them_apart(void **state) {
    const car_scratch *scratch = *state;
    put(scratch, "a/run/config.json", config);
    put(scratch, "b/run/config.json", config);
    put(scratch, "c/other/config.json", config);
    car_expect_ok(scratch->context, make(scratch, "a/run/", "c/other//", NULL));
    cJSON *data = read_data(scratch);
    assert_string_equal(text_of(run_of(data, 0), "name"), "run");
    assert_string_equal(text_of(run_of(data, 1), "name"), "other");
    assert_string_equal(text_of(data, "title"), "run, other");
    cJSON_Delete(data);
    car_expect_ok(scratch->context, make(scratch, "a/run", "b/run", NULL));
    data = read_data(scratch);
    assert_non_null(strstr(text_of(run_of(data, 0), "name"), "a/run"));
    assert_non_null(strstr(text_of(run_of(data, 1), "name"), "b/run"));
    cJSON_Delete(data);
}

/* ---- thinning ---------------------------------------------------------------------------------- */

static double sum_of(const cJSON *array) {
    const cJSON *item = NULL;
    double sum = 0;
    cJSON_ArrayForEach(item, array) {
        sum += item->valuedouble;
    }
    return sum;
}

static double most_of(const cJSON *array) {
    const cJSON *item = NULL;
    double most = -1;
    cJSON_ArrayForEach(item, array) {
        most = item->valuedouble > most ? item->valuedouble : most;
    }
    return most;
}

/* 8000 steps are points of four; the loss is the step's number, with one outlier. */
static void long_runs_are_averaged(void **state) {
    const car_scratch *scratch = *state;
    enum { LINES = 8000 };
    car_text lines = {.context = scratch->context};
    char *text = NULL;
    for (int step = 0; step < LINES; step++) {
        car_text_add(&lines, "{\"step\": %d, \"loss\": %d, \"lr\": 1}\n", step, step == 4321 ? 99999 : step);
    }
    car_expect_ok(scratch->context, car_text_finish(&lines, &text));
    put(scratch, "run/metrics.jsonl", text);
    car_context_release_text(scratch->context, text);
    car_expect_ok(scratch->context, make(scratch, "run", NULL, NULL));
    cJSON *data = read_data(scratch);
    const cJSON *read = cJSON_GetObjectItem(run_of(data, 0), "metrics"), *loss = cJSON_GetObjectItem(read, "loss");
    assert_int_equal(cJSON_GetArraySize(loss), CAR_RUN_POINTS);
    assert_true(number_of(read, "steps_in_a_point") == 4);
    assert_true(number_of(read, "lines") == LINES);
    assert_true(number_of(read, "first_step") == 0);
    assert_true(number_of(read, "last_step") == LINES - 1);
    car_expect_near(4 * sum_of(loss), LINES * (LINES - 1) / 2.0 + 99999 - 4321, 1e-3);
    assert_true(most_of(cJSON_GetObjectItem(read, "loss_max")) == 99999);
    assert_true(cJSON_GetArrayItem(cJSON_GetObjectItem(read, "loss_min"), 1)->valuedouble == 4);
    assert_true(cJSON_GetArrayItem(cJSON_GetObjectItem(read, "step"), 0)->valuedouble == 1.5);
    cJSON_Delete(data);
}

/* The last point has fewer steps than the others; none is lost. */
static void a_remainder_makes_a_point(void **state) {
    const car_scratch *scratch = *state;
    car_text lines = {.context = scratch->context};
    char *text = NULL;
    for (int step = 0; step < CAR_RUN_POINTS + 1; step++) {
        car_text_add(&lines, "{\"step\": %d, \"loss\": 1}\n", step);
    }
    car_expect_ok(scratch->context, car_text_finish(&lines, &text));
    put(scratch, "run/metrics.jsonl", text);
    car_context_release_text(scratch->context, text);
    car_expect_ok(scratch->context, make(scratch, "run", NULL, NULL));
    cJSON *data = read_data(scratch);
    const cJSON *step = cJSON_GetObjectItem(cJSON_GetObjectItem(run_of(data, 0), "metrics"), "step");
    assert_int_equal(cJSON_GetArraySize(step), CAR_RUN_POINTS / 2 + 1);
    assert_true(cJSON_GetArrayItem(step, CAR_RUN_POINTS / 2)->valuedouble == CAR_RUN_POINTS);
    cJSON_Delete(data);
}

/* ---- what is missing --------------------------------------------------------------------------- */

static void what_is_missing_is_noted(void **state) {
    const car_scratch *scratch = *state;
    put(scratch, "run/metrics.jsonl", "{\"step\": 0, \"loss\": 1}\n{\"step\": 1, \"lo");
    car_expect_ok(scratch->context, make(scratch, "run", NULL, NULL));
    cJSON *data = read_data(scratch);
    const cJSON *run = run_of(data, 0);
    assert_true(has_note(run, "config.json is missing"));
    assert_true(has_note(run, "summary.json is missing"));
    assert_true(has_note(run, "timeline.json is missing"));
    assert_true(has_note(run, "metrics.jsonl ends in the middle of a line"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(run, "notes")), 4);
    assert_true(number_of(cJSON_GetObjectItem(run, "metrics"), "lines") == 1);
    assert_null(cJSON_GetObjectItem(run, "timeline"));
    cJSON_Delete(data);
}

static void a_timeline_of_the_future_is_left_out(void **state) {
    const car_scratch *scratch = *state;
    put_run(scratch);
    put(scratch, "run/timeline.json", "{\"carousel_timeline\": 2, \"tasks\": \"of another kind\"}");
    car_expect_ok(scratch->context, make(scratch, "run", NULL, NULL));
    cJSON *data = read_data(scratch);
    assert_true(has_note(run_of(data, 0), "timeline.json has a version"));
    assert_null(cJSON_GetObjectItem(run_of(data, 0), "timeline"));
    cJSON_Delete(data);
}

static void an_empty_file_of_metrics_has_no_curves(void **state) {
    const car_scratch *scratch = *state;
    put(scratch, "run/metrics.jsonl", "");
    car_expect_ok(scratch->context, make(scratch, "run", NULL, NULL));
    cJSON *data = read_data(scratch);
    assert_true(has_note(run_of(data, 0), "metrics.jsonl is empty"));
    cJSON_Delete(data);
}

static void directories_that_are_no_runs_are_refused(void **state) {
    const car_scratch *scratch = *state;
    expect_failure(scratch, CAR_ERROR_IO, "No such file");
    put(scratch, "run/other.txt", "nothing");
    expect_failure(scratch, CAR_ERROR_ARGUMENT, "is not a run");
    car_expect_failure(scratch->context, make(scratch, "run/other.txt", NULL, NULL), CAR_ERROR_ARGUMENT,
                       "is not a directory");
    car_expect_failure(scratch->context, car_report_page(scratch->context, NULL, 0, NULL, "page.html"),
                       CAR_ERROR_ARGUMENT, "at least one run");
}

/* ---- what is malformed ------------------------------------------------------------------------- */

static void malformed_files_are_named_with_the_place(void **state) {
    static const struct {
        const char *name, *text, *message;
    } cases[] = {
        {"summary.json", "{\n  \"model\": \"mlp\",\n  rule}", "summary.json:3:3: not valid JSON: 'rule}'"},
        {"summary.json", "{\"model\": \"mlp\"", "summary.json:1:15: not valid JSON, or cut short"},
        {"summary.json", "", "summary.json:1:1: not valid JSON, or cut short: ''"},
        {"summary.json", "{} {}", "summary.json:1:4: not valid JSON: '{}'"},
        {"config.json", "[1, 2]", "config.json: not a JSON object"},
        {"timeline.json", "\x80 no", "timeline.json:1:1: not valid JSON: '. no'"},
    };
    const car_scratch *scratch = *state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char name[64];
        put_run(scratch);
        snprintf(name, sizeof name, "run/%s", cases[c].name);
        put(scratch, name, cases[c].text);
        expect_failure(scratch, CAR_ERROR_FORMAT, cases[c].message);
    }
}

/* What the other lines say is in the page all the same. */
static void damaged_lines_are_left_out_and_noted(void **state) {
    static const struct {
        const char *name, *text, *note;
        int sound;
    } cases[] = {
        {"metrics.jsonl", "{\"step\": 0}\n{\"step\" 1}\n{\"step\": 2}\n",
         "metrics.jsonl has 1 damaged line, left out; the first is line 2", 2},
        {"metrics.jsonl", "{\"step\": 0}\n17\n{\"loss\": 1}\n{\"step\": 3}{\"step\": 4}\n",
         "metrics.jsonl has 3 damaged lines, left out; the first is line 2", 1},
        {"metrics.jsonl", "no\n", "metrics.jsonl has no valid line, so there are no curves", 0},
        {"evaluations.jsonl", "{\"accuracy\": 1}\n{\"step\": 2}\n\x01\n",
         "evaluations.jsonl has 2 damaged lines, left out; the first is line 1", 1},
    };
    const car_scratch *scratch = *state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bool metrics_file = strcmp(cases[c].name, "metrics.jsonl") == 0;
        put_run(scratch);
        put(scratch, metrics_file ? "run/metrics.jsonl" : "run/evaluations.jsonl", cases[c].text);
        car_expect_ok(scratch->context, make(scratch, "run", NULL, NULL));
        cJSON *data = read_data(scratch);
        const cJSON *run = run_of(data, 0), *read = cJSON_GetObjectItem(run, metrics_file ? "metrics" : "evaluations");
        assert_true(has_note(run, cases[c].note));
        assert_int_equal(cJSON_GetArraySize(metrics_file ? cJSON_GetObjectItem(read, "step") : read), cases[c].sound);
        cJSON_Delete(data);
    }
}

static void timelines_that_cannot_be_drawn_are_refused(void **state) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"carousel_timeline\": 1}", "workers is not a positive whole number"},
        {"{\"carousel_timeline\": 1, \"workers\": 0}", "workers is not"},
        {"{\"carousel_timeline\": 1, \"workers\": 2, \"stages\": 1.5}", "stages is not"},
        {"{\"carousel_timeline\": 1, \"workers\": 2, \"stages\": 2, \"lanes\": [1]}", "lanes is not a list"},
        {TIMELINE("{}", ""), "tasks is not a list"},
        {TIMELINE("[[0, 1]]", ""), "tasks[0] is not a list of 9 numbers"},
        {TIMELINE("[[0, 5, 0, 0, 1, 1, 4, 4, null]]", ""), "tasks[0] is not a list of 9 numbers"},
        {TIMELINE("[[9, 5, 0, 0, 1, 1, 4, 4, 0]]", ""), "tasks[0] ends before it starts"},
        {TIMELINE("[[0, 5, 1, 0, 1, 1, 4, 4, 0]]", ""), "a lane or a kind"},
        {TIMELINE("[[0, 5, 0, 0.5, 1, 1, 4, 4, 0]]", ""), "a lane or a kind"},
        {TIMELINE("[[0, 5, 0, 0, 2, 1, 4, 4, 0]]", ""), "a worker or a stage"},
        {TIMELINE("[[0, 5, 0, 0, 1, -2, 4, 4, 0]]", ""), "a worker or a stage"},
        {TIMELINE("[]", ", \"memory\": 3"), "memory is not an object"},
        {TIMELINE("[]", ", \"memory\": {}"), "memory.workers is not a list"},
        {TIMELINE("[]", ", \"memory\": {\"workers\": [[], [[0]]]}"), "memory.workers[1][0] is not a list of 2 numbers"},
        {TIMELINE("[]", ", \"memory\": {\"workers\": [], \"limit_bytes\": \"x\"}"), "memory.limit_bytes"},
        {TIMELINE("[]", ", \"messages\": [[1, 2, 3]]"), "messages[0] is not a list of 7 numbers"},
        {TIMELINE("[]", ", \"bytes_per_slot\": {\"plan\": [\"x\"]}"), "bytes_per_slot.plan"},
        {TIMELINE("[]", ", \"partition\": [1]"), "partition is not a list of objects"},
    };
    const car_scratch *scratch = *state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        put_run(scratch);
        put(scratch, "run/timeline.json", cases[c].text);
        expect_failure(scratch, CAR_ERROR_FORMAT, cases[c].message);
    }
}

/* ---- written whole or not at all --------------------------------------------------------------- */

static void a_failed_report_leaves_the_old_page(void **state) {
    const car_scratch *scratch = *state;
    put_run(scratch);
    put(scratch, "page.html", "the old page");
    put(scratch, "run/config.json", "{");
    car_expect_failure(scratch->context, make(scratch, "run", NULL, NULL), CAR_ERROR_FORMAT,
                       "config.json:1:1: not valid JSON, or cut short: '{'");
    char *page = read_page(scratch);
    assert_string_equal(page, "the old page");
    free(page);
}

static void a_page_that_cannot_be_written_is_an_error(void **state) {
    const car_scratch *scratch = *state;
    car_scratch_path run = car_scratch_in(scratch, "run"), page = car_scratch_in(scratch, "nowhere/page.html");
    const char *const directories[] = {run.text};
    put_run(scratch);
    car_expect_failure(scratch->context, car_report_page(scratch->context, directories, 1, NULL, page.text),
                       CAR_ERROR_IO, "nowhere/page.html");
}

/* With an allocator that fails at its first, second, third ... call. */
static void running_out_of_memory_is_an_error(void **state) {
    const car_scratch *scratch = *state;
    car_scratch_path run = car_scratch_in(scratch, "run"), page = car_scratch_in(scratch, "page.html");
    const char *const directories[] = {run.text};
    bool failed = true;
    put_run(scratch);
    for (long call = 2; failed; call++) {
        car_checking checking = {.fail_at = call};
        car_context_config configuration = car_context_config_default();
        car_context *context = NULL;
        configuration.allocator = car_checking_hooks(&checking);
        assert_int_equal(car_context_create(&configuration, &context), CAR_OK);
        car_status status = car_report_page(context, directories, 1, NULL, page.text);
        failed = checking.failures > 0;
        assert_int_equal(status, failed ? CAR_ERROR_MEMORY : CAR_OK);
        car_context_destroy(context);
        assert_int_equal(checking.live_blocks, 0);
    }
    assert_int_equal(car_scratch_count(scratch->directory, ".page"), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, car_scratch_set_up, car_scratch_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_page_holds_all_of_a_run),
        TEST(runs_are_called_by_what_tells_them_apart),
        TEST(long_runs_are_averaged),
        TEST(a_remainder_makes_a_point),
        TEST(what_is_missing_is_noted),
        TEST(a_timeline_of_the_future_is_left_out),
        TEST(an_empty_file_of_metrics_has_no_curves),
        TEST(directories_that_are_no_runs_are_refused),
        TEST(malformed_files_are_named_with_the_place),
        TEST(damaged_lines_are_left_out_and_noted),
        TEST(timelines_that_cannot_be_drawn_are_refused),
        TEST(a_failed_report_leaves_the_old_page),
        TEST(a_page_that_cannot_be_written_is_an_error),
        TEST(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
