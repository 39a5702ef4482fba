/* Options of a run that make no sense: refused with their name and the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "carousel/run.h"
#include "support/refused.h"

static void refuse(const car_run_options *options, car_status expected, const char *reason) {
    car_context *context = car_refused_open_context();
    car_run *run = NULL;
    assert_int_equal(car_run_create(context, options, &run), expected);
    assert_null(run);
    if (!strstr(car_context_error(context), reason)) {
        fail_msg("'%s' does not say '%s'", car_context_error(context), reason);
    }
    car_context_destroy(context);
}

static car_status no_metric(const car_metric_io *io) {
    (void)io;
    return CAR_OK;
}

static void test_mistakes(void **state) {
    const car_run_options good = {.model = "mlp",
                                  .shape = {.batch = 4, .image_size = 8, .classes = 3, .width = 16},
                                  .workers = 2,
                                  .threads = 2,
                                  .steps = 6,
                                  .eval_every = 3,
                                  .eval_batches = 2};
    car_run_options o = good;
    (void)state;
    o.model = NULL, refuse(&o, CAR_ERROR_ARGUMENT, "needs options.model or options.graph");
    o = good, o.model = "nothing", refuse(&o, CAR_ERROR_UNKNOWN_NAME, "nothing");
    o = good, o.rule = "fast", refuse(&o, CAR_ERROR_UNKNOWN_NAME, "fast");
    o = good, o.placement = "moon", refuse(&o, CAR_ERROR_UNKNOWN_NAME, "moon");
    o = good, o.optimizer = "lion", refuse(&o, CAR_ERROR_UNKNOWN_NAME, "the optimizers are sgd, adamw and muon");
    o = good, o.data = "tape:x", refuse(&o, CAR_ERROR_UNKNOWN_NAME, "tape:x");
    o = good, o.resume = true, refuse(&o, CAR_ERROR_ARGUMENT, "options.directory");
    o = good, o.epochs = 1, refuse(&o, CAR_ERROR_ARGUMENT, "has no epochs");
    o = good, o.configuration = "nope", refuse(&o, CAR_ERROR_ARGUMENT, "one JSON object");
    o = good, o.save_precision = (car_precision)9, refuse(&o, CAR_ERROR_ARGUMENT, "options.save_precision is 9");
    car_optimizer_config settings = car_optimizer_config_default();
    settings.rule_count = 1;
    o = good, o.settings = &settings, refuse(&o, CAR_ERROR_ARGUMENT, "options.settings.rule_count is 1");
    settings = car_optimizer_config_default(), settings.momentum = -2;
    refuse(&o, CAR_ERROR_ARGUMENT, "options.settings.momentum is -2");
    settings = car_optimizer_config_default(), settings.kind = (car_optimizer_kind)99;
    refuse(&o, CAR_ERROR_ARGUMENT, "options.settings.kind is 99");
    o = good, o.stages = 3, refuse(&o, CAR_ERROR_ARGUMENT, "3");
    o = good, o.model = "gpt2-nano", o.shape = (car_model_config){.batch = 1, .seq_len = 8}, o.metric = no_metric;
    refuse(&o, CAR_ERROR_UNSUPPORTED, "a custom metric needs the logits");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mistakes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
