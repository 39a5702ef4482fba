/* Checkpoints when writing does not end well: killed, full disks, no permission, no memory. What was there before stays
 * sound, and nothing half-written is ever taken for a checkpoint. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/folder.h"
#include "support/checkpoints.h"

enum { KEEP = 2 };

static const char run_text[] = "{\"a\": 1}";

static int set_up(void **state) {
    return car_checkpoints_set_up(state, CAR_KERNELS_REFERENCE, 1, "checkpoints");
}

static int tear_down(void **state) {
    const car_checkpoints *f = *state;
    umount2(f->directory.text, MNT_DETACH); /* of test_disk_full, whatever became of it; fails in the other tests */
    return car_checkpoints_tear_down(state);
}

static car_status try_step(car_checkpoints *f, int64_t step) {
    return car_checkpoints_try(f, step, KEEP, run_text);
}

static void write_step(car_checkpoints *f, int64_t step) {
    car_checkpoints_write(f, step, KEEP, run_text);
}

static void expect_step(car_checkpoints *f, int64_t step) {
    car_checkpoints_expect(f, step, (uint64_t)step);
}

/* ---- killed ---------------------------------------------------------------------------------- */

/* Writes one checkpoint after the other until it is killed. Says in `pipe` when it has begun. */
static void write_for_ever(car_checkpoints *f, int64_t step, int pipe) {
    for (char begun = 1;; begun = 0) {
        car_sample_snapshot_fill(&f->rig, f->snapshot, (uint64_t)step);
        if ((begun && write(pipe, &begun, 1) != 1) || try_step(f, step) != CAR_OK) {
            _exit(1);
        }
        step++;
    }
}

static void kill_a_writer(car_checkpoints *f, int64_t step, unsigned microseconds) {
    int ends[2], result = 0;
    char begun = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        write_for_ever(f, step, ends[1]);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &begun, 1), 1);
    close(ends[0]);
    usleep(microseconds);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result)); /* it had not ended by itself, that is with an error */
}

static void test_killed(void **state) {
    enum { TIMES = 30 };
    car_checkpoints *f = *state;
    int interrupted = 0, written = 0;
    int64_t last = 1;
    double begin = car_clock_seconds();
    write_step(f, last);
    uint64_t longest_us = (uint64_t)(4e6 * (car_clock_seconds() - begin)); /* some checkpoints' time */
    for (int i = 0; i < TIMES; i++) {
        kill_a_writer(f, last + 1, (unsigned)(car_random_u64(7, (uint64_t)i) % longest_us));
        int64_t found = car_checkpoints_newest(f);
        assert_true(found >= last); /* nothing was lost */
        written += (int)(found - last);
        last = found;
        interrupted += car_scratch_count(f->directory.text, ".step-") > 0;
        for (int64_t step = last > 3 ? last - 3 : 1; step <= last; step++) { /* all that look like one are one */
            char name[64];
            snprintf(name, sizeof name, "step-%08lld", (long long)step);
            if (car_scratch_count(f->directory.text, name) > 0) {
                expect_step(f, step);
            }
        }
    }
    print_message("%d writers killed, %d of them within a checkpoint, %d checkpoints written\n", TIMES, interrupted,
                  written);
    assert_true(interrupted > TIMES / 4); /* otherwise this test would show nothing */
    write_step(f, last + 1);
    assert_int_equal(car_scratch_count(f->directory.text, "."), 0); /* what they left is gone */
    expect_step(f, last + 1);
}

static void leave(car_checkpoints *f, long pid) {
    car_scratch_path path = car_scratch_in(&f->scratch, "checkpoints/.step-00000009.%ld.tmp", pid);
    assert_int_equal(mkdir(path.text, 0777), 0);
    path = car_scratch_in(&f->scratch, "checkpoints/.step-00000009.%ld.tmp/weights.safetensors", pid);
    car_scratch_write(path.text, "half", 4);
}

static void test_leftovers(void **state) {
    car_checkpoints *f = *state;
    write_step(f, 1);
    pid_t dead = fork(), living = 0;
    if (dead == 0) {
        _exit(0);
    }
    assert_int_equal(waitpid(dead, NULL, 0), dead);
    living = fork();
    if (living == 0) {
        pause();
        _exit(0);
    }
    leave(f, dead);
    leave(f, living);
    leave(f, getpid()); /* ours, of an earlier life: we are not writing */
    car_scratch_path own = car_scratch_in(&f->scratch, "checkpoints/.step-notes");
    car_scratch_write(own.text, "mine", 4);
    write_step(f, 2);
    assert_int_equal(car_scratch_count(f->directory.text, "."), 2);
    assert_int_equal(access(own.text, F_OK), 0);
    kill(living, SIGKILL);
    assert_int_equal(waitpid(living, NULL, 0), living);
    write_step(f, 3);
    assert_int_equal(car_scratch_count(f->directory.text, "."), 1);
    assert_int_equal(access(own.text, F_OK), 0);
}

/* ---- places that cannot be written to -------------------------------------------------------- */

static void test_not_a_directory(void **state) {
    car_checkpoints *f = *state;
    int64_t step = 0;
    car_scratch_write(f->directory.text, "x", 1);
    car_rig_expect_failure(&f->rig, try_step(f, 1), CAR_ERROR_IO, "is a file, not a directory");
    car_rig_expect_failure(&f->rig, car_checkpoint_newest(f->rig.context, f->directory.text, &step), CAR_ERROR_IO,
                           "Not a directory");
    assert_int_equal(step, -1);
    f->directory = car_scratch_in(&f->scratch, "checkpoints/below");
    car_rig_expect_failure(&f->rig, try_step(f, 1), CAR_ERROR_IO, "is a file, not a directory");
}

/* In a process of its own, which gives up being root if it is. Returns what a failure left. */
static int write_unprivileged(car_checkpoints *f) {
    enum { NOBODY = 65534 };
    if (geteuid() == 0 && (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)) {
        return 2;
    }
    bool refused = try_step(f, 2) == CAR_ERROR_IO &&
                   strstr(car_context_error(f->rig.context), "cannot write a checkpoint there: Permission denied");
    return refused ? 0 : 1;
}

static void test_no_permission(void **state) {
    car_checkpoints *f = *state;
    int result = 0;
    write_step(f, 1);
    assert_int_equal(chmod(f->scratch.directory, 0755), 0);
    assert_int_equal(chmod(f->directory.text, 0555), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(write_unprivileged(f));
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
    assert_int_equal(chmod(f->directory.text, 0755), 0);
    assert_int_equal(car_scratch_count(f->directory.text, ""), 1);
    expect_step(f, 1);
}

/* Every file in turn is the one that grows too large. */
static void test_file_too_large(void **state) {
    car_checkpoints *f = *state;
    struct rlimit before, limit;
    write_step(f, 1);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    const rlim_t limits[] = {0, 100, 5000, 20000};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        limit.rlim_cur = limits[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        car_status status = try_step(f, 2);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        car_rig_expect_failure(&f->rig, status, CAR_ERROR_IO, "cannot write: File too large");
        assert_int_equal(car_scratch_count(f->directory.text, ""), 1);
        expect_step(f, 1);
    }
    signal(SIGXFSZ, SIG_DFL);
    write_step(f, 2);
    expect_step(f, 2);
}

/* A small file system that fills up. */
static void check_full_disk(car_checkpoints *f) {
    enum { ROUNDS = 300, FILL_STEP = 4096 }; /* more than fit */
    car_scratch_path filler = car_scratch_in(&f->scratch, "checkpoints/filler");
    int failures = 0;
    write_step(f, 1);
    FILE *file = fopen(filler.text, "wb");
    assert_non_null(file);
    for (int i = 0; i < ROUNDS; i++) { /* a little less room each time: it ends at another place */
        char block[FILL_STEP] = {0};
        bool filled = fwrite(block, 1, sizeof block, file) == sizeof block && fflush(file) == 0;
        car_status status = try_step(f, 2);
        failures += status != CAR_OK;
        if (status == CAR_OK) {
            car_scratch_path made = car_scratch_in(&f->scratch, "checkpoints/step-00000002");
            assert_true(car_folder_remove(made.text));
        } else {
            assert_int_equal(status, CAR_ERROR_IO);
            assert_non_null(strstr(car_context_error(f->rig.context), "No space left on device"));
            car_context_clear_error(f->rig.context);
        }
        assert_int_equal(car_scratch_count(f->directory.text, ""), 2); /* the filler and step 1 */
        expect_step(f, 1);
        if (!filled) {
            break;
        }
    }
    fclose(file);
    print_message("%d checkpoints failed on a disk that filled up\n", failures);
    assert_true(failures > 10);
    assert_int_equal(unlink(filler.text), 0);
    write_step(f, 2);
    expect_step(f, 2);
}

static void test_disk_full(void **state) {
    car_checkpoints *f = *state;
    assert_int_equal(mkdir(f->directory.text, 0777), 0);
    if (mount("tmpfs", f->directory.text, "tmpfs", 0, "size=1m") != 0) {
        print_message("SKIPPED: a full disk needs a file system of its own, which cannot be mounted here: %s\n",
                      strerror(errno));
        skip();
    }
    check_full_disk(f);
}

/* ---- memory and arguments -------------------------------------------------------------------- */

static void test_no_memory(void **state) {
    car_checkpoints *f = *state;
    write_step(f, 1);
    car_sample_snapshot_fill(&f->rig, f->snapshot, 1);
    long before = f->checking.calls;
    car_rig_expect_ok(&f->rig, try_step(f, 1));
    long calls = f->checking.calls - before, blocks = f->checking.live_blocks;
    for (long c = 1; c <= calls; c += 1 + c / 12) {
        f->checking.fail_at = f->checking.calls + c;
        f->checking.fail_onwards = true;
        car_status status = try_step(f, 1);
        f->checking.fail_at = 0;
        assert_int_equal(status, CAR_ERROR_MEMORY);
        car_context_clear_error(f->rig.context);
        assert_int_equal(f->checking.live_blocks, blocks);
        assert_int_equal(car_scratch_count(f->directory.text, ""), 1);
        expect_step(f, 1);
    }
    car_checkpoint *checkpoint = NULL;
    before = f->checking.calls;
    car_rig_expect_ok(&f->rig, car_checkpoint_open(f->rig.context, f->directory.text, 1, &checkpoint));
    car_checkpoint_close(checkpoint);
    calls = f->checking.calls - before;
    for (long c = 1; c <= calls; c++) {
        f->checking.fail_at = f->checking.calls + c;
        car_status status = car_checkpoint_open(f->rig.context, f->directory.text, 1, &checkpoint);
        f->checking.fail_at = 0;
        car_rig_expect_failure(&f->rig, status, CAR_ERROR_MEMORY, "memory");
        assert_null(checkpoint);
        assert_int_equal(f->checking.live_blocks, blocks);
    }
}

static void test_arguments(void **state) {
    car_checkpoints *f = *state;
    car_checkpoint_config config = {.directory = f->directory.text, .keep = 0};
    static const char *const texts[] = {"", "[]", "{", "{} x", "7"};
    car_context *context = f->rig.context;
    write_step(f, 1);
    car_rig_expect_failure(&f->rig, car_checkpoint_write(context, &config, f->snapshot, "{}"), CAR_ERROR_ARGUMENT,
                           "not 0");
    config.keep = 1;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        car_rig_expect_failure(&f->rig, car_checkpoint_write(context, &config, f->snapshot, texts[i]),
                               CAR_ERROR_ARGUMENT, "one JSON object");
    }
    car_snapshot_set_numbers(f->snapshot, &(car_snapshot_numbers){.step = -1});
    car_rig_expect_failure(&f->rig, car_checkpoint_write(context, &config, f->snapshot, "{}"), CAR_ERROR_ARGUMENT,
                           "step -1");
    expect_step(f, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_killed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_leftovers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_not_a_directory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_permission, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_too_large, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_disk_full, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_arguments, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
