/* What a rank must not take for granted: that a peer's status is sound, that its settings make sense, that there is memory
 * for one more message.
 *
 *   mpirun -n 1 trust       statuses, and settings
 *   mpirun -n 1 trust K     the K-th allocation of the transport fails while messages are under way
 *   mpirun -n 2 trust run   a car_run of two ranks goes on after a file that cannot be read
 *   mpirun -n 1 trust run WHY : -n 1 trust run WHY bad      both ranks fail: "data", the second has none; "clip", it clips */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/run.h"
#include "engine/rank_internal.h"
#include "engine/session.h"
#include "support/allocator.h"

static void require(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "FAILED: %s\n", what);
        exit(1);
    }
}

/* ---- statuses -------------------------------------------------------------------------------- */

typedef struct world {
    car_session session;
    car_plan *plan;
    car_arena *arena;
    car_trainer_config training;
} world;

/* Two workers on one rank. */
static void open_world(world *w) {
    car_session_config config = car_session_config_default("mlp", 2, CAR_RULE_CDP_V1);
    require(car_session_open(&w->session, &config) == CAR_OK, "opening a session");
    car_plan_config plan = config.plan;
    plan.placement = CAR_PLACEMENT_REPLICA;
    plan.ranks = 1;
    require(car_plan_create(w->session.context, w->session.partition, &plan, &w->plan) == CAR_OK, "planning");
    require(car_plan_validate(w->plan, 4) == CAR_OK, "proving the plan");
    require(car_arena_create(w->session.context, 0, &w->arena) == CAR_OK, "an arena");
    w->training = config.training;
    w->training.feed = car_session_feed;
    w->training.feed_user = &w->session;
}

static void close_world(world *w) {
    car_arena_destroy(w->arena);
    car_plan_destroy(w->plan);
    car_session_close(&w->session);
}

static car_rank *create_rank(world *w, car_transport *transport) {
    car_rank *rank = NULL;
    require(car_rank_create(w->plan, w->session.program, w->arena, transport, &w->training, &rank) == CAR_OK,
            "creating a rank");
    return rank;
}

/* What the rank makes of a status of exactly so many bytes, which a sanitizer knows the end of. */
static car_status hear(car_rank *rank, const char *status, size_t bytes) {
    char *copy = malloc(bytes ? bytes : 1);
    require(copy != NULL, "memory");
    memcpy(copy, status, bytes);
    rank->status = CAR_OK;
    car_rank_heard(rank, 0, copy, bytes);
    car_status heard = rank->status;
    rank->status = CAR_OK;
    car_context_clear_error(rank->context);
    free(copy);
    return heard;
}

static void check_statuses(car_transport *transport) {
    world w = {0};
    char status[2 * CAR_STATUS_BYTES] = "";
    open_world(&w);
    car_rank *rank = create_rank(&w, transport);
    size_t bytes = car_rank_tell(rank, status);
    require(hear(rank, status, bytes) == CAR_OK, "a sound status is heard");
    for (size_t shorter = 0; shorter < bytes; shorter++) {
        require(hear(rank, status, shorter) == CAR_ERROR_IO, "a status that is cut off is refused");
    }
    require(hear(rank, status, bytes + 16) == CAR_ERROR_IO, "a status with something behind it is refused");
    for (size_t at = 0; at + sizeof(int32_t) <= bytes; at += sizeof(int32_t)) {
        const int32_t wild[] = {INT32_MAX, INT32_MIN, -1, 1, 170};
        for (size_t v = 0; v < sizeof wild / sizeof wild[0]; v++) {
            char changed[CAR_STATUS_BYTES];
            memcpy(changed, status, bytes);
            memcpy(changed + at, &wild[v], sizeof wild[v]);
            hear(rank, changed, bytes); /* whatever it says, nothing is read beyond it */
        }
    }
    car_rank_destroy(rank);
    close_world(&w);
}

/* ---- settings -------------------------------------------------------------------------------- */

static void check_settings(car_transport *transport) {
    world w = {0};
    car_rank *rank = NULL;
    open_world(&w);
    w.training.snapshot_every = 5;
    require(car_rank_create(w.plan, w.session.program, w.arena, transport, &w.training, &rank) == CAR_ERROR_ARGUMENT,
            "snapshots that nobody takes are refused");
    require(strstr(car_context_error(w.session.context), "snapshots during training") != NULL, "and it says why");
    close_world(&w);
}

/* ---- memory for messages --------------------------------------------------------------------- */

enum { MESSAGES = 60 };

typedef struct post {
    pthread_mutex_t lock;
    int finished;
    bool failed;
} post;

static void on_finished(void *user, car_message *message) {
    post *p = user;
    pthread_mutex_lock(&p->lock);
    p->finished += message != NULL;
    p->failed = p->failed || !message;
    pthread_mutex_unlock(&p->lock);
}
static void on_watch(void *user) {
    (void)user;
}
static bool is_over(post *p) {
    pthread_mutex_lock(&p->lock);
    bool over = p->failed || p->finished == 2 * MESSAGES;
    pthread_mutex_unlock(&p->lock);
    return over;
}

/* Every block comes back with the size that it was given with, whichever allocation failed. */
static int check_exhaustion(long failing) {
    static car_message messages[2 * MESSAGES];
    static float data[2 * MESSAGES];
    car_checking checking = {0};
    car_context_config config = car_context_config_default();
    car_context *context = NULL;
    car_transport *transport = NULL;
    post p = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const car_transport_events events = {.finished = on_finished, .watch = on_watch, .user = &p};
    config.allocator = car_checking_hooks(&checking);
    require(car_context_create(&config, &context) == CAR_OK, "a context");
    require(car_transport_open(context, &transport) == CAR_OK, "opening the transport");
    require(car_transport_prepare(transport, 2 * MESSAGES, 0) == CAR_OK, "preparing it");
    checking.fail_at = checking.calls + failing;
    require(car_transport_begin(transport, &events) == CAR_OK, "beginning");
    for (int m = 0; m < 2 * MESSAGES; m++) { /* first all receives, so that many are under way */
        messages[m] = (car_message){.kind = m < MESSAGES ? CAR_MESSAGE_RECEIVE : CAR_MESSAGE_SEND,
                                    .data = &data[m],
                                    .bytes = sizeof data[m],
                                    .tag = m % MESSAGES,
                                    .due = CAR_MESSAGE_AT_ONCE};
        car_transport_start(transport, &messages[m]);
    }
    while (!is_over(&p)) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    require(p.failed == (checking.failures > 0), "a failed allocation is told");
    car_transport_end(transport, p.failed);
    car_transport_close(transport);
    car_context_destroy(context);
    require(checking.wrong_sizes == 0, "blocks came back with another size");
    require(checking.live_blocks == 0, "blocks did not come back");
    return 0;
}

/* ---- runs ------------------------------------------------------------------------------------- */

static int check_run(const char *why, bool bad) {
    car_run_options options = {.model = "mlp",
                               .shape = {.batch = 4, .image_size = 8, .classes = 3, .width = 16},
                               .placement = "replica",
                               .workers = 2,
                               .threads = 1,
                               .steps = 2};
    bool data = why && strcmp(why, "data") == 0, graph = why && strcmp(why, "graph") == 0;
    car_context *context = NULL;
    car_run *run = NULL;
    options.data = data && bad ? "imagefolder:/nowhere" : NULL;
    options.shape.width = graph && bad ? 24 : 16;
    options.clip_norm = why && !data && !graph && bad ? 1 : 0;
    require(car_context_create(NULL, &context) == CAR_OK, "a context");
    car_status status = car_run_create(context, &options, &run);
    if (why) {
        require(status != CAR_OK && !run, "all ranks fail if one does");
        require(strstr(car_context_error(context), data    ? "/nowhere"
                                                   : graph ? "differs from rank 0 in its graph"
                                                           : "in its set of options") != NULL,
                "and say why");
    } else {
        require(status == CAR_OK, "a run over ranks");
        require(car_run_load(run, "/nowhere") == CAR_ERROR_IO, "all fail to load what is not there");
        require(strstr(car_context_error(context), "/nowhere") != NULL, "and all say why");
        require(car_run_train(run) == CAR_OK && car_run_steps(run) == 2, "the run goes on");
    }
    car_run_destroy(run);
    car_context_destroy(context);
    return 0;
}

int main(int argc, char **argv) {
    car_context *context = NULL;
    car_transport *transport = NULL;
    if (argc > 1 && strcmp(argv[1], "run") == 0) {
        return check_run(argc > 2 ? argv[2] : NULL, argc > 3);
    }
    if (argc > 1) {
        return check_exhaustion(strtol(argv[1], NULL, 10));
    }
    require(car_context_create(NULL, &context) == CAR_OK && car_transport_open(context, &transport) == CAR_OK,
            "joining MPI");
    check_statuses(transport);
    check_settings(transport);
    car_transport_close(transport);
    car_context_destroy(context);
    puts("nothing was taken for granted");
    return 0;
}
