/* The Muon optimizer: which parameters it trains, and its costs. Select it in car_optimizer_config. */
#ifndef CAROUSEL_MUON_H
#define CAROUSEL_MUON_H

#include "carousel/optimizer.h"
#include "carousel/partition.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Whether Muon trains a parameter: hidden matrices and convolutions. AdamW trains the others: embeddings, the head,
 * norms, biases and other vectors. */
bool car_muon_takes(const car_graph *graph, int param);

/* A parameter as the matrix that is made orthogonal, in its stored order; a convolution is out x rest. `out_by_in`:
 * the rows are outputs. */
typedef struct car_muon_matrix {
    int64_t rows, columns;
    bool out_by_in;
} car_muon_matrix;
/* For a parameter that car_muon_takes. */
car_muon_matrix car_muon_matrix_of(const car_graph *graph, int param);

/* Floating-point operations of the Newton-Schulz iteration in one update of a stage. `done`: as computed, using
 * symmetry; otherwise as plain matrix products. */
double car_muon_flops(const car_partition *partition, int stage, bool done);

/* Bytes of optimizer state for each stage, for any optimizer: fills stage[0 .. stage_count - 1]. */
void car_optimizer_stage_bytes(const car_optimizer_config *config, const car_partition *partition, size_t *stage);

/* Scratch bytes for each thread that updates parameters, for canonical sizes; padded layouts need a little more. */
size_t car_muon_scratch_bytes(const car_graph *graph);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
