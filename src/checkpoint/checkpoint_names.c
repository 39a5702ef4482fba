/* The names of checkpoints and of their parts. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "checkpoint/checkpoint.h"

const char *const car_checkpoint_file_names[CAR_CHECKPOINT_FILES] = {"weights.safetensors", "state.safetensors"};

int car_checkpoint_part_name(const car_snapshot *snapshot, car_snapshot_part part, const char *param, char *name,
                             size_t capacity) {
    static const char *const prefixes[CAR_SNAPSHOT_PARTS] = {
        "", "previous.", "optimizer.0.", "optimizer.1.", "optimizer.2.", "average."};
    const char *state = car_snapshot_state_name(snapshot, part);
    return state ? snprintf(name, capacity, "optimizer.%s.%s", state, param)
                 : snprintf(name, capacity, "%s%s", prefixes[part], param);
}

car_checkpoint_name car_checkpoint_name_of(int64_t step) {
    car_checkpoint_name name;
    snprintf(name.text, sizeof name.text, "step-%08lld", (long long)step);
    return name;
}

car_status car_checkpoint_join(car_context *context, const char *directory, const char *name, char **out) {
    car_text text = {.context = context};
    car_text_add(&text, "%s/%s", directory, name);
    return car_text_finish(&text, out);
}

/* The step in a name, or -1. Only the exact spelling that we write counts. */
static int64_t step_of(const char *name) {
    if (strncmp(name, "step-", 5) != 0) {
        return -1;
    }
    int64_t step = strtoll(name + 5, NULL, 10);
    bool same = step >= 0 && step <= car_checkpoint_max_step && strcmp(car_checkpoint_name_of(step).text, name) == 0;
    return same ? step : -1;
}

static int compare_steps(const void *left, const void *right) {
    const int64_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

car_status car_checkpoint_list_steps(car_context *context, const char *directory, car_checkpoint_list *out) {
    car_checkpoint_list list = {0};
    car_status status = CAR_OK;
    *out = list;
    DIR *folder = opendir(directory);
    if (folder == NULL) {
        return errno == ENOENT ? CAR_OK
                               : car_context_fail(context, CAR_ERROR_IO, "%s: cannot look for checkpoints: %s",
                                                  directory, strerror(errno));
    }
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        int64_t step = step_of(entry->d_name);
        if (step >= 0) {
            CAR_TRY(car_context_grow(context, &list.steps, &list.capacity, list.count + 1, sizeof *list.steps));
            list.steps[list.count++] = step;
        }
    }
    car_sort(list.steps, (size_t)list.count, sizeof *list.steps, compare_steps);
    *out = list;
    list = (car_checkpoint_list){0};
done:
    car_checkpoint_list_release(context, &list);
    closedir(folder);
    return status;
}

void car_checkpoint_list_release(car_context *context, car_checkpoint_list *list) {
    car_context_release(context, list->steps, (size_t)list->capacity, sizeof *list->steps);
    *list = (car_checkpoint_list){0};
}

car_status car_checkpoint_newest(car_context *context, const char *directory, int64_t *step) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, directory);
    CAR_REQUIRE(context, step);
    car_checkpoint_list list;
    car_status status = car_checkpoint_list_steps(context, directory, &list);
    *step = status == CAR_OK && list.count > 0 ? list.steps[list.count - 1] : -1;
    car_checkpoint_list_release(context, &list);
    return status;
}
