/* The norm of a step's gradient, and what follows from it: clipping, and steps that are skipped.
 *
 * Whoever makes an update of a stage first measures the square of its gradient. Under most rules all updates of a step wait
 * until all of these are known, so the norm is exact:
 *
 *   stage 2   measured ........ updated
 *   stage 1        measured ... updated
 *   stage 0             measured updated
 *
 * Under cdp-v2 updates are due before all gradients are there: the norm of the last step that was not skipped decides about
 * clipping, and the highest stage, which is measured first, whether the step is skipped. A loss that is not finite makes
 * every gradient of its micro-batch NaN (tape.c), so that nothing needs to be known besides the squares.
 *
 * Of several ranks, the one that owns an update tells all others the square: a message of a double, besides those of the
 * plan. Others that make the same update measure the same, and may come first. */
#include <math.h>
#include <string.h>

#include "engine/rank_internal.h"
#include "kernels/vector/vector.h"

enum { STEPS_KEPT = CAR_NOTE_STEPS }; /* the cycle overlaps two, and what is told of others may come early */

/* What is known of a step; by step mod STEPS_KEPT. */
typedef struct norm_step {
    int64_t step; /* of the plan */
    int known;    /* squares */
    double *squares;
    bool skipped;   /* once it is decided */
    int64_t update; /* the same: which one of the optimizer it is */
    double norm;    /* once it is complete */
    double before;  /* the norm that was complete before it */
} norm_step;

struct car_norm {
    bool deferred;
    int deciding; /* the highest stage with weights */
    norm_step steps[STEPS_KEPT];
    int64_t expected;           /* squares of the steps before this one are waited for */
    int64_t decided, completed; /* all steps before these are */
    int64_t updates;            /* of the optimizer by those that are decided */
    double last;                /* norm of the newest complete step that was not skipped; NaN: none */
};

car_status car_rank_create_norm(car_rank *rank) {
    car_norm *norm = NULL;
    car_status status = CAR_OK;
    if (rank->config.clip_norm <= 0 && !rank->config.skip_nonfinite) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(rank->context, 1, sizeof *norm, &norm));
    rank->norm = norm;
    norm->deferred = !car_rule_updates_early(car_plan_config_of(rank->plan)->rule);
    for (int j = 0; j < rank->stages; j++) {
        norm->deciding = rank->partition->bundles[j].bytes > 0 ? j : norm->deciding;
    }
    for (int s = 0; s < STEPS_KEPT; s++) {
        CAR_TRY(car_context_allocate(rank->context, (size_t)rank->stages, sizeof(double), &norm->steps[s].squares));
    }
    if (norm->deferred) {
        car_usage_defer_updates(rank->usage);
    }
done:
    return status;
}

void car_rank_destroy_norm(car_rank *rank) {
    car_norm *norm = rank->norm;
    for (int s = 0; norm && s < STEPS_KEPT; s++) {
        car_context_release(rank->context, norm->steps[s].squares, (size_t)rank->stages, sizeof(double));
    }
    car_context_release(rank->context, norm, norm ? 1 : 0, sizeof *norm);
}

static norm_step *step_of(const car_norm *norm, int64_t step) {
    return (norm_step *)&norm->steps[step % STEPS_KEPT];
}

static void open_step(const car_rank *rank, norm_step *s, int64_t step) {
    if (s->step == step) {
        return;
    }
    double *squares = s->squares;
    *s = (norm_step){.step = step, .squares = squares, .norm = NAN, .before = NAN};
    for (int j = 0; j < rank->stages; j++) {
        squares[j] = -1; /* not known */
    }
}

void car_rank_rewind_norm(car_rank *rank) {
    car_norm *norm = rank->norm;
    for (int s = 0; norm && s < STEPS_KEPT; s++) {
        norm->steps[s].step = CAR_NONE;
    }
    if (norm) {
        norm->last = rank->last_norm;
        norm->decided = norm->completed = norm->expected = 0;
        norm->updates = rank->updates;
        open_step(rank, step_of(norm, 0), 0);
        step_of(norm, 0)->before = norm->last;
    }
}

double car_rank_norm_after(const car_rank *rank, int64_t steps) {
    const car_norm *norm = rank->norm;
    if (!norm || norm->deferred) {
        return NAN; /* nobody will ask */
    }
    return steps < norm->completed ? step_of(norm, steps)->before : norm->last;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static bool is_known(const car_norm *norm, int64_t step, int stage) {
    const norm_step *s = step_of(norm, step);
    return s->step == step && s->squares[stage] != -1;
}

static bool is_complete(const car_rank *rank, int64_t step) {
    const norm_step *s = step_of(rank->norm, step);
    return s->step == step && s->known == rank->updates_per_step;
}

/* Steps are decided and completed in their order. */
static void decide(const car_rank *rank) {
    car_norm *norm = rank->norm;
    while (norm->deferred ? is_complete(rank, norm->decided) : is_known(norm, norm->decided, norm->deciding)) {
        norm_step *s = step_of(norm, norm->decided);
        bool finite = true;
        for (int j = 0; j < rank->stages; j++) {
            bool counts = rank->partition->bundles[j].bytes > 0 && (norm->deferred || j == norm->deciding);
            finite = finite && (!counts || isfinite(s->squares[j]));
        }
        s->skipped = !finite && rank->config.skip_nonfinite;
        s->update = norm->updates;
        norm->updates += !s->skipped;
        norm->decided++;
    }
}

static car_status complete(car_rank *rank) {
    car_norm *norm = rank->norm;
    car_status status = CAR_OK;
    while (norm->completed < norm->decided && is_complete(rank, norm->completed)) {
        norm_step *s = step_of(norm, norm->completed), *next = step_of(norm, norm->completed + 1);
        double square = 0;
        for (int j = 0; j < rank->stages; j++) { /* in a fixed order, whoever measured them */
            square += rank->partition->bundles[j].bytes > 0 ? s->squares[j] : 0;
        }
        s->norm = sqrt(square);
        norm->last = s->skipped ? norm->last : s->norm;
        if (rank->device == 0) {
            CAR_TRY(car_rank_note_norm(rank, rank->first_step + s->step, s->norm, s->skipped));
        }
        norm->completed++;
        open_step(rank, next, norm->completed);
        next->before = norm->last;
        car_rank_note_numbers(rank, norm->completed);
    }
done:
    return status;
}

static car_status note_square(car_rank *rank, int64_t step, int stage, double square) {
    norm_step *s = step_of(rank->norm, step);
    open_step(rank, s, step);
    if (s->squares[stage] != -1) {
        return CAR_OK; /* others have told, and it is the same */
    }
    s->squares[stage] = square;
    s->known++;
    decide(rank);
    return complete(rank);
}

/* The square of the averaged gradient. */
static double measure(const car_rank *rank, const car_layout *layout, const car_block *sum) {
    double square = 0;
    for (int c = 0; c < layout->count; c++) {
        const car_part *part = &layout->parts[c];
        if (part->first && !car_engine_is_statistic(rank->program, part->param) &&
            !car_optimizer_is_frozen(rank->optimizer, part->param)) {
            square += car_engine_square(rank->program, part->param, sum->data + part->sum_offset);
        }
    }
    return square / ((double)rank->batches * rank->batches);
}

/* ---- telling others -------------------------------------------------------------------------- */

static int teller_of(const car_rank *rank, int64_t step, int stage) {
    return car_plan_rank_of(rank->plan, car_plan_owner(rank->plan, step, stage));
}

int64_t car_rank_squares_expected(const car_rank *rank) {
    return rank->norm ? rank->norm->expected : 0;
}

static car_status tell(car_rank *rank, int64_t step, int stage, double square) {
    car_status status = CAR_OK;
    for (int r = 0; r < rank->devices; r++) {
        if (r != rank->device) {
            CAR_TRY(car_rank_send_note(rank, CAR_NOTE_SQUARE, step, stage, r, &square, sizeof square));
        }
    }
done:
    return status;
}

static car_status expect(car_rank *rank, int64_t steps) {
    car_norm *norm = rank->norm;
    car_status status = CAR_OK;
    for (; norm->expected < steps; norm->expected++) {
        for (int j = 0; j < rank->stages; j++) {
            int from = teller_of(rank, norm->expected, j);
            if (rank->partition->bundles[j].bytes > 0 && from != rank->device) {
                CAR_TRY(car_rank_expect_note(rank, CAR_NOTE_SQUARE, norm->expected, j, from, sizeof(double)));
            }
        }
    }
done:
    return status;
}

car_status car_rank_expect_squares(car_rank *rank) {
    int64_t soon = rank->norm->completed + 3;
    return rank->alone || rank->frozen ? CAR_OK : expect(rank, soon < rank->limit ? soon : rank->limit);
}

car_status car_rank_settle_squares(car_rank *rank, int64_t steps) {
    car_status status = CAR_OK;
    if (!rank->norm || rank->alone) {
        return CAR_OK;
    }
    CAR_TRY(expect(rank, steps));
    for (int64_t step = rank->limit; step < steps; step++) {
        for (int j = 0; j < rank->stages; j++) {
            bool own = rank->partition->bundles[j].bytes > 0 && teller_of(rank, step, j) == rank->device;
            if (own && !is_known(rank->norm, step, j)) {
                CAR_TRY(tell(rank, step, j, NAN));
            }
        }
    }
done:
    return status;
}

car_status car_rank_hear_square(car_rank *rank, const car_parcel *parcel) {
    double square = 0;
    memcpy(&square, parcel->block->data, sizeof square);
    return note_square(rank, parcel->step, parcel->index, square);
}

car_status car_rank_measure(car_rank *rank, const car_task *task) {
    const car_sum *sum = car_rank_find_sum(rank, task->bundle, task->step, CAR_NONE);
    if (!sum) {
        return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "rank %d has no sum of bundle %d to measure",
                                rank->device, task->bundle);
    }
    const car_block *block = sum->block;
    pthread_mutex_unlock(&rank->lock);
    double square = measure(rank, &rank->holding[task->bundle].layout, block);
    pthread_mutex_lock(&rank->lock);
    car_status status = note_square(rank, task->step, task->bundle, square);
    bool tells = !rank->alone && !car_rank_is_dropped(rank, task); /* else it was told when the end was known */
    return status == CAR_OK && tells && teller_of(rank, task->step, task->bundle) == rank->device
               ? tell(rank, task->step, task->bundle, square)
               : status;
}

/* ---- what follows ---------------------------------------------------------------------------- */

bool car_rank_may_judge(const car_rank *rank, const car_task *task) {
    const car_norm *norm = rank->norm;
    if (!norm) {
        return true;
    }
    return norm->deferred ? norm->completed > task->step : norm->decided > task->step && norm->completed >= task->step;
}

static car_status check_finite(const car_rank *rank, const car_task *task, const norm_step *s) {
    const car_norm *norm = rank->norm;
    int64_t step = car_rank_step_of(rank, task) + 1;
    if (norm->deferred && !s->skipped && !isfinite(s->norm)) {
        return car_context_fail(
            rank->context, CAR_ERROR_NOT_FINITE,
            "the gradient of step %lld is not finite: a smaller learning rate or --skip-nonfinite may help",
            (long long)step);
    }
    if (!norm->deferred && !s->skipped && !isfinite(s->squares[task->bundle])) {
        return car_context_fail(
            rank->context, CAR_ERROR_NOT_FINITE,
            "a gradient of stage %d in step %lld is not finite; under cdp-v2 such a step cannot be "
            "skipped, because other stages are updated already: use cdp-v1 or a smaller learning rate",
            task->bundle, (long long)step);
    }
    return CAR_OK;
}

car_status car_rank_judge(const car_rank *rank, const car_task *task, car_verdict *out) {
    const car_norm *norm = rank->norm;
    double most = rank->config.clip_norm;
    if (!norm) {
        *out = (car_verdict){.scale = 1, .update = rank->updates + task->step};
        return CAR_OK;
    }
    const norm_step *s = step_of(norm, task->step);
    double decides = norm->deferred ? s->norm : s->before;
    bool clips = most > 0 && isfinite(decides) && decides > most;
    *out = (car_verdict){.skipped = s->skipped,
                         .update = s->update,
                         .scale = clips ? most / (decides + 1e-6) : 1.0}; /* as PyTorch's clip_grad_norm_ */
    return check_finite(rank, task, s);
}

int64_t car_rank_updates_after(const car_rank *rank, int64_t steps) {
    const car_norm *norm = rank->norm;
    if (!norm) {
        return rank->updates + steps;
    }
    if (steps >= norm->decided) {
        return norm->updates;
    }
    return step_of(norm, steps)->update; /* the one that comes next */
}
