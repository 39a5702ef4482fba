/* A cut: copies of weights, their previous version and the state of the optimizer, in stored layout.
 *
 * Stored, not canonical: a trainer fills it between two tasks, so taking it must cost no more than a
 * copy. Whoever writes it to a file converts, in his own time. */
#include "carousel/cut.h"

#include <math.h>

#include "base/base.h"
#include "engine/cut_internal.h"
#include "kernels/program.h"

enum { MAX_STATES = CAR_CUT_AVERAGE - CAR_CUT_STATE_0 };

struct car_cut {
    const car_program *program;
    car_arena *arena;
    car_cut_numbers numbers;
    void **part[CAR_CUT_PARTS]; /* per parameter; NULL where there is nothing */
};

static const char *part_text(car_cut_part part) {
    static const char *const texts[] = {"weights",
                                        "previous weights",
                                        "first state of the optimizer",
                                        "second state of the optimizer",
                                        "third state of the optimizer",
                                        "moving average"};
    return part < CAR_CUT_PARTS ? texts[part] : "unknown part";
}

/* What a cut is to have of each parameter. */
typedef struct contents {
    bool previous;
    int states;                            /* of every parameter, or */
    const car_optimizer_config *optimizer; /* as many as this one keeps of it */
    bool evaluated;                        /* of those only the average */
} contents;

static bool has_part(const contents *wanted, const car_graph *graph, car_cut_part part, int param) {
    int state = (int)part - CAR_CUT_STATE_0;
    if (state < 0) {
        return part == CAR_CUT_WEIGHTS || wanted->previous;
    }
    if (wanted->evaluated && part != CAR_CUT_AVERAGE) {
        return false;
    }
    bool statistic = car_graph_param(graph, param)->role == CAR_PARAM_STATISTIC;
    return wanted->optimizer ? car_optimizer_keeps(wanted->optimizer, graph, param, state)
                             : state < wanted->states && !statistic;
}

static car_status allocate_part(car_cut *cut, car_cut_part part, const contents *wanted) {
    const car_graph *graph = car_program_graph(cut->program);
    int params = car_graph_param_count(graph);
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(car_program_context(cut->program), (size_t)params, sizeof(void *), &cut->part[part]));
    for (int p = 0; p < params; p++) {
        if (has_part(wanted, graph, part, p)) {
            CAR_TRY(car_arena_allocate(cut->arena, CAR_MEMORY_SNAPSHOT, car_program_param_bytes(cut->program, p),
                                       &cut->part[part][p]));
        }
    }
done:
    return status;
}

static car_status create(const car_program *program, car_arena *arena, const contents *wanted, car_cut **out) {
    car_cut *cut = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(car_program_context(program), 1, sizeof *cut, &cut));
    cut->program = program;
    cut->arena = arena;
    cut->numbers.norm = NAN;
    for (int part = 0; part < CAR_CUT_PARTS; part++) {
        CAR_TRY(allocate_part(cut, (car_cut_part)part, wanted));
    }
    *out = cut;
    cut = NULL;
done:
    car_cut_destroy(cut);
    return status;
}

car_status car_cut_create(const car_program *program, car_arena *arena, bool previous, int states, car_cut **out) {
    *out = NULL;
    if (states < 0 || states > MAX_STATES) {
        return car_context_fail(car_program_context(program), CAR_ERROR_ARGUMENT,
                                "a cut has 0 to %d states of the optimizer, not %d", MAX_STATES, states);
    }
    return create(program, arena, &(contents){.previous = previous, .states = states}, out);
}

car_status car_cut_create_for(const car_program *program, car_arena *arena, bool previous,
                              const car_optimizer_config *optimizer, car_cut **out) {
    return create(program, arena, &(contents){.previous = previous, .optimizer = optimizer}, out);
}

car_status car_cut_create_evaluated(const car_program *program, car_arena *arena, const car_optimizer_config *optimizer,
                                    car_cut **out) {
    return create(program, arena, &(contents){.optimizer = optimizer, .evaluated = true}, out);
}

void car_cut_destroy(car_cut *cut) {
    if (!cut) {
        return;
    }
    car_context *context = car_program_context(cut->program);
    int params = car_graph_param_count(car_program_graph(cut->program));
    for (int part = 0; part < CAR_CUT_PARTS; part++) {
        for (int p = 0; cut->part[part] && p < params; p++) {
            car_arena_release(cut->arena, cut->part[part][p]);
        }
        car_context_release(context, cut->part[part], (size_t)params, sizeof(void *));
    }
    car_context_release(context, cut, 1, sizeof *cut);
}

const car_program *car_cut_program(const car_cut *cut) {
    return cut->program;
}

car_cut_numbers car_cut_get_numbers(const car_cut *cut) {
    return cut->numbers;
}

void car_cut_set_numbers(car_cut *cut, const car_cut_numbers *numbers) {
    cut->numbers = *numbers;
}

static float *data_of(const car_cut *cut, car_cut_part part, int param) {
    bool inside = part < CAR_CUT_PARTS && param >= 0 && param < car_graph_param_count(car_program_graph(cut->program));
    return inside && cut->part[part] ? cut->part[part][param] : NULL;
}

float *car_cut_data(car_cut *cut, car_cut_part part, int param) {
    return data_of(cut, part, param);
}

bool car_cut_has(const car_cut *cut, car_cut_part part, int param) {
    return data_of(cut, part, param) != NULL;
}

static car_status fail_absent(const car_cut *cut, car_cut_part part, int param) {
    return car_context_fail(car_program_context(cut->program), CAR_ERROR_ARGUMENT, "the cut has no %s of parameter %d",
                            part_text(part), param);
}

car_status car_cut_get(const car_cut *cut, car_cut_part part, int param, float *canonical) {
    const float *stored = data_of(cut, part, param);
    return stored ? car_program_export_param(cut->program, param, stored, canonical) : fail_absent(cut, part, param);
}

car_status car_cut_set(car_cut *cut, car_cut_part part, int param, const float *canonical) {
    float *stored = data_of(cut, part, param);
    return stored ? car_program_import_param(cut->program, param, canonical, stored) : fail_absent(cut, part, param);
}
