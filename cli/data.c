/* carousel data: inspects datasets and packs them. */
#include "data.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carousel/convention.h"

enum { MOST_ARGUMENTS = 64, NAMES_SHOWN = 12 };

static const char data_help[] = "D is cifar10:DIR, imagefolder:DIR, tokens:FILE or packed:FILE.";

typedef struct options {
    bool json;
    const char *output;
    int size;
} options;

/* ---- info: text ------------------------------------------------------------------------------ */

static void print_classes(const car_dataset *dataset, int classes) {
    printf("classes     %d", classes);
    for (int c = 0; c < classes && c < NAMES_SHOWN && car_dataset_class_name(dataset, c); c++) {
        printf("%s%s", c ? ", " : ": ", car_dataset_class_name(dataset, c));
    }
    puts(classes > NAMES_SHOWN && car_dataset_class_name(dataset, 0) ? ", ..." : "");
}

static void print_problems(const car_dataset *dataset) {
    car_dataset_problems problems;
    car_dataset_get_problems(dataset, &problems);
    printf("unreadable  %lld\ndamaged     %lld\n", (long long)problems.unreadable, (long long)problems.damaged);
    for (int i = 0; i < problems.name_count; i++) {
        printf("  %s\n", problems.names[i]);
    }
    if (problems.unreadable + problems.damaged > problems.name_count) {
        puts("  ...");
    }
    car_cli_print_unused(dataset);
}

static void print_images(const car_dataset *dataset, const car_dataset_info *info, const car_cli_scan *scan) {
    printf("training    %lld images\nevaluation  %lld images\n", (long long)info->samples[CAR_SPLIT_TRAIN],
           (long long)info->samples[CAR_SPLIT_EVALUATION]);
    print_classes(dataset, info->classes);
    if (scan->least_width == scan->most_width && scan->least_height == scan->most_height) {
        printf("pixels      %d x %d\n", scan->most_width, scan->most_height);
    } else {
        printf("pixels      %d to %d wide, %d to %d high\n", scan->least_width, scan->most_width, scan->least_height,
               scan->most_height);
    }
    printf("mean        %.4f %.4f %.4f (red, green and blue of the training images)\n", scan->mean[0], scan->mean[1],
           scan->mean[2]);
    printf("deviation   %.4f %.4f %.4f\n", scan->deviation[0], scan->deviation[1], scan->deviation[2]);
    print_problems(dataset);
}

static void print_tokens(const car_dataset_info *info) {
    printf("training    %lld tokens\nevaluation  %lld tokens\n", (long long)info->tokens[CAR_SPLIT_TRAIN],
           (long long)info->tokens[CAR_SPLIT_EVALUATION]);
    printf("vocabulary  at least %d; %d different tokens occur\n", info->classes, info->tokens_used);
}

/* ---- info: JSON ------------------------------------------------------------------------------ */

/* cJSON returns NULL if memory is short; `ok` collects this. */
static cJSON *add_splits(cJSON *root, const char *name, const int64_t *counts, bool *ok) {
    cJSON *object = cJSON_AddObjectToObject(root, name);
    *ok = cJSON_AddNumberToObject(object, "training", (double)counts[CAR_SPLIT_TRAIN]) &&
          cJSON_AddNumberToObject(object, "evaluation", (double)counts[CAR_SPLIT_EVALUATION]) && *ok;
    return object;
}

static void add_images(cJSON *root, const car_dataset *dataset, const car_dataset_info *info, const car_cli_scan *scan,
                       bool *ok) {
    car_dataset_problems problems;
    const int sizes[] = {scan->least_width, scan->most_width, scan->least_height, scan->most_height};
    const char *const names[] = {"width_least", "width_most", "height_least", "height_most"};
    car_dataset_get_problems(dataset, &problems);
    add_splits(root, "samples", info->samples, ok);
    *ok = cJSON_AddNumberToObject(root, "classes", info->classes) && *ok;
    cJSON *classes = cJSON_AddArrayToObject(root, "class_names");
    for (int c = 0; *ok && c < info->classes && car_dataset_class_name(dataset, c); c++) {
        *ok = cJSON_AddItemToArray(classes, cJSON_CreateString(car_dataset_class_name(dataset, c)));
    }
    for (int i = 0; i < 4; i++) {
        *ok = cJSON_AddNumberToObject(root, names[i], sizes[i]) && *ok;
    }
    *ok = cJSON_AddItemToObject(root, "mean", cJSON_CreateDoubleArray(scan->mean, 3)) && *ok;
    *ok = cJSON_AddItemToObject(root, "deviation", cJSON_CreateDoubleArray(scan->deviation, 3)) && *ok;
    *ok = cJSON_AddNumberToObject(root, "unreadable", (double)problems.unreadable) && *ok;
    *ok = cJSON_AddNumberToObject(root, "damaged", (double)problems.damaged) && *ok;
    cJSON *list = cJSON_AddArrayToObject(root, "problems");
    for (int i = 0; *ok && i < problems.name_count; i++) {
        *ok = cJSON_AddItemToArray(list, cJSON_CreateString(problems.names[i]));
    }
    *ok = car_cli_add_unused(root, dataset) && *ok;
}

static car_status print_json(car_context *context, const char *name, const car_dataset *dataset,
                             const car_dataset_info *info, const car_cli_scan *scan) {
    char digest[65] = "", *text = NULL;
    cJSON *root = cJSON_CreateObject();
    bool ok = root != NULL;
    car_status status = car_dataset_digest(dataset, digest);
    ok = cJSON_AddStringToObject(root, "data", name) && cJSON_AddStringToObject(root, "digest", digest) && ok;
    if (info->domain == CAR_DOMAIN_TOKENS) {
        add_splits(root, "tokens", info->tokens, &ok);
        ok = cJSON_AddNumberToObject(root, "vocabulary", info->classes) && ok;
        ok = cJSON_AddNumberToObject(root, "tokens_used", info->tokens_used) && ok;
    } else {
        add_images(root, dataset, info, scan, &ok);
    }
    text = ok && status == CAR_OK ? cJSON_Print(root) : NULL;
    if (text) {
        puts(text);
    } else if (status == CAR_OK) {
        status = car_context_fail(context, CAR_ERROR_MEMORY, "out of memory for the answer");
    }
    cJSON_free(text);
    cJSON_Delete(root);
    return status;
}

/* ---- the two commands ------------------------------------------------------------------------ */

static car_status show_info(car_context *context, const char *name, car_dataset *dataset, const options *o) {
    car_dataset_info info = car_dataset_get_info(dataset);
    car_cli_scan scan = {0};
    car_status status = CAR_OK;
    if (info.samples[CAR_SPLIT_TRAIN] == CAR_DATASET_ENDLESS) {
        puts("generated while it is read, without end, in any shape");
        return CAR_OK;
    }
    if (info.domain == CAR_DOMAIN_IMAGES) {
        CAR_TRY(car_cli_scan_images(context, dataset, &scan));
    }
    if (o->json) {
        return print_json(context, name, dataset, &info, &scan);
    }
    printf("data        %s\n", name);
    if (info.domain == CAR_DOMAIN_IMAGES) {
        print_images(dataset, &info, &scan);
    } else {
        print_tokens(&info);
    }
done:
    return status;
}

static void show_packing(void *user, int64_t done, int64_t all) {
    (void)user;
    car_cli_show_progress("packing images:", done, all);
}

static car_status pack(car_context *context, const char *name, car_dataset *dataset, const options *o) {
    struct stat file;
    car_dataset_info info = car_dataset_get_info(dataset);
    car_status status = CAR_OK;
    (void)name;
    if (access(o->output, F_OK) == 0) {
        return car_context_fail(context, CAR_ERROR_IO, "%s already exists; remove it, or choose another name",
                                o->output);
    }
    CAR_TRY(car_dataset_pack(dataset, o->size, o->output, show_packing, NULL));
    printf("%s: %lld images to train on, %lld to evaluate on, %.1f MB; use it with --data packed:%s\n", o->output,
           (long long)info.samples[CAR_SPLIT_TRAIN], (long long)info.samples[CAR_SPLIT_EVALUATION],
           stat(o->output, &file) == 0 ? (double)file.st_size / 1e6 : 0.0, o->output);
    print_problems(dataset);
done:
    return status;
}

typedef car_status (*action)(car_context *context, const char *name, car_dataset *dataset, const options *o);

static int run(action act, const char *name, const options *o) {
    car_context *context = NULL;
    car_dataset *dataset = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_create(NULL, &context));
    CAR_TRY(car_dataset_open(context, name, NULL, &dataset));
    CAR_TRY(act(context, name, dataset, o));
done:;
    int code = status == CAR_OK ? CAR_CLI_OK : car_cli_report(context, status);
    car_dataset_close(dataset);
    car_context_destroy(context);
    return code;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Removes the dataset's name from the arguments and replaces -o by --output. Returns the number of arguments left, or
 * -1 after a message. */
static int take_name(const char *command, int argc, char **argv, char **rest, const char **name) {
    int count = 0;
    *name = NULL;
    for (int i = 0; i < argc; i++) {
        bool value = i > 0 && (strcmp(argv[i - 1], "-o") == 0 || strcmp(argv[i - 1], "--output") == 0 ||
                               strcmp(argv[i - 1], "--size") == 0);
        if (i > 0 && argv[i][0] != '-' && !value && !*name) {
            *name = argv[i];
            continue;
        }
        if (count == MOST_ARGUMENTS) {
            car_cli_fail(0, "%s: too many arguments", command);
            return -1;
        }
        rest[count++] = strcmp(argv[i], "-o") == 0 ? (char *)"--output" : argv[i];
    }
    return count;
}

static int run_info(int argc, char **argv) {
    options o = {0};
    char *rest[MOST_ARGUMENTS];
    const char *name = NULL;
    const car_cli_command command = {
        "data info",
        "Describes a dataset: samples, classes, sizes, mean and deviation, and files that are unreadable or not used.",
        "carousel data info D [--json]", data_help};
    const car_cli_option table[] = {{"json", NULL, "print JSON", CAR_CLI_FLAG, &o.json, 0, 0}};
    int count = take_name(command.name, argc, argv, rest, &name);
    int code = count < 0 ? CAR_CLI_USAGE : car_cli_parse(&command, table, 1, count, rest);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    if (!name) {
        return car_cli_fail(CAR_CLI_USAGE, "data info: the dataset D is missing. %s", data_help);
    }
    return run(show_info, name, &o);
}

static int run_pack(int argc, char **argv) {
    options o = {0};
    char *rest[MOST_ARGUMENTS];
    const char *name = NULL;
    const car_cli_command command = {"data pack",
                                     "Stores the decoded images of a dataset in one file, to be used as packed:FILE.",
                                     "carousel data pack D -o FILE [--size X]", data_help};
    const car_cli_option table[] = {
        {"output", "FILE", "file to write; also -o (required)", CAR_CLI_TEXT, &o.output, 0, 0},
        {"size", "X", "resize the shorter side to X pixels; without it, all images must have the same size",
         CAR_CLI_INT, &o.size, 1, 65535},
    };
    int count = take_name(command.name, argc, argv, rest, &name);
    int code = count < 0 ? CAR_CLI_USAGE : car_cli_parse(&command, table, 2, count, rest);
    if (code != CAR_CLI_GO_ON) {
        return code;
    }
    if (!name || !o.output) {
        return car_cli_fail(CAR_CLI_USAGE, "data pack: %s",
                            name ? "-o FILE is missing; see 'carousel data pack --help'"
                                 : "the dataset D is missing; see 'carousel data pack --help'");
    }
    return run(pack, name, &o);
}

int car_cli_data(int argc, char **argv) {
    static const char usage[] = "usage: carousel data info D [--json]\n"
                                "       carousel data pack D -o FILE [--size X]\n";
    static const char summary[] = "Inspects datasets, and packs them for fast epochs.";
    if (argc < 2) {
        fputs(usage, stderr);
        return CAR_CLI_USAGE;
    }
    if (strcmp(argv[1], "info") == 0) {
        return run_info(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "pack") == 0) {
        return run_pack(argc - 1, argv + 1);
    }
    switch (car_cli_find_help(2, argv)) {
    case CAR_CLI_HELP_TEXT:
        printf("%s\n\n%s\n%s\n'carousel data info --help' and 'carousel data pack --help' list the options.\n", summary,
               usage, data_help);
        return CAR_CLI_OK;
    case CAR_CLI_HELP_LIST:
        puts("info\t\t\tdescribe a dataset\npack\t\t\tstore its decoded images in one file");
        return CAR_CLI_OK;
    case CAR_CLI_HELP_MAN:
        car_cli_print_man_head("carousel-data", summary, usage + strlen("usage: "));
        return run_info(argc, argv) == CAR_CLI_OK ? run_pack(argc, argv) : CAR_CLI_FAILED;
    case CAR_CLI_HELP_NONE:
        break;
    }
    return car_cli_fail(CAR_CLI_USAGE,
                        "data: there is no command '%s'; use info or pack, and see 'carousel data --help'", argv[1]);
}
