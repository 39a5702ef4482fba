/* See toy_stages.h. */
#include "engine/toy_stages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/kernel.h"

enum { SIZE = CAR_TOY_SIZE, STEPS = CAR_TOY_STEPS };

static const double time_step = 0.1;

/* ---- one time step ------------------------------------------------------------------------------- */

static void advance(const double *u, const double *m, const float *p, double *next) {
    for (int i = 0; i < SIZE; i++) {
        next[i] = u[i] + time_step * (m[i] * sin(u[(i + 1) % SIZE]) + (p ? (double)p[i] : 0.25));
    }
}

/* `d` is of the step's result, and becomes that of what it began with. */
static void retreat(const double *u, const double *m, double *d, double *dm, float *dp) {
    double before[SIZE];
    for (int i = 0; i < SIZE; i++) {
        int left = (i + SIZE - 1) % SIZE;
        before[i] = d[i] + time_step * m[left] * cos(u[i]) * d[left];
        dm[i] += time_step * sin(u[(i + 1) % SIZE]) * d[i];
        if (dp) {
            dp[i] += (float)(time_step * d[i]);
        }
    }
    memcpy(d, before, sizeof before);
}

/* ---- a stage ------------------------------------------------------------------------------------- */

static int steps_of_segment(const car_toy_config *config) {
    return config->segments > 0 ? STEPS / config->segments : STEPS;
}

typedef car_toy_setting setting;

/* As stage.h promises. */
static bool is_aligned(const car_stage_io *io) {
    const void *all[] = {io->input,           io->output,          io->held,
                         io->rebuilt,         io->scratch,         io->params,
                         io->param_gradients, io->carried[0],      io->carried_gradients[0],
                         io->data[0],         io->output_gradient, io->input_gradient};
    bool aligned = true;
    for (size_t a = 0; a < sizeof all / sizeof *all; a++) {
        aligned = aligned && (uintptr_t)all[a] % 64 == 0;
    }
    return aligned;
}

static car_status forward(const car_stage_io *io) {
    const setting *s = io->user;
    const double *target = io->data[0];
    double u[2][SIZE] = {{1, -0.5, 0.25, 0.125, -1, 0.75, 2}}, *held = io->held, square = 0;
    int every = s->config->segments > 0 ? steps_of_segment(s->config) : 1;
    if (io->input) {
        memcpy(u[0], io->input, sizeof u[0]);
    }
    for (int t = 0; t < STEPS; t++) {
        if (held && t % every == 0) {
            memcpy(held + t / every * SIZE, u[t % 2], sizeof u[0]);
        }
        advance(u[t % 2], io->carried[0], io->params, u[(t + 1) % 2]);
    }
    for (int i = 0; i < SIZE; i++) {
        double off = u[STEPS % 2][i] - target[i];
        square += off * off / 2;
    }
    bool infinite = s->fault == CAR_TOY_INFINITE || (s->fault == CAR_TOY_INFINITE_ONCE && target[0] > 100);
    *io->loss += infinite ? INFINITY : square;
    if (held) {
        memcpy(held + STEPS / every * SIZE, u[STEPS % 2], sizeof u[0]);
    }
    if (io->output) {
        memcpy(io->output, u[STEPS % 2], sizeof u[0]);
    }
    if (s->fault == CAR_TOY_WRITES_BEHIND && io->output) {
        ((double *)io->output)[SIZE] = 0;
    }
    return !is_aligned(io) && io->name          ? car_stage_fail(io, "forward: not all of it is aligned")
           : s->fault == CAR_TOY_FAILS          ? car_stage_fail(io, "the oscillator broke at %d", 42)
           : s->fault == CAR_TOY_FAILS_SILENTLY ? CAR_ERROR_IO
                                                : CAR_OK;
}

static car_status recompute(const car_stage_io *io) {
    const setting *s = io->user;
    double *states = io->rebuilt;
    memcpy(states, (const double *)io->held + (size_t)io->segment * SIZE, SIZE * sizeof(double));
    for (int t = 0; t + 1 < steps_of_segment(s->config); t++) {
        advance(states + (size_t)t * SIZE, io->carried[0], io->params, states + (size_t)(t + 1) * SIZE);
    }
    return CAR_OK;
}

/* Of what is rebuilt, the last state is the adjoint, which goes from segment to segment. */
static car_status backward(const car_stage_io *io) {
    const setting *s = io->user;
    bool rebuilds = s->config->segments > 0;
    int steps = steps_of_segment(s->config), last = rebuilds ? s->config->segments - 1 : 0;
    const double *states = rebuilds ? io->rebuilt : io->held, *target = io->data[0], *above = io->output_gradient;
    const double *end = (const double *)io->held + (size_t)(rebuilds ? last + 1 : STEPS) * SIZE;
    double *d = rebuilds ? (double *)io->rebuilt + (size_t)steps * SIZE : io->scratch;
    for (int i = 0; i < SIZE && io->segment == last; i++) {
        d[i] = (above ? above[i] : 0) + (end[i] - target[i]);
    }
    for (int t = steps - 1; t >= 0; t--) {
        retreat(states + (size_t)t * SIZE, io->carried[0], d, io->carried_gradients[0], io->param_gradients);
    }
    if (io->input_gradient) {
        memcpy(io->input_gradient, d, SIZE * sizeof(double));
    }
    if (s->fault == CAR_TOY_WRITES_BEFORE) {
        ((double *)io->carried_gradients[0])[-1] = 0;
    }
    return is_aligned(io) || !io->name ? CAR_OK : car_stage_fail(io, "backward: not all of it is aligned");
}

/* ---- the chain ----------------------------------------------------------------------------------- */

void car_toy_must(const car_toy *toy, car_status status) {
    if (status != CAR_OK) {
        fprintf(stderr, "%s: %s\n", car_status_text(status), car_context_error(toy->context));
        abort(); /* also in threads that are not cmocka's */
    }
}

static car_stage_class class_of(const car_toy_config *config, bool first, bool last) {
    size_t state = SIZE * sizeof(double), held = (size_t)(config->segments > 0 ? config->segments : STEPS) + 1;
    return (car_stage_class){.forward = forward,
                             .backward = backward,
                             .recompute = config->segments > 0 ? recompute : NULL,
                             .segments = config->segments,
                             .input_bytes = first ? 0 : state,
                             .output_bytes = last ? 0 : state,
                             .held_bytes = held * state,
                             .rebuilt_bytes = config->segments > 0 ? (size_t)(steps_of_segment(config) + 1) * state : 0,
                             .scratch_bytes = state,
                             .param_count = config->bare || (last && config->ends_bare) ? 0 : SIZE,
                             .init = {CAR_INIT_UNIFORM, 0.5}};
}

static void build(car_toy *toy) {
    const car_toy_config *config = &toy->config;
    car_graph *graph = toy->graph;
    toy->targets = car_graph_input(graph, "targets", (car_shape){1, {SIZE}}, CAR_F64);
    int model = car_graph_carry(graph, "model", (car_shape){1, {SIZE}}, config->floats ? CAR_F32 : CAR_F64,
                                (car_init){CAR_INIT_UNIFORM, 1});
    int state = CAR_NONE;
    for (int j = 0; j < config->stages; j++) {
        char name[16];
        snprintf(name, sizeof name, "run.%d", j);
        toy->classes[j] = class_of(config, j == 0, j == config->stages - 1);
        car_stage_config stage = {.input = state,
                                  .carried_count = 1,
                                  .carried = {model},
                                  .data_count = 1,
                                  .data = {toy->targets},
                                  .user = &toy->settings[j == 1]};
        state = car_graph_stage(graph, name, &toy->classes[j], &stage);
    }
    car_toy_must(toy, car_graph_finish(graph, state));
}

void car_toy_open(car_toy *toy, const car_toy_config *config, car_plan_config plan, bool guards) {
    car_program_config program = car_program_config_default();
    *toy = (car_toy){.config = *config};
    toy->settings[0] = (car_toy_setting){&toy->config, 0};
    toy->settings[1] = (car_toy_setting){&toy->config, config->fault};
    program.guards = guards;
    plan.workers = config->workers;
    car_toy_must(toy, car_context_create(NULL, &toy->context));
    car_toy_must(toy, car_graph_create(toy->context, &toy->graph));
    build(toy);
    car_toy_must(toy,
                 car_partition_create(toy->graph, &(car_partition_config){.stages = config->stages}, &toy->partition));
    car_toy_must(toy, car_plan_create(toy->context, toy->partition, &plan, &toy->plan));
    car_toy_must(toy, car_plan_validate(toy->plan, 4));
    car_toy_must(toy, car_program_create(toy->graph, &program, &toy->program));
    car_toy_must(toy, car_arena_create(toy->context, 0, &toy->arena));
}

void car_toy_close(car_toy *toy) {
    car_arena_destroy(toy->arena);
    car_program_destroy(toy->program);
    car_plan_destroy(toy->plan);
    car_partition_destroy(toy->partition);
    car_graph_destroy(toy->graph);
    car_context_destroy(toy->context);
}

static void draw_targets(const car_toy *toy, int64_t step, int worker, double *targets) {
    for (int i = 0; i < SIZE; i++) {
        targets[i] = sin((double)(step * toy->config.workers + worker) * 1.7 + i);
    }
    if (toy->config.fault == CAR_TOY_INFINITE_ONCE && step == 1 && worker == 1) {
        targets[0] = 1000;
    }
}

car_status car_toy_feed(void *user, int64_t step, int worker, car_tape *tape) {
    const car_toy *toy = user;
    double targets[SIZE];
    draw_targets(toy, step, worker, targets);
    return car_tape_feed(tape, toy->targets, targets);
}

/* ---- parameters as a row of doubles ---------------------------------------------------------------- */

enum { MOST_PARAMS = CAR_TOY_MOST_STAGES + 1 };

typedef struct values {
    double model[SIZE];
    float params[CAR_TOY_MOST_STAGES][SIZE];
    void *pointers[MOST_PARAMS]; /* in the graph's order */
} values;

int car_toy_count(const car_toy *toy) {
    return SIZE * (1 + (toy->config.bare ? 0 : toy->config.stages - toy->config.ends_bare));
}

static void point(values *v) {
    v->pointers[0] = v->model;
    for (int j = 0; j < CAR_TOY_MOST_STAGES; j++) {
        v->pointers[1 + j] = v->params[j];
    }
}

static void spread(const car_toy *toy, const double *row, values *v) {
    memcpy(v->model, row, sizeof v->model);
    for (int n = 0; n < car_toy_count(toy) - SIZE; n++) {
        v->params[n / SIZE][n % SIZE] = (float)row[SIZE + n];
    }
    point(v);
}

static void gather(const car_toy *toy, const values *v, double *row) {
    memcpy(row, v->model, sizeof v->model);
    for (int n = 0; n < car_toy_count(toy) - SIZE; n++) {
        row[SIZE + n] = v->params[n / SIZE][n % SIZE];
    }
}

car_status car_toy_read(const car_toy *toy, car_rank *rank, double *row) {
    values v = {0};
    point(&v);
    car_status status = car_rank_read(rank, v.pointers);
    gather(toy, &v, row);
    return status;
}

car_status car_toy_assign(const car_toy *toy, car_rank *rank, const double *row) {
    values v = {0};
    spread(toy, row, &v);
    return car_rank_assign(rank, (const void *const *)v.pointers);
}

car_status car_toy_gradient(const car_toy *toy, car_rank *rank, double *loss, double *row) {
    values v = {0};
    point(&v);
    car_status status = car_rank_gradient(rank, loss, v.pointers);
    gather(toy, &v, row);
    return status;
}

/* ---- without the runtime ----------------------------------------------------------------------------- */

/* What one micro-batch has on its way. */
typedef struct serial {
    double targets[SIZE], states[CAR_TOY_MOST_STAGES][SIZE], held[CAR_TOY_MOST_STAGES][(STEPS + 1) * SIZE];
    double rebuilt[(STEPS + 1) * SIZE], scratch[SIZE], model[SIZE], up[SIZE], down[SIZE];
} serial;

static car_stage_io serial_io(const car_toy *toy, const values *v, serial *m, int j) {
    return (car_stage_io){.user = &toy->settings[j == 1],
                          .input = j > 0 ? m->states[j - 1] : NULL,
                          .output = j < toy->config.stages - 1 ? m->states[j] : NULL,
                          .held = m->held[j],
                          .rebuilt = m->rebuilt,
                          .scratch = m->scratch,
                          .params = toy->classes[j].param_count > 0 ? v->params[j] : NULL,
                          .carried = {v->model},
                          .data = {m->targets},
                          .context = toy->context};
}

static double serial_micro_batch(const car_toy *toy, const values *v, serial *m, values *sums, bool first) {
    double loss = 0;
    memset(m->model, 0, sizeof m->model);
    for (int j = 0; j < toy->config.stages; j++) {
        car_stage_io io = serial_io(toy, v, m, j);
        double own = 0;
        io.loss = &own;
        forward(&io);
        loss += own;
    }
    for (int j = toy->config.stages - 1; j >= 0; j--) {
        car_stage_io io = serial_io(toy, v, m, j);
        float params[SIZE] = {0};
        io.output_gradient = io.output ? m->up : NULL;
        io.input_gradient = m->down;
        io.carried_gradients[0] = m->model;
        io.param_gradients = io.params ? params : NULL;
        for (io.segment = toy->config.segments > 0 ? toy->config.segments - 1 : 0; io.segment >= 0; io.segment--) {
            if (toy->config.segments > 0) {
                recompute(&io);
            }
            backward(&io);
        }
        memcpy(m->up, m->down, sizeof m->up);
        for (int i = 0; i < SIZE; i++) {
            sums->params[j][i] = first ? params[i] : sums->params[j][i] + params[i];
        }
    }
    for (int i = 0; i < SIZE; i++) {
        sums->model[i] = first ? m->model[i] : sums->model[i] + m->model[i];
    }
    return loss;
}

void car_toy_serial(const car_toy *toy, int64_t step, const double *row, double *loss, double *gradient) {
    int workers = toy->config.workers;
    values v = {0}, sums = {0};
    serial m;
    spread(toy, row, &v);
    *loss = 0;
    car_kernel_mode mode = car_kernels_enter(1);
    for (int i = 0; i < workers; i++) {
        draw_targets(toy, step, i, m.targets);
        *loss += serial_micro_batch(toy, &v, &m, &sums, i == 0);
    }
    car_kernels_leave(mode);
    *loss /= workers;
    for (int n = 0; n < SIZE; n++) {
        sums.model[n] /= workers;
    }
    for (int n = 0; n < car_toy_count(toy) - SIZE; n++) {
        sums.params[n / SIZE][n % SIZE] /= (float)workers;
    }
    gather(toy, &sums, gradient);
}
