/* The remarks of `carousel plan`: plain sentences about what is unusual, or what a user would otherwise find out
 * later. */
#include <stdarg.h>

#include "plan.h"

/* Above this share of dp's peak, a model is said to be unable to halve. */
static const double cannot_halve = 0.6;

static void say(FILE *stream, int *count, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Prints one remark, wrapped. */
static void say(FILE *stream, int *count, const char *format, ...) {
    enum { WRAP = 112 };
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if ((*count)++ == 0) {
        fputs("\nWorth knowing\n", stream);
    }
    fputs("  -", stream);
    int column = 3;
    for (const char *word = text; *word;) {
        int length = 0;
        while (word[length] && word[length] != ' ') {
            length++;
        }
        if (column + 1 + length > WRAP) {
            fputs("\n   ", stream);
            column = 3;
        }
        column += 1 + fprintf(stream, " %.*s", length, word) - 1;
        word += length + (word[length] == ' ');
    }
    fputc('\n', stream);
}

/* ---- the model ------------------------------------------------------------------------------- */

/* The share of all held bytes that the first third of the forward's time saves. */
static double stored_early(const car_plan_subject *s) {
    double total = 0, before = 0;
    int ops = car_graph_op_count(s->graph), l = 0;
    for (int o = 0; o < ops; o++) {
        total += s->costs.forward[o];
    }
    while (l < ops && before < total / 3) {
        before += s->costs.forward[l++];
    }
    size_t all = car_graph_held_bytes(s->graph, 0, ops);
    return all ? (double)car_graph_held_bytes(s->graph, 0, l) / (double)all : 0;
}

static void remark_limit(const car_plan_subject *s, const car_plan *plan, FILE *stream, int *count) {
    /* As a share of dp's peak, like the table's numbers, which include gradients of activations. */
    double limit = s->partition->limit * (double)s->partition->held_bytes / (double)s->partition->curve.peak;
    if (limit > cannot_halve && car_plan_is_cyclic(plan) && !s->partition->recompute) {
        say(stream, count,
            "This model cannot halve: the first third of its forward saves %.0f %% of what is held for backward, and "
            "holds it longest. Without recomputing or idling, no schedule goes below %.2f of dp's peak; --recompute "
            "does.",
            100 * stored_early(s), limit);
    }
}

static void remark_empty(const car_plan_subject *s, FILE *stream, int *count) {
    const car_partition *p = s->partition;
    char list[256];
    int empty = 0, used = 0, listed = 0;
    for (int j = 0; j < p->stage_count; j++) {
        if (p->stages[j].first == p->stages[j].end) {
            if (listed < 8) {
                used += snprintf(list + used, sizeof list - (size_t)used, "%s%d", listed ? ", " : "", j);
                listed++;
            }
            empty++;
        }
    }
    if (empty > 0) {
        say(stream, count,
            "%s %s%s %s empty (%d of %d): %s. That is allowed: an empty "
            "stage takes no time. Fewer stages or another --partition avoid it.",
            empty == 1 ? "Stage" : "Stages", list, empty > listed ? ", ..." : "", empty == 1 ? "is" : "are", empty,
            p->stage_count,
            p->measure == CAR_MEASURE_CUTS ? "cuts coincide" : "one operation there is longer than a stage's share");
    }
}

/* The costliest forward or backward of a single operation, as a share of a step. */
static double longest_operation(const car_plan_subject *s) {
    double total = 0, longest = 0;
    for (int l = 0; l < s->costs.count; l++) {
        double most = s->costs.forward[l] > s->costs.backward[l] ? s->costs.forward[l] : s->costs.backward[l];
        total += s->costs.forward[l] + s->costs.backward[l];
        longest = most > longest ? most : longest;
    }
    return total > 0 ? longest / total : 0;
}

static void remark_uneven(const car_plan_subject *s, const car_plan *plan, const car_prediction *p, FILE *stream,
                          int *count) {
    double longest = s->partition->longest_task;
    if (!car_plan_is_cyclic(plan) || p->peak_ratio_to_dp <= p->free_running + 0.04) {
        return;
    }
    char way_out[160] = "one operation alone takes as long, so finer stages would not help.";
    if (longest > 1.5 * longest_operation(s)) {
        snprintf(way_out, sizeof way_out, "finer stages (--stages %d) would help.", 2 * s->partition->stage_count);
    }
    say(stream, count,
        "The self-timed peak is %.2f of dp's; evenly spaced workers would reach %.2f. The longest task takes %.0f %% "
        "of a step, and workers may drift from their places by that much: %s",
        p->peak_ratio_to_dp, p->free_running, 100 * longest, way_out);
}

static const car_placement_info *placement_of(const car_plan *plan) {
    return car_placement_info_of(car_plan_config_of(plan)->placement);
}

/* True if each device has its own stages. */
static bool is_pipeline(const car_plan *plan) {
    return placement_of(plan)->by_stage && !placement_of(plan)->repeated;
}

/* Ranks that hold stages are only as fast as the one with most work. */
static void remark_idle(const car_plan_subject *s, const car_plan *plan, const car_prediction *p, FILE *stream,
                        int *count) {
    const car_partition *partition = s->partition;
    int k = car_plan_per_worker(plan), ranks = car_plan_config_of(plan)->workers, slowest = 0;
    double most = 0;
    if (!is_pipeline(plan) || !car_plan_is_cyclic(plan) || p->timed.idle < 0.1) {
        return;
    }
    for (int r = 0; r < ranks; r++) {
        double share = 0;
        for (int j = r * k; j < (r + 1) * k; j++) {
            share += partition->stages[j].forward + partition->stages[j].backward;
        }
        slowest = share > most ? r : slowest;
        most = share > most ? share : most;
    }
    say(stream, count,
        "The ranks idle %.0f %% of the time: rank %d has %.0f %% of the work, an even share would be %.0f %%. You "
        "can choose the cuts yourself: --partition cuts:...",
        100 * p->timed.idle, slowest, 100 * most, 100.0 / ranks);
}

static void remark_largest_stage(const car_plan_subject *s, const car_plan *plan, FILE *stream, int *count) {
    const car_partition *p = s->partition;
    size_t most = 0, all = 0;
    int largest = 0;
    for (int j = 0; j < p->stage_count; j++) {
        all += p->stages[j].weight_bytes;
        if (p->stages[j].weight_bytes > most) {
            most = p->stages[j].weight_bytes;
            largest = j;
        }
    }
    double average = (double)all / p->stage_count;
    if (placement_of(plan)->owned && p->measure != CAR_MEASURE_PARAMS && (double)most > 2 * average) {
        say(stream, count,
            "Stage %d has %s of weights, %.1f x the average. Under %s a rank's peak is at least the largest stage, so "
            "--partition params is probably the better cut.",
            largest, car_size_shown((double)most).text, (double)most / average, placement_of(plan)->name);
    }
}

/* ---- the rule and the placement -------------------------------------------------------------- */

static void remark_slack(const car_plan_subject *s, const car_plan *plan, const car_cli_slack_advice *advice,
                         FILE *stream, int *count) {
    char gain[128];
    if (advice->slack == 0) {
        return;
    }
    if (s->options->cluster) {
        snprintf(gain, sizeof gain, "%s, not %s, on this cluster", car_cli_seconds(advice->after).text,
                 car_cli_seconds(advice->before).text);
    } else {
        snprintf(gain, sizeof gain, "%.2f, not %.2f, of one worker's forwards and backwards", advice->after,
                 advice->before);
    }
    say(stream, count,
        "Where %s = S a worker needs new weights the instant they are made, and waits for them. With --freshness-slack "
        "%d it uses last step's weights where new ones would have less than %d slots to arrive: a step is predicted to "
        "take %s.",
        car_plan_per_worker(plan) > 1 ? "k(i+1) + j" : "i + 1 + j", advice->slack, 2 * advice->slack, gain);
}

static void remark_accumulate(const car_plan_subject *s, const car_plan *plan, const car_prediction *p, FILE *stream,
                              int *count) {
    const car_plan_config *c = car_plan_config_of(plan);
    double one = (double)s->partition->curve.peak;
    if (!placement_of(plan)->one_process || car_rule_info_of(c->rule)->in_turns || c->workers == 1) {
        return;
    }
    if (c->threads < c->workers && (double)p->timed.peak > c->threads * one) {
        say(stream, count,
            "On %d %s, --rule accumulate computes dp's step and holds %d %s at a time: %s instead of %s.", c->threads,
            c->threads == 1 ? "thread" : "threads", c->threads, c->threads == 1 ? "micro-batch" : "micro-batches",
            car_size_shown(c->threads * one).text, car_size_shown((double)p->timed.peak).text);
    } else {
        say(stream, count,
            "If one thread or device is enough, accumulating gradients over the micro-batches needs the activations of "
            "only one: %s.",
            car_size_shown(one).text);
    }
}

/* Of a worker's M micro-batches only the first can be late. */
static void remark_late(const car_plan_subject *s, const car_plan *plan, const car_prediction *p, FILE *stream,
                        int *count) {
    const car_plan_config *c = car_plan_config_of(plan);
    int batch = s->options->shape.batch;
    if (car_plan_is_cyclic(plan) && p->stale_share > 0 && c->accumulate == 1 && batch % 2 == 0) {
        say(stream, count,
            "Late gradients can cost accuracy in a short training. --batch %d --accumulate 2 trains on the same "
            "samples with half the share of them and about half the activations%s.",
            batch / 2, car_placement_info_of(c->placement)->owned ? "; weights travel twice as often" : "");
    }
}

static void remark_placement(const car_plan_subject *s, const car_plan *plan, const car_prediction *p, FILE *stream,
                             int *count) {
    const car_plan_config *c = car_plan_config_of(plan);
    bool cyclic = car_plan_is_cyclic(plan);
    bool own_device = car_placement_maps_workers(c->placement) && c->ranks == c->workers;
    if (cyclic && own_device && c->workers > 1) {
        say(stream, count,
            "With a device for each worker, a device's own peak stays that of one micro-batch, %s; what falls is the "
            "sum over devices (a node's memory, if they share one) and the burst on the network.",
            car_size_shown((double)s->partition->curve.peak).text);
    }
    if (cyclic && is_pipeline(plan)) {
        say(stream, count, "%s",
            car_rule_info_of(c->rule)->late == CAR_LATE_PARTLY
                ? "In a pipeline, 1f1b holds as much in total and has no delay, but idles while it fills and drains."
                : "In a pipeline, cdp-v1 is PipeDream-2BW; 1f1b holds as much and has no delay, but idles in its "
                  "flush.");
    }
    const car_placement_info *placement = placement_of(plan);
    bool parted = placement->by_stage && placement->repeated; /* devices hold different stages, each several times */
    size_t floats = car_graph_param_bytes(s->graph), copies = car_graph_copy_bytes(s->graph);
    double once = (double)(copies < floats ? copies + floats : floats) * (placement->repeated ? p->devices : 1);
    if (p->versions > 1 && !parted && (double)p->weights_total > once) {
        say(stream, count, "Second versions of weights cost %s%s.",
            car_size_shown((double)p->weights_total - once).text, placement->one_process ? "" : " over all devices");
    }
    if (copies < floats) {
        say(stream, count,
            "In bf16 a weight takes 2 bytes in each version and 4 where it is updated: %s a device; messages of "
            "weights have %.2f of fp32's bytes.",
            car_size_shown((double)p->weights_device).text, (double)copies / (double)floats);
    }
}

/* What an update computes besides the step itself. */
static void remark_muon(const car_plan_subject *s, const car_plan *plan, FILE *stream, int *count) {
    const double much = 0.1;
    double share = car_cli_plan_muon_share(s, plan);
    if (share > much) {
        say(stream, count,
            "Muon's matrix products are %.0f %% of a step: a larger --batch makes the share smaller%s, --optimizer "
            "adamw has none.",
            100 * share,
            placement_of(plan)->repeated && !placement_of(plan)->by_stage ? ", --placement zero divides them" : "");
    }
}

void car_cli_plan_remarks(const car_plan_subject *s, const car_plan *plan, const car_prediction *prediction,
                          const car_cli_slack_advice *slack, FILE *stream) {
    int count = 0;
    remark_limit(s, plan, stream, &count);
    remark_empty(s, stream, &count);
    remark_uneven(s, plan, prediction, stream, &count);
    remark_idle(s, plan, prediction, stream, &count);
    remark_largest_stage(s, plan, stream, &count);
    remark_slack(s, plan, slack, stream, &count);
    remark_accumulate(s, plan, prediction, stream, &count);
    remark_late(s, plan, prediction, stream, &count);
    remark_placement(s, plan, prediction, stream, &count);
    remark_muon(s, plan, stream, &count);
    if (car_plan_config_of(plan)->workers == 1) {
        say(stream, &count, "With one worker there is nothing to cycle: every rule is ordinary training%s.",
            prediction->gradient_delay ? ", except for the delay" : "");
    }
}
