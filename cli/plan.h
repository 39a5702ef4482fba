/* Declarations shared by the files of `carousel plan`. */
#ifndef CAR_CLI_PLAN_H
#define CAR_CLI_PLAN_H

#include <stdio.h>

#include "carousel/cluster.h"
#include "carousel/convention.h"
#include "carousel/model.h"
#include "carousel/optimizer.h"
#include "carousel/plan.h"
#include "carousel/predict.h"
#include "carousel/program.h"
#include "carousel/recommend.h"
#include "cli.h"
#include "mapping.h"

struct cJSON;

typedef struct car_plan_options {
    const char *model, *rule, *placement, *partition, *mapping, *optimizer, *delay_correction;
    const char *svg, *profile_file, *convolutions, *memory, *cluster, *recompute, *memory_limit, *precision;
    car_model_config shape; /* of the model; 0 where the user left it open */
    int workers, accumulate, stages, threads, freshness_slack, zero_copies, zero_ahead;
    const char *sum_order;
    double piece_bytes; /* 0: left open */
    int ranks, machines, steps;
    int global_batch;
    const char *out; /* --recommend: the file for the configuration */
    double ema;
    bool profile, compare, json, dump, edges, custom, recommend, exact;
} car_plan_options;

/* What is planned: the model, the costs of its operations, and its partition. */
typedef struct car_plan_subject {
    car_context *context;
    const car_plan_options *options;
    car_graph *graph;
    car_costs costs;
    bool measured; /* costs are seconds from a profile, not FLOPs */
    car_partition *partition;
    car_proof proof; /* of the plan that is shown */
    car_optimizer_config optimizer;
    car_program_config program; /* of the run that is planned */
    car_machines machines;
    car_mapping_choice choice; /* if the options leave the mapping open */
    bool chosen;
    car_ahead_choice ahead; /* the same for --zero-ahead; `ahead` is 0 if nothing was chosen */
    car_cluster cluster;    /* if --cluster was given */
    double compute;         /* seconds that the forwards and backwards of one worker take on it */
} car_plan_subject;

/* ---- plan_optimizer.c ----------------------------------------------------------------------- */

/* Reads --optimizer and --delay-correction. */
car_status car_cli_plan_read_optimizer(car_plan_subject *s, const car_plan_config *plan);
/* The most floats that the optimizer keeps for a weight under a rule. */
int car_cli_plan_states(const car_plan_subject *s, const car_plan_config *plan);
/* The optimizer for a rule, which may decide on its correction. */
car_optimizer_config car_cli_plan_optimizer(const car_plan_subject *s, const car_plan_config *plan);
/* Predictions that include what the optimizer keeps. */
car_status car_cli_plan_predict(const car_plan_subject *s, const car_plan *plan, car_prediction *out);
car_status car_cli_plan_predict_rank(const car_plan_subject *s, const car_plan *plan, int rank,
                                     car_device_prediction *out);
/* What Muon computes: a paragraph of the page, an object in JSON, and its share of a step (0 for other optimizers). */
void car_cli_plan_print_muon(const car_plan_subject *s, const car_plan *plan, FILE *stream);
void car_cli_plan_json_muon(const car_plan_subject *s, const car_plan *plan, struct cJSON *root, bool *ok);
double car_cli_plan_muon_share(const car_plan_subject *s, const car_plan *plan);

/* ---- output ---------------------------------------------------------------------------------- */

car_status car_cli_plan_page(const car_plan_subject *s, const car_plan *plan, FILE *stream);

/* A --freshness-slack that is predicted to shorten a step. */
typedef struct car_cli_slack_advice {
    int slack; /* 0: none helps */
    /* Step times: seconds on the cluster, otherwise in units of one worker's forwards and backwards. */
    double before, after;
} car_cli_slack_advice;
/* `step`: the predicted step time without a slack, in the same unit. */
car_status car_cli_plan_weigh_slack(const car_plan_subject *s, const car_plan *plan, double step,
                                    car_cli_slack_advice *out);

void car_cli_plan_remarks(const car_plan_subject *s, const car_plan *plan, const car_prediction *prediction,
                          const car_cli_slack_advice *slack, FILE *stream);
/* cJSON reports a lack of memory by returning NULL; `ok` collects that. */
void car_cli_plan_json_number(struct cJSON *object, const char *name, double value, bool *ok);
struct cJSON *car_cli_plan_json_prediction(const car_prediction *p); /* NULL: out of memory */
/* Prints and deletes `json`; NULL means that memory ran out. */
car_status car_cli_plan_print_json(car_context *context, struct cJSON *json, FILE *stream);
car_status car_cli_plan_json(const car_plan_subject *s, const car_plan *plan, FILE *stream);
/* Compares every rule and placement that goes with the model and the number of workers. */
car_status car_cli_plan_compare(const car_plan_subject *s, const car_plan_config *base, FILE *stream);

/* ---- plan_recommend.c, plan_recommend_text.c: --recommend ------------------------------------- */

/* Which options were typed; these are not searched. */
car_choice_fixed car_cli_plan_typed(int argc, char **argv, const car_plan_options *o);
/* Checks options that make no sense with --recommend, or without it. Returns CAR_CLI_GO_ON, or the exit code after a
 * message. */
int car_cli_plan_check_recommend(int argc, char **argv, const car_plan_options *o);
/* Searches, prints, and writes --out. `s` has its graph and costs if they were measured. */
car_status car_cli_plan_recommend(car_plan_subject *s, const car_plan_config *given, const car_choice_fixed *fixed,
                                  FILE *stream);
/* Prints the result for people. `config` is for messages. */
void car_cli_plan_print_recommendation(const car_plan_subject *s, const car_recommend_config *config,
                                       const car_recommendation *r, FILE *stream);
/* Writes a sentence that says why a row is not the best. */
void car_cli_plan_explain(const car_plan_subject *s, const car_recommendation *r, int row, char *text, size_t capacity);

/* ---- plan_zero.c: zero's weights, which travel from rank to rank -------------------------------- */

/* Chooses --zero-ahead for a cluster if it is left open. */
car_status car_cli_plan_choose_ahead(const car_plan_subject *s, car_plan_config *config, car_ahead_choice *out);

typedef struct car_cli_zero_form {
    bool shown, counted; /* counted: `weights` is known */
    int copies, ahead;
    /* Step time: seconds on the cluster, otherwise in units of one worker's forwards and backwards. */
    double step;
    double memory, sent; /* bytes: memory of the device that needs most; sent per step by the one that sends most */
    car_weights_ledger weights;
} car_cli_zero_form;

typedef struct car_cli_zero {
    bool shown;                   /* false if no weights travel */
    car_cli_zero_form forms[2];   /* with one copy, with two */
    double sent_by_dp, most_sent; /* bytes per rank and step: dp's, and the bound for two copies, 0 if unknown */
    bool in_time;                 /* a copy has left by the end of the slot in which it is sent */
    /* For the copy that is slowest relative to its slot: seconds it takes, and seconds of the slot. */
    double takes, lasts;
} car_cli_zero;

car_status car_cli_plan_weigh_zero(const car_plan_subject *s, const car_plan *plan, const car_prediction *prediction,
                                   const car_timing *timing, car_cli_zero *out);
void car_cli_plan_print_zero(const car_plan_subject *s, const car_plan *plan, const car_cli_zero *z, FILE *stream);
void car_cli_plan_json_zero(const car_plan_subject *s, const car_cli_zero *z, struct cJSON *root, bool *ok);

/* ---- plan_cluster.c -------------------------------------------------------------------------- */

/* Reads the description, and finds how long a device computes. */
car_status car_cli_plan_read_cluster(car_plan_subject *s);
/* The most bytes that any device holds in total. */
double car_cli_plan_memory(const car_prediction *p);
/* True if each device has enough memory, if there are enough devices. What the cluster does not specify counts as
 * enough. */
bool car_cli_plan_fits_memory(const car_plan_subject *s, const car_prediction *p);
bool car_cli_plan_fits_devices(const car_plan_subject *s, const car_prediction *p);
void car_cli_plan_describe_cluster(const car_plan_subject *s, FILE *stream);
void car_cli_plan_print_timing(const car_plan_subject *s, const car_prediction *p, const car_timing *t, FILE *stream);
struct cJSON *car_cli_plan_json_cluster(const car_plan_subject *s); /* NULL: out of memory */
struct cJSON *car_cli_plan_json_timing(const car_plan_subject *s, const car_prediction *p, const car_timing *t);

car_size_text car_cli_seconds(double seconds); /* "1.23 ms" */

#endif
