/* What ranks tell each other while they train: losses, for rank 0 to report, and where everybody is.
 *
 * Neither is part of the plan: it travels with the statuses of the transport, a few times a second. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/rank_internal.h"

typedef struct loss {
    int32_t step, worker;
    double value;
} loss;

/* What a status carries. */
typedef struct status_head {
    int64_t step;  /* that the rank is in */
    int64_t limit; /* steps of the plan that it will make */
    int64_t run;   /* which the limit is of */
    int32_t waits, losses;
    int32_t wishes_to_stop;
    char doing[96];
} status_head;

enum { MOST_LOSSES = (CAR_STATUS_BYTES - sizeof(status_head)) / sizeof(loss), STEPS_KEPT = 4096 };

/* rank 0: one step. */
typedef struct step_losses {
    int64_t step;
    int known;
    double *values; /* per worker; NaN: not known */
} step_losses;

struct car_losses {
    loss *box; /* from the last batch that was told on */
    int count, capacity;
    int told;           /* of the box: may not have arrived */
    step_losses *steps; /* rank 0: by step mod STEPS_KEPT */
    double *values;
    double *ended; /* rank 0: when it ended a step itself, by step mod STEPS_KEPT */
    int64_t reported;
    bool last_words;
};

car_status car_rank_create_losses(car_rank *rank) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(rank->context, 1, sizeof *rank->losses, &rank->losses));
    CAR_TRY(car_context_allocate(rank->context, (size_t)rank->devices, sizeof *rank->sightings, &rank->sightings));
    if (rank->device == 0) {
        size_t workers = (size_t)rank->workers;
        CAR_TRY(car_context_allocate(rank->context, STEPS_KEPT, sizeof *rank->losses->steps, &rank->losses->steps));
        CAR_TRY(car_context_allocate(rank->context, STEPS_KEPT * workers, sizeof(double), &rank->losses->values));
        CAR_TRY(car_context_allocate(rank->context, STEPS_KEPT, sizeof(double), &rank->losses->ended));
        for (size_t s = 0; s < STEPS_KEPT; s++) {
            rank->losses->steps[s] = (step_losses){.step = CAR_NONE, .values = rank->losses->values + s * workers};
        }
    }
done:
    return status;
}

void car_rank_destroy_losses(car_rank *rank) {
    struct car_losses *losses = rank->losses;
    if (losses) {
        car_context_release(rank->context, losses->ended, losses->ended ? STEPS_KEPT : 0, sizeof(double));
        car_context_release(rank->context, losses->values, losses->values ? STEPS_KEPT * (size_t)rank->workers : 0,
                            sizeof(double));
        car_context_release(rank->context, losses->steps, losses->steps ? STEPS_KEPT : 0, sizeof *losses->steps);
        car_context_release(rank->context, losses->box, (size_t)losses->capacity, sizeof *losses->box);
    }
    car_context_release(rank->context, rank->sightings, rank->sightings ? (size_t)rank->devices : 0,
                        sizeof *rank->sightings);
    car_context_release(rank->context, losses, losses ? 1 : 0, sizeof *losses);
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

static void report_steps(car_rank *rank) {
    struct car_losses *losses = rank->losses;
    for (;;) {
        step_losses *s = &losses->steps[losses->reported % STEPS_KEPT];
        if (s->step != losses->reported || s->known < rank->workers) {
            return;
        }
        double sum = 0, ended = losses->ended[s->step % STEPS_KEPT];
        for (int i = 0; i < rank->workers; i++) {
            sum += s->values[i];
        }
        const car_step_report report = {.step = s->step,
                                        .loss = sum / rank->workers,
                                        .lr = car_schedule_lr(&rank->config.schedule, s->step),
                                        .gradient_norm = NAN,
                                        .when = ended > 0 ? ended : car_clock_seconds()};
        losses->ended[s->step % STEPS_KEPT] = 0;
        losses->reported++;
        if (rank->config.report) {
            rank->config.report(rank->config.report_user, &report);
        }
    }
}

static void keep(car_rank *rank, const loss *l) {
    step_losses *s = &rank->losses->steps[l->step % STEPS_KEPT];
    if (l->step < rank->losses->reported || l->worker < 0 || l->worker >= rank->workers) {
        return; /* told twice */
    }
    if (s->step != l->step) {
        s->step = l->step;
        s->known = 0;
        for (int i = 0; i < rank->workers; i++) {
            s->values[i] = NAN;
        }
    }
    s->known += isnan(s->values[l->worker]) ? 1 : 0;
    s->values[l->worker] = l->value;
    report_steps(rank);
}

/* ---- every rank ------------------------------------------------------------------------------ */

/* With the lock. A rank is done with a step when its last backward of the lowest stage is; that is noted before the step
 * can be reported, or else the report's own time stands. */
void car_rank_note_step(car_rank *rank, const car_task *task) {
    if (rank->device == 0 && task->kind == CAR_TASK_BACKWARD && task->stage == rank->first_stage) {
        rank->losses->ended[car_rank_step_of(rank, task) % STEPS_KEPT] = car_clock_seconds();
    }
}

/* With the lock. */
void car_rank_note_loss(car_rank *rank, int64_t step, int worker, double value) {
    struct car_losses *losses = rank->losses;
    const loss l = {(int32_t)step, worker, value};
    if (rank->device == 0) {
        losses->reported = losses->reported > rank->first_step ? losses->reported : rank->first_step;
        keep(rank, &l);
        return;
    }
    if (car_context_grow(rank->context, &losses->box, &losses->capacity, losses->count + 1, sizeof l) == CAR_OK) {
        losses->box[losses->count++] = l;
    }
}

static void describe(car_rank *rank, status_head *head) {
    const car_entry *at = car_rank_at(rank);
    head->waits = at && !at->running;
    head->step = at ? car_rank_step_of(rank, &at->task) : rank->first_step + rank->limit;
    if (at) {
        car_task_format(rank->plan, &at->task, head->doing, sizeof head->doing);
    } else {
        snprintf(head->doing, sizeof head->doing, "%s", rank->aside ? rank->aside : "the end");
    }
}

static void forget_told(struct car_losses *losses) {
    memmove(losses->box, losses->box + losses->told, (size_t)(losses->count - losses->told) * sizeof *losses->box);
    losses->count -= losses->told;
    losses->told = 0;
}

size_t car_rank_tell(void *user, char *status) {
    car_rank *rank = user;
    struct car_losses *losses = rank->losses;
    status_head head = {0};
    pthread_mutex_lock(&rank->lock);
    describe(rank, &head);
    head.limit = rank->limit;
    head.run = rank->run;
    head.wishes_to_stop = atomic_load(&rank->stop);
    if (!losses->last_words && losses->count > 0) {
        forget_told(losses); /* they have left before this status may */
        losses->told = losses->count < MOST_LOSSES ? losses->count : MOST_LOSSES;
        head.losses = losses->told;
        memcpy(status + sizeof head, losses->box, (size_t)losses->told * sizeof *losses->box);
    }
    losses->last_words = rank->ended;
    pthread_mutex_unlock(&rank->lock);
    memcpy(status, &head, sizeof head);
    return sizeof head + (size_t)head.losses * sizeof(loss);
}

void car_rank_heard(void *user, int from, const char *status, size_t bytes) {
    car_rank *rank = user;
    status_head head;
    if (bytes < sizeof head) {
        return;
    }
    memcpy(&head, status, sizeof head);
    pthread_mutex_lock(&rank->lock);
    car_sighting *sighting = &rank->sightings[from];
    sighting->when = car_clock_seconds();
    sighting->step = head.step;
    sighting->waits = head.waits != 0;
    memcpy(sighting->doing, head.doing, sizeof sighting->doing);
    if (head.run == rank->run) {
        sighting->limit = head.limit;
        car_rank_hear_limit(rank, from, head.limit, head.wishes_to_stop != 0);
    }
    for (int l = 0; rank->device == 0 && l < head.losses; l++) {
        loss value;
        memcpy(&value, status + sizeof head + (size_t)l * sizeof value, sizeof value);
        rank->losses->reported = rank->losses->reported > rank->first_step ? rank->losses->reported : rank->first_step;
        keep(rank, &value);
    }
    pthread_mutex_unlock(&rank->lock);
}

/* The last batch may not have been heard, so it comes again with what is left. */
car_status car_rank_share_losses(car_rank *rank) {
    struct car_losses *losses = rank->losses;
    int64_t *counts = NULL;
    car_status status = CAR_OK;
    pthread_mutex_lock(&rank->lock);
    losses->last_words = true; /* statuses leave the box alone from here on */
    int64_t count = losses->count;
    pthread_mutex_unlock(&rank->lock);
    CAR_TRY(car_context_allocate(rank->context, (size_t)rank->devices, sizeof *counts, &counts));
    CAR_TRY(car_transport_all_gather(rank->transport, &count, sizeof count, counts));
    for (int r = 1; r < rank->devices; r++) {
        loss *box = losses->box;
        if (rank->device == 0) {
            CAR_TRY(car_context_grow(rank->context, &losses->box, &losses->capacity, (int)counts[r], sizeof *box));
            box = losses->box;
        }
        CAR_TRY(car_transport_hand_over(rank->transport, r, 0, box, (size_t)counts[r] * sizeof *box));
        for (int64_t l = 0; rank->device == 0 && l < counts[r]; l++) {
            keep(rank, &box[l]);
        }
    }
    losses->count = losses->told = 0;
    losses->last_words = false;
done:
    car_context_release(rank->context, counts, counts ? (size_t)rank->devices : 0, sizeof *counts);
    return status;
}
