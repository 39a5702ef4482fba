/* Hand-made safetensors files, including what our own writer would not write. */
#ifndef CAR_TESTS_RAW_TENSORS_H
#define CAR_TESTS_RAW_TENSORS_H

#include "carousel/safetensors.h"

/* All zero is an empty file. */
typedef struct car_raw_tensors {
    char *header, *data;
    size_t header_bytes, bytes;
} car_raw_tensors;

void car_raw_add(car_raw_tensors *raw, const char *name, const char *dtype, int rank, const int64_t *shape,
                 const void *data, size_t bytes);
/* Adds a tensor of an open file under another name. */
void car_raw_copy(car_raw_tensors *raw, const char *name, const car_safetensors_tensor *tensor);
/* Writes the file and resets `raw`. */
void car_raw_finish(car_raw_tensors *raw, const char *path);

#endif
