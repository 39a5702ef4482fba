/* Output of a run: on the terminal, and in its directory (config.json, confusion.json, summary.json). */
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carousel/convention.h"
#include "carousel/correction.h"
#include "carousel/file.h"
#include "data.h"
#include "language.h"
#include "mapping.h"
#include "recompute.h"
#include "train.h"

enum { TIMED_STEPS = 512 };

/* ---- the run directory ----------------------------------------------------------------------- */

car_status car_train_path(car_context *context, const char *directory, const char *name, char *path) {
    int length = snprintf(path, CAR_TRAIN_PATH, "%s/%s", directory, name);
    if (length < 0 || length >= CAR_TRAIN_PATH) {
        return car_context_fail(context, CAR_ERROR_IO, "the path %s is too long", directory);
    }
    return CAR_OK;
}

static car_status path_in_run(car_train_run *t, const char *name, char *path) {
    return car_train_path(t->context, t->options.out, name, path);
}

/* Replaces the file at once, so that readers never see half of it. */
static car_status write_json(car_train_run *t, const char *name, const cJSON *json) {
    char path[CAR_TRAIN_PATH], *text = cJSON_Print(json);
    car_file *file = NULL;
    car_status status = CAR_OK;
    if (!text) {
        return car_context_fail(t->context, CAR_ERROR_MEMORY, "out of memory for %s", name);
    }
    CAR_TRY(path_in_run(t, name, path));
    CAR_TRY(car_file_create(t->context, path, &file));
    CAR_TRY(car_file_write(file, text, strlen(text)));
    CAR_TRY(car_file_write(file, "\n", 1));
    CAR_TRY(car_file_finish(file));
done:
    car_file_close(file);
    cJSON_free(text);
    return status;
}

static void add_options(cJSON *json, const car_train_run *t) {
    const car_train_options *o = &t->options;
    char correction[80];
    car_correction_text(&t->optimizer.correction, correction, sizeof correction);
    cJSON_AddStringToObject(json, "model", o->model);
    cJSON_AddStringToObject(json, "data", o->data);
    cJSON_AddStringToObject(json, "rule", o->rule);
    cJSON_AddStringToObject(json, "placement", o->placement);
    cJSON_AddNumberToObject(json, "workers", o->workers);
    if (o->accumulate > 1) {
        cJSON_AddNumberToObject(json, "accumulate", o->accumulate);
        cJSON_AddStringToObject(json, "sum_order", o->sum_order);
    }
    cJSON_AddNumberToObject(json, "stages", o->stages ? o->stages : o->workers);
    cJSON_AddNumberToObject(json, "batch", o->shape.batch);
    cJSON_AddNumberToObject(json, "threads", o->threads);
    cJSON_AddStringToObject(json, "optimizer", o->optimizer);
    cJSON_AddStringToObject(json, "delay_correction", t->optimizer.nesterov ? "nesterov" : correction);
    cJSON_AddNumberToObject(json, "warmup", o->warmup);
    cJSON_AddNumberToObject(json, "seed", (double)o->seed);
}

static car_status write_config(car_train_run *t) {
    cJSON *json = car_train_config_of(&t->options);
    cJSON_DeleteItemFromObjectCaseSensitive(json, "trace"); /* a resumed run should not write the trace again */
    cJSON_DeleteItemFromObjectCaseSensitive(json, "trace-steps");
    car_status status = json ? write_json(t, "config.json", json)
                             : car_context_fail(t->context, CAR_ERROR_MEMORY, "out of memory for config.json");
    cJSON_Delete(json);
    return status;
}

/* True if stdout is a terminal. Open MPI gives its ranks a pseudo-terminal even if their output goes to a file, so for
 * a rank the launcher's stdout is checked. */
static bool is_watched(void) {
    char path[64];
    if (isatty(STDOUT_FILENO) != 1 || !car_transport_is_launched()) {
        return isatty(STDOUT_FILENO) == 1;
    }
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getppid(), STDOUT_FILENO);
    int file = open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC);
    bool watched = file >= 0 && isatty(file) == 1;
    if (file >= 0) {
        close(file);
    }
    return watched;
}

car_status car_train_open_output(car_train_run *t) {
    car_status status = CAR_OK;
    t->terminal = is_watched();
    CAR_TRY(car_context_allocate(t->context, TIMED_STEPS, sizeof(double), &t->step_ms));
    if (t->options.out) {
        CAR_TRY(car_train_open_metrics(t));
        CAR_TRY(car_train_recall(t));
        CAR_TRY(write_config(t));
        CAR_TRY(car_train_keep_plan(t));
        CAR_TRY(car_cli_keep_tokenizer(t->context, t->options.data, t->options.out, car_run_first_step(t->run) > 0));
    }
    t->started = t->last_time = car_clock_seconds();
done:
    return status;
}

void car_train_close_output(car_train_run *t) {
    car_train_close_metrics(t);
    car_context_release(t->context, t->step_ms, TIMED_STEPS, sizeof(double));
}

/* ---- during the run -------------------------------------------------------------------------- */

static void show_ranks(const car_train_run *t) {
    const car_transport *transport = car_run_transport(t->run);
    const car_machines *where = car_run_machines(t->run);
    const car_mapping_choice *choice = car_run_mapping(t->run);
    int ranks = car_transport_size(transport), machines = car_transport_machines(transport);
    printf("%d %s on %d %s, %s", ranks, ranks == 1 ? "rank" : "ranks", machines, machines == 1 ? "machine" : "machines",
           car_transport_name(transport));
    if (t->options.mapping && (where->count > 1 || ranks < t->options.workers)) {
        printf("; workers %s", t->options.mapping);
    }
    if (choice) {
        char reason[160];
        car_cli_explain_mapping(choice, where, reason, sizeof reason);
        printf(" (%s)", reason);
    }
    putchar('\n');
}

static void show_data(const car_train_run *t) {
    const car_dataset_info data = car_dataset_get_info(car_run_dataset(t->run));
    int64_t epoch = car_run_epoch_steps(t->run);
    if (epoch > 0) {
        printf("data %s: %lld samples to train on, %lld to evaluate on; an epoch is %lld steps\n", t->options.data,
               (long long)data.samples[CAR_SPLIT_TRAIN], (long long)data.samples[CAR_SPLIT_EVALUATION],
               (long long)epoch);
    }
    car_cli_print_unused_line(car_run_dataset(t->run));
}

void car_train_show_model(const car_train_run *t) {
    const car_train_options *o = &t->options;
    const car_graph *graph = car_run_graph(t->run);
    const car_partition *partition = car_plan_partition(car_run_plan(t->run));
    char correction[160], several[80] = "", text[256];
    car_train_describe_correction(t, correction, sizeof correction);
    if (o->accumulate > 1) {
        snprintf(several, sizeof several, ", %d micro-batches each, summed by %s", o->accumulate, o->sum_order);
    }
    printf("%s: %.2f million parameters, %.2f GFLOP per sample; %s, %d workers of %d samples%s, %d stages, %d %s%s\n",
           o->model, (double)car_graph_param_bytes(graph) / 4e6,
           (car_graph_flops(graph, false) + car_graph_flops(graph, true)) / o->shape.batch / 1e9, o->rule, o->workers,
           o->shape.batch, several, partition->stage_count, o->threads, o->threads == 1 ? "thread" : "threads",
           correction);
    if (partition->recompute) {
        car_cli_describe_recomputation(partition, text, sizeof text);
        printf("recomputation: %s\n", text);
    }
    show_data(t);
    car_train_show_rules(t);
    if (car_run_first_step(t->run) > 0) {
        printf("resuming after step %lld\n", (long long)car_run_first_step(t->run));
    }
    if (o->clip_norm > 0 && car_rule_updates_early(car_plan_config_of(car_run_plan(t->run))->rule)) {
        printf("under %s, clipping uses the gradient norm of the previous step\n", o->rule);
    }
    if (o->shape.precision == CAR_PRECISION_BF16) {
        printf("bf16: activations and the weights used in computation; sums, updates and checkpoints are fp32%s\n",
               car_program_multiplies_bf16()
                   ? ""
                   : ". This machine has no bf16 instructions: products are computed in fp32");
    }
    if (t->has_ranks) {
        show_ranks(t);
    }
    fflush(stdout); /* the first step may take long */
}

void car_train_on_step(void *user, const car_step_report *report) {
    car_train_run *t = user;
    double now = report->when;
    t->step_ms[t->reported % TIMED_STEPS] = (now - t->last_time) * 1e3;
    t->last_time = now;
    t->loss = report->loss;
    t->first_loss = t->reported == 0 ? report->loss : t->first_loss;
    t->first_reported = t->reported == 0 ? now : t->first_reported;
    t->reported++;
    car_train_write_metrics(t, report);
    car_train_show_progress(t, now);
}

const char *car_train_accuracy_name(car_domain domain) {
    return domain == CAR_DOMAIN_IMAGES ? "accuracy" : "next_token_accuracy";
}

void car_train_print_evaluation(FILE *stream, car_domain domain, const car_evaluation *e) {
    fprintf(stream, "loss %.4f, ", e->loss);
    if (domain == CAR_DOMAIN_IMAGES) {
        fprintf(stream, "top-1 %.2f %%, top-5 %.2f %% of %lld samples", 100 * e->top1, 100 * e->top5,
                (long long)e->rows);
    } else {
        fprintf(stream, "perplexity %.2f, next-token accuracy %.2f %% over %lld tokens", exp(e->loss), 100 * e->top1,
                (long long)e->rows);
    }
}

const char *car_train_metric(const car_train_run *t) {
    return t->options.keep_best ? t->options.keep_best : "loss";
}

/* Writes the confusion matrix, for reports. */
static void write_confusion(car_train_run *t, int64_t step) {
    const car_cli_confusion confusion = {.classes = (int)car_graph_classes(car_run_graph(t->run)),
                                         .counts = car_run_confusion(t->run)};
    if (!confusion.counts || !t->writes) {
        return;
    }
    cJSON *json = cJSON_CreateObject();
    bool made = json && cJSON_AddNumberToObject(json, "step", (double)step) &&
                car_cli_add_confusion(json, &confusion, car_run_dataset(t->run));
    car_status status = made ? write_json(t, "confusion.json", json)
                             : car_context_fail(t->context, CAR_ERROR_MEMORY, "out of memory for confusion.json");
    if (status != CAR_OK) {
        car_context_log(t->context, CAR_LOG_WARNING, "%s", car_context_error(t->context));
        car_context_clear_error(t->context);
    }
    cJSON_Delete(json);
}

static void print_evaluations(const car_train_run *t, int64_t step) {
    const car_evaluation *average = car_run_average(t->run);
    flockfile(stdout); /* another thread may print steps */
    printf("%sevaluation after step %lld: ", t->terminal ? "\r\033[K" : "", (long long)step);
    car_train_print_evaluation(stdout, t->domain, &t->evaluation);
    putchar('\n');
    if (average) {
        printf("  with the averaged weights: ");
        car_train_print_evaluation(stdout, t->domain, average);
        putchar('\n');
    }
    if (car_run_lost_patience(t->run)) {
        printf("stopping: %d evaluations without a better %s than %.4f after step %lld (--patience)\n",
               car_run_worse(t->run), car_train_metric(t), car_run_best_value(t->run),
               (long long)car_run_best_step(t->run));
    }
    fflush(stdout);
    funlockfile(stdout);
}

void car_train_on_evaluation(void *user, int64_t step, const car_evaluation *evaluation) {
    car_train_run *t = user;
    bool pauses = !t->has_ranks || t->options.patience > 0 || step == t->options.steps;
    t->evaluation = *evaluation;
    t->evaluated_step = step;
    car_train_write_evaluation(t, step);
    write_confusion(t, step);
    print_evaluations(t, step);
    if (pauses) { /* the time since the last step was not training */
        double now = car_clock_seconds();
        t->aside += now - t->last_time;
        t->last_time = now;
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static int compare_numbers(const void *left, const void *right) {
    const double *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static double median_step(car_train_run *t) {
    size_t count = (size_t)(t->reported < TIMED_STEPS ? t->reported : TIMED_STEPS);
    qsort(t->step_ms, count, sizeof *t->step_ms, compare_numbers);
    return count ? t->step_ms[count / 2] : 0;
}

static void add_machine(cJSON *json, const car_train_run *t) {
    char line[256], cpu[256] = "unknown";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "model name : %255[^\n]", cpu) == 1) {
            break;
        }
    }
    if (file) {
        fclose(file);
    }
    cJSON *machine = cJSON_AddObjectToObject(json, "machine");
    cJSON_AddStringToObject(machine, "cpu", cpu);
    cJSON_AddNumberToObject(machine, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN));
    cJSON_AddNumberToObject(machine, "threads", t->options.threads);
}

/* Waiting is summed over all computing threads, so the share is of their total time. */
static void add_data(cJSON *json, const car_train_run *t, double wall) {
    car_dataset_problems problems;
    double waited = car_feeder_waited(car_run_feeder(t->run)), threads = t->options.threads;
    car_dataset_get_problems(car_run_dataset(t->run), &problems);
    cJSON *data = cJSON_AddObjectToObject(json, "data_reading");
    cJSON_AddNumberToObject(data, "waited_s", waited);
    cJSON_AddNumberToObject(data, "waited_share", wall > 0 ? waited / (wall * threads) : 0);
    cJSON_AddNumberToObject(data, "buffer_bytes", (double)car_feeder_bytes(car_run_feeder(t->run)));
    cJSON_AddNumberToObject(data, "unreadable", (double)problems.unreadable);
    cJSON_AddNumberToObject(data, "damaged", (double)problems.damaged);
    cJSON_AddNumberToObject(data, "unused", (double)car_cli_count_unused(car_run_dataset(t->run)));
}

static void add_decisions(cJSON *json, const car_train_run *t, bool evaluated) {
    const car_evaluation *average = car_run_average(t->run);
    if (average && evaluated) {
        char name[64];
        snprintf(name, sizeof name, "average_%s", car_train_accuracy_name(t->domain));
        cJSON_AddNumberToObject(json, name, average->top1);
        cJSON_AddNumberToObject(json, "average_eval_loss", average->loss);
    }
    if ((t->options.keep_best || t->options.patience) && car_run_best_step(t->run) != CAR_NONE) {
        cJSON *best = cJSON_AddObjectToObject(json, "best");
        cJSON_AddStringToObject(best, "metric", car_train_metric(t));
        cJSON_AddNumberToObject(best, "value", car_run_best_value(t->run));
        cJSON_AddNumberToObject(best, "step", (double)car_run_best_step(t->run));
    }
    if (car_run_lost_patience(t->run)) {
        cJSON_AddBoolToObject(json, "stopped_early", true);
    }
}

static void add_evaluation(cJSON *json, const car_train_run *t) {
    const char *accuracy = car_train_accuracy_name(t->domain);
    char top5[64];
    snprintf(top5, sizeof top5, "%s_top5", accuracy);
    cJSON_AddNumberToObject(json, accuracy, t->evaluation.top1);
    cJSON_AddNumberToObject(json, top5, t->evaluation.top5);
    cJSON_AddNumberToObject(json, "eval_loss", t->evaluation.loss);
    if (t->domain == CAR_DOMAIN_TOKENS) {
        cJSON_AddNumberToObject(json, "perplexity", exp(t->evaluation.loss));
    }
}

static void add_results(cJSON *json, car_train_run *t, double elapsed) {
    const car_train_options *o = &t->options;
    car_trainer_times times = car_rank_time(car_run_engine(t->run));
    bool evaluated = t->evaluated_step == car_run_steps(t->run);
    cJSON_AddNumberToObject(json, "steps", (double)car_run_steps(t->run));
    cJSON_AddBoolToObject(json, "interrupted", t->interrupted);
    if (t->reported > 0) {
        cJSON_AddNumberToObject(json, "loss_first", t->first_loss);
        cJSON_AddNumberToObject(json, "loss_last", t->loss);
    }
    if (evaluated) {
        add_evaluation(json, t);
    }
    add_decisions(json, t, evaluated);
    cJSON_AddNumberToObject(json, "samples_per_s", (double)t->reported * car_train_step_samples(o) / elapsed);
    cJSON_AddNumberToObject(json, "step_ms_median", median_step(t));
    if (car_run_first_step(t->run) > 0) {
        cJSON_AddNumberToObject(json, "resumed_after", (double)car_run_first_step(t->run));
    }
    add_data(json, t, times.wall);
    cJSON *executor = cJSON_AddObjectToObject(json, "executor");
    cJSON_AddNumberToObject(executor, "wall_s", times.wall);
    cJSON_AddNumberToObject(executor, "tasks_s", times.tasks);
    cJSON_AddNumberToObject(executor, "waiting_s", times.waiting);
    cJSON_AddNumberToObject(executor, "choosing_s", times.choosing);
}

void car_train_show_problems(const car_train_run *t) {
    car_dataset_problems problems;
    char rank[32] = "";
    car_dataset_get_problems(car_run_dataset(t->run), &problems);
    if (problems.unreadable + problems.damaged == 0) {
        return;
    }
    if (t->launched) {
        snprintf(rank, sizeof rank, "rank %d: ", car_run_rank(t->run));
    }
    fprintf(stderr, "carousel: warning: %s%lld samples could not be read, %lld are damaged; the first ones:\n", rank,
            (long long)problems.unreadable, (long long)problems.damaged);
    for (int n = 0; n < problems.name_count; n++) {
        fprintf(stderr, "  %s\n", problems.names[n]);
    }
}

bool car_train_remember(car_train_run *t, car_status status) {
    if (status == CAR_OK) {
        return true;
    }
    if (t->failure == CAR_OK) {
        t->failure = status;
        snprintf(t->failure_text, sizeof t->failure_text, "%s", car_context_error(t->context));
    } else {
        car_context_log(t->context, CAR_LOG_WARNING, "%s", car_context_error(t->context));
    }
    car_context_clear_error(t->context);
    return false;
}

static void print_end(const car_train_run *t, double elapsed) {
    if (t->terminal && t->interrupted) {
        putchar('\n');
    }
    printf("%s after %lld steps", t->interrupted ? "interrupted" : "done", (long long)car_run_steps(t->run));
    if (t->reported > 0) {
        printf(": loss %.4f -> %.4f in %.1f s, %.1f samples/s, ", t->first_loss, t->loss, elapsed,
               (double)t->reported * car_train_step_samples(&t->options) / elapsed);
        car_train_print_peak(t);
    }
    puts(t->reported > 0 || t->interrupted ? "" : ", all of them made by an earlier start");
}

/* summary.json is written last: if it exists, all other files do too. */
car_status car_train_summarize(car_train_run *t, const char *digest) {
    double elapsed = car_clock_seconds() - t->started - t->aside;
    print_end(t, elapsed);
    car_train_show_problems(t);
    if (!car_run_has_result(t->run)) {
        return CAR_OK;
    }
    cJSON *json = cJSON_CreateObject();
    if (!json) {
        return car_context_fail(t->context, CAR_ERROR_MEMORY, "out of memory for summary.json");
    }
    add_options(json, t);
    add_results(json, t, elapsed);
    car_train_add_memory(t, json);
    car_train_add_traffic(t, json);
    cJSON_AddStringToObject(json, "weights_sha256", digest);
    add_machine(json, t);
    car_status status = write_json(t, "summary.json", json);
    cJSON_Delete(json);
    return status;
}
