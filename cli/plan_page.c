/* The page of `carousel plan`: the partition, one cycle, and what a run will need. */
#include <math.h>
#include <string.h>

#include "carousel/convention.h"
#include "plan.h"
#include "recompute.h"

enum { MOST_STAGES = 32, SHOWN_AT_ENDS = 12 };

/* ---- the partition --------------------------------------------------------------------------- */

static const char *title_of(car_measure measure) {
    switch (measure) {
    case CAR_MEASURE_TIME:
        return "measured time";
    case CAR_MEASURE_PARAMS:
        return "parameters";
    case CAR_MEASURE_MEMORY:
        return "bytes held for backward";
    case CAR_MEASURE_CUTS:
        return "the cuts given";
    default:
        return "FLOPs";
    }
}

static void print_stage(const car_plan_subject *s, int j, FILE *stream) {
    const car_partition *p = s->partition;
    const car_stage *stage = &p->stages[j];
    char names[160] = "(none)", range[32] = "-";
    if (stage->end > stage->first) {
        const char *first = car_graph_op(s->graph, stage->first)->name,
                   *last = car_graph_op(s->graph, stage->end - 1)->name;
        snprintf(names, sizeof names, stage->end - stage->first > 1 ? "%s .. %s" : "%s", first, last);
        snprintf(range, sizeof range, "%d-%d", stage->first, stage->end - 1);
    }
    fprintf(stream, "  %5d  %10s  %9s  %5.1f %%  %5.1f %%  %s\n", j, range,
            car_size_shown((double)stage->weight_bytes).text, 100 * (stage->forward + stage->backward),
            p->held_bytes ? 100.0 * (double)stage->held_bytes / (double)p->held_bytes : 0, names);
}

static void print_partition(const car_plan_subject *s, FILE *stream) {
    const car_partition *p = s->partition;
    bool cut = p->stage_count > MOST_STAGES;
    fprintf(stream, "Stages, cut by %s\n  stage  operations    weights  %7s  activations\n", title_of(p->measure),
            s->measured ? "time" : "FLOPs");
    for (int j = 0; j < p->stage_count; j++) {
        if (cut && j == SHOWN_AT_ENDS) {
            j = p->stage_count - SHOWN_AT_ENDS;
            fprintf(stream, "    ...  (%d stages between are not shown)\n", p->stage_count - 2 * SHOWN_AT_ENDS);
        }
        print_stage(s, j, stream);
    }
    for (int b = p->stage_count; b < p->bundle_count; b++) {
        fprintf(stream, "  %s belongs to stage %d and is used again in stage %d.\n",
                car_graph_param(s->graph, p->bundles[b].param)->name, p->bundles[b].home, p->bundles[b].stage);
    }
}

/* ---- convolutions ---------------------------------------------------------------------------- */

/* Prints how many there are, and the names of those that use Winograd's algorithm, wrapped. */
static void print_convolutions(const car_plan_subject *s, FILE *stream) {
    enum { LINE = 100 };
    int all = 0, winograd = 0, column = LINE;
    for (int l = 0; l < car_graph_op_count(s->graph); l++) {
        all += car_graph_op(s->graph, l)->kind == CAR_OP_CONV;
        winograd += car_program_uses_winograd(s->graph, &s->program, l);
    }
    if (all == 0) {
        return;
    }
    fprintf(stream, "\nConvolutions (%s%s): %d of %d by Winograd's F(4x4, 3x3), the others direct",
            car_convolutions_text(s->program.convolutions), s->program.tight ? ", tight memory" : "", winograd, all);
    for (int l = 0; l < car_graph_op_count(s->graph); l++) {
        if (car_program_uses_winograd(s->graph, &s->program, l)) {
            const char *name = car_graph_op(s->graph, l)->name;
            bool fits = column + (int)strlen(name) + 2 <= LINE;
            column = fits ? column + 1 : 2;
            column += fprintf(stream, "%s%s", fits ? " " : "\n  ", name) - (fits ? 1 : 3);
        }
    }
    fputc('\n', stream);
}

/* ---- recomputation --------------------------------------------------------------------------- */

static void print_recomputation(const car_plan_subject *s, FILE *stream) {
    char text[256];
    if (s->partition->recompute) {
        car_cli_describe_recomputation(s->partition, text, sizeof text);
        fprintf(stream, "\nRecomputation: %s\n", text);
    } else if (s->options->recompute && strcmp(s->options->recompute, "auto") == 0) {
        fprintf(stream, "\nRecomputation: none; no activations are cheap to recompute\n");
    }
}

/* ---- the cycle ------------------------------------------------------------------------------- */

static car_status print_cycle(const car_plan *plan, FILE *stream) {
    bool rows_are_workers = !car_placement_info_of(car_plan_config_of(plan)->placement)->by_stage;
    char *grid = NULL;
    car_status status = car_plan_draw(plan, 2, 6, NULL, &grid);
    if (status == CAR_OK) {
        fprintf(stream, "\nOne step's slots in steady state; 2%s is the backward of stage 2%s\n",
                rows_are_workers ? "'" : ".1'", rows_are_workers ? "" : " by worker 1");
        for (const char *line = grid; *line;) {
            int length = (int)strcspn(line, "\n");
            fprintf(stream, "  %.*s\n", length, line);
            line += length + (line[length] == '\n');
        }
    }
    car_plan_release_text(plan, grid);
    return status;
}

/* ---- predictions ----------------------------------------------------------------------------- */

static const char *count_noun(int count, const char *one, const char *many) {
    return count == 1 ? one : many;
}

static void print_memory(const car_plan *plan, const car_prediction *p, FILE *stream) {
    const car_plan_config *config = car_plan_config_of(plan);
    const car_partition *partition = car_plan_partition(plan);
    double dp = (double)p->dp_peak, n_a = (double)config->workers * (double)partition->held_bytes;
    bool shared = car_placement_info_of(config->placement)->one_process;
    fprintf(stream, "\nActivations of all workers together                       peak   of dp's\n");
    fprintf(stream, "  dp: every worker at its own peak                  %10s      1.00\n", car_size_shown(dp).text);
    fprintf(stream, "  this plan, idealised slots of equal length        %10s      %.2f\n",
            car_size_shown((double)p->slots_peak).text, (double)p->slots_peak / dp);
    char timed[64];
    snprintf(timed, sizeof timed, "this plan, self-timed on %d %s", shared ? config->threads : p->devices,
             shared ? count_noun(config->threads, "thread", "threads") : count_noun(p->devices, "device", "devices"));
    fprintf(stream, "  %-48s  %10s      %.2f   mean %s\n", timed, car_size_shown((double)p->timed.peak).text,
            p->peak_ratio_to_dp, car_size_shown((double)p->timed.mean).text);
    if (car_plan_is_spaced(plan)) {
        fprintf(stream, "  this plan, workers evenly spaced                  %10s      %.2f\n",
                car_size_shown(p->free_running * dp).text, p->free_running);
        fprintf(stream, "  %-48s  %10s      %.2f   self-timed is %.0f %% %s\n",
                partition->recompute ? "limit with this recomputation, without idling"
                                     : "limit without recomputing or idling",
                car_size_shown(p->limit * n_a).text, p->limit * n_a / dp, 100 * fabs(p->above_limit),
                p->above_limit >= 0 ? "above" : "below: fewer devices than workers");
    }
    if (partition->recompute) {
        const car_recomputation *r = &partition->recomputation;
        double peak = config->workers * (double)r->peak, limit = r->limit * config->workers * (double)r->held_bytes;
        fprintf(stream, "  dp without recomputation                          %10s      %.2f\n",
                car_size_shown(peak).text, peak / dp);
        fprintf(stream, "  limit without recomputing or idling               %10s      %.2f\n",
                car_size_shown(limit).text, limit / dp);
    }
    if (!shared) {
        fprintf(stream, "  the device that needs most, self-timed            %10s\n",
                car_size_shown((double)p->timed.device_peak).text);
    }
    fprintf(stream, "  time of a step, in one %s forwards and backwards  %.2f      idle %.0f %%\n",
            config->accumulate > 1 ? "micro-batch's" : "worker's", p->timed.step_time, 100 * p->timed.idle);
}

static void print_states(const car_plan *plan, const car_prediction *p, FILE *stream) {
    bool shared = car_placement_info_of(car_plan_config_of(plan)->placement)->one_process;
    fprintf(stream, "\nStates%s\n", shared ? "" : "                                          a device      total");
    const struct {
        const char *name;
        size_t device, total;
    } states[] = {
        {p->versions > 1 ? "weights, two versions" : "weights, one version", p->weights_device, p->weights_total},
        {"sums of gradients", p->gradients_device, p->gradients_total},
        {"optimizer", p->optimizer_device, p->optimizer_total},
    };
    for (int n = 0; n < 3; n++) {
        fprintf(stream, "  %-42s  %10s", states[n].name,
                car_size_shown((double)(shared ? states[n].total : states[n].device)).text);
        if (shared) {
            fputc('\n', stream);
        } else {
            fprintf(stream, " %10s\n", car_size_shown((double)states[n].total).text);
        }
    }
}

static void print_traffic(const car_plan *plan, const car_prediction *p, FILE *stream) {
    fprintf(stream, "\nTraffic of a step\n");
    bool shared = car_placement_info_of(car_plan_config_of(plan)->placement)->one_process;
    if (p->bytes_sent <= 0 && p->messages <= 0 && p->collectives <= 0) {
        fprintf(stream, "  none: %s\n", shared ? "buffers change hands inside one process" : "there is one device");
    } else {
        fprintf(stream, "  %s in all, %s by the busiest device; %.0f %s, %.0f %s\n", car_size_shown(p->bytes_sent).text,
                car_size_shown(p->bytes_sent_device).text, p->messages, p->messages == 1 ? "message" : "messages",
                p->collectives, p->collectives == 1 ? "collective" : "collectives");
        fprintf(stream,
                "  between two slots: %d %s of messages, at most %d sent by a device; busiest slot %.1f x the mean\n",
                p->rounds_between_slots, count_noun(p->rounds_between_slots, "round", "rounds"),
                p->max_messages_per_slot, p->burst);
    }
    fprintf(stream, "  gradients are %s",
            p->gradient_delay ? "of weights up to one step old" : "of the newest weights everywhere");
    if (p->gradient_delay) {
        fprintf(stream, "; stale share %.2g", p->stale_share);
    }
    fputc('\n', stream);
}

/* ---- the page -------------------------------------------------------------------------------- */

static void print_title(const car_plan_subject *s, const car_plan *plan, FILE *stream) {
    const car_plan_config *c = car_plan_config_of(plan);
    const car_partition *p = s->partition;
    fprintf(stream, "%s: %s, %s, %d %s of %d, %d %s", s->options->model, car_rule_text(c->rule),
            car_placement_text(c->placement), c->workers, count_noun(c->workers, "worker", "workers"),
            s->options->shape.batch, p->stage_count, count_noun(p->stage_count, "stage", "stages"));
    if (c->accumulate > 1) {
        fprintf(stream, ", %d micro-batches per worker, summed by %s", c->accumulate, car_sum_order_text(c->sum_order));
    }
    if (!car_placement_info_of(c->placement)->one_process) {
        int devices = car_plan_devices(plan);
        fprintf(stream, ", %d %s", devices, count_noun(devices, "rank", "ranks"));
    }
    if (s->machines.count > 1) {
        fprintf(stream, " on %d machines", s->machines.count);
    }
    if (c->ranks < c->workers || s->chosen) {
        fprintf(stream, ", workers %s", car_mapping_text(c->mapping));
    }
    if (s->chosen) {
        char reason[160];
        car_cli_explain_mapping(&s->choice, &s->machines, reason, sizeof reason);
        fprintf(stream, " (%s)", reason);
    }
    fprintf(stream, "\n%.2f million parameters%s, %d operations; a micro-batch holds %s for backward\n\n",
            (double)car_graph_param_bytes(s->graph) / 4e6,
            car_graph_precision(s->graph) == CAR_PRECISION_BF16 ? " in bf16" : "", car_graph_op_count(s->graph),
            car_size_shown((double)p->held_bytes).text);
}

car_status car_cli_plan_page(const car_plan_subject *s, const car_plan *plan, FILE *stream) {
    car_prediction prediction;
    car_timing timing = {0};
    car_cli_slack_advice slack;
    car_cli_zero zero;
    char proof[320];
    car_status status = CAR_OK;
    CAR_TRY(car_cli_plan_predict(s, plan, &prediction));
    if (s->options->cluster) {
        CAR_TRY(car_plan_time(plan, &s->cluster, s->compute, &timing));
    }
    CAR_TRY(car_cli_plan_weigh_slack(s, plan, s->options->cluster ? timing.step : prediction.timed.step_time, &slack));
    CAR_TRY(car_cli_plan_weigh_zero(s, plan, &prediction, &timing, &zero));
    print_title(s, plan, stream);
    print_partition(s, stream);
    print_convolutions(s, stream);
    print_recomputation(s, stream);
    CAR_TRY(print_cycle(plan, stream));
    print_memory(plan, &prediction, stream);
    print_states(plan, &prediction, stream);
    car_cli_plan_print_muon(s, plan, stream);
    print_traffic(plan, &prediction, stream);
    if (s->options->cluster) {
        car_cli_plan_print_timing(s, &prediction, &timing, stream);
    }
    car_cli_plan_print_zero(s, plan, &zero, stream);
    car_proof_text(&s->proof, proof, sizeof proof);
    fprintf(stream, "\n%s\n", proof);
    car_cli_plan_remarks(s, plan, &prediction, &slack, stream);
done:
    return status;
}
