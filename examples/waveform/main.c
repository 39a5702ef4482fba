/* Full waveform inversion: finds a velocity model whose simulated seismograms match the recorded ones.
 *
 * A shot is a micro-batch, a run of time steps is a stage, and the velocity is carried through all of them. The
 * optimizer is on top: it asks for losses and gradients, and sets models. Runs alone, or over the ranks of mpirun;
 * see --help.
 *
 *     cc -O3 *.c $(pkg-config --cflags --libs carousel libpng) -lm -o waveform */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <carousel/carousel.h>

#include "invert.h"
#include "options.h"
#include "picture.h"
#include "stages.h"

static const double fastest = 2.8; /* km/s: the time step is chosen for it */

typedef struct run {
    options o;
    wave w;
    chain chain;
    bool first; /* this process is rank 0, which prints */
    car_context *context;
    car_partition *partition;
    car_plan *plan;
    car_program *program;
    car_arena *arena;
    car_hub *hub;
    car_transport *transport;
    car_rank *rank;
} run;

static void check(const run *r, car_status status) {
    if (status != CAR_OK) {
        fprintf(stderr, "waveform: %s\n", r->context ? car_context_error(r->context) : car_status_text(status));
        exit(1); /* mpirun ends the others */
    }
}

static void demand(bool good, const char *what) {
    if (!good) {
        fprintf(stderr, "waveform: %s\n", what);
        exit(1);
    }
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the runtime -------------------------------------------------------------------------------------- */

static car_status feed(void *user, int64_t step, int number, car_tape *tape) {
    const run *r = user;
    (void)step; /* each step has all shots */
    return chain_feed(&r->chain, number, tape);
}

static void open_plan(run *r, bool launched) {
    car_plan_config config = car_plan_config_default();
    config.workers = r->o.workers;
    config.accumulate = r->o.accumulate;
    config.threads = r->o.threads;
    check(r, car_rule_find(r->context, r->o.rule, &config.rule));
    config.placement = CAR_PLACEMENT_SHARED;
    if (launched) {
        config.threads = 0;
        check(r, car_placement_find(r->context, r->o.placement, &config.placement));
        config.ranks = config.placement == CAR_PLACEMENT_REPLICA ? car_transport_size(r->transport) : 0;
    }
    check(r, car_partition_create(r->chain.graph, &(car_partition_config){.stages = r->o.stages}, &r->partition));
    check(r, car_plan_create(r->context, r->partition, &config, &r->plan));
    check(r, car_plan_validate(r->plan, 4));
}

static void open_run(run *r) {
    bool launched = car_transport_is_launched();
    car_trainer_config training = car_trainer_config_default();
    demand(wave_open(&r->w, r->o.size, r->o.steps, r->o.workers * r->o.accumulate, fastest), "out of memory");
    check(r, car_context_create(NULL, &r->context));
    check(r, launched ? car_transport_open(r->context, &r->transport) : car_hub_create(r->context, 1, &r->hub));
    check(r, launched ? CAR_OK : car_hub_join(r->hub, r->context, 0, &r->transport));
    r->first = car_transport_rank(r->transport) == 0;
    check(r, chain_open(&r->chain, r->context, &r->w, r->o.stages, r->o.checkpoints));
    open_plan(r, launched);
    check(r, car_program_create(r->chain.graph, NULL, &r->program));
    check(r, car_arena_create(r->context, 0, &r->arena));
    training.threads = r->o.threads;
    training.feed = feed;
    training.feed_user = r;
    check(r, car_rank_create(r->plan, r->program, r->arena, r->transport, &training, &r->rank));
    check(r, car_rank_initialize(r->rank, 1));
}

static void close_run(run *r) {
    car_rank_destroy(r->rank);
    car_transport_close(r->transport);
    car_hub_destroy(r->hub);
    car_arena_destroy(r->arena);
    car_program_destroy(r->program);
    car_plan_destroy(r->plan);
    car_partition_destroy(r->partition);
    chain_close(&r->chain);
    car_context_destroy(r->context);
    wave_close(&r->w);
}

/* ---- loss and gradient ---------------------------------------------------------------------------------- */

static bool loss_of(void *user, const real *v, double *loss) {
    run *r = user;
    check(r, car_rank_assign(r->rank, (const void *[]){v}));
    check(r, car_rank_evaluate(r->rank, loss));
    return true;
}

static bool gradient_of(void *user, const real *v, double *loss, real *gradient) {
    run *r = user;
    check(r, car_rank_assign(r->rank, (const void *[]){v}));
    check(r, car_rank_gradient(r->rank, loss, (void *[]){gradient}));
    for (size_t c = 0; c < wave_cells(&r->w); c++) {
        gradient[c] = wave_is_free(&r->w, c) ? gradient[c] : 0;
    }
    return true;
}

static void progress(void *user, int iteration, double loss, double step, int evaluations) {
    const run *r = user;
    if (r->first) {
        printf("iteration %2d of %d   misfit %.4e   largest step %.3f km/s   evaluations %d\n", iteration,
               r->o.iterations, loss, step, evaluations);
        fflush(stdout);
    }
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

/* As the runtime does while stages run, so that results are comparable. */
static void flush_denormals(void) {
#ifdef __SSE2__
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

static bool compare(run *r, const real *v) {
    size_t cells = wave_cells(&r->w);
    int shots = r->w.shots;
    real *own = calloc(cells, sizeof *own), *sum = calloc(cells, sizeof *sum), *found = calloc(cells, sizeof *found);
    double loss = 0, serial = 0;
    demand(own && sum && found, "out of memory");
    check(r, car_rank_assign(r->rank, (const void *[]){v}));
    check(r, car_rank_gradient(r->rank, &loss, (void *[]){found}));
    flush_denormals();
    for (int s = 0; s < shots; s++) {
        memset(own, 0, cells * sizeof *own);
        demand(wave_serial(&r->w, v, s, &serial, own), "out of memory");
        for (size_t c = 0; c < cells; c++) {
            sum[c] = s == 0 ? own[c] : sum[c] + own[c];
        }
    }
    for (size_t c = 0; c < cells; c++) {
        sum[c] /= (real)shots;
    }
    bool same = memcmp(sum, found, cells * sizeof *sum) == 0 && fabs(loss * shots / serial - 1) < 1e-12;
    if (r->first) {
        printf("gradient of %zu cells: %s the serial program's; misfit %.15g, serially %.15g\n", cells,
               same ? "to the bit" : "NOT", loss, serial / shots);
    }
    free(found);
    free(sum);
    free(own);
    return same;
}

/* Taylor test: J(v + h d) - J(v) - h <g, d> must fall with the square of h. */
static bool taylor(run *r, const real *v) {
    size_t cells = wave_cells(&r->w);
    real *gradient = calloc(cells, sizeof *gradient), *at = calloc(cells, sizeof *at);
    double loss = 0, moved = 0, slope = 0, before = 0, worst = 0;
    demand(gradient && at, "out of memory");
    gradient_of(r, v, &loss, gradient);
    for (int k = 0; k < 6; k++) {
        double h = 0.02 / (1 << k);
        slope = 0;
        for (size_t c = 0; c < cells; c++) {
            double direction = wave_is_free(&r->w, c) ? sin(0.37 * (double)c) + 0.5 * cos(1.3 * (double)c) : 0;
            at[c] = (real)((double)v[c] + h * direction);
            slope += (double)gradient[c] * ((double)at[c] - (double)v[c]);
        }
        loss_of(r, at, &moved);
        double rest = fabs(moved - loss - slope), order = k > 0 ? log2(before / rest) : NAN;
        worst = k > 0 ? fmax(worst, fabs(order - 2)) : 0;
        if (r->first) {
            printf("h %.6f   remainder %.6e   order %.4f\n", h, rest, order);
        }
        before = rest;
    }
    free(at);
    free(gradient);
    return worst < 0.02;
}

/* ---- time and memory ------------------------------------------------------------------------------------------ */

static void measure(run *r, const real *v) {
    real *gradient = calloc(wave_cells(&r->w), sizeof *gradient);
    double loss = 0, best = INFINITY;
    struct rusage usage;
    car_simulation predicted = {0};
    demand(gradient, "out of memory");
    check(r, car_rank_assign(r->rank, (const void *[]){v}));
    for (int i = 0; i < r->o.repeat; i++) {
        double begin = seconds();
        check(r, car_rank_gradient(r->rank, &loss, (void *[]){gradient}));
        best = fmin(best, seconds() - begin);
    }
    check(r, car_plan_predict_timed(r->plan, r->hub ? r->o.threads : 0, &predicted));
    getrusage(RUSAGE_SELF, &usage);
    if (r->first) {
        printf("rule %s checkpoints %d seconds %.4f activations_mb %.2f predicted_mb %.2f resident_mb %.2f\n",
               r->o.rule, r->o.checkpoints, best, (double)car_arena_peak(r->arena, CAR_MEMORY_ACTIVATIONS) / 1e6,
               (double)(r->hub ? predicted.peak : predicted.device_peak) / 1e6, (double)usage.ru_maxrss * 1024 / 1e6);
    }
    free(gradient);
}

static void draw_plan(const run *r) {
    char *svg = NULL;
    FILE *file = fopen(r->o.plan, "w");
    demand(file, "cannot open the file for the plan");
    check(r, car_report_plan_svg(r->plan, "full waveform inversion", &svg));
    demand(fputs(svg, file) >= 0 && fclose(file) == 0, "cannot write the plan");
    car_plan_release_text(r->plan, svg);
}

/* ---- the inversion ---------------------------------------------------------------------------------------------- */

/* Root mean square of the difference, over the cells that the search may change. */
static double distance(const wave *w, const real *a, const real *b) {
    double square = 0, count = 0;
    for (size_t c = 0; c < wave_cells(w); c++) {
        square += wave_is_free(w, c) ? ((double)a[c] - (double)b[c]) * ((double)a[c] - (double)b[c]) : 0;
        count += wave_is_free(w, c);
    }
    return sqrt(square / count);
}

/* Checks that the file is writable, before the search rather than after it. */
static void try_out(const char *path) {
    FILE *file = fopen(path, "ab");
    if (!file || fclose(file) != 0) {
        fprintf(stderr, "waveform: %s: cannot write: %s\n", path, strerror(errno));
        exit(1);
    }
}

static bool invert(run *r, const real *truth, const real *start, real *v) {
    const search config = {
        .count = wave_cells(&r->w), .iterations = r->o.iterations, .lbfgs = r->o.lbfgs, .first_step = 0.04};
    const objective objective = {.loss = loss_of, .gradient = gradient_of, .progress = progress, .user = r};
    double first = 0, last = 0, begin = seconds();
    if (r->first && r->o.out) {
        try_out(r->o.out);
    }
    loss_of(r, v, &first);
    demand(minimise(&config, &objective, v, &last), "out of memory");
    double before = distance(&r->w, truth, start), after = distance(&r->w, truth, v);
    if (r->first) {
        printf("misfit %.4e -> %.4e, model off by %.4f -> %.4f km/s, %.1f s, activations at most %.1f MB\n", first,
               last, before, after, seconds() - begin, (double)car_arena_peak(r->arena, CAR_MEMORY_ACTIVATIONS) / 1e6);
    }
    if (r->first && r->o.out) {
        errno = 0;
        if (!picture_write(r->o.out, &r->w, (const real *[]){truth, start, v},
                           (const char *[]){"true", "start", "recovered"})) {
            fprintf(stderr, "waveform: %s: cannot write: %s\n", r->o.out, errno ? strerror(errno) : "libpng failed");
            return false;
        }
    }
    return after < before;
}

int main(int count, char **arguments) {
    run r = {0};
    int answer = options_read(count, arguments, &r.o);
    if (answer != 0) {
        return answer - 1;
    }
    open_run(&r);
    size_t cells = wave_cells(&r.w);
    real *truth = calloc(cells, sizeof *truth), *start = calloc(cells, sizeof *start), *v = calloc(cells, sizeof *v);
    demand(truth && start && v, "out of memory");
    wave_true_model(&r.w, truth);
    wave_first_model(&r.w, start);
    memcpy(v, start, cells * sizeof *v);
    bool good = true;
    if (r.first && r.o.plan) {
        draw_plan(&r);
    }
    if (r.o.check) {
        good = compare(&r, v);
    }
    if (r.o.taylor) {
        good = taylor(&r, v) && good;
    }
    if (r.o.repeat > 0) {
        measure(&r, v);
    }
    if (!r.o.check && !r.o.taylor && r.o.repeat == 0) {
        good = invert(&r, truth, start, v);
    }
    free(v);
    free(start);
    free(truth);
    close_run(&r);
    return good ? 0 : 1;
}
