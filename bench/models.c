/* How fast do whole models run forward and backward? The worker that models.py drives. It reads commands, one per
 * line, and answers each with one line of JSON: {"error": ...} if it failed. Its only argument, if any, is the
 * precision of all models: fp32 (the default) or bf16.
 *
 *     about                                                     versions of what is measured
 *     warm MODEL BATCH IMAGE CLASSES SEQ THREADS                builds the model and runs its first steps
 *     run MODEL BATCH IMAGE CLASSES SEQ THREADS MIN_SECONDS     measures (and warms up if necessary)
 *     sgemm THREADS SECONDS, fma THREADS SECONDS                the machine's peak rates, in GFLOP/s
 *
 * BATCH is per thread. IMAGE, CLASSES and SEQ may be 0 for the model's own. Each thread has its own micro-batch,
 * lane, tape and gradients; the weights are shared. The latest model is kept, so that it is warm in later rounds.
 *
 * A step is training without the optimizer: feeding the batch, forward, backward, and the thread's share of
 * rebuilding the forms derived from weights, as each update makes necessary. That last part works on a second
 * version of the weights, while the first is being read. */
#include <cblas.h>
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "carousel/model.h"
#include "carousel/tape.h"
#include "carousel/version.h"
#include "rates.h"

typedef struct request {
    char name[64];
    car_model_config config;
    int threads;
    double seconds;
} request;

typedef struct member {
    car_lane *lane;
    car_tape *tape;
    car_gradients *gradients;
    void **inputs;                  /* per tensor: data to feed, NULL for computed tensors */
    int refresh_begin, refresh_end; /* operations whose derived forms this thread rebuilds */
    car_status status;              /* the first failure */
} member;

/* The threads for one thread count, with an arena of their own to measure its peak. */
typedef struct crew {
    struct session *session;
    car_arena *arena;
    int threads;
    pace known;
    member members[MAX_THREADS];
} crew;

/* A model that is ready to run. */
typedef struct session {
    request asked;
    car_model_config config; /* with all of the model's sizes set */
    car_graph *graph;
    car_program *program;
    car_arena *arena;
    car_weights *weights, *next; /* next: the version whose derived forms are rebuilt; NULL if there are none */
    double flops, conv_flops;    /* of one micro-batch, forward and backward */
    double inner_flops;          /* conv_flops without products with padding, which good kernels skip */
    int64_t parameters;
    crew *crews[MAX_THREADS + 1];
} session;

/* ---- inputs -------------------------------------------------------------------------------------------- */

static void *make_input(const session *s, const car_tensor *tensor, uint64_t key) {
    void *memory = allocate_or_exit(tensor->bytes);
    size_t count = (size_t)car_shape_elements(tensor->shape);
    int values = s->config.vocabulary > 0 ? s->config.vocabulary : s->config.classes;
    for (size_t i = 0; i < count; i++) {
        if (tensor->dtype == CAR_F32) {
            ((float *)memory)[i] = (float)car_random_normal(key, i);
        } else {
            ((int32_t *)memory)[i] = (int32_t)(car_random_u64(key, i) % (uint64_t)values);
        }
    }
    return memory;
}

static void make_inputs(const session *s, member *m, int thread) {
    int tensors = car_graph_tensor_count(s->graph);
    m->inputs = allocate_or_exit((size_t)tensors * sizeof(void *));
    for (int v = 0; v < tensors; v++) {
        const car_tensor *tensor = car_graph_tensor(s->graph, v);
        uint64_t key = car_random_u64((uint64_t)thread, (uint64_t)v);
        m->inputs[v] = tensor->producer == CAR_NONE ? make_input(s, tensor, key) : NULL;
    }
}

static void release_inputs(const session *s, member *m) {
    for (int v = 0; m->inputs && v < car_graph_tensor_count(s->graph); v++) {
        free(m->inputs[v]);
    }
    free(m->inputs);
}

/* ---- crews --------------------------------------------------------------------------------------------- */

static void destroy_crew(crew *c) {
    if (!c) {
        return;
    }
    for (int i = 0; i < c->threads; i++) {
        release_inputs(c->session, &c->members[i]);
        car_gradients_destroy(c->members[i].gradients);
        car_tape_destroy(c->members[i].tape);
        car_lane_destroy(c->members[i].lane);
    }
    car_arena_destroy(c->arena);
    free(c);
}

/* Distributes the derived forms over threads by their bytes. */
static void share_refresh(crew *c) {
    const session *s = c->session;
    int ops = car_graph_op_count(s->graph);
    double total = 0, before = 0;
    for (int l = 0; l < ops; l++) {
        total += (double)car_program_derived_bytes(s->program, l);
    }
    int l = 0;
    for (int i = 0; i < c->threads; i++) {
        c->members[i].refresh_begin = l;
        while (l < ops && (i == c->threads - 1 || before < total * (i + 1) / c->threads)) {
            before += (double)car_program_derived_bytes(s->program, l++);
        }
        c->members[i].refresh_end = l;
    }
}

static car_status create_crew(session *s, car_context *context, int threads, crew **out) {
    car_status status = CAR_OK;
    crew *c = allocate_or_exit(sizeof *c);
    memset(c, 0, sizeof *c);
    c->session = s;
    c->threads = threads;
    CAR_TRY(car_arena_create(context, 0, &c->arena));
    for (int i = 0; i < threads; i++) {
        member *m = &c->members[i];
        CAR_TRY(car_lane_create(s->program, c->arena, &m->lane));
        CAR_TRY(car_tape_create(s->program, c->arena, &m->tape));
        CAR_TRY(car_gradients_create(s->program, c->arena, &m->gradients));
        make_inputs(s, m, i);
    }
    share_refresh(c);
    *out = c;
    c = NULL;
done:
    destroy_crew(c);
    return status;
}

static car_status step(const session *s, member *m) {
    car_status status = CAR_OK;
    int ops = car_graph_op_count(s->graph);
    car_tape_begin(m->tape, 1, true);
    for (int v = 0; v < car_graph_tensor_count(s->graph); v++) {
        if (m->inputs[v]) {
            CAR_TRY(car_tape_feed(m->tape, v, m->inputs[v]));
        }
    }
    CAR_TRY(car_tape_forward(m->tape, m->lane, s->weights, 0, ops));
    CAR_TRY(car_tape_backward(m->tape, m->lane, s->weights, m->gradients, 0, ops));
    if (s->next) {
        CAR_TRY(car_weights_refresh(s->next, m->lane, m->refresh_begin, m->refresh_end));
    }
done:
    return status;
}

static void crew_work(void *state, int thread, int steps) {
    crew *c = state;
    member *m = &c->members[thread];
    for (int i = 0; i < steps && m->status == CAR_OK; i++) {
        m->status = step(c->session, m);
    }
}

/* ---- sessions ------------------------------------------------------------------------------------------ */

static void destroy_session(session *s) {
    if (!s) {
        return;
    }
    for (int i = 0; i <= MAX_THREADS; i++) {
        destroy_crew(s->crews[i]);
    }
    car_weights_destroy(s->next);
    car_weights_destroy(s->weights);
    car_arena_destroy(s->arena);
    car_program_destroy(s->program);
    car_graph_destroy(s->graph);
    free(s);
}

/* The share of pairs of output and kernel elements, along one side, that are inside the input. */
static double inner_share(int64_t in, int64_t out, const car_conv_config *conv) {
    int64_t inside = 0;
    for (int64_t o = 0; o < out; o++) {
        for (int k = 0; k < conv->kernel; k++) {
            int64_t i = o * conv->stride + k - conv->pad;
            inside += i >= 0 && i < in;
        }
    }
    return (double)inside / (double)(out * conv->kernel);
}

static double conv_inner_share(const car_graph *graph, const car_op *op) {
    const int64_t *in = car_graph_tensor(graph, op->inputs[0])->shape.dim;
    const int64_t *out = car_graph_tensor(graph, op->output)->shape.dim;
    return inner_share(in[2], out[2], &op->config.conv) * inner_share(in[3], out[3], &op->config.conv);
}

static void count_work(session *s) {
    s->flops = car_graph_flops(s->graph, false) + car_graph_flops(s->graph, true);
    for (int l = 0; l < car_graph_op_count(s->graph); l++) {
        const car_op *op = car_graph_op(s->graph, l);
        if (op->kind == CAR_OP_CONV) {
            double flops = op->flops_forward + op->flops_backward;
            s->conv_flops += flops;
            s->inner_flops += flops * conv_inner_share(s->graph, op);
        }
    }
    for (int p = 0; p < car_graph_param_count(s->graph); p++) {
        const car_param *param = car_graph_param(s->graph, p);
        if (param->role != CAR_PARAM_STATISTIC) {
            s->parameters += car_shape_elements(param->shape);
        }
    }
}

static car_status create_next(session *s) {
    car_status status = CAR_OK;
    size_t derived = 0;
    for (int l = 0; l < car_graph_op_count(s->graph); l++) {
        derived += car_program_derived_bytes(s->program, l);
    }
    if (derived == 0) {
        return CAR_OK;
    }
    CAR_TRY(car_weights_create(s->program, s->arena, &s->next));
    for (int p = 0; p < car_graph_param_count(s->graph); p++) {
        memcpy(car_weights_data(s->next, p), car_weights_data(s->weights, p), car_program_copy_bytes(s->program, p));
    }
done:
    return status;
}

static car_status create_session(car_context *context, const request *r, session **out) {
    car_status status = CAR_OK;
    session *s = allocate_or_exit(sizeof *s);
    memset(s, 0, sizeof *s);
    s->asked = *r;
    CAR_TRY(car_model_resolve(context, r->name, &r->config, &s->config));
    CAR_TRY(car_model_build(context, r->name, &s->config, &s->graph));
    CAR_TRY(car_program_create(s->graph, NULL, &s->program));
    CAR_TRY(car_arena_create(context, 0, &s->arena));
    CAR_TRY(car_weights_create(s->program, s->arena, &s->weights));
    CAR_TRY(car_weights_initialize(s->weights, 1));
    CAR_TRY(create_next(s));
    count_work(s);
    *out = s;
    s = NULL;
done:
    destroy_session(s);
    return status;
}

static bool same_model(const request *a, const request *b) {
    return strcmp(a->name, b->name) == 0 && a->config.batch == b->config.batch &&
           a->config.image_size == b->config.image_size && a->config.classes == b->config.classes &&
           a->config.seq_len == b->config.seq_len;
}

/* The session and crew for a request, created if necessary. The session of another model is destroyed first. */
static car_status find_crew(car_context *context, const request *r, session **kept, crew **out) {
    car_status status = CAR_OK;
    if (!*kept || !same_model(&(*kept)->asked, r)) {
        destroy_session(*kept);
        *kept = NULL;
        CAR_TRY(create_session(context, r, kept));
    }
    session *s = *kept;
    if (!s->crews[r->threads]) {
        CAR_TRY(create_crew(s, context, r->threads, &s->crews[r->threads]));
    }
    *out = s->crews[r->threads];
done:
    return status;
}

/* ---- commands ------------------------------------------------------------------------------------------ */

static car_status crew_status(const crew *c) {
    for (int i = 0; i < c->threads; i++) {
        if (c->members[i].status != CAR_OK) {
            return c->members[i].status;
        }
    }
    return CAR_OK;
}

static car_status answer_warm(car_context *context, const request *r, session **kept) {
    car_status status = CAR_OK;
    crew *c = NULL;
    CAR_TRY(find_crew(context, r, kept, &c));
    warm_up(&c->known, c->threads, crew_work, c);
    CAR_TRY(crew_status(c));
    const session *s = c->session;
    printf("{\"parameters\": %lld, \"gflop_per_sample\": %.6g, \"conv_gflop_per_sample\": %.6g, \"loss\": %.6g}\n",
           (long long)s->parameters, s->flops / s->config.batch / 1e9, s->conv_flops / s->config.batch / 1e9,
           (double)car_tape_loss(c->members[0].tape));
done:
    return status;
}

static car_status answer_run(car_context *context, const request *r, session **kept) {
    car_status status = CAR_OK;
    crew *c = NULL;
    int steps = 0;
    CAR_TRY(find_crew(context, r, kept, &c));
    double seconds = measure(&c->known, c->threads, crew_work, c, r->seconds, &steps);
    CAR_TRY(crew_status(c));
    const session *s = c->session;
    double batches = (double)steps * c->threads / seconds;
    printf("{\"seconds\": %.6g, \"steps\": %d, \"samples_per_s\": %.6g, \"gflops\": %.6g, \"conv_gflops\": %.6g, "
           "\"conv_inner_gflops\": %.6g, \"activations_peak_bytes\": %zu}\n",
           seconds, steps, batches * s->config.batch, batches * s->flops / 1e9, batches * s->conv_flops / 1e9,
           batches * s->inner_flops / 1e9, car_arena_peak(c->arena, CAR_MEMORY_ACTIVATIONS));
done:
    return status;
}

static void answer_about(void) {
    const dnnl_version_t *version = dnnl_version();
    printf("{\"carousel\": \"%s\", \"onednn\": \"%d.%d.%d\", \"openblas\": \"%s\", \"openblas_kernels\": \"%s\"}\n",
           car_version(), version->major, version->minor, version->patch, openblas_get_config(),
           openblas_get_corename());
}

static bool parse_run(const char *line, request *r) {
    int image = 0, classes = 0, seq = 0, used = 0;
    car_precision precision = r->config.precision;
    *r = (request){.config = car_model_config_default()};
    r->config.precision = precision;
    if (sscanf(line, "%*s %63s %d %d %d %d %d%n", r->name, &r->config.batch, &image, &classes, &seq, &r->threads,
               &used) != 6) {
        return false;
    }
    r->config.image_size = image;
    r->config.classes = classes;
    r->config.seq_len = seq;
    r->seconds = strtod(line + used, NULL);
    return r->threads >= 1 && r->threads <= MAX_THREADS;
}

static bool parse_rate(const char *line, request *r) {
    return sscanf(line, "%*s %d %lf", &r->threads, &r->seconds) == 2 && r->threads >= 1 && r->threads <= MAX_THREADS;
}

static void answer(car_context *context, const char *line, car_precision precision, session **kept) {
    static sgemm_rate sgemm;
    static fma_rate fma;
    char command[16] = "";
    request r = {.threads = 1, .config.precision = precision};
    car_status status = CAR_OK;
    sscanf(line, "%15s", command);
    if (strcmp(command, "about") == 0) {
        answer_about();
    } else if (strcmp(command, "sgemm") == 0 && parse_rate(line, &r)) {
        printf("{\"gflops\": %.6g}\n", measure_sgemm(&sgemm, r.threads, r.seconds));
    } else if (strcmp(command, "fma") == 0 && parse_rate(line, &r)) {
        printf("{\"gflops\": %.6g}\n", measure_fma(&fma, r.threads, r.seconds));
    } else if (strcmp(command, "warm") == 0 && parse_run(line, &r)) {
        status = answer_warm(context, &r, kept);
    } else if (strcmp(command, "run") == 0 && parse_run(line, &r)) {
        status = answer_run(context, &r, kept);
    } else {
        print_error("not a command; see the head of models.c");
    }
    if (status != CAR_OK) {
        print_error(car_context_error(context)[0] ? car_context_error(context) : car_status_text(status));
        car_context_clear_error(context);
        /* Do not measure a half-built session after a failure. */
        destroy_session(*kept);
        *kept = NULL;
    }
    fflush(stdout);
}

int main(int count, char **arguments) {
    char line[256];
    car_context *context = NULL;
    session *kept = NULL;
    car_precision precision = CAR_PRECISION_FP32;
    if (car_context_create(NULL, &context) != CAR_OK) {
        fprintf(stderr, "models: no context\n");
        return 1;
    }
    if (count > 1 && car_precision_find(context, arguments[1], &precision) != CAR_OK) {
        fprintf(stderr, "models: %s\n", car_context_error(context));
        car_context_destroy(context);
        return 2;
    }
    while (fgets(line, sizeof line, stdin)) {
        answer(context, line, precision, &kept);
    }
    destroy_session(kept);
    car_context_destroy(context);
    return 0;
}
