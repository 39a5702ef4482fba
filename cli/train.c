/* carousel train: makes a car_run from the options, runs it, shows its results and ends it in order. */
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "train.h"

static void log_line(void *user, car_log_level level, const char *line) {
    (void)user;
    car_cli_say(level == CAR_LOG_WARNING ? "warning: " : "", line);
}

enum { MOST_STEPS = 1000000000 }; /* the limit of --steps */

/* ---- setting up ------------------------------------------------------------------------------ */

/* Stores the options, with all values that were chosen, in later checkpoints. */
static car_status keep_configuration(car_train_run *t) {
    cJSON *json = car_train_config_of(&t->options);
    car_train_add_correction(t, json);
    char *text = json ? cJSON_PrintUnformatted(json) : NULL;
    car_status status = text ? car_run_set_configuration(t->run, text)
                             : car_context_fail(t->context, CAR_ERROR_MEMORY, "out of memory for the configuration");
    cJSON_free(text);
    cJSON_Delete(json);
    return status;
}

/* Rank 0's own setup. The others meanwhile go on to the first step and wait there. */
static car_status open_output(car_train_run *t) {
    car_status status = CAR_OK;
    t->alone = true;
    car_train_tell_differences(t);
    CAR_TRY(car_train_open_output(t));
    car_train_show_model(t);
    t->alone = false;
done:
    return status;
}

/* Over MPI, a rank whose options are wrong still calls car_run_create, with the message. All ranks then fail together,
 * and rank 0 prints the error once. */
static car_status create_run(car_train_run *t) {
    car_run_options options;
    char message[1024];
    car_status status = car_train_configure(t, &options);
    if (status != CAR_OK && t->launched) {
        snprintf(message, sizeof message, "%s", car_context_error(t->context));
        options = (car_run_options){.placement = t->options.placement, .refused = message};
        return car_run_create(t->context, &options, &t->run);
    }
    return status == CAR_OK ? car_run_create(t->context, &options, &t->run) : status;
}

static car_status set_up(car_train_run *t) {
    car_status status = CAR_OK;
    CAR_TRY(create_run(t));
    if (car_run_total_steps(t->run) > MOST_STEPS) {
        return car_context_fail(t->context, CAR_ERROR_ARGUMENT,
                                "--epochs %g makes %lld steps, more than a run can have", t->options.epochs,
                                (long long)car_run_total_steps(t->run));
    }
    car_train_take_over(t);
    CAR_TRY(keep_configuration(t));
    if (t->options.init && !car_train_resumes(&t->options)) {
        CAR_TRY(car_train_load(t));
    }
    car_train_listen_for(t);
    if (car_train_is_first(t)) {
        CAR_TRY(open_output(t));
    }
    CAR_TRY(car_train_start_recorder(t));
done:
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Rank 0 writes the summary; the others wait for it. */
static void show_end(car_train_run *t, const char *digest) {
    if (car_train_is_first(t)) {
        car_train_remember(t, car_train_summarize(t, digest));
    } else {
        car_train_show_problems(t); /* about the samples that this rank has read */
    }
}

static car_status train(car_train_run *t) {
    char digest[80] = "";
    bool before = false;
    car_status status = CAR_OK;
    CAR_TRY(car_train_was_over(t, &before));
    if (before) {
        if (car_train_is_first(t)) {
            printf("nothing to do: the run in %s has already finished its %lld steps\n", t->options.out,
                   (long long)car_run_steps(t->run));
        }
        return CAR_OK;
    }
    status = car_run_train(t->run);
    if (!car_run_has_ended(t->run)) {
        return status;
    }
    car_train_remember(t, status); /* a file could not be written; go on with the rest */
    t->interrupted = !car_run_is_complete(t->run);
    CAR_TRY(car_run_account(t->run, &t->accounts));
    CAR_TRY(car_run_digest(t->run, digest));
    show_end(t, digest);
    CAR_TRY(car_train_write_records(t));
    if (t->failure != CAR_OK) {
        status = car_context_fail(t->context, t->failure, "%s", t->failure_text);
    }
done:
    return status;
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* Rank 0 prints a failure that all ranks know of. A rank that failed alone prints its own, and aborts the job, because
 * the others may be waiting for it. */
static int report(car_train_run *t, car_status status) {
    car_rank *rank = car_run_engine(t->run);
    if (!t->run && t->launched && status != CAR_ERROR_UNSUPPORTED && car_transport_launched_rank() > 0) {
        return car_cli_code_of(status);
    }
    if (!t->launched || !t->run || !(car_run_is_broken(t->run) || t->alone)) {
        bool speaks = !t->run || car_train_is_first(t);
        return speaks ? car_cli_report(t->context, status) : car_cli_code_of(status);
    }
    bool hopeless = status == CAR_ERROR_NOT_FINITE || status == CAR_ERROR_ARGUMENT;
    char where[4096] = "";
    if (!hopeless && !strchr(car_context_error(t->context), '\n')) { /* if not in the message already */
        where[0] = '\n';
        where[1] = where[2] = ' ';
        car_rank_explain(rank, where + 3, sizeof where - 3);
    }
    fprintf(stderr, "carousel: rank %d: %s: %s%s\n", car_run_rank(t->run), car_status_text(status),
            car_context_error(t->context), where);
    car_transport_abort(car_run_transport(t->run), hopeless ? CAR_CLI_FAILED : CAR_CLI_LOST);
    return car_cli_code_of(status);
}

static void tear_down(car_train_run *t) {
    if (t->context) {
        car_train_close_output(t);
        car_run_destroy(t->run);
        car_context_destroy(t->context);
    }
    cJSON_free(t->configuration);
    car_cli_release_config(t->options.config_texts);
    free(t->options.plan_text);
}

static int check_options(const car_train_options *o) {
    if (car_train_resumes(o) && !o->out) {
        return car_cli_fail(CAR_CLI_USAGE, "train: --resume requires --out DIR, the directory of the run to resume");
    }
    if (!o->model && !o->config && car_train_resumes(o)) {
        return car_cli_fail(CAR_CLI_FAILED, "train: there is no run to resume in %s: it has no config.json", o->out);
    }
    return o->model ? car_cli_check_model("train", o->model, false)
                    : car_cli_fail(CAR_CLI_USAGE,
                                   "train: --model NAME is missing; 'carousel train --help' lists the models");
}

int car_cli_train(int argc, char **argv) {
    car_train_run t = {0};
    car_context_config context = car_context_config_default();
    int code = car_train_read_options(argc, argv, &t.options);
    code = code == CAR_CLI_GO_ON ? check_options(&t.options) : code;
    if (code != CAR_CLI_GO_ON) {
        tear_down(&t);
        return code;
    }
    context.log = log_line;
    car_train_listen(&t);
    car_status status = car_context_create(&context, &t.context);
    status = status == CAR_OK ? set_up(&t) : status;
    status = status == CAR_OK ? train(&t) : status;
    car_train_stop_listening();
    bool early = t.interrupted && car_train_is_first(&t); /* mpirun kills all ranks after an exit code other than 0 */
    code = status != CAR_OK ? report(&t, status) : early ? CAR_CLI_INTERRUPTED : CAR_CLI_OK;
    tear_down(&t);
    return code;
}
