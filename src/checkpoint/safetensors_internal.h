/* Shared by the files about safetensors. */
#ifndef CAR_CHECKPOINT_SAFETENSORS_INTERNAL_H
#define CAR_CHECKPOINT_SAFETENSORS_INTERNAL_H

#include <stdbool.h>

#include "carousel/safetensors.h"

car_context *car_safetensors_context(const car_safetensors *file);
const char *car_safetensors_path(const car_safetensors *file);

/* torch_file.c: recognises a file written by torch.save by its first bytes, and fails with instructions for
 * converting it. */
bool car_torch_file_recognize(const void *bytes, size_t size);
car_status car_torch_file_refuse(car_context *context, const char *path);

#endif
