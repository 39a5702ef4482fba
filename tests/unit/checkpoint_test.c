/* Checkpoints: what is written comes back to the bit, and what was damaged is told from what was not. */
#include "carousel/checkpoint.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/checkpoints.h"

static const char run_text[] =
    "{ \"lr\":0.1,\n\"run\": {\"checksum\": \"\", \"n\": 1e-7} , \"text\": \"\\u00e9 100%\"}";

static const char *const file_names[] = {"weights.safetensors", "state.safetensors", "run.json"};
enum { FILES = sizeof file_names / sizeof *file_names };

static int set_up(void **state) {
    return car_checkpoints_set_up(state, CAR_KERNELS_ONEDNN, 2, "run/checkpoints");
}

static void write_step(car_checkpoints *f, int64_t step, int keep) {
    car_checkpoints_write(f, step, keep, run_text);
}

static void expect_refused(car_checkpoints *f, int64_t step, car_status expected, const char *part) {
    car_checkpoint *checkpoint = (car_checkpoint *)f; /* anything: it must be overwritten */
    car_rig_expect_failure(&f->rig, car_checkpoint_open(f->rig.context, f->directory.text, step, &checkpoint), expected,
                           part);
    assert_null(checkpoint);
}

static car_scratch_path file_of(const car_checkpoints *f, int64_t step, int file) {
    return car_scratch_in(&f->scratch, "run/checkpoints/step-%08lld/%s", (long long)step, file_names[file]);
}

/* ---- there and back -------------------------------------------------------------------------- */

static void check_round_trip(bool previous, int states, car_kernels from, car_kernels to, double norm) {
    car_rig source, target;
    car_scratch scratch;
    car_checkpoint *checkpoint = NULL;
    bool exact = false;
    car_scratch_open(&scratch);
    car_rig_open(&source, &(car_rig_config){.build = car_net_residual, .kernels = from});
    car_rig_open(&target, &(car_rig_config){.build = car_net_residual, .kernels = to});
    const car_snapshot_numbers numbers = {.step = 123456789012, .updates = 7, .norm = norm};
    const car_checkpoint_config config = {.directory = scratch.directory, .keep = 1};
    car_snapshot *snapshot = car_sample_snapshot_make(&source, previous, states, 1),
                 *back = car_sample_snapshot_make(&target, previous, states, 2);
    car_snapshot_set_numbers(snapshot, &numbers);
    car_rig_expect_ok(&source, car_checkpoint_write(source.context, &config, snapshot, run_text));
    car_rig_expect_ok(&target, car_checkpoint_open(target.context, scratch.directory, numbers.step, &checkpoint));
    assert_string_equal(car_checkpoint_run(checkpoint), run_text);
    car_rig_expect_ok(&target, car_checkpoint_read(checkpoint, back, &exact));
    assert_true(exact);
    assert_true(car_sample_snapshot_is(&target, back, 1));
    const car_snapshot_numbers found = car_snapshot_get_numbers(back);
    assert_true(found.step == numbers.step && found.updates == numbers.updates);
    assert_true(isnan(norm) ? isnan(found.norm) : found.norm == norm);

    /* What it says of its weights is what --init and PyTorch read. */
    car_weights_load_report report;
    car_rig_expect_ok(&target,
                      car_weights_load(target.weights, car_checkpoint_weights_path(checkpoint), NULL, &report));
    assert_int_equal(report.loaded, car_graph_param_count(target.graph));
    assert_int_equal(report.left_over, 0);
    car_checkpoint_close(checkpoint);
    car_snapshot_destroy(snapshot);
    car_snapshot_destroy(back);
    car_rig_close(&source);
    car_rig_close(&target);
    car_scratch_close(&scratch);
}

static void test_round_trip(void **state) {
    (void)state;
    check_round_trip(false, 0, CAR_KERNELS_ONEDNN, CAR_KERNELS_ONEDNN, NAN);
    check_round_trip(true, 0, CAR_KERNELS_REFERENCE, CAR_KERNELS_REFERENCE, 0.1);
    check_round_trip(false, 1, CAR_KERNELS_ONEDNN, CAR_KERNELS_REFERENCE, 0x1.fffffffffffffp-3);
    check_round_trip(true, 2, CAR_KERNELS_REFERENCE, CAR_KERNELS_ONEDNN, INFINITY);
    check_round_trip(true, 1, CAR_KERNELS_ONEDNN, CAR_KERNELS_ONEDNN, 0);
}

/* A snapshot that wants more than the checkpoint has gets the next best, and is told so. */
static void test_lacking_parts(void **state) {
    car_checkpoints *f = *state;
    const car_checkpoint_config config = {.directory = f->directory.text, .keep = 9};
    car_snapshot *poor = car_sample_snapshot_make(&f->rig, false, 0, 3);
    car_checkpoint *checkpoint = NULL;
    bool exact = true;
    car_rig_expect_ok(&f->rig, car_checkpoint_write(f->rig.context, &config, poor, "{}"));
    car_rig_expect_ok(&f->rig, car_checkpoint_open(f->rig.context, f->directory.text, 0, &checkpoint));
    car_rig_expect_ok(&f->rig, car_checkpoint_read(checkpoint, f->snapshot, &exact));
    assert_false(exact);
    assert_true(car_sample_snapshot_part_is(&f->rig, f->snapshot, CAR_SNAPSHOT_WEIGHTS, 3));
    for (int p = 0; p < car_graph_param_count(f->rig.graph); p++) {
        size_t bytes = 0;
        float *weights = car_sample_snapshot_values(&f->rig, CAR_SNAPSHOT_WEIGHTS, p, 3, &bytes);
        float *found = malloc(bytes), *zeros = calloc(1, bytes);
        assert_true(found && zeros);
        car_rig_expect_ok(&f->rig, car_snapshot_get(f->snapshot, CAR_SNAPSHOT_PREVIOUS, p, found));
        assert_memory_equal(found, weights, bytes);
        for (int part = CAR_SNAPSHOT_STATE_0; part <= CAR_SNAPSHOT_STATE_1; part++) {
            if (car_snapshot_has(f->snapshot, (car_snapshot_part)part, p)) {
                car_rig_expect_ok(&f->rig, car_snapshot_get(f->snapshot, (car_snapshot_part)part, p, found));
                assert_memory_equal(found, zeros, bytes);
            }
        }
        free(weights);
        free(found);
        free(zeros);
    }
    car_checkpoint_close(checkpoint);

    write_step(f, 1, 9); /* the other way round nothing is lacking */
    car_rig_expect_ok(&f->rig, car_checkpoint_open(f->rig.context, f->directory.text, 1, &checkpoint));
    car_rig_expect_ok(&f->rig, car_checkpoint_read(checkpoint, poor, &exact));
    assert_true(exact);
    assert_true(car_sample_snapshot_is(&f->rig, poor, 1));
    car_checkpoint_close(checkpoint);
    car_snapshot_destroy(poor);
}

static int build_wider(car_graph *graph) {
    int x = car_graph_input(graph, "x", (car_shape){2, {2, 6}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    return car_graph_cross_entropy(graph, "loss", car_net_linear(graph, "head", x, 9), labels, 0);
}

static int build_narrower(car_graph *graph) {
    int x = car_graph_input(graph, "x", (car_shape){2, {2, 6}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    return car_graph_cross_entropy(graph, "loss", car_net_linear(graph, "head", x, 8), labels, 0);
}

static int build_deeper(car_graph *graph) {
    int x = car_graph_input(graph, "x", (car_shape){2, {2, 6}}, CAR_F32);
    int labels = car_graph_input(graph, "labels", (car_shape){1, {2}}, CAR_I32);
    x = car_graph_layernorm(graph, "more", x, 1e-5);
    return car_graph_cross_entropy(graph, "loss", car_net_linear(graph, "head", x, 9), labels, 0);
}

static void test_another_model(void **state) {
    car_checkpoints *f = *state;
    const struct {
        car_net_function written, read;
        const char *message;
    } cases[] = {
        {build_narrower, build_wider, "head.weight has shape [8, 6] in the file and [9, 6] in this model"},
        {build_wider, build_deeper, "it has no more.weight"},
        {build_deeper, build_wider, "it has parameters that this model does not have"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        car_rig written, read;
        car_checkpoint *checkpoint = NULL;
        bool exact = false;
        const car_checkpoint_config config = {.directory = f->directory.text, .keep = 1};
        car_rig_open(&written, &(car_rig_config){.build = cases[c].written});
        car_rig_open(&read, &(car_rig_config){.build = cases[c].read});
        car_snapshot *from = car_sample_snapshot_make(&written, false, 0, 1),
                     *to = car_sample_snapshot_make(&read, false, 0, 2);
        car_rig_expect_ok(&written, car_checkpoint_write(written.context, &config, from, "{}"));
        car_rig_expect_ok(&read, car_checkpoint_open(read.context, f->directory.text, 0, &checkpoint));
        car_rig_expect_failure(&read, car_checkpoint_read(checkpoint, to, &exact), CAR_ERROR_SHAPE, cases[c].message);
        assert_true(car_sample_snapshot_is(&read, to, 2));
        car_checkpoint_close(checkpoint);
        car_snapshot_destroy(from);
        car_snapshot_destroy(to);
        car_rig_close(&written);
        car_rig_close(&read);
    }
}

/* ---- which there are ------------------------------------------------------------------------- */

static void test_keep(void **state) {
    car_checkpoints *f = *state;
    assert_int_equal(car_checkpoints_newest(f), -1); /* no directory yet */
    for (int64_t step = 1; step <= 6; step++) {
        write_step(f, step, 3);
        assert_int_equal(car_checkpoints_newest(f), step);
        assert_int_equal(car_scratch_count(f->directory.text, ""), step < 3 ? (int)step : 3);
    }
    for (int64_t step = 4; step <= 6; step++) {
        car_checkpoints_expect(f, step, (uint64_t)step);
    }
    /* Back at an earlier step: what is later stays, and so does what was just written. */
    write_step(f, 2, 1);
    assert_int_equal(car_scratch_count(f->directory.text, ""), 4);
    write_step(f, 5, 1);
    assert_int_equal(car_scratch_count(f->directory.text, ""), 2);
    car_checkpoints_expect(f, 5, 5);
    car_checkpoints_expect(f, 6, 6);
}

static void test_names(void **state) {
    car_checkpoints *f = *state;
    write_step(f, 7, 1);
    static const char *const others[] = {"step-8",        "step-000000008", "step-00000009x",
                                         "step--0000010", "xstep-00000011", ".step-00000012.1.tmp"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(mkdir(car_scratch_in(&f->scratch, "run/checkpoints/%s", others[i]).text, 0777), 0);
    }
    assert_int_equal(car_checkpoints_newest(f), 7);
    assert_int_equal(mkdir(car_scratch_in(&f->scratch, "run/checkpoints/step-123456789").text, 0777), 0);
    assert_int_equal(car_checkpoints_newest(f), 123456789);
    expect_refused(f, 123456789, CAR_ERROR_FORMAT,
                   "run.json is missing; the checkpoint of step 7 is intact: resume from it (resume-step 7), or");
    expect_refused(f, 6, CAR_ERROR_IO, "no checkpoint of step 6; it has steps 7, 123456789");
    expect_refused(f, -1, CAR_ERROR_IO, "no checkpoint of step -1");
}

/* The same step once more replaces it, whatever has its name. */
static void test_again(void **state) {
    car_checkpoints *f = *state;
    const car_checkpoint_config config = {.directory = f->directory.text, .keep = 1};
    write_step(f, 5, 1);
    car_sample_snapshot_fill(&f->rig, f->snapshot, 99);
    car_rig_expect_ok(&f->rig, car_checkpoint_write(f->rig.context, &config, f->snapshot, run_text));
    car_checkpoints_expect(f, 5, 99);
    assert_int_equal(car_scratch_count(f->directory.text, ""), 1);
    car_scratch_write(car_scratch_in(&f->scratch, "run/checkpoints/step-00000006").text, "x", 1);
    write_step(f, 6, 1);
    car_checkpoints_expect(f, 6, 6);
    assert_int_equal(car_scratch_count(f->directory.text, ""), 1);
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* With step 10 sound: step 20 is refused, and step 10 offered. */
static void expect_offer(car_checkpoints *f, const char *what, int file) {
    char offer[700];
    car_checkpoint *checkpoint = NULL;
    car_status status = car_checkpoint_open(f->rig.context, f->directory.text, 20, &checkpoint);
    snprintf(offer, sizeof offer,
             "step 10 is intact: resume from it (resume-step 10), or remove the directory %s/step-00000020",
             f->directory.text);
    const char *message = car_context_error(f->rig.context);
    if (status != CAR_ERROR_FORMAT || !strstr(message, offer) || !strstr(message, file_names[file])) {
        fail_msg("%s: %s: status '%s', message '%s'", file_names[file], what, car_status_text(status), message);
    }
    assert_null(checkpoint);
    car_context_clear_error(f->rig.context);
}

static void test_changed_bytes(void **state) {
    car_checkpoints *f = *state;
    write_step(f, 10, 2);
    write_step(f, 20, 2);
    for (int file = 0; file < FILES; file++) {
        size_t bytes = 0, flipped = 0;
        car_scratch_path path = file_of(f, 20, file);
        char *data = car_scratch_read(path.text, &bytes);
        bool json = file == FILES - 1;
        for (size_t i = 0; i < bytes; i += json || i < 64 ? 1 : 211) {
            char kept = data[i];
            data[i] ^= (char)(1 << i % 8);
            car_scratch_write(path.text, data, bytes);
            expect_offer(f, "a changed byte", file);
            data[i] = kept;
            flipped++;
        }
        assert_true(flipped > 100);
        car_scratch_write(path.text, data, bytes);
        free(data);
        car_checkpoints_expect(f, 20, 20);
    }
}

static void test_cut_and_missing_files(void **state) {
    car_checkpoints *f = *state;
    write_step(f, 10, 2);
    write_step(f, 20, 2);
    for (int file = 0; file < FILES; file++) {
        size_t bytes = 0;
        car_scratch_path path = file_of(f, 20, file);
        char *data = car_scratch_read(path.text, &bytes);
        const size_t lengths[] = {0, 1, 7, 8, bytes / 2, bytes - 69, bytes - 5, bytes - 1};
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            car_scratch_write(path.text, data, lengths[i]);
            expect_offer(f, "cut short", file);
        }
        data[bytes] = '\n'; /* there is room for one more */
        car_scratch_write(path.text, data, bytes + 1);
        expect_offer(f, "one byte more", file);
        assert_int_equal(unlink(path.text), 0);
        expect_offer(f, "removed", file);
        assert_int_equal(mkdir(path.text, 0777), 0);
        expect_offer(f, "a directory", file);
        assert_int_equal(rmdir(path.text), 0);
        car_scratch_write(path.text, data, bytes);
        free(data);
        car_checkpoints_expect(f, 20, 20);
    }
}

/* Sound in itself, but not in its place. */
static void test_exchanged_files(void **state) {
    car_checkpoints *f = *state;
    write_step(f, 10, 2);
    write_step(f, 20, 2);
    for (int file = 0; file < FILES; file++) {
        size_t bytes = 0, own_bytes = 0;
        char *other = car_scratch_read(file_of(f, 10, file).text, &bytes);
        char *own = car_scratch_read(file_of(f, 20, file).text, &own_bytes);
        car_scratch_write(file_of(f, 20, file).text, other, bytes);
        expect_offer(f, "of another step", file == FILES - 1 ? 0 : file);
        car_scratch_write(file_of(f, 20, file).text, own, own_bytes);
        free(other);
        free(own);
    }
    assert_int_equal(rename(car_scratch_in(&f->scratch, "run/checkpoints/step-00000020").text,
                            car_scratch_in(&f->scratch, "run/checkpoints/step-00000030").text),
                     0);
    expect_refused(f, 30, CAR_ERROR_FORMAT, "run.json belongs to step 20; the checkpoint of step 10 is intact");
}

static void test_nothing_sound(void **state) {
    car_checkpoints *f = *state;
    write_step(f, 10, 3);
    write_step(f, 20, 3);
    write_step(f, 30, 3);
    car_scratch_write(file_of(f, 30, 0).text, "", 0);
    car_scratch_write(file_of(f, 20, 1).text, "", 0);
    expect_refused(f, 30, CAR_ERROR_FORMAT, "step 10 is intact"); /* not 20 */
    car_scratch_write(file_of(f, 10, 2).text, "{}", 2);
    expect_refused(f, 30, CAR_ERROR_FORMAT, "weights.safetensors has 0 bytes instead of");
    expect_refused(f, 30, CAR_ERROR_FORMAT, "there is no older intact checkpoint");
    expect_refused(f, 10, CAR_ERROR_FORMAT, "does not end as it should");
    write_step(f, 31, 1); /* damaged ones go like others */
    assert_int_equal(car_scratch_count(f->directory.text, ""), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test_setup_teardown(test_lacking_parts, set_up, car_checkpoints_tear_down),
        cmocka_unit_test_setup_teardown(test_another_model, set_up, car_checkpoints_tear_down),
        cmocka_unit_test_setup_teardown(test_keep, set_up, car_checkpoints_tear_down),
        cmocka_unit_test_setup_teardown(test_names, set_up, car_checkpoints_tear_down),
        cmocka_unit_test_setup_teardown(test_again, set_up, car_checkpoints_tear_down),
        cmocka_unit_test_setup_teardown(test_changed_bytes, set_up, car_checkpoints_tear_down),
        cmocka_unit_test_setup_teardown(test_cut_and_missing_files, set_up, car_checkpoints_tear_down),
        cmocka_unit_test_setup_teardown(test_exchanged_files, set_up, car_checkpoints_tear_down),
        cmocka_unit_test_setup_teardown(test_nothing_sound, set_up, car_checkpoints_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
