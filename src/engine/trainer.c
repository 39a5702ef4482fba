/* A trainer: a single rank that has all workers, with a transport that has one rank. */
#include "carousel/trainer.h"

#include "base/base.h"
#include "carousel/rank.h"
#include "carousel/stage.h"
#include "engine/arithmetic.h"

struct car_trainer {
    car_context *context;
    car_hub *hub;
    car_transport *transport;
    car_rank *rank;
};

car_trainer_config car_trainer_config_default(void) {
    return (car_trainer_config){
        .threads = 1, .optimizer = car_optimizer_config_default(), .schedule = {.lr = 0.05}, .watchdog_seconds = 30};
}

size_t car_trainer_thread_bytes(const car_program *program, bool adds) {
    if (!program) {
        return 0;
    }
    int ops = car_graph_op_count(car_program_graph(program));
    return car_program_scratch_bytes(program) + (adds ? car_engine_addend_bytes(program, 0, ops) : 0);
}

car_status car_trainer_create(const car_plan *plan, const car_program *program, car_arena *arena,
                              const car_trainer_config *config, car_trainer **out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), out);
    car_context *context = car_plan_context(plan);
    car_trainer *trainer = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    if (car_plan_ranks(plan) != 1) {
        return car_context_fail(context, CAR_ERROR_UNSUPPORTED,
                                "a trainer can only execute plans with placement shared");
    }
    CAR_TRY(car_context_allocate(context, 1, sizeof *trainer, &trainer));
    trainer->context = context;
    CAR_TRY(car_hub_create(context, 1, &trainer->hub));
    CAR_TRY(car_hub_join(trainer->hub, context, 0, &trainer->transport));
    CAR_TRY(car_rank_create(plan, program, arena, trainer->transport, config, &trainer->rank));
    *out = trainer;
    trainer = NULL;
done:
    car_trainer_destroy(trainer);
    return status;
}

void car_trainer_destroy(car_trainer *trainer) {
    if (trainer) {
        car_rank_destroy(trainer->rank);
        car_transport_close(trainer->transport);
        car_hub_destroy(trainer->hub);
        car_context_release(trainer->context, trainer, 1, sizeof *trainer);
    }
}

/* Without a trainer this is NULL, which the functions of a rank refuse. */
static car_rank *rank_of(const car_trainer *trainer) {
    return trainer ? trainer->rank : NULL;
}

car_status car_trainer_initialize(car_trainer *trainer, uint64_t seed) {
    return car_rank_initialize(rank_of(trainer), seed);
}

car_status car_trainer_run(car_trainer *trainer, int64_t steps) {
    return car_rank_run(rank_of(trainer), steps);
}

car_status car_trainer_drive(car_trainer *trainer, const car_rank_loop *loop) {
    return car_rank_drive(rank_of(trainer), loop);
}

void car_trainer_stop(car_trainer *trainer) {
    car_rank_stop(rank_of(trainer));
}

int64_t car_trainer_steps(const car_trainer *trainer) {
    return car_rank_steps(rank_of(trainer));
}

car_weights *car_trainer_weights(car_trainer *trainer) {
    return car_rank_weights(rank_of(trainer));
}

car_weights *car_trainer_previous_weights(car_trainer *trainer) {
    return car_rank_previous_weights(rank_of(trainer));
}

car_optimizer *car_trainer_optimizer(car_trainer *trainer) {
    return car_rank_optimizer(rank_of(trainer));
}

void car_trainer_return_snapshot(car_trainer *trainer) {
    car_rank_return_snapshot(rank_of(trainer));
}

car_status car_trainer_create_snapshot(const car_trainer *trainer, car_snapshot **out) {
    return car_rank_create_snapshot(rank_of(trainer), out);
}

car_status car_trainer_take_snapshot(car_trainer *trainer, car_snapshot *snapshot) {
    return car_rank_gather(rank_of(trainer), snapshot);
}

car_status car_trainer_restore(car_trainer *trainer, car_snapshot *snapshot) {
    return car_rank_spread(rank_of(trainer), snapshot);
}

car_status car_trainer_evaluate(car_trainer *trainer, double *loss) {
    return car_rank_evaluate(rank_of(trainer), loss);
}

car_status car_trainer_gradient(car_trainer *trainer, double *loss, void *const *gradients) {
    return car_rank_gradient(rank_of(trainer), loss, gradients);
}

car_status car_trainer_assign(car_trainer *trainer, const void *const *weights) {
    return car_rank_assign(rank_of(trainer), weights);
}

car_status car_trainer_read(car_trainer *trainer, void *const *weights) {
    return car_rank_read(rank_of(trainer), weights);
}

car_trainer_times car_trainer_time(const car_trainer *trainer) {
    return car_rank_time(rank_of(trainer));
}
