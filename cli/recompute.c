/* --recompute and --memory-limit: how much of the activations is made again. */
#include "recompute.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"
#include "plan.h"

/* ---- reading --------------------------------------------------------------------------------- */

car_status car_cli_read_recompute(car_context *context, const char *text, car_recompute_config *out) {
    char *end = NULL;
    *out = (car_recompute_config){0};
    if (!text || strcmp(text, "off") == 0) {
        return CAR_OK;
    }
    if (strcmp(text, "auto") == 0) {
        out->how = CAR_RECOMPUTE_AUTO;
        return CAR_OK;
    }
    out->how = CAR_RECOMPUTE_SHARE;
    out->share = strtod(text, &end);
    if (end == text || *end || !(out->share > 0 && out->share <= 1)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--recompute %s: it must be off, auto, or the share of the activations to hold, more "
                                "than 0 and at most 1",
                                text);
    }
    return CAR_OK;
}

car_cli_recompute_name car_cli_recompute_text(const car_recompute_config *config) {
    car_cli_recompute_name name = {"off"};
    if (config->how == CAR_RECOMPUTE_AUTO) {
        snprintf(name.text, sizeof name.text, "auto");
    } else if (config->how == CAR_RECOMPUTE_SHARE) {
        snprintf(name.text, sizeof name.text, "%g", config->share);
    }
    return name;
}

/* "6GB", "512MiB", "2e9"; case does not matter. */
static car_status read_bytes(car_context *context, const char *text, double *out) {
    static const char letters[] = "kmgtp";
    char *end = NULL;
    double value = strtod(text, &end), unit = 1000;
    const char *letter = *end ? strchr(letters, *end | 0x20) : NULL;
    if (letter) {
        end++;
        bool binary = strncasecmp(end, "ib", 2) == 0;
        unit = binary ? 1024 : 1000;
        end += binary ? 1 : 0;
        value *= pow(unit, (double)(letter - letters + 1));
    }
    end += strcasecmp(end, "b") == 0;
    if (end == text || *end || !(value >= 1) || !isfinite(value)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--memory-limit %s: it must be a number of bytes, e.g. 6GB or 512MiB", text);
    }
    *out = value;
    return CAR_OK;
}

/* ---- the least recomputation that fits --------------------------------------------------------- */

typedef struct fit {
    const car_graph *graph;
    const car_plan_config *plan;
    const car_optimizer_config *optimizer;
    car_partition_config *cut;
} fit;

/* Cuts with the first n tensors of the list made again, and predicts what that needs. */
static car_status try_out(const fit *f, int n, car_partition **out, car_prediction *predicted) {
    car_context *context = car_graph_context(f->graph);
    car_plan *plan = NULL;
    car_status status = CAR_OK;
    f->cut->recompute = (car_recompute_config){.how = n > 0 ? CAR_RECOMPUTE_FIRST : CAR_RECOMPUTE_OFF, .tensors = n};
    CAR_TRY(car_partition_create(f->graph, f->cut, out));
    CAR_TRY(car_plan_create(context, *out, f->plan, &plan));
    CAR_TRY(car_plan_predict_optimizer(plan, f->optimizer, predicted));
done:
    car_plan_destroy(plan);
    if (status != CAR_OK) {
        car_partition_destroy(*out);
        *out = NULL;
    }
    return status;
}

static car_status refuse(const fit *f, double limit, const car_prediction *least, int tensors) {
    double needs = car_cli_plan_memory(least);
    return car_context_fail(
        car_graph_context(f->graph), CAR_ERROR_MEMORY,
        "--memory-limit %s: the least that is possible is %s, %s more (activations %s%s, weights %s, gradients %s, "
        "optimizer %s); a smaller --batch or fewer --workers need less",
        car_cli_bytes(limit).text, car_cli_bytes(needs).text, car_cli_bytes(needs - limit).text,
        car_cli_bytes((double)least->timed.device_peak).text,
        tensors > 0 ? " with all made again that can be" : "; nothing can be made again",
        car_cli_bytes((double)least->weights_device).text, car_cli_bytes((double)least->gradients_device).text,
        car_cli_bytes((double)least->optimizer_device).text);
}

static car_status cut_to_limit(const fit *f, double limit, car_partition **out) {
    car_partition *partition = NULL;
    car_prediction predicted;
    int below = 0, fits = 0;
    car_status status = CAR_OK;
    CAR_TRY(try_out(f, 0, &partition, &predicted));
    if (car_cli_plan_memory(&predicted) > limit) {
        car_partition_destroy(partition);
        CAR_TRY(try_out(f, INT_MAX, &partition, &predicted));
        fits = partition->recomputation.tensors;
        if (car_cli_plan_memory(&predicted) > limit) {
            status = refuse(f, limit, &predicted, fits);
            goto done;
        }
    }
    while (fits - below > 1) { /* `fits` does, `below` does not */
        int middle = below + (fits - below) / 2;
        car_partition_destroy(partition);
        CAR_TRY(try_out(f, middle, &partition, &predicted));
        *(car_cli_plan_memory(&predicted) <= limit ? &fits : &below) = middle;
    }
    car_partition_destroy(partition);
    CAR_TRY(try_out(f, fits, &partition, &predicted));
    *out = partition;
    partition = NULL;
done:
    car_partition_destroy(partition);
    return status;
}

car_status car_cli_cut_graph(const car_graph *graph, const char *recompute, const char *limit,
                             const car_plan_config *plan, const car_optimizer_config *optimizer,
                             car_partition_config *cut, car_partition **out) {
    car_context *context = car_graph_context(graph);
    fit f = {graph, plan, optimizer, cut};
    bool limited = limit && strcmp(limit, "off") != 0;
    double bytes = 0;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_cli_read_recompute(context, recompute, &cut->recompute));
    if (!limited) {
        CAR_TRY(car_partition_create(graph, cut, out));
        if (cut->recompute.how == CAR_RECOMPUTE_AUTO && !(*out)->recompute) {
            car_context_log(context, CAR_LOG_WARNING,
                            "--recompute auto: in this model nothing that is held is cheap to make again; all of it "
                            "stays held");
        }
        return CAR_OK;
    }
    if (cut->recompute.how != CAR_RECOMPUTE_OFF) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--memory-limit finds out how much is recomputed: leave out --recompute %s", recompute);
    }
    if (plan->rule == CAR_RULE_CUSTOM) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--memory-limit needs predictions, and there are none for a custom plan; use "
                                "--recompute");
    }
    CAR_TRY(read_bytes(context, limit, &bytes));
    CAR_TRY(cut_to_limit(&f, bytes, out));
done:
    return status;
}

void car_cli_describe_recomputation(const car_partition *partition, char *text, size_t capacity) {
    const car_recomputation *r = &partition->recomputation;
    snprintf(text, capacity,
             "a micro-batch holds %s for backward instead of %s (%.2f); %d %s again, %.1f %% more FLOPs",
             car_cli_bytes((double)partition->held_bytes).text, car_cli_bytes((double)r->held_bytes).text,
             (double)partition->held_bytes / (double)r->held_bytes, r->operations,
             r->operations == 1 ? "operation runs" : "operations run",
             100 * r->flops / (car_graph_flops(partition->graph, false) + car_graph_flops(partition->graph, true)));
}
