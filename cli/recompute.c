/* --recompute and --memory-limit: how many activations are recomputed. */
#include "recompute.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "carousel/convention.h"
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
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "--recompute %s: it must be off, auto, or the share of the activations to keep, above 0 and at most 1",
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

/* Reads "6GB", "512MiB" or "2e9"; case does not matter. */
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

car_status car_cli_read_memory_limit(car_context *context, const char *text, double *out) {
    *out = 0;
    return text && strcmp(text, "off") != 0 ? read_bytes(context, text, out) : CAR_OK;
}

/* ---- cutting ----------------------------------------------------------------------------------- */

/* Adds the option in front of the library's message. */
static car_status name_option(car_context *context, car_status status) {
    char message[1024];
    snprintf(message, sizeof message, "%s", car_context_error(context));
    car_context_clear_error(context);
    return car_context_fail(context, status, "--memory-limit %s", message);
}

car_status car_cli_cut_graph(const car_graph *graph, const char *recompute, const char *limit,
                             const car_plan_config *plan, const car_optimizer_config *optimizer,
                             car_partition_config *cut, car_partition **out) {
    car_context *context = car_graph_context(graph);
    car_prediction predicted;
    double bytes = 0;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_cli_read_recompute(context, recompute, &cut->recompute));
    CAR_TRY(car_cli_read_memory_limit(context, limit, &bytes));
    if (bytes <= 0) {
        CAR_TRY(car_partition_create(graph, cut, out));
        if (cut->recompute.how == CAR_RECOMPUTE_AUTO && !(*out)->recompute) {
            car_context_log(
                context, CAR_LOG_WARNING,
                "--recompute auto: no activations of this model are cheap to recompute, so nothing is recomputed");
        }
        return CAR_OK;
    }
    status = car_plan_cut_within(graph, plan, optimizer, bytes, cut, &predicted, out);
    if (status == CAR_ERROR_MEMORY || status == CAR_ERROR_ARGUMENT) {
        status = name_option(context, status);
    }
done:
    return status;
}

void car_cli_describe_recomputation(const car_partition *partition, char *text, size_t capacity) {
    const car_recomputation *r = &partition->recomputation;
    snprintf(text, capacity,
             "a micro-batch holds %s for backward instead of %s (%.2f); %d %s again, %.1f %% more FLOPs",
             car_size_shown((double)partition->held_bytes).text, car_size_shown((double)r->held_bytes).text,
             (double)partition->held_bytes / (double)r->held_bytes, r->operations,
             r->operations == 1 ? "operation runs" : "operations run",
             100 * r->flops / (car_graph_flops(partition->graph, false) + car_graph_flops(partition->graph, true)));
}
