/* What ranks tell each other while they train: losses, for rank 0 to report, and where everybody is.
 *
 * Neither is part of the plan: it travels with the statuses of the transport, a few times a second, and more often while
 * many losses wait. No loss is dropped. A rank keeps what it has not told yet, and waits with its next forward when that
 * becomes too much; rank 0 keeps every step until it has been reported; and after the loop both sides count. */
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
    int64_t step; /* that the rank is in */
    int64_t run;  /* which the limit is of */
    int32_t waits, losses;
    int32_t wishes_to_stop;
    char doing[96];
} status_head;

enum {
    LOSSES_IN_STATUS = (CAR_STATUS_BYTES - sizeof(status_head)) / sizeof(loss),
    MOST_UNTOLD = 16 * LOSSES_IN_STATUS, /* then forwards wait */
    FIRST_CAPACITY = 64,                 /* of steps; a power of two */
    MOST_STEPS_AHEAD = 1 << 20           /* of the one that is reported next */
};

/* rank 0: a step that has not been reported. */
typedef struct step_losses {
    int64_t step;
    int known;
    int updates;            /* made here */
    bool measured, skipped; /* its norm is known; what followed */
    double norm;
    double ended; /* when this rank ended it itself; 0: not yet */
} step_losses;

struct car_losses {
    loss *box; /* not told yet */
    int count, capacity;
    int64_t told;       /* in statuses, so far */
    bool sealed;        /* what is in the box is on another way */
    atomic_bool many;   /* in the box: the next status should leave soon */
    atomic_bool wished; /* the wish to stop has been told */
    /* Rank 0's. */
    step_losses *steps; /* by step mod step_capacity */
    double *values;     /* by step and worker; NaN: not known */
    int64_t step_capacity;
    int64_t reported; /* the step that is reported next */
    int64_t *heard;   /* by rank: losses that came in statuses, so far */
};

static void forget_steps(const car_rank *rank, step_losses *steps, double *values, int64_t capacity) {
    for (int64_t s = 0; s < capacity; s++) {
        steps[s] = (step_losses){.step = CAR_NONE};
    }
    for (int64_t v = 0; v < capacity * rank->workers; v++) {
        values[v] = NAN;
    }
}

/* Room for the steps from `reported` to `step`. */
static car_status make_room(car_rank *rank, int64_t step) {
    struct car_losses *losses = rank->losses;
    size_t workers = (size_t)rank->workers;
    int64_t old = losses->step_capacity, capacity = old ? old : FIRST_CAPACITY;
    step_losses *steps = NULL;
    double *values = NULL;
    car_status status = CAR_OK;
    while (step - losses->reported >= capacity) {
        capacity *= 2;
    }
    if (capacity == old) {
        return CAR_OK;
    }
    CAR_TRY(car_context_allocate(rank->context, (size_t)capacity, sizeof *steps, &steps));
    CAR_TRY(car_context_allocate(rank->context, (size_t)capacity * workers, sizeof *values, &values));
    forget_steps(rank, steps, values, capacity);
    for (int64_t s = 0; s < old; s++) {
        int64_t to = losses->steps[s].step % capacity;
        if (losses->steps[s].step != CAR_NONE) {
            steps[to] = losses->steps[s];
            memcpy(values + (size_t)to * workers, losses->values + (size_t)s * workers, workers * sizeof *values);
        }
    }
    step_losses *old_steps = losses->steps;
    double *old_values = losses->values;
    losses->steps = steps;
    losses->values = values;
    losses->step_capacity = capacity;
    steps = old_steps; /* to be released */
    values = old_values;
    capacity = old;
done:
    car_context_release(rank->context, values, values ? (size_t)capacity * workers : 0, sizeof *values);
    car_context_release(rank->context, steps, steps ? (size_t)capacity : 0, sizeof *steps);
    return status;
}

car_status car_rank_create_losses(car_rank *rank) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(rank->context, 1, sizeof *rank->losses, &rank->losses));
    CAR_TRY(car_context_allocate(rank->context, (size_t)rank->devices, sizeof *rank->sightings, &rank->sightings));
    if (rank->device == 0) {
        CAR_TRY(car_context_allocate(rank->context, (size_t)rank->devices, sizeof(int64_t), &rank->losses->heard));
        CAR_TRY(make_room(rank, 0));
    }
done:
    return status;
}

void car_rank_destroy_losses(car_rank *rank) {
    struct car_losses *losses = rank->losses;
    if (losses) {
        size_t steps = (size_t)losses->step_capacity;
        car_context_release(rank->context, losses->heard, losses->heard ? (size_t)rank->devices : 0, sizeof(int64_t));
        car_context_release(rank->context, losses->values, steps * (size_t)rank->workers, sizeof(double));
        car_context_release(rank->context, losses->steps, steps, sizeof *losses->steps);
        car_context_release(rank->context, losses->box, (size_t)losses->capacity, sizeof *losses->box);
    }
    car_context_release(rank->context, rank->sightings, rank->sightings ? (size_t)rank->devices : 0,
                        sizeof *rank->sightings);
    car_context_release(rank->context, losses, losses ? 1 : 0, sizeof *losses);
}

void car_rank_report_from(car_rank *rank, int64_t step) {
    struct car_losses *losses = rank->losses;
    losses->reported = step;
    forget_steps(rank, losses->steps, losses->values, losses->step_capacity);
}

int64_t car_rank_reported(const car_rank *rank) {
    return rank->losses->reported;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* A step that has not been reported, with room for what is to be known of it. */
static car_status find_step(car_rank *rank, int64_t step, step_losses **out) {
    car_status status = make_room(rank, step);
    if (status == CAR_OK) {
        *out = &rank->losses->steps[step % rank->losses->step_capacity];
        (*out)->step = step;
    }
    return status;
}

static double *values_of(const car_rank *rank, int64_t step) {
    return rank->losses->values + (size_t)(step % rank->losses->step_capacity) * (size_t)rank->workers;
}

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

static void report_steps(car_rank *rank) {
    struct car_losses *losses = rank->losses;
    for (;;) {
        step_losses *s = &losses->steps[losses->reported % losses->step_capacity];
        if (rank->frozen || losses->reported >= rank->report_end) {
            return; /* it may be dropped */
        }
        bool made = !rank->alone || s->updates == rank->updates_per_step; /* or it may still be dropped */
        made = made && (s->measured || !rank->norm);
        if (s->step != losses->reported || s->known < rank->workers || !made || gives_up(rank)) {
            return;
        }
        double sum = 0, *values = values_of(rank, s->step);
        for (int i = 0; i < rank->workers; i++) {
            sum += values[i];
            values[i] = NAN;
        }
        const car_step_report report = {.step = s->step,
                                        .loss = sum / rank->workers,
                                        .lr = car_schedule_lr(&rank->config.schedule, s->step),
                                        .gradient_norm = s->measured ? s->norm : NAN,
                                        .skipped = s->skipped,
                                        .when = s->ended > 0 && !rank->alone ? s->ended : car_clock_seconds()};
        *s = (step_losses){.step = CAR_NONE};
        losses->reported++;
        if (rank->config.report) {
            rank->config.report(rank->config.report_user, &report);
        }
        count_skipped(rank, &report);
    }
}

/* Only what a rank can have sent in earnest: no more room is made for anything else. */
static bool is_possible(const car_rank *rank, const loss *l) {
    return l->step >= rank->losses->reported && l->step - rank->losses->reported < MOST_STEPS_AHEAD && l->worker >= 0 &&
           l->worker < rank->workers;
}

static car_status keep(car_rank *rank, const loss *l) {
    step_losses *s = NULL;
    car_status status = is_possible(rank, l) ? find_step(rank, l->step, &s) : CAR_OK;
    if (status == CAR_OK && (s == NULL || !isnan(values_of(rank, l->step)[l->worker]))) {
        status = car_context_fail(rank->context, CAR_ERROR_INTERNAL,
                                  "a loss of worker %d in step %lld was reported that nobody waits for", l->worker,
                                  (long long)l->step + 1);
    }
    if (status == CAR_OK && s) {
        s->known++;
        values_of(rank, l->step)[l->worker] = l->value;
        report_steps(rank);
    }
    return status;
}

/* ---- every rank ------------------------------------------------------------------------------ */

/* With the lock. A rank is done with a step when its last backward of the lowest stage is; one that is alone, when it has
 * made all updates. */
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

/* With the lock. */
car_status car_rank_note_loss(car_rank *rank, int64_t step, int worker, double value) {
    struct car_losses *losses = rank->losses;
    const loss l = {(int32_t)step, worker, value};
    car_status status = CAR_OK;
    if (rank->device == 0) {
        return keep(rank, &l);
    }
    CAR_TRY(car_context_grow(rank->context, &losses->box, &losses->capacity, losses->count + 1, sizeof l));
    losses->box[losses->count++] = l;
    atomic_store(&losses->many, losses->count >= LOSSES_IN_STATUS);
done:
    return status;
}

bool car_rank_makes_loss(const car_rank *rank, const car_task *task) {
    const car_stage *stage = task->kind == CAR_TASK_FORWARD ? &rank->partition->stages[task->stage] : NULL;
    return stage && stage->first < stage->end && stage->end == car_graph_op_count(rank->graph);
}

bool car_rank_may_note_loss(const car_rank *rank, const car_task *task) {
    return !car_rank_makes_loss(rank, task) || rank->losses->count < MOST_UNTOLD;
}

bool car_rank_has_much_to_tell(void *user) {
    const car_rank *rank = user;
    return atomic_load(&rank->losses->many) || (atomic_load(&rank->stop) && !atomic_load(&rank->losses->wished));
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

/* What is in a status arrives: MPI loses nothing. */
static int fill_status(struct car_losses *losses, char *room) {
    int count = losses->sealed ? 0 : losses->count < LOSSES_IN_STATUS ? losses->count : LOSSES_IN_STATUS;
    if (count > 0) {
        memcpy(room, losses->box, (size_t)count * sizeof *losses->box);
        memmove(losses->box, losses->box + count, (size_t)(losses->count - count) * sizeof *losses->box);
        losses->count -= count;
        losses->told += count;
        atomic_store(&losses->many, losses->count >= LOSSES_IN_STATUS);
    }
    return count;
}

size_t car_rank_tell(void *user, char *status) {
    car_rank *rank = user;
    status_head head = {0};
    pthread_mutex_lock(&rank->lock);
    describe(rank, &head);
    head.run = rank->run;
    head.wishes_to_stop = atomic_load(&rank->stop);
    atomic_store(&rank->losses->wished, head.wishes_to_stop != 0);
    head.losses = fill_status(rank->losses, status + sizeof head);
    if (head.losses > 0) {
        pthread_cond_broadcast(&rank->changed); /* for forwards that waited for room in the box */
    }
    pthread_mutex_unlock(&rank->lock);
    memcpy(status, &head, sizeof head);
    return sizeof head + (size_t)head.losses * sizeof(loss);
}

/* Reads what a peer says only as far as it goes. */
static car_status read_status(car_rank *rank, int from, const char *status, size_t bytes, status_head *head) {
    bool sound = bytes >= sizeof *head;
    if (sound) {
        memcpy(head, status, sizeof *head);
        head->doing[sizeof head->doing - 1] = '\0';
        sound = head->losses >= 0 && bytes == sizeof *head + (size_t)head->losses * sizeof(loss);
    }
    if (!sound) {
        return car_context_fail(rank->context, CAR_ERROR_IO,
                                "rank %d sent a status of %zu bytes that makes no sense: ranks of another build, or a "
                                "broken network",
                                from, bytes);
    }
    return CAR_OK;
}

static void see(car_rank *rank, int from, const status_head *head) {
    car_sighting *sighting = &rank->sightings[from];
    sighting->when = car_clock_seconds();
    sighting->step = head->step;
    sighting->waits = head->waits != 0;
    memcpy(sighting->doing, head->doing, sizeof sighting->doing);
    if (head->run == rank->run) {
        if (head->wishes_to_stop && rank->device == 0) {
            atomic_store(&rank->stop, true);
            car_rank_look_for_stop(rank);
        }
    }
}

void car_rank_heard(void *user, int from, const char *text, size_t bytes) {
    car_rank *rank = user;
    status_head head = {0};
    pthread_mutex_lock(&rank->lock);
    car_status status = read_status(rank, from, text, bytes, &head);
    if (status == CAR_OK) {
        see(rank, from, &head);
    }
    for (int l = 0; status == CAR_OK && rank->device == 0 && l < head.losses; l++) {
        loss value;
        memcpy(&value, text + sizeof head + (size_t)l * sizeof value, sizeof value);
        status = keep(rank, &value);
        rank->losses->heard[from]++;
    }
    if (status != CAR_OK) {
        car_rank_fail(rank, status);
    }
    pthread_mutex_unlock(&rank->lock);
}

/* ---- after the loop -------------------------------------------------------------------------- */

/* What is left of a rank's losses: in its box, and told before. */
typedef struct leftover {
    int64_t count, told;
} leftover;

/* rank 0: statuses that left before the end of the loop may still be on their way. */
static car_status hear_the_rest(car_rank *rank, const leftover *all) {
    car_status status = CAR_OK;
    for (int r = 1; status == CAR_OK && r < rank->devices; r++) {
        while (status == CAR_OK && rank->losses->heard[r] < all[r].told) {
            status = car_transport_poll(rank->transport);
            status = status == CAR_OK ? rank->status : status;
        }
    }
    return status;
}

static car_status hand_over_box(car_rank *rank, int from, int64_t count) {
    struct car_losses *losses = rank->losses;
    car_status status = CAR_OK;
    if (rank->device == 0) {
        CAR_TRY(car_context_grow(rank->context, &losses->box, &losses->capacity, (int)count, sizeof *losses->box));
    }
    CAR_TRY(car_transport_hand_over(rank->transport, from, 0, losses->box, (size_t)count * sizeof *losses->box));
    for (int64_t l = 0; rank->device == 0 && l < count; l++) {
        CAR_TRY(keep(rank, &losses->box[l]));
    }
done:
    return status;
}

car_status car_rank_share_losses(car_rank *rank) {
    struct car_losses *losses = rank->losses;
    leftover *all = NULL;
    car_status status = CAR_OK;
    pthread_mutex_lock(&rank->lock);
    losses->sealed = true;
    const leftover own = {losses->count, losses->told};
    pthread_mutex_unlock(&rank->lock);
    CAR_TRY(car_context_allocate(rank->context, (size_t)rank->devices, sizeof *all, &all));
    CAR_TRY(car_transport_all_gather(rank->transport, &own, sizeof own, all));
    if (rank->device == 0) {
        CAR_TRY(hear_the_rest(rank, all));
    }
    for (int r = 1; r < rank->devices; r++) {
        CAR_TRY(hand_over_box(rank, r, all[r].count));
    }
    losses->count = 0;
    losses->sealed = false;
    atomic_store(&losses->many, false);
    if (rank->device == 0) {
        report_steps(rank);
    }
    if (rank->device == 0 && rank->shortened) { /* losses of steps that were dropped */
        car_rank_report_from(rank, losses->reported);
    }
    if (rank->device == 0 && losses->reported != rank->first_step) {
        status = car_context_fail(rank->context, CAR_ERROR_INTERNAL, "the losses of step %lld did not arrive",
                                  (long long)losses->reported + 1);
    }
done:
    car_context_release(rank->context, all, all ? (size_t)rank->devices : 0, sizeof *all);
    return status;
}
