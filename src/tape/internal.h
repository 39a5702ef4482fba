/* The inside of weights, gradients and tapes. */
#ifndef CAR_TAPE_INTERNAL_H
#define CAR_TAPE_INTERNAL_H

#include "carousel/evaluate.h"
#include "carousel/tape.h"
#include "graph/range.h"
#include "kernels/program.h"

struct car_weights {
    const car_program *program;
    car_arena *arena;
    void **param;   /* per parameter, stored layout: what is computed with */
    void **master;  /* per parameter: its floats, where they are kept beside what is computed with; else NULL */
    void **derived; /* per operation, NULL where the kernel has no derived form */
};

struct car_gradients {
    const car_program *program;
    car_arena *arena;
    void **use; /* per use, stored layout of its parameter */
};

/* One micro-batch on its way. A rank that has only some stages gives the range of its operations, and the tape holds
 * tensors as long as these need them, and what crosses the range's ends until it was handed on. */
struct car_tape {
    const car_program *program;
    car_arena *arena;
    void **tensors;      /* per tensor, NULL if not alive */
    void **grad_buffers; /* of the gradients of tensors */
    uint64_t key;
    bool training;
    bool defers_loss; /* see car_tape_defer_loss */
    int next_backward; /* the operation whose backward is due, CAR_NONE before the first */
    double loss;
    double added;                 /* to the loss, by stages of one's own so far */
    size_t live;                  /* bytes of all tensors and gradient buffers */
    const car_graph_range *range; /* NULL: the whole graph */
    struct car_track *track;      /* notes the operations; NULL: nobody wants to know */
};

/* A tensor or a gradient buffer gets its memory, and gives it back. */
car_status car_tape_make(car_tape *tape, size_t bytes, void **block);
void car_tape_drop(car_tape *tape, void **block);

/* From now on a head with its loss computes nothing in a training's forward: its backward makes the loss together with the
 * gradients, so that its logits are made once. The loss is NaN until then. For whoever always runs backward, too. */
void car_tape_defer_loss(car_tape *tape);

/* tape_range.c. A range must outlive the tapes that have it. */
/* Bytes of the tensors that cross a cut, in stored layout; and whether that is what the graph says of them. */
size_t car_tape_range_bytes(const car_program *program, const car_graph_range *range, bool above);
/* What crosses a cut, one tensor after the other in stored layout. Forward: out of the range above it, or into it from
 * below. Backward: gradients, into it from above or out of it below. What goes out is held no longer than needed. */
car_status car_tape_import(car_tape *tape, bool gradient, const void *data);
void car_tape_export(car_tape *tape, bool gradient, void *data);

/* Weights that point into memory of somebody else's: only the tables are its own. */
car_status car_weights_open_view(const car_program *program, car_arena *arena, car_weights *view);
void car_weights_close_view(car_weights *view); /* also one that is all zero */
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
/* Copies between a parameter's stored floats and what is computed with, rounded if that is bf16: all of it, or, of one
 * that is, or whose elements are floats, a range of elements. */
void car_engine_round(const car_program *program, int param, const void *from, void *to);
void car_engine_round_range(const car_program *program, int param, int64_t first, int64_t count, const float *from,
                            void *to);
void car_engine_unround(const car_program *program, int param, const void *from, float *to);

/* ---- evaluate.c ------------------------------------------------------------------------------ */

/* Whether a graph can be evaluated at all, with a metric of one's own (NULL: none). */
car_status car_evaluate_check(const car_graph *graph, car_metric_function metric);

#endif
