/* `carousel train --plan FILE`: a plan from a file says what rule, placement, workers and stages a run has, and stays with
 * the run directory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "carousel/file.h"
#include "train.h"

static const char kept_name[] = "plan.txt";
static const size_t most_bytes = (size_t)1 << 28;

/* ---- reading --------------------------------------------------------------------------------- */

/* Options that the file answers. */
static const char *const answered[] = {"rule",        "placement",       "mapping",    "workers",
                                       "stages",      "freshness-slack", "accumulate", "sum-order",
                                       "piece-bytes", "zero-copies",     "zero-ahead"};

static const char *find_contradiction(int argc, char **argv) {
    for (size_t n = 0; n < sizeof answered / sizeof answered[0]; n++) {
        if (car_cli_peek(argc, argv, answered[n])) {
            return answered[n];
        }
    }
    return NULL;
}

/* Outlives the context that it is read with. */
static car_status read_text(car_context *context, const char *path, char **out) {
    char *text = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_file_read_text(context, path, most_bytes, &text));
    *out = strdup(text);
    if (!*out) {
        status = car_context_fail(context, CAR_ERROR_MEMORY, "out of memory for %s", path);
    }
done:
    car_context_release_text(context, text);
    return status;
}

static car_status apply(car_context *context, car_train_options *o, const char *path) {
    car_plan_header header;
    car_status status = CAR_OK;
    CAR_TRY(read_text(context, path, &o->plan_text));
    CAR_TRY(car_plan_read_header(context, path, o->plan_text, &header));
    o->rule = car_rule_text(header.config.rule);
    o->placement = car_placement_text(header.config.placement);
    o->mapping = car_placement_maps_workers(header.config.placement) ? car_mapping_text(header.config.mapping) : NULL;
    o->workers = header.config.workers;
    o->accumulate = header.config.accumulate;
    o->sum_order = car_sum_order_text(header.config.sum_order);
    o->stages = header.stages;
    o->plan_devices = header.devices;
    o->freshness_slack = header.config.freshness_slack;
    o->zero_copies = header.config.zero_copies;
    o->zero_ahead = header.config.zero_ahead;
    o->piece_bytes = (double)header.config.piece_bytes;
    if (car_rule_info_of(header.config.rule)->in_turns) {
        if (o->threads && o->threads != header.config.threads) {
            CAR_TRY(car_context_fail(context, CAR_ERROR_ARGUMENT, "%s is for %d threads: leave --threads out", path,
                                     header.config.threads));
        }
        o->threads = header.config.threads;
    }
done:
    return status;
}

int car_train_read_plan(int argc, char **argv, car_train_options *o) {
    const char *typed = car_cli_peek(argc, argv, "plan");
    char kept[CAR_TRAIN_PATH];
    bool resume = o->resume || o->resume_step != CAR_NONE;
    car_context *context = NULL;
    if (!o->plan) {
        return CAR_CLI_GO_ON;
    }
    const char *other = find_contradiction(argc, argv);
    if (other) {
        return car_cli_fail(CAR_CLI_USAGE, "train: the plan %s says what --%s is: leave one of the two out", o->plan,
                            other);
    }
    const char *path = o->plan;
    if (!typed && resume && o->out && snprintf(kept, sizeof kept, "%s/%s", o->out, kept_name) < (int)sizeof kept) {
        path = kept; /* what the run was begun with */
    }
    car_status status = car_context_create(NULL, &context);
    status = status == CAR_OK ? apply(context, o, path) : status;
    int code = status == CAR_OK ? CAR_CLI_GO_ON : car_cli_report(context, status);
    car_context_destroy(context);
    return code;
}

/* ---- making ---------------------------------------------------------------------------------- */

car_status car_train_make_plan(car_train_run *run, const car_plan_config *config) {
    const car_train_options *o = &run->options;
    car_proof proof;
    car_status status = CAR_OK;
    if (o->plan_text) {
        CAR_TRY(car_plan_read(run->context, run->partition, o->plan, o->plan_text, &run->plan));
    }
    if (config->rule != CAR_RULE_CUSTOM ||
        !run->plan) { /* then the file is what the rule makes, for any number of threads */
        int devices = run->plan ? car_plan_devices(run->plan) : 0;
        car_plan_destroy(run->plan);
        run->plan = NULL;
        CAR_TRY(car_plan_create(run->context, run->partition, config, &run->plan));
        if (devices && devices != car_plan_devices(run->plan)) {
            CAR_TRY(car_context_fail(run->context, CAR_ERROR_ARGUMENT, "%s is for %d ranks, and there are %d", o->plan,
                                     devices, car_plan_devices(run->plan)));
        }
    }
    if (car_train_is_first(run)) {
        CAR_TRY(car_plan_prove(run->plan, &proof));
    } else {
        car_plan_trust(run->plan); /* the first rank proves it for all, and all compare theirs with its */
    }
done:
    return status;
}

car_status car_train_check_plan_steps(car_train_run *run) {
    car_train_options *o = &run->options;
    int64_t most = car_plan_most_steps(run->plan);
    bool resume = o->resume || o->resume_step != CAR_NONE;
    bool drains = resume || (o->eval_every && (!run->transport || car_train_pauses(o)));
    if (o->asked_steps == 0 && o->epochs == 0 && o->steps > most) {
        o->steps = (int)most;
    }
    if (o->steps > most) {
        return car_context_fail(
            run->context, CAR_ERROR_ARGUMENT,
            "%s has %lld steps and no period that repeats, so it cannot be run for %d: give --steps "
            "%lld, or mark a period with period=A:B in its first line",
            o->plan, (long long)most, o->steps, (long long)most);
    }
    if (drains && !car_plan_drains_exactly(run->plan) && car_train_is_first(run)) {
        car_context_log(
            run->context, CAR_LOG_WARNING,
            "the delays of %s are not the same in every step: where the run pauses (evaluations, --resume) its "
            "schedule begins again, with the newest weights",
            o->plan);
    }
    return CAR_OK;
}

car_status car_train_keep_plan(car_train_run *run) {
    const car_train_options *o = &run->options;
    char path[CAR_TRAIN_PATH];
    car_status status = CAR_OK;
    if (!o->plan_text || !o->out) {
        return CAR_OK;
    }
    CAR_TRY(car_train_path(run->context, o->out, kept_name, path));
    CAR_TRY(car_file_write_text(run->context, path, o->plan_text));
done:
    return status;
}
