/* A training run with all that it takes, in one struct: a small model on synthetic data, where one feed may be made to
 * go wrong. What it reports is kept. */
#ifndef CAR_TESTS_SESSION_H
#define CAR_TESTS_SESSION_H

#include "carousel/data.h"
#include "carousel/evaluate.h"
#include "carousel/trainer.h"

enum { CAR_SESSION_STEPS = 64, CAR_DIGEST_CAPACITY = 65 };

typedef enum car_fault_kind {
    CAR_FAULT_NONE,
    CAR_FAULT_VALUE, /* all inputs are `value`: NaN, or too much */
    CAR_FAULT_ERROR, /* the feed fails with CAR_ERROR_IO */
    CAR_FAULT_SLEEP  /* the feed takes `value` seconds */
} car_fault_kind;

/* What goes wrong when one worker is fed in one step. */
typedef struct car_fault {
    car_fault_kind kind;
    int64_t step;
    int worker;
    float value;
} car_fault;

typedef struct car_session_config {
    const char *model;
    car_model_config model_config;
    car_partition_config partition;
    car_plan_config plan;
    car_trainer_config training; /* feed NULL: the session's own, with the fault */
    car_fault fault;
    int64_t first_sample_step; /* step 0 sees the samples of this step */
    size_t limit;              /* of the arena */
    bool records;              /* steps record_first .. record_end - 1, the arena's categories too */
    int64_t record_first, record_end;
    size_t record_bytes; /* at most; 0: enough */
    uint64_t seed;       /* of weights and samples */
    car_log_function log;
    void *log_user;
} car_session_config;

typedef struct car_session {
    car_session_config config;
    car_context *context;
    car_graph *graph;
    car_partition *partition;
    car_plan *plan;
    car_program *program;
    car_arena *arena;
    car_recorder *recorder; /* NULL unless it records */
    car_trainer *trainer;
    car_synthetic source;
    car_step_report reports[CAR_SESSION_STEPS];
    int64_t report_count;
    bool reports_in_order;
} car_session;

/* Small variants of mlp, resnet20, vit-tiny and gpt2-nano: what a few milliseconds suffice for. */
car_model_config car_session_small(const char *model, int batch);
/* One worker per stage, cdp-v2, two threads, SGD with momentum. */
car_session_config car_session_config_default(const char *model, int workers, car_rule rule);

/* A failure leaves what was made before it in the session; car_session_close is due in any case. */
car_status car_session_open(car_session *session, const car_session_config *config);
void car_session_close(car_session *session);

/* The session's own feed, with the session as its user. */
car_status car_session_feed(void *session, int64_t step, int worker, car_tape *tape);

/* Of the activations: what is left when a run has ended well, the losses that tapes keep. */
size_t car_session_rest(const car_session *session);

#endif
