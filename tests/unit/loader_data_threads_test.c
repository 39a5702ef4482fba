/* The loader with real datasets: what it gives is what a reader gives, for files with augmentation and for endless
 * tokens; and a file that is cut off underneath ends in a message for whoever wants what was in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "carousel/loader.h"
#include "data/order.h"
#include "support/expect.h"
#include "support/scratch.h"

enum { TRAIN = 50, TEST = 11, RECORD = 1 + 3 * 32 * 32, WORKERS = 2, BATCH = 4 };

static car_scratch scratch;

static car_scratch_path train_file(void) {
    return car_scratch_in(&scratch, "data_batch_1.bin");
}

static void write_records(const char *path, size_t records) {
    unsigned char *all = malloc(records * RECORD);
    assert_non_null(all);
    for (size_t i = 0; i < records * RECORD; i++) {
        all[i] = (unsigned char)(i % RECORD ? car_random_u64(1, i) : i / RECORD % 10);
    }
    car_scratch_write(path, all, records * RECORD);
    free(all);
}

static int set_up(void **state) {
    (void)state;
    car_scratch_open(&scratch);
    write_records(train_file().text, TRAIN);
    write_records(car_scratch_in(&scratch, "test_batch.bin").text, TEST);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    car_scratch_close(&scratch);
    return 0;
}

static void expect_ok(car_status status) {
    car_expect_ok(scratch.context, status);
}

static car_dataset *open_images(bool augment) {
    char name[300];
    car_dataset *dataset = NULL;
    car_dataset_config config = {.domain = CAR_DOMAIN_IMAGES, .seed = 3, .augment = augment};
    config.model = (car_model_config){.batch = 1, .classes = 10, .image_size = 32, .channels = 3};
    snprintf(name, sizeof name, "cifar10:%s", scratch.directory);
    expect_ok(car_dataset_open(scratch.context, name, &config, &dataset));
    return dataset;
}

static car_loader *open_loader(car_dataset *dataset, car_split split, int threads) {
    car_loader_config config = car_loader_config_default();
    car_loader *loader = NULL;
    config.split = split;
    config.micro_batches = split == CAR_SPLIT_TRAIN ? WORKERS : 1;
    config.batch = BATCH;
    config.threads = threads;
    config.seed = 8;
    expect_ok(car_loader_create(dataset, &config, &loader));
    return loader;
}

/* Samples of training through three epochs, beside a reader that reads one after the other. */
static void images_are_those_of_a_reader(void **state) {
    (void)state;
    for (int threads = 0; threads <= 2; threads++) {
        car_dataset *dataset = open_images(true);
        car_loader *loader = open_loader(dataset, CAR_SPLIT_TRAIN, threads);
        car_reader *reader = NULL;
        car_order *order = NULL;
        static float image[3 * 32 * 32];
        expect_ok(car_reader_create(dataset, &reader));
        expect_ok(car_order_create(scratch.context, 8, TRAIN, &order));
        int64_t steps = car_loader_epoch_steps(loader);
        assert_int_equal(steps, TRAIN / (WORKERS * BATCH));
        for (int64_t n = 0; n < 3 * steps * WORKERS; n++) {
            const void *inputs = NULL;
            const int32_t *labels = NULL;
            int64_t step = n / WORKERS, epoch = step / steps, sample = 0;
            int32_t label = 0;
            expect_ok(car_loader_take(loader, step, (int)(n % WORKERS), &inputs, &labels));
            for (int64_t b = 0; b < BATCH; b++) {
                expect_ok(car_order_get(order, epoch, (n - epoch * steps * WORKERS) * BATCH + b, 1, &sample));
                expect_ok(car_reader_sample(reader, CAR_SPLIT_TRAIN, epoch, sample, image, &label));
                assert_int_equal(labels[b], label);
                assert_int_equal(label, sample % 10);
                assert_memory_equal((const char *)inputs + (size_t)b * sizeof image, image, sizeof image);
            }
            car_loader_give_back(loader, step, (int)(n % WORKERS));
        }
        car_order_destroy(order);
        car_reader_destroy(reader);
        car_loader_destroy(loader);
        car_dataset_close(dataset);
    }
}

static void evaluation_ends_with_a_partial_batch(void **state) {
    (void)state;
    car_dataset *dataset = open_images(true);
    car_loader *loader = open_loader(dataset, CAR_SPLIT_EVALUATION, 1);
    int64_t steps = car_loader_epoch_steps(loader);
    assert_int_equal(steps, 3);
    for (int64_t step = 0; step < 2 * steps; step++) {
        const void *inputs = NULL;
        const int32_t *labels = NULL;
        expect_ok(car_loader_take(loader, step, 0, &inputs, &labels));
        for (int b = 0; b < BATCH; b++) {
            int sample = (int)(step % steps) * BATCH + b;
            assert_int_equal(labels[b], sample < TEST ? sample % 10 : -1);
        }
        car_loader_give_back(loader, step, 0);
    }
    car_loader_destroy(loader);
    car_dataset_close(dataset);
}

static void endless_tokens(void **state) {
    (void)state;
    enum { LENGTH = 6 };
    car_dataset_config config = {.domain = CAR_DOMAIN_TOKENS, .seed = 3};
    config.model = (car_model_config){.batch = BATCH, .seq_len = LENGTH, .vocabulary = 17};
    car_synthetic source = {.seed = 3, .domain = CAR_DOMAIN_TOKENS, .config = config.model};
    car_dataset *dataset = NULL;
    expect_ok(car_dataset_open(scratch.context, "synthetic", &config, &dataset));
    car_loader *loader = open_loader(dataset, CAR_SPLIT_TRAIN, 2);
    assert_int_equal(car_loader_bytes(loader), (WORKERS + 2) * BATCH * LENGTH * 2 * sizeof(int32_t));
    for (int n = 0; n < 20; n++) {
        int32_t tokens[BATCH * LENGTH], next[BATCH * LENGTH];
        const void *inputs = NULL;
        const int32_t *labels = NULL;
        car_synthetic_batch(&source, (uint64_t)n * BATCH, tokens, next);
        expect_ok(car_loader_take(loader, n / WORKERS, n % WORKERS, &inputs, &labels));
        assert_memory_equal(inputs, tokens, sizeof tokens);
        assert_memory_equal(labels, next, sizeof next);
        car_loader_give_back(loader, n / WORKERS, n % WORKERS);
    }
    car_loader_destroy(loader);
    car_dataset_close(dataset);
}

/* Half of the file goes away; the whole run is tried nevertheless. */
static void a_file_that_shrinks(void **state) {
    (void)state;
    car_dataset *dataset = open_images(false);
    assert_int_equal(truncate(train_file().text, (off_t)TRAIN / 2 * RECORD), 0);
    car_loader *loader = open_loader(dataset, CAR_SPLIT_TRAIN, 2);
    int failures = 0;
    for (int step = 0; step < 6; step++) {
        for (int worker = 0; worker < WORKERS; worker++) {
            const void *inputs = NULL;
            const int32_t *labels = NULL;
            car_status status = car_loader_take(loader, step, worker, &inputs, &labels);
            if (status == CAR_OK) {
                car_loader_give_back(loader, step, worker);
            } else {
                assert_int_equal(status, CAR_ERROR_IO);
                failures++;
            }
        }
    }
    assert_true(failures > 0);
    car_loader_destroy(loader);
    assert_non_null(strstr(car_context_error(scratch.context), "data_batch_1.bin"));
    car_dataset_close(dataset);
}

static void only_looked_at(void **state) {
    (void)state;
    char name[300];
    car_dataset *dataset = NULL;
    car_loader *loader = NULL;
    car_loader_config config = car_loader_config_default();
    snprintf(name, sizeof name, "cifar10:%s", scratch.directory);
    expect_ok(car_dataset_open(scratch.context, name, NULL, &dataset));
    assert_int_equal(car_loader_create(dataset, &config, &loader), CAR_ERROR_ARGUMENT);
    assert_null(loader);
    car_dataset_close(dataset);
}

#define TEST_OF(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_OF(images_are_those_of_a_reader),
        TEST_OF(evaluation_ends_with_a_partial_batch),
        TEST_OF(endless_tokens),
        TEST_OF(a_file_that_shrinks),
        TEST_OF(only_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
