/* The inside of weights and gradients, for the files of this folder. */
#ifndef CAR_ENGINE_INTERNAL_H
#define CAR_ENGINE_INTERNAL_H

#include "carousel/optimizer.h"
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
    void **tensors; /* per tensor, NULL if not alive */
    void **slots;   /* per gradient slot */
    uint64_t key;
    bool training;
    int next_backward; /* the operation whose backward is due, CAR_NONE before the first */
    double loss;
    double added;                 /* to the loss, by stages of one's own so far */
    size_t live;                  /* bytes of all tensors and slots */
    const car_graph_range *range; /* NULL: the whole graph */
    struct car_track *track;      /* notes the operations; NULL: nobody wants to know */
};

/* A tensor or a slot gets its memory, and gives it back. */
car_status car_tape_make(car_tape *tape, size_t bytes, void **block);
void car_tape_drop(car_tape *tape, void **block);

/* tape_range.c. A range must outlive the tapes that have it. */
/* Bytes of the tensors that cross a cut, in stored layout; and whether that is what the graph says of them. */
size_t car_tape_range_bytes(const car_program *program, const car_graph_range *range, bool above);
/* What crosses a cut, one tensor after the other in stored layout. Forward: out of the range above it, or into it from
 * below. Backward: gradients, into it from above or out of it below. What goes out is held no longer than needed. */
car_status car_tape_import(car_tape *tape, bool gradient, const void *data);
void car_tape_export(car_tape *tape, bool gradient, void *data);

/* The initial values of one parameter, in stored layout. */
car_status car_weights_draw(const car_program *program, int param, uint64_t seed, float *stored);

/* State only for the wanted parameters; NULL: for all. `threads` may update at a time: Muon has scratch for so many. */
car_status car_optimizer_create_for(const car_program *program, car_arena *arena, const car_optimizer_config *config,
                                    const bool *wanted, int threads, car_optimizer **out);

/* Of parameters that this optimizer has. Frozen ones are the caller's to copy. */
bool car_optimizer_is_frozen(const car_optimizer *optimizer, int param);
/* Around an update of some elements: before it, `from` may be where the average begins; after it, `to` is added. */
void car_optimizer_begin_average(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t update,
                                 const float *from);
void car_optimizer_add_to_average(car_optimizer *optimizer, int param, int64_t first, int64_t count, const float *to);
/* car_optimizer_update of some elements, in stored layout; the pointers are to the whole parameter. To the bit the same,
 * unless the parameter can only be updated as a whole. */
car_status car_optimizer_update_range(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                      double lr, double scale, const float *from, float *to, const float *sum);
/* The same for a parameter of doubles, in double, with its moving average. */
car_status car_optimizer_update_doubles(car_optimizer *optimizer, int param, int64_t first, int64_t count, int64_t step,
                                        double lr, double scale, const double *from, double *to, const double *sum);
bool car_optimizer_is_whole(const car_optimizer *optimizer, int param);

/* See car_cut_numbers. */
int64_t car_optimizer_since(const car_optimizer *optimizer);
void car_optimizer_set_since(car_optimizer *optimizer, int64_t since);

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

#endif
