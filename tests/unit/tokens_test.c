/* Token files: the three forms, the splits, where samples begin, and everything that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/source.h"
#include "support/expect.h"
#include "support/scratch.h"

enum { LENGTH = 8, EPOCHS = 64, HEADER = 1024 };

static const car_source_methods *const kind = &car_source_tokens;

static car_dataset_config config_of(int seq_len, int vocabulary, bool augment) {
    return (car_dataset_config){.domain = CAR_DOMAIN_TOKENS,
                                .model = {.batch = 1, .seq_len = seq_len, .vocabulary = vocabulary},
                                .seed = 1,
                                .augment = augment};
}

static car_status open_file(const car_scratch *folder, const char *name, const car_dataset_config *config,
                            car_dataset_info *info, void **data) {
    *info = (car_dataset_info){.kind = CAR_DATASET_TOKENS};
    return kind->open(folder->context, car_scratch_in(folder, "%s", name).text, config, info, data);
}

static void expect_failure(const car_scratch *folder, const char *name, const car_dataset_config *config,
                           car_status expected, const char *message) {
    car_dataset_info info;
    void *data = (void *)folder;
    car_expect_failure(folder->context, open_file(folder, name, config, &info, &data), expected, message);
    assert_null(data);
}

/* `count` tokens of 16 bits: first, first + 1, ...; with llm.c's header if there is a magic number. */
static void write_tokens(const car_scratch *folder, const char *name, int first, int count, uint32_t magic,
                         uint32_t version, uint32_t claimed) {
    size_t head = magic != 0 ? HEADER : 0;
    unsigned char *bytes = calloc(1, head + 2 * (size_t)count + 1);
    const uint32_t numbers[] = {magic, version, claimed};
    assert_non_null(bytes);
    for (int i = 0; i < 12 && magic != 0; i++) {
        bytes[i] = (unsigned char)(numbers[i / 4] >> 8 * (i % 4));
    }
    for (int i = 0; i < count; i++) {
        bytes[head + 2 * (size_t)i] = (unsigned char)(first + i);
        bytes[head + 2 * (size_t)i + 1] = (unsigned char)((first + i) >> 8);
    }
    car_scratch_put(folder, name, bytes, head + 2 * (size_t)count);
    free(bytes);
}

/* The sample's first token; asserts that it counts up from there, and labels are one ahead. */
static int first_of(void *data, car_split split, int64_t epoch, int64_t sample) {
    int32_t inputs[LENGTH + 1], labels[LENGTH + 1];
    inputs[LENGTH] = labels[LENGTH] = -7;
    assert_int_equal(kind->sample(data, split, epoch, sample, inputs, labels), CAR_OK);
    for (int i = 0; i < LENGTH; i++) {
        assert_int_equal(inputs[i], inputs[0] + i);
        assert_int_equal(labels[i], inputs[0] + i + 1);
    }
    assert_int_equal(inputs[LENGTH], -7);
    assert_int_equal(labels[LENGTH], -7);
    return inputs[0];
}

/* ---- sound files ----------------------------------------------------------------------------- */

static void test_text(void **state) {
    const car_scratch *folder = *state;
    car_dataset_config config = config_of(4, 256, false);
    car_dataset_info info;
    void *data = NULL;
    int32_t inputs[4], labels[4];
    car_scratch_put(folder, "text.txt", "the quick brown fox \xff", 21);
    assert_int_equal(open_file(folder, "text.txt", &config, &info, &data), CAR_OK);
    assert_int_equal(info.domain, CAR_DOMAIN_TOKENS);
    assert_int_equal(info.classes, 256);
    assert_int_equal(info.tokens[CAR_SPLIT_TRAIN], 19);
    assert_int_equal(info.tokens[CAR_SPLIT_EVALUATION], 2);
    assert_int_equal(info.samples[CAR_SPLIT_TRAIN], 4); /* (19 - 1) / 4 */
    assert_int_equal(info.samples[CAR_SPLIT_EVALUATION], 0);
    assert_int_equal(kind->sample(data, CAR_SPLIT_TRAIN, 5, 3, inputs, labels), CAR_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(inputs[i], "own "[i]);
        assert_int_equal(labels[i], "wn f"[i]);
    }
    kind->close(data);

    assert_int_equal(open_file(folder, "text.txt", NULL, &info, &data), CAR_OK);
    assert_int_equal(info.tokens_used, 17); /* "thequickbrownfx", a space, and the last byte, by hand */
    assert_int_equal(info.samples[CAR_SPLIT_TRAIN], 0);
    kind->close(data);
}

static void check_binary(const car_scratch *folder, const char *name) {
    car_dataset_config config = config_of(LENGTH, 1200, false);
    car_dataset_info info;
    void *data = NULL;
    assert_int_equal(open_file(folder, name, &config, &info, &data), CAR_OK);
    assert_int_equal(info.classes, 1200);
    assert_int_equal(info.tokens[CAR_SPLIT_TRAIN], 900);
    assert_int_equal(info.tokens[CAR_SPLIT_EVALUATION], 100);
    assert_int_equal(info.samples[CAR_SPLIT_TRAIN], 112);
    assert_int_equal(info.samples[CAR_SPLIT_EVALUATION], 12);
    for (int n = 0; n < 112; n++) {
        assert_int_equal(first_of(data, CAR_SPLIT_TRAIN, n % 3, n), 200 + n * LENGTH);
    }
    for (int n = 0; n < 12; n++) {
        assert_int_equal(first_of(data, CAR_SPLIT_EVALUATION, 0, n), 1100 + n * LENGTH);
    }
    kind->close(data);
    assert_int_equal(open_file(folder, name, NULL, &info, &data), CAR_OK);
    assert_int_equal(info.tokens_used, 1000);
    assert_int_equal(info.classes, 1200);
    kind->close(data);
}

static void test_binary(void **state) {
    const car_scratch *folder = *state;
    write_tokens(folder, "bare.bin", 200, 1000, 0, 0, 0);
    check_binary(folder, "bare.bin");
    write_tokens(folder, "headed.bin", 200, 1000, 20240520, 1, 1000);
    check_binary(folder, "headed.bin");
}

/* A val file beside the train file is what is evaluated on; nothing of the train file is set aside then. */
static void test_two_files(void **state) {
    const car_scratch *folder = *state;
    car_dataset_config config = config_of(LENGTH, 5000, true);
    car_dataset_info info;
    void *data = NULL;
    write_tokens(folder, "my_train.bin", 0, 1000, 0, 0, 0);
    write_tokens(folder, "my_val.bin", 3000, 50, 20240520, 1, 50);
    assert_int_equal(open_file(folder, "my_train.bin", &config, &info, &data), CAR_OK);
    assert_int_equal(info.tokens[CAR_SPLIT_TRAIN], 1000);
    assert_int_equal(info.tokens[CAR_SPLIT_EVALUATION], 50);
    assert_int_equal(info.classes, 3050);
    assert_int_equal(info.samples[CAR_SPLIT_EVALUATION], 6);
    assert_int_equal(first_of(data, CAR_SPLIT_EVALUATION, 3, 5), 3040); /* never shifted */
    kind->close(data);
    config.model.vocabulary = 3040;
    expect_failure(folder, "my_train.bin", &config, CAR_ERROR_SHAPE, "my_val.bin: token 40 is 3040");
    car_scratch_put(folder, "my_val.bin", "odd", 3);
    expect_failure(folder, "my_train.bin", NULL, CAR_ERROR_FORMAT, "my_val.bin: 3 bytes");
}

/* With augmentation the grid stands elsewhere in every epoch, everywhere it can, and its samples stay inside. */
static void test_shift(void **state) {
    const car_scratch *folder = *state;
    car_dataset_config config = config_of(LENGTH, 1000, true);
    car_dataset_info info;
    void *data = NULL, *other = NULL;
    int seen = 0, differ = 0;
    write_tokens(folder, "file.bin", 0, 178, 0, 0, 0); /* 161 of them to train on: 20 samples and one token */
    assert_int_equal(open_file(folder, "file.bin", &config, &info, &data), CAR_OK);
    config.seed = 2;
    assert_int_equal(open_file(folder, "file.bin", &config, &info, &other), CAR_OK);
    assert_int_equal(info.samples[CAR_SPLIT_TRAIN], 19); /* wherever it stands */
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int shift = first_of(data, CAR_SPLIT_TRAIN, epoch, 0);
        assert_in_range(shift, 0, LENGTH - 1);
        assert_int_equal(first_of(data, CAR_SPLIT_TRAIN, epoch, 18), shift + 18 * LENGTH);
        assert_in_range(shift + 19 * LENGTH, 0, 160); /* the last label */
        assert_int_equal(first_of(data, CAR_SPLIT_TRAIN, epoch, 0), shift);
        seen |= 1 << shift;
        differ += first_of(other, CAR_SPLIT_TRAIN, epoch, 0) != shift;
    }
    assert_int_equal(seen, (1 << LENGTH) - 1);
    assert_in_range(differ, EPOCHS / 2, EPOCHS);
    kind->close(other);
    kind->close(data);
}

static void test_digest(void **state) {
    const car_scratch *folder = *state;
    char texts[4][CAR_SHA256_TEXT];
    for (int i = 0; i < 4; i++) {
        car_dataset_info info;
        void *data = NULL;
        car_sha256 sha = car_sha256_begin();
        write_tokens(folder, i == 3 ? "b.bin" : "a.bin", i == 2, 100, 0, 0, 0);
        assert_int_equal(open_file(folder, i == 3 ? "b.bin" : "a.bin", NULL, &info, &data), CAR_OK);
        assert_int_equal(kind->digest(data, &sha), CAR_OK);
        car_sha256_end(&sha, texts[i]);
        kind->close(data);
    }
    assert_string_equal(texts[0], texts[1]);
    assert_string_not_equal(texts[0], texts[2]);
    assert_string_not_equal(texts[0], texts[3]);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void test_refuses(void **state) {
    const car_scratch *folder = *state;
    car_dataset_config config = config_of(LENGTH, 1000, false);
    expect_failure(folder, "absent.txt", &config, CAR_ERROR_IO, "absent.txt: cannot open");
    expect_failure(folder, "", &config, CAR_ERROR_IO, "not a regular file");
    car_scratch_put(folder, "empty.txt", "", 0);
    expect_failure(folder, "empty.txt", &config, CAR_ERROR_FORMAT, "contains no tokens");
    car_scratch_put(folder, "short.txt", "12345678", 8);
    expect_failure(folder, "short.txt", &config, CAR_ERROR_SHAPE,
                   "has 8 tokens to train on, but samples of 8 tokens need");
    config.augment = true;
    car_scratch_put(folder, "short.txt", "123456789012345", 15);
    expect_failure(folder, "short.txt", &config, CAR_ERROR_SHAPE, "need at least 16");
    car_scratch_put(folder, "odd.bin", "123", 3);
    expect_failure(folder, "odd.bin", &config, CAR_ERROR_FORMAT, "3 bytes are not a whole number of 16-bit tokens");

    write_tokens(folder, "large.bin", 900, 101, 0, 0, 0);
    expect_failure(folder, "large.bin", &config, CAR_ERROR_SHAPE,
                   "large.bin: token 100 is 1000, but the model's vocabulary ends at 999");

    write_tokens(folder, "head.bin", 0, 100, 20240520, 2, 100);
    expect_failure(folder, "head.bin", &config, CAR_ERROR_UNSUPPORTED, "the header has version 2");
    write_tokens(folder, "head.bin", 0, 100, 20240520, 1, 101);
    expect_failure(folder, "head.bin", &config, CAR_ERROR_FORMAT, "claims 101 tokens of 2 bytes, but 200 bytes follow");
    write_tokens(folder, "head.bin", 0, 100, 20240520, 1, 100);
    assert_int_equal(truncate(car_scratch_in(folder, "head.bin").text, HEADER + 199), 0);
    expect_failure(folder, "head.bin", &config, CAR_ERROR_FORMAT, "claims 100 tokens of 2 bytes, but 199 bytes follow");
    write_tokens(folder, "head.bin", 0, 100, 20240520, 1, 100);
    assert_int_equal(truncate(car_scratch_in(folder, "head.bin").text, HEADER + 201), 0);
    expect_failure(folder, "head.bin", &config, CAR_ERROR_FORMAT, "claims 100 tokens of 2 bytes, but 201 bytes follow");
    write_tokens(folder, "head.bin", 0, 0, 20240520, 1, 0);
    expect_failure(folder, "head.bin", &config, CAR_ERROR_FORMAT, "contains no tokens");
    write_tokens(folder, "head.bin", 0, 100, 20240801, 7, 50);
    expect_failure(folder, "head.bin", &config, CAR_ERROR_UNSUPPORTED, "has 32-bit tokens");
}

/* A file that is cut, or overwritten, behind our back. */
static void test_changes(void **state) {
    const car_scratch *folder = *state;
    car_dataset_config config = config_of(LENGTH, 1000, false);
    car_dataset_info info;
    void *data = NULL;
    int32_t inputs[LENGTH], labels[LENGTH];
    write_tokens(folder, "file.bin", 0, 1000, 0, 0, 0);
    assert_int_equal(open_file(folder, "file.bin", &config, &info, &data), CAR_OK);
    assert_int_equal(first_of(data, CAR_SPLIT_TRAIN, 0, 2), 16);
    write_tokens(folder, "file.bin", 990, 1000, 0, 0, 0);
    car_expect_failure(folder->context, kind->sample(data, CAR_SPLIT_TRAIN, 0, 1, inputs, labels), CAR_ERROR_SHAPE,
                       "token 10 is 1000");
    assert_int_equal(truncate(car_scratch_in(folder, "file.bin").text, 4), 0);
    car_expect_failure(folder->context, kind->sample(data, CAR_SPLIT_TRAIN, 0, 100, inputs, labels), CAR_ERROR_IO,
                       "became shorter while it was in use");
    kind->close(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_text, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_binary, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_two_files, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_shift, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_digest, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_refuses, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(test_changes, car_scratch_set_up, car_scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
