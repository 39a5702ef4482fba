/* `carousel train --plan FILE`: the plan in the file sets rule, placement, workers and stages. A copy is kept in the
 * run directory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "carousel/file.h"
#include "train.h"

static const char kept_name[] = "plan.txt";
static const size_t most_bytes = (size_t)1 << 28;

/* ---- reading --------------------------------------------------------------------------------- */

/* Options that the plan sets. */
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

/* The text must outlive the context, so it is copied with strdup. */
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
    o->freshness_slack = header.config.freshness_slack;
    o->zero_copies = header.config.zero_copies;
    o->zero_ahead = header.config.zero_ahead;
    o->piece_bytes = (double)header.config.piece_bytes;
done:
    return status;
}

int car_train_read_plan(int argc, char **argv, car_train_options *o) {
    const char *typed = car_cli_peek(argc, argv, "plan");
    char kept[CAR_TRAIN_PATH];
    bool resume = car_train_resumes(o);
    car_context *context = NULL;
    if (!o->plan) {
        return CAR_CLI_GO_ON;
    }
    const char *other = find_contradiction(argc, argv);
    if (other) {
        return car_cli_fail(CAR_CLI_USAGE, "train: the plan %s already sets --%s; leave one of the two out", o->plan,
                            other);
    }
    const char *path = o->plan;
    if (!typed && resume && o->out && snprintf(kept, sizeof kept, "%s/%s", o->out, kept_name) < (int)sizeof kept) {
        path = kept; /* the plan that the run was started with */
    }
    car_status status = car_context_create(NULL, &context);
    status = status == CAR_OK ? apply(context, o, path) : status;
    int code = status == CAR_OK ? CAR_CLI_GO_ON : car_cli_report(context, status);
    car_context_destroy(context);
    return code;
}

/* ---- the copy in the run directory ----------------------------------------------------------- */

car_status car_train_keep_plan(const car_train_run *t) {
    const car_train_options *o = &t->options;
    char path[CAR_TRAIN_PATH];
    car_status status = CAR_OK;
    if (!o->plan_text || !o->out) {
        return CAR_OK;
    }
    CAR_TRY(car_train_path(t->context, o->out, kept_name, path));
    CAR_TRY(car_file_write_text(t->context, path, o->plan_text));
done:
    return status;
}
