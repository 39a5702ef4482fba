/* Muon: which parameters it trains, and what that takes. car_optimizer_config chooses it. */
#ifndef CAROUSEL_MUON_H
#define CAROUSEL_MUON_H

#include "carousel/optimizer.h"
#include "carousel/partition.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Whether Muon itself trains a parameter: hidden matrices and convolutions. Embeddings, the head, norms, biases and
 * other vectors are AdamW's. */
bool car_muon_takes(const car_graph *graph, int param);

/* A parameter as the matrix that is made orthogonal, as it lies in memory: a convolution is out x rest. `out_by_in`:
 * rows are outputs. */
typedef struct car_muon_matrix {
    int64_t rows, columns;
    bool out_by_in;
} car_muon_matrix;
car_muon_matrix car_muon_matrix_of(const car_graph *graph, int param);

/* Of one update of a stage's parameters: floating-point operations of Newton and Schulz's iteration, as plain products
 * and as they are computed, where symmetry is used. */
double car_muon_flops(const car_partition *partition, int stage, bool done);

/* What any optimizer keeps of each stage's parameters, in bytes: stage[0 .. stage_count - 1]. */
void car_optimizer_stage_bytes(const car_optimizer_config *config, const car_partition *partition, size_t *stage);

/* Scratch bytes that each thread needs which updates parameters of these stages. Of canonical sizes: a padded layout
 * adds some. */
size_t car_muon_scratch_bytes(const car_graph *graph);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
