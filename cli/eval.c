/* carousel eval: loss and accuracy of a run, or of weights in a file. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "carousel/convention.h"
#include "train.h"
#include "weights.h"

typedef struct evaluation_run {
    car_train_options options;
    const char *directory;    /* of the run; NULL if the options give everything */
    const char *weights_path; /* NULL: the run's weights */
    bool json;
    car_context *context;
    car_trained *trained;
    car_domain domain;
    car_cli_confusion confusion;
    car_evaluation result;
} evaluation_run;

/* Reads the options the run was trained with, except threads, which depend on this machine. */
static int read_run(const car_cli_command *command, evaluation_run *run) {
    car_train_options *o = &run->options;
    char path[CAR_TRAIN_PATH];
    struct stat entry;
    int threads = o->threads;
    if (stat(run->directory, &entry) != 0 || !S_ISDIR(entry.st_mode)) {
        return car_cli_fail(
            CAR_CLI_FAILED,
            "eval: %s is not the directory of a run. To evaluate a file of weights, use --weights FILE --data "
            "SOURCE",
            run->directory);
    }
    if (snprintf(path, sizeof path, "%s/config.json", run->directory) >= (int)sizeof path) {
        return car_cli_fail(CAR_CLI_FAILED, "eval: the path %s is too long", run->directory);
    }
    if (stat(path, &entry) != 0) {
        return car_cli_fail(
            CAR_CLI_FAILED,
            "eval: %s is not the directory of a run: it has no config.json, which 'carousel train --out' "
            "writes. To evaluate a file of weights, use --weights FILE --data SOURCE",
            run->directory);
    }
    int code = car_train_read_config(command, path, o);
    o->threads = threads;
    return code;
}

static int check_options(const evaluation_run *run) {
    const car_train_options *o = &run->options;
    if (o->data && (run->weights_path || run->directory)) {
        return o->model ? car_cli_check_model("eval", o->model, false) : CAR_CLI_GO_ON; /* else the card names it */
    }
    return car_cli_fail(CAR_CLI_USAGE,
                        "eval: --%s is missing. Name the directory of a run, or see 'carousel eval --help'",
                        !run->weights_path && !run->directory ? "weights FILE" : "data SOURCE");
}

static int read_options(int argc, char **argv, evaluation_run *run) {
    car_train_options *o = &run->options;
    char models[1024];
    car_train_default_options(o);
    o->data = NULL;
    const car_cli_option options[] = {
        {"model", "NAME", "the model (default: that of RUN, or the one that the weights name)", CAR_CLI_TEXT, &o->model,
         0, 0},
        {"weights", "FILE", "a safetensors file, or a directory with one (default: the weights of RUN)", CAR_CLI_TEXT,
         &run->weights_path, 0, 0},
        {"data", "SOURCE", "as for train; its evaluation samples are used (default: the data of RUN)", CAR_CLI_TEXT,
         &o->data, 0, 0},
        {"batch", "B", "samples in a micro-batch", CAR_CLI_INT, &o->shape.batch, 1, 1 << 20},
        {"batches", "N", "micro-batches to evaluate; 0 = all (8 for synthetic data)", CAR_CLI_INT, &o->eval_batches, 0,
         1e9},
        {"threads", "P", "compute threads", CAR_CLI_INT, &o->threads, 1, 1024},
        {"data-threads", "N", "threads that prefetch samples; 0 = none", CAR_CLI_INT, &o->data_threads, 0, 256},
        {"classes", "C", "number of classes of an image model (default: that of the data)", CAR_CLI_INT,
         &o->shape.classes, 1, 1 << 24},
        {"image-size", "X", "image size in pixels (default: that of small images in the data, or the model's own)",
         CAR_CLI_INT, &o->shape.image_size, 1, 1 << 14},
        CAR_CLI_SHAPE_OPTIONS(o->shape),
        {"precision", "P", "precision of the computation: fp32 or bf16 (default: that of RUN)", CAR_CLI_TEXT,
         &o->precision, 0, 0},
        {"seed", "N", "seed of synthetic data", CAR_CLI_SEED, &o->seed, 0, 0},
        {"json", NULL, "print a JSON object", CAR_CLI_FLAG, &run->json, 0, 0},
    };
    enum { COUNT = sizeof options / sizeof options[0] };
    car_cli_list_models(models, sizeof models);
    const car_cli_command command = {"eval", "Evaluates a run, or a model's weights.",
                                     "carousel eval RUN [OPTIONS]\n"
                                     "       carousel eval --weights FILE --data SOURCE [--model NAME] [OPTIONS]",
                                     models};
    run->directory = car_cli_wants_help(argc, argv) ? NULL : car_cli_take_word(options, COUNT, &argc, argv);
    int code = run->directory ? read_run(&command, run) : CAR_CLI_GO_ON;
    code = code == CAR_CLI_GO_ON ? car_cli_parse(&command, options, COUNT, argc, argv) : code;
    return code == CAR_CLI_GO_ON ? check_options(run) : code;
}

static car_status evaluate(evaluation_run *run) {
    car_train_options *o = &run->options;
    car_program_config kernels = car_program_config_default();
    car_trained_options options = {
        .model = o->model, .data = o->data, .data_threads = o->data_threads, .seed = o->seed, .kernels = &kernels};
    car_feeder_evaluation how = {.threads = o->threads, .batches = o->eval_batches};
    car_status status = CAR_OK;
    CAR_TRY(car_context_create(NULL, &run->context));
    CAR_TRY(car_train_read_precision(run->context, o));
    CAR_TRY(car_convolutions_find(run->context, o->convolutions, &kernels.convolutions));
    CAR_TRY(car_convolutions_find_memory(run->context, o->memory, &kernels.tight));
    options.shape = o->shape;
    CAR_TRY(car_cli_open_weights(run->context, run->weights_path ? run->weights_path : run->directory, &options,
                                 &run->trained));
    run->domain = car_trained_model(run->trained)->domain;
    if (run->domain == CAR_DOMAIN_IMAGES) {
        CAR_TRY(car_cli_create_confusion(run->context, car_trained_shape(run->trained).classes, &run->confusion));
        how.counts = run->confusion.counts;
    }
    CAR_TRY(car_trained_evaluate(run->trained, &how, &run->result));
done:
    return status;
}

static void print_result(const evaluation_run *run) {
    const car_evaluation *e = &run->result;
    if (!run->json) {
        car_train_print_evaluation(stdout, run->domain, e);
        putchar('\n');
        if (run->confusion.counts) {
            car_cli_print_confusion(&run->confusion, car_trained_data(run->trained));
        }
        return;
    }
    bool images = run->domain == CAR_DOMAIN_IMAGES;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "loss", e->loss);
    if (images) {
        cJSON_AddNumberToObject(json, "top1", e->top1);
        cJSON_AddNumberToObject(json, "top5", e->top5);
    } else {
        cJSON_AddNumberToObject(json, "perplexity", exp(e->loss));
        cJSON_AddNumberToObject(json, car_train_accuracy_name(run->domain), e->top1);
    }
    cJSON_AddNumberToObject(json, images ? "samples" : "tokens", (double)e->rows);
    if (run->confusion.counts) {
        car_cli_add_confusion(json, &run->confusion, car_trained_data(run->trained));
    }
    char *text = cJSON_Print(json);
    puts(text ? text : "{}");
    cJSON_free(text);
    cJSON_Delete(json);
}

int car_cli_eval(int argc, char **argv) {
    evaluation_run run = {0};
    int code = read_options(argc, argv, &run);
    car_status status = code == CAR_CLI_GO_ON ? evaluate(&run) : CAR_OK;
    if (code == CAR_CLI_GO_ON && status == CAR_OK) {
        print_result(&run);
        code = CAR_CLI_OK;
    } else if (code == CAR_CLI_GO_ON) {
        code = car_cli_report(run.context, status);
    }
    if (run.context) {
        car_trained_close(run.trained);
        car_cli_destroy_confusion(&run.confusion);
        car_context_destroy(run.context);
    }
    car_cli_release_config(run.options.config_texts);
    return code;
}
