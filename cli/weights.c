/* Opens weights that the user names: see weights.h. */
#include "weights.h"

#include <stdio.h>
#include <string.h>

#include "cli.h"

void car_cli_say_weights(const char *place, const char *path) {
    const char *name = strrchr(path, '/');
    bool is_last = name && (strcmp(name + 1, "weights.safetensors") == 0 || strcmp(name + 1, "model.safetensors") == 0);
    if (strcmp(place, path) != 0 && name && !is_last) {
        fprintf(stderr, "carousel: using %s; the last weights are in weights.safetensors\n", path);
    }
}

static void say_what_is_left(const car_trained *trained) {
    const char *path = car_trained_path(trained);
    const car_weights_load_report *report = car_trained_report(trained);
    if (report->left_over > 0) {
        fprintf(stderr, "carousel: warning: %s has %d tensors that %s does not know: %s\n", path, report->left_over,
                car_trained_model(trained)->name, report->left_over_names);
    }
}

car_status car_cli_open_weights(car_context *context, const char *place, const car_trained_options *options,
                                car_trained **out) {
    car_status status = car_trained_open(context, place, options, out);
    if (status == CAR_ERROR_UNKNOWN_NAME && !options->model) {
        return car_cli_add_hint(context, CAR_ERROR_ARGUMENT, "give --model NAME");
    }
    if (status == CAR_OK) {
        car_cli_say_weights(place, car_trained_path(*out));
        say_what_is_left(*out);
    }
    return status;
}
