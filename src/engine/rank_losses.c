/* Losses, and the reports of steps that rank 0 makes of them.
 *
 * Whoever computes a micro-batch's loss tells rank 0, by a note (rank_notes.c). A step is reported when all its losses are
 * known, its norm if one is wanted, and nothing of it can be dropped any more. Rank 0 keeps what it knows of some steps; a
 * forward that would make a loss of a later one waits. */
#include <math.h>
#include <string.h>

#include "engine/rank_internal.h"

enum { STEPS_KEPT = 64 };

/* A step that has not been reported. */
typedef struct step_losses {
    int64_t step;           /* of the run */
    int known;              /* losses */
    int updates;            /* made here */
    bool measured, skipped; /* its norm is known; what followed */
    double norm;
    double ended;   /* when this rank ended it itself; 0: not yet */
    double *values; /* per worker */
} step_losses;

struct car_losses {
    int64_t *told; /* per worker: steps of this run's plan, before this one, whose loss left here */
    /* Rank 0's. */
    int64_t expected;              /* the same: whose losses are waited for */
    int64_t reported;              /* the step of the run that is reported next */
    step_losses steps[STEPS_KEPT]; /* by step mod STEPS_KEPT */
};

static void forget_steps(struct car_losses *losses) {
    for (int s = 0; s < STEPS_KEPT; s++) {
        losses->steps[s] = (step_losses){.step = CAR_NONE, .values = losses->steps[s].values};
    }
}

car_status car_rank_create_losses(car_rank *rank) {
    size_t workers = (size_t)rank->batches;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(rank->context, 1, sizeof *rank->losses, &rank->losses));
    CAR_TRY(car_context_allocate(rank->context, workers, sizeof(int64_t), &rank->losses->told));
    for (int s = 0; rank->device == 0 && s < STEPS_KEPT; s++) {
        CAR_TRY(car_context_allocate(rank->context, workers, sizeof(double), &rank->losses->steps[s].values));
    }
    forget_steps(rank->losses);
done:
    return status;
}

void car_rank_destroy_losses(car_rank *rank) {
    struct car_losses *losses = rank->losses;
    size_t workers = (size_t)rank->batches;
    for (int s = 0; losses && s < STEPS_KEPT; s++) {
        car_context_release(rank->context, losses->steps[s].values, losses->steps[s].values ? workers : 0,
                            sizeof(double));
    }
    if (losses) {
        car_context_release(rank->context, losses->told, losses->told ? workers : 0, sizeof *losses->told);
        car_context_release(rank->context, losses, 1, sizeof *losses);
    }
}

void car_rank_rewind_losses(car_rank *rank) {
    rank->losses->expected = 0;
    memset(rank->losses->told, 0, (size_t)rank->batches * sizeof *rank->losses->told);
}

void car_rank_report_from(car_rank *rank, int64_t step) {
    rank->losses->reported = step;
    forget_steps(rank->losses);
}

int64_t car_rank_reported(const car_rank *rank) {
    return rank->losses->reported;
}

/* ---- reports --------------------------------------------------------------------------------- */

static bool gives_up(const car_rank *rank) {
    return rank->skipped_in_a_row >= CAR_TRAINER_MOST_SKIPPED;
}

/* Skipping is for a step now and then. Weights that give nothing finite for so long will not recover by it. */
static void count_skipped(car_rank *rank, const car_step_report *report) {
    rank->skipped_in_a_row = report->skipped ? rank->skipped_in_a_row + 1 : 0;
    if (gives_up(rank)) {
        car_rank_fail(rank, car_context_fail(
                                rank->context, CAR_ERROR_NOT_FINITE,
                                "%d steps in a row were skipped because their loss or gradient is not finite, the "
                                "last is step %lld: go "
                                "back to an earlier checkpoint, with a smaller learning rate, warm-up or --clip-norm",
                                rank->skipped_in_a_row, (long long)report->step + 1));
    }
}

/* Whether all is known of the step that comes next, and it is certain. */
static bool is_ripe(const car_rank *rank, const step_losses *s) {
    bool certain = !rank->frozen && rank->losses->reported < rank->report_end &&
                   (!rank->alone || s->updates == rank->updates_per_step);
    return certain && s->step == rank->losses->reported && s->known == rank->batches && (s->measured || !rank->norm) &&
           !gives_up(rank);
}

static void report_steps(car_rank *rank) {
    struct car_losses *losses = rank->losses;
    step_losses *s = &losses->steps[losses->reported % STEPS_KEPT];
    for (; is_ripe(rank, s); s = &losses->steps[losses->reported % STEPS_KEPT]) {
        double sum = 0;
        for (int i = 0; i < rank->batches; i++) {
            sum += s->values[i];
        }
        const car_step_report report = {.step = s->step,
                                        .loss = sum / rank->batches,
                                        .lr = car_schedule_lr(&rank->config.schedule, s->step),
                                        .gradient_norm = s->measured ? s->norm : NAN,
                                        .skipped = s->skipped,
                                        .when = s->ended > 0 && !rank->alone ? s->ended : car_clock_seconds()};
        *s = (step_losses){.step = CAR_NONE, .values = s->values};
        losses->reported++;
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

/* A step of the run that has not been reported. */
static car_status find_step(car_rank *rank, int64_t step, step_losses **out) {
    struct car_losses *losses = rank->losses;
    *out = &losses->steps[step % STEPS_KEPT];
    if (step < losses->reported || step - losses->reported >= STEPS_KEPT) {
        return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "step %lld is not one of those to be reported",
                                (long long)step + 1);
    }
    (*out)->step = step;
    return CAR_OK;
}

/* A rank is done with a step when its last backward of the lowest stage is; one that is alone, when it has made all
 * updates. */
car_status car_rank_note_step(car_rank *rank, const car_task *task) {
    int64_t step = car_rank_step_of(rank, task);
    step_losses *s = NULL;
    car_status status = CAR_OK;
    bool updates = rank->alone && task->kind == CAR_TASK_UPDATE;
    bool ends = rank->device == 0 && task->kind == CAR_TASK_BACKWARD && task->stage == rank->first_stage;
    if ((ends || updates) && step >= rank->losses->reported) { /* or else the report's own time stands */
        CAR_TRY(find_step(rank, step, &s));
        s->ended = car_clock_seconds();
        s->updates += updates;
        report_steps(rank);
    }
done:
    return status;
}

car_status car_rank_note_norm(car_rank *rank, int64_t step, double norm, bool skipped) {
    step_losses *s = NULL;
    car_status status = find_step(rank, step, &s);
    if (status == CAR_OK) {
        s->measured = true;
        s->norm = norm;
        s->skipped = skipped;
        report_steps(rank);
    }
    return status;
}

car_status car_rank_check_losses(car_rank *rank) {
    struct car_losses *losses = rank->losses;
    if (rank->device != 0) {
        return CAR_OK;
    }
    report_steps(rank);
    if (losses->reported != rank->first_step) {
        return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "the losses of step %lld did not arrive",
                                (long long)losses->reported + 1);
    }
    forget_steps(losses); /* what was dropped */
    return CAR_OK;
}

/* ---- losses ---------------------------------------------------------------------------------- */

bool car_rank_makes_loss(const car_rank *rank, const car_task *task) {
    const car_stage *stage = task->kind == CAR_TASK_FORWARD ? &rank->partition->stages[task->stage] : NULL;
    return stage && stage->first < stage->end && stage->end == car_graph_op_count(rank->graph);
}

bool car_rank_may_note_loss(const car_rank *rank, const car_task *task) {
    return rank->device != 0 || !car_rank_makes_loss(rank, task) ||
           car_rank_step_of(rank, task) - rank->losses->reported < STEPS_KEPT;
}

/* The rank that makes a worker's loss in a step of the plan. */
static int maker_of(const car_rank *rank, int64_t step, int worker) {
    int stage = rank->stages - 1;
    while (rank->partition->stages[stage].first == rank->partition->stages[stage].end) {
        stage--; /* it has no operations */
    }
    return car_plan_rank_of(rank->plan, car_plan_device(rank->plan, step, worker, stage));
}

static car_status keep(car_rank *rank, int64_t step, int worker, double value) {
    step_losses *s = NULL;
    car_status status = find_step(rank, step, &s);
    if (status == CAR_OK) {
        s->known++;
        s->values[worker] = value;
        report_steps(rank);
    }
    return status;
}

static car_status tell(car_rank *rank, int64_t step, int worker, double value) {
    rank->losses->told[worker] = step + 1;
    return rank->device == 0 ? CAR_OK : car_rank_send_note(rank, CAR_NOTE_LOSS, step, worker, 0, &value, sizeof value);
}

car_status car_rank_note_loss(car_rank *rank, const car_task *task, double value) {
    if (car_rank_is_dropped(rank, task)) {
        return CAR_OK; /* it was told when the end was known */
    }
    return rank->device == 0 ? keep(rank, car_rank_step_of(rank, task), task->worker, value)
                             : tell(rank, task->step, task->worker, value);
}

static car_status expect(car_rank *rank, int64_t steps) {
    struct car_losses *losses = rank->losses;
    car_status status = CAR_OK;
    for (; losses->expected < steps; losses->expected++) {
        for (int i = 0; i < rank->batches; i++) {
            int from = maker_of(rank, losses->expected, i);
            if (from != 0) {
                CAR_TRY(car_rank_expect_note(rank, CAR_NOTE_LOSS, losses->expected, i, from, sizeof(double)));
            }
        }
    }
done:
    return status;
}

car_status car_rank_expect_losses(car_rank *rank) {
    int64_t soon = rank->losses->reported - rank->first_step + CAR_NOTE_STEPS;
    return rank->device != 0 || rank->alone || rank->frozen ? CAR_OK
                                                            : expect(rank, soon < rank->limit ? soon : rank->limit);
}

car_status car_rank_hear_loss(car_rank *rank, const car_parcel *parcel) {
    double value = 0;
    memcpy(&value, parcel->block->data, sizeof value);
    return parcel->step < rank->limit ? keep(rank, rank->first_step + parcel->step, parcel->index, value) : CAR_OK;
}

/* What is listed may still be computed, and told. */
int64_t car_rank_losses_under_way(const car_rank *rank) {
    return rank->losses->expected > rank->steps_used ? rank->losses->expected : rank->steps_used;
}

car_status car_rank_settle_losses(car_rank *rank, int64_t steps) {
    car_status status = CAR_OK;
    if (rank->device == 0) {
        return rank->alone ? CAR_OK : expect(rank, steps);
    }
    for (int64_t step = rank->limit; step < steps; step++) {
        for (int i = 0; i < rank->batches; i++) {
            if (maker_of(rank, step, i) == rank->device && rank->losses->told[i] <= step) {
                CAR_TRY(tell(rank, step, i, NAN));
            }
        }
    }
done:
    return status;
}
