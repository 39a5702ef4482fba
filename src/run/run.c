/* Creating a run, and what it is made of. */
#include "carousel/run.h"

#include <math.h>
#include <unistd.h>

#include "carousel/available.h"
#include "carousel/fit.h"
#include "carousel/predict.h"
#include "run/internal.h"

static const double megabyte = 1e6;

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

/* The processes of a launcher, unless everything is in one. */
static car_status join(car_run *run) {
    const char *variable = NULL;
    const car_placement_info *placement = car_placement_info_of(run->plan_config.placement);
    int64_t started = car_transport_launched_processes(&variable);
    bool here = placement->one_process;
    car_status status = CAR_OK;
    if (here && started > 1) {
        return car_context_fail(
            run->context, CAR_ERROR_UNSUPPORTED,
            "placement shared is one process, and %s says that %lld were started, which would all train "
            "the same: choose another placement, or start one",
            variable, (long long)started);
    }
    if (!here && car_transport_is_launched()) {
        CAR_TRY(open_transport(run));
        run->plan_config.ranks = placement->fewer_ranks ? car_transport_size(run->members[0].transport) : 0;
        return CAR_OK;
    }
    if (run->devices > 1024 && !here) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "placement %s with %d workers is more than 1024 ranks in one process: use mpirun",
                                run->options.placement, run->options.workers);
    }
    CAR_TRY(create_members(run, here ? 1 : (int)run->devices));
    CAR_TRY(car_hub_create(run->context, run->member_count, &run->hub));
done:
    return status;
}

/* The options make no sense here. Other processes, whose do, are waiting: they hear of it and fail as well. */
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
    car_status status = CAR_OK;
    run->graph = run->options.graph;
    if (!run->graph) {
        CAR_TRY(car_run_find_sizes(run));
        CAR_TRY(car_model_build(run->context, run->options.model, &run->options.shape, &run->own_graph));
        run->graph = run->own_graph;
    }
    if (car_graph_loss(run->graph) == CAR_NONE) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "options.graph is not finished: call car_graph_finish first, and look at its status");
    }
    if (run->options.stages > car_graph_op_count(run->graph) && run->stages_given) {
        return car_context_fail(run->context, CAR_ERROR_ARGUMENT,
                                "options.stages is %d, and the graph has %d operations: some would have nothing to do",
                                run->options.stages, car_graph_op_count(run->graph));
    }
    CAR_TRY(car_optimizer_check(&run->training.optimizer, run->graph));
done:
    return status;
}

/* Over processes, unless the options say it. */
static car_status choose_mapping(car_run *run) {
    car_mapping_choice choice;
    bool compared = false;
    if (!run->launched || run->options.planning || run->options.plan) {
        return CAR_OK;
    }
    run->machines.optimizer_states = car_optimizer_config_states(&run->training.optimizer);
    return car_plan_choose_mapping_over(run->context, run->partition, run->members[0].transport, &run->machines,
                                        &run->plan_config, &choice, &compared);
}

/* What a device holds depends on its workers, so where there is a limit these are chosen first. */
static car_status cut_graph(car_run *run) {
    const car_run_options *o = &run->options;
    car_partition_config cut = {.stages = o->stages, .recompute = o->recompute};
    car_prediction predicted;
    car_status status = CAR_OK;
    CAR_TRY(car_partition_create(run->graph, &cut, &run->partition));
    CAR_TRY(choose_mapping(run));
    if (o->memory_limit > 0) {
        car_partition_destroy(run->partition);
        run->partition = NULL;
        CAR_TRY(car_plan_cut_within(run->graph, &run->plan_config, &run->training.optimizer, o->memory_limit, &cut,
                                    &predicted, &run->partition));
    }
done:
    return status;
}

/* In one process, before any memory is taken; without the program a little less. */
static car_status check_memory(const car_run *run) {
    car_available available = car_available_find();
    double room = fmin((double)available.machine, (double)available.group);
    car_trainer_config training = run->training;
    car_need need;
    car_status status = CAR_OK;
    if (run->options.force || run->launched || run->member_count > 1) {
        return CAR_OK;
    }
    training.snapshot_every = run->options.checkpoint_every;
    CAR_TRY(car_need_predict(run->plan, run->program, &training, run->options.directory != NULL, &need));
    if (car_need_total(&need) > room) {
        status =
            car_context_fail(run->context, CAR_ERROR_MEMORY,
                             "the run needs about %.0f MB of memory (activations %.0f, weights %.0f, gradients %.0f, "
                             "optimizer %.0f), and %.0f MB are free: smaller batches or fewer workers need less, and "
                             "options.force goes on all the same",
                             car_need_total(&need) / megabyte, need.activations / megabyte, need.weights / megabyte,
                             need.gradients / megabyte, need.optimizer / megabyte, room / megabyte);
    }
done:
    return status;
}

/* The options' plan, or what the rule makes; also of a plan that is what its rule makes, for this number of threads. */
static car_status make_plan(car_run *run) {
    const char *text = run->options.plan;
    car_status status = CAR_OK;
    if (text) {
        CAR_TRY(car_plan_read(run->context, run->partition, "options.plan", text, &run->plan));
    }
    if (!text || run->plan_config.rule != CAR_RULE_CUSTOM) {
        car_plan_destroy(run->plan);
        run->plan = NULL;
        CAR_TRY(car_plan_create(run->context, run->partition, &run->plan_config, &run->plan));
    }
    if (text && car_plan_devices(run->plan) != run->devices) {
        status = car_context_fail(run->context, CAR_ERROR_ARGUMENT, "options.plan is for %lld ranks, and there are %d",
                                  (long long)run->devices, car_plan_devices(run->plan));
    }
done:
    return status;
}

static car_status build_plan(car_run *run) {
    car_proof proof;
    car_status status = CAR_OK;
    CAR_TRY(cut_graph(run));
    CAR_TRY(make_plan(run));
    if (run->launched && car_transport_rank(run->members[0].transport) > 0) {
        car_plan_trust(run->plan); /* rank 0 proves it for all, and all compare theirs with its */
    } else {
        CAR_TRY(car_plan_prove(run->plan, &proof));
    }
    CAR_TRY(check_memory(run));
    CAR_TRY(car_program_create(run->graph, run->options.kernels, &run->program));
    CAR_TRY(check_memory(run)); /* now with all that kernels want */
done:
    return status;
}

/* What a dataset by name has to know of a graph: its sizes, as models have them. */
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
        return car_context_fail(
            run->context, CAR_ERROR_SHAPE,
            "data %s is for a graph with an input 'images' or 'tokens': give a dataset or a feed of your "
            "own",
            run->options.data);
    }
    return CAR_OK;
}

static car_status check_classes(const car_run *run) {
    int64_t known = car_graph_classes(run->graph);
    int wanted = car_dataset_get_info(run->dataset).classes;
    if (known > 0 && wanted > known) { /* a stage of one's own has no classes */
        return car_context_fail(run->context, CAR_ERROR_SHAPE, "data %s has %d classes, and the model %lld",
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
        CAR_TRY(car_dataset_open(run->context, run->options.data, &config, &run->own_dataset));
        run->dataset = run->own_dataset;
    }
    if (run->dataset) {
        car_feeder *feeder = NULL; /* only to look at */
        const car_feeder_config how = {.workers = run->options.workers, .accumulate = run->options.accumulate};
        CAR_TRY(check_classes(run));
        CAR_TRY(car_feeder_create(run->graph, run->dataset, &how, &feeder));
        run->epoch_steps = car_feeder_epoch_steps(feeder);
        car_feeder_destroy(feeder);
    }
done:
    return status;
}

/* What each process does on its own. */
static car_status set_up(car_run *run) {
    car_status status = CAR_OK;
    choose_threads(run);
    CAR_TRY(build_model(run));
    CAR_TRY(build_plan(run));
    CAR_TRY(open_data(run));
    CAR_TRY(car_run_count_steps(run));
    if (run->options.eval_every > 0) {
        CAR_TRY(car_run_check_evaluation(run));
    }
    CAR_TRY(car_run_try_paths(run));
    CAR_TRY(car_run_open_writer(run));
done:
    return status;
}

car_status car_run_create(car_context *context, const car_run_options *options, car_run **out) {
    CAR_REQUIRE(context, out);
    *out = NULL;
    CAR_REQUIRE(NULL, context);
    car_context_clear_error(context);
    CAR_REQUIRE(context, options);
    car_run *run = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, 1, sizeof *run, &run));
    run->context = context;
    run->saved_step = run->best_step = run->best_saved = CAR_NONE;
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
    car_snapshot_thread_destroy(run->writer); /* may be using a member's rank */
    car_run_destroy_members(run);
    car_hub_destroy(run->hub);
    car_dataset_close(run->own_dataset);
    car_program_destroy(run->program);
    car_plan_destroy(run->plan);
    car_partition_destroy(run->partition);
    car_graph_destroy(run->own_graph);
    car_context_release(run->context, run->members, run->members ? (size_t)run->member_count : 0, sizeof *run->members);
    car_context_release(run->context, run, 1, sizeof *run);
}

/* ---- what is known --------------------------------------------------------------------------- */

int64_t car_run_steps(const car_run *run) {
    return run ? car_rank_steps(run->members[0].rank) : 0;
}

int64_t car_run_total_steps(const car_run *run) {
    return run ? run->steps : 0;
}

int64_t car_run_best_step(const car_run *run) {
    return !run ? CAR_NONE : run->options.best ? run->best_saved : run->best_step;
}

int64_t car_run_epoch_steps(const car_run *run) {
    return run ? run->epoch_steps : 0;
}

int car_run_rank(const car_run *run) {
    return run ? car_transport_rank(run->members[0].transport) : 0;
}

int car_run_ranks(const car_run *run) {
    return run ? car_transport_size(run->members[0].transport) : 0;
}

const car_graph *car_run_graph(const car_run *run) {
    return run ? run->graph : NULL;
}

const car_plan *car_run_plan(const car_run *run) {
    return run ? run->plan : NULL;
}

size_t car_run_peak(const car_run *run, car_memory category) {
    size_t bytes = 0;
    for (int m = 0; run && m < run->member_count; m++) {
        bytes += car_arena_peak(run->members[m].arena, category);
    }
    return bytes;
}
