/* Losses and norms of the steps in progress, and what follows from them: reports, clipping, skipped steps.
 *
 * The rank that computes a micro-batch's loss sends it to rank 0 in a note (rank_notes.c). Rank 0 reports a step when
 * all its losses and, if needed, its norm are known, and the step can no longer be dropped. Records of STEPS_KEPT steps
 * are kept. On rank 0, a task that would compute a loss of a later step waits.
 *
 * If norms are needed, each update first measures the sum of squares of its gradient. Under most rules all updates of a
 * step wait until all squares are known, so the norm is exact:
 *
 *   stage 2   measured ........ updated
 *   stage 1        measured ... updated
 *   stage 0             measured updated
 *
 * Under cdp-v2 updates are due before all gradients exist. So clipping uses the norm of the last complete step that was
 * not skipped, and the highest stage with weights, which is measured first, decides whether the step is skipped. A loss
 * that is not finite makes all gradients of its micro-batch NaN (tape.c), so it shows in the squares.
 *
 * The rank that owns an update sends the square to all others. Other ranks that make the same update measure the same
 * number, and may be earlier. */
#include <math.h>

#include "engine/rank_internal.h"

enum { STEPS_KEPT = 64 };

/* What is known about a step. */
typedef struct step_record {
    int64_t step;   /* counted as in the plan; CAR_NONE = the record is free */
    double ended;   /* when this rank finished it; 0 = not yet */
    int updates;    /* number of updates made here */
    int losses;     /* number of known losses */
    double *loss;   /* for each micro-batch, on rank 0 */
    int squares;    /* number of known squares */
    double *square; /* for each stage, if norms are needed; -1 = not known */
    bool skipped;   /* valid once the step is decided */
    int64_t update; /* number of its optimizer update; valid at the same time */
    double norm;    /* valid once the step is complete */
    double before;  /* the norm of the last step before this one that was not skipped */
} step_record;

struct car_steps {
    int64_t reported; /* rank 0: number of steps reported */
    step_record records[STEPS_KEPT];
    /* If norms are needed: */
    bool deferred;              /* updates wait for all squares of their step */
    int deciding;               /* the highest stage with weights */
    int64_t decided, completed; /* all steps below these numbers are decided, or complete */
    int64_t updates;            /* optimizer updates up to and including the decided steps */
    double last;                /* norm of the newest complete step that was not skipped; NaN = none */
};

/* ---- steps ----------------------------------------------------------------------------------- */

car_status car_rank_create_steps(car_rank *rank) {
    car_status status = CAR_OK;
    rank->measures = rank->config.clip_norm > 0 || rank->config.skip_nonfinite;
    CAR_TRY(car_context_allocate(rank->context, 1, sizeof *rank->steps, &rank->steps));
    for (int s = 0; s < STEPS_KEPT; s++) {
        step_record *record = &rank->steps->records[s];
        size_t losses = rank->device == 0 ? (size_t)rank->batches : 0;
        size_t squares = rank->measures ? (size_t)rank->stages : 0;
        CAR_TRY(car_context_allocate(rank->context, losses, sizeof(double), &record->loss));
        CAR_TRY(car_context_allocate(rank->context, squares, sizeof(double), &record->square));
    }
    for (int j = 0; j < rank->stages; j++) {
        rank->steps->deciding = rank->partition->bundles[j].bytes > 0 ? j : rank->steps->deciding;
    }
    rank->steps->deferred = rank->measures && !car_rule_updates_early(car_plan_config_of(rank->plan)->rule);
    if (rank->steps->deferred) {
        car_usage_defer_updates(rank->usage);
    }
done:
    return status;
}

void car_rank_destroy_steps(car_rank *rank) {
    for (int s = 0; rank->steps && s < STEPS_KEPT; s++) {
        step_record *record = &rank->steps->records[s];
        car_context_release(rank->context, record->loss, (size_t)rank->batches, sizeof(double));
        car_context_release(rank->context, record->square, (size_t)rank->stages, sizeof(double));
    }
    car_context_release(rank->context, rank->steps, 1, sizeof *rank->steps);
}

static step_record *record_of(const car_rank *rank, int64_t step) {
    return &rank->steps->records[step % STEPS_KEPT];
}

static step_record *open_step(const car_rank *rank, int64_t step) {
    step_record *s = record_of(rank, step);
    if (s->step != step) {
        *s = (step_record){.step = step, .loss = s->loss, .square = s->square, .norm = NAN, .before = NAN};
        for (int j = 0; s->square && j < rank->stages; j++) {
            s->square[j] = -1;
        }
    }
    return s;
}

/* The record of a step in progress. For any other step it sets an error and returns NULL; return CAR_ERROR_INTERNAL
 * then. */
static step_record *find_step(car_rank *rank, int64_t step) {
    int64_t oldest = rank->device == 0 ? rank->steps->reported : rank->steps->completed;
    if (step < oldest || step - oldest >= STEPS_KEPT) {
        (void)car_context_fail(rank->context, CAR_ERROR_INTERNAL, "step %lld is not in progress",
                               (long long)(rank->first_step + step) + 1);
        return NULL;
    }
    return open_step(rank, step);
}

void car_rank_rewind_steps(car_rank *rank) {
    struct car_steps *steps = rank->steps;
    for (int s = 0; s < STEPS_KEPT; s++) {
        steps->records[s].step = CAR_NONE;
    }
    steps->reported = steps->decided = steps->completed = 0;
    steps->updates = rank->updates;
    steps->last = rank->last_norm;
    open_step(rank, 0)->before = steps->last;
}

/* ---- reports --------------------------------------------------------------------------------- */

static bool gives_up(const car_rank *rank) {
    return rank->skipped_in_a_row >= CAR_TRAINER_MOST_SKIPPED;
}

/* Ends the run after too many skipped steps in a row: if weights give nothing finite for that long, they will not
 * recover. */
static void count_skipped(car_rank *rank, const car_step_report *report) {
    rank->skipped_in_a_row = report->skipped ? rank->skipped_in_a_row + 1 : 0;
    if (gives_up(rank)) {
        car_rank_fail(
            rank,
            car_context_fail(
                rank->context, CAR_ERROR_NOT_FINITE,
                "%d steps in a row were skipped because their loss or gradient is not finite, the last of them step "
                "%lld: go back to an earlier checkpoint and use a smaller learning rate, warm-up or clip-norm",
                rank->skipped_in_a_row, (long long)report->step + 1));
    }
}

/* True if the step that is reported next is complete and can no longer be dropped. */
static bool is_ripe(const car_rank *rank) {
    int64_t step = rank->steps->reported;
    const step_record *s = record_of(rank, step);
    bool known = s->step == step && s->losses == rank->batches && (!rank->measures || step < rank->steps->completed);
    bool made = !rank->alone || s->updates == rank->updates_per_step;
    return known && made && !rank->frozen && step < rank->limit && !gives_up(rank);
}

static car_step_report report_of(const car_rank *rank, const step_record *s) {
    double sum = 0;
    for (int i = 0; i < rank->batches; i++) {
        sum += s->loss[i];
    }
    int64_t step = rank->first_step + s->step;
    return (car_step_report){.step = step,
                             .loss = sum / rank->batches,
                             .lr = car_schedule_lr(&rank->config.schedule, step),
                             .gradient_norm = s->norm,
                             .skipped = s->skipped,
                             .when = s->ended > 0 && !rank->alone ? s->ended : car_clock_seconds()};
}

static void report_steps(car_rank *rank) {
    while (rank->device == 0 && is_ripe(rank)) {
        const car_step_report report = report_of(rank, record_of(rank, rank->steps->reported++));
        if (rank->purpose != CAR_PURPOSE_TRAINING) {
            rank->mean_loss = report.loss;
            continue;
        }
        if (rank->config.report) {
            rank->config.report(rank->config.report_user, &report);
        }
        count_skipped(rank, &report);
    }
}

/* Rank 0 has finished a step when its last backward of its lowest stage is over. A rank that is alone has finished it
 * when all updates are made. */
car_status car_rank_note_step(car_rank *rank, const car_task *task) {
    bool updates = rank->alone && task->kind == CAR_TASK_UPDATE;
    bool ends = rank->device == 0 && task->kind == CAR_TASK_BACKWARD && task->stage == rank->first_stage;
    if ((ends || updates) && task->step >= rank->steps->reported) { /* otherwise it is reported already */
        step_record *s = find_step(rank, task->step);
        if (!s) {
            return CAR_ERROR_INTERNAL;
        }
        s->ended = car_clock_seconds();
        s->updates += updates;
        report_steps(rank);
    }
    return CAR_OK;
}

int64_t car_rank_reported(const car_rank *rank) {
    return rank->steps->reported;
}

bool car_rank_knows_all(car_rank *rank) {
    report_steps(rank); /* an early end may have delayed reports */
    return (rank->device != 0 || rank->steps->reported >= rank->limit) &&
           (!rank->measures || rank->steps->completed >= rank->limit);
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* True if the task computes a loss: the forward of the last stage or, if the model ends with a fused head and loss, its
 * backward (car_tape_defer_loss). */
bool car_rank_makes_loss(const car_rank *rank, const car_task *task) {
    const car_op *last = car_graph_op(rank->graph, car_graph_op_count(rank->graph) - 1);
    bool deferred = last->kind == CAR_OP_HEAD_LOSS && rank->purpose != CAR_PURPOSE_LOSS;
    car_task_kind kind = deferred ? CAR_TASK_BACKWARD : CAR_TASK_FORWARD;
    const car_stage *stage = task->kind == kind ? &rank->partition->stages[task->stage] : NULL;
    return stage && stage->first < stage->end && stage->end == car_graph_op_count(rank->graph);
}

bool car_rank_may_note_loss(const car_rank *rank, const car_task *task) {
    return rank->device != 0 || !car_rank_makes_loss(rank, task) || task->step - rank->steps->reported < STEPS_KEPT;
}

car_status car_rank_keep_loss(car_rank *rank, int64_t step, int number, double value) {
    step_record *s = find_step(rank, step);
    if (!s) {
        return CAR_ERROR_INTERNAL;
    }
    s->losses++;
    s->loss[number] = value;
    report_steps(rank);
    return CAR_OK;
}

car_status car_rank_note_loss(car_rank *rank, const car_task *task, double value) {
    const car_rank_note note = {.kind = CAR_NOTE_LOSS, .step = task->step, .index = task->micro_batch, .value = value};
    if (car_rank_is_dropped(rank, task)) {
        return CAR_OK;
    }
    return rank->device == 0 ? car_rank_keep_loss(rank, task->step, task->micro_batch, value)
                             : car_rank_send_note(rank, 0, note);
}

/* ---- norms ----------------------------------------------------------------------------------- */

static bool is_known(const car_rank *rank, int64_t step, int stage) {
    const step_record *s = record_of(rank, step);
    return s->step == step && s->square[stage] != -1;
}

static bool is_complete(const car_rank *rank, int64_t step) {
    const step_record *s = record_of(rank, step);
    return s->step == step && s->squares == rank->updates_per_step;
}

/* Decides about the next steps, in order: whether they are skipped, and the number of their update. */
static void decide(const car_rank *rank) {
    struct car_steps *steps = rank->steps;
    while (steps->deferred ? is_complete(rank, steps->decided) : is_known(rank, steps->decided, steps->deciding)) {
        step_record *s = record_of(rank, steps->decided);
        bool finite = true;
        for (int j = 0; j < rank->stages; j++) {
            bool counts = rank->partition->bundles[j].bytes > 0 && (steps->deferred || j == steps->deciding);
            finite = finite && (!counts || isfinite(s->square[j]));
        }
        s->skipped = !finite && rank->config.skip_nonfinite;
        s->update = steps->updates;
        steps->updates += !s->skipped;
        steps->decided++;
    }
}

static car_status complete(car_rank *rank) {
    struct car_steps *steps = rank->steps;
    car_status status = CAR_OK;
    while (steps->completed < steps->decided && is_complete(rank, steps->completed)) {
        step_record *s = record_of(rank, steps->completed);
        double square = 0;
        for (int j = 0; j < rank->stages; j++) { /* in a fixed order, so that all ranks find the same bits */
            square += rank->partition->bundles[j].bytes > 0 ? s->square[j] : 0;
        }
        s->norm = sqrt(square);
        steps->last = s->skipped ? steps->last : s->norm;
        steps->completed++;
        report_steps(rank);
        open_step(rank, steps->completed)->before = steps->last;
        CAR_TRY(car_rank_note_numbers(rank, steps->completed));
    }
done:
    return status;
}

car_status car_rank_note_square(car_rank *rank, int64_t step, int stage, double square) {
    if (step < rank->steps->completed || is_known(rank, step, stage)) {
        return CAR_OK; /* another rank was earlier, with the same number */
    }
    step_record *s = find_step(rank, step);
    if (!s) {
        return CAR_ERROR_INTERNAL;
    }
    s->square[stage] = square;
    s->squares++;
    decide(rank);
    return complete(rank);
}

/* The square of the norm of the averaged gradient. Statistics and frozen parameters do not count. */
static double square_of(const car_rank *rank, const car_layout *layout, const car_block *sum) {
    double square = 0;
    for (const car_part *part = NULL; (part = car_layout_next(layout, part));) {
        if (!car_engine_is_statistic(rank->program, part->param) &&
            !car_optimizer_is_frozen(rank->optimizer, part->param)) {
            square += car_engine_square(rank->program, part->param, sum->data + part->sum_offset);
        }
    }
    return square / ((double)rank->batches * rank->batches);
}

car_status car_rank_measure(car_rank *rank, const car_task *task) {
    car_sum *sum = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_rank_get_sum(rank, task->bundle, task->step, CAR_NONE, &sum));
    const car_block *block = sum->block;
    pthread_mutex_unlock(&rank->lock);
    double square = square_of(rank, &rank->holding[task->bundle].layout, block);
    pthread_mutex_lock(&rank->lock);
    if (car_rank_is_dropped(rank, task)) {
        return CAR_OK;
    }
    CAR_TRY(car_rank_note_square(rank, task->step, task->bundle, square));
    if (car_rank_owner(rank, task->step, task->bundle) == rank->device) {
        const car_rank_note note = {
            .kind = CAR_NOTE_SQUARE, .step = task->step, .index = task->bundle, .value = square};
        CAR_TRY(car_rank_send_note(rank, CAR_NONE, note));
    }
done:
    return status;
}

/* ---- verdicts --------------------------------------------------------------------------------- */

bool car_rank_may_judge(const car_rank *rank, const car_task *task) {
    const struct car_steps *steps = rank->steps;
    bool exact = steps->deferred && steps->completed > task->step;
    bool early = !steps->deferred && steps->decided > task->step && steps->completed >= task->step;
    return !rank->measures || exact || early;
}

static car_status check_finite(const car_rank *rank, const car_task *task, const step_record *s) {
    long long step = (long long)car_rank_step_of(rank, task) + 1;
    bool deferred = rank->steps->deferred;
    if (s->skipped || isfinite(deferred ? s->norm : s->square[task->bundle])) {
        return CAR_OK;
    }
    return deferred
               ? car_context_fail(
                     rank->context, CAR_ERROR_NOT_FINITE,
                     "the gradient of step %lld is not finite: try a smaller learning rate or skip-nonfinite", step)
               : car_context_fail(rank->context, CAR_ERROR_NOT_FINITE,
                                  "a gradient of stage %d in step %lld is not finite; cdp-v2 cannot skip such a step, "
                                  "because other stages are already updated: use cdp-v1 or a smaller learning rate",
                                  task->bundle, step);
}

car_status car_rank_judge(const car_rank *rank, const car_task *task, car_verdict *out) {
    double most = rank->config.clip_norm;
    if (!rank->measures) {
        *out = (car_verdict){.scale = 1, .update = rank->updates + task->step};
        return CAR_OK;
    }
    const step_record *s = record_of(rank, task->step);
    double decides = rank->steps->deferred ? s->norm : s->before;
    bool clips = most > 0 && isfinite(decides) && decides > most;
    *out = (car_verdict){.skipped = s->skipped,
                         .update = s->update,
                         .scale = clips ? most / (decides + 1e-6) : 1.0}; /* as in PyTorch's clip_grad_norm_ */
    return check_finite(rank, task, s);
}

int64_t car_rank_updates_after(const car_rank *rank, int64_t steps) {
    if (!rank->measures) {
        return rank->updates + steps;
    }
    return steps < rank->steps->decided ? record_of(rank, steps)->update : rank->steps->updates;
}

double car_rank_norm_after(const car_rank *rank, int64_t steps) {
    if (!rank->measures || rank->steps->deferred) {
        return NAN; /* not used */
    }
    return steps < rank->steps->completed ? record_of(rank, steps)->before : rank->steps->last;
}
