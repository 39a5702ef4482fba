/* The acoustic wave equation in two dimensions, and the derivative of its seismograms by the velocity.
 *
 *     u_tt + damping u_t = v^2 (u_xx + u_zz) + source
 *
 * Second order in time, fourth in space. A damping layer around the model absorbs what leaves it. A step computes
 * the next field from the last two, and its adjoint goes the same way back:
 *
 *     (u[n-1], u[n])  ─ wave_step ─►  (u[n], u[n+1])
 *     (l[n-1], l[n])  ◄─ wave_back ─  (l[n], l[n+1])     adds v's gradient, which needs u[n] */
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
    int size;  /* cells of the model per side */
    int width; /* with absorbing layer and halo */
    int steps; /* time steps */
    int shots, receivers;
    double cell, dt, frequency; /* km, s, Hz */
    int *source, *receiver;     /* cells: per shot, per receiver */
    real *fresh, *old;          /* per cell: what damping leaves of a step, and of the field before it */
    real *wavelet;              /* per step */
    real *observed;             /* [shots][steps][receivers] */
} wave;

/* Returns false if memory runs out. */
bool wave_open(wave *w, int size, int steps, int shots, double fastest);
void wave_close(wave *w);
static inline size_t wave_cells(const wave *w) {
    return (size_t)w->width * (size_t)w->width;
}

/* Velocities in km/s: the true model, and the start of the search. */
void wave_true_model(const wave *w, real *v);
void wave_first_model(const wave *w, real *v);
/* Whether the search may change a cell: it is inside the model, and not next to sources or receivers. */
bool wave_is_free(const wave *w, size_t cell);

/* Step n: computes `next` from the two fields before it. */
void wave_step(const wave *w, const real *v, int source, int n, const real *before, const real *now, real *next);
/* Its adjoint. `later` is the adjoint of `next` and becomes that of the field before `now`; `adjoint` is that of
 * `now` and becomes complete. Adds to `gradient`. `room` is a scratch field. */
void wave_back(const wave *w, const real *v, const real *now, real *adjoint, real *later, real *gradient, real *room);

/* Computes the residual of a field at the receivers in step n, and returns half its square. */
double wave_record(const wave *w, const real *field, const real *observed, real *residual);
/* Adds the residual as the adjoint's source. */
void wave_inject(const wave *w, const real *residual, real *adjoint);

/* Without the runtime: the seismogram of a shot; and its loss and gradient (which is added to), with all fields in
 * memory. */
bool wave_observe(const wave *w, const real *v, int shot, real *seismogram);
bool wave_serial(const wave *w, const real *v, int shot, double *loss, real *gradient);

#endif
