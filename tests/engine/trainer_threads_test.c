/* Four threads train to the same bits as one, and under ThreadSanitizer without a race: three rules, an mlp, and a
 * small gpt2 whose head shares the embedding's weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/session.h"

enum { WORKERS = 4, STEPS = 4 };

static void train(const char *model, car_rule rule, int threads, bool unpaced, char *digest) {
    car_session_config config = car_session_config_default(model, WORKERS, rule);
    car_session session;
    config.partition.stages = 2 * WORKERS;
    config.training.threads = config.plan.threads = threads;
    config.training.unpaced = unpaced;
    car_status status = car_session_open(&session, &config);
    if (status == CAR_OK) {
        status = car_trainer_run(session.trainer, STEPS);
    }
    if (status != CAR_OK) {
        fail_msg("%s: %s", car_status_text(status), car_context_error(session.context));
    }
    assert_int_equal(car_trainer_steps(session.trainer), STEPS);
    assert_int_equal(session.report_count, STEPS);
    assert_true(session.reports_in_order);
    assert_int_equal(car_arena_live(session.arena, CAR_MEMORY_ACTIVATIONS), car_session_rest(&session));
    assert_int_equal(car_weights_digest(car_trainer_weights(session.trainer), digest), CAR_OK);
    car_session_close(&session);
}

static void check_model(const char *model) {
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    char one[CAR_DIGEST_CAPACITY], four[CAR_DIGEST_CAPACITY];
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        train(model, rules[r], 1, false, one);
        train(model, rules[r], 4, false, four);
        assert_string_equal(one, four);
        train(model, rules[r], 4, true, four); /* all workers at once: only the ring and the versions keep order */
        assert_string_equal(one, four);
    }
}

static void test_mlp(void **state) {
    (void)state;
    check_model("mlp");
}

static void test_tied_weights(void **state) {
    (void)state;
    check_model("gpt2-nano");
}

/* Otherwise equal digests would prove nothing. */
static void test_rules_differ(void **state) {
    char dp[CAR_DIGEST_CAPACITY], v1[CAR_DIGEST_CAPACITY], v2[CAR_DIGEST_CAPACITY];
    (void)state;
    train("mlp", CAR_RULE_DP, 1, false, dp);
    train("mlp", CAR_RULE_CDP_V1, 1, false, v1);
    train("mlp", CAR_RULE_CDP_V2, 1, false, v2);
    assert_string_not_equal(dp, v1);
    assert_string_not_equal(dp, v2);
    assert_string_not_equal(v1, v2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp),
        cmocka_unit_test(test_tied_weights),
        cmocka_unit_test(test_rules_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
