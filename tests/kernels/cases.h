/* The one list of kernel cases: what the tests check and what the bench times.
 *
 * A case is one operation with the shape of its input and its attributes. car_case_build makes a graph of it
 * whose last operation is the one meant; car_case_fill_* give its tensors values that depend on the case's
 * name alone and that suit the operation (away from kinks where it has any, valid labels and tokens). */
#ifndef CAR_TEST_CASES_H
#define CAR_TEST_CASES_H

#include "carousel/graph.h"

enum { CAR_CASE_INPUTS = 2 }; /* of an operation, at most; stages of one's own have tests of their own */

typedef struct car_case {
    const char *name;
    car_op_kind kind;
    car_shape shape;      /* of the first input; dimension 0 is the batch, or the rows of a matrix */
    car_op_config config; /* but for linear.tied: see below */
    bool residual;        /* batchnorm: has one */
    bool tied;            /* linear: uses the weight of an embedding */
    bool ignores;         /* cross-entropy: every third row does not count */
    bool first;           /* conv: the first of a network; what it reads is not blocked and has no gradient */
    int channels;         /* shortcut: of the output */
    int vocabulary, positions, width; /* embedding */
    double range, offset;             /* inputs are in offset - range .. offset + range; a range of 0 means 1 */
    double tolerance;                 /* of the relative RMS error against the reference; 0 means 1e-5 */
    /* For the bench. The tests run these with check_batch as dimension 0, as the reference would take minutes
     * for the whole; with check_batch = 0 not at all, where even that is too much. */
    bool speed;
    int check_batch;
} car_case;

int car_case_count(void);
const car_case *car_case_at(int index);

/* A graph, not finished, whose last operation is the case's. batch: dimension 0 instead of the case's own, or 0. */
car_status car_case_build(const car_case *test, int batch, car_context *context, car_graph **out);

/* Values in canonical layout (int32 for tokens and labels) of input q and of parameter p of the operation, and of
 * the gradient of its output. */
void car_case_fill_input(const car_case *test, const car_graph *graph, const car_op *op, int q, void *values);
void car_case_fill_param(const car_case *test, const car_graph *graph, const car_op *op, int p, float *values);
void car_case_fill_grad(const car_case *test, const car_graph *graph, const car_op *op, float *values);

#endif
