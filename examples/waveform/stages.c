/* See stages.h.
 *
 *     without checkpoints                 with 2 checkpoints
 *     held     u0 u1 u2 u3 u4 u5 ...      held     (u-1 u0)          (u3 u4)      and the receivers' residuals
 *                                         rebuilt   u0 u1 u2 u3 | adjoint         the second half first, then the first */
#include "stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static real *field(void *fields, size_t index, const wave *w) {
    return (real *)fields + index * wave_cells(w);
}

static size_t field_bytes(const wave *w) {
    return wave_cells(w) * sizeof(real);
}

/* ---- what a stage computes ---------------------------------------------------------------------- */

/* Number of fields in `held`; residuals follow them. */
static size_t held_fields(const stage_user *s) {
    return s->pieces > 0 ? 2 * (size_t)s->pieces : (size_t)s->steps;
}

/* Stores what backward needs from the fields before and at step n. */
static void keep(const stage_user *s, void *held, int n, const real *before, const real *now) {
    int length = s->pieces > 0 ? s->steps / s->pieces : 1;
    if (s->pieces == 0) {
        memcpy(field(held, (size_t)n, s->w), now, field_bytes(s->w));
    } else if (n % length == 0) {
        memcpy(field(held, 2 * (size_t)(n / length), s->w), before, field_bytes(s->w));
        memcpy(field(held, 2 * (size_t)(n / length) + 1, s->w), now, field_bytes(s->w));
    }
}

static car_status forward(const car_stage_io *io) {
    const stage_user *s = io->user;
    const wave *w = s->w;
    const real *v = io->carried[0], *observed = io->data[1];
    int source = *(const int32_t *)io->data[0];
    real *residuals = io->held ? field(io->held, held_fields(s), w) : NULL;
    real *before = field(io->scratch, 0, w), *now = field(io->scratch, 1, w), *next = field(io->scratch, 2, w);
    if (io->input) {
        memcpy(before, io->input, 2 * field_bytes(w));
    } else {
        memset(before, 0, 2 * field_bytes(w));
    }
    for (int n = 0; n < s->steps; n++) {
        size_t sample = (size_t)n * (size_t)w->receivers;
        if (io->held) {
            keep(s, io->held, n, before, now);
        }
        wave_step(w, v, source, s->first + n, before, now, next);
        *io->loss += wave_record(w, next, observed + sample, residuals ? residuals + sample : NULL);
        real *free = before;
        before = now;
        now = next;
        next = free;
    }
    if (io->output) {
        memcpy(field(io->output, 0, w), before, field_bytes(w));
        memcpy(field(io->output, 1, w), now, field_bytes(w));
    }
    return CAR_OK;
}

/* Rebuilds the fields of one segment. */
static car_status rebuild(const car_stage_io *io) {
    const stage_user *s = io->user;
    const wave *w = s->w;
    int length = s->steps / s->pieces, from = io->segment * length;
    const real *before = field(io->held, 2 * (size_t)io->segment, w);
    memcpy(io->rebuilt, field(io->held, 2 * (size_t)io->segment + 1, w), field_bytes(w));
    for (int n = 0; n + 1 < length; n++) {
        real *now = field(io->rebuilt, (size_t)n, w);
        wave_step(w, io->carried[0], *(const int32_t *)io->data[0], s->first + from + n, before, now,
                  field(io->rebuilt, (size_t)n + 1, w));
        before = now;
    }
    return CAR_OK;
}

static car_status backward(const car_stage_io *io) {
    const stage_user *s = io->user;
    const wave *w = s->w;
    int length = s->pieces > 0 ? s->steps / s->pieces : s->steps, last = s->pieces > 0 ? s->pieces - 1 : 0;
    void *fields = s->pieces > 0 ? io->rebuilt : io->held;
    const real *residuals = field(io->held, held_fields(s), w) + (size_t)(io->segment * length * w->receivers);
    real *adjoint = s->pieces > 0 ? field(io->rebuilt, (size_t)length, w) : field(io->scratch, 1, w);
    real *later = adjoint + wave_cells(w);
    if (io->segment == last && io->output_gradient) {
        memcpy(adjoint, io->output_gradient, 2 * field_bytes(w));
    } else if (io->segment == last) {
        memset(adjoint, 0, 2 * field_bytes(w));
    }
    for (int n = length - 1; n >= 0; n--) {
        real *swap = later;
        wave_inject(w, residuals + (size_t)n * (size_t)w->receivers, later);
        wave_back(w, io->carried[0], field(fields, (size_t)n, w), adjoint, later, io->carried_gradients[0],
                  io->scratch);
        later = adjoint;
        adjoint = swap;
    }
    if (io->segment > 0 && adjoint > later) { /* where the next segment expects them */
        memcpy(io->scratch, later, field_bytes(w));
        memcpy(later, adjoint, field_bytes(w));
        memcpy(adjoint, io->scratch, field_bytes(w));
    } else if (io->input_gradient) {
        memcpy(field(io->input_gradient, 0, w), adjoint, field_bytes(w));
        memcpy(field(io->input_gradient, 1, w), later, field_bytes(w));
    }
    return CAR_OK;
}

/* ---- the chain ----------------------------------------------------------------------------------- */

static car_stage_class class_of(const stage_user *s, bool first, bool last) {
    size_t bytes = field_bytes(s->w), residuals = (size_t)s->steps * (size_t)s->w->receivers * sizeof(real);
    size_t length = (size_t)(s->pieces > 0 ? s->steps / s->pieces : 0);
    return (car_stage_class){.forward = forward,
                             .backward = backward,
                             .recompute = s->pieces > 0 ? rebuild : NULL,
                             .segments = s->pieces,
                             .input_bytes = first ? 0 : 2 * bytes,
                             .output_bytes = last ? 0 : 2 * bytes,
                             .held_bytes = held_fields(s) * bytes + residuals,
                             .rebuilt_bytes = s->pieces > 0 ? (length + 2) * bytes : 0,
                             .scratch_bytes = 3 * bytes,
                             .forward_cost = s->steps,
                             .backward_cost = s->steps * (s->pieces > 0 ? 3 : 2)};
}

static void build(chain *c) {
    const wave *w = c->w;
    car_dtype type = sizeof(real) == sizeof(double) ? CAR_F64 : CAR_F32;
    int velocity =
        car_graph_carry(c->graph, "velocity", (car_shape){2, {w->width, w->width}}, type, (car_init){.a = 2});
    int state = CAR_NONE;
    c->source = car_graph_input(c->graph, "source", (car_shape){1, {1}}, CAR_I32);
    for (int j = 0; j < c->stages; j++) {
        char name[32];
        snprintf(name, sizeof name, "observed.%d", j);
        c->observed[j] = car_graph_input(c->graph, name, (car_shape){2, {c->users[j].steps, w->receivers}}, type);
        c->classes[j] = class_of(&c->users[j], j == 0, j == c->stages - 1);
        snprintf(name, sizeof name, "time.%d", c->users[j].first);
        state = car_graph_stage(c->graph, name, &c->classes[j],
                                &(car_stage_config){.input = state,
                                                    .carried_count = 1,
                                                    .carried = {velocity},
                                                    .data_count = 2,
                                                    .data = {c->source, c->observed[j]},
                                                    .user = &c->users[j]});
    }
    c->source = car_graph_finish(c->graph, state) == CAR_OK ? c->source : CAR_NONE;
}

car_status chain_open(chain *c, car_context *context, const wave *w, int stages, int checkpoints) {
    car_status status = CAR_OK;
    *c = (chain){.w = w, .stages = stages};
    c->users = calloc((size_t)stages, sizeof *c->users);
    c->classes = calloc((size_t)stages, sizeof *c->classes);
    c->observed = calloc((size_t)stages, sizeof *c->observed);
    if (!c->users || !c->classes || !c->observed) {
        return CAR_ERROR_MEMORY;
    }
    for (int j = 0; j < stages; j++) {
        c->users[j] = (stage_user){w, j * (w->steps / stages), w->steps / stages, checkpoints};
    }
    status = car_graph_create(context, &c->graph);
    if (status == CAR_OK) {
        build(c);
        status = c->source == CAR_NONE ? CAR_ERROR_ARGUMENT : CAR_OK;
    }
    return status;
}

void chain_close(chain *c) {
    car_graph_destroy(c->graph);
    free(c->observed);
    free(c->classes);
    free(c->users);
}

car_status chain_feed(const chain *c, int shot, car_tape *tape) {
    const wave *w = c->w;
    const int32_t source = w->source[shot];
    const real *observed = w->observed + (size_t)shot * (size_t)w->steps * (size_t)w->receivers;
    car_status status = car_tape_feed(tape, c->source, &source);
    for (int j = 0; status == CAR_OK && j < c->stages; j++) {
        status = car_tape_feed(tape, c->observed[j], observed + (size_t)c->users[j].first * (size_t)w->receivers);
    }
    return status;
}
