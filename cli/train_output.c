/* What a run says: on the terminal, and in its directory (metrics.jsonl, summary.json, config.json). */
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "carousel/checkpoint.h"
#include "carousel/convention.h"
#include "carousel/correction.h"
#include "carousel/file.h"
#include "data.h"
#include "language.h"
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

static car_status path_in_run(car_train_run *run, const char *name, char *path) {
    return car_train_path(run->context, run->options.out, name, path);
}

/* A reader sees the old file or the new one, never half of one. */
static car_status write_json(car_train_run *run, const char *name, const cJSON *json) {
    char path[CAR_TRAIN_PATH], *text = cJSON_Print(json);
    car_file *file = NULL;
    car_status status = CAR_OK;
    if (!text) {
        return car_context_fail(run->context, CAR_ERROR_MEMORY, "out of memory for %s", name);
    }
    CAR_TRY(path_in_run(run, name, path));
    CAR_TRY(car_file_create(run->context, path, &file));
    CAR_TRY(car_file_write(file, text, strlen(text)));
    CAR_TRY(car_file_write(file, "\n", 1));
    CAR_TRY(car_file_finish(file));
done:
    car_file_close(file);
    cJSON_free(text);
    return status;
}

static void add_options(cJSON *json, const car_train_run *run) {
    const car_train_options *o = &run->options;
    char correction[80];
    car_correction_text(&run->optimizer.correction, correction, sizeof correction);
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
    cJSON_AddStringToObject(json, "delay_correction", run->optimizer.nesterov ? "nesterov" : correction);
    cJSON_AddNumberToObject(json, "warmup", o->warmup);
    cJSON_AddNumberToObject(json, "seed", (double)o->seed);
}

static car_status write_config(car_train_run *run) {
    cJSON *json = car_train_config_of(&run->options);
    cJSON_DeleteItemFromObjectCaseSensitive(json, "trace"); /* a run that goes on is not the one that was traced */
    cJSON_DeleteItemFromObjectCaseSensitive(json, "trace-steps");
    car_status status = json ? write_json(run, "config.json", json)
                             : car_context_fail(run->context, CAR_ERROR_MEMORY, "out of memory for config.json");
    cJSON_Delete(json);
    return status;
}

/* Whether somebody watches. Open MPI gives its ranks a terminal of its own making wherever their output goes, so of a rank
 * it is the launcher's output that counts. */
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

car_status car_train_open_output(car_train_run *run) {
    car_status status = CAR_OK;
    run->terminal = is_watched();
    CAR_TRY(car_context_allocate(run->context, TIMED_STEPS, sizeof(double), &run->step_ms));
    if (run->options.out) {
        CAR_TRY(car_train_open_metrics(run));
        CAR_TRY(car_train_recall_best(run));
        CAR_TRY(write_config(run));
        CAR_TRY(car_train_keep_plan(run));
        CAR_TRY(car_cli_keep_tokenizer(run->context, run->options.data, run->options.out, run->first_step > 0));
    }
    run->started = run->last_time = car_clock_seconds();
done:
    return status;
}

void car_train_close_output(car_train_run *run) {
    car_train_close_metrics(run);
    car_context_release(run->context, run->step_ms, TIMED_STEPS, sizeof(double));
}

/* ---- during the run -------------------------------------------------------------------------- */

void car_train_show_model(const car_train_run *run) {
    const car_train_options *o = &run->options;
    char correction[160], several[80] = "";
    car_train_describe_correction(run, correction, sizeof correction);
    if (o->accumulate > 1) {
        snprintf(several, sizeof several, ", %d micro-batches each, added by %s", o->accumulate, o->sum_order);
    }
    printf("%s: %.2f million parameters, %.2f GFLOP a sample; %s, %d workers of %d samples%s, %d stages, %d %s%s\n",
           o->model, (double)car_graph_param_bytes(run->graph) / 4e6,
           (car_graph_flops(run->graph, false) + car_graph_flops(run->graph, true)) / o->shape.batch / 1e9, o->rule,
           o->workers, o->shape.batch, several, run->partition->stage_count, o->threads,
           o->threads == 1 ? "thread" : "threads", correction);
    if (run->partition->recompute) {
        char text[256];
        car_cli_describe_recomputation(run->partition, text, sizeof text);
        printf("recomputation: %s\n", text);
    }
    const car_dataset_info data = car_dataset_get_info(run->data.set);
    if (run->epoch_steps > 0) {
        printf("data %s: %lld samples to train on, %lld to evaluate on; an epoch is %lld steps\n", o->data,
               (long long)data.samples[CAR_SPLIT_TRAIN], (long long)data.samples[CAR_SPLIT_EVALUATION],
               (long long)run->epoch_steps);
    }
    car_cli_print_unused_line(run->data.set);
    car_train_show_rules(run);
    if (run->first_step > 0) {
        printf("going on after step %lld\n", (long long)run->first_step);
    }
    if (o->clip_norm > 0 && car_rule_updates_early(car_plan_config_of(run->plan)->rule)) {
        printf("under %s the previous step's norm decides about clipping\n", o->rule);
    }
    if (o->shape.precision == CAR_PRECISION_BF16) {
        printf("bf16: activations and the weights that are computed with; sums, updates and checkpoints are fp32%s\n",
               car_program_multiplies_bf16()
                   ? ""
                   : ". This machine has no bf16 instructions: products are computed in fp32");
    }
    fflush(stdout); /* the first step may take long */
}

void car_train_on_step(void *user, const car_step_report *report) {
    car_train_run *run = user;
    double now = report->when;
    run->step_ms[run->reported % TIMED_STEPS] = (now - run->last_time) * 1e3;
    run->last_time = now;
    run->loss = report->loss;
    run->first_loss = run->reported == 0 ? report->loss : run->first_loss;
    run->first_reported = run->reported == 0 ? now : run->first_reported;
    run->reported++;
    run->averaged = run->averaged || !report->skipped;
    car_train_write_metrics(run, report);
    car_train_show_progress(run, now);
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

/* Which classes were taken for which, for a report. */
static void write_confusion(car_train_run *run, int64_t step) {
    cJSON *json = cJSON_CreateObject();
    bool made = json && cJSON_AddNumberToObject(json, "step", (double)step) &&
                car_cli_add_confusion(json, &run->confusion, run->data.set);
    car_status status = made ? write_json(run, "confusion.json", json)
                             : car_context_fail(run->context, CAR_ERROR_MEMORY, "out of memory for confusion.json");
    if (status != CAR_OK) {
        car_context_log(run->context, CAR_LOG_WARNING, "%s", car_context_error(run->context));
        car_context_clear_error(run->context);
    }
    cJSON_Delete(json);
}

void car_train_show_evaluation(car_train_run *run, int64_t step) {
    car_train_write_evaluation(run, step);
    if (run->writes && run->confusion.counts) {
        write_confusion(run, step);
    }
    flockfile(stdout); /* steps may be shown meanwhile */
    printf("%sevaluation after step %lld: ", run->terminal ? "\r\033[K" : "", (long long)step);
    car_train_print_evaluation(stdout, run->data.domain, &run->evaluation);
    putchar('\n');
    if (run->options.ema > 0) {
        printf("  of the averaged weights: ");
        car_train_print_evaluation(stdout, run->data.domain, &run->average_evaluation);
        putchar('\n');
    }
    fflush(stdout);
    funlockfile(stdout);
}

/* ---- the end --------------------------------------------------------------------------------- */

static int compare_numbers(const void *left, const void *right) {
    const double *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static double median_step(car_train_run *run) {
    size_t count = (size_t)(run->reported < TIMED_STEPS ? run->reported : TIMED_STEPS);
    qsort(run->step_ms, count, sizeof *run->step_ms, compare_numbers);
    return count ? run->step_ms[count / 2] : 0;
}

static void add_machine(cJSON *json, const car_train_run *run) {
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
    cJSON_AddNumberToObject(machine, "threads", run->options.threads);
}

/* Waiting is counted over all threads that compute, so the share is of their time together. */
static void add_data(cJSON *json, const car_train_run *run, double wall) {
    car_dataset_problems problems;
    double waited = car_feeder_waited(run->data.feeder), threads = run->options.threads;
    car_dataset_get_problems(run->data.set, &problems);
    cJSON *data = cJSON_AddObjectToObject(json, "data_reading");
    cJSON_AddNumberToObject(data, "waited_s", waited);
    cJSON_AddNumberToObject(data, "waited_share", wall > 0 ? waited / (wall * threads) : 0);
    cJSON_AddNumberToObject(data, "buffer_bytes", (double)car_feeder_bytes(run->data.feeder));
    cJSON_AddNumberToObject(data, "unreadable", (double)problems.unreadable);
    cJSON_AddNumberToObject(data, "damaged", (double)problems.damaged);
    cJSON_AddNumberToObject(data, "unused", (double)car_cli_count_unused(run->data.set));
}

static void add_decisions(cJSON *json, const car_train_run *run) {
    if (run->options.ema > 0 && run->evaluated) {
        char name[64];
        snprintf(name, sizeof name, "average_%s", car_train_accuracy_name(run->data.domain));
        cJSON_AddNumberToObject(json, name, run->average_evaluation.top1);
        cJSON_AddNumberToObject(json, "average_eval_loss", run->average_evaluation.loss);
    }
    if (run->has_best) {
        cJSON *best = cJSON_AddObjectToObject(json, "best");
        cJSON_AddStringToObject(best, "metric", car_train_metric(run));
        cJSON_AddNumberToObject(best, "value", run->best_value);
        cJSON_AddNumberToObject(best, "step", (double)run->best_step);
    }
    if (run->stopped_early) {
        cJSON_AddBoolToObject(json, "stopped_early", true);
    }
}

static void add_results(cJSON *json, car_train_run *run, double elapsed, bool interrupted) {
    const car_train_options *o = &run->options;
    car_trainer_times times = car_train_times(run);
    cJSON_AddNumberToObject(json, "steps", (double)car_train_steps(run));
    cJSON_AddBoolToObject(json, "interrupted", interrupted);
    if (run->reported > 0) {
        cJSON_AddNumberToObject(json, "loss_first", run->first_loss);
        cJSON_AddNumberToObject(json, "loss_last", run->loss);
    }
    if (run->evaluated) {
        char top5[64];
        snprintf(top5, sizeof top5, "%s_top5", car_train_accuracy_name(run->data.domain));
        cJSON_AddNumberToObject(json, car_train_accuracy_name(run->data.domain), run->evaluation.top1);
        cJSON_AddNumberToObject(json, top5, run->evaluation.top5);
        cJSON_AddNumberToObject(json, "eval_loss", run->evaluation.loss);
        if (run->data.domain == CAR_DOMAIN_TOKENS) {
            cJSON_AddNumberToObject(json, "perplexity", exp(run->evaluation.loss));
        }
    }
    add_decisions(json, run);
    cJSON_AddNumberToObject(json, "samples_per_s", (double)run->reported * car_train_step_samples(o) / elapsed);
    cJSON_AddNumberToObject(json, "step_ms_median", median_step(run));
    if (run->first_step > 0) {
        cJSON_AddNumberToObject(json, "resumed_after", (double)run->first_step);
    }
    add_data(json, run, times.wall);
    cJSON *executor = cJSON_AddObjectToObject(json, "executor");
    cJSON_AddNumberToObject(executor, "wall_s", times.wall);
    cJSON_AddNumberToObject(executor, "tasks_s", times.tasks);
    cJSON_AddNumberToObject(executor, "waiting_s", times.waiting);
    cJSON_AddNumberToObject(executor, "choosing_s", times.choosing);
}

void car_train_show_problems(const car_train_run *run) {
    car_dataset_problems problems;
    char rank[32] = "";
    car_dataset_get_problems(run->data.set, &problems);
    if (problems.unreadable + problems.damaged == 0) {
        return;
    }
    if (run->transport) {
        snprintf(rank, sizeof rank, "rank %d: ", car_transport_rank(run->transport));
    }
    fprintf(stderr, "carousel: warning: %s%lld samples could not be read, %lld are damaged; the first are\n", rank,
            (long long)problems.unreadable, (long long)problems.damaged);
    for (int n = 0; n < problems.name_count; n++) {
        fprintf(stderr, "  %s\n", problems.names[n]);
    }
}

/* Whether the directory has a summary of these weights, of a run that came to its end. */
static bool has_summary(car_train_run *run, const char *digest) {
    char path[CAR_TRAIN_PATH], line[512];
    bool found = false, ended = true;
    FILE *file = path_in_run(run, "summary.json", path) == CAR_OK ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        found = found || (strstr(line, "weights_sha256") && strstr(line, digest));
        ended = ended && !(strstr(line, "\"interrupted\"") && strstr(line, "true"));
    }
    if (file) {
        fclose(file);
    }
    return found && ended;
}

car_status car_train_was_over(car_train_run *run, bool *out) {
    char digest[80];
    car_status status = CAR_OK;
    *out = false;
    if (run->options.out && run->first_step > 0 && car_train_steps(run) == run->first_step) {
        CAR_TRY(car_weights_digest(car_train_weights(run), digest));
        *out = has_summary(run, digest);
    }
done:
    return status;
}

car_status car_train_summarize(car_train_run *run, bool interrupted) {
    double elapsed = car_clock_seconds() - run->started - run->aside;
    char digest[80] = "";
    bool before = false;
    cJSON *json = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_train_was_over(run, &before));
    if (before) {
        printf("nothing to do: the run in %s was over after %lld steps\n", run->options.out,
               (long long)run->first_step);
        return CAR_OK;
    }
    if (run->terminal && interrupted) {
        putchar('\n');
    }
    printf("%s after %lld steps", interrupted ? "interrupted" : "done", (long long)car_train_steps(run));
    if (run->reported > 0) {
        printf(": loss %.4f -> %.4f in %.1f s, %.1f samples/s, ", run->first_loss, run->loss, elapsed,
               (double)run->reported * car_train_step_samples(&run->options) / elapsed);
        car_train_print_peak(run);
    }
    puts(run->reported > 0 || interrupted ? "" : ", all of them made before");
    car_train_show_problems(run);
    if (!run->weights_written) {
        return CAR_OK;
    }
    json = cJSON_CreateObject();
    if (!json) {
        return car_context_fail(run->context, CAR_ERROR_MEMORY, "out of memory for summary.json");
    }
    CAR_TRY(car_weights_digest(car_train_weights(run), digest));
    add_options(json, run);
    add_results(json, run, elapsed, interrupted);
    car_train_add_memory(run, json);
    car_train_add_traffic(run, json);
    cJSON_AddStringToObject(json, "weights_sha256", digest);
    add_machine(json, run);
    /* The summary comes last: whoever finds it finds all the rest. */
    CAR_TRY(write_json(run, "summary.json", json));
done:
    cJSON_Delete(json);
    return status;
}
