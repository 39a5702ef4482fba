/* The options --recompute and --memory-limit of `plan` and `train`. */
#ifndef CAR_CLI_RECOMPUTE_H
#define CAR_CLI_RECOMPUTE_H

#include "carousel/optimizer.h"
#include "carousel/plan.h"
#include "carousel/predict.h"
#include "cli.h"

/* Rows of an option table. */
#define CAR_CLI_RECOMPUTE_OPTIONS(options)                                                                     \
    {"recompute",                                                                                              \
     "HOW",                                                                                                    \
     "recompute activations: off, auto (cheap ones), or the share to keep, e.g. 0.3 (default: off)",           \
     CAR_CLI_TEXT,                                                                                             \
     &(options)->recompute,                                                                                    \
     0,                                                                                                        \
     0},                                                                                                       \
    {                                                                                                          \
        "memory-limit", "BYTES", "memory limit per device, e.g. 6GB; recompute only as much as needed to fit", \
            CAR_CLI_TEXT, &(options)->memory_limit, 0, 0                                                       \
    }

/* Reads --recompute; NULL means off. */
car_status car_cli_read_recompute(car_context *context, const char *text, car_recompute_config *out);
/* The reverse: "off", "auto", "0.25". Not for CAR_RECOMPUTE_FIRST. */
typedef struct car_cli_recompute_name {
    char text[16];
} car_cli_recompute_name;
car_cli_recompute_name car_cli_recompute_text(const car_recompute_config *config);
/* Reads --memory-limit in bytes; 0 if it is not given or off. */
car_status car_cli_read_memory_limit(car_context *context, const char *text, double *out);
/* Cuts the graph as the two options ask (NULL if not given). The limit is for the predicted memory of a run with `plan`
 * and `optimizer`. The choice is stored in cut->recompute. */
car_status car_cli_cut_graph(const car_graph *graph, const char *recompute, const char *limit,
                             const car_plan_config *plan, const car_optimizer_config *optimizer,
                             car_partition_config *cut, car_partition **out);

/* Writes a sentence about what is recomputed, what it saves and what it costs. */
void car_cli_describe_recomputation(const car_partition *partition, char *text, size_t capacity);

#endif
