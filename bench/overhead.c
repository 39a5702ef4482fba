/* What does the executor itself cost? Runs plans whose tasks do almost nothing (an mlp of width 1, with a hidden
 * layer for each stage) with 2 to 64 workers and as many stages, and resnet18, in one process.
 *
 *     overhead [SECONDS]     for each line, about (default 2)
 *
 * It measures the threads' time outside of tasks and waiting: choosing what to run, listing and retiring tasks, and
 * the lock. It reports the best of several rounds, because other load shows: a preempted thread that holds the lock
 * makes others wait. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "carousel/model.h"
#include "carousel/trainer.h"

enum { ROUNDS = 5, MOST_WORKERS = 64 };

typedef struct setting {
    const char *model;
    car_model_config config;
    int workers, threads;
    car_rule rule;
    bool empty; /* tasks do almost nothing */
} setting;

typedef struct session {
    car_context *context;
    car_graph *graph;
    car_partition *partition;
    car_plan *plan;
    car_program *program;
    car_arena *arena;
    car_trainer *trainer;
    void *zeros;
} session;

typedef struct figures {
    double tasks;          /* per step */
    double microseconds;   /* per task */
    double share, waiting; /* of the threads' time */
} figures;

/* ---- a session ------------------------------------------------------------------------------- */

static car_status feed(void *user, int64_t step, int worker, car_tape *tape) {
    const session *s = user;
    car_status status = CAR_OK;
    (void)step;
    (void)worker;
    CAR_TRY(car_tape_feed(tape, car_graph_find_tensor(s->graph, "images"), s->zeros));
    CAR_TRY(car_tape_feed(tape, car_graph_find_tensor(s->graph, "labels"), s->zeros));
done:
    return status;
}

static car_status open_session(session *s, const setting *what) {
    int cuts[MOST_WORKERS];
    car_partition_config partition = {.stages = what->workers, .measure = CAR_MEASURE_CUTS, .cuts = cuts};
    car_plan_config plan = car_plan_config_default();
    car_trainer_config training = car_trainer_config_default();
    car_status status = CAR_OK;
    *s = (session){0};
    plan.workers = what->workers;
    plan.rule = what->rule;
    training.threads = what->threads;
    training.schedule.lr = 1e-6;
    training.feed = feed;
    training.feed_user = s;
    CAR_TRY(car_context_create(NULL, &s->context));
    CAR_TRY(car_model_build(s->context, what->model, &what->config, &s->graph));
    s->zeros = calloc(1, car_graph_tensor(s->graph, car_graph_find_tensor(s->graph, "images"))->bytes);
    CAR_TRY(s->zeros ? CAR_OK : CAR_ERROR_MEMORY);
    for (int j = 1; j < what->workers; j++) { /* cut by number, as all operations cost the same: nothing */
        cuts[j - 1] = j * car_graph_op_count(s->graph) / what->workers;
    }
    if (!what->empty) {
        partition = (car_partition_config){.stages = what->workers};
    }
    CAR_TRY(car_partition_create(s->graph, &partition, &s->partition));
    CAR_TRY(car_plan_create(s->context, s->partition, &plan, &s->plan));
    CAR_TRY(car_plan_validate(s->plan, 4));
    CAR_TRY(car_program_create(s->graph, NULL, &s->program));
    CAR_TRY(car_arena_create(s->context, 0, &s->arena));
    CAR_TRY(car_trainer_create(s->plan, s->program, s->arena, &training, &s->trainer));
    CAR_TRY(car_trainer_initialize(s->trainer, 1));
done:
    return status;
}

static void close_session(session *s) {
    car_trainer_destroy(s->trainer);
    car_arena_destroy(s->arena);
    car_program_destroy(s->program);
    car_plan_destroy(s->plan);
    car_partition_destroy(s->partition);
    car_graph_destroy(s->graph);
    free(s->zeros);
    car_context_destroy(s->context);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Number of forwards, backwards and updates. */
static double tasks_of(const session *s, const setting *what) {
    int updates = 0;
    for (int j = 0; j < s->partition->stage_count; j++) {
        updates += s->partition->bundles[j].bytes > 0;
    }
    return 2.0 * what->workers * s->partition->stage_count + updates;
}

/* Measures one run of more steps. At its start and end not all workers are busy, which a long run hides. */
static car_status measure(session *s, int64_t steps, double tasks, figures *out) {
    car_trainer_times before = car_trainer_time(s->trainer);
    car_status status = car_trainer_run(s->trainer, car_trainer_steps(s->trainer) + steps);
    car_trainer_times after = car_trainer_time(s->trainer);
    double choosing = after.choosing - before.choosing, waiting = after.waiting - before.waiting;
    double all = choosing + waiting + after.tasks - before.tasks;
    *out = (figures){tasks, 1e6 * choosing / (tasks * (double)steps), choosing / all, waiting / all};
    return status;
}

static car_status measure_best(const setting *what, double seconds, figures *out) {
    session s;
    car_status status = CAR_OK;
    CAR_TRY(open_session(&s, what));
    double tasks = tasks_of(&s, what), start = car_clock_seconds();
    CAR_TRY(measure(&s, 2, tasks, out)); /* warm-up */
    double step = (car_clock_seconds() - start) / 2;
    int64_t steps = (int64_t)(seconds / ROUNDS / step) + 2;
    for (int round = 0; round < ROUNDS; round++) {
        figures next;
        CAR_TRY(measure(&s, steps, tasks, &next));
        *out = round == 0 || next.microseconds < out->microseconds ? next : *out;
    }
done:
    if (status != CAR_OK) {
        fprintf(stderr, "overhead: %s with %d workers: %s\n", what->model, what->workers,
                s.context ? car_context_error(s.context) : car_status_text(status));
    }
    close_session(&s);
    return status;
}

static car_status print_line(const setting *what, double seconds) {
    figures f = {0};
    car_status status = measure_best(what, seconds, &f);
    if (status == CAR_OK) {
        printf("%-10s %-8s %7d %7d %9.0f %12.2f %8.2f%% %8.2f%%\n", what->model, car_rule_text(what->rule),
               what->workers, what->threads, f.tasks, f.microseconds, 100 * f.share, 100 * f.waiting);
        fflush(stdout);
    }
    return status;
}

int main(int argc, char **argv) {
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_CDP_V2};
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 2;
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    car_status status = CAR_OK;
    if (argc > 2 || seconds <= 0) {
        fputs("usage: overhead [SECONDS]\n", stderr);
        return 2;
    }
    cores = cores < 2 ? 2 : cores > MOST_WORKERS ? MOST_WORKERS : cores;
    printf("The executor's own time, the best of %d rounds\n%-10s %-8s %7s %7s %9s %12s %9s %9s\n", ROUNDS, "model",
           "rule", "workers", "threads", "tasks", "us a task", "of all", "waiting");
    for (int workers = 2; workers <= MOST_WORKERS; workers *= 2) {
        for (int n = 0; n < 4; n++) { /* one thread never waits for the lock */
            int threads = n % 2 == 0 ? 1 : workers < cores ? workers : cores;
            const setting empty = {
                "mlp",        {.batch = 1, .classes = 2, .image_size = 1, .channels = 1, .width = 1, .depth = workers},
                workers,      threads,
                rules[n / 2], true};
            CAR_TRY(print_line(&empty, seconds));
        }
    }
    for (int n = 0; n < 2; n++) {
        const setting real = {
            "resnet18", {.batch = 8, .classes = 10, .image_size = 32}, 4, cores < 4 ? cores : 4, rules[n], false};
        CAR_TRY(print_line(&real, 4 * seconds));
    }
done:
    return status == CAR_OK ? 0 : 1;
}
