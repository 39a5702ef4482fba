/* Creating and running a rank. */
#include "carousel/rank.h"

#include <limits.h>
#include <string.h>

#include "engine/rank_internal.h"

/* ---- creating -------------------------------------------------------------------------------- */

car_status car_rank_check_size(const car_plan *plan, const car_transport *transport) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), transport);
    const car_plan_config *p = car_plan_config_of(plan);
    int needed = car_plan_ranks(plan), size = car_transport_size(transport);
    if (size != needed) {
        return car_context_fail(
            car_plan_context(plan), CAR_ERROR_ARGUMENT,
            "placement %s with %d workers and rule %s needs %d ranks, but there are %d: use mpirun -n %d",
            car_placement_text(p->placement), p->workers, car_rule_text(p->rule), needed, size, needed);
    }
    return CAR_OK;
}

static car_status check(const car_plan *plan, const car_program *program, const car_transport *transport,
                        const car_trainer_config *config) {
    car_context *context = car_plan_context(plan);
    const car_partition *partition = car_plan_partition(plan);
    if (partition->graph != car_program_graph(program)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "the plan and the program were made for different graphs");
    }
    if (!car_plan_is_proven(plan)) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "the plan has not been proven: call car_plan_prove or car_plan_validate before executing it");
    }
    bool alone = car_plan_ranks(plan) == 1;
    bool takes =
        config->on_snapshot || car_transport_rank(transport) > 0 || config->snapshot_every + config->weights_every == 0;
    if (config->snapshot_every < 0 || config->weights_every < 0 || !takes) {
        return car_context_fail(
            context, CAR_ERROR_ARGUMENT,
            "snapshots during training need an on_snapshot function and intervals that are not negative");
    }
    if (!alone && partition->bundle_count - partition->stage_count > 4) {
        return car_context_fail(context, CAR_ERROR_UNSUPPORTED,
                                "ranks support at most 4 tied parameters, and this model has more");
    }
    for (int b = 0; !alone && b < partition->bundle_count; b++) {
        if (partition->bundles[b].bytes / sizeof(float) > INT_MAX) {
            return car_context_fail(
                context, CAR_ERROR_UNSUPPORTED,
                "a stage has %zu bytes of weights, but a message holds at most 8 GiB; use more stages",
                partition->bundles[b].bytes);
        }
    }
    if (config->threads < 1 || config->threads > 1024 || !config->feed) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a rank needs 1 to 1024 threads and a feed");
    }
    return CAR_OK;
}

/* Finds the stages that this rank computes, which follow each other, and their operations. */
static car_status create_range(car_rank *rank) {
    const car_stage *stages = rank->partition->stages;
    const car_recompute *recompute = rank->partition->recompute;
    car_status status = CAR_OK;
    while (!car_usage_has_stage(rank->usage, rank->first_stage)) {
        rank->first_stage++;
    }
    rank->end_stage = rank->first_stage + 1;
    while (rank->end_stage < rank->stages && car_usage_has_stage(rank->usage, rank->end_stage)) {
        rank->end_stage++;
    }
    rank->first_op = stages[rank->first_stage].first;
    rank->end_op = stages[rank->end_stage - 1].end;
    rank->feeds = true;
    if (rank->end_stage - rank->first_stage == rank->stages) {
        return recompute ? car_graph_range_create(rank->graph, 0, rank->end_op, recompute, &rank->whole) : CAR_OK;
    }
    CAR_TRY(car_graph_range_create(rank->graph, rank->first_op, rank->end_op, recompute, &rank->range));
    rank->feeds = car_graph_range_reads_inputs(rank->graph, rank->range);
    size_t bytes = car_tape_range_bytes(rank->program, rank->range, false);
    if (bytes != stages[rank->first_stage].boundary_bytes) {
        status = car_context_fail(rank->context, CAR_ERROR_UNSUPPORTED,
                                  "the activations before stage %d take %zu bytes in this machine's layout, but %zu in "
                                  "the plan: over ranks, numbers of channels must be multiples of 16",
                                  rank->first_stage, bytes, stages[rank->first_stage].boundary_bytes);
    }
done:
    return status;
}

/* Creates a tape for each micro-batch that can be alive on this rank at once. */
static car_status create_tapes(car_rank *rank) {
    car_status status = CAR_OK;
    rank->tape_count = car_usage_tapes(rank->usage);
    CAR_TRY(car_context_allocate(rank->context, (size_t)rank->tape_count, sizeof(car_tape *), &rank->tapes));
    for (int t = 0; t < rank->tape_count; t++) {
        if (rank->range || car_rank_has(rank, 0, t, 0)) {
            CAR_TRY(car_tape_create(rank->program, rank->arena, &rank->tapes[t]));
            rank->tapes[t]->range = rank->range ? rank->range : rank->whole;
            car_tape_defer_loss(rank->tapes[t]);
        }
    }
done:
    return status;
}

/* The scratch that the derived weights of any operation here need. A rank that is alone keeps derived weights with the
 * weights. */
static size_t derived_bytes(const car_rank *rank) {
    size_t most = 0;
    for (int l = rank->first_op; !rank->alone && l < rank->end_op; l++) {
        size_t bytes = car_program_derived_bytes(rank->program, l);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static car_status create_threads(car_rank *rank) {
    size_t uses = (size_t)car_graph_use_count(rank->graph);
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(rank->context, (size_t)rank->config.threads, sizeof *rank->thread, &rank->thread));
    for (int p = 0; p < rank->config.threads; p++) {
        car_rank_thread *thread = &rank->thread[p];
        void *addend = NULL;
        thread->rank = rank;
        thread->track = car_recorder_track(rank->config.recorder, p);
        thread->gradients.program = rank->program;
        CAR_TRY(car_weights_open_view(rank->program, rank->arena, &thread->view));
        CAR_TRY(car_context_allocate(rank->context, uses, sizeof(void *), &thread->gradients.use));
        CAR_TRY(car_lane_create(rank->program, rank->arena, &thread->lane));
        CAR_TRY(car_arena_allocate(rank->arena, CAR_MEMORY_WORKSPACE,
                                   car_engine_addend_bytes(rank->program, rank->first_op, rank->end_op), &addend));
        thread->addend = addend;
        CAR_TRY(car_arena_allocate(rank->arena, CAR_MEMORY_WORKSPACE, derived_bytes(rank), &thread->derived));
    }
done:
    return status;
}

static int highest_tag(const car_rank *rank) {
    return CAR_CARGOS * (2 + 2 * (rank->bundles + rank->bundles * (rank->batches + 1)));
}

/* Where micro-batches are spaced, the ranks of a machine need their activations one after another. So each rank returns
 * free memory to the system, in pieces of this size. With huge pages this takes 0.08 ms for each MB that is freed and
 * used again, with small pages 0.8 ms. */
static const size_t returned_piece = (size_t)1 << 21;

static car_status create_contents(car_rank *rank) {
    int group = car_plan_collective_group(rank->plan, rank->device);
    car_status status = CAR_OK;
    if (rank->spaced && car_transport_local_size(rank->transport) > 1) {
        car_arena_return_pages(rank->arena, returned_piece);
    }
    /* All ranks have to call this, so it comes before calls that may fail on one rank only. */
    CAR_TRY(car_transport_prepare(rank->transport, highest_tag(rank), group));
    CAR_TRY(car_context_allocate(rank->context, (size_t)rank->batches, sizeof *rank->computed, &rank->computed));
    CAR_TRY(car_usage_create(rank->plan, rank->device, &rank->usage));
    CAR_TRY(create_range(rank));
    CAR_TRY(car_edges_create(rank->context, &rank->edges));
    CAR_TRY(car_rank_create_steps(rank));
    CAR_TRY(car_rank_create_store(rank));
    CAR_TRY(create_tapes(rank));
    CAR_TRY(create_threads(rank));
    CAR_TRY(car_weights_open_view(rank->program, rank->arena, &rank->newest_weights));
    CAR_TRY(car_weights_open_view(rank->program, rank->arena, &rank->previous_weights));
    CAR_TRY(car_context_allocate(rank->context, (size_t)rank->devices, sizeof *rank->sightings, &rank->sightings));
    CAR_TRY(car_rank_create_pacing(rank));
    CAR_TRY(car_rank_create_links(rank));
    CAR_TRY(car_rank_create_snapshots(rank));
done:
    return status;
}

car_status car_rank_create(const car_plan *plan, const car_program *program, car_arena *arena, car_transport *transport,
                           const car_trainer_config *config, car_rank **out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), program);
    CAR_REQUIRE(car_plan_context(plan), arena);
    CAR_REQUIRE(car_plan_context(plan), transport);
    CAR_REQUIRE(car_plan_context(plan), config);
    CAR_REQUIRE(car_plan_context(plan), out);
    car_context *context = car_plan_context(plan);
    car_rank *rank = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_rank_check_size(plan, transport));
    CAR_TRY(check(plan, program, transport, config));
    CAR_TRY(car_context_allocate(context, 1, sizeof *rank, &rank));
    rank->context = context;
    rank->plan = plan;
    rank->partition = car_plan_partition(plan);
    rank->program = program;
    rank->graph = car_program_graph(program);
    rank->arena = arena;
    rank->transport = transport;
    rank->config = *config;
    rank->config.watchdog_seconds = config->watchdog_seconds > 0 ? config->watchdog_seconds : 30;
    rank->placement = car_placement_info_of(car_plan_config_of(plan)->placement);
    rank->device = car_transport_rank(transport);
    rank->devices = car_plan_ranks(plan);
    rank->alone = rank->devices == 1;
    rank->last_norm = __builtin_nan("");
    for (int b = 0; b < rank->partition->stage_count; b++) {
        rank->updates_per_step += rank->partition->bundles[b].bytes > 0;
    }
    rank->workers = car_plan_config_of(plan)->workers;
    rank->batches = car_plan_micro_batches(plan);
    rank->stages = rank->partition->stage_count;
    rank->bundles = rank->partition->bundle_count;
    rank->per_worker = car_plan_per_worker(plan);
    rank->spaced = car_plan_is_spaced(plan);
    rank->chains = car_plan_config_of(plan)->zero_copies > 1;
    status = car_clock_create_lock(context, &rank->lock, &rank->changed);
    if (status != CAR_OK) {
        car_context_release(context, rank, 1, sizeof *rank);
        return status;
    }
    CAR_TRY(create_contents(rank));
    *out = rank;
    rank = NULL;
done:
    car_rank_destroy(rank);
    return status;
}

static void destroy_threads(car_rank *rank) {
    size_t uses = (size_t)car_graph_use_count(rank->graph);
    for (int p = 0; rank->thread && p < rank->config.threads; p++) {
        car_rank_thread *thread = &rank->thread[p];
        car_arena_release(rank->arena, thread->derived);
        car_arena_release(rank->arena, thread->addend);
        car_lane_destroy(thread->lane);
        car_context_release(rank->context, thread->gradients.use, uses, sizeof(void *));
        car_weights_close_view(&thread->view);
    }
    car_context_release(rank->context, rank->thread, (size_t)rank->config.threads, sizeof *rank->thread);
}

void car_rank_destroy(car_rank *rank) {
    if (!rank) {
        return;
    }
    car_transport_forget(rank->transport);
    car_rank_forget_entries(rank);
    car_rank_forget_parcels(rank);
    car_rank_destroy_snapshots(rank);
    car_rank_destroy_pacing(rank);
    car_context_release(rank->context, rank->sightings, (size_t)rank->devices, sizeof *rank->sightings);
    car_weights_close_view(&rank->previous_weights);
    car_weights_close_view(&rank->newest_weights);
    destroy_threads(rank);
    for (int t = 0; rank->tapes && t < rank->tape_count; t++) {
        car_tape_destroy(rank->tapes[t]);
    }
    car_context_release(rank->context, rank->tapes, (size_t)rank->tape_count, sizeof(car_tape *));
    car_rank_destroy_store(rank);
    car_rank_destroy_steps(rank);
    car_graph_range_destroy(rank->graph, rank->whole);
    car_graph_range_destroy(rank->graph, rank->range);
    car_context_release(rank->context, rank->computed, (size_t)rank->batches, sizeof *rank->computed);
    car_task_list_release(rank->plan, &rank->list);
    car_use_list_release(rank->plan, &rank->uses);
    car_edges_destroy(rank->edges);
    car_usage_destroy(rank->usage);
    pthread_cond_destroy(&rank->changed);
    pthread_mutex_destroy(&rank->lock);
    car_context_release(rank->context, rank, 1, sizeof *rank);
}

/* ---- running --------------------------------------------------------------------------------- */

static car_status start_threads(car_rank *rank) {
    for (int p = 0; p < rank->config.threads; p++) {
        car_rank_thread *thread = &rank->thread[p];
        thread->started = pthread_create(&thread->handle, NULL, car_rank_thread_run, thread) == 0;
        if (!thread->started && p == 0) {
            return car_context_fail(rank->context, CAR_ERROR_MEMORY, "could not start a thread");
        }
        if (!thread->started) { /* the result is the same with fewer threads */
            car_context_log(rank->context, CAR_LOG_WARNING, "only %d of %d threads could be started", p,
                            rank->config.threads);
            break;
        }
    }
    if (rank->alone) {
        return CAR_OK;
    }
    car_rank_thread *carrier = &rank->carrier; /* if it cannot be started, the compute threads handle messages */
    *carrier = (car_rank_thread){.rank = rank, .carries = true};
    carrier->track = car_recorder_track(rank->config.recorder, rank->config.threads);
    carrier->started = pthread_create(&carrier->handle, NULL, car_rank_thread_run, carrier) == 0;
    return CAR_OK;
}

static void join_threads(car_rank *rank) {
    double waiting = 0;
    for (int p = 0; p < rank->config.threads; p++) {
        car_rank_thread *thread = &rank->thread[p];
        if (thread->started) {
            pthread_join(thread->handle, NULL);
            thread->started = false;
        }
        rank->times.tasks += thread->tasks;
        rank->times.waiting += thread->waiting;
        rank->times.choosing += thread->choosing;
        waiting += thread->waiting;
        thread->tasks = thread->waiting = thread->choosing = thread->waited = 0;
    }
    if (rank->carrier.started) {
        pthread_join(rank->carrier.handle, NULL);
        rank->carrier.started = false;
    }
    rank->exposed += waiting / rank->config.threads;
}

static void rewind_tasks(car_rank *rank, int64_t steps) {
    rank->limit = rank->planned = steps - rank->first_step;
    car_usage_set_steps(rank->usage, rank->planned);
    rank->window = rank->windows_used = rank->steps_used = 0;
    rank->windows = car_plan_windows(rank->plan, rank->planned);
    rank->asked = rank->frozen = rank->shortened = false;
    rank->released = rank->device == 0;
    rank->newest_begun = 0;
    rank->ended = rank->begun = false;
    rank->told = 0;
    rank->step_begun = CAR_NONE;
    rank->saturated = false;
    rank->computing = 0;
    rank->run = car_transport_loops(rank->transport);
    rank->send_slot = INT64_MIN;
    rank->progressed = rank->watched = car_clock_seconds();
    car_rank_rewind_pacing(rank);
    car_rank_rewind_steps(rank);
    car_rank_rewind_snapshots(rank);
    car_rank_be_patient(rank);
}

/* Called when this rank's tasks are done. It stays in the loop until all losses and norms are here and rank 0 will ask
 * nothing more. */
static car_status await_notes(car_rank *rank) {
    car_status status = car_rank_release(rank);
    bool all = car_rank_knows_all(rank);
    while (status == CAR_OK && rank->status == CAR_OK && !(all && rank->released)) {
        pthread_cond_wait(&rank->changed, &rank->lock);
        all = car_rank_knows_all(rank);
    }
    return status == CAR_OK ? rank->status : status;
}

/* Ends the transport's loop. This waits for the other ranks, and fails if one of them is lost meanwhile. */
static car_status end_loop(car_rank *rank, car_status status) {
    pthread_mutex_lock(&rank->lock);
    rank->ended = true;
    status = status == CAR_OK ? rank->status : status;
    if (status == CAR_OK && !rank->aside) {
        status = await_notes(rank);
    }
    pthread_mutex_unlock(&rank->lock);
    car_transport_end(rank->transport, status != CAR_OK);
    pthread_mutex_lock(&rank->lock);
    status = status == CAR_OK ? rank->status : status;
    rank->status = status;
    pthread_mutex_unlock(&rank->lock);
    return status;
}

void car_rank_fail(car_rank *rank, car_status status) {
    if (status == CAR_OK) {
        return;
    }
    if (rank->status == CAR_OK) {
        rank->status = status;
        car_context_publish_error(rank->context); /* hands this thread's error to the thread that called car_rank_run */
    }
    pthread_cond_broadcast(&rank->changed);
    car_transport_give_up(rank->transport, status);
}

static car_transport_events events_of(car_rank *rank) {
    return (car_transport_events){.finished = car_rank_message_finished,
                                  .watch = car_rank_watch,
                                  .urgent = car_rank_is_urgent,
                                  .tell = car_rank_tell,
                                  .heard = car_rank_heard,
                                  .beat = car_rank_hear_beat,
                                  .noted = car_rank_hear_note,
                                  .user = rank};
}

void car_rank_clear_tapes(car_rank *rank) {
    for (int t = 0; t < rank->tape_count; t++) {
        if (rank->tapes[t]) {
            car_tape_begin(rank->tapes[t], 0, true); /* frees the activations that it holds */
        }
    }
}

/* After an early end: drops what was begun of the steps that are not made. */
static void drop_steps(car_rank *rank) {
    car_rank_forget_entries(rank);
    car_rank_clear_tapes(rank);
    for (int b = 0; b < rank->bundles; b++) {
        car_rank_drop_sums(rank, b);
    }
}

/* Called when the run is over and the cycle is drained: counts its steps. */
static void count_steps(car_rank *rank) {
    if (rank->shortened) {
        drop_steps(rank);
    }
    rank->newest = rank->limit;
    rank->last_norm = car_rank_norm_after(rank, rank->limit);
    rank->updates = car_rank_updates_after(rank, rank->limit);
    rank->first_step += rank->limit;
}

car_status car_rank_run(car_rank *rank, int64_t steps) {
    CAR_REQUIRE(NULL, rank);
    const car_transport_events events = events_of(rank);
    double start = car_clock_seconds();
    car_status status = rank->status;
    if (status != CAR_OK || steps <= rank->first_step) {
        return status;
    }
    CAR_TRY(car_rank_go_on(rank));
    rewind_tasks(rank, steps);
    CAR_TRY(car_transport_begin(rank->transport, &events));
    status = start_threads(rank);
    join_threads(rank);
    status = end_loop(rank, status);
    if (status != CAR_OK && rank->alone) {
        rank->first_step += car_rank_reported(rank); /* these steps are complete */
    }
    CAR_TRY(status);
    count_steps(rank);
done:
    rank->times.wall += car_clock_seconds() - start;
    return status;
}

car_status car_rank_attend(car_rank *rank, car_rank_work work, void *user) {
    CAR_REQUIRE(NULL, rank);
    CAR_REQUIRE(rank->context, work);
    const car_transport_events events = events_of(rank);
    car_status status = rank->status;
    CAR_TRY(status);
    pthread_mutex_lock(&rank->lock);
    rank->aside =
        rank->device == 0 ? "an evaluation, a checkpoint or the summary" : "rank 0's evaluation, checkpoint or summary";
    car_rank_be_patient(rank);
    pthread_mutex_unlock(&rank->lock);
    CAR_TRY(car_transport_begin(rank->transport, &events));
    status = end_loop(rank, rank->device == 0 ? work(user) : CAR_OK);
    rank->aside = NULL;
done:
    return status;
}

void car_rank_stop(car_rank *rank) {
    if (rank) {
        atomic_store(&rank->stop, true);
    }
}

int64_t car_rank_steps(const car_rank *rank) {
    return rank ? rank->first_step : 0;
}

car_optimizer *car_rank_optimizer(car_rank *rank) {
    return rank ? rank->optimizer : NULL;
}

car_trainer_times car_rank_time(const car_rank *rank) {
    return rank ? rank->times : (car_trainer_times){0};
}

car_rank_traffic car_rank_get_traffic(const car_rank *rank) {
    if (!rank) {
        return (car_rank_traffic){0};
    }
    car_traffic traffic = car_transport_traffic(rank->transport);
    return (car_rank_traffic){.bytes_sent = traffic.bytes_sent,
                              .messages = traffic.messages,
                              .collectives = traffic.collectives,
                              .statuses = traffic.statuses,
                              .held = traffic.held,
                              .snapshot_bytes = traffic.snapshot_bytes,
                              .max_messages_per_slot = rank->most_sends,
                              .exposed_s = rank->exposed};
}
