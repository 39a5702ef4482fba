/* Cuts of a training run: the state after step t, taken while the cycle goes on, and put back.
 *
 * A stage reaches version t when its update of step t - 1 is made; whoever made it copies the stage before anybody
 * can make the next one. The stages get there at different times, and when the last is copied the cut is whole:
 *
 *   stage 0   ...... U ......      U: version t is made, the stage is copied
 *   stage 1   ..... U .......      the cut is handed over after the last of them
 *   stage 2   .... U ........
 *
 * There is one cut. Until it is given back no update begins that would be due for the next one. */
#include <string.h>

#include "engine/cut_internal.h"
#include "engine/trainer_internal.h"

car_status car_trainer_create_cut(const car_trainer *trainer, car_cut **out) {
    return car_cut_create_for(trainer->program, trainer->arena, trainer->versions > 1, &trainer->config.optimizer, out);
}

/* ---- copying --------------------------------------------------------------------------------- */

static void copy(const car_trainer *trainer, int param, void *to, const void *from) {
    if (to && from) {
        memcpy(to, from, car_program_param_bytes(trainer->program, param));
    }
}

static int64_t version_before(int64_t version) {
    return version > 0 ? version - 1 : 0;
}

static void copy_param(car_trainer *trainer, car_cut *cut, int64_t version, int param) {
    copy(trainer, param, car_cut_data(cut, CAR_CUT_WEIGHTS, param),
         car_trainer_version(trainer, version)->param[param]);
    copy(trainer, param, car_cut_data(cut, CAR_CUT_PREVIOUS, param),
         car_trainer_version(trainer, version_before(version))->param[param]);
    for (int s = 0; s < car_optimizer_states(trainer->optimizer); s++) {
        copy(trainer, param, car_cut_data(cut, CAR_CUT_STATE_0 + (car_cut_part)s, param),
             car_optimizer_state(trainer->optimizer, s, param));
    }
}

static void set_numbers(const car_trainer *trainer, car_cut *cut, int64_t step) {
    const car_cut_numbers numbers = {.step = step,
                                     .updates = trainer->updates_made,
                                     .norm = trainer->last_norm,
                                     .since = car_optimizer_since(trainer->optimizer)};
    car_cut_set_numbers(cut, &numbers);
}

/* ---- while the cycle goes on ----------------------------------------------------------------- */

static bool is_due(const car_trainer *trainer, int64_t version) {
    return trainer->config.cut_every > 0 && version % trainer->config.cut_every == 0;
}

bool car_trainer_cut_is_free(const car_trainer *trainer, int64_t version) {
    return !is_due(trainer, version) || trainer->cut_step == version ||
           (trainer->cut_step == CAR_NONE && !trainer->cut_is_away);
}

/* The claim comes with the update's start, so that no other version can take the cut in between. */
void car_trainer_cut_claim(car_trainer *trainer, int64_t version) {
    if (is_due(trainer, version) && trainer->cut_step == CAR_NONE) {
        trainer->cut_step = version;
        trainer->cut_stages = 0;
    }
}

void car_trainer_cut_copy(car_trainer *trainer, int stage, int64_t version) {
    const car_graph *graph = car_program_graph(trainer->program);
    for (int l = trainer->partition->stages[stage].first; l < trainer->partition->stages[stage].end; l++) {
        const car_op *op = car_graph_op(graph, l);
        for (int p = 0; is_due(trainer, version) && p < op->param_count; p++) {
            if (car_trainer_is_first_use(graph, op->first_use + p)) {
                copy_param(trainer, trainer->cut, version, op->params[p]);
            }
        }
    }
}

void car_trainer_cut_note(car_trainer *trainer, int64_t version) {
    if (!is_due(trainer, version) || ++trainer->cut_stages < trainer->updates_per_step) {
        return;
    }
    set_numbers(trainer, trainer->cut, version);
    trainer->cut_step = CAR_NONE;
    trainer->cut_is_away = true;
    pthread_mutex_unlock(&trainer->lock); /* it may be given back at once */
    trainer->config.on_cut(trainer->config.cut_user, trainer->cut);
    pthread_mutex_lock(&trainer->lock);
}

void car_trainer_return_cut(car_trainer *trainer) {
    pthread_mutex_lock(&trainer->lock);
    trainer->cut_is_away = false;
    pthread_cond_broadcast(&trainer->changed);
    pthread_mutex_unlock(&trainer->lock);
}

/* ---- between runs ---------------------------------------------------------------------------- */

void car_trainer_take_cut(car_trainer *trainer, car_cut *cut) {
    for (int p = 0; p < car_graph_param_count(car_program_graph(trainer->program)); p++) {
        copy_param(trainer, cut, trainer->first_step, p);
    }
    set_numbers(trainer, cut, trainer->first_step);
}

static void restore_param(car_trainer *trainer, car_cut *cut, int64_t step, int param) {
    /* The older one first: with one version both are the same store, and the newer must stay. */
    copy(trainer, param, car_trainer_version(trainer, version_before(step))->param[param],
         car_cut_data(cut, CAR_CUT_PREVIOUS, param));
    copy(trainer, param, car_trainer_version(trainer, step)->param[param], car_cut_data(cut, CAR_CUT_WEIGHTS, param));
    for (int s = 0; s < car_optimizer_states(trainer->optimizer); s++) {
        copy(trainer, param, car_optimizer_state(trainer->optimizer, s, param),
             car_cut_data(cut, CAR_CUT_STATE_0 + (car_cut_part)s, param));
    }
}

car_status car_trainer_restore(car_trainer *trainer, car_cut *cut) {
    const car_graph *graph = car_program_graph(trainer->program);
    const car_cut_numbers numbers = car_cut_get_numbers(cut);
    car_status status = CAR_OK;
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        restore_param(trainer, cut, numbers.step, p);
    }
    for (int v = 0; status == CAR_OK && v < trainer->versions; v++) {
        status = car_weights_refresh(trainer->weights[v], trainer->thread[0].lane, 0, car_graph_op_count(graph));
    }
    trainer->first_step = trainer->newest = numbers.step;
    trainer->updates_made = numbers.updates;
    trainer->last_norm = numbers.norm;
    car_optimizer_set_since(trainer->optimizer, numbers.since);
    for (int j = 0; j < trainer->stages; j++) {
        trainer->made[j] = numbers.step;
    }
    car_trainer_forget_from(trainer, numbers.step);
    return status;
}
