/* The options of `carousel train`. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "carousel/convention.h"
#include "recompute.h"
#include "train.h"

void car_train_default_options(car_train_options *o) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *o = (car_train_options){.data = "synthetic",
                             .rule = "cdp-v2",
                             .placement = "shared",
                             .optimizer = "sgd",
                             .schedule = "const",
                             .betas = "0.9,0.999",
                             .delay_correction = "auto",
                             .warmup = CAR_NONE,
                             .convolutions = "auto",
                             .augment = "auto",
                             .memory = "normal",
                             .workers = 4,
                             .accumulate = 1,
                             .sum_order = "auto",
                             .pace_links = "auto",
                             .threads = cores > 0 && cores < 1024 ? (int)cores : 1,
                             .shape.batch = 16,
                             .order = "shuffled",
                             .data_threads = 1,
                             .precision = "fp32",
                             .save_precision = "fp32",
                             .keep = 2,
                             .resume_step = CAR_NONE,
                             .lr = 0.05,
                             .adamw_lr = 1e-3,
                             .momentum = 0.9,
                             .seed = 1};
}

/* One table for the command line, --help, --config and config.json. */
static int fill_table(car_train_options *o, car_cli_option *table) {
    const car_cli_option options[] = {
        {"model", "NAME", "model to train (required)", CAR_CLI_TEXT, &o->model, 0, 0},
        {"data", "SOURCE", "dataset: synthetic, cifar10:DIR, imagefolder:DIR, tokens:FILE or packed:FILE", CAR_CLI_TEXT,
         &o->data, 0, 0},
        {"rule", "RULE", "when each micro-batch runs, and which version of the weights it uses; see below",
         CAR_CLI_TEXT, &o->rule, 0, 0},
        {"placement", "PLACE", "which device computes and stores what; see below", CAR_CLI_TEXT, &o->placement, 0, 0},
        {"mapping", "KIND",
         "assign workers to ranks and machines interleaved or contiguous (default: whichever is better)", CAR_CLI_TEXT,
         &o->mapping, 0, 0},
        {"workers", "N", "number of workers; each takes --accumulate micro-batches per step", CAR_CLI_INT, &o->workers,
         1, 65536},
        {"accumulate", "M", "micro-batches per worker and step, one after another (gradient accumulation)", CAR_CLI_INT,
         &o->accumulate, 1, 65536},
        {"sum-order", "HOW", "with --accumulate: sum gradients by micro-batch or by worker; auto = by placement",
         CAR_CLI_TEXT, &o->sum_order, 0, 0},
        {"stages", "S", "number of stages, a multiple of --workers (default: --workers)", CAR_CLI_INT, &o->stages, 1,
         1 << 20},
        {"plan", "FILE", "run the plan in FILE, written by 'carousel plan --dump' or by hand (docs/plan.md)",
         CAR_CLI_TEXT, &o->plan, 0, 0},
        {"threads", "P", "compute threads per rank (default: all cores, divided among the ranks on this machine)",
         CAR_CLI_INT, &o->threads, 1, 1024},
        {"batch", "B", "samples per micro-batch", CAR_CLI_INT, &o->shape.batch, 1, 1 << 20},
        {"steps", "T", "number of training steps in total (default: 100, unless --epochs is given)", CAR_CLI_INT,
         &o->steps, 1, 1e9},
        {"epochs", "E", "passes over the training data; with --steps, whichever ends first counts", CAR_CLI_REAL,
         &o->epochs, 0, 1e6},
        {"optimizer", "NAME", "optimizer; see below", CAR_CLI_TEXT, &o->optimizer, 0, 0},
        {"lr", "X", "learning rate", CAR_CLI_REAL, &o->lr, 0, 1e6},
        {"adamw-lr", "X", "muon: learning rate of embeddings, head, norms and biases", CAR_CLI_REAL, &o->adamw_lr, 0,
         1e6},
        {"momentum", "X", "momentum (default: 0.9 for sgd, 0.95 for muon)", CAR_CLI_REAL, &o->momentum, 0, 1},
        {"nesterov", NULL, "sgd: use Nesterov momentum", CAR_CLI_FLAG, &o->nesterov, 0, 0},
        {"delay-correction", "HOW",
         "correct for late gradients: auto (depends on the rule), off, or C,A (docs/delay.md)", CAR_CLI_TEXT,
         &o->delay_correction, 0, 0},
        {"betas", "A,B", "decay rates of adamw's moments", CAR_CLI_TEXT, &o->betas, 0, 0},
        {"weight-decay", "X", "weight decay", CAR_CLI_REAL, &o->weight_decay, 0, 1e6},
        {"decay-weights-only", NULL, "apply no weight decay to biases and norms", CAR_CLI_FLAG, &o->decay_weights_only,
         0, 0},
        {"lr-schedule", "KIND", "const, cosine or step:EPOCHS:GAMMA (with synthetic data: step:STEPS:GAMMA)",
         CAR_CLI_TEXT, &o->schedule, 0, 0},
        {"warmup", "STEPS",
         "linear warm-up of the learning rate (default: 0; cdp-v1, 2bw: set by --delay-correction auto)", CAR_CLI_INT,
         &o->warmup, 0, 1e9},
        {"clip-norm", "X", "clip the global norm of the gradient to X; 0 = off", CAR_CLI_REAL, &o->clip_norm, 0, 1e12},
        {"skip-nonfinite", NULL, "skip a step whose loss or gradient is not finite", CAR_CLI_FLAG, &o->skip_nonfinite,
         0, 0},
        {"freshness-slack", "M", "cdp-v2: give each update 2M more slots to arrive", CAR_CLI_INT, &o->freshness_slack,
         0, 1 << 20},
        {"zero-copies", "N",
         "zero, except with dp: copies of each version that travel between ranks, 1 or 2 (default: 2)", CAR_CLI_INT,
         &o->zero_copies, 0, 2},
        {"zero-ahead", "L", "zero: send a copy on up to L slots before its use; auto = 2k, with k stages per worker",
         CAR_CLI_AUTO, &o->zero_ahead, 0, 1 << 21},
        {"piece-bytes", "BYTES", "send sums of gradients in pieces of this size; 0 = 4 MiB or more (docs/plan.md)",
         CAR_CLI_REAL, &o->piece_bytes, 0, 1e15},
        {"pace-links", "HOW", "spread a rank's messages over the step: auto (on with several machines), on or off",
         CAR_CLI_TEXT, &o->pace_links, 0, 0},
        {"order", "ORDER", "order of the samples: shuffled or sequential", CAR_CLI_TEXT, &o->order, 0, 0},
        {"no-augment", NULL, "do not augment images; same as --augment none", CAR_CLI_FLAG, &o->no_augment, 0, 0},
        {"augment", "HOW", "augmentation: auto (by size), resized-crop, padded-crop, flip or none (docs/data.md)",
         CAR_CLI_TEXT, &o->augment, 0, 0},
        {"label-smoothing", "X", "share of the target that is spread evenly over all classes", CAR_CLI_REAL,
         &o->shape.label_smoothing, 0, 0.999},
        {"dropout", "P", "transformers: dropout after embeddings and on residual branches", CAR_CLI_REAL,
         &o->shape.dropout, 0, 0.999},
        {"data-threads", "N", "threads that load samples in advance; 0 = none", CAR_CLI_INT, &o->data_threads, 0, 256},
        {"eval-every", "STEPS", "evaluate every STEPS steps; 0 = only at the end (never with synthetic data)",
         CAR_CLI_INT, &o->eval_every, 0, 1e9},
        {"eval-batches", "N", "micro-batches per evaluation; 0 = all (with synthetic data: 8)", CAR_CLI_INT,
         &o->eval_batches, 0, 1e9},
        {"keep-best", "METRIC", "save the weights of the best evaluation, by accuracy or loss", CAR_CLI_TEXT,
         &o->keep_best, 0, 0},
        {"patience", "N", "stop after N evaluations in a row without improvement; 0 = never", CAR_CLI_INT, &o->patience,
         0, 1e6},
        {"init", "FILE", "start with the weights in this safetensors file", CAR_CLI_TEXT, &o->init, 0, 0},
        {"reset-head", NULL, "with --init: initialize the classifier anew", CAR_CLI_FLAG, &o->reset_head, 0, 0},
        {"freeze", "PATTERN", "do not train matching parameters, e.g. 'layer1.*'; may be repeated", CAR_CLI_LIST,
         &o->freeze, 0, 0},
        {"lr-scale", "PATTERN:X", "multiply the learning rate of matching parameters by X; may be repeated",
         CAR_CLI_LIST, &o->lr_scale, 0, 0},
        {"ema", "DECAY", "keep a moving average of the weights, and evaluate and save it too; 0 = none", CAR_CLI_REAL,
         &o->ema, 0, 0.9999999},
        {"out", "DIR", "run directory for configuration, metrics, checkpoints, weights and summary", CAR_CLI_TEXT,
         &o->out, 0, 0},
        {"save-precision", "P", "precision of the weights saved in --out: fp32 or bf16; checkpoints are always fp32",
         CAR_CLI_TEXT, &o->save_precision, 0, 0},
        {"tensorboard", NULL, "also write a TensorBoard event file to --out", CAR_CLI_FLAG, &o->tensorboard, 0, 0},
        {"checkpoint-every", "STEPS", "write a checkpoint every STEPS steps; 0 = only at the end", CAR_CLI_INT,
         &o->checkpoint_every, 0, 1e9},
        {"keep", "K", "number of checkpoints to keep; 0 = write none", CAR_CLI_INT, &o->keep, 0, 1e6},
        {"resume", NULL, "continue from the newest checkpoint in --out, with the options of that run", CAR_CLI_FLAG,
         &o->resume, 0, 0},
        {"resume-step", "T", "continue from the checkpoint of step T", CAR_CLI_INT, &o->resume_step, 0, 1e9},
        {"classes", "C", "number of classes of an image model (default: the dataset's, else the model's)", CAR_CLI_INT,
         &o->shape.classes, 1, 1 << 24},
        {"image-size", "X", "image width and height in pixels (default: that of small images, else the model's)",
         CAR_CLI_INT, &o->shape.image_size, 1, 1 << 14},
        CAR_CLI_SHAPE_OPTIONS(o->shape),
        {"precision", "P", "fp32 or bf16, for activations and the weights used in computation (docs/kernels.md)",
         CAR_CLI_TEXT, &o->precision, 0, 0},
        {"convolutions", "HOW", "auto = Winograd's algorithm where it is faster; direct = never", CAR_CLI_TEXT,
         &o->convolutions, 0, 0},
        {"memory", "HOW", "normal, or tight = Winograd's algorithm only where it needs no more memory", CAR_CLI_TEXT,
         &o->memory, 0, 0},
        CAR_CLI_RECOMPUTE_OPTIONS(o),
        {"trace", "FILE", "write a trace of what was executed, for Perfetto or chrome://tracing", CAR_CLI_TEXT,
         &o->trace, 0, 0},
        {"trace-steps", "A:B", "with --trace: record steps A to B-1 (default: four steps, after the first four)",
         CAR_CLI_TEXT, &o->trace_steps, 0, 0},
        {"force", NULL, "start even if the run is predicted to need more memory than is available", CAR_CLI_FLAG,
         &o->force, 0, 0},
        {"seed", "N", "random seed for weights, data, order and dropout", CAR_CLI_SEED, &o->seed, 0, 0},
        {"config", "FILE", "read options from a JSON file; options on the command line take precedence", CAR_CLI_TEXT,
         &o->config, 0, 0},
        /* Not in --help. For experiments: training without pacing, and benchmarks of several ranks on few cores. */
        {"unpaced", NULL, NULL, CAR_CLI_FLAG, &o->unpaced, 0, 0},
        {"step-seconds", NULL, NULL, CAR_CLI_REAL, &o->step_seconds, 0, 1000},
        {"step-jitter", NULL, NULL, CAR_CLI_REAL, &o->step_jitter, 0, 1},
    };
    _Static_assert(sizeof options / sizeof options[0] <= CAR_TRAIN_OPTIONS, "the table must hold all options");
    memcpy(table, options, sizeof options);
    return (int)(sizeof options / sizeof options[0]);
}

cJSON *car_train_config_of(const car_train_options *options) {
    car_train_options copy = *options; /* the table needs pointers that are not const */
    car_cli_option table[CAR_TRAIN_OPTIONS];
    copy.steps = copy.epochs > 0 ? copy.asked_steps : copy.steps; /* as given, not as computed from epochs */
    return car_cli_config_of(table, fill_table(&copy, table));
}

/* Reads options from a file before those of the command line: the user's file, or config.json of a resumed run. */
static int read_config(const car_cli_command *command, const car_cli_option *table, int count, int argc, char **argv,
                       car_train_options *o) {
    const char *path = car_cli_peek(argc, argv, "config"), *out = car_cli_peek(argc, argv, "out");
    bool resume = car_cli_peek(argc, argv, "resume") || car_cli_peek(argc, argv, "resume-step");
    char own[4096];
    if (path && *path) {
        return car_cli_read_config(command, table, count, path, &o->config_texts);
    }
    if (!resume || !out || snprintf(own, sizeof own, "%s/config.json", out) >= (int)sizeof own ||
        access(own, F_OK) != 0) {
        return CAR_CLI_GO_ON;
    }
    int code = car_cli_read_config(command, table, count, own, &o->config_texts);
    if (code == CAR_CLI_GO_ON && !cJSON_GetObjectItemCaseSensitive(o->config_texts, "delay-correction")) {
        o->delay_correction = "off"; /* the run is older than this option */
    }
    return code;
}

int car_train_read_config(const car_cli_command *command, const char *path, car_train_options *o) {
    car_cli_option table[CAR_TRAIN_OPTIONS];
    int count = fill_table(o, table);
    return car_cli_read_config(command, table, count, path, &o->config_texts);
}

/* Drops values of the file that are about something else than what is typed. */
static void drop_overridden(int argc, char **argv, car_train_options *o) {
    const char *optimizer = car_cli_peek(argc, argv, "optimizer");
    bool another = optimizer && strcmp(optimizer, o->optimizer) != 0;
    if (car_cli_peek(argc, argv, "steps") || car_cli_peek(argc, argv, "epochs")) {
        o->steps = 0;
        o->epochs = 0;
    }
    if (another) {
        o->momentum = -1; /* the optimizer's default */
    }
    if (another || car_cli_peek(argc, argv, "delay-correction")) {
        o->nesterov = false; /* it is a correction, too */
    }
    if (car_cli_peek(argc, argv, "nesterov") && !car_cli_peek(argc, argv, "delay-correction")) {
        o->delay_correction = "auto"; /* it replaces the file's C,A */
    }
}

int car_train_read_options(int argc, char **argv, car_train_options *o) {
    char lists[4096];
    car_cli_option table[CAR_TRAIN_OPTIONS];
    car_train_default_options(o);
    o->threads = 0;   /* chosen when the number of ranks on the machine is known */
    o->momentum = -1; /* the optimizer's default */
    int count = fill_table(o, table);
    car_cli_list_models(lists, sizeof lists);
    car_cli_list_choices(lists, sizeof lists);
    car_cli_add_advice(lists, sizeof lists);
    const car_cli_command command = {"train", "Trains a model.", "carousel train --model NAME [OPTIONS]", lists};
    int code = car_cli_wants_help(argc, argv) ? CAR_CLI_GO_ON : read_config(&command, table, count, argc, argv, o);
    drop_overridden(argc, argv, o);
    code = code == CAR_CLI_GO_ON ? car_cli_parse(&command, table, count, argc, argv) : code;
    if (o->momentum < 0) {
        car_optimizer_kind kind = car_optimizer_config_default().kind;
        car_optimizer_is_known(o->optimizer, &kind); /* an unknown one fails in read_optimizer */
        o->momentum = car_optimizer_info_of(kind)->momentum;
    }
    o->asked_steps = o->steps;
    code = code == CAR_CLI_GO_ON ? car_train_read_plan(argc, argv, o) : code;
    return code == CAR_CLI_GO_ON ? car_train_check_typed(argc, argv, o) : code;
}

car_status car_train_read_precision(car_context *context, car_train_options *o) {
    car_status status = car_precision_find(context, o->precision, &o->shape.precision);
    status = status == CAR_OK ? car_precision_find(context, o->save_precision, &o->saves_as) : status;
    if (status == CAR_OK && o->saves_as != CAR_PRECISION_FP32 && !o->out) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "--save-precision %s requires --out DIR to save the weights in", o->save_precision);
    }
    return status;
}
