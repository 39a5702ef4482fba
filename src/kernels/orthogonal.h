/* An approximation of the nearest orthogonal matrix: the Newton-Schulz iteration of Muon. */
#ifndef CAR_KERNELS_ORTHOGONAL_H
#define CAR_KERNELS_ORTHOGONAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAR_ORTHOGONAL_STEPS = 5 };

/* Floats of scratch besides the matrix itself: another matrix, and two squares of its smaller side. */
size_t car_orthogonal_scratch(int64_t rows, int64_t columns);

/* Floating-point operations as plain matrix products. */
double car_orthogonal_flops(int64_t rows, int64_t columns);
/* The same as computed here: of symmetric products, only the blocks on and below the diagonal. */
double car_orthogonal_flops_done(int64_t rows, int64_t columns);

/* Five steps of X <- a X + (b A + c A^2) X with A = X X^T, starting from X divided by its Frobenius norm: singular
 * values become about 1. Row-major; `x` is destroyed, the result is in scratch[0 .. rows * columns - 1]. Runs on the
 * calling thread, between car_kernels_enter and leave. False if the library could not multiply. */
bool car_orthogonalize(float *x, int64_t rows, int64_t columns, float *scratch);

#endif
