/* Opening, feeding and closing a session. */
#include "engine/session.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"

/* ---- what is trained --------------------------------------------------------------------------------------- */

car_model_config car_session_small(const char *model, int batch) {
    const car_model_config image = {.batch = batch, .classes = 5, .image_size = 8, .channels = 3};
    car_model_config config = image;
    if (strcmp(model, "mlp") == 0) {
        config.width = 24;
        config.depth = 4;
    } else if (strcmp(model, "resnet20") == 0) {
        config.width = 4;
    } else if (strcmp(model, "vit-tiny") == 0) {
        config.width = 24;
        config.depth = 3;
        config.heads = 3;
    } else {
        config =
            (car_model_config){.batch = batch, .seq_len = 6, .vocabulary = 17, .width = 24, .depth = 3, .heads = 3};
    }
    return config;
}

car_session_config car_session_config_default(const char *model, int workers, car_rule rule) {
    car_session_config config = {.model = model, .model_config = car_session_small(model, 2), .seed = 7};
    config.partition.stages = workers;
    config.plan = car_plan_config_default();
    config.plan.workers = workers;
    config.plan.rule = rule;
    config.training = car_trainer_config_default();
    config.training.threads = 2;
    config.training.schedule.lr = 0.02;
    return config;
}

/* ---- callbacks --------------------------------------------------------------------------------------------- */

static void sleep_seconds(double seconds) {
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

static void spoil(void *inputs, size_t bytes, float value) {
    float *values = inputs;
    for (size_t i = 0; i < bytes / sizeof *values; i++) {
        values[i] = value;
    }
}

car_status car_session_feed(void *user, int64_t step, int worker, car_tape *tape) {
    const car_session *session = user;
    const car_fault *fault = &session->config.fault;
    bool tokens = session->source.domain == CAR_DOMAIN_TOKENS, hit = fault->step == step && fault->worker == worker;
    int x = car_graph_find_tensor(session->graph, tokens ? "tokens" : "images");
    int y = car_graph_find_tensor(session->graph, "labels");
    size_t bytes = car_graph_tensor(session->graph, x)->bytes;
    uint64_t batch = (uint64_t)session->source.config.batch;
    uint64_t number = (uint64_t)((session->config.first_sample_step + step) * session->config.plan.workers + worker);
    if (hit && fault->kind == CAR_FAULT_ERROR) {
        return car_context_fail(session->context, CAR_ERROR_IO, "no sample for worker %d in step %lld", worker,
                                (long long)step);
    }
    if (hit && fault->kind == CAR_FAULT_SLEEP) {
        sleep_seconds((double)fault->value);
    }
    void *inputs = malloc(bytes);
    int32_t *labels = malloc(car_graph_tensor(session->graph, y)->bytes);
    car_status status = inputs && labels ? CAR_OK : CAR_ERROR_MEMORY;
    if (status == CAR_OK) {
        car_synthetic_batch(&session->source, number * batch, inputs, labels);
        if (hit && fault->kind == CAR_FAULT_VALUE && !tokens) {
            spoil(inputs, bytes, fault->value);
        }
        status = car_tape_feed(tape, x, inputs);
    }
    if (status == CAR_OK) {
        status = car_tape_feed(tape, y, labels);
    }
    free(labels);
    free(inputs);
    return status;
}

static void keep_report(void *user, const car_step_report *report) {
    car_session *session = user;
    session->reports_in_order = session->reports_in_order && report->step == session->report_count;
    if (session->report_count < CAR_SESSION_STEPS) {
        session->reports[session->report_count] = *report;
    }
    session->report_count++;
}

/* ---- life -------------------------------------------------------------------------------------------------- */

/* One at a time. oneDNN keeps the descriptions of primitives for all threads of a process and orders their use by atomics
 * that ThreadSanitizer does not see; what we read of a description another thread made would look like a race. */
static car_status create_program(car_session *session) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    car_status status = car_program_create(session->graph, NULL, &session->program);
    pthread_mutex_unlock(&one_at_a_time);
    return status;
}

static car_status open_model(car_session *session) {
    const car_session_config *config = &session->config;
    car_status status = CAR_OK;
    CAR_TRY(car_model_build(session->context, config->model, &config->model_config, &session->graph));
    CAR_TRY(car_model_resolve(session->context, config->model, &config->model_config, &session->source.config));
    session->source.seed = config->seed;
    session->source.domain = car_model_find(config->model)->domain;
    CAR_TRY(car_partition_create(session->graph, &config->partition, &session->partition));
    CAR_TRY(car_plan_create(session->context, session->partition, &config->plan, &session->plan));
    CAR_TRY(car_plan_validate(session->plan, 4));
    CAR_TRY(create_program(session));
done:
    return status;
}

static car_status open_recorder(car_session *session) {
    const car_session_config *config = &session->config;
    const car_recorder_config recorder = {
        .threads = config->training.threads, .categories = true, .most_bytes = config->record_bytes};
    car_status status =
        config->records ? car_recorder_create(session->context, session->arena, &recorder, &session->recorder) : CAR_OK;
    if (session->recorder) {
        car_recorder_set_steps(session->recorder, config->record_first, config->record_end);
    }
    return status;
}

car_status car_session_open(car_session *session, const car_session_config *config) {
    car_context_config context = car_context_config_default();
    car_status status = CAR_OK;
    *session = (car_session){.config = *config, .reports_in_order = true};
    car_trainer_config training = config->training;
    context.log = config->log;
    context.log_user = config->log_user;
    if (!training.feed) {
        training.feed = car_session_feed;
        training.feed_user = session;
    }
    training.report = keep_report;
    training.report_user = session;
    CAR_TRY(car_context_create(&context, &session->context));
    CAR_TRY(open_model(session));
    CAR_TRY(car_arena_create(session->context, config->limit, &session->arena));
    CAR_TRY(open_recorder(session));
    training.recorder = session->recorder;
    CAR_TRY(car_trainer_create(session->plan, session->program, session->arena, &training, &session->trainer));
    CAR_TRY(car_trainer_initialize(session->trainer, config->seed));
done:
    return status;
}

void car_session_close(car_session *session) {
    car_trainer_destroy(session->trainer);
    car_recorder_destroy(session->recorder);
    car_arena_destroy(session->arena);
    car_program_destroy(session->program);
    car_plan_destroy(session->plan);
    car_partition_destroy(session->partition);
    car_graph_destroy(session->graph);
    car_context_destroy(session->context);
    *session = (car_session){0};
}

size_t car_session_rest(const car_session *session) {
    const car_plan_config *plan = &session->config.plan;
    bool in_turn = plan->rule == CAR_RULE_ACCUMULATE && plan->threads > 0 && plan->threads < plan->workers;
    size_t tapes = (size_t)(in_turn ? plan->threads : plan->workers);
    return tapes * car_program_tensor_bytes(session->program, car_graph_loss(session->graph));
}
