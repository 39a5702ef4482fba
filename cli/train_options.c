/* The options of `carousel train`. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "train.h"

void car_train_default_options(car_train_options *o) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *o = (car_train_options){.data = "synthetic",
                             .rule = "cdp-v2",
                             .placement = "shared",
                             .optimizer = "sgd",
                             .schedule = "const",
                             .betas = "0.9,0.999",
                             .workers = 4,
                             .threads = cores > 0 && cores < 1024 ? (int)cores : 1,
                             .batch = 16,
                             .steps = 100,
                             .eval_batches = 8,
                             .lr = 0.05,
                             .momentum = 0.9,
                             .seed = 1};
}

int car_train_read_options(int argc, char **argv, car_train_options *o) {
    char models[1024];
    car_train_default_options(o);
    const car_cli_option options[] = {
        {"model", "NAME", "which model to train (required)", CAR_CLI_TEXT, &o->model, 0, 0},
        {"data", "SOURCE", "where samples come from: synthetic", CAR_CLI_TEXT, &o->data, 0, 0},
        {"rule", "RULE", "dp, cdp-v1, cdp-v2 or accumulate", CAR_CLI_TEXT, &o->rule, 0, 0},
        {"placement", "PLACE", "shared: one process, threads", CAR_CLI_TEXT, &o->placement, 0, 0},
        {"workers", "N", "micro-batches in a step", CAR_CLI_INT, &o->workers, 1, 65536},
        {"stages", "S", "stages, a multiple of the workers (as many)", CAR_CLI_INT, &o->stages, 1, 1 << 20},
        {"threads", "P", "threads that compute", CAR_CLI_INT, &o->threads, 1, 1024},
        {"batch", "B", "samples in a micro-batch", CAR_CLI_INT, &o->batch, 1, 1 << 20},
        {"steps", "T", "updates to make", CAR_CLI_INT, &o->steps, 1, 1e9},
        {"optimizer", "NAME", "sgd or adamw", CAR_CLI_TEXT, &o->optimizer, 0, 0},
        {"lr", "X", "learning rate", CAR_CLI_REAL, &o->lr, 0, 1e6},
        {"momentum", "X", "momentum of sgd", CAR_CLI_REAL, &o->momentum, 0, 1},
        {"nesterov", NULL, "Nesterov's form of the momentum", CAR_CLI_FLAG, &o->nesterov, 0, 0},
        {"betas", "A,B", "decay rates of adamw's moments", CAR_CLI_TEXT, &o->betas, 0, 0},
        {"weight-decay", "X", "weight decay", CAR_CLI_REAL, &o->weight_decay, 0, 1e6},
        {"decay-weights-only", NULL, "no decay on biases and norms", CAR_CLI_FLAG, &o->decay_weights_only, 0, 0},
        {"lr-schedule", "KIND", "const, cosine or step:STEPS:GAMMA", CAR_CLI_TEXT, &o->schedule, 0, 0},
        {"warmup", "STEPS", "linear rise of the rate before that", CAR_CLI_INT, &o->warmup, 0, 1e9},
        {"clip-norm", "X", "clip the gradient's global norm; 0: do not", CAR_CLI_REAL, &o->clip_norm, 0, 1e12},
        {"skip-nonfinite", NULL, "skip a step that is not finite", CAR_CLI_FLAG, &o->skip_nonfinite, 0, 0},
        {"freshness-slack", "M", "cdp-v2: an update may take 2M slots to arrive", CAR_CLI_INT, &o->freshness_slack, 0,
         1 << 20},
        {"eval-every", "STEPS", "evaluate every so many steps; 0: never", CAR_CLI_INT, &o->eval_every, 0, 1e9},
        {"eval-batches", "N", "micro-batches of an evaluation", CAR_CLI_INT, &o->eval_batches, 1, 1e6},
        {"out", "DIR", "run directory: config, metrics, summary", CAR_CLI_TEXT, &o->out, 0, 0},
        {"classes", "C", "classes of an image model (its own)", CAR_CLI_INT, &o->classes, 1, 1 << 24},
        {"image-size", "X", "pixels on a side (the model's own)", CAR_CLI_INT, &o->image_size, 1, 1 << 14},
        {"seq-len", "T", "tokens in a sample (the model's own)", CAR_CLI_INT, &o->seq_len, 1, 1 << 24},
        {"seed", "N", "of weights, data and dropout", CAR_CLI_SEED, &o->seed, 0, 0},
        /* Shows what pacing is for; not in --help. */
        {"unpaced", NULL, NULL, CAR_CLI_FLAG, &o->unpaced, 0, 0},
    };
    car_cli_list_models(models, sizeof models);
    const car_cli_command command = {"train", "Trains a model.", "carousel train --model NAME [OPTIONS]", models};
    return car_cli_parse(&command, options, (int)(sizeof options / sizeof options[0]), argc, argv);
}

/* ---- into configurations --------------------------------------------------------------------- */

/* Two numbers with a separator between them and nothing behind. */
static bool read_pair(const char *text, char separator, double *first, double *second) {
    char *end = NULL;
    *first = strtod(text, &end);
    if (end == text || *end != separator) {
        return false;
    }
    const char *rest = end + 1;
    *second = strtod(rest, &end);
    return end != rest && *end == '\0';
}

static car_status read_schedule(car_context *context, const car_train_options *o, car_schedule *out) {
    double every = 0, gamma = 0;
    *out = (car_schedule){.lr = o->lr, .warmup = o->warmup, .total = o->steps};
    if (strcmp(o->schedule, "const") == 0) {
        out->kind = CAR_SCHEDULE_CONSTANT;
    } else if (strcmp(o->schedule, "cosine") == 0) {
        out->kind = CAR_SCHEDULE_COSINE;
    } else if (strncmp(o->schedule, "step:", 5) == 0 && read_pair(o->schedule + 5, ':', &every, &gamma) && every >= 1 &&
               gamma > 0) {
        out->kind = CAR_SCHEDULE_STEP;
        out->every = (int64_t)every;
        out->gamma = gamma;
    } else {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--lr-schedule %s: it must be const, cosine or step:STEPS:GAMMA, e.g. step:1000:0.1",
                                o->schedule);
    }
    return CAR_OK;
}

static car_status read_optimizer(car_context *context, const car_train_options *o, car_optimizer_config *out) {
    *out = car_optimizer_config_default();
    out->momentum = o->momentum;
    out->nesterov = o->nesterov;
    out->weight_decay = o->weight_decay;
    out->decay_weights_only = o->decay_weights_only;
    if (!read_pair(o->betas, ',', &out->beta1, &out->beta2) || !(out->beta1 >= 0 && out->beta1 < 1) ||
        !(out->beta2 >= 0 && out->beta2 < 1)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--betas %s: it must be two numbers in 0..1, e.g. 0.9,0.999", o->betas);
    }
    if (o->nesterov && o->momentum == 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "--nesterov needs a --momentum above 0");
    }
    return car_optimizer_find(context, o->optimizer, &out->kind);
}

car_status car_train_configure(car_context *context, const car_train_options *o, car_plan_config *plan,
                               car_trainer_config *trainer) {
    car_status status = CAR_OK;
    *plan = car_plan_config_default();
    *trainer = car_trainer_config_default();
    if (strcmp(o->data, "synthetic") != 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "--data %s: this version knows only 'synthetic'", o->data);
    }
    CAR_TRY(car_rule_find(context, o->rule, &plan->rule));
    CAR_TRY(car_placement_find(context, o->placement, &plan->placement));
    if (plan->placement != CAR_PLACEMENT_SHARED) {
        return car_context_fail(context, CAR_ERROR_UNSUPPORTED,
                                "--placement %s can be planned but not yet executed: use shared", o->placement);
    }
    plan->workers = o->workers;
    plan->threads = o->threads;
    plan->freshness_slack = o->freshness_slack;
    CAR_TRY(read_schedule(context, o, &trainer->schedule));
    CAR_TRY(read_optimizer(context, o, &trainer->optimizer));
    trainer->threads = o->threads;
    trainer->seed = o->seed;
    trainer->clip_norm = o->clip_norm;
    trainer->skip_nonfinite = o->skip_nonfinite;
    trainer->unpaced = o->unpaced;
done:
    return status;
}
