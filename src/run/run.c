/* Creates and destroys a run. */
#include "carousel/run.h"

#include <stdio.h>
#include <unistd.h>

#include "carousel/predict.h"
#include "run/internal.h"

/* ---- creating -------------------------------------------------------------------------------- */

static car_status create_members(car_run *run, int count) {
    car_status status = CAR_OK;
    run->member_count = count;
    CAR_TRY(car_context_allocate(run->context, (size_t)count, sizeof *run->members, &run->members));
    for (int m = 0; m < count; m++) {
        run->members[m] = (car_member){.run = run, .index = m, .gathered_step = CAR_NONE};
    }
done:
    return status;
}

/* Opens the transport to the other processes. */
static car_status open_transport(car_run *run) {
    car_status status = CAR_OK;
    run->launched = true;
    CAR_TRY(create_members(run, 1));
    CAR_TRY(car_transport_open(run->context, &run->members[0].transport));
    CAR_TRY(car_transport_find_machines(run->context, run->members[0].transport, &run->machines));
done:
    return status;
}

/* If a launcher started several processes that do not find each other, each would train alone, all into the same
 * directory. Fails instead. */
static car_status check_launcher(const car_run *run) {
    const char *variable = NULL;
    int64_t started = car_transport_launched_processes(&variable);
    if (started <= 1 || (run->launched && car_transport_size(run->members[0].transport) > 1)) {
        return CAR_OK;
    }
    if (!run->launched) {
        return car_context_fail(
            run->context, CAR_ERROR_UNSUPPORTED,
            "this run uses one process, but %s says that %lld were started: start it without mpirun or srun (in a "
            "Slurm job: with 'srun -n 1'), or run it over ranks with %s replica and 'srun --mpi=pmix'",
            variable, (long long)started, car_run_name(&run->options, "placement").text);
    }
    return car_context_fail(
        run->context, CAR_ERROR_UNSUPPORTED,
        "%s says that %lld processes were started, but MPI (%s) only sees this one: it does not know the launcher that "
        "started them. Use the mpirun of this MPI, or under Slurm 'srun --mpi=pmix'",
        variable, (long long)started, car_transport_name(run->members[0].transport));
}

/* Ranks are threads of this process. If addresses are limited (ulimit -v), each rank may reserve an equal share of half
 * of them. */
static car_status create_hub(car_run *run) {
    uint64_t addresses = car_available_addresses();
    const car_run_options *o = &run->options;
    car_status status = CAR_OK;
    if (car_run_has_ranks(run) && run->devices > o->most_ranks) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "%s %s with %d workers needs more than %d ranks, which is too many for one process: "
                                "start it with mpirun, or with 'carousel launch -n RANKS -- train ...'",
                                car_run_name(o, "placement").text, o->placement, o->workers, o->most_ranks);
    }
    CAR_TRY(create_members(run, car_run_has_ranks(run) ? (int)run->devices : 1));
    if (run->member_count > 1 && addresses != UINT64_MAX) {
        run->addresses = (size_t)(addresses / 2) / (size_t)run->member_count;
    }
    run->machines.count = 1;
    run->machines.memory = (size_t)car_available_physical();
    CAR_TRY(car_hub_create(run->context, run->member_count, &run->hub));
done:
    return status;
}

/* Connects the ranks: the launcher's processes, or threads of this process. */
static car_status join(car_run *run) {
    bool ranks = car_run_has_ranks(run) && car_transport_is_launched();
    car_status status = CAR_OK;
    CAR_TRY(ranks ? open_transport(run) : create_hub(run));
    CAR_TRY(check_launcher(run));
    if (ranks && car_placement_info_of(run->plan_config.placement)->fewer_ranks) {
        run->plan_config.ranks = car_transport_size(run->members[0].transport);
    }
done:
    return status;
}

/* Called if this process's options are wrong. Other processes may have correct ones and wait for this one: tells them,
 * so that they fail too. */
static car_status refuse(car_run *run, car_status why) {
    const char *name = run->options.placement;
    car_placement placement;
    bool ranks = name && car_placement_find(run->context, name, &placement) == CAR_OK &&
                 !car_placement_info_of(placement)->one_process;
    if (ranks && car_transport_is_launched() && open_transport(run) == CAR_OK) {
        return car_member_settle(&run->members[0], why);
    }
    return why;
}

static void choose_threads(car_run *run) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int sharing = run->launched ? car_transport_local_size(run->members[0].transport) : run->member_count;
    int each = cores > 0 && cores <= 1024 ? (int)cores / sharing : 1;
    run->training.threads = run->options.threads ? run->options.threads : each > 1 ? each : 1;
    run->plan_config.threads = run->training.threads;
}

static car_status build_model(car_run *run) {
    const car_run_options *o = &run->options;
    const car_model_info *known = o->model ? car_model_find(o->model) : NULL;
    car_status status = CAR_OK;
    if (known && known->on_paper) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "model %s can only be planned (carousel plan), not trained; 'carousel train --help' "
                                "lists the models that can be trained",
                                o->model);
    }
    CAR_TRY(car_run_check_tasks(run));
    run->graph = o->graph;
    if (!run->graph) {
        CAR_TRY(car_run_find_sizes(run));
        CAR_TRY(car_model_build(run->context, o->model, &o->shape, &run->own_graph));
        run->graph = run->own_graph;
    }
    if (car_graph_loss(run->graph) == CAR_NONE) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "options.graph is not finished: call car_graph_finish first, and check its status");
    }
    if (o->stages > car_graph_op_count(run->graph) && o->stages > o->workers) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "%s is %d, but the graph has only %d operations: use fewer stages",
                                car_run_name(o, "stages").text, o->stages, car_graph_op_count(run->graph));
    }
    CAR_TRY(car_optimizer_check(&run->training.optimizer, run->graph));
done:
    return status;
}

/* Chooses the mapping over ranks, unless the options give one. */
static car_status choose_mapping(car_run *run) {
    car_transport *transport = run->members[0].transport;
    if (!run->launched || !run->chooses_mapping) {
        return CAR_OK;
    }
    run->machines.optimizer_states = car_optimizer_config_states(&run->training.optimizer);
    return car_plan_choose_mapping_over(run->context, run->partition, transport, &run->machines, &run->plan_config,
                                        &run->choice, &run->compared);
}

/* Recomputes as many activations as needed to keep the prediction below the limit. */
static car_status cut_within(car_run *run, car_partition_config *cut) {
    const car_run_options *o = &run->options;
    char message[CAR_ERROR_BYTES];
    car_prediction least;
    car_partition_destroy(run->partition);
    run->partition = NULL;
    car_status status = car_plan_cut_within(run->graph, &run->plan_config, &run->training.optimizer, o->memory_limit,
                                            cut, &least, &run->partition);
    if (status != CAR_ERROR_MEMORY && status != CAR_ERROR_ARGUMENT) {
        return status;
    }
    snprintf(message, sizeof message, "%s", car_context_error(run->context));
    car_context_clear_error(run->context);
    return car_context_fail(run->context, status, "%s %s", car_run_name(o, "memory_limit").text, message);
}

/* A device's memory depends on which workers it has, so the mapping is chosen before the memory limit is applied. */
static car_status cut_graph(car_run *run) {
    const car_run_options *o = &run->options;
    car_partition_config cut = {.stages = o->stages, .recompute = o->recompute};
    car_status status = CAR_OK;
    CAR_TRY(car_partition_create(run->graph, &cut, &run->partition));
    CAR_TRY(choose_mapping(run));
    if (o->memory_limit > 0) {
        CAR_TRY(cut_within(run, &cut));
    } else if (cut.recompute.how == CAR_RECOMPUTE_AUTO && !run->partition->recompute && car_run_is_first(run)) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "%s auto: this model has no activations that are cheap to recompute, so all of them are held",
                        car_run_name(o, "recompute").text);
    }
    run->recompute = cut.recompute;
done:
    return status;
}

/* Reads the options' plan, or builds the one of the rule. A given plan that is its rule's own is built again too, for
 * this number of threads. */
static car_status make_plan(car_run *run) {
    const char *text = run->options.plan;
    car_status status = CAR_OK;
    if (text) {
        CAR_TRY(car_plan_read(run->context, run->partition, run->options.plan_name, text, &run->plan));
    }
    if (!text || run->plan_config.rule != CAR_RULE_CUSTOM) {
        car_plan_destroy(run->plan);
        run->plan = NULL;
        CAR_TRY(car_plan_create(run->context, run->partition, &run->plan_config, &run->plan));
    }
    if (text && car_plan_devices(run->plan) != run->devices) {
        status = car_context_fail(run->context, CAR_ERROR_ARGUMENT, "%s is for %lld ranks, but there are %d",
                                  run->options.plan_name, (long long)run->devices, car_plan_devices(run->plan));
    }
done:
    return status;
}

static car_status build_plan(car_run *run) {
    car_proof proof;
    car_status status = CAR_OK;
    CAR_TRY(cut_graph(run));
    CAR_TRY(make_plan(run));
    if (car_run_is_first(run)) {
        CAR_TRY(car_plan_prove(run->plan, &proof));
    } else {
        car_plan_trust(run->plan); /* rank 0 proves the plan; car_member_agree checks that all have the same */
    }
    if (!car_run_has_ranks(run)) { /* checked again in team.c, when the kernels' needs are known */
        CAR_TRY(car_run_check_memory(run, NULL));
    }
    CAR_TRY(car_program_create(run->graph, run->options.kernels, &run->program));
done:
    return status;
}

/* Describes the graph's input for opening a dataset by name. */
static car_status describe_graph(const car_run *run, car_dataset_config *out) {
    int images = car_graph_find_tensor(run->graph, "images"), tokens = car_graph_find_tensor(run->graph, "tokens");
    if (run->options.model) {
        out->domain = car_model_find(run->options.model)->domain;
        return car_model_resolve(run->context, run->options.model, &run->options.shape, &out->model);
    }
    if (images != CAR_NONE) {
        car_shape shape = car_graph_tensor(run->graph, images)->shape;
        out->domain = CAR_DOMAIN_IMAGES;
        out->model = (car_model_config){.batch = (int)shape.dim[0],
                                        .channels = (int)shape.dim[1],
                                        .image_size = (int)shape.dim[2],
                                        .classes = (int)car_graph_classes(run->graph)};
    } else if (tokens != CAR_NONE) {
        car_shape shape = car_graph_tensor(run->graph, tokens)->shape;
        out->domain = CAR_DOMAIN_TOKENS;
        out->model = (car_model_config){
            .batch = (int)shape.dim[0], .seq_len = (int)shape.dim[1], .vocabulary = (int)car_graph_classes(run->graph)};
    } else {
        return car_context_fail(run->context, CAR_ERROR_SHAPE,
                                "data %s needs a graph with an input 'images' or 'tokens': use options.dataset or "
                                "options.feed for this graph",
                                run->options.data);
    }
    return CAR_OK;
}

static car_status check_classes(const car_run *run) {
    int64_t known = car_graph_classes(run->graph);
    int wanted = car_dataset_get_info(run->dataset).classes;
    if (known > 0 && wanted > known) { /* known is 0 if the graph ends in a custom stage */
        return car_context_fail(run->context, CAR_ERROR_SHAPE, "data %s has %d classes, but the model only %lld",
                                car_dataset_name(run->dataset), wanted, (long long)known);
    }
    return CAR_OK;
}

static car_status open_data(car_run *run) {
    car_dataset_config config = {
        .seed = run->options.seed, .augment = !run->options.no_augment, .augmentation = run->options.augmentation};
    car_status status = CAR_OK;
    run->dataset = run->options.dataset;
    if (run->options.data) {
        CAR_TRY(describe_graph(run, &config));
        run->shape = config.model;
        CAR_TRY(car_dataset_open(run->context, run->options.data, &config, &run->own_dataset));
        run->dataset = run->own_dataset;
    } else if (run->options.model) {
        CAR_TRY(car_model_resolve(run->context, run->options.model, &run->options.shape, &run->shape));
    }
    if (run->dataset) {
        car_feeder *feeder = NULL; /* only to check sizes and count steps */
        const car_feeder_config how = {.workers = run->options.workers, .accumulate = run->options.accumulate};
        CAR_TRY(check_classes(run));
        CAR_TRY(car_feeder_create(run->graph, run->dataset, &how, &feeder));
        run->epoch_steps = car_feeder_epoch_steps(feeder);
        car_feeder_destroy(feeder);
    }
done:
    return status;
}

/* Checks now what would otherwise fail only at the first evaluation. */
static car_status check_evaluations(const car_run *run) {
    const car_run_options *o = &run->options;
    bool none = run->dataset && car_dataset_get_info(run->dataset).samples[CAR_SPLIT_EVALUATION] == 0;
    if (none && o->eval_every > 0) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT, "data %s has no samples to evaluate on: leave %s out",
                                car_dataset_name(run->dataset), car_run_name(o, "eval_every").text);
    }
    if (none && o->eval_at_end && car_run_is_first(run)) {
        car_context_log(run->context, CAR_LOG_WARNING,
                        "data %s has no samples to evaluate on: the run will end without an evaluation",
                        car_dataset_name(run->dataset));
    }
    return o->eval_every > 0 ? car_run_check_evaluation(run) : CAR_OK;
}

static car_status allocate_counts(car_run *run) {
    enum { MOST_CLASSES = 2000 }; /* the matrix has MOST_CLASSES squared numbers */
    size_t classes = (size_t)car_graph_classes(run->graph);
    bool wanted = run->options.confusion && classes > 0 && classes <= MOST_CLASSES;
    return wanted ? car_context_allocate(run->context, classes * classes, sizeof *run->judge.counts, &run->judge.counts)
                  : CAR_OK;
}

/* The part of the setup that each process does on its own. */
static car_status set_up(car_run *run) {
    car_status status = CAR_OK;
    run->available = car_available_find();
    choose_threads(run);
    if (car_run_is_first(run)) {
        CAR_TRY(car_run_lock(run));
        CAR_TRY(car_run_look(run));
    }
    CAR_TRY(build_model(run));
    CAR_TRY(build_plan(run));
    CAR_TRY(open_data(run));
    CAR_TRY(car_run_count_steps(run));
    CAR_TRY(check_evaluations(run));
    CAR_TRY(allocate_counts(run));
    CAR_TRY(car_run_try_paths(run));
    CAR_TRY(car_run_set_configuration(run, run->options.configuration));
    CAR_TRY(car_run_open_writer(run));
done:
    return status;
}

car_status car_run_create(car_context *context, const car_run_options *options, car_run **out) {
    CAR_REQUIRE(context, out);
    *out = NULL;
    CAR_ENTER(context, context);
    CAR_REQUIRE(context, options);
    car_run *run = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, 1, sizeof *run, &run));
    run->context = context;
    run->saved_step = run->judge.best_step = run->judge.best_saved = run->judge.evaluated_step = CAR_NONE;
    run->begin_step = -1;
    run->exact = true;
    status = car_run_resolve(run, options);
    if (status != CAR_OK) {
        status = refuse(run, status);
        goto done;
    }
    CAR_TRY(join(run));
    CAR_TRY(car_member_settle(&run->members[0], set_up(run)));
    CAR_TRY(car_run_create_members(run));
    *out = run;
    run = NULL;
done:
    car_run_destroy(run);
    return status;
}

void car_run_destroy(car_run *run) {
    if (!run) {
        return;
    }
    car_snapshot_thread_destroy(run->writer); /* first, because it may be using a member's rank */
    car_run_destroy_members(run);
    car_hub_destroy(run->hub);
    size_t classes = run->judge.counts ? (size_t)car_graph_classes(run->graph) : 0;
    car_context_release(run->context, run->judge.counts, classes * classes, sizeof *run->judge.counts);
    car_context_release(run->context, run->accounts, run->accounts ? (size_t)run->account_count : 0,
                        sizeof *run->accounts);
    car_context_release_text(run->context, run->configuration);
    car_context_release_text(run->context, run->then);
    car_dataset_close(run->own_dataset);
    car_program_destroy(run->program);
    car_plan_destroy(run->plan);
    car_partition_destroy(run->partition);
    car_graph_destroy(run->own_graph);
    car_run_unlock(run);
    car_context_release(run->context, run->members, run->members ? (size_t)run->member_count : 0, sizeof *run->members);
    car_context_release(run->context, run, 1, sizeof *run);
}
