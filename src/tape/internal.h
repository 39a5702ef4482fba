/* The private definitions of weights, gradients and tapes. */
#ifndef CAR_TAPE_INTERNAL_H
#define CAR_TAPE_INTERNAL_H

#include "carousel/evaluate.h"
#include "carousel/tape.h"
#include "graph/range.h"
#include "kernels/program.h"

struct car_weights {
    const car_program *program;
    car_arena *arena;
    void **param; /* by parameter, stored layout: the form used for computing */
    /* By parameter: its fp32 values, where they are kept besides the form used for computing; else NULL. */
    void **master;
    void **derived; /* by operation; NULL if the kernel has no derived form */
};

struct car_gradients {
    const car_program *program;
    car_arena *arena;
    void **use; /* by use, in the stored layout of its parameter */
};

/* One micro-batch in progress. A rank that has only some stages sets the range of its operations. The tape then
 * holds tensors only as long as these operations need them, and what crosses the range's ends until it was handed
 * on. */
struct car_tape {
    const car_program *program;
    car_arena *arena;
    void **tensors;      /* by tensor, NULL if not alive */
    void **grad_buffers; /* by gradient buffer, NULL if not alive */
    uint64_t key;
    bool training;
    bool defers_loss;  /* see car_tape_defer_loss */
    int next_backward; /* the operation whose backward comes next; CAR_NONE before the first */
    double loss;
    double added;                 /* what the user's own stages have added to the loss so far */
    size_t live;                  /* bytes of all tensors and gradient buffers */
    const car_graph_range *range; /* NULL: the whole graph */
    struct car_track *track;      /* records the operations; NULL: no recording */
};

/* Allocate and free the memory of a tensor or gradient buffer. */
car_status car_tape_make(car_tape *tape, size_t bytes, void **block);
void car_tape_drop(car_tape *tape, void **block);

/* Leaves out the forward of a head with its loss in training. Its backward then computes the loss together with the
 * gradients, so the logits are computed once. Until then the loss is NaN. For callers that always run backward. */
void car_tape_defer_loss(car_tape *tape);

/* tape_range.c. A range must outlive the tapes that use it. */
/* Bytes of what crosses a cut, in stored layout. */
size_t car_tape_range_bytes(const car_program *program, const car_graph_range *range, bool above);
/* Copy what crosses a cut, one tensor after another in stored layout. Forward: tensors leave at the upper end and
 * enter at the lower one. Backward: gradients enter at the upper end and leave at the lower one. What leaves is held
 * no longer than needed. */
car_status car_tape_import(car_tape *tape, bool gradient, const void *data);
void car_tape_export(car_tape *tape, bool gradient, void *data);

/* Weights that point into memory owned by others; the view owns only its tables. */
car_status car_weights_open_view(const car_program *program, car_arena *arena, car_weights *view);
void car_weights_close_view(car_weights *view); /* may be all zero */
/* The initial values of one parameter, in stored layout. */
car_status car_weights_draw(const car_program *program, int param, uint64_t seed, float *stored);

/* CAR_ERROR_ARGUMENT for operations, or a parameter, that the graph does not have. */
car_status car_engine_check_range(const car_program *program, int begin, int end);
car_status car_engine_check_param(const car_program *program, int param);

/* Fills param[] with the parameters of an operation. */
void car_engine_bind_params(const car_weights *weights, const car_op *op, const void **param);

static inline bool car_engine_is_rounded(const car_program *program, int param) {
    return car_graph_param(car_program_graph(program), param)->copy == CAR_BF16;
}
/* Copy between a parameter's stored floats and the form used for computing, rounding if that is bf16. The range form
 * copies some elements only, of a parameter that is bf16 or float. */
void car_engine_round(const car_program *program, int param, const void *from, void *to);
void car_engine_round_range(const car_program *program, int param, int64_t first, int64_t count, const float *from,
                            void *to);
void car_engine_unround(const car_program *program, int param, const void *from, float *to);

/* ---- evaluate.c ------------------------------------------------------------------------------ */

/* Checks that a graph can be evaluated, with the user's own metric if `metric` is not NULL. */
car_status car_evaluate_check(const car_graph *graph, car_metric_function metric);

#endif
