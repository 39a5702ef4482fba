/* carousel demo: the same small model by four rules, then what it took, side by side. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "train.h"

enum { RULES = 4, COLUMNS = 72, ROWS = 6, RECORDED = 1 << 16, RECORDED_STEPS = 3 };

static const char *const rules[RULES] = {"dp", "accumulate", "cdp-v1", "cdp-v2"};

typedef struct outcome {
    const char *rule;
    double first_loss, loss, samples_per_s;
    size_t peak, weights;
    size_t timeline[COLUMNS]; /* live activation bytes over the last steps, the largest in each column */
} outcome;

/* ---- one run --------------------------------------------------------------------------------- */

static void on_step(void *user, const car_step_report *report) {
    car_train_run *run = user;
    run->loss = report->loss;
    run->first_loss = run->reported == 0 ? report->loss : run->first_loss;
    run->reported++;
    if (run->reported == run->options.steps - RECORDED_STEPS) {
        car_arena_record(run->arena, CAR_MEMORY_ACTIVATIONS, RECORDED); /* without it the timeline stays empty */
    }
    if (run->terminal) {
        printf("\r\033[K%-10s  step %lld/%d  loss %.4f", run->options.rule, (long long)run->reported,
               run->options.steps, run->loss);
        fflush(stdout);
    }
}

static void fill_timeline(const car_train_run *run, size_t *timeline) {
    const car_arena_event *events = NULL;
    int count = car_arena_events(run->arena, &events);
    double end = count > 0 ? events[count - 1].seconds : 0;
    int next = 0;
    size_t live = count > 0 ? events[0].live : 0;
    for (int column = 0; column < COLUMNS && end > 0; column++) {
        timeline[column] = live;
        for (; next < count && events[next].seconds <= end * (column + 1) / COLUMNS; next++) {
            live = events[next].live;
            timeline[column] = live > timeline[column] ? live : timeline[column];
        }
    }
}

static int run_rule(const char *rule, outcome *out) {
    car_train_run run = {.report = on_step};
    car_train_default_options(&run.options);
    run.options.model = "vit-tiny";
    run.options.rule = rule;
    run.options.shape.image_size = 16;
    run.options.shape.classes = 4;
    run.options.shape.batch = 8;
    run.options.threads = 2; /* fewer than workers, so that accumulation has something to save */
    run.options.steps = 60;
    run.options.optimizer = "muon";
    run.options.momentum = 0.95;
    run.options.lr = 0.02;
    run.options.schedule = "cosine";
    run.options.warmup = 15; /* the same for all rules */
    car_status status = car_train_set_up(&run);
    if (status == CAR_OK) {
        status = car_trainer_run(run.trainer, run.options.steps);
    }
    if (status == CAR_OK) {
        double elapsed = car_clock_seconds() - run.started;
        *out =
            (outcome){.rule = rule,
                      .first_loss = run.first_loss,
                      .loss = run.loss,
                      .samples_per_s = (double)run.reported * run.options.workers * run.options.shape.batch / elapsed,
                      .peak = car_arena_peak(run.arena, CAR_MEMORY_ACTIVATIONS),
                      .weights = car_arena_peak(run.arena, CAR_MEMORY_WEIGHTS)};
        fill_timeline(&run, out->timeline);
        printf("%s%-10s  loss %.4f -> %.4f, %.1f samples/s\n", run.terminal ? "\r\033[K" : "", rule, run.first_loss,
               run.loss, out->samples_per_s);
        fflush(stdout);
    }
    int code = status == CAR_OK ? CAR_CLI_OK : car_cli_report(run.context, status);
    car_train_tear_down(&run);
    return code;
}

/* ---- the comparison -------------------------------------------------------------------------- */

static void print_table(const outcome *outcomes) {
    printf("\n%-12s %8s %11s %18s %12s %10s\n", "rule", "loss", "samples/s", "peak activations", "ratio to dp",
           "weights");
    for (int r = 0; r < RULES; r++) {
        const outcome *o = &outcomes[r];
        printf("%-12s %8.4f %11.1f %15.1f MB %12.2f %7.1f MB\n", o->rule, o->loss, o->samples_per_s,
               (double)o->peak / 1e6, (double)o->peak / (double)outcomes[0].peak, (double)o->weights / 1e6);
    }
}

/* Bars of eighths, all rules on dp's scale. */
static void print_timeline(const outcome *o, size_t scale) {
    static const char *const eighths[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    printf("\n%s: activations over the last %d steps, peak %.1f MB\n", o->rule, RECORDED_STEPS, (double)o->peak / 1e6);
    for (int row = ROWS - 1; row >= 0; row--) {
        fputs(row == ROWS - 1 ? "  ^ " : "  | ", stdout);
        for (int column = 0; column < COLUMNS; column++) {
            int height = (int)((double)o->timeline[column] / (double)scale * ROWS * 8 + 0.5) - row * 8;
            fputs(eighths[height < 0 ? 0 : height > 8 ? 8 : height], stdout);
        }
        putchar('\n');
    }
}

int car_cli_demo(int argc, char **argv) {
    const car_cli_command command = {"demo", "Trains one small model by four rules, then compares what it took.",
                                     "carousel demo", NULL};
    outcome outcomes[RULES];
    int code = car_cli_parse(&command, NULL, 0, argc, argv);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    puts("vit-tiny at 16 pixels on synthetic images, 4 workers of 8 samples, by four rules:\n");
    for (int r = 0; r < RULES; r++) {
        code = run_rule(rules[r], &outcomes[r]);
        if (code != CAR_CLI_OK) {
            return code;
        }
    }
    print_table(outcomes);
    print_timeline(&outcomes[0], outcomes[0].peak);
    print_timeline(&outcomes[3], outcomes[0].peak);
    printf(
        "\nThe cycle staggers its workers, so one frees what another stores: %.2f of dp's peak at %.2f of its speed.\n"
        "Accumulation takes the workers in turn and needs %.2f, without delay: what few threads would choose on one\n"
        "machine. The cycle's place is where workers have devices of their own. Its price is a gradient delay of at\n"
        "most one step (see the losses) and a second version of the weights.\n",
        (double)outcomes[3].peak / (double)outcomes[0].peak, outcomes[3].samples_per_s / outcomes[0].samples_per_s,
        (double)outcomes[1].peak / (double)outcomes[0].peak);
    return CAR_CLI_OK;
}
