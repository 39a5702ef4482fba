/* Refuses options that are typed but would have no effect. Those of a configuration file may stand there for another
 * run. */
#include <string.h>

#include "train.h"

typedef struct condition {
    const char *option;
    bool holds;
    const char *wanted;
} condition;

/* What the optimizer has; everything if it is unknown, which is an error elsewhere. */
static car_optimizer_info optimizer_of(const car_train_options *o) {
    car_optimizer_kind kind;
    bool known = car_optimizer_is_known(o->optimizer, &kind);
    return known ? *car_optimizer_info_of(kind)
                 : (car_optimizer_info){.has_momentum = true, .has_betas = true, .two_rates = true};
}

static bool has_ranks(const car_train_options *o) {
    car_placement placement;
    return !car_placement_is_known(o->placement, &placement) || !car_placement_info_of(placement)->one_process;
}

int car_train_check_typed(int argc, char **argv, const car_train_options *o) {
    const car_optimizer_info optimizer = optimizer_of(o);
    const condition conditions[] = {
        {"checkpoint-every", o->out != NULL || o->checkpoint_every == 0, "--out DIR, where checkpoints are written"},
        {"keep", o->out != NULL, "--out DIR, where checkpoints are written"},
        {"reset-head", o->init != NULL, "--init FILE, whose other weights are kept"},
        {"momentum", optimizer.has_momentum, "--optimizer sgd or muon; adamw has --betas"},
        {"betas", optimizer.has_betas, "--optimizer adamw or muon; sgd has --momentum"},
        {"adamw-lr", optimizer.two_rates, "--optimizer muon; the other optimizers have one rate, --lr"},
        {"mapping", has_ranks(o), "a --placement with ranks: replica, zero, pipeline or grid"},
        {"piece-bytes", has_ranks(o), "a --placement with ranks: replica, zero, pipeline or grid"},
    };
    for (size_t c = 0; c < sizeof conditions / sizeof conditions[0]; c++) {
        if (car_cli_peek(argc, argv, conditions[c].option) && !conditions[c].holds) {
            return car_cli_fail(CAR_CLI_USAGE, "train: --%s requires %s", conditions[c].option, conditions[c].wanted);
        }
    }
    return CAR_CLI_GO_ON;
}
