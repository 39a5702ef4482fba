/* Finds whether a freshness slack would shorten a step of cdp-v2, by planning with it. */
#include "carousel/convention.h"
#include "plan.h"

/* N*S up to which several slacks are tried, and up to which one is. Beyond that the page would take too long. */
static const int64_t few = 4096, some = 16384;
static const double worth = 0.99; /* a gain of less than 1 % is not advised, and does not justify a larger slack */

/* Seconds on the cluster if there is one, else in units of one worker's forwards and backwards. */
static car_status time_with(const car_plan_subject *s, car_plan_config config, int slack, double *step) {
    car_plan *plan = NULL;
    car_prediction prediction;
    car_timing timing;
    car_status status = CAR_OK;
    config.freshness_slack = slack;
    CAR_TRY(car_plan_create(s->context, s->partition, &config, &plan));
    if (s->options->cluster) {
        CAR_TRY(car_plan_time(plan, &s->cluster, s->compute, &timing));
        *step = timing.step;
    } else {
        CAR_TRY(car_cli_plan_predict(s, plan, &prediction));
        *step = prediction.timed.step_time;
    }
done:
    car_plan_destroy(plan);
    return status;
}

car_status car_cli_plan_weigh_slack(const car_plan_subject *s, const car_plan *plan, double step,
                                    car_cli_slack_advice *out) {
    const car_plan_config *c = car_plan_config_of(plan);
    int64_t size = (int64_t)c->workers * s->partition->stage_count;
    bool jumps = car_placement_maps_workers(c->placement); /* from the maker of new weights to their first user */
    int most = size <= few ? 8 : size <= some ? 1 : 0;
    car_status status = CAR_OK;
    *out = (car_cli_slack_advice){.before = step, .after = worth * step};
    if (!car_rule_info_of(c->rule)->has_slack || c->freshness_slack != 0 || !jumps || c->workers == 1) {
        return CAR_OK;
    }
    for (int slack = 1; slack <= most && slack <= s->partition->stage_count; slack *= 2) {
        double found = 0;
        CAR_TRY(time_with(s, *c, slack, &found));
        if (found < (out->slack ? worth * out->after : out->after)) {
            out->slack = slack;
            out->after = found;
        }
    }
done:
    return status;
}
