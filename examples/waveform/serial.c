/* A shot without the runtime, to compare with: one loop forward, one back, with every field in memory. */
#include <stdlib.h>
#include <string.h>

#include "wave.h"

bool wave_observe(const wave *w, const real *v, int shot, real *seismogram) {
    size_t cells = wave_cells(w);
    real *fields = calloc(3 * cells, sizeof *fields);
    for (int n = 0; fields && n < w->steps; n++) {
        real *next = fields + (size_t)((n + 2) % 3) * cells;
        wave_step(w, v, w->source[shot], n, fields + (size_t)(n % 3) * cells, fields + (size_t)((n + 1) % 3) * cells,
                  next);
        for (int r = 0; r < w->receivers; r++) {
            seismogram[(size_t)n * (size_t)w->receivers + (size_t)r] = next[w->receiver[r]];
        }
    }
    free(fields);
    return fields != NULL;
}

bool wave_serial(const wave *w, const real *v, int shot, double *loss, real *gradient) {
    size_t cells = wave_cells(w), receivers = (size_t)w->receivers;
    const real *observed = w->observed + (size_t)shot * (size_t)w->steps * receivers;
    real *fields = calloc(((size_t)w->steps + 2) * cells, sizeof *fields); /* step n makes field n + 2 */
    real *residuals = malloc((size_t)w->steps * receivers * sizeof *residuals);
    real *adjoint = calloc(3 * cells, sizeof *adjoint), *later = adjoint + cells, *room = later + cells;
    bool good = fields && residuals && adjoint;
    for (int n = 0; good && n < w->steps; n++) {
        real *now = fields + ((size_t)n + 1) * cells;
        wave_step(w, v, w->source[shot], n, now - cells, now, now + cells);
        *loss += wave_record(w, now + cells, observed + (size_t)n * receivers, residuals + (size_t)n * receivers);
    }
    for (int n = w->steps - 1; good && n >= 0; n--) {
        real *swap = later;
        wave_inject(w, residuals + (size_t)n * receivers, later);
        wave_back(w, v, fields + ((size_t)n + 1) * cells, adjoint, later, gradient, room);
        later = adjoint;
        adjoint = swap;
    }
    free(adjoint < later ? adjoint : later);
    free(residuals);
    free(fields);
    return good;
}
