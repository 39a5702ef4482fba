/* One run of the demo: starts `carousel train` in its own process, as a user would, and reads its run directory. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "demo.h"

enum { MOST_ARGUMENTS = 64, LARGEST_FILE = 1 << 26 };

/* ---- the directory --------------------------------------------------------------------------- */

/* Ctrl-C also reaches the run, which ends in order. The demo ignores it, so that it can remove its files. */
static void on_signal(int number) {
    (void)number;
}

int car_demo_open(char directory[CAR_DEMO_PATH]) {
    const char *place = getenv("TMPDIR");
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    snprintf(directory, CAR_DEMO_PATH, "%s/carousel-demo-XXXXXX", place && *place ? place : "/tmp");
    if (!mkdtemp(directory)) {
        return car_cli_fail(CAR_CLI_FAILED, "demo: could not create %s: %s", directory, strerror(errno));
    }
    return CAR_CLI_OK;
}

static int remove_one(const char *path, const struct stat *entry, int kind, struct FTW *place) {
    (void)entry, (void)kind, (void)place;
    return remove(path);
}

void car_demo_close(const char *directory) {
    nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- the run --------------------------------------------------------------------------------- */

static void become_train(const char *out, const char *const *arguments) {
    const char *argv[MOST_ARGUMENTS] = {"carousel", "train", "--keep", "0", "--out", out};
    int count = 6, nothing = open("/dev/null", O_WRONLY);
    for (int a = 0; arguments[a] && count < MOST_ARGUMENTS - 1; a++) {
        argv[count++] = arguments[a];
    }
    if (nothing >= 0) {
        dup2(nothing, STDOUT_FILENO); /* errors go to standard error */
    }
    execv("/proc/self/exe", (char **)argv);
    fprintf(stderr, "carousel: demo: could not start carousel train: %s\n", strerror(errno));
    _exit(CAR_CLI_FAILED);
}

static int run_and_wait(const char *out, const char *const *arguments) {
    int state = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        become_train(out, arguments);
    }
    while (child > 0 && waitpid(child, &state, 0) < 0 && errno == EINTR) {
    }
    if (child < 0) {
        return car_cli_fail(CAR_CLI_FAILED, "demo: could not start a process: %s", strerror(errno));
    }
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

/* ---- reading results ------------------------------------------------------------------------- */

static cJSON *read_json(const char *directory, const char *name) {
    char path[CAR_DEMO_PATH + 64];
    struct stat entry;
    cJSON *json = NULL;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "r");
    char *text = file && fstat(fileno(file), &entry) == 0 && entry.st_size < LARGEST_FILE
                     ? malloc((size_t)entry.st_size + 1)
                     : NULL;
    if (text) {
        json = cJSON_ParseWithLength(text, fread(text, 1, (size_t)entry.st_size, file));
    }
    free(text);
    if (file) {
        fclose(file);
    }
    return json;
}

static double number(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static const cJSON *get(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static void read_summary(const cJSON *summary, car_demo_result *out) {
    const cJSON *executor = get(summary, "executor"), *rank = NULL;
    double wall = number(executor, "wall_s"), threads = number(summary, "threads"), computed = 0;
    int ranks = 0;
    cJSON_ArrayForEach(rank, get(summary, "ranks")) {
        computed += number(rank, "compute_s");
        ranks++;
    }
    computed = ranks ? computed : number(executor, "tasks_s");
    out->samples_per_s = number(summary, "samples_per_s");
    out->idle = fmax(1 - computed / (wall * threads * (ranks ? ranks : 1)), 0);
    out->activations = number(get(summary, "memory"), "activations_peak_bytes");
    out->loss_first = number(summary, "loss_first");
    out->loss_evaluated = number(summary, "eval_loss");
    out->accuracy = number(summary, "next_token_accuracy");
}

/* Bytes a worker held at a time: those of its last point before it, or of its first point. */
static double held_at(const cJSON *points, double when) {
    const cJSON *point = NULL;
    double held = cJSON_GetArraySize(points) ? cJSON_GetArrayItem(points->child, 1)->valuedouble : 0;
    cJSON_ArrayForEach(point, points) {
        if (cJSON_GetArrayItem(point, 0)->valuedouble > when) {
            break;
        }
        held = cJSON_GetArrayItem(point, 1)->valuedouble;
    }
    return held;
}

static double last_moment(const cJSON *workers) {
    const cJSON *points = NULL;
    double last = 0;
    cJSON_ArrayForEach(points, workers) {
        int count = cJSON_GetArraySize(points);
        last = count ? fmax(last, cJSON_GetArrayItem(cJSON_GetArrayItem(points, count - 1), 0)->valuedouble) : last;
    }
    return last;
}

static double largest(const cJSON *numbers) {
    const cJSON *one = NULL;
    double most = 0;
    cJSON_ArrayForEach(one, numbers) {
        most = fmax(most, one->valuedouble);
    }
    return most;
}

static void read_timeline(const cJSON *timeline, car_demo_result *out) {
    enum { LOOKS = 8 }; /* samples per column */
    const cJSON *memory = get(timeline, "memory"), *workers = get(memory, "workers"), *points = NULL;
    double end = last_moment(workers);
    for (int c = 0; c < CAR_DEMO_COLUMNS * LOOKS; c++) {
        double sum = 0;
        cJSON_ArrayForEach(points, workers) {
            sum += held_at(points, end * (c + 0.5) / (CAR_DEMO_COLUMNS * LOOKS));
        }
        out->curve[c / LOOKS] = fmax(out->curve[c / LOOKS], sum);
    }
    out->curve_steps = (int)(number(timeline, "end_step") - number(timeline, "first_step"));
    /* Over ranks the summary has each rank's peak; the timeline has the peak of all together. */
    if (number(timeline, "ranks") > 1) {
        out->activations = number(memory, "measured_peak_bytes");
    }
    out->planned_activations = number(memory, "predicted_peak_bytes");
    out->burst = largest(get(get(timeline, "bytes_per_slot"), "measured"));
    out->planned_burst = out->burst > 0 ? largest(get(get(timeline, "bytes_per_slot"), "plan")) : 0;
}

int car_demo_run(const char *directory, const char *name, const char *const *arguments, car_demo_result *out) {
    char path[CAR_DEMO_PATH + 64];
    *out = (car_demo_result){0};
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int code = run_and_wait(path, arguments);
    if (code != CAR_CLI_OK) {
        return code == CAR_CLI_INTERRUPTED ? code : car_cli_fail(CAR_CLI_FAILED, "demo: the run of %s failed", name);
    }
    cJSON *summary = read_json(path, "summary.json"), *timeline = read_json(path, "timeline.json");
    if (summary && timeline) {
        read_summary(summary, out);
        read_timeline(timeline, out);
    } else {
        code = car_cli_fail(CAR_CLI_FAILED, "demo: the run of %s left no summary in %s", name, path);
    }
    cJSON_Delete(summary);
    cJSON_Delete(timeline);
    return code;
}
