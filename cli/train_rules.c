/* Reads --freeze, --lr-scale and --augment into the library's types. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "train.h"

/* Reads PATTERN:X. */
static car_status read_scale(car_context *context, const char *text, char *pattern, size_t capacity,
                             car_param_rule *out) {
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    double scale = colon ? strtod(colon + 1, &end) : 0;
    size_t length = colon ? (size_t)(colon - text) : 0;
    if (!colon || length == 0 || end == colon + 1 || *end || !isfinite(scale) || scale < 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--lr-scale %s: it must be PATTERN:X, e.g. 'fc.*:10' or 'layer1.*:0.1'", text);
    }
    if (length >= capacity) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "--lr-scale %s: the pattern is too long", text);
    }
    memcpy(pattern, text, length);
    pattern[length] = '\0';
    *out = (car_param_rule){.pattern = pattern, .lr_scale = scale};
    return CAR_OK;
}

car_status car_train_read_rules(car_context *context, car_train_options *o) {
    car_status status = CAR_OK;
    o->rule_count = 0;
    for (int f = 0; f < o->freeze.count; f++) {
        o->rules[o->rule_count++] = (car_param_rule){.pattern = o->freeze.items[f], .frozen = true};
    }
    for (int s = 0; s < o->lr_scale.count; s++) {
        CAR_TRY(
            read_scale(context, o->lr_scale.items[s], o->patterns[s], sizeof o->patterns[s], &o->rules[o->rule_count]));
        o->rule_count++;
    }
done:
    return status;
}

car_status car_train_read_augmentation(car_context *context, const car_train_options *o, bool *none,
                                       car_augmentation *out) {
    static const char *const names[] = {"auto", "resized-crop", "padded-crop", "flip"};
    *none = o->no_augment || strcmp(o->augment, "none") == 0;
    *out = CAR_AUGMENTATION_AUTO;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        if (strcmp(o->augment, names[n]) == 0) {
            *out = (car_augmentation)n;
            return CAR_OK;
        }
    }
    return *none
               ? CAR_OK
               : car_context_fail(context, CAR_ERROR_ARGUMENT,
                                  "--augment %s: it must be auto, resized-crop, padded-crop, flip or none", o->augment);
}

void car_train_show_rules(const car_train_run *t) {
    const car_graph *graph = car_run_graph(t->run);
    int frozen = 0, params = car_graph_param_count(graph);
    double elements = 0;
    for (int p = 0; p < params; p++) {
        if (car_optimizer_freezes(&t->optimizer, graph, p)) {
            frozen++;
            elements += (double)car_shape_elements(car_graph_param(graph, p)->shape);
        }
    }
    if (frozen > 0) {
        printf("frozen: %d of %d parameter tensors, %.2f million values\n", frozen, params, elements / 1e6);
    }
}
