/* The two proofs for a kernel case. Both say on stderr what is wrong: case, table, mode, tensor, error. */
#ifndef CAR_TEST_CHECK_H
#define CAR_TEST_CHECK_H

#include "kernels/harness.h"

/* That the table's gradients are those of its forward, by finite differences. */
bool car_check_gradients(car_context *context, const car_trial_table *table, const car_case *test);

/* That a table computes what the reference does, whatever is asked of it: gradients written, added, in place or not
 * wanted; that it keeps to its buffers, reads only what it declared, and computes the same bits every time. */
bool car_check_table(car_context *context, const car_trial_table *table, const car_trial_table *reference,
                     const car_case *test);

#endif
