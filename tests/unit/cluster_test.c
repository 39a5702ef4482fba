/* Descriptions of clusters: a sound one is understood, everything else is refused with the field's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/cluster.h"
#include "support/expect.h"
#include "support/scratch.h"

static car_status parse(car_context *context, const char *text, car_cluster *out) {
    return car_cluster_parse(context, "c.json", text, strlen(text), out);
}

static void a_sound_one_is_understood(void **state) {
    car_context *context = ((car_scratch *)*state)->context;
    car_cluster c;
    car_expect_ok(context, parse(context,
                                 "{\"name\": \"x\", \"devices\": 64, \"devices_per_node\": 8, \"flops\": 1e14, "
                                 "\"memory\": 8e10, \"inside\": {\"bandwidth\": 3e11, \"latency\": 2e-6}, "
                                 "\"between\": {\"latency\": 5e-6, \"bandwidth\": 2.5e10}}",
                                 &c));
    assert_string_equal(c.name, "x");
    assert_int_equal(c.devices, 64);
    assert_int_equal(c.devices_per_node, 8);
    assert_true(c.flops == 1e14 && c.memory == 8e10 && c.inside.bandwidth == 3e11 && c.inside.latency == 2e-6 &&
                c.between.bandwidth == 2.5e10 && c.between.latency == 5e-6);
    car_expect_ok(context, parse(context, "{\"flops\": 1, \"between\": {\"bandwidth\": 1, \"latency\": 0}}", &c));
    assert_true(c.devices == 0 && c.devices_per_node == 1 && c.memory == 0 && c.name[0] == '\0');
}

static void what_is_wrong_is_named(void **state) {
    car_context *context = ((car_scratch *)*state)->context;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "not a JSON object"},
        {"[1]", "not a JSON object"},
        {"{\"flops\": 1", "not a JSON object"},
        {"{\"between\": {\"bandwidth\": 1, \"latency\": 0}}", "\"flops\" is missing"},
        {"{\"flops\": 1}", "\"between\" is missing"},
        {"{\"flops\": \"fast\"}", "\"flops\" must be a number from 1 to 1e+21"},
        {"{\"flops\": 1e400}", "\"flops\" must be"},
        {"{\"flops\": -1}", "\"flops\" must be"},
        {"{\"flops\": 1, \"flops\": 2}", "\"flops\" occurs twice"},
        {"{\"flops\": 1, \"speed\": 2}", "\"speed\" is not a field"},
        {"{\"flops\": 1, \"between\": 5}", "\"between\" must be an object"},
        {"{\"flops\": 1, \"between\": {\"bandwidth\": 1}}", "\"between.latency\" is missing"},
        {"{\"flops\": 1, \"between\": {\"bandwidth\": 0, \"latency\": 0}}", "\"between.bandwidth\" must be"},
        {"{\"flops\": 1, \"between\": {\"bandwidth\": 1, \"latency\": null}}", "\"between.latency\" must be"},
        {"{\"flops\": 1, \"between\": {\"bandwidth\": 1, \"latency\": 0, \"width\": 1}}", "\"between.width\" is not"},
        {"{\"flops\": 1, \"devices\": 1.5}", "\"devices\" must be a whole number"},
        {"{\"flops\": 1, \"devices_per_node\": 0}", "\"devices_per_node\" must be"},
        {"{\"flops\": 1, \"name\": 7}", "\"name\" must be a string"},
        {"{\"flops\": 1, \"name\": \"0123456789012345678901234567890123456789012345678901234567890123\"}", "\"name\""},
        {"{\"flops\": 1, \"devices_per_node\": 2, \"between\": {\"bandwidth\": 1, \"latency\": 0}}",
         "\"inside\" is missing"},
        {"{\"flops\": 1, \"devices_per_node\": 2, \"between\": {\"bandwidth\": 1, \"latency\": 0}, "
         "\"inside\": {\"bandwidth\": 1, \"latency\": 1}}",
         "\"between.latency\" is the latency from device to device"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        car_cluster c;
        car_status status = parse(context, cases[i].text, &c);
        assert_non_null(strstr(car_context_error(context), "c.json: "));
        car_expect_failure(context, status, CAR_ERROR_FORMAT, cases[i].part);
        assert_true(c.flops == 0);
    }
}

static void files_are_read_whole_or_refused(void **state) {
    car_scratch *scratch = *state;
    static const char text[] = "{\"flops\": 2e12, \"between\": {\"bandwidth\": 1e9, \"latency\": 1e-5}}";
    car_cluster c;
    car_scratch_put(scratch, "c.json", text, strlen(text));
    car_expect_ok(scratch->context, car_cluster_load(scratch->context, car_scratch_in(scratch, "c.json").text, &c));
    assert_true(c.flops == 2e12);
    car_expect_failure(scratch->context,
                       car_cluster_load(scratch->context, car_scratch_in(scratch, "none.json").text, &c), CAR_ERROR_IO,
                       "none.json");
    car_expect_failure(scratch->context, car_cluster_load(scratch->context, scratch->directory, &c), CAR_ERROR_IO,
                       "not a regular file");
    car_scratch_put(scratch, "empty.json", "", 0);
    car_expect_failure(scratch->context,
                       car_cluster_load(scratch->context, car_scratch_in(scratch, "empty.json").text, &c),
                       CAR_ERROR_FORMAT, "empty.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_sound_one_is_understood, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_named, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(files_are_read_whole_or_refused, car_scratch_set_up, car_scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
