/* Prints the result of `carousel plan --recommend` for people: the plan to take, the runners-up, and why they lose. */
#include "carousel/convention.h"
#include "plan.h"
#include "recompute.h"

static bool is_cyclic(const car_recommended *row) {
    return car_rule_info_of(row->choice.plan.rule)->cyclic;
}

/* "1.23 s", or without seconds a multiple of the best one's. */
static car_size_text step_text(const car_plan_subject *s, const car_recommendation *r, const car_recommended *row) {
    car_size_text text;
    if (s->options->cluster || s->measured) {
        return car_cli_seconds(row->step);
    }
    snprintf(text.text, sizeof text.text, "%.2f x the best", row->step / r->rows[0].step);
    return text;
}

static const char *plural(long long count) {
    return count == 1 ? "" : "s";
}

/* ---- why not --------------------------------------------------------------------------------- */

void car_cli_plan_explain(const car_plan_subject *s, const car_recommendation *r, int row, char *text,
                          size_t capacity) {
    const car_recommended *best = &r->rows[0], *it = &r->rows[row];
    const char *least = it->timed ? "" : "at least ";
    car_size_text step = step_text(s, r, it);
    const char *who = car_placement_info_of(it->choice.plan.placement)->one_process ? "threads" : "devices";
    const car_rule_info *rule = car_rule_info_of(it->choice.plan.rule);
    double more = 100 * (it->step / best->step - 1);
    int used = 0;
    switch (it->reason) {
    case CAR_REASON_BEST:
        snprintf(text, capacity, "the fastest that fits");
        break;
    case CAR_REASON_LATE:
        snprintf(text, capacity, "as fast, but its gradients are late");
        break;
    case CAR_REASON_EQUAL:
        snprintf(text, capacity, "as fast%s %s",
                 it->choice.batch < best->choice.batch ? ", in smaller micro-batches: needs"
                 : it->memory > best->memory           ? ", but needs"
                                                       : ": needs",
                 car_size_shown(it->memory).text);
        break;
    case CAR_REASON_COMPUTES:
        if (it->devices < best->devices) {
            snprintf(text, capacity, "%s%s: it computes on %lld device%s, not %lld", least, step.text,
                     (long long)it->devices, plural(it->devices), (long long)best->devices);
        } else {
            snprintf(text, capacity, "%s%s: its busiest device computes, or waits for a flush, %.0f %% longer", least,
                     step.text, 100 * (it->computes / best->step - 1));
        }
        break;
    case CAR_REASON_LINKS:
        snprintf(text, capacity, "%s%s: its busiest link needs %s for what it carries", least, step.text,
                 car_cli_seconds(it->links).text);
        break;
    case CAR_REASON_WAITS:
        snprintf(text, capacity, "%.0f %% longer: it waits for messages; its busiest link is %.0f %% used", more,
                 100 * it->busiest);
        break;
    case CAR_REASON_IDLES:
        used = snprintf(text, capacity, "%.0f %% longer: its %s wait for each other%s", more, who,
                        rule->spaced && !rule->cyclic ? " at the end of each step" : "");
        if (it->devices > 1 && used > 0 && (size_t)used < capacity) {
            snprintf(text + used, capacity - (size_t)used, "; the busiest link is %.0f %% used", 100 * it->busiest);
        }
        break;
    case CAR_REASON_MEMORY:
        snprintf(text, capacity, "does not fit: a device needs %s%s", it->whole ? "" : "at least ",
                 car_size_shown(it->memory).text);
        break;
    case CAR_REASON_SKIPPED:
        snprintf(text, capacity, "not timed: too large for this search; a step takes at least %s", step.text);
        break;
    }
}

/* ---- the plan to take ------------------------------------------------------------------------ */

static void print_choice(const car_recommended *row, FILE *stream) {
    const car_plan_config *p = &row->choice.plan;
    const car_placement_info *placement = car_placement_info_of(p->placement);
    fprintf(stream, "  --rule %s --placement %s --workers %d --stages %d --batch %d", car_rule_text(p->rule),
            placement->name, p->workers, row->choice.stages, row->choice.batch);
    if (p->accumulate > 1) {
        fprintf(stream, " --accumulate %d", p->accumulate);
    }
    if (p->sum_order != CAR_SUM_ORDER_AUTO) {
        fprintf(stream, " --sum-order %s", car_sum_order_text(p->sum_order));
    }
    if (p->freshness_slack > 0) {
        fprintf(stream, " --freshness-slack %d", p->freshness_slack);
    }
    if (p->zero_copies == 1) {
        fputs(" --zero-copies 1", stream);
    } else if (p->zero_ahead > 0) {
        fprintf(stream, " --zero-ahead %d", p->zero_ahead);
    }
    if (row->choice.precision != CAR_PRECISION_FP32) {
        fprintf(stream, " --precision %s", car_precision_text(row->choice.precision));
    }
    if (p->ranks > 0 && p->ranks < p->workers) {
        fprintf(stream, " --ranks %d --mapping %s", p->ranks, car_mapping_text(p->mapping));
    }
    if (row->choice.recompute.how != CAR_RECOMPUTE_OFF) {
        fprintf(stream, " --recompute %s", car_cli_recompute_text(&row->choice.recompute).text);
    }
    if (placement->one_process) {
        fprintf(stream, " --threads %d", p->threads);
    }
    fputc('\n', stream);
}

/* Only the first of a worker's micro-batches can be late. */
static void print_delay(const car_recommended *row, FILE *stream) {
    int accumulate = row->choice.plan.accumulate;
    fprintf(stream, "  %-26s %10s", "delay of gradients", row->gradient_delay ? "1 step" : "none");
    if (row->gradient_delay && accumulate > 1) {
        fprintf(stream, "   at most, of 1 in %d micro-batches; --exact excludes it", accumulate);
    } else if (row->gradient_delay) {
        fputs("   at most; --exact excludes it", stream);
    }
    fputc('\n', stream);
}

static void print_best(const car_plan_subject *s, const car_recommend_config *config, const car_recommendation *r,
                       FILE *stream) {
    const car_recommended *best = &r->rows[0];
    const car_placement_info *placement = car_placement_info_of(best->choice.plan.placement);
    bool seconds = s->options->cluster || s->measured;
    print_choice(best, stream);
    fprintf(stream, "  %-26s %10s   ", "a step", seconds ? car_cli_seconds(best->step).text : "");
    if (seconds) {
        fprintf(stream, "%.4g samples/s, ", (double)config->global_batch / best->step);
    }
    fprintf(stream, "%.2f x the computing time of its busiest %s\n", best->step / best->computes,
            placement->one_process ? "thread" : "device");
    fprintf(stream, "  %-26s %10s   ", placement->one_process ? "memory" : "memory of a device",
            car_size_shown(best->memory).text);
    fprintf(stream, r->available > 0 ? "of %s\n" : "\n", car_size_shown(r->available).text);
    if (!placement->one_process) {
        fprintf(stream, "  %-26s %10lld   of %lld\n", "devices", (long long)best->devices,
                (long long)config->cluster->devices);
        fprintf(stream, "  %-26s %10s   at most in a step; the busiest link is %.0f %% used\n", "sent by a device",
                car_size_shown(best->bytes_sent).text, 100 * best->busiest);
    }
    print_delay(best, stream);
}

/* Says whether to use the cycle, and if not, what it would cost. */
static void print_verdict(const car_plan_subject *s, const car_recommendation *r, FILE *stream) {
    const car_recommended *best = &r->rows[0];
    char why[512];
    for (int row = 1; row < r->count; row++) {
        if (is_cyclic(best) || !is_cyclic(&r->rows[row])) {
            continue;
        }
        car_cli_plan_explain(s, r, row, why, sizeof why);
        fprintf(stream, "\n%s is the better choice here. The best cyclic plan, %s over %s: %s.\n",
                car_rule_text(best->choice.plan.rule), car_rule_text(r->rows[row].choice.plan.rule),
                car_placement_text(r->rows[row].choice.plan.placement), why);
        return;
    }
}

static void print_others(const car_plan_subject *s, const car_recommendation *r, FILE *stream) {
    char why[512];
    if (r->count > 1) {
        fputs("\nrule        placement  workers  each  batch  stages  slack  ahead  bits  recompute      memory   why "
              "not\n",
              stream);
    }
    for (int row = 1; row < r->count; row++) {
        const car_recommended *it = &r->rows[row];
        const car_plan_config *p = &it->choice.plan;
        car_cli_plan_explain(s, r, row, why, sizeof why);
        char ahead[16] = "-";
        if (p->zero_copies > 0) {
            snprintf(ahead, sizeof ahead, p->zero_copies == 1 ? "one" : "%d", p->zero_ahead);
        }
        fprintf(stream, "%-11s %-9s  %7d  %4d  %5d  %6d  %5d  %5s  %4d  %9s  %c%9s   %s\n", car_rule_text(p->rule),
                car_placement_text(p->placement), p->workers, p->accumulate, it->choice.batch, it->choice.stages,
                p->freshness_slack, ahead, it->choice.precision == CAR_PRECISION_BF16 ? 16 : 32,
                car_cli_recompute_text(&it->choice.recompute).text, it->whole ? ' ' : '>',
                car_size_shown(it->memory).text, why);
    }
}

static void print_launch(const car_plan_subject *s, const car_recommendation *r, FILE *stream) {
    const car_model_info *model = car_model_find(s->options->model);
    const car_recommended *best = &r->rows[0];
    const char *file = s->options->out ? s->options->out : "FILE";
    if (model && model->on_paper) {
        return;
    }
    if (best->devices > 1) {
        fprintf(stream, "\nTrain it with: mpirun -n %lld carousel train --config %s", (long long)best->devices, file);
    } else {
        fprintf(stream, "\nTrain it with: carousel train --config %s", file);
    }
    fprintf(stream, s->options->out ? "\n" : "; --out FILE writes that file\n");
}

void car_cli_plan_print_recommendation(const car_plan_subject *s, const car_recommend_config *config,
                                       const car_recommendation *r, FILE *stream) {
    fprintf(stream, "The fastest plan that fits, for %s in steps of %lld samples%s\n", s->options->model,
            (long long)config->global_batch, config->exact ? ", without a delay" : "");
    if (s->options->cluster) {
        car_cli_plan_describe_cluster(s, stream);
    } else {
        fprintf(stream, "On this machine: %d thread%s\n", config->threads, plural(config->threads));
    }
    fputc('\n', stream);
    print_best(s, config, r, stream);
    print_verdict(s, r, stream);
    print_others(s, r, stream);
    print_launch(s, r, stream);
    fprintf(stream, "\nPlans: %lld; do not fit: %lld; timed: %lld; the rest cannot be faster by more than 1 %%",
            (long long)r->candidates, (long long)r->over_memory, (long long)r->timed);
    if (r->skipped > 0) {
        fprintf(stream,
                ", except for %lld that were too large to time: narrow the search with --rule, --placement or "
                "--workers",
                (long long)r->skipped);
    }
    fputs(".\n", stream);
    if (r->cut_short) {
        fputs("There are too many plans to search them all: larger numbers of micro-batches were left out.\n", stream);
    }
    if (r->bf16_not_timed) {
        fputs("bf16 was not searched: the cluster's description has no \"bf16_flops\", so its time is not known.\n",
              stream);
    }
    if (r->bf16_guessed) {
        fputs("bf16 is assumed to be as fast as fp32: the cluster's description has no \"bf16_flops\".\n", stream);
    }
}
