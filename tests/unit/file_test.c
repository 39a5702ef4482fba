/* What programs build with besides the run: files that appear whole, text that may be shown, events, profiles. */
#include "carousel/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/convention.h"
#include "carousel/events.h"
#include "carousel/model.h"
#include "carousel/profile.h"
#include "carousel/utf8.h"
#include "support/expect.h"
#include "support/scratch.h"

static void test_files_appear_when_they_are_finished(void **state) {
    const car_scratch *s = *state;
    car_scratch_path path = car_scratch_in(s, "notes.txt");
    car_file *file = NULL;
    char *text = NULL;
    car_expect_ok(s->context, car_file_create(s->context, path.text, &file));
    car_expect_ok(s->context, car_file_write(file, "one\n", 4));
    assert_int_equal(car_scratch_count(s->directory, "notes"), 0);
    car_expect_ok(s->context, car_file_write(file, "two\n", 4));
    car_expect_ok(s->context, car_file_finish(file));
    assert_int_equal(car_file_write(file, "three", 5), CAR_ERROR_ARGUMENT);
    car_context_clear_error(s->context);
    car_file_close(file);
    car_expect_ok(s->context, car_file_read_text(s->context, path.text, 8, &text));
    assert_string_equal(text, "one\ntwo\n");
    car_context_release_text(s->context, text);

    car_expect_ok(s->context, car_file_create(s->context, path.text, &file));
    car_expect_ok(s->context, car_file_write(file, "not finished", 12));
    car_file_close(file);
    car_expect_ok(s->context, car_file_read_text(s->context, path.text, 8, &text));
    assert_string_equal(text, "one\ntwo\n");
    car_context_release_text(s->context, text);
    assert_int_equal(car_scratch_count(s->directory, "."), 0); /* nothing of it is left */
}

static void test_what_is_no_text_is_refused(void **state) {
    const car_scratch *s = *state;
    car_scratch_path path = car_scratch_in(s, "data.bin");
    char *text = NULL, digest[CAR_FILE_DIGEST];
    car_scratch_put(s, "data.bin", "ab\0c", 4);
    assert_int_equal(car_file_read_text(s->context, path.text, 100, &text), CAR_ERROR_FORMAT);
    assert_null(text);
    car_context_clear_error(s->context);
    car_scratch_put(s, "data.bin", "abc", 3);
    assert_int_equal(car_file_read_text(s->context, path.text, 2, &text), CAR_ERROR_FORMAT);
    car_context_clear_error(s->context);
    car_expect_ok(s->context, car_file_digest(s->context, path.text, digest));
    assert_string_equal(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(car_file_digest(s->context, s->directory, digest), CAR_ERROR_IO);
    car_context_clear_error(s->context);
}

static void test_text_is_made_safe_to_show(void **state) {
    char out[32];
    (void)state;
    car_utf8_show("a\x1b[31m\xc3\xa9\xff\n", false, out, sizeof out);
    assert_string_equal(out, "a\\x1B[31m\xc3\xa9\\xFF\\x0A");
    car_utf8_show("a\nb\t", true, out, sizeof out);
    assert_string_equal(out, "a\nb\t");
    car_utf8_show("ab\xc3\xa9", false, out, 4); /* ends at a whole character */
    assert_string_equal(out, "ab");
    assert_int_equal(car_utf8_length((const unsigned char *)"\xc3\xa9", 2), 2);
    assert_int_equal(car_utf8_length((const unsigned char *)"\xc3", 1), -1);
    assert_int_equal(car_utf8_length((const unsigned char *)"\xa9", 1), 0);
}

/* Records are read back by TensorBoard's format in tests/users/events.py; here their length, and that none keeps scalars. */
static void test_events_begin_anew_after_each_record(void **state) {
    const car_scratch *s = *state;
    car_events *events = NULL;
    car_event_record first, second;
    char name[200] = "";
    car_expect_ok(s->context, car_events_create(s->context, &events));
    car_expect_ok(s->context, car_events_begin(events, 1.5, 0, &first));
    assert_true(first.bytes > 2 * 16);
    car_expect_ok(s->context, car_events_add(events, "loss", 1));
    car_expect_ok(s->context, car_events_write(events, 1.5, 1, &first));
    size_t bytes = first.bytes;
    for (int n = 0; n < 500; n++) { /* as many as one likes */
        car_expect_ok(s->context, car_events_add(events, "loss", n));
    }
    car_expect_ok(s->context, car_events_write(events, 1.5, 2, &second));
    assert_true(second.bytes > 500 * 10);
    car_expect_ok(s->context, car_events_add(events, "loss", 1));
    car_expect_ok(s->context, car_events_write(events, 1.5, 3, &first));
    assert_int_equal(first.bytes, bytes);
    memset(name, 'x', sizeof name - 1);
    assert_int_equal(car_events_add(events, name, 1), CAR_ERROR_ARGUMENT);
    car_context_clear_error(s->context);
    car_events_destroy(events);
}

static void count_round(void *user, int round, int rounds) {
    int *counted = user;
    assert_int_equal(round, *counted);
    assert_true(round < rounds);
    (*counted)++;
}

static void test_costs_are_measured(void **state) {
    const car_scratch *s = *state;
    car_graph *graph = NULL;
    car_costs costs;
    int rounds = 0;
    const car_model_config shape = {.batch = 4, .image_size = 8, .classes = 3};
    car_expect_ok(s->context, car_model_build(s->context, "mlp", &shape, &graph));
    car_expect_ok(s->context, car_costs_measure(graph, NULL, count_round, &rounds, &costs));
    assert_int_equal(costs.count, car_graph_op_count(graph));
    assert_true(rounds > 1);
    for (int l = 0; l < costs.count; l++) {
        assert_true(costs.forward[l] >= 0 && costs.forward[l] < 1 && costs.backward[l] >= 0 && costs.backward[l] < 1);
    }
    car_costs_release(graph, &costs);
    car_graph_destroy(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_files_appear_when_they_are_finished, car_scratch_set_up,
                                        car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_no_text_is_refused, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_text_is_made_safe_to_show, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_events_begin_anew_after_each_record, car_scratch_set_up,
                                        car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_costs_are_measured, car_scratch_set_up, car_scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
