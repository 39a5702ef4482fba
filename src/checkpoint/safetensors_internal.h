/* What messages about an open safetensors file need. */
#ifndef CAR_CHECKPOINT_SAFETENSORS_INTERNAL_H
#define CAR_CHECKPOINT_SAFETENSORS_INTERNAL_H

#include "carousel/safetensors.h"

car_context *car_safetensors_context(const car_safetensors *file);
const char *car_safetensors_path(const car_safetensors *file);

#endif
