/* carousel plan: shows what a run would do and need, before anything runs. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carousel/available.h"
#include "carousel/convention.h"
#include "carousel/file.h"
#include "carousel/model.h"
#include "carousel/profile.h"
#include "carousel/report.h"
#include "plan.h"
#include "recompute.h"

enum { MOST_CUTS = 4096 };

/* ---- options --------------------------------------------------------------------------------- */

static int read_options(int argc, char **argv, car_plan_options *o) {
    const car_cli_option options[] = {
        {"model", "NAME", "model to plan for (required)", CAR_CLI_TEXT, &o->model, 0, 0},
        {"workers", "N", "number of workers; each takes --accumulate micro-batches per step", CAR_CLI_INT, &o->workers,
         1, 1 << 16},
        {"accumulate", "M", "micro-batches per worker and step, one after another (gradient accumulation)", CAR_CLI_INT,
         &o->accumulate, 1, 1 << 16},
        {"sum-order", "HOW", "with --accumulate: sum gradients by micro-batch or by worker; auto = by placement",
         CAR_CLI_TEXT, &o->sum_order, 0, 0},
        {"stages", "S", "number of stages, a multiple of --workers (default: --workers)", CAR_CLI_INT, &o->stages, 1,
         1 << 20},
        {"rule", "NAME", "when each micro-batch runs, and which version of the weights it uses; see below",
         CAR_CLI_TEXT, &o->rule, 0, 0},
        {"placement", "NAME", "which device computes and stores what; see below", CAR_CLI_TEXT, &o->placement, 0, 0},
        {"partition", "HOW",
         "cut stages by flops, time, params, memory or cuts:A,B,... (default: flops, --profile: time)", CAR_CLI_TEXT,
         &o->partition, 0, 0},
        {"batch", "N", "samples per micro-batch", CAR_CLI_INT, &o->shape.batch, 1, 1 << 20},
        {"classes", "N", "number of classes of an image model (default: the model's)", CAR_CLI_INT, &o->shape.classes,
         1, 1 << 24},
        {"image-size", "N", "image width and height in pixels (default: the model's)", CAR_CLI_INT,
         &o->shape.image_size, 1, 1 << 14},
        CAR_CLI_SHAPE_OPTIONS(o->shape),
        {"threads", "P", "placement shared: compute threads (default: --workers; with --recommend, all cores)",
         CAR_CLI_INT, &o->threads, 1, 1 << 16},
        {"ranks", "R", "placement replica: ranks that share the workers (default: --workers)", CAR_CLI_INT, &o->ranks,
         1, 1 << 16},
        {"machines", "M", "placements replica and zero: machines that the ranks are spread over", CAR_CLI_INT,
         &o->machines, 1, 1 << 16},
        {"mapping", "HOW",
         "assign workers to ranks and machines interleaved or contiguous (default: whichever is better)", CAR_CLI_TEXT,
         &o->mapping, 0, 0},
        {"freshness-slack", "M", "cdp-v2: give each update 2M more slots to arrive", CAR_CLI_INT, &o->freshness_slack,
         0, 1 << 20},
        {"zero-copies", "N",
         "zero, except with dp: copies of each version that travel between ranks, 1 or 2 (default: 2)", CAR_CLI_INT,
         &o->zero_copies, 0, 2},
        {"zero-ahead", "L", "zero: send a copy on up to L slots before its use; auto = 2k, or the best on --cluster",
         CAR_CLI_AUTO, &o->zero_ahead, 0, 1 << 21},
        {"piece-bytes", "BYTES", "send sums of gradients in pieces of this size; 0 = 4 MiB or more (docs/plan.md)",
         CAR_CLI_REAL, &o->piece_bytes, 0, 1e15},
        {"optimizer", "NAME", "optimizer, to predict its memory and computation; see below", CAR_CLI_TEXT,
         &o->optimizer, 0, 0},
        {"ema", "DECAY", "decay of a moving average of the weights, to predict its memory; 0 = none", CAR_CLI_REAL,
         &o->ema, 0, 0.9999999},
        {"delay-correction", "HOW",
         "correction for late gradients, to predict its memory: auto, off or C,A (docs/delay.md)", CAR_CLI_TEXT,
         &o->delay_correction, 0, 0},
        {"precision", "P", "fp32 or bf16, for activations and the weights used in computation (docs/kernels.md)",
         CAR_CLI_TEXT, &o->precision, 0, 0},
        {"convolutions", "HOW", "auto = Winograd's algorithm where it is faster; direct = never", CAR_CLI_TEXT,
         &o->convolutions, 0, 0},
        {"memory", "HOW", "normal, or tight = Winograd's algorithm only where it needs no more memory", CAR_CLI_TEXT,
         &o->memory, 0, 0},
        CAR_CLI_RECOMPUTE_OPTIONS(o),
        {"profile", NULL, "measure the operations on this machine; save the times and plan with them", CAR_CLI_FLAG,
         &o->profile, 0, 0},
        {"profile-file", "FILE", "file for the measured times (default: MODEL.profile.json)", CAR_CLI_TEXT,
         &o->profile_file, 0, 0},
        {"cluster", "FILE", "also predict times on the cluster that FILE describes (docs/plan.md)", CAR_CLI_TEXT,
         &o->cluster, 0, 0},
        {"compare", NULL, "compare all rules and placements in a table", CAR_CLI_FLAG, &o->compare, 0, 0},
        {"recommend", NULL, "search for the fastest plan that fits this machine or --cluster (docs/plan.md)",
         CAR_CLI_FLAG, &o->recommend, 0, 0},
        {"global-batch", "N", "with --recommend: samples per step (default: 32 images or 1 sequence per device)",
         CAR_CLI_INT, &o->global_batch, 1, 1 << 30},
        {"exact", NULL, "with --recommend: only rules without delayed gradients", CAR_CLI_FLAG, &o->exact, 0, 0},
        {"out", "FILE", "with --recommend: write the plan to FILE, for 'carousel train --config FILE'", CAR_CLI_TEXT,
         &o->out, 0, 0},
        {"json", NULL, "print JSON", CAR_CLI_FLAG, &o->json, 0, 0},
        {"dump", NULL, "print the complete table of tasks as text (docs/plan.md)", CAR_CLI_FLAG, &o->dump, 0, 0},
        {"edges", NULL, "with --dump: also print which tasks wait for which", CAR_CLI_FLAG, &o->edges, 0, 0},
        {"custom", NULL, "with --dump: print a schedule that you can edit and run with 'carousel train --plan'",
         CAR_CLI_FLAG, &o->custom, 0, 0},
        {"steps", "T", "with --dump: number of steps to print", CAR_CLI_INT, &o->steps, 1, 1 << 20},
        {"svg", "FILE", "write an SVG figure that shows dp next to the cyclic rule", CAR_CLI_TEXT, &o->svg, 0, 0},
    };
    char lists[4096];
    car_cli_list_models(lists, sizeof lists);
    car_cli_list_paper_models(lists, sizeof lists);
    car_cli_list_choices(lists, sizeof lists);
    const car_cli_command command = {"plan", "Shows what a run would do and need, without running it.",
                                     "carousel plan --model NAME --workers N [OPTIONS]", lists};
    int code = car_cli_parse(&command, options, (int)(sizeof options / sizeof options[0]), argc, argv);
    return code == CAR_CLI_GO_ON && car_cli_peek(argc, argv, "steps") && !o->dump
               ? car_cli_fail(CAR_CLI_USAGE, "plan: --steps requires --dump")
               : code;
}

/* Checks what no library call would find. Returns CAR_CLI_GO_ON, or the exit code after a message. */
static int check_options(const car_plan_options *o) {
    car_placement named = CAR_PLACEMENTS;
    bool known = car_placement_is_known(o->placement, &named); /* if not, read_names will say so */
    const car_placement_info *placement = known ? car_placement_info_of(named) : NULL;
    if (!o->model) {
        return car_cli_fail(CAR_CLI_USAGE, "plan: --model NAME is missing; 'carousel plan --help' lists the models");
    }
    if (o->compare + o->dump > 1 || (o->dump && o->json) || (o->compare && o->svg)) {
        return car_cli_fail(CAR_CLI_USAGE, "plan: %s cannot be used together",
                            o->compare && o->svg ? "--compare and --svg"
                            : o->dump && o->json ? "--dump and --json"
                                                 : "--compare and --dump");
    }
    if (o->custom && (!o->dump || o->edges)) {
        return car_cli_fail(CAR_CLI_USAGE, o->dump ? "plan: --custom and --edges cannot be used together"
                                                   : "plan: --custom requires --dump");
    }
    if (o->edges && !o->dump) {
        return car_cli_fail(CAR_CLI_USAGE, "plan: --edges requires --dump");
    }
    if (o->compare && (o->ranks || o->mapping || o->machines > 1)) {
        return car_cli_fail(CAR_CLI_USAGE,
                            "plan: --compare uses one rank per worker; leave out --ranks, --machines and --mapping");
    }
    if (o->machines > 1 && placement && (placement->one_process || placement->by_stage)) {
        return car_cli_fail(CAR_CLI_USAGE, "plan: --machines is for --placement replica and zero");
    }
    if (o->cluster && !o->recommend && (o->dump || (!o->compare && placement && placement->one_process))) {
        return car_cli_fail(CAR_CLI_USAGE, o->dump ? "plan: --cluster and --dump cannot be used together"
                                                   : "plan: --cluster times messages between ranks; --placement shared "
                                                     "has none: use replica, zero, pipeline or grid");
    }
    if (o->threads && !o->compare && placement && !placement->one_process) {
        return car_cli_fail(CAR_CLI_USAGE, "plan: --threads is for --placement shared; a rank of %s is one device",
                            o->placement);
    }
    return CAR_CLI_GO_ON;
}

/* Reads rule, placement, mapping and numbers. Unknown names are usage errors. */
static car_status read_names(car_context *context, const car_plan_options *o, car_plan_config *config) {
    car_status status = CAR_OK;
    CAR_TRY(car_rule_find(context, o->rule, &config->rule));
    CAR_TRY(car_placement_find(context, o->placement, &config->placement));
    if (o->mapping) {
        CAR_TRY(car_mapping_find(context, o->mapping, &config->mapping));
    }
    config->workers = o->workers;
    config->accumulate = o->accumulate;
    CAR_TRY(car_sum_order_find(context, o->sum_order, &config->sum_order));
    config->threads = o->threads;
    config->ranks = o->ranks;
    config->freshness_slack = o->freshness_slack;
    config->zero_copies = o->zero_copies;
    config->zero_ahead = o->zero_ahead;
    config->piece_bytes = (int64_t)o->piece_bytes;
done:
    return status;
}

/* ---- the partition --------------------------------------------------------------------------- */

/* Reads "A,B,..." as whole numbers; the library checks their order and range. */
static bool read_cuts(const char *text, int *cuts, int capacity, int *count) {
    *count = 0;
    while (*text) {
        char *end = NULL;
        long value = strtol(text, &end, 10);
        if (end == text || value < 0 || value > 1 << 24 || (*end && *end != ',') || (*end && !end[1]) ||
            *count == capacity) {
            return false;
        }
        cuts[(*count)++] = (int)value;
        text = *end ? end + 1 : end;
    }
    return *count > 0;
}

static car_status read_partition(const car_plan_subject *s, car_partition_config *config, int *cuts) {
    const char *how = s->options->partition ? s->options->partition : s->options->profile ? "time" : "flops";
    if (strncmp(how, "cuts:", 5) == 0) {
        int count = 0;
        if (!read_cuts(how + 5, cuts, MOST_CUTS, &count)) {
            return car_context_fail(
                s->context, CAR_ERROR_ARGUMENT,
                "--partition %s: after 'cuts:', list the operations at which stages begin, e.g. cuts:12,30,47", how);
        }
        if (s->options->stages && s->options->stages != count + 1) {
            return car_context_fail(s->context, CAR_ERROR_ARGUMENT, "--stages %d needs %d cuts, but --partition has %d",
                                    s->options->stages, s->options->stages - 1, count);
        }
        config->measure = CAR_MEASURE_CUTS;
        config->cuts = cuts;
        config->stages = count + 1;
        return CAR_OK;
    }
    for (int m = 0; m < CAR_MEASURES; m++) {
        if (m != CAR_MEASURE_CUTS && strcmp(how, car_measure_text((car_measure)m)) == 0) {
            config->measure = (car_measure)m;
            return CAR_OK;
        }
    }
    return car_context_fail(s->context, CAR_ERROR_UNKNOWN_NAME,
                            "--partition %s: it must be flops, time, params, memory or cuts:A,B,...", how);
}

/* Shows a progress line if standard error is a terminal. */
static void show_round(void *user, int round, int rounds) {
    const car_plan_subject *s = user;
    if (isatty(STDERR_FILENO) == 1) {
        fprintf(stderr, "\r\033[Kmeasuring %d operations: round %d of %d", car_graph_op_count(s->graph), round + 1,
                rounds);
    }
}

static car_status measure(car_plan_subject *s) {
    car_status status = car_costs_measure(s->graph, &s->program, show_round, s, &s->costs);
    if (isatty(STDERR_FILENO) == 1) {
        fputs("\r\033[K", stderr);
    }
    return status;
}

/* Measured costs if they are asked for, otherwise FLOPs. */
static car_status find_costs(car_plan_subject *s, bool by_time) {
    const car_plan_options *o = s->options;
    char path[512];
    car_status status = CAR_OK;
    snprintf(path, sizeof path, "%s", o->profile_file ? o->profile_file : "");
    if (!o->profile_file) {
        snprintf(path, sizeof path, "%s.profile.json", o->model);
    }
    if (o->profile) {
        CAR_TRY(measure(s));
        CAR_TRY(car_costs_save(s->graph, &s->costs, path));
    } else if (by_time || o->profile_file) {
        if (access(path, R_OK) != 0) {
            return car_context_fail(s->context, CAR_ERROR_IO, "there is no profile %s; create it with --profile", path);
        }
        CAR_TRY(car_costs_load(s->graph, path, &s->costs));
    } else {
        return car_costs_from_flops(s->graph, &s->costs);
    }
    s->measured = true;
done:
    return status;
}

/* With several workers on a rank or machine: spread over the cycle they need less memory; adjacent ones send less. */
static car_status choose_mapping(car_plan_subject *s, car_plan_config *config) {
    bool fewer = car_placement_info_of(config->placement)->fewer_ranks && config->ranks;
    bool several = (fewer && config->ranks < config->workers) || s->options->machines > 1;
    car_status status = CAR_OK;
    s->machines = (car_machines){.count = s->options->machines,
                                 .memory = car_available_physical(),
                                 .optimizer_states = car_cli_plan_states(s, config)};
    if (!car_placement_maps_workers(config->placement) || !several || s->options->mapping) {
        return CAR_OK;
    }
    CAR_TRY(car_plan_choose_mapping(s->context, s->partition, config, &s->machines, &s->choice));
    config->mapping = s->choice.mapping;
    s->chosen = true;
done:
    return status;
}

static car_status set_up(car_plan_subject *s, car_partition_config *cut, car_plan_config *config) {
    const car_plan_options *o = s->options;
    car_status status = CAR_OK;
    CAR_TRY(car_model_build(s->context, o->model, &o->shape, &s->graph));
    if (cut->stages % config->workers != 0) {
        return car_context_fail(
            s->context, CAR_ERROR_ARGUMENT,
            "%d stages for %d workers: the number of stages must be a multiple of the number of workers", cut->stages,
            config->workers);
    }
    CAR_TRY(find_costs(s, cut->measure == CAR_MEASURE_TIME));
    cut->costs = &s->costs;
    car_optimizer_config optimizer = car_cli_plan_optimizer(s, config);
    if (o->memory_limit && !o->compare) { /* what a rank holds depends on its workers, so the mapping is chosen first */
        CAR_TRY(car_cli_cut_graph(s->graph, NULL, NULL, config, &optimizer, cut, &s->partition));
        CAR_TRY(choose_mapping(s, config));
        car_partition_destroy(s->partition);
        s->partition = NULL;
    }
    CAR_TRY(car_cli_cut_graph(s->graph, o->recompute, o->memory_limit, config, &optimizer, cut, &s->partition));
    if (o->cluster) {
        CAR_TRY(car_cli_plan_read_cluster(s));
    }
done:
    return status;
}

static void tear_down(car_plan_subject *s) {
    car_partition_destroy(s->partition);
    if (s->graph) {
        car_costs_release(s->graph, &s->costs);
    }
    car_graph_destroy(s->graph);
    car_context_destroy(s->context);
}

/* ---- actions --------------------------------------------------------------------------------- */

static car_status write_svg(const car_plan_subject *s, const car_plan *plan) {
    char title[128], *svg = NULL;
    car_status status = CAR_OK;
    snprintf(title, sizeof title, "%s, micro-batches of %d: memory of activations", s->options->model,
             s->options->shape.batch);
    CAR_TRY(car_report_plan_svg(plan, title, &svg));
    CAR_TRY(car_file_write_text(s->context, s->options->svg, svg));
done:
    car_plan_release_text(plan, svg);
    return status;
}

static car_status dump(const car_plan_subject *s, const car_plan *plan) {
    char *text = NULL, *edges = NULL;
    car_status status = CAR_OK;
    CAR_TRY(s->options->custom ? car_plan_print_custom(plan, &text) : car_plan_print(plan, s->options->steps, &text));
    if (s->options->edges) {
        CAR_TRY(car_plan_print_edges(plan, s->options->steps, &edges));
    }
    fputs(text, stdout);
    fputs(edges ? edges : "", stdout);
done:
    car_plan_release_text(plan, edges);
    car_plan_release_text(plan, text);
    return status;
}

/* --recommend: the search builds its own models and partitions, except for measured ones. */
static car_status recommend(car_plan_subject *s, const car_plan_config *config, int argc, char **argv) {
    car_choice_fixed fixed = car_cli_plan_typed(argc, argv, s->options);
    car_status status = CAR_OK;
    if (s->options->profile || s->options->profile_file) {
        CAR_TRY(car_model_build(s->context, s->options->model, &s->options->shape, &s->graph));
        CAR_TRY(find_costs(s, false));
        fixed.batch = true;
    }
    CAR_TRY(car_cli_plan_recommend(s, config, &fixed, stdout));
done:
    return status;
}

static car_status show(car_plan_subject *s, car_plan_config *config) {
    const car_plan_options *o = s->options;
    car_plan *plan = NULL;
    car_status status = CAR_OK;
    if (o->cluster && config->piece_bytes == 0) {
        config->piece_bytes = car_cluster_piece_bytes(&s->cluster, config->workers, s->compute);
    }
    if (o->compare) {
        return car_cli_plan_compare(s, config, stdout);
    }
    if (!o->memory_limit) {
        CAR_TRY(choose_mapping(s, config));
    }
    CAR_TRY(car_cli_plan_choose_ahead(s, config, &s->ahead));
    CAR_TRY(car_plan_create(s->context, s->partition, config, &plan));
    if (o->svg) {
        CAR_TRY(write_svg(s, plan));
    }
    if (!o->dump) {
        CAR_TRY(car_plan_prove(plan, &s->proof));
    }
    CAR_TRY(o->dump   ? dump(s, plan)
            : o->json ? car_cli_plan_json(s, plan, stdout)
                      : car_cli_plan_page(s, plan, stdout));
    if (o->svg && !o->json && !o->dump) {
        printf("\nThe figure is in %s.\n", o->svg);
    }
done:
    car_plan_destroy(plan);
    return status;
}

int car_cli_plan(int argc, char **argv) {
    car_plan_options o = {.workers = 4,
                          .precision = "fp32",
                          .accumulate = 1,
                          .sum_order = "auto",
                          .shape.batch = 32,
                          .machines = 1,
                          .steps = 4,
                          .rule = "cdp-v2",
                          .placement = "shared",
                          .optimizer = "sgd",
                          .delay_correction = "auto",
                          .convolutions = "auto",
                          .memory = "normal"};
    int code = read_options(argc, argv, &o);
    code = code == CAR_CLI_GO_ON ? check_options(&o) : code;
    code = code == CAR_CLI_GO_ON ? car_cli_plan_check_recommend(argc, argv, &o) : code;
    code = code == CAR_CLI_GO_ON ? car_cli_check_model("plan", o.model, true) : code;
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    car_plan_subject s = {.options = &o};
    car_plan_config config = car_plan_config_default();
    car_status status = car_context_create(NULL, &s.context);
    if (status != CAR_OK) {
        return car_cli_report(NULL, status);
    }
    car_partition_config cut = {.stages = o.stages ? o.stages : o.workers};
    int cuts[MOST_CUTS];
    s.program = car_program_config_default();
    status = read_names(s.context, &o, &config);
    status = status == CAR_OK ? car_precision_find(s.context, o.precision, &o.shape.precision) : status;
    status = status == CAR_OK ? car_cli_plan_read_optimizer(&s, &config) : status;
    status = status == CAR_OK ? car_convolutions_find(s.context, o.convolutions, &s.program.convolutions) : status;
    status = status == CAR_OK ? car_convolutions_find_memory(s.context, o.memory, &s.program.tight) : status;
    status = status == CAR_OK ? read_partition(&s, &cut, cuts) : status;
    if (o.recommend) {
        status = status == CAR_OK ? recommend(&s, &config, argc, argv) : status;
    } else {
        status = status == CAR_OK ? set_up(&s, &cut, &config) : status;
        status = status == CAR_OK ? show(&s, &config) : status;
    }
    code = status == CAR_OK ? CAR_CLI_OK : car_cli_report(s.context, status);
    tear_down(&s);
    return code;
}
