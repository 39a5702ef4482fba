/* carousel demo: shows where the cycle wins and where it does not, measured on this machine in about a minute.
 *
 * Every number comes from `carousel train` in its own process, with the options that are printed. No result is built
 * in. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "carousel/available.h"
#include "demo.h"

enum { ROWS = 5, MOST_RUNS = 3, MOST_OPTIONS = 48, SPARE_OPTIONS = 2 };

static const double megabyte = 1e6;

/* The runs of one part: common options, then those of each run. */
typedef struct part {
    const char *title, *options; /* options: separated by blanks */
    int count;
    const char *names[MOST_RUNS], *own[MOST_RUNS];
} part;

static const part pipeline = {
    .title = "1. A pipeline of 2 ranks in one process, each with a thread and half of the model",
    .options = "--model gpt2-nano --width 96 --depth 8 --seq-len 32 --placement pipeline --workers 2 --threads 1 "
               "--batch 16 --steps 60 --optimizer adamw --lr 0.001",
    .count = 3,
    .names = {"gpipe", "1f1b", "cdp-v2"},
    .own = {"--rule gpipe", "--rule 1f1b", "--rule cdp-v2"}};

static const part replicas = {
    .title = "2. Four replicas in one process, each with a thread and the whole model",
    .options =
        "--model gpt2-nano --width 96 --depth 8 --seq-len 32 --workers 4 --batch 8 --steps 150 --optimizer adamw "
        "--lr 0.003 --lr-schedule cosine --warmup 20 --eval-every 150",
    .count = 3,
    .names = {"dp", "cdp-v2", "accumulate"},
    .own = {"--rule dp --placement replica --threads 1", "--rule cdp-v2 --placement replica --threads 1",
            "--rule accumulate --threads 2"}};

/* ---- running --------------------------------------------------------------------------------- */

/* Splits a text into words and adds them. It changes the text. */
static int add_words(char *text, const char **words, int count) {
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word && count < MOST_OPTIONS - 1; word = strtok_r(NULL, " ", &rest)) {
        words[count++] = word;
    }
    words[count] = NULL;
    return count;
}

/* `steps`: replaces the number of steps, or NULL. */
static int run_part(const part *p, const char *directory, const char *steps, car_demo_result *results) {
    bool terminal = isatty(STDOUT_FILENO) == 1;
    printf("%s\n   carousel train %s\n", p->title, p->options);
    for (int r = 0; r < p->count; r++) {
        char options[512], own[128];
        const char *words[MOST_OPTIONS + SPARE_OPTIONS];
        snprintf(options, sizeof options, "%s", p->options);
        snprintf(own, sizeof own, "%s", p->own[r]);
        int count = add_words(own, words, add_words(options, words, 0));
        if (steps) { /* the last --steps counts */
            words[count++] = "--steps";
            words[count++] = steps;
            words[count] = NULL;
        }
        if (terminal) {
            printf("\r\033[K   ... %s", p->own[r]);
        }
        int code = car_demo_run(directory, p->names[r], words, &results[r]);
        if (terminal) {
            printf("\r\033[K");
        }
        if (code != CAR_CLI_OK) {
            return code;
        }
    }
    return CAR_CLI_OK;
}

/* ---- results --------------------------------------------------------------------------------- */

static void print_pipeline(const car_demo_result *results) {
    printf("\n   %-32s %10s %12s\n", "", "samples/s", "idle");
    for (int r = 0; r < pipeline.count; r++) {
        printf("   %-32s %10.1f %10.0f %%\n", pipeline.own[r], results[r].samples_per_s, 100 * results[r].idle);
    }
    puts("\n"
         "   gpipe and 1f1b drain the pipeline in every step, which has 2 micro-batches of 16 sequences here.\n"
         "   Where each rank has its own core, they idle for a third of the step.");
    printf("   The cycle never drains: it trains %.2f times as fast as gpipe and %.2f times as fast as 1f1b.\n\n",
           results[2].samples_per_s / results[0].samples_per_s, results[2].samples_per_s / results[1].samples_per_s);
}

/* Draws bars in eighths of a line; `scale` is the value at the top. */
static void print_curve(const char *name, const car_demo_result *result, double scale) {
    static const char *const eighths[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    printf("   %s: activations of all four workers over %d steps\n", name, result->curve_steps);
    for (int row = ROWS - 1; row >= 0; row--) {
        fputs(row == ROWS - 1 ? "   ^ " : "   | ", stdout);
        for (int column = 0; column < CAR_DEMO_COLUMNS; column++) {
            int height = (int)(result->curve[column] / scale * ROWS * 8 + 0.5) - row * 8;
            fputs(eighths[height < 0 ? 0 : height > 8 ? 8 : height], stdout);
        }
        putchar('\n');
    }
}

static void print_replicas(const car_demo_result *results) {
    const car_demo_result *dp = &results[0], *cycle = &results[1], *turns = &results[2];
    printf("\n   %-48s %10s %20s %20s\n", "", "samples/s", "activations (plan)", "burst (plan)");
    for (int r = 0; r < replicas.count; r++) {
        const car_demo_result *o = &results[r];
        printf("   %-48s %10.1f %8.1f (%6.1f) MB %8.2f (%6.2f) MB\n", replicas.own[r], o->samples_per_s,
               o->activations / megabyte, o->planned_activations / megabyte, o->burst / megabyte,
               o->planned_burst / megabyte);
    }
    putchar('\n');
    print_curve("dp", dp, dp->activations);
    print_curve("cdp-v2", cycle, dp->activations);
    puts("\n"
         "   Activations: peak of all workers together. Burst: what they send in the busiest of a step's 8 slots.");
    printf("   The cycle has %.2f of dp's activations (plan: %.2f) and %.2f of its burst (plan: %.2f).\n",
           cycle->activations / dp->activations, cycle->planned_activations / dp->planned_activations,
           cycle->burst / dp->burst, cycle->planned_burst / dp->planned_burst);
    printf(
        "   The limit is accumulate, with two workers at a time on two threads: it has %.2f of dp's activations and\n"
        "   sends nothing, at %.2f times the cycle's speed. This works only on one machine, not on separate devices.\n"
        "\n",
        turns->activations / dp->activations, turns->samples_per_s / cycle->samples_per_s);
}

static void print_losses(const car_demo_result *results) {
    printf("3. What the delay costs: the same runs, evaluated on 8 micro-batches that none of them was trained on\n\n");
    printf("   %-48s %10s %14s %12s\n", "", "first loss", "eval loss", "accuracy");
    for (int r = 0; r < replicas.count; r++) {
        printf("   %-48s %10.4f %14.4f %10.1f %%\n", replicas.own[r], results[r].loss_first, results[r].loss_evaluated,
               100 * results[r].accuracy);
    }
    puts("\n   The cycle's gradients are up to one step late; the optimizer corrects for it (docs/delay.md).\n");
}

static void print_advice(void) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    car_available available = car_available_find();
    printf("This machine has %ld %s and %.0f GB of free memory.\n", cores, cores == 1 ? "core" : "cores",
           (double)available.machine / 1e9);
    if (cores < 2) {
        puts("  Neither (1) nor (2) helps here, because all ranks would share one core. Use --rule accumulate.");
    } else {
        printf("  (1) helps if you cut a model into up to %ld ranks, one per core: --placement pipeline.\n"
               "  (2) helps if you want to run more workers at once than fit under dp: --rule cdp-v2.\n"
               "If %ld workers at a time are enough, use --rule accumulate --threads %ld.\n",
               cores, cores, cores);
    }
    puts("`carousel plan --model M --workers N --compare` shows what each rule and placement would need.");
}

int car_cli_demo(int argc, char **argv) {
    const car_cli_command command = {"demo", "Measures on this machine where the cycle wins and where it does not.",
                                     "carousel demo", NULL};
    const char *steps = NULL;
    /* Not in --help: makes tests shorter. */
    const car_cli_option options[] = {{"steps", "T", NULL, CAR_CLI_TEXT, &steps, 0, 0}};
    car_demo_result results[MOST_RUNS];
    char directory[CAR_DEMO_PATH];
    int code = car_cli_parse(&command, options, 1, argc, argv);
    code = code == CAR_CLI_GO_ON ? car_demo_open(directory) : code;
    if (code != CAR_CLI_OK || car_cli_wants_help(argc, argv)) {
        return code;
    }
    code = run_part(&pipeline, directory, steps, results);
    if (code == CAR_CLI_OK) {
        print_pipeline(results);
        code = run_part(&replicas, directory, steps, results);
    }
    if (code == CAR_CLI_OK) {
        print_replicas(results);
        print_losses(results);
        print_advice();
    }
    car_demo_close(directory);
    return code;
}
