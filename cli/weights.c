/* Finds and loads weights that the user names: see weights.h. */
#include "weights.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "carousel/checkpoint.h"
#include "carousel/convention.h"

/* True if DIRECTORY/NAME exists; writes it to path. */
static bool find_file(const char *directory, const char *name, char path[CAR_CLI_PATH]) {
    struct stat entry;
    int length = snprintf(path, CAR_CLI_PATH, "%s/%s", directory, name);
    return length < CAR_CLI_PATH && stat(path, &entry) == 0;
}

car_status car_cli_find_weights(car_context *context, const char *place, char path[CAR_CLI_PATH]) {
    static const char *const preferred[] = {"best.safetensors", "average.safetensors"};
    struct stat entry;
    if (stat(place, &entry) != 0 || !S_ISDIR(entry.st_mode)) {
        snprintf(path, CAR_CLI_PATH, "%s", place);
        return CAR_OK;
    }
    for (size_t p = 0; p < sizeof preferred / sizeof *preferred; p++) {
        if (find_file(place, preferred[p], path)) {
            fprintf(stderr, "carousel: using %s; the last weights are weights.safetensors\n", path);
            return CAR_OK;
        }
    }
    if (!find_file(place, "weights.safetensors", path)) {
        return car_context_fail(
            context, CAR_ERROR_IO,
            "%s/weights.safetensors: %s; a run that has not ended has none, but its checkpoints may "
            "be used: RUN/checkpoints/step-T",
            place, strerror(errno));
    }
    return CAR_OK;
}

car_status car_cli_load_weights(car_weights *weights, const char *path, const char *model) {
    const car_weights_load_config config = {0};
    car_weights_load_report report;
    car_status status = car_weights_load(weights, path, &config, &report);
    if (status == CAR_OK && report.left_over > 0) {
        fprintf(stderr, "carousel: warning: %s has %d tensors that %s does not know: %s\n", path, report.left_over,
                model, report.left_over_names);
    }
    return status;
}

/* ---- the card -------------------------------------------------------------------------------- */

car_status car_cli_compare_classes(car_context *context, const car_card *card, const car_dataset *data) {
    char trained[256];
    int classes = car_dataset_get_info(data).classes;
    for (int c = 0; c < classes && c < car_card_list_count(card, "class_names"); c++) {
        const char *name = car_dataset_class_name(data, c);
        car_card_list_item(card, "class_names", c, trained, sizeof trained);
        if (name && trained[0] && strcmp(name, trained) != 0) {
            return car_context_fail(context, CAR_ERROR_SHAPE,
                                    "class %d is '%s' in the data and '%s' in the weights: evaluate on data with the "
                                    "classes that they were trained on",
                                    c, name, trained);
        }
    }
    return CAR_OK;
}
