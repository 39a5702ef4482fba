/* See placements.h. */
#include "engine/placements.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "carousel/predict.h"
#include "engine/session.h"
#include "engine/snapshots.h"
#include "transport/transport.h"

enum { STEPS = 6, DP_STEPS = 10, PIECE_BYTES = 3000 }; /* so small that every sum has several */

const car_placement_setting car_placement_settings[] = {
    {CAR_PLACEMENT_SHARED, 2, 1, 1, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_SHARED, 3, 1, 1, 2, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_SHARED, 4, 2, 1, 3, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_REPLICA, 2, 1, 2, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_REPLICA, 3, 1, 3, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_REPLICA, 4, 1, 4, 1, CAR_MAPPING_INTERLEAVED, true, 0, 0, 1, 0},
    {CAR_PLACEMENT_REPLICA, 4, 2, 4, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_REPLICA, 4, 1, 2, 2, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_REPLICA, 4, 1, 2, 2, CAR_MAPPING_CONTIGUOUS, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_REPLICA, 6, 1, 3, 2, CAR_MAPPING_INTERLEAVED, true, 0, 0, 1, 0},
    {CAR_PLACEMENT_REPLICA, 6, 1, 2, 3, CAR_MAPPING_CONTIGUOUS, true, 0, 0, 1, 0},
    {CAR_PLACEMENT_ZERO, 2, 1, 2, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_ZERO, 3, 1, 3, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_ZERO, 4, 1, 4, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_ZERO, 3, 2, 3, 2, CAR_MAPPING_INTERLEAVED, true, 0, 0, 1, 0},
    {CAR_PLACEMENT_PIPELINE, 2, 1, 2, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_PIPELINE, 3, 1, 3, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_PIPELINE, 4, 1, 4, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_PIPELINE, 3, 2, 3, 2, CAR_MAPPING_INTERLEAVED, true, 0, 0, 1, 0},
    {CAR_PLACEMENT_GRID, 2, 1, 3, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_GRID, 2, 2, 3, 1, CAR_MAPPING_INTERLEAVED, true, 0, 0, 1, 0},
    {CAR_PLACEMENT_GRID, 3, 1, 6, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    {CAR_PLACEMENT_GRID, 4, 1, 10, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 0},
    /* zero with a single copy of each version. */
    {CAR_PLACEMENT_ZERO, 3, 1, 3, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 1, 1},
    {CAR_PLACEMENT_ZERO, 3, 2, 3, 2, CAR_MAPPING_INTERLEAVED, true, 0, 0, 1, 1},
    /* Two micro-batches a worker, in each placement's own order of addition. */
    {CAR_PLACEMENT_REPLICA, 2, 2, 2, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 2, 0},
    {CAR_PLACEMENT_REPLICA, 4, 1, 2, 2, CAR_MAPPING_INTERLEAVED, true, 0, 0, 3, 0},
    {CAR_PLACEMENT_ZERO, 2, 2, 2, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 2, 0},
    {CAR_PLACEMENT_ZERO, 3, 1, 3, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 2, 0},
    {CAR_PLACEMENT_ZERO, 2, 1, 2, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 2, 1},
    {CAR_PLACEMENT_PIPELINE, 2, 2, 2, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 2, 0},
    {CAR_PLACEMENT_GRID, 2, 1, 3, 1, CAR_MAPPING_INTERLEAVED, false, 0, 0, 2, 0},
};

const int car_placement_setting_count = sizeof car_placement_settings / sizeof car_placement_settings[0];
const char *const car_placement_models[3] = {"mlp", "resnet20", "gpt2-nano"};
const car_rule car_placement_rules[3] = {CAR_RULE_CDP_V1, CAR_RULE_CDP_V2, CAR_RULE_DP};

static void log_line(void *user, car_log_level level, const char *line) {
    (void)user;
    (void)level;
    fprintf(stderr, "  %s\n", line);
}

/* Whatever goes wrong ends all ranks: the others would wait. */
static void require(car_transport *transport, bool holds, const char *what, const car_context *context) {
    if (!holds) {
        fprintf(stderr, "rank %d: %s%s%s\n", car_transport_rank(transport), what, context ? ": " : "",
                context ? car_context_error(context) : "");
        car_transport_abort(transport, 1);
        exit(1);
    }
}

/* The norm of the difference over the norm of the weights; 0 only if all bits are the same. */
static double compare(car_session *session, car_snapshot *snapshot) {
    double difference = 0, square = 0;
    bool same = true;
    for (int p = 0; p < car_graph_param_count(session->graph); p++) {
        size_t count = (size_t)car_shape_elements(car_graph_param(session->graph, p)->shape);
        float *a = malloc(count * sizeof *a), *b = malloc(count * sizeof *b);
        car_weights_get(car_trainer_weights(session->trainer), p, a);
        car_snapshot_get(snapshot, CAR_SNAPSHOT_WEIGHTS, p, b);
        for (size_t e = 0; e < count; e++) {
            double d = (double)a[e] - (double)b[e];
            difference += d * d;
            square += (double)a[e] * (double)a[e];
        }
        same = same && memcmp(a, b, count * sizeof *a) == 0;
        free(b);
        free(a);
    }
    return same ? 0 : fmax(sqrt(difference / square), 1e-30);
}

car_session_config car_placement_configure(const car_placement_setting *s, const char *model, car_rule rule,
                                           bool guarded) {
    bool bf16 = strcmp(model, CAR_PLACEMENT_BF16) == 0;
    car_session_config config = car_session_config_default(bf16 ? "gpt2-nano" : model, s->workers, rule);
    if (strcmp(model, "resnet20") == 0) {
        config.model_config.width = 16;
        config.model_config.batch = 4;
        config.model_config.image_size = 16;
    }
    config.partition.stages = s->workers * s->per_worker;
    config.plan.accumulate = s->accumulate;
    if (s->placement == CAR_PLACEMENT_REPLICA || rule == CAR_RULE_DP) { /* the shared engine adds in the same order */
        config.plan.sum_order = CAR_SUM_ORDER_WORKER;
    }
    /* So small a network with batch norm amplifies rounding: two shared runs whose rates differ by 2e-7 are 2e-3 apart
     * after ten steps at a rate of 0.01. */
    config.training.schedule.lr = rule == CAR_RULE_DP ? 0.0002 : 0.01;
    if (strcmp(model, "gpt2-nano") == 0) {
        config.training.optimizer.kind = CAR_OPTIMIZER_ADAMW;
        config.training.schedule.lr = 0.001;
        config.training.optimizer.correction = (car_correction){.c = 0.9, .a = 1};
    }
    if (strcmp(model, "mlp") == 0 && rule != CAR_RULE_DP) {
        config.training.optimizer.kind = CAR_OPTIMIZER_MUON;
        config.training.optimizer.adamw_ratio = 0.1;
        config.training.optimizer.correction = (car_correction){.c = 0.9, .a = 1};
    }
    if (strcmp(model, "resnet20") == 0 && rule != CAR_RULE_DP) {
        config.training.optimizer.correction = (car_correction){.c = 0.9, .a = 1};
    }
    if (bf16) {
        config.model_config.precision = CAR_PRECISION_BF16;
        config.training.optimizer.kind = CAR_OPTIMIZER_ADAMW;
        config.training.schedule.lr = 0.001;
    }
    if (guarded) {
        config.training.clip_norm = 0.5;
        config.training.skip_nonfinite = true;
        config.fault = (car_fault){CAR_FAULT_VALUE, 2, 1, NAN};
    }
    config.training.link_pacing = guarded || s->workers == 3 ? CAR_LINKS_PACED : CAR_LINKS_UNPACED;
    config.log = log_line;
    return config;
}

car_plan_config car_placement_plan(const car_placement_setting *s, const car_plan_config *shared) {
    car_plan_config config = *shared;
    config.placement = s->placement;
    config.mapping = s->mapping;
    config.ranks = s->placement == CAR_PLACEMENT_REPLICA ? s->ranks : 0;
    config.zero_copies = car_rule_info_of(config.rule)->spaced ? s->zero_copies : 0;
    config.piece_bytes = s->workers == 3 || s->threads > 1 ? PIECE_BYTES : 0; /* of the others, sums are not cut */
    return config;
}

/* ---- all ranks' weights together ----------------------------------------------------------------------- */

enum { MOST_EVENTS = 4096 };

/* What a rank's weights took, by the clock of the machine. */
typedef struct record {
    size_t before;
    int count;
    car_arena_event events[MOST_EVENTS];
} record;

static double begin_record(car_arena *arena, record *own) {
    own->before = car_arena_live(arena, CAR_MEMORY_WEIGHTS);
    return car_arena_record(arena, CAR_MEMORY_WEIGHTS, MOST_EVENTS) == CAR_OK ? car_clock_seconds() : 0;
}

/* The most bytes that all ranks had at one time; 0 if something went wrong. */
static size_t most_at_once(car_transport *transport, car_arena *arena, double start, record *own) {
    int ranks = car_transport_size(transport), at[64] = {0};
    const car_arena_event *events = NULL;
    own->count = car_arena_events(arena, &events);
    for (int e = 0; e < own->count; e++) {
        own->events[e] = (car_arena_event){events[e].seconds + start, events[e].live};
    }
    record *all = calloc((size_t)ranks, sizeof *all);
    bool good = all && start > 0 && own->count < MOST_EVENTS && ranks <= 64 &&
                car_transport_all_gather(transport, own, sizeof *own, all) == CAR_OK;
    size_t total = 0, most = 0;
    for (int r = 0; good && r < ranks; r++) {
        total += all[r].before;
    }
    for (int next = 0; good && next >= 0; most = total > most ? total : most) {
        next = -1;
        for (int r = 0; r < ranks; r++) {
            bool earlier =
                at[r] < all[r].count && (next < 0 || all[r].events[at[r]].seconds < all[next].events[at[next]].seconds);
            next = earlier ? r : next;
        }
        if (next >= 0) {
            const record *of = &all[next];
            total += of->events[at[next]].live - (at[next] > 0 ? of->events[at[next] - 1].live : of->before);
            at[next]++;
        }
    }
    free(all);
    return most;
}

/* zero: two versions of everything, and of a tied parameter the copies that travel on their own. With two copies of a version
 * what the plan counts where sends last, within 4 %: ranks that are early or late may use a copy at the same time, and an
 * owner makes a version beside the one before if that is still being sent. */
static bool has_few_versions(const car_partition *partition, int copies, const car_weights_ledger *ledger,
                             size_t most) {
    size_t bytes = 0;
    size_t masters = 0;
    for (int b = 0; b < partition->bundle_count; b++) {
        const car_bundle *bundle = &partition->bundles[b];
        bytes += bundle->copy_bytes;
        masters += b < partition->stage_count && bundle->copy_bytes != bundle->bytes ? bundle->bytes : 0;
    }
    most -= masters;
    double planned = copies == 1 ? 2 * (double)bytes : 1.04 * (double)(ledger->lasting + ledger->lasting_tied);
    return most > bytes / 2 && (double)most <= planned; /* much may be in flight, where it counts as messages */
}

/* ---- one case ------------------------------------------------------------------------------------------ */

/* What rank 0 reports. */
typedef struct reports {
    car_step_report all[CAR_SESSION_STEPS];
    int64_t count;
} reports;

static void keep_report(void *user, const car_step_report *report) {
    reports *r = user;
    r->all[r->count++] = *report;
}

/* Losses, norms and what was skipped, as the shared engine says. */
static bool same_reports(const car_session *session, const reports *r, double tolerance) {
    bool same = r->count == session->report_count;
    for (int64_t t = 0; same && t < r->count; t++) {
        const car_step_report *a = &r->all[t], *b = &session->reports[t];
        bool finite = isfinite(a->loss) && isfinite(a->gradient_norm);
        same = a->step == b->step && a->skipped == b->skipped && finite == !b->skipped;
        same = same && (!finite || (fabs(a->loss - b->loss) <= tolerance * fabs(b->loss) &&
                                    fabs(a->gradient_norm - b->gradient_norm) <= tolerance * b->gradient_norm));
    }
    return same;
}

/* As many snapshots as are due, and under the cyclic rules what the shared engine has after the same steps. */
static bool same_snapshots(car_session *session, const car_snapshot_keeper *k, car_rule rule, int64_t steps) {
    car_snapshot *expected = NULL;
    bool good = k->count == car_snapshots_expected(k->setting, steps) &&
                car_trainer_create_snapshot(session->trainer, &expected) == CAR_OK;
    for (int c = 0; good && c < k->count && rule != CAR_RULE_DP; c++) {
        const car_snapshot *snapshot = k->snapshots[c];
        good =
            car_trainer_run(session->trainer, car_snapshot_get_numbers(snapshot).step) == CAR_OK &&
            car_trainer_take_snapshot(session->trainer, expected) == CAR_OK &&
            car_snapshots_are_equal(session->graph, expected, snapshot, car_snapshots_is_whole(k->setting, snapshot));
    }
    car_snapshot_destroy(expected);
    if (!good) {
        printf("FAILED snapshots: %d of %d, or not the same\n", k->count, car_snapshots_expected(k->setting, steps));
    }
    return good;
}

/* Two runs, so that going on from the end of the first is seen as well. */
static car_status train(car_rank *rank, car_transport *transport, car_arena *arena, int64_t steps, size_t *most) {
    record *own = calloc(1, sizeof *own); /* too large for a stack */
    car_status status = CAR_OK;
    CAR_TRY(car_rank_initialize(rank, 7));
    double start = begin_record(arena, own);
    CAR_TRY(car_rank_run(rank, steps / 2 + 1));
    *most = most_at_once(transport, arena, start, own);
    CAR_TRY(car_rank_run(rank, steps));
done:
    free(own);
    return status;
}

bool car_placement_run(car_transport *transport, const car_placement_setting *s, const char *model, car_rule rule,
                       bool guarded) {
    car_session_config config = car_placement_configure(s, model, rule, guarded);
    reports reported = {0};
    car_snapshot_keeper keeper;
    car_session session;
    car_plan_config plan_config = car_placement_plan(s, &config.plan);
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_arena *arena = NULL;
    car_rank *rank = NULL;
    car_snapshot *snapshot = NULL;
    int64_t steps = rule == CAR_RULE_DP ? DP_STEPS : STEPS;
    bool first = car_transport_rank(transport) == 0, good = true;
    size_t most = 0;
    require(transport, car_session_open(&session, &config) == CAR_OK, "opening", session.context);
    if (strcmp(model, "mlp") != 0 && rule != CAR_RULE_CDP_V1) { /* what the shared engine holds, the ranks make again */
        config.partition.recompute = (car_recompute_config){.how = CAR_RECOMPUTE_FIRST, .tensors = INT_MAX};
    }
    require(transport, car_partition_create(session.graph, &config.partition, &partition) == CAR_OK, "cutting",
            session.context);
    require(transport, car_plan_create(session.context, partition, &plan_config, &plan) == CAR_OK, "planning",
            session.context);
    require(transport, car_plan_validate(plan, 4) == CAR_OK, "proving the plan", session.context);
    require(transport, car_arena_create(session.context, 0, &arena) == CAR_OK, "arena", session.context);
    car_trainer_config training = config.training;
    training.threads = s->threads;
    training.feed = car_session_feed;
    training.feed_user = &session;
    training.report = keep_report;
    training.report_user = &reported;
    car_snapshots_open(&keeper, s, false, &training);
    require(transport, car_rank_create(plan, session.program, arena, transport, &training, &rank) == CAR_OK, "creating",
            session.context);
    keeper.rank = rank;
    require(transport, train(rank, transport, arena, steps, &most) == CAR_OK, "training", session.context);
    if (first) {
        require(transport, car_snapshot_create(session.program, arena, false, 0, &snapshot) == CAR_OK, "snapshot",
                session.context);
    }
    require(transport, car_rank_gather(rank, snapshot) == CAR_OK, "gathering", session.context);
    if (first) {
        good = same_snapshots(&session, &keeper, rule, steps);
        require(transport, car_trainer_run(session.trainer, steps) == CAR_OK, "shared", session.context);
        double difference = compare(&session, snapshot);
        good = good && (rule == CAR_RULE_DP ? difference <= 1e-5 /* not of NaN */ : difference == 0);
        good = good && (!guarded || same_reports(&session, &reported, rule == CAR_RULE_DP ? 1e-4 : 0));
        if (s->placement == CAR_PLACEMENT_ZERO && rule != CAR_RULE_DP) {
            double all = (double)car_graph_param_bytes(session.graph);
            car_weights_ledger ledger;
            require(transport, car_plan_count_weights(plan, &ledger) == CAR_OK, "counting weights", session.context);
            printf("   at most %.2f of the weights at once; the plan has %.2f\n", (double)most / all,
                   (double)(ledger.lasting + ledger.lasting_tied) / all);
            good = good && has_few_versions(session.partition, car_plan_config_of(plan)->zero_copies, &ledger, most);
        }
        if (s->placement == CAR_PLACEMENT_SHARED && rule != CAR_RULE_DP && s->workers > 2) {
            /* Paced: the workers' peaks do not meet. */
            double peak = (double)car_arena_peak(arena, CAR_MEMORY_ACTIVATIONS);
            double all = (double)s->workers * (double)partition->curve.peak;
            printf("   at most %.2f of all workers' activations at once\n", peak / all);
            good = good && peak < 0.95 * all;
        }
        if (s->placement == CAR_PLACEMENT_REPLICA && rule != CAR_RULE_DP && s->workers > s->ranks) {
            /* Several workers on a rank. No bound: a rank that would stand still goes beyond its budget. */
            car_device_prediction planned;
            require(transport, car_plan_predict_device(plan, 0, 0, &planned) == CAR_OK, "predicting", session.context);
            double peak = (double)car_arena_peak(arena, CAR_MEMORY_ACTIVATIONS);
            printf("   at most %.2f of the planned activations\n", peak / (double)planned.activations);
        }
        printf("%s %s %s %s%s N=%d k=%d R=%d: %.2g\n", good ? "ok" : "FAILED", model, car_rule_text(rule),
               car_placement_text(s->placement), guarded ? ", guarded" : "", s->workers, s->per_worker,
               car_plan_devices(plan), difference);
        fflush(stdout);
    }
    car_snapshot_destroy(snapshot);
    car_snapshots_close(&keeper);
    car_rank_destroy(rank);
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        require(transport, car_arena_live(arena, c) == 0, "memory is left", NULL);
    }
    car_arena_destroy(arena);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    car_session_close(&session);
    return good;
}

int car_placement_ranks(const car_placement_setting *s, car_rule rule) {
    bool square = s->placement == CAR_PLACEMENT_GRID && rule == CAR_RULE_DP;
    return square ? s->workers * s->workers : s->ranks;
}

/* ---- a run that is stopped ------------------------------------------------------------------------------- */

/* Feeds a session, and stops the rank at one of its micro-batches. */
typedef struct stopper {
    car_session *session;
    car_rank *rank;
    int64_t step;
    int worker;
} stopper;

static car_status feed_and_stop(void *user, int64_t step, int worker, car_tape *tape) {
    const stopper *s = user;
    if (step == s->step && worker == s->worker) {
        car_rank_stop(s->rank);
    }
    return car_session_feed(s->session, step, worker, tape);
}

/* The norm of the difference over that of the values, over the first `parts` that two snapshots have; 0 only if all bits are
 * the same. */
static double compare_snapshots(const car_session *session, const car_snapshot *a, const car_snapshot *b, int parts) {
    double difference = 0, square = 0;
    bool same = true;
    for (int p = 0; p < car_graph_param_count(session->graph); p++) {
        size_t count = (size_t)car_shape_elements(car_graph_param(session->graph, p)->shape);
        float *x = malloc(count * sizeof *x), *y = malloc(count * sizeof *y);
        for (int part = 0; part < parts; part++) {
            if (car_snapshot_has(a, (car_snapshot_part)part, p)) {
                car_snapshot_get(a, (car_snapshot_part)part, p, x);
                car_snapshot_get(b, (car_snapshot_part)part, p, y);
                same = same && memcmp(x, y, count * sizeof *x) == 0;
                for (size_t e = 0; e < count; e++) {
                    double d = (double)x[e] - (double)y[e];
                    difference += d * d;
                    square += (double)x[e] * (double)x[e];
                }
            }
        }
        free(y);
        free(x);
    }
    return same ? 0 : fmax(sqrt(difference / square), 1e-30);
}

static bool ended_well(car_session *session, const car_snapshot *snapshot, const reports *reported, car_rule rule,
                       int64_t steps) {
    car_snapshot *expected = NULL;
    bool good = car_trainer_create_snapshot(session->trainer, &expected) == CAR_OK &&
                car_trainer_run(session->trainer, steps) == CAR_OK &&
                car_trainer_take_snapshot(session->trainer, expected) == CAR_OK;
    /* Without the optimizer's state under dp: batch norm amplifies what rounding does to single gradients. */
    int parts = rule == CAR_RULE_DP ? CAR_SNAPSHOT_STATE_0 : CAR_SNAPSHOT_PARTS;
    double difference = good ? compare_snapshots(session, expected, snapshot, parts) : NAN;
    good = good && (rule == CAR_RULE_DP ? difference <= 1e-5 : difference == 0) && reported->count == steps &&
           car_snapshot_get_numbers(snapshot).step == steps;
    if (!good) {
        printf("FAILED after step %lld: %.2g, %lld reports\n", (long long)steps, difference,
               (long long)reported->count);
    }
    car_snapshot_destroy(expected);
    return good;
}

bool car_placement_stop(car_transport *transport, const car_placement_setting *s, const char *model, car_rule rule,
                        int64_t step, int stopper_, bool guarded) {
    car_session_config config = car_placement_configure(s, model, rule, guarded);
    car_session session;
    car_plan_config plan_config = car_placement_plan(s, &config.plan);
    car_plan *plan = NULL;
    car_arena *arena = NULL;
    stopper stop = {.session = &session, .step = step, .worker = stopper_};
    reports reported = {0};
    car_snapshot_keeper keeper;
    car_snapshot *snapshot = NULL;
    bool first = car_transport_rank(transport) == 0, good = true;
    require(transport, car_session_open(&session, &config) == CAR_OK, "opening", session.context);
    require(transport, car_plan_create(session.context, session.partition, &plan_config, &plan) == CAR_OK, "planning",
            session.context);
    require(transport, car_plan_validate(plan, 4) == CAR_OK, "proving the plan", session.context);
    require(transport, car_arena_create(session.context, 0, &arena) == CAR_OK, "arena", session.context);
    car_trainer_config training = config.training;
    training.threads = s->threads;
    training.feed = feed_and_stop;
    training.feed_user = &stop;
    training.report = keep_report;
    training.report_user = &reported;
    car_snapshots_open(&keeper, s, false, &training);
    require(transport, car_rank_create(plan, session.program, arena, transport, &training, &stop.rank) == CAR_OK,
            "creating", session.context);
    keeper.rank = stop.rank;
    require(transport, car_rank_initialize(stop.rank, 7) == CAR_OK, "drawing", session.context);
    require(transport, car_rank_run(stop.rank, 40) == CAR_OK, "training", session.context);
    int64_t steps = car_rank_steps(stop.rank);
    if (first) {
        require(transport, car_rank_create_snapshot(stop.rank, &snapshot) == CAR_OK, "snapshot", session.context);
    }
    require(transport, car_rank_gather(stop.rank, snapshot) == CAR_OK, "gathering", session.context);
    if (first) {
        good = same_snapshots(&session, &keeper, rule, steps) && ended_well(&session, snapshot, &reported, rule, steps);
        printf("%s %s %s %s N=%d k=%d R=%d: stopped in step %lld, ended after %lld\n", good ? "ok" : "FAILED", model,
               car_rule_text(rule), car_placement_text(s->placement), s->workers, s->per_worker, car_plan_devices(plan),
               (long long)step + 1, (long long)steps);
        fflush(stdout);
    }
    car_snapshot_destroy(snapshot);
    car_snapshots_close(&keeper);
    car_rank_destroy(stop.rank);
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        require(transport, car_arena_live(arena, c) == 0, "memory is left", NULL);
    }
    car_arena_destroy(arena);
    car_plan_destroy(plan);
    car_session_close(&session);
    return good;
}
