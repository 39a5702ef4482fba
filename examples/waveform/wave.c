/* See wave.h. */
#include "wave.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* In cells. */
enum {
    LAYER = 20, /* that absorb, on each side */
    DEPTH = 3,  /* of sources and receivers */
    MARGIN = 7  /* around those, which the search leaves alone */
};

static const double pi = 3.14159265358979323846;

static size_t cell_at(const wave *w, int z, int x) {
    return (size_t)(z + LAYER + WAVE_HALO) * (size_t)w->width + (size_t)(x + LAYER + WAVE_HALO);
}

/* ---- the model --------------------------------------------------------------------------------- */

/* Velocity grows with depth, also in the absorbing layer. */
void wave_first_model(const wave *w, real *v) {
    for (int z = 0; z < w->width; z++) {
        double depth = (double)(z - LAYER - WAVE_HALO) / w->size;
        for (int x = 0; x < w->width; x++) {
            v[(size_t)z * (size_t)w->width + (size_t)x] = (real)(1.8 + 0.4 * fmin(fmax(depth, 0), 1));
        }
    }
}

static double blob(double z, double x, double at_z, double at_x, double radius) {
    double far = hypot(z - at_z, x - at_x) / radius;
    return exp(-pow(far, 6));
}

void wave_true_model(const wave *w, real *v) {
    wave_first_model(w, v);
    for (int z = 0; z < w->size; z++) {
        for (int x = 0; x < w->size; x++) {
            double down = (double)z / w->size, right = (double)x / w->size;
            v[cell_at(w, z, x)] +=
                (real)(0.25 * blob(down, right, 0.42, 0.36, 0.15) - 0.2 * blob(down, right, 0.62, 0.68, 0.12));
        }
    }
}

bool wave_is_free(const wave *w, size_t cell) {
    int z = (int)(cell / (size_t)w->width) - LAYER - WAVE_HALO, x = (int)(cell % (size_t)w->width) - LAYER - WAVE_HALO;
    int least = DEPTH + MARGIN, most = w->size - 1 - least;
    return x >= least && x <= most && z >= least && z <= most;
}

/* ---- setting up --------------------------------------------------------------------------------- */

/* Sources alternate between top and bottom, receivers are on all four sides, so waves cross the model in all
 * directions. */
static void place(wave *w) {
    int side = w->receivers / 4, far = w->size - 1 - DEPTH;
    for (int s = 0; s < w->shots; s++) {
        w->source[s] = (int)cell_at(w, s % 2 == 0 ? DEPTH : far, (2 * s + 1) * w->size / (2 * w->shots));
    }
    for (int r = 0; r < side; r++) {
        w->receiver[r] = (int)cell_at(w, DEPTH, 2 * r);
        w->receiver[side + r] = (int)cell_at(w, far, 2 * r);
        w->receiver[2 * side + r] = (int)cell_at(w, 2 * r, DEPTH);
        w->receiver[3 * side + r] = (int)cell_at(w, 2 * r, far);
    }
}

static void damp(wave *w) {
    for (int z = 0; z < w->width; z++) {
        for (int x = 0; x < w->width; x++) {
            int edge = WAVE_HALO + LAYER, far = w->width - 1 - edge;
            double out = fmax(fmax(edge - z, z - far), fmax(edge - x, x - far)) / LAYER;
            double damping = out > 0 ? 60 * out * out * w->dt / 2 : 0;
            size_t c = (size_t)z * (size_t)w->width + (size_t)x;
            w->fresh[c] = (real)(1 / (1 + damping));
            w->old[c] = (real)(1 - damping);
        }
    }
}

bool wave_open(wave *w, int size, int steps, int shots, double fastest) {
    *w = (wave){.size = size,
                .width = size + 2 * (LAYER + WAVE_HALO),
                .steps = steps,
                .shots = shots,
                .receivers = 4 * ((size + 1) / 2),
                .cell = 0.02,
                .frequency = 8};
    w->dt = 0.55 * w->cell / fastest;
    size_t cells = wave_cells(w), samples = (size_t)steps * (size_t)w->receivers;
    w->source = malloc((size_t)shots * sizeof *w->source);
    w->receiver = malloc((size_t)w->receivers * sizeof *w->receiver);
    w->fresh = malloc(cells * sizeof *w->fresh);
    w->old = malloc(cells * sizeof *w->old);
    w->wavelet = malloc((size_t)steps * sizeof *w->wavelet);
    w->observed = malloc((size_t)shots * samples * sizeof *w->observed);
    real *v = malloc(cells * sizeof *v);
    bool good = w->source && w->receiver && w->fresh && w->old && w->wavelet && w->observed && v;
    if (good) {
        place(w);
        damp(w);
        wave_true_model(w, v);
    }
    for (int n = 0; good && n < steps; n++) { /* Ricker wavelet */
        double t = pi * w->frequency * (n * w->dt - 1.2 / w->frequency);
        w->wavelet[n] = (real)(1e3 * w->dt * w->dt * (1 - 2 * t * t) * exp(-t * t));
    }
    for (int s = 0; good && s < shots; s++) {
        good = wave_observe(w, v, s, w->observed + (size_t)s * samples);
    }
    free(v);
    return good;
}

void wave_close(wave *w) {
    free(w->observed);
    free(w->wavelet);
    free(w->old);
    free(w->fresh);
    free(w->receiver);
    free(w->source);
}

/* ---- one step ------------------------------------------------------------------------------------ */

static inline real laplace(const real *u, ptrdiff_t c, ptrdiff_t width) {
    return (real)(4.0 / 3) * (u[c - 1] + u[c + 1] + u[c - width] + u[c + width]) -
           (real)(1.0 / 12) * (u[c - 2] + u[c + 2] + u[c - 2 * width] + u[c + 2 * width]) - 5 * u[c];
}

void wave_step(const wave *w, const real *v, int source, int n, const real *before, const real *now, real *next) {
    const ptrdiff_t width = w->width;
    const real scale = (real)(w->dt * w->dt / (w->cell * w->cell));
    memset(next, 0, wave_cells(w) * sizeof *next);
    for (ptrdiff_t z = WAVE_HALO; z < width - WAVE_HALO; z++) {
        for (ptrdiff_t c = z * width + WAVE_HALO; c < (z + 1) * width - WAVE_HALO; c++) {
            next[c] = w->fresh[c] * (2 * now[c] - w->old[c] * before[c] + scale * v[c] * v[c] * laplace(now, c, width));
        }
    }
    next[source] += w->wavelet[n];
}

/* The stencil is symmetric, so its adjoint is itself. */
void wave_back(const wave *w, const real *v, const real *now, real *adjoint, real *later, real *gradient, real *room) {
    const ptrdiff_t width = w->width;
    const real scale = (real)(w->dt * w->dt / (w->cell * w->cell));
    memset(room, 0, wave_cells(w) * sizeof *room);
    for (ptrdiff_t z = WAVE_HALO; z < width - WAVE_HALO; z++) {
        for (ptrdiff_t c = z * width + WAVE_HALO; c < (z + 1) * width - WAVE_HALO; c++) {
            real fresh = w->fresh[c] * later[c];
            room[c] = scale * v[c] * v[c] * fresh;
            gradient[c] += 2 * scale * v[c] * fresh * laplace(now, c, width);
        }
    }
    for (ptrdiff_t z = WAVE_HALO; z < width - WAVE_HALO; z++) {
        for (ptrdiff_t c = z * width + WAVE_HALO; c < (z + 1) * width - WAVE_HALO; c++) {
            real fresh = w->fresh[c] * later[c];
            adjoint[c] += 2 * fresh + laplace(room, c, width);
            later[c] = -w->old[c] * fresh;
        }
    }
}

double wave_record(const wave *w, const real *field, const real *observed, real *residual) {
    double square = 0;
    for (int r = 0; r < w->receivers; r++) {
        double off = (double)field[w->receiver[r]] - (double)observed[r];
        square += off * off;
        if (residual) {
            residual[r] = (real)(w->dt * off);
        }
    }
    return w->dt * square / 2;
}

void wave_inject(const wave *w, const real *residual, real *adjoint) {
    for (int r = 0; r < w->receivers; r++) {
        adjoint[w->receiver[r]] += residual[r];
    }
}
