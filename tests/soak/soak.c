/* The soak: random training runs, one after the other, until the time is up.
 *
 *     soak --seconds S [--seed X]     configurations derived from X
 *     soak --seed X --once            the one configuration whose line says "seed X"
 *
 * Half of them run over ranks in trouble: see ranks.c. Of the others, a run with P threads, cut in two by an evaluation and perhaps stopped by another thread, must give the bits and the
 * losses of an uninterrupted run with one thread, and leave no activations behind. Meant for sanitizers: what they
 * report ends the program. So does a run that hangs. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/session.h"
#include "soak/soak.h"

enum { PATIENCE = 240, MAX_STAGES = 32, MAX_STEPS = 8, NEVER = -1 };

/* ---- a configuration and its seed ------------------------------------------------------------------------------ */

typedef struct soak_case {
    car_session_config session;
    int cuts[MAX_STAGES];
    int64_t steps, cut_at; /* steps in all; where the run is cut for an evaluation */
    int stop_after;        /* microseconds until another thread stops it, or NEVER */
} soak_case;

static void choose_model(dice *d, car_session_config *config) {
    static const char *const models[] = {"mlp", "mlp", "mlp", "gpt2-nano", "gpt2-nano", "vit-tiny", "resnet20"};
    config->model = models[roll(d, 0, (int)(sizeof models / sizeof *models) - 1)];
    config->model_config = car_session_small(config->model, roll(d, 1, 3));
    if (strcmp(config->model, "resnet20") != 0) {
        config->model_config.depth = roll(d, 1, 4);
    }
    if (config->model_config.heads > 0) {
        config->model_config.dropout = one_in(d, 2) ? 0.2 : 0;
    }
    config->model_config.label_smoothing = one_in(d, 3) ? 0.1 : 0;
}

/* Cuts at random operations; the models have a good many more than the ten that may be drawn. */
static void choose_partition(dice *d, soak_case *c, int workers) {
    static const car_measure measures[] = {CAR_MEASURE_FLOPS,  CAR_MEASURE_FLOPS,  CAR_MEASURE_FLOPS,
                                           CAR_MEASURE_PARAMS, CAR_MEASURE_MEMORY, CAR_MEASURE_CUTS};
    car_partition_config *partition = &c->session.partition;
    partition->stages = workers * roll(d, 1, 3);
    partition->measure = measures[roll(d, 0, (int)(sizeof measures / sizeof *measures) - 1)];
    int cut = 0;
    for (int j = 0; j < partition->stages - 1; j++) {
        cut += cut < 5 ? roll(d, 0, 1) : 0;
        c->cuts[j] = cut;
    }
    partition->cuts = c->cuts;
}

static void choose_training(dice *d, car_session_config *config) {
    car_trainer_config *training = &config->training;
    *training = car_trainer_config_default();
    training->threads = roll(d, 1, 8);
    training->seed = config->seed;
    training->optimizer.kind = one_in(d, 3)   ? CAR_OPTIMIZER_MUON
                               : one_in(d, 2) ? CAR_OPTIMIZER_SGD
                                              : CAR_OPTIMIZER_ADAMW;
    training->optimizer.nesterov = one_in(d, 3);
    training->optimizer.correction = (car_correction){.c = one_in(d, 2) ? 0.9 : 0, .a = one_in(d, 2) ? 1 : 0};
    training->optimizer.weight_decay = one_in(d, 2) ? 0.01 : 0;
    training->optimizer.decay_weights_only = one_in(d, 2);
    training->schedule = (car_schedule){.kind = (car_schedule_kind)roll(d, CAR_SCHEDULE_CONSTANT, CAR_SCHEDULE_COSINE),
                                        .lr = 0.005,
                                        .warmup = roll(d, 0, 2),
                                        .every = 2,
                                        .gamma = 0.5,
                                        .total = MAX_STEPS + 1};
    training->clip_norm = one_in(d, 3) ? 0.5 : 0;
    training->skip_nonfinite = one_in(d, 3);
    training->unpaced = one_in(d, 4);
    training->shared_update_bytes = one_in(d, 2) ? 256 : 0;
    training->watchdog_seconds = PATIENCE / 4.0;
}

/* A worker's inputs that are not numbers where such steps are skipped, or a feed that fails. */
static void choose_fault(dice *d, soak_case *c) {
    car_fault *fault = &c->session.fault;
    fault->step = roll(d, 0, (int)c->steps - 1);
    fault->worker = roll(d, 0, c->session.plan.workers - 1);
    fault->value = NAN;
    if (one_in(d, 12)) {
        fault->kind = CAR_FAULT_ERROR;
    } else if (c->session.training.skip_nonfinite && one_in(d, 2)) {
        fault->kind = CAR_FAULT_VALUE;
    }
}

static void choose_case(uint64_t seed, soak_case *c) {
    static const car_rule rules[] = {CAR_RULE_DP,     CAR_RULE_CDP_V1, CAR_RULE_CDP_V1,    CAR_RULE_CDP_V2,
                                     CAR_RULE_CDP_V2, CAR_RULE_CDP_V2, CAR_RULE_ACCUMULATE};
    dice d = {.key = car_random_key(seed, "soak")};
    *c = (soak_case){.session = {.seed = seed}};
    choose_model(&d, &c->session);
    choose_training(&d, &c->session);
    car_plan_config *plan = &c->session.plan;
    *plan = car_plan_config_default();
    plan->workers = roll(&d, 1, 6);
    plan->rule = rules[roll(&d, 0, (int)(sizeof rules / sizeof *rules) - 1)];
    plan->freshness_slack = plan->rule == CAR_RULE_CDP_V2 && one_in(&d, 3) ? roll(&d, 1, 4) : 0;
    choose_partition(&d, c, plan->workers);
    c->steps = roll(&d, 1, MAX_STEPS);
    c->cut_at = roll(&d, 0, (int)c->steps);
    c->stop_after = one_in(&d, 3) ? roll(&d, 0, 100000) : NEVER;
    choose_fault(&d, c);
}

static void print_case(uint64_t seed, const soak_case *c) {
    static const char *const faults[] = {"", " nan", " error", " sleep"};
    const car_session_config *s = &c->session;
    printf("seed %" PRIu64 ": %s batch %d depth %d dropout %g, %s N %d S %d by %s slack %d, P %d%s, %s clip %g%s, "
           "%lld steps, cut at %lld",
           seed, s->model, s->model_config.batch, s->model_config.depth, s->model_config.dropout,
           car_rule_text(s->plan.rule), s->plan.workers, s->partition.stages, car_measure_text(s->partition.measure),
           s->plan.freshness_slack, s->training.threads, s->training.unpaced ? " unpaced" : "",
           car_optimizer_text(s->training.optimizer.kind), s->training.clip_norm,
           s->training.skip_nonfinite ? " skip" : "", (long long)c->steps, (long long)c->cut_at);
    if (c->stop_after != NEVER) {
        printf(", stop after %d us", c->stop_after);
    }
    if (s->fault.kind != CAR_FAULT_NONE) {
        printf(",%s for worker %d in step %lld", faults[s->fault.kind], s->fault.worker, (long long)s->fault.step);
    }
    fflush(stdout);
}

/* ---- running one ----------------------------------------------------------------------------------------------- */

typedef struct outcome {
    car_status status;
    int64_t steps;
    char newest[CAR_DIGEST_CAPACITY], previous[CAR_DIGEST_CAPACITY];
    double losses[CAR_SESSION_STEPS];
    bool skipped[CAR_SESSION_STEPS];
} outcome;

/* The first thing that was not as it should be, or NULL. */
static const char *complaint;
static atomic_bool complained_in_log;

static void expect(bool holds, const char *otherwise) {
    if (!holds && !complaint) {
        complaint = otherwise;
    }
}

/* The library logs errors only when something hangs. */
static void print_log(void *user, car_log_level level, const char *line) {
    (void)user;
    fprintf(stderr, "%s\n", line);
    if (level == CAR_LOG_ERROR) {
        atomic_store(&complained_in_log, true);
    }
}

typedef struct stopper {
    car_trainer *trainer;
    int microseconds;
} stopper;

static void *stop_later(void *argument) {
    const stopper *s = argument;
    struct timespec time = {.tv_nsec = s->microseconds * 1000L};
    nanosleep(&time, NULL);
    car_trainer_stop(s->trainer);
    return NULL;
}

static void evaluate(car_session *session) {
    car_evaluation once, again;
    car_weights *weights = car_trainer_weights(session->trainer);
    car_session clean = *session; /* the same, fed without the fault */
    clean.config.fault.kind = CAR_FAULT_NONE;
    expect(car_evaluate(session->program, session->arena, weights, session->config.training.threads, 3,
                        car_session_feed, &clean, &once) == CAR_OK,
           "evaluation failed");
    expect(car_evaluate(session->program, session->arena, weights, 1, 3, car_session_feed, &clean, &again) == CAR_OK,
           "evaluation by one thread failed");
    expect(once.loss == again.loss && once.top1 == again.top1 && once.rows == again.rows, "evaluations differ");
    expect(isfinite(once.loss), "a loss in evaluation is not finite");
}

static void check_ending(const car_session *session, outcome *out) {
    const car_fault *fault = &session->config.fault;
    expect(session->reports_in_order, "reports are out of order");
    expect(session->report_count == out->steps, "not every step was reported once");
    expect(car_arena_live(session->arena, CAR_MEMORY_ACTIVATIONS) <= car_session_rest(session),
           "activations are left after the run");
    for (int64_t t = 0; t < out->steps && t < CAR_SESSION_STEPS; t++) {
        out->losses[t] = session->reports[t].loss;
        out->skipped[t] = session->reports[t].skipped;
        expect(isfinite(out->losses[t]) || (fault->kind == CAR_FAULT_VALUE && t == fault->step && out->skipped[t]),
               "a loss is not finite");
    }
    expect(car_weights_digest(car_trainer_weights(session->trainer), out->newest) == CAR_OK, "no digest");
    expect(car_weights_digest(car_trainer_previous_weights(session->trainer), out->previous) == CAR_OK, "no digest");
}

static void run_session(const soak_case *c, outcome *out) {
    car_session session;
    pthread_t thread;
    bool stopping = false;
    *out = (outcome){.status = CAR_OK};
    out->status = car_session_open(&session, &c->session);
    expect(out->status == CAR_OK, "the session could not be opened");
    if (out->status == CAR_OK) {
        stopper s = {session.trainer, c->stop_after};
        stopping = c->stop_after != NEVER && pthread_create(&thread, NULL, stop_later, &s) == 0;
        out->status = car_trainer_run(session.trainer, c->cut_at);
        if (out->status == CAR_OK && c->cut_at > 0) {
            evaluate(&session);
            out->status = car_trainer_run(session.trainer, c->steps);
        } else if (out->status == CAR_OK) {
            out->status = car_trainer_run(session.trainer, c->steps);
        }
        if (stopping) {
            pthread_join(thread, NULL);
        }
        out->steps = car_trainer_steps(session.trainer);
    }
    if (out->status == CAR_OK) {
        expect(stopping || out->steps == c->steps, "the run ended early");
        check_ending(&session, out);
    } else {
        bool wanted = c->session.fault.kind == CAR_FAULT_ERROR && out->status == CAR_ERROR_IO;
        expect(wanted, "the run failed");
        expect(out->steps == session.report_count, "after the failure, steps are counted that were not made");
        if (!wanted) {
            fprintf(stderr, "%s: %s\n", car_status_text(out->status), car_context_error(session.context));
        }
    }
    car_session_close(&session);
}

static void compare(const outcome *many, const outcome *one) {
    expect(one->steps == many->steps, "the number of steps differs from that of one thread");
    expect(strcmp(one->newest, many->newest) == 0, "weights differ from those of one thread");
    expect(strcmp(one->previous, many->previous) == 0, "previous weights differ from those of one thread");
    for (int64_t t = 0; t < many->steps && t < CAR_SESSION_STEPS; t++) {
        expect(one->skipped[t] == many->skipped[t], "another step was skipped than with one thread");
        expect(one->losses[t] == many->losses[t] || many->skipped[t], "losses differ from those of one thread");
    }
}

/* In one process. Whether all was well. */
static bool soak_session(uint64_t seed) {
    soak_case c;
    outcome many, one;
    choose_case(seed, &c);
    print_case(seed, &c);
    complaint = NULL;
    c.session.log = print_log;
    run_session(&c, &many);
    if (many.status == CAR_OK && many.steps > 0) {
        soak_case simple = c;
        simple.session.training.threads = 1;
        simple.session.partition.cuts = simple.cuts;
        simple.steps = simple.cut_at = many.steps;
        simple.stop_after = NEVER;
        run_session(&simple, &one);
        compare(&many, &one);
    }
    expect(!atomic_load(&complained_in_log), "an error was logged");
    printf(": %s (%lld steps)\n", complaint ? complaint : "ok", (long long)many.steps);
    fflush(stdout);
    return !complaint;
}

/* A hang is ended by the alarm, after the watchdog has had its say. */
static bool soak_one(uint64_t seed) {
    dice d = {.key = car_random_key(seed, "kind of soak")};
    alarm(PATIENCE);
    bool good = one_in(&d, 2) ? soak_ranks(seed) : soak_session(seed);
    alarm(0);
    return good;
}

/* ---- the program ----------------------------------------------------------------------------------------------- */

static bool parse(const char *text, uint64_t *out) {
    char *end = NULL;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0';
}

int main(int argc, char **argv) {
    uint64_t seconds = 60, seed = (uint64_t)time(NULL);
    bool once = false, usable = true;
    for (int a = 1; a < argc && usable; a++) {
        if (strcmp(argv[a], "--once") == 0) {
            once = true;
        } else {
            uint64_t *value = strcmp(argv[a], "--seconds") == 0 ? &seconds
                              : strcmp(argv[a], "--seed") == 0  ? &seed
                                                                : NULL;
            usable = value && a + 1 < argc && parse(argv[++a], value);
        }
    }
    if (!usable) {
        fprintf(stderr, "usage: soak [--seconds S] [--seed X] [--once]\n");
        return 2;
    }
    if (once) {
        return soak_one(seed) ? 0 : 1;
    }
    double end = car_clock_seconds() + (double)seconds;
    long count = 0, failures = 0;
    while (car_clock_seconds() < end) {
        failures += !soak_one(car_random_u64(seed, (uint64_t)count++) >> 32);
    }
    printf("%ld configurations in %" PRIu64 " s, %ld failed\n", count, seconds, failures);
    return failures == 0 ? 0 : 1;
}
