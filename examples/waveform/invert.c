/* See invert.h. L-BFGS keeps the last changes of x and of the gradient, which estimate the curvature (Nocedal and
 * Wright, Numerical Optimization, algorithm 7.4). */
#include "invert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 6, MOST_TRIALS = 12 };

typedef struct state {
    size_t count;
    real *gradient, *direction, *trial, *next;
    real *moves[KEPT], *turns[KEPT]; /* changes of x and of the gradient, by iteration mod KEPT */
    double product[KEPT];            /* dot products of the two */
    int first, end;                  /* the iterations kept */
} state;

static double dot(const real *a, const real *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

static void add(real *to, double scale, const real *x, size_t count) {
    for (size_t i = 0; i < count; i++) {
        to[i] += (real)(scale * (double)x[i]);
    }
}

static double largest(const real *x, size_t count) {
    double most = 0;
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)x[i]));
    }
    return most;
}

static bool allocate(state *s) {
    real **all[] = {&s->gradient, &s->direction, &s->trial, &s->next};
    bool good = true;
    for (int i = 0; i < 4; i++) {
        *all[i] = calloc(s->count, sizeof(real));
        good = good && *all[i];
    }
    for (int k = 0; k < KEPT; k++) {
        s->moves[k] = calloc(s->count, sizeof(real));
        s->turns[k] = calloc(s->count, sizeof(real));
        good = good && s->moves[k] && s->turns[k];
    }
    return good;
}

static void release(state *s) {
    for (int k = 0; k < KEPT; k++) {
        free(s->turns[k]);
        free(s->moves[k]);
    }
    free(s->next);
    free(s->trial);
    free(s->direction);
    free(s->gradient);
}

/* Computes the direction: minus the gradient, times an estimate of the inverse Hessian. */
static void aim(state *s) {
    double part[KEPT];
    memset(s->direction, 0, s->count * sizeof *s->direction);
    add(s->direction, -1, s->gradient, s->count);
    for (int k = s->end - 1; k >= s->first; k--) {
        part[k % KEPT] = dot(s->moves[k % KEPT], s->direction, s->count) / s->product[k % KEPT];
        add(s->direction, -part[k % KEPT], s->turns[k % KEPT], s->count);
    }
    if (s->end > s->first) {
        const real *turn = s->turns[(s->end - 1) % KEPT];
        double scale = s->product[(s->end - 1) % KEPT] / dot(turn, turn, s->count);
        for (size_t i = 0; i < s->count; i++) {
            s->direction[i] = (real)(scale * (double)s->direction[i]);
        }
    }
    for (int k = s->first; k < s->end; k++) {
        double other = dot(s->turns[k % KEPT], s->direction, s->count) / s->product[k % KEPT];
        add(s->direction, part[k % KEPT] - other, s->moves[k % KEPT], s->count);
    }
}

/* Stores the last step and its change of the gradient, unless the curvature is not positive. */
static void learn(state *s, double step) {
    int k = s->end % KEPT;
    for (size_t i = 0; i < s->count; i++) {
        s->moves[k][i] = (real)(step * (double)s->direction[i]);
        s->turns[k][i] = s->next[i] - s->gradient[i];
    }
    s->product[k] = dot(s->moves[k], s->turns[k], s->count);
    if (s->product[k] > 0) {
        s->end++;
        s->first = s->end > KEPT ? s->end - KEPT : 0;
    }
}

/* Line search: halves the step until the loss falls by a share of what the slope promises. Returns 0 if it never
 * does. */
static double look(const objective *o, state *s, const real *x, double loss, double step, bool *good,
                   int *evaluations) {
    double slope = dot(s->gradient, s->direction, s->count), trial = 0;
    for (int t = 0; t < MOST_TRIALS && *good; t++, step /= 2) {
        memcpy(s->trial, x, s->count * sizeof *x);
        add(s->trial, step, s->direction, s->count);
        *good = o->loss(o->user, s->trial, &trial);
        ++*evaluations;
        if (*good && trial <= loss + 1e-4 * step * slope) {
            return step;
        }
    }
    return 0;
}

bool minimise(const search *config, const objective *o, real *x, double *loss) {
    state s = {.count = config->count};
    bool good = allocate(&s) && o->gradient(o->user, x, loss, s.gradient);
    double step = 1;
    int evaluations = 1;
    for (int i = 1; good && i <= config->iterations; i++) {
        aim(&s);
        /* Else the first step is limited by the largest change of a variable. */
        bool scaled = config->lbfgs && s.end > 0;
        double first = config->first_step / fmax(largest(s.direction, s.count), 1e-300);
        step = scaled ? 1 : i == 1 ? first : fmin(2 * step, first);
        step = look(o, &s, x, *loss, step, &good, &evaluations);
        if (step == 0 || !good) {
            break;
        }
        add(x, step, s.direction, s.count);
        good = o->gradient(o->user, x, loss, s.next);
        evaluations++;
        if (config->lbfgs) {
            learn(&s, step);
        }
        real *before = s.gradient;
        s.gradient = s.next;
        s.next = before;
        o->progress(o->user, i, *loss, step * largest(s.direction, s.count), evaluations);
    }
    release(&s);
    return good;
}
