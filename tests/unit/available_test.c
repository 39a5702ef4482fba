/* Memory that is available: what is read of /proc and of control groups, as different systems write it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/available.h"
#include "support/scratch.h"

static void put(const car_scratch *scratch, const char *name, const char *text) {
    car_scratch_put(scratch, name, text, strlen(text));
}

static void put_machine(const car_scratch *scratch) {
    put(scratch, "proc/meminfo", "MemTotal:       8000 kB\nMemFree:         100 kB\nMemAvailable:   4000 kB\n");
}

/* Version 2 of control groups, mounted as a whole. */
static void put_second(const car_scratch *scratch, const char *group) {
    put_machine(scratch);
    put(scratch, "proc/self/cgroup", group);
    put(scratch, "proc/self/mountinfo",
        "22 1 0:20 / /proc rw - proc proc rw\n31 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
}

static void put_first(const car_scratch *scratch, const char *group, const char *top) {
    char text[512];
    put_machine(scratch);
    put(scratch, "proc/self/cgroup", group);
    snprintf(text, sizeof text,
             "30 22 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
             "31 22 0:26 %s /sys/fs/cgroup/memory rw - cgroup cgroup rw,nosuid,memory\n",
             top);
    put(scratch, "proc/self/mountinfo", text);
}

static void without_groups_the_machine_counts(void **state) {
    const car_scratch *scratch = *state;
    put_machine(scratch);
    car_available found = car_available_find_below(scratch->directory);
    assert_int_equal(found.machine, 4000 * 1024);
    assert_true(found.group == UINT64_MAX && found.group_id == 0);
}

static void nothing_to_read_means_nothing_known(void **state) {
    const car_scratch *scratch = *state;
    car_available found = car_available_find_below(scratch->directory);
    assert_true(found.machine == UINT64_MAX && found.group == UINT64_MAX);
}

static void a_group_leaves_its_limit_without_what_is_used_but_for_caches(void **state) {
    const car_scratch *scratch = *state;
    put_second(scratch, "0::/jobs/a\n");
    put(scratch, "sys/fs/cgroup/jobs/a/memory.max", "100000\n");
    put(scratch, "sys/fs/cgroup/jobs/a/memory.current", "60000\n");
    put(scratch, "sys/fs/cgroup/jobs/a/memory.stat",
        "anon 30000\nfile 25000\ninactive_file 20000\nactive_file 5000\nslab_reclaimable 1000\nslab 3000\n");
    assert_int_equal(car_available_find_below(scratch->directory).group, 100000 - (60000 - 26000));
}

/* Of several limits the tightest, whose group is the same for all that are below it. */
static void groups_above_count_too(void **state) {
    const car_scratch *scratch = *state;
    put_second(scratch, "0::/jobs/a\n");
    put(scratch, "sys/fs/cgroup/jobs/a/memory.max", "max\n");
    put(scratch, "sys/fs/cgroup/jobs/a/memory.current", "10\n");
    put(scratch, "sys/fs/cgroup/jobs/memory.max", "5000\n");
    put(scratch, "sys/fs/cgroup/jobs/memory.current", "1000\n");
    put(scratch, "sys/fs/cgroup/memory.max", "9000\n");
    put(scratch, "sys/fs/cgroup/memory.current", "1000\n");
    car_available a = car_available_find_below(scratch->directory);
    assert_int_equal(a.group, 4000);
    put(scratch, "sys/fs/cgroup/jobs/b/memory.max", "100000\n");
    put(scratch, "sys/fs/cgroup/jobs/b/memory.current", "10\n");
    put(scratch, "proc/self/cgroup", "0::/jobs/b\n");
    car_available b = car_available_find_below(scratch->directory);
    assert_int_equal(b.group, 4000);
    assert_true(a.group_id == b.group_id && a.group_id != 0);
    put(scratch, "sys/fs/cgroup/jobs/b/memory.max", "3000\n");
    assert_true(car_available_find_below(scratch->directory).group_id != a.group_id);
    put(scratch, "sys/fs/cgroup/jobs/memory.current", "6000\n"); /* over its limit */
    assert_int_equal(car_available_find_below(scratch->directory).group, 0);
}

static void the_first_version_is_read(void **state) {
    const car_scratch *scratch = *state;
    put_first(scratch, "9:name=systemd:/\n4:cpu,cpuacct:/other\n3:memory:/jobs/a\n0::/\n", "/");
    put(scratch, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(scratch, "sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
    put(scratch, "sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "7000\n");
    put(scratch, "sys/fs/cgroup/memory/jobs/a/memory.usage_in_bytes", "4000\n");
    put(scratch, "sys/fs/cgroup/memory/jobs/a/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
    assert_int_equal(car_available_find_below(scratch->directory).group, 3500);
}

/* A container whose group is what is mounted, under its name outside, or under one that means nothing inside. */
static void a_container_sees_its_own_group_as_the_top(void **state) {
    static const char *const groups[] = {"3:memory:/docker/abc\n", "3:memory:/somewhere/else\n", "3:memory:/../x\n",
                                         "3:memory:/dockerish\n"};
    const car_scratch *scratch = *state;
    for (int g = 0; g < 4; g++) {
        put_first(scratch, groups[g], "/docker/abc");
        put(scratch, "sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n");
        put(scratch, "sys/fs/cgroup/memory/memory.usage_in_bytes", "4000\n");
        assert_int_equal(car_available_find_below(scratch->directory).group, 3000);
    }
}

static void this_machine_has_some(void **state) {
    (void)state;
    car_available found = car_available_find_below("");
    assert_true(found.machine > 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, car_scratch_set_up, car_scratch_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(without_groups_the_machine_counts),
        TEST(nothing_to_read_means_nothing_known),
        TEST(a_group_leaves_its_limit_without_what_is_used_but_for_caches),
        TEST(groups_above_count_too),
        TEST(the_first_version_is_read),
        TEST(a_container_sees_its_own_group_as_the_top),
        TEST(this_machine_has_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
