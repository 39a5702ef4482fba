/* `carousel train` whose ranks are groups of threads of this process. Each has a run of its own, as a process under mpirun
 * would; they meet at a hub, and the first one, in the main thread, speaks for all. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "train.h"

/* A rank besides the first. */
typedef struct member {
    car_train_run run;
    pthread_t thread;
    car_status status;
} member;

bool car_train_has_ranks(const car_train_options *options) {
    car_placement placement = CAR_PLACEMENTS;
    bool known = car_placement_is_known(options->placement, &placement);
    return !known || !car_placement_info_of(placement)->one_process; /* an unknown one is refused later */
}

bool car_train_is_local(const car_train_options *options) {
    return car_train_has_ranks(options) && !car_transport_is_launched();
}

/* As the plan will have it; what does not fit together it will say itself. */
static int count_ranks(const car_train_options *o) {
    car_plan_config config = {.workers = o->workers};
    int64_t ranks = o->plan_devices > 0 ? o->plan_devices : o->workers;
    if (o->plan_devices == 0 && car_rule_is_known(o->rule, &config.rule) &&
        car_placement_is_known(o->placement, &config.placement)) {
        ranks = car_plan_config_devices(&config);
    }
    return ranks <= CAR_TRAIN_LOCAL_RANKS ? (int)ranks : CAR_TRAIN_LOCAL_RANKS + 1;
}

static car_status run_rank(car_train_run *run) {
    car_status status = car_train_set_up(run);
    if (status == CAR_OK) {
        status = car_train_over_ranks(run);
    }
    if (status != CAR_OK) {
        car_hub_give_up(run->hub); /* it may have failed before it joined the others */
    }
    car_train_leave(run, status);
    return status;
}

static void *run_member(void *argument) {
    member *m = argument;
    m->status = run_rank(&m->run);
    if (m->status != CAR_OK && !m->run.transport && m->run.context) { /* nobody else has said it */
        fprintf(stderr, "carousel: rank %d: %s\n", m->run.hub_rank, car_context_error(m->run.context));
    }
    return NULL;
}

/* The first rank's run is the caller's. */
static car_status run_all(car_train_run *first, member *members, int ranks) {
    int started = 1;
    car_status status = CAR_OK;
    for (; started < ranks; started++) {
        member *m = &members[started];
        m->run.options = first->options;
        m->run.options.config_texts = NULL; /* the first one's */
        m->run.options.plan_text = first->options.plan_text ? strdup(first->options.plan_text) : NULL;
        m->run.hub = first->hub;
        m->run.hub_rank = started;
        m->run.addresses = first->addresses;
        if (pthread_create(&m->thread, NULL, run_member, m) != 0) {
            fprintf(stderr, "carousel: only %d of %d ranks could be started as threads\n", started, ranks);
            car_hub_give_up(first->hub);
            status = CAR_ERROR_MEMORY;
            break;
        }
    }
    car_status own = run_rank(first);
    status = status == CAR_OK ? own : status;
    for (int r = 1; r < started; r++) {
        /* A rank waits for all others when it leaves, so none is taken down before they have come to their end. */
        pthread_join(members[r].thread, NULL);
        status = status == CAR_OK ? members[r].status : status;
    }
    return status;
}

static void *tear_down_member(void *argument) {
    member *m = argument;
    car_train_tear_down(&m->run);
    return NULL;
}

/* Closing a transport waits for the other ranks, so they leave at the same time. */
static void tear_down_all(car_train_run *first, member *members, int ranks) {
    for (int r = 1; r < ranks; r++) {
        member *m = &members[r];
        if (m->run.context && pthread_create(&m->thread, NULL, tear_down_member, m) != 0) {
            car_hub_give_up(first->hub);
            tear_down_member(m);
            m->run.context = NULL;
        }
    }
    car_train_tear_down(first);
    for (int r = 1; r < ranks; r++) {
        if (members[r].run.context) {
            pthread_join(members[r].thread, NULL);
        }
    }
}

car_status car_train_locally(car_train_run *first) {
    int ranks = count_ranks(&first->options);
    car_context *context = NULL;
    member *members = NULL;
    car_status status = CAR_OK;
    if (ranks > CAR_TRAIN_LOCAL_RANKS) {
        fprintf(stderr,
                "carousel: --placement %s with %d workers would be more than %d ranks in one process: start it with "
                "mpirun, or 'carousel launch -n RANKS -- train ...'\n",
                first->options.placement, first->options.workers, CAR_TRAIN_LOCAL_RANKS);
        return CAR_ERROR_ARGUMENT;
    }
    CAR_TRY(car_context_create(NULL, &context));
    CAR_TRY(car_context_allocate(context, (size_t)ranks, sizeof *members, &members));
    CAR_TRY(car_hub_create(context, ranks, &first->hub));
    uint64_t addresses = car_available_addresses(); /* an equal share of half of them */
    first->addresses = addresses == UINT64_MAX ? 0 : (size_t)(addresses / 2) / (size_t)ranks;
    status = run_all(first, members, ranks);
    car_train_stop_listening();
    if (status != CAR_OK && !first->transport && first->context && car_context_error(first->context)[0]) {
        car_cli_report(first->context, status);
    }
    car_hub *hub = first->hub;
    tear_down_all(first, members, ranks);
    car_hub_destroy(hub);
done:
    if (context) {
        car_context_release(context, members, members ? (size_t)ranks : 0, sizeof *members);
        car_context_destroy(context);
    }
    return status;
}
