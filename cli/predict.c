/* carousel predict: classifies images. */
#include "predict.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "carousel/convention.h"
#include "carousel/utf8.h"

enum { IMAGES_OF_A_THREAD = 8 }; /* results are printed after so many images per thread */

static int read_options(int argc, char **argv, car_predict_run *run) {
    car_train_options *o = &run->options;
    char models[1024];
    car_train_default_options(o);
    run->top = 5;
    const car_cli_option options[] = {
        {"top", "K", "print the K most likely classes of each image", CAR_CLI_INT, &run->top, 1, 1 << 24},
        {"json", NULL, "print a JSON array", CAR_CLI_FLAG, &run->json, 0, 0},
        {"threads", "P", "threads; each classifies one image at a time", CAR_CLI_INT, &o->threads, 1, 1024},
        {"model", "NAME", "the model, if the weights do not name it", CAR_CLI_TEXT, &o->model, 0, 0},
        {"classes", "C", "its number of classes, if the weights do not say it", CAR_CLI_INT, &o->shape.classes, 1,
         1 << 24},
        {"image-size", "X", "its image size in pixels, if the weights do not say it", CAR_CLI_INT, &o->shape.image_size,
         1, 1 << 14},
    };
    enum { COUNT = sizeof options / sizeof options[0] };
    car_cli_list_models(models, sizeof models);
    const car_cli_command command = {"predict", "Classifies images with a trained model.",
                                     "carousel predict RUN|WEIGHTS.safetensors IMAGE|DIR... [OPTIONS]", models};
    car_status status = CAR_OK;
    const char *word = NULL;
    bool named = false;
    if (!car_cli_wants_help(argc, argv)) {
        run->place = car_cli_take_word(options, COUNT, &argc, argv);
        while (run->place && status == CAR_OK && (word = car_cli_take_word(options, COUNT, &argc, argv))) {
            status = car_predict_add(run, word);
            named = true;
        }
    }
    int code =
        status == CAR_OK ? car_cli_parse(&command, options, COUNT, argc, argv) : car_cli_report(run->context, status);
    if (code == CAR_CLI_GO_ON && !run->place) {
        code = car_cli_fail(CAR_CLI_USAGE, "predict: no weights are given; see 'carousel predict --help'");
    } else if (code == CAR_CLI_GO_ON && run->file_count == 0) {
        code = car_cli_fail(run->others ? CAR_CLI_FAILED : CAR_CLI_USAGE,
                            named ? "predict: no images were found (.jpg, .jpeg, .png, .webp)"
                                  : "predict: no IMAGE or DIR is given; see 'carousel predict --help'");
    }
    return code == CAR_CLI_GO_ON && o->model ? car_cli_check_model("predict", o->model, false) : code;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* The weights of runs from before there were cards do not say which model they are of, but the run's config.json does.
 * Options of the command line come first. */
static int read_run(car_predict_run *run) {
    const car_cli_command command = {.name = "predict"};
    car_train_options *o = &run->options, typed = *o;
    char path[CAR_TRAIN_PATH];
    struct stat entry;
    int length = snprintf(path, sizeof path, "%s/config.json", run->place);
    if (o->model || length >= (int)sizeof path || stat(path, &entry) != 0) {
        return CAR_CLI_GO_ON;
    }
    int code = car_train_read_config(&command, path, o);
    o->threads = typed.threads;
    o->shape.classes = typed.shape.classes ? typed.shape.classes : o->shape.classes;
    o->shape.image_size = typed.shape.image_size ? typed.shape.image_size : o->shape.image_size;
    return code;
}

/* Images are classified one at a time by each thread, in fp32. */
static car_status open_model(car_predict_run *run) {
    car_trained_options options = {.model = run->options.model, .shape = run->options.shape};
    options.shape.batch = 1;
    options.shape.precision = CAR_PRECISION_FP32;
    car_status status = car_cli_open_weights(run->context, run->place, &options, &run->trained);
    if (status == CAR_OK) {
        int classes = car_trained_shape(run->trained).classes;
        run->top = run->top < classes ? run->top : classes;
    }
    return status;
}

/* ---- results --------------------------------------------------------------------------------- */

/* A name or error of a file, made safe for one line. */
typedef struct shown_text {
    char text[1024];
} shown_text;

static shown_text make_plain(const char *text) {
    shown_text shown;
    car_utf8_show(text, false, shown.text, sizeof shown.text);
    return shown;
}

static void name_class(const car_predict_run *run, int index, char *text, size_t capacity) {
    char own[256];
    car_trained_class_name(run->trained, index, own, sizeof own);
    car_utf8_show(own, false, text, capacity); /* the weights may come from anyone */
}

static void print_answer(const car_predict_run *run, const char *path, const car_classification *r) {
    char name[256];
    printf("%s:", make_plain(path).text);
    for (int k = 0; k < run->top; k++) {
        name_class(run, r->answers[k].index, name, sizeof name);
        printf("%s %s %.2f %%", k ? "," : "", name, 100 * r->answers[k].probability);
    }
    putchar('\n');
}

static bool print_json(const car_predict_run *run, const char *path, const car_classification *r, bool first) {
    char name[256];
    cJSON *object = cJSON_CreateObject();
    bool ok = cJSON_AddStringToObject(object, "file", make_plain(path).text) != NULL;
    if (r->file.problem[0]) {
        ok = ok &&
             cJSON_AddStringToObject(object, r->file.readable ? "damaged" : "error", make_plain(r->file.problem).text);
    }
    cJSON *list = r->file.readable ? cJSON_AddArrayToObject(object, "predictions") : NULL;
    for (int k = 0; list && ok && k < run->top; k++) {
        cJSON *entry = cJSON_CreateObject();
        name_class(run, r->answers[k].index, name, sizeof name);
        ok = cJSON_AddItemToArray(list, entry) && cJSON_AddStringToObject(entry, "class", name) &&
             cJSON_AddNumberToObject(entry, "index", r->answers[k].index) &&
             cJSON_AddNumberToObject(entry, "probability", r->answers[k].probability);
    }
    char *text = ok ? cJSON_PrintUnformatted(object) : NULL;
    if (text) {
        printf("%s%s", first ? "[\n" : ",\n", text);
    }
    cJSON_free(text);
    cJSON_Delete(object);
    return text != NULL;
}

static car_status show(car_predict_run *run, int first, int end, const car_classification *results) {
    for (int f = first; f < end; f++) {
        const car_classification *r = &results[f - first];
        run->failed += !r->file.readable;
        if (r->file.problem[0]) {
            car_cli_say(r->file.readable ? "warning: damaged: " : "", r->file.problem);
        }
        if (run->json && !print_json(run, run->files[f], r, f == 0)) {
            return car_context_fail(run->context, CAR_ERROR_MEMORY, "out of memory for an answer");
        }
        if (!run->json && r->file.readable) {
            print_answer(run, run->files[f], r);
        }
    }
    fflush(stdout);
    return CAR_OK;
}

/* Predicts some images at a time, so that results appear early. */
static car_status predict(car_predict_run *run) {
    const car_classify_config config = {.threads = run->options.threads, .top = run->top};
    int portion = IMAGES_OF_A_THREAD * run->options.threads;
    size_t answers = (size_t)portion * (size_t)run->top;
    car_classification *results = NULL;
    car_class_answer *room = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(run->context, (size_t)portion, sizeof *results, &results));
    CAR_TRY(car_context_allocate(run->context, answers, sizeof *room, &room));
    for (int i = 0; i < portion; i++) {
        results[i].answers = room + (size_t)i * (size_t)run->top;
    }
    for (int first = 0; first < run->file_count; first += portion) {
        int end = run->file_count - first < portion ? run->file_count : first + portion;
        CAR_TRY(
            car_trained_classify(run->trained, (const char *const *)run->files + first, end - first, &config, results));
        CAR_TRY(show(run, first, end, results));
    }
    if (run->json) {
        puts("\n]");
    }
done:
    car_context_release(run->context, room, room ? answers : 0, sizeof *room);
    car_context_release(run->context, results, results ? (size_t)portion : 0, sizeof *results);
    return status;
}

int car_cli_predict(int argc, char **argv) {
    car_predict_run run = {0};
    car_status status = car_context_create(NULL, &run.context);
    int code = status == CAR_OK ? read_options(argc, argv, &run) : car_cli_report(NULL, status);
    code = code == CAR_CLI_GO_ON ? read_run(&run) : code;
    if (code == CAR_CLI_GO_ON) {
        status = open_model(&run);
        status = status == CAR_OK ? predict(&run) : status;
        code = status == CAR_OK ? CAR_CLI_OK : car_cli_report(run.context, status);
    }
    if (code == CAR_CLI_OK && run.others > 0) {
        fprintf(stderr, "carousel: skipped %d files in the folders that are not images\n", run.others);
    }
    if (code == CAR_CLI_OK && run.failed > 0) {
        code = car_cli_fail(CAR_CLI_FAILED, "%d of %d images could not be read", run.failed, run.file_count);
    }
    if (run.context) {
        car_trained_close(run.trained);
        car_predict_release_files(&run);
        car_context_destroy(run.context);
    }
    car_cli_release_config(run.options.config_texts);
    return code;
}
