/* A snapshot: copies of the weights, their previous version and the optimizer's state, in stored layout.
 *
 * A trainer fills it between two tasks, so taking it must cost no more than a copy. That is why the layout is the
 * stored one. Whoever writes the snapshot to a file converts it to canonical layout later. */
#include "carousel/snapshot.h"

#include <math.h>

#include "base/base.h"
#include "checkpoint/params.h"
#include "engine/snapshot_internal.h"
#include "kernels/program.h"

enum { MAX_STATES = CAR_SNAPSHOT_AVERAGE - CAR_SNAPSHOT_STATE_0 };

struct car_snapshot {
    const car_program *program;
    car_arena *arena;
    car_snapshot_numbers numbers;
    const car_optimizer_class *own;  /* the class that names the states; NULL if they have no names */
    void **part[CAR_SNAPSHOT_PARTS]; /* for each parameter; NULL if the snapshot does not have it */
};

static const char *part_text(car_snapshot_part part) {
    static const char *const texts[] = {"weights",
                                        "previous weights",
                                        "first state of the optimizer",
                                        "second state of the optimizer",
                                        "third state of the optimizer",
                                        "moving average"};
    return part < CAR_SNAPSHOT_PARTS ? texts[part] : "unknown part";
}

/* What a snapshot shall contain of each parameter. */
typedef struct contents {
    bool previous;
    /* Optimizer states: this many of every parameter or, if `optimizer` is given, those that it keeps. */
    int states;
    const car_optimizer_config *optimizer;
    bool evaluated; /* of the optimizer's states, only the average */
} contents;

static bool has_part(const contents *wanted, const car_graph *graph, car_snapshot_part part, int param) {
    int state = (int)part - CAR_SNAPSHOT_STATE_0;
    if (state < 0) {
        return part == CAR_SNAPSHOT_WEIGHTS || wanted->previous;
    }
    if (wanted->evaluated && part != CAR_SNAPSHOT_AVERAGE) {
        return false;
    }
    bool statistic = car_graph_param(graph, param)->role == CAR_PARAM_STATISTIC;
    return wanted->optimizer ? car_optimizer_keeps(wanted->optimizer, graph, param, state)
                             : state < wanted->states && !statistic;
}

static car_status allocate_part(car_snapshot *snapshot, car_snapshot_part part, const contents *wanted) {
    const car_graph *graph = car_program_graph(snapshot->program);
    int params = car_graph_param_count(graph);
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(car_program_context(snapshot->program), (size_t)params, sizeof(void *),
                                 &snapshot->part[part]));
    for (int p = 0; p < params; p++) {
        if (has_part(wanted, graph, part, p)) {
            CAR_TRY(car_arena_allocate(snapshot->arena, CAR_MEMORY_SNAPSHOT,
                                       car_program_param_bytes(snapshot->program, p), &snapshot->part[part][p]));
        }
    }
done:
    return status;
}

static car_status create(const car_program *program, car_arena *arena, const contents *wanted, car_snapshot **out) {
    car_snapshot *snapshot = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(car_program_context(program), 1, sizeof *snapshot, &snapshot));
    snapshot->program = program;
    snapshot->arena = arena;
    snapshot->numbers.norm = NAN;
    snapshot->own = wanted->optimizer ? wanted->optimizer->own : NULL;
    for (int part = 0; part < CAR_SNAPSHOT_PARTS; part++) {
        CAR_TRY(allocate_part(snapshot, (car_snapshot_part)part, wanted));
    }
    *out = snapshot;
    snapshot = NULL;
done:
    car_snapshot_destroy(snapshot);
    return status;
}

car_status car_snapshot_create(const car_program *program, car_arena *arena, bool previous, int states,
                               car_snapshot **out) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(car_program_context(program), arena);
    CAR_REQUIRE(car_program_context(program), out);
    *out = NULL;
    if (states < 0 || states > MAX_STATES) {
        return car_context_fail(car_program_context(program), CAR_ERROR_ARGUMENT,
                                "a snapshot can have 0 to %d states of the optimizer, not %d", MAX_STATES, states);
    }
    return create(program, arena, &(contents){.previous = previous, .states = states}, out);
}

car_status car_snapshot_create_for(const car_program *program, car_arena *arena, bool previous,
                                   const car_optimizer_config *optimizer, car_snapshot **out) {
    CAR_REQUIRE(NULL, program);
    CAR_REQUIRE(car_program_context(program), arena);
    CAR_REQUIRE(car_program_context(program), optimizer);
    CAR_REQUIRE(car_program_context(program), out);
    return create(program, arena, &(contents){.previous = previous, .optimizer = optimizer}, out);
}

car_status car_snapshot_create_evaluated(const car_program *program, car_arena *arena,
                                         const car_optimizer_config *optimizer, car_snapshot **out) {
    return create(program, arena, &(contents){.optimizer = optimizer, .evaluated = true}, out);
}

void car_snapshot_destroy(car_snapshot *snapshot) {
    if (!snapshot) {
        return;
    }
    car_context *context = car_program_context(snapshot->program);
    int params = car_graph_param_count(car_program_graph(snapshot->program));
    for (int part = 0; part < CAR_SNAPSHOT_PARTS; part++) {
        for (int p = 0; snapshot->part[part] && p < params; p++) {
            car_arena_release(snapshot->arena, snapshot->part[part][p]);
        }
        car_context_release(context, snapshot->part[part], (size_t)params, sizeof(void *));
    }
    car_context_release(context, snapshot, 1, sizeof *snapshot);
}

const car_program *car_snapshot_program(const car_snapshot *snapshot) {
    return snapshot ? snapshot->program : NULL;
}

car_snapshot_numbers car_snapshot_get_numbers(const car_snapshot *snapshot) {
    return snapshot ? snapshot->numbers : (car_snapshot_numbers){.norm = NAN};
}

void car_snapshot_set_numbers(car_snapshot *snapshot, const car_snapshot_numbers *numbers) {
    if (snapshot && numbers) {
        snapshot->numbers = *numbers;
    }
}

const char *car_snapshot_state_name(const car_snapshot *snapshot, car_snapshot_part part) {
    int state = (int)part - CAR_SNAPSHOT_STATE_0;
    return snapshot && snapshot->own && state >= 0 && state < snapshot->own->state_count
               ? snapshot->own->state_names[state]
               : NULL;
}

float *car_snapshot_data(const car_snapshot *snapshot, car_snapshot_part part, int param) {
    bool inside =
        part < CAR_SNAPSHOT_PARTS && param >= 0 && param < car_graph_param_count(car_program_graph(snapshot->program));
    return inside && snapshot->part[part] ? snapshot->part[part][param] : NULL;
}

bool car_snapshot_has(const car_snapshot *snapshot, car_snapshot_part part, int param) {
    return snapshot && car_snapshot_data(snapshot, part, param) != NULL;
}

static car_status fail_absent(const car_snapshot *snapshot, car_snapshot_part part, int param) {
    return car_context_fail(car_program_context(snapshot->program), CAR_ERROR_ARGUMENT,
                            "the snapshot has no %s of parameter %d", part_text(part), param);
}

car_status car_snapshot_get(const car_snapshot *snapshot, car_snapshot_part part, int param, void *canonical) {
    CAR_REQUIRE(NULL, snapshot);
    CAR_REQUIRE(car_program_context(snapshot->program), canonical);
    const float *stored = car_snapshot_data(snapshot, part, param);
    return stored ? car_program_export_param(snapshot->program, param, stored, canonical)
                  : fail_absent(snapshot, part, param);
}

car_status car_snapshot_set(car_snapshot *snapshot, car_snapshot_part part, int param, const void *canonical) {
    CAR_REQUIRE(NULL, snapshot);
    CAR_REQUIRE(car_program_context(snapshot->program), canonical);
    float *stored = car_snapshot_data(snapshot, part, param);
    return stored ? car_program_import_param(snapshot->program, param, canonical, stored)
                  : fail_absent(snapshot, part, param);
}

/* Copies all weights from the snapshot (`get`) or to it. */
static car_status move_weights(car_snapshot *snapshot, car_weights *weights, bool get) {
    const car_graph *graph = car_program_graph(snapshot->program);
    car_context *context = car_program_context(snapshot->program);
    size_t most = car_params_largest(graph);
    void *values = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, most, 1, &values));
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        CAR_TRY(get ? car_snapshot_get(snapshot, CAR_SNAPSHOT_WEIGHTS, p, values)
                    : car_weights_get(weights, p, values));
        CAR_TRY(get ? car_weights_set(weights, p, values)
                    : car_snapshot_set(snapshot, CAR_SNAPSHOT_WEIGHTS, p, values));
    }
done:
    car_context_release(context, values, most, 1);
    return status;
}

car_status car_snapshot_get_weights(const car_snapshot *snapshot, car_weights *weights) {
    CAR_REQUIRE(NULL, snapshot);
    CAR_REQUIRE(car_program_context(snapshot->program), weights);
    return move_weights((car_snapshot *)snapshot, weights, true);
}

car_status car_snapshot_set_weights(car_snapshot *snapshot, const car_weights *weights) {
    CAR_REQUIRE(NULL, snapshot);
    CAR_REQUIRE(car_program_context(snapshot->program), weights);
    return move_weights(snapshot, (car_weights *)weights, false);
}
