/* `carousel train` over ranks: all have the same options, and the first one speaks for all. They are processes that MPI
 * brings together, or threads of one (train_local.c). */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "carousel/convention.h"
#include "train.h"

/* What each rank tells of itself. */
typedef struct account {
    double memory[CAR_MEMORY_CATEGORIES], activations_mean, extent, rss, rss_end;
    double data_waited, bytes_sent, messages, collectives, statuses, held, snapshot_bytes, most, exposed, waiting,
        tasks;
} account;

bool car_train_is_first(const car_train_run *run) {
    return !run->transport || car_transport_rank(run->transport) == 0;
}

int64_t car_train_steps(const car_train_run *run) {
    return run->rank ? car_rank_steps(run->rank) : car_trainer_steps(run->trainer);
}

car_weights *car_train_weights(car_train_run *run) {
    return run->rank ? run->gathered : car_trainer_weights(run->trainer);
}

car_trainer_times car_train_times(const car_train_run *run) {
    return run->rank ? car_rank_time(run->rank) : car_trainer_time(run->trainer);
}

/* ---- joining --------------------------------------------------------------------------------- */

/* A launcher that started several processes which do not find each other would have each of them train alone, all into
 * the same directory. */
static car_status check_launcher(car_train_run *run, int joined) {
    const char *variable = NULL;
    int64_t started = car_transport_launched_processes(&variable);
    if (started <= 1 || joined > 1) {
        return CAR_OK;
    }
    if (!run->transport) {
        return car_context_fail(run->context, CAR_ERROR_UNSUPPORTED,
                                "this run is one process, and %s says that %lld were started: start it without mpirun "
                                "or srun (in a Slurm job: 'srun -n 1'), or as ranks with --placement replica and "
                                "'srun --mpi=pmix'",
                                variable, (long long)started);
    }
    return car_context_fail(run->context, CAR_ERROR_UNSUPPORTED,
                            "%s says that %lld processes were started, but MPI (%s) sees this one only: they were not "
                            "started by a launcher that this MPI knows. Use its own mpirun, or under Slurm 'srun "
                            "--mpi=pmix'",
                            variable, (long long)started, car_transport_name(run->transport));
}

car_status car_train_join(car_train_run *run) {
    car_train_options *o = &run->options;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int available = cores > 0 && cores < 1024 ? (int)cores : 1;
    bool shared = !car_train_has_ranks(o);
    car_status status = CAR_OK;
    if (shared || run->hub) {
        CAR_TRY(check_launcher(run, 1));
    }
    if (!shared) {
        CAR_TRY(run->hub ? car_hub_join(run->hub, run->context, run->hub_rank, &run->transport)
                         : car_transport_open(run->context, &run->transport));
        if (!run->hub) {
            CAR_TRY(check_launcher(run, car_transport_size(run->transport)));
        }
        int each = available / car_transport_local_size(run->transport);
        available = each > 1 ? each : 1;
        CAR_TRY(car_transport_find_machines(run->context, run->transport, &run->machines));
    }
    o->threads = o->threads ? o->threads : available;
done:
    return status;
}

/* ---- the rank -------------------------------------------------------------------------------- */

static car_status create_snapshot(car_train_run *run) {
    return car_train_is_first(run) ? car_rank_create_snapshot(run->rank, &run->snapshot) : CAR_OK;
}

/* --init: read by the first rank, for all. */
static car_status spread_file(car_train_run *run) {
    car_weights *weights = NULL;
    car_snapshot *snapshot = NULL;
    car_status status = CAR_OK;
    if (car_train_is_first(run)) {
        CAR_TRY(car_snapshot_create(run->program, run->arena, false, 0, &snapshot));
        CAR_TRY(car_weights_create(run->program, run->arena, &weights));
        CAR_TRY(car_weights_initialize(weights, run->options.seed));
        CAR_TRY(car_train_load(run, weights));
        CAR_TRY(car_snapshot_set_weights(snapshot, weights));
    }
    CAR_TRY(car_rank_spread(run->rank, snapshot));
done:
    car_weights_destroy(weights);
    car_snapshot_destroy(snapshot);
    return status;
}

car_status car_train_open_rank(car_train_run *run, const car_trainer_config *trainer) {
    const car_train_options *o = &run->options;
    car_status status = CAR_OK;
    CAR_TRY(car_train_settle(
        run, car_rank_create(run->plan, run->program, run->arena, run->transport, trainer, &run->rank)));
    if (o->resume || o->resume_step != CAR_NONE) {
        CAR_TRY(create_snapshot(run));
        if (car_train_is_first(run)) {
            CAR_TRY(car_train_read_snapshot(run, run->snapshot));
        }
        CAR_TRY(car_rank_spread(run->rank, run->snapshot));
        car_snapshot_destroy(run->snapshot);
        run->snapshot = NULL;
        run->saved_step = car_rank_steps(run->rank);
    } else {
        CAR_TRY(car_rank_initialize(run->rank, o->seed));
        if (o->init) {
            CAR_TRY(spread_file(run));
        }
    }
    run->first_step = car_rank_steps(run->rank);
done:
    return status;
}

void car_train_close_rank(car_train_run *run) {
    size_t accounts = run->accounts ? (size_t)car_transport_size(run->transport) : 0;
    car_context_release(run->context, run->accounts, accounts, sizeof(account));
    car_weights_destroy(run->gathered);
    car_snapshot_destroy(run->snapshot);
    car_rank_destroy(run->rank);
    car_transport_close(run->transport);
}

void car_train_leave(car_train_run *run, car_status status) {
    if (run->hub && !car_context_error(run->context)[0]) {
        return; /* another rank of this process has failed, and says why */
    }
    if (run->transport && status != CAR_OK && !run->settled) {
        bool hopeless = status == CAR_ERROR_NOT_FINITE || status == CAR_ERROR_ARGUMENT;
        char where[4096] = "";
        if (run->rank && !hopeless && !strchr(car_context_error(run->context), '\n')) { /* else it has it already */
            where[0] = '\n';
            where[1] = where[2] = ' ';
            car_rank_explain(run->rank, where + 3, sizeof where - 3);
        }
        fprintf(stderr, "carousel: rank %d: %s: %s%s\n", car_transport_rank(run->transport), car_status_text(status),
                car_context_error(run->context), where);
        car_transport_abort(run->transport, hopeless ? CAR_CLI_FAILED : CAR_CLI_LOST);
    }
}

/* ---- accounts ------------------------------------------------------------------------------- */

double car_train_resident_bytes(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &pages, &resident) != 2) {
        resident = 0;
    }
    if (file) {
        fclose(file);
    }
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static account account_of(const car_train_run *run) {
    struct rusage usage;
    car_rank_traffic traffic = car_rank_get_traffic(run->rank);
    account a = {.activations_mean = car_arena_mean(run->arena, CAR_MEMORY_ACTIVATIONS),
                 .extent = (double)car_arena_extent(run->arena),
                 .rss_end = car_train_resident_bytes(),
                 .data_waited = car_feeder_waited(run->data.feeder),
                 .bytes_sent = (double)traffic.bytes_sent,
                 .messages = (double)traffic.messages,
                 .collectives = (double)traffic.collectives,
                 .statuses = (double)traffic.statuses,
                 .held = (double)traffic.held,
                 .snapshot_bytes = (double)traffic.snapshot_bytes,
                 .most = traffic.max_messages_per_slot,
                 .exposed = traffic.exposed_s,
                 .waiting = car_rank_time(run->rank).waiting,
                 .tasks = car_rank_time(run->rank).tasks};
    memcpy(a.memory, run->peaks, sizeof a.memory);
    getrusage(RUSAGE_SELF, &usage);
    a.rss = (double)usage.ru_maxrss * 1024;
    return a;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

static car_train_peaks peaks_of_process(const car_train_run *run) {
    struct rusage usage;
    car_train_peaks p = {.ranks = 1,
                         .activations_mean = car_arena_mean(run->arena, CAR_MEMORY_ACTIVATIONS),
                         .extent = (double)car_arena_extent(run->arena)};
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        p.largest[c] = (double)car_arena_peak(run->arena, c);
    }
    getrusage(RUSAGE_SELF, &usage);
    p.rss = p.rss_sum = (double)usage.ru_maxrss * 1024;
    p.activations_sum = p.largest[CAR_MEMORY_ACTIVATIONS];
    return p;
}

car_train_peaks car_train_get_peaks(const car_train_run *run) {
    if (!run->accounts) {
        return peaks_of_process(run);
    }
    const account *all = run->accounts;
    car_train_peaks p = {.ranks = car_transport_size(run->transport)};
    for (int r = 0; r < p.ranks; r++) {
        double held = all[r].memory[CAR_MEMORY_ACTIVATIONS];
        p.rank = held > p.largest[CAR_MEMORY_ACTIVATIONS] ? r : p.rank;
        for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
            p.largest[c] = larger(p.largest[c], all[r].memory[c]);
        }
        p.activations_mean = larger(p.activations_mean, all[r].activations_mean);
        p.extent = larger(p.extent, all[r].extent);
        p.rss = larger(p.rss, all[r].rss);
        p.activations_sum += held;
        p.rss_sum += all[r].rss;
    }
    return p;
}

static car_status gather_accounts(car_train_run *run) {
    account own = account_of(run);
    size_t size = (size_t)car_transport_size(run->transport);
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(run->context, size, sizeof own, &run->accounts));
    CAR_TRY(car_transport_all_gather(run->transport, &own, sizeof own, run->accounts));
done:
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

car_status car_train_copy_weights(car_train_run *run, const car_snapshot *snapshot, car_arena *arena,
                                  car_weights **weights) {
    car_status status = CAR_OK;
    if (!*weights) {
        CAR_TRY(car_weights_create(run->program, arena, weights));
    }
    CAR_TRY(car_snapshot_get_weights(snapshot, *weights));
done:
    return status;
}

/* Where an evaluation decides whether the run goes on, ranks wait for it. */
bool car_train_pauses(const car_train_options *o) {
    return o->eval_every > 0 && o->patience > 0;
}

/* What the first rank does on the way while the others wait. */
static car_status evaluate_on_the_way(void *user) {
    car_train_run *run = user;
    car_status status = CAR_OK;
    if (car_train_steps(run) != run->last_evaluated) {
        CAR_TRY(car_train_copy_weights(run, run->snapshot, run->arena, &run->gathered));
        CAR_TRY(car_train_evaluate_now(run));
    }
done:
    return status;
}

/* What the first rank does at the end while the others wait, and hear that it lives. */
static car_status evaluate_and_save(void *user) {
    car_train_run *run = user;
    const car_train_options *o = &run->options;
    bool before = false, saves = o->out && o->keep;
    car_status status = CAR_OK;
    car_train_close_writer(run);
    CAR_TRY(car_train_copy_weights(run, run->snapshot, run->arena, &run->gathered));
    if (!car_train_remember(run, car_train_find_directory(run))) {
        return CAR_OK; /* all ranks end, and then hear why */
    }
    CAR_TRY(car_train_was_over(run, &before));
    /* First what was trained: see train_end.c. */
    car_train_remember(run, before ? CAR_OK : car_train_write_weights(run));
    if (saves && run->saved_step != car_train_steps(run)) {
        car_train_remember(run, car_train_write_snapshot(run, run->snapshot));
    }
    if (!before && !run->interrupted && !run->stopped_early && (o->eval_every || run->evaluates)) {
        CAR_TRY(car_train_evaluate_now(run));
        run->interrupted = !run->evaluated;
    }
done:
    return status;
}

static car_status summarize(void *user) {
    car_train_run *run = user;
    car_train_remember(run, car_train_summarize(run, run->interrupted)); /* the others wait to end with this rank */
    return CAR_OK;
}

/* The state of all ranks, on the first one. */
static car_status gather(car_train_run *run) {
    bool first = car_train_is_first(run);
    car_status status = CAR_OK;
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) { /* of training, before the first rank holds all */
        run->peaks[c] = first && run->peaks[c] > 0 ? run->peaks[c] : (double)car_arena_peak(run->arena, c);
    }
    CAR_TRY(create_snapshot(run));
    CAR_TRY(car_rank_gather(run->rank, run->snapshot));
done:
    return status;
}

/* Whether all ranks end here: the first one has enough, or was told to end meanwhile. */
static car_status agree_to_end(car_train_run *run, bool *out) {
    enum { ENOUGH = 1, TOLD = 2 };
    size_t size = (size_t)car_transport_size(run->transport);
    int own = (run->stopped_early ? ENOUGH : 0) | (car_train_is_interrupted() ? TOLD : 0), *all = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(run->context, size, sizeof *all, &all));
    CAR_TRY(car_transport_all_gather(run->transport, &own, sizeof own, all));
    for (size_t r = 0; r < size; r++) {
        run->stopped_early = run->stopped_early || (all[r] & ENOUGH);
        run->interrupted = run->interrupted || (all[r] & TOLD);
    }
    *out = run->stopped_early || run->interrupted;
done:
    car_context_release(run->context, all, all ? size : 0, sizeof *all);
    return status;
}

static car_status pause_ranks(void *user, bool *ends) {
    car_train_run *run = user;
    car_status status = CAR_OK;
    CAR_TRY(gather(run));
    CAR_TRY(car_rank_attend(run->rank, evaluate_on_the_way, run));
    CAR_TRY(agree_to_end(run, ends));
done:
    car_snapshot_destroy(run->snapshot); /* the next gathering makes one of its own */
    run->snapshot = NULL;
    return status;
}

static car_status end_part(void *user) {
    car_train_enter(user, CAR_TRAIN_SAVING);
    return CAR_OK;
}

/* From the first step to the last, or to where the run is ended. */
static car_status train(car_train_run *run) {
    const car_train_options *o = &run->options;
    const car_rank_loop loop = {.steps = o->steps,
                                .every = car_train_pauses(o) ? o->eval_every : 0,
                                .pause_first = car_train_begins_at_evaluation(run),
                                .pause = pause_ranks,
                                .begin = car_train_begin_part,
                                .end = end_part,
                                .user = run};
    car_status status = car_rank_drive(run->rank, &loop);
    run->interrupted = run->interrupted || (car_rank_steps(run->rank) < o->steps && !run->stopped_early);
    return status;
}

car_status car_train_over_ranks(car_train_run *run) {
    car_status status = CAR_OK;
    if (car_train_is_first(run)) {
        car_train_show_model(run);
        car_train_show_ranks(run);
    }
    CAR_TRY(train(run));
    CAR_TRY(gather(run));
    CAR_TRY(car_rank_attend(run->rank, evaluate_and_save, run));
    CAR_TRY(gather_accounts(run));
    CAR_TRY(car_rank_attend(run->rank, summarize, run));
    if (!car_train_is_first(run)) {
        car_train_show_problems(run); /* of what it has read itself */
    }
    CAR_TRY(car_train_write_records(run));
    CAR_TRY(car_train_settle(run, car_train_conclude(run, CAR_OK)));
done:
    return status;
}

/* ---- the summary ----------------------------------------------------------------------------- */

static void add_account(cJSON *list, const account *a, double steps) {
    cJSON *object = cJSON_CreateObject();
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        char name[64];
        snprintf(name, sizeof name, "%s_peak_bytes", car_memory_text(c));
        cJSON_AddNumberToObject(object, name, a->memory[c]);
    }
    cJSON_AddNumberToObject(object, "activations_mean_bytes", a->activations_mean);
    cJSON_AddNumberToObject(object, "rss_peak_bytes", a->rss);
    cJSON_AddNumberToObject(object, "rss_bytes", a->rss_end);
    cJSON_AddNumberToObject(object, "bytes_sent", a->bytes_sent);
    cJSON_AddNumberToObject(object, "messages", a->messages);
    cJSON_AddNumberToObject(object, "statuses", a->statuses);
    cJSON_AddNumberToObject(object, "held_messages", a->held);
    cJSON_AddNumberToObject(object, "snapshot_bytes_sent", a->snapshot_bytes);
    cJSON_AddNumberToObject(object, "exposed_ms_per_step", a->exposed / steps * 1e3);
    cJSON_AddNumberToObject(object, "compute_s", a->tasks);
    cJSON_AddNumberToObject(object, "data_waited_s", a->data_waited);
    cJSON_AddItemToArray(list, object);
}

static void add_comm(cJSON *json, const account *all, int count, double steps) {
    account sum = {0};
    for (int r = 0; r < count; r++) {
        sum.bytes_sent += all[r].bytes_sent;
        sum.messages += all[r].messages;
        sum.collectives = all[r].collectives > sum.collectives ? all[r].collectives : sum.collectives;
        sum.most = all[r].most > sum.most ? all[r].most : sum.most;
        sum.exposed += all[r].exposed / count;
    }
    cJSON *comm = cJSON_AddObjectToObject(json, "comm");
    cJSON_AddNumberToObject(comm, "bytes_sent", sum.bytes_sent);
    cJSON_AddNumberToObject(comm, "messages", sum.messages);
    cJSON_AddNumberToObject(comm, "max_messages_per_slot", sum.most);
    cJSON_AddNumberToObject(comm, "collectives", sum.collectives);
    cJSON_AddNumberToObject(comm, "exposed_ms_per_step", sum.exposed / steps * 1e3);
}

void car_train_add_traffic(car_train_run *run, cJSON *json) {
    const account none = {0};
    double steps = (double)(car_train_steps(run) - run->first_step);
    steps = steps > 0 ? steps : 1;
    if (!run->accounts) {
        add_comm(json, &none, 1, steps);
        return;
    }
    int size = car_transport_size(run->transport);
    const account *all = run->accounts;
    add_comm(json, all, size, steps);
    cJSON_AddStringToObject(json, "transport", car_transport_name(run->transport));
    cJSON *ranks = cJSON_AddArrayToObject(json, "ranks");
    for (int r = 0; r < size; r++) {
        add_account(ranks, &all[r], steps);
    }
}
