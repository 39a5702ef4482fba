/* The acoustic wave equation in two dimensions, and the derivative of its seismograms by the velocity.
 *
 *     u_tt + damping u_t = v^2 (u_xx + u_zz) + source
 *
 * Second order in time, fourth in space; a layer of damping around the model absorbs what leaves it. A step makes the next
 * field of the last two, and its adjoint goes the same way back:
 *
 *     (u[n-1], u[n])  ─ wave_step ─►  (u[n], u[n+1])
 *     (l[n-1], l[n])  ◄─ wave_back ─  (l[n], l[n+1])     adds v's gradient, which needs u[n]
 */
#ifndef WAVE_H
#define WAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef REAL
#define REAL double /* or float: fields, model, gradient */
#endif
typedef REAL real;

enum { WAVE_HALO = 2 }; /* cells around the grid that stay zero */

typedef struct wave {
    int size;  /* cells of the model on a side */
    int width; /* with the layer that absorbs and the halo */
    int steps; /* of time */
    int shots, receivers;
    double cell, dt, frequency; /* km, s, Hz */
    int *source, *receiver;     /* cells: per shot, per receiver */
    real *fresh, *old;          /* per cell: what damping leaves of a step, and of the field before it */
    real *wavelet;              /* per step */
    real *observed;             /* [shots][steps][receivers] */
} wave;

/* False if memory runs out. */
bool wave_open(wave *w, int size, int steps, int shots, double fastest);
void wave_close(wave *w);
static inline size_t wave_cells(const wave *w) {
    return (size_t)w->width * (size_t)w->width;
}

/* Velocities in km/s: what is looked for, and where the search begins. */
void wave_true_model(const wave *w, real *v);
void wave_first_model(const wave *w, real *v);
/* Whether the search may change a cell: inside the model, and not right beside sources and receivers. */
bool wave_is_free(const wave *w, size_t cell);

/* Step n: `next` from the two before it; and its adjoint. `later` is the adjoint of `next` and becomes that of `now`'s
 * predecessor, `adjoint` is that of `now` and becomes complete. `room` is a field of scratch. */
void wave_step(const wave *w, const real *v, int source, int n, const real *before, const real *now, real *next);
void wave_back(const wave *w, const real *v, const real *now, real *adjoint, real *later, real *gradient, real *room);

/* What receivers have of a field beyond what was observed in step n, and half the square of it; it is also the adjoint's
 * source. */
double wave_record(const wave *w, const real *field, const real *observed, real *residual);
void wave_inject(const wave *w, const real *residual, real *adjoint);

/* Without the runtime: the seismogram of a shot, and loss and gradient (added to) of one, all fields in memory. */
bool wave_observe(const wave *w, const real *v, int shot, real *seismogram);
bool wave_serial(const wave *w, const real *v, int shot, double *loss, real *gradient);

#endif
