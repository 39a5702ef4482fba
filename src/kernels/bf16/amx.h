/* Products of bf16 matrices with AMX, the processor's matrix unit. */
#ifndef CAR_KERNELS_BF16_AMX_H
#define CAR_KERNELS_BF16_AMX_H

#include "kernels/bf16/bf16.h"

/* Whether this process may use AMX: processor, system and build support it, and DNNL_MAX_CPU_ISA does not forbid it.
 * The answer never changes. */
bool car_amx_usable(void);
/* Whether oneDNN 2.6 would try to use AMX and crash, because the processor does not describe its tiles, as in some
 * virtual machines. */
bool car_amx_is_hidden(void);

/* Scratch bytes of a product, to be aligned to 64. */
size_t car_amx_scratch_bytes(const car_bf16_product_config *config);
void car_amx_multiply(const car_bf16_product_config *config, const car_bf16 *a, const car_bf16 *b, const float *bias,
                      void *c, void *scratch);
/* Whether the two functions above were compiled in. */
bool car_amx_is_built(void);

#endif
