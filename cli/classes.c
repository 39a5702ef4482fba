/* Accuracy per class, and the confusion matrix: see classes.h. */
#include "classes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "carousel/utf8.h"

/* A wider matrix does not fit a terminal, and nobody reads a longer list. */
enum { MOST_COLUMNS = 12, MOST_LINES = 30, WORST = 20, NAME_SHOWN = 24, LEAST_WIDTH = 6, MOST_WIDTH = 10 };

car_status car_cli_create_confusion(car_context *context, int classes, car_cli_confusion *out) {
    *out = (car_cli_confusion){.context = context, .classes = classes};
    return car_context_allocate(context, (size_t)classes * (size_t)classes, sizeof *out->counts, &out->counts);
}

void car_cli_destroy_confusion(car_cli_confusion *c) {
    if (c->counts) {
        car_context_release(c->context, c->counts, (size_t)c->classes * (size_t)c->classes, sizeof *c->counts);
        c->counts = NULL;
    }
}

static int64_t count_of(const car_cli_confusion *c, int label, int predicted) {
    return c->counts[(size_t)label * (size_t)c->classes + (size_t)predicted];
}

static int64_t samples_of(const car_cli_confusion *c, int label) {
    int64_t sum = 0;
    for (int p = 0; p < c->classes; p++) {
        sum += count_of(c, label, p);
    }
    return sum;
}

static double accuracy_of(const car_cli_confusion *c, int label) {
    int64_t samples = samples_of(c, label);
    return samples > 0 ? (double)count_of(c, label, label) / (double)samples : 0;
}

/* The class that samples of `label` are most often mistaken for; CAR_NONE if there is none. */
static int most_confused(const car_cli_confusion *c, int label) {
    int most = CAR_NONE;
    for (int p = 0; p < c->classes; p++) {
        int64_t count = p == label ? 0 : count_of(c, label, p);
        most = count > 0 && (most == CAR_NONE || count > count_of(c, label, most)) ? p : most;
    }
    return most;
}

typedef struct class_name {
    char text[64];
} class_name;

static class_name name_of(const car_dataset *data, int class_index) {
    class_name name;
    const char *own = data ? car_dataset_class_name(data, class_index) : NULL;
    if (own) {
        car_utf8_show(own, false, name.text, sizeof name.text);
    } else {
        snprintf(name.text, sizeof name.text, "class %d", class_index);
    }
    return name;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* In characters, not bytes. */
static int width_of(const char *text) {
    int width = 0;
    for (; *text; text++) {
        width += (*text & 0xC0) != 0x80;
    }
    return width;
}

/* Prints a name padded with spaces on the right, or on the left if width is negative. */
static void print_padded(const char *text, int width) {
    int spaces = abs(width) - width_of(text);
    printf("%*s%s%*s", width < 0 && spaces > 0 ? spaces : 0, "", text, width > 0 && spaces > 0 ? spaces : 0, "");
}

static void print_class(const car_cli_confusion *c, const car_dataset *data, int label) {
    int64_t samples = samples_of(c, label);
    int other = most_confused(c, label);
    fputs("  ", stdout);
    print_padded(name_of(data, label).text, NAME_SHOWN);
    if (samples == 0) {
        printf("      -   no samples\n");
        return;
    }
    printf(" %6.2f %% of %lld", 100 * accuracy_of(c, label), (long long)samples);
    if (other != CAR_NONE) {
        printf(", most often mistaken for %s (%lld)", name_of(data, other).text, (long long)count_of(c, label, other));
    }
    putchar('\n');
}

/* Column heads of a matrix: names if all are short, else numbers. Rows then show the numbers too. */
typedef struct columns {
    int width;
    bool numbered;
} columns;

static columns choose_columns(const car_cli_confusion *c, const car_dataset *data) {
    columns out = {.width = LEAST_WIDTH};
    for (int p = 0; p < c->classes; p++) {
        int width = width_of(name_of(data, p).text);
        out.width = width > out.width ? width : out.width;
    }
    out.numbered = out.width > MOST_WIDTH;
    out.width = out.numbered ? LEAST_WIDTH : out.width;
    return out;
}

static class_name column_name(const car_dataset *data, int class_index, const columns *columns) {
    class_name name;
    if (!columns->numbered) {
        return name_of(data, class_index);
    }
    snprintf(name.text, sizeof name.text, "%d", class_index);
    return name;
}

static void print_matrix(const car_cli_confusion *c, const car_dataset *data) {
    const columns columns = choose_columns(c, data);
    printf("confusion matrix, with a row for each class and a column for each prediction%s:\n  %*s",
           columns.numbered ? ", numbered like the rows" : "", NAME_SHOWN, "");
    for (int p = 0; p < c->classes; p++) {
        putchar(' ');
        print_padded(column_name(data, p, &columns).text, -columns.width);
    }
    putchar('\n');
    for (int l = 0; l < c->classes; l++) {
        fputs("  ", stdout);
        if (columns.numbered) {
            printf("%2d ", l);
        }
        print_padded(name_of(data, l).text, columns.numbered ? NAME_SHOWN - 3 : NAME_SHOWN);
        for (int p = 0; p < c->classes; p++) {
            printf(" %*lld", columns.width, (long long)count_of(c, l, p));
        }
        putchar('\n');
    }
}

typedef struct ranked {
    double accuracy;
    int label;
} ranked;

static int compare_ranked(const void *left, const void *right) {
    const ranked *a = left, *b = right;
    return a->accuracy != b->accuracy ? (a->accuracy > b->accuracy) - (a->accuracy < b->accuracy)
                                      : (a->label > b->label) - (a->label < b->label);
}

static void print_worst(const car_cli_confusion *c, const car_dataset *data) {
    ranked *all = malloc((size_t)c->classes * sizeof *all);
    int count = 0;
    for (int l = 0; all && l < c->classes; l++) {
        if (samples_of(c, l) > 0) {
            all[count++] = (ranked){accuracy_of(c, l), l};
        }
    }
    if (all) {
        qsort(all, (size_t)count, sizeof *all, compare_ranked);
    }
    printf("the %d classes with the lowest accuracy, of %d (--json lists all):\n", count < WORST ? count : WORST,
           count);
    for (int i = 0; i < count && i < WORST; i++) {
        print_class(c, data, all[i].label);
    }
    free(all);
}

void car_cli_print_confusion(const car_cli_confusion *c, const car_dataset *data) {
    if (c->classes > MOST_LINES) {
        print_worst(c, data);
        return;
    }
    puts("accuracy of each class:");
    for (int l = 0; l < c->classes; l++) {
        print_class(c, data, l);
    }
    if (c->classes <= MOST_COLUMNS) {
        print_matrix(c, data);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool add_answers(cJSON *object, const car_cli_confusion *c, int label) {
    cJSON *answers = cJSON_AddArrayToObject(object, "predicted");
    bool ok = answers != NULL;
    for (int p = 0; ok && p < c->classes; p++) {
        if (count_of(c, label, p) > 0) {
            const double pair[2] = {p, (double)count_of(c, label, p)};
            ok = cJSON_AddItemToArray(answers, cJSON_CreateDoubleArray(pair, 2));
        }
    }
    return ok;
}

bool car_cli_add_confusion(cJSON *root, const car_cli_confusion *c, const car_dataset *data) {
    cJSON *list = cJSON_AddArrayToObject(root, "per_class");
    bool ok = list != NULL;
    for (int l = 0; ok && l < c->classes; l++) {
        cJSON *object = cJSON_CreateObject();
        ok = cJSON_AddItemToArray(list, object) && cJSON_AddStringToObject(object, "name", name_of(data, l).text) &&
             cJSON_AddNumberToObject(object, "samples", (double)samples_of(c, l)) &&
             (samples_of(c, l) > 0 ? cJSON_AddNumberToObject(object, "accuracy", accuracy_of(c, l))
                                   : cJSON_AddNullToObject(object, "accuracy")) &&
             add_answers(object, c, l);
    }
    return ok;
}
