/* Safetensors files: named tensors after a JSON header.
 *
 * Files are mapped, not read: opening costs only the header. It validates the header completely, so its contents can
 * be used without further checks. Do not change or truncate a file while it is open. */
#ifndef CAROUSEL_SAFETENSORS_H
#define CAROUSEL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "carousel/context.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define CAR_SAFETENSORS_MAX_RANK 8

/* Element types: name in the file, bytes per element. */
#define CAR_SAFETENSORS_DTYPE_LIST(X) \
    X(BOOL, 1)                        \
    X(U8, 1)                          \
    X(I8, 1)                          \
    X(U16, 2)                         \
    X(I16, 2)                         \
    X(F16, 2)                         \
    X(BF16, 2)                        \
    X(U32, 4)                         \
    X(I32, 4)                         \
    X(F32, 4)                         \
    X(U64, 8)                         \
    X(I64, 8)                         \
    X(F64, 8)

typedef enum car_safetensors_dtype {
#define CAR_SAFETENSORS_DTYPE_ENUM(name, bytes) CAR_SAFETENSORS_##name,
    CAR_SAFETENSORS_DTYPE_LIST(CAR_SAFETENSORS_DTYPE_ENUM)
#undef CAR_SAFETENSORS_DTYPE_ENUM
        CAR_SAFETENSORS_DTYPES
} car_safetensors_dtype;

/* The name as in the file's header, e.g. "F32"; never NULL. */
const char *car_safetensors_dtype_text(car_safetensors_dtype dtype);

typedef struct car_safetensors car_safetensors;

/* A tensor; valid while its file is open. */
typedef struct car_safetensors_tensor {
    const char *name;
    car_safetensors_dtype dtype;
    int rank; /* 0: a scalar */
    int64_t shape[CAR_SAFETENSORS_MAX_RANK];
    int64_t elements;
    const void *data; /* row-major, little-endian; may be unaligned, so copy from it */
    size_t bytes;
} car_safetensors_tensor;

/* Opens a file. CAR_ERROR_IO if it cannot be read, CAR_ERROR_FORMAT if it is not a valid safetensors file,
 * CAR_ERROR_UNSUPPORTED for other element types, or more dimensions than CAR_SAFETENSORS_MAX_RANK. */
car_status car_safetensors_open(car_context *context, const char *path, car_safetensors **out);
void car_safetensors_close(car_safetensors *file); /* NULL is allowed */

int car_safetensors_count(const car_safetensors *file);
/* In the order of their data; NULL outside 0..count-1. */
const car_safetensors_tensor *car_safetensors_at(const car_safetensors *file, int index);
const car_safetensors_tensor *car_safetensors_find(const car_safetensors *file, const char *name); /* NULL if absent */
/* A value of the header's free-form "__metadata__"; NULL if absent. */
const char *car_safetensors_metadata(const car_safetensors *file, const char *key);
/* The same by index, from 0; false after the last one. */
bool car_safetensors_metadata_at(const car_safetensors *file, int index, const char **key, const char **value);

/* Copies a tensor's bytes by reading the file, not through the mapping. If the file has been truncated, this is
 * CAR_ERROR_IO, while using tensor->data would kill the process. */
car_status car_safetensors_copy(const car_safetensors *file, const car_safetensors_tensor *tensor, void *to);
/* The same, converted to floats. CAR_ERROR_UNSUPPORTED unless the elements are F32, F16 or BF16. */
car_status car_safetensors_copy_floats(const car_safetensors *file, const car_safetensors_tensor *tensor, float *to);

/* ---- writing --------------------------------------------------------------------------------- */

/* Writes a file tensor by tensor, in the order given to create. The file appears at `path` only when finished.
 * Destroying an unfinished writer removes what was written. */
typedef struct car_safetensors_writer car_safetensors_writer;

typedef struct car_safetensors_entry {
    const char *name;
    int rank;
    const int64_t *shape;
    bool bf16; /* stored as BF16: floats are rounded when written */
    bool f64;  /* stored as F64, from doubles; otherwise F32 */
} car_safetensors_entry;

/* `metadata` is a list of key and value pairs ending in NULL, or NULL. */
car_status car_safetensors_writer_create(car_context *context, const char *path, const car_safetensors_entry *entries,
                                         int count, const char *const *metadata, car_safetensors_writer **out);
/* Writes the next tensor's elements, row-major: floats, or doubles if its entry has f64. */
car_status car_safetensors_writer_add(car_safetensors_writer *writer, const void *data);
/* Flushes the file to disk and renames it. `digest` (may be NULL) receives its SHA-256, 65 characters. */
car_status car_safetensors_writer_finish(car_safetensors_writer *writer, char *digest);
uint64_t car_safetensors_writer_bytes(const car_safetensors_writer *writer); /* written so far */
void car_safetensors_writer_destroy(car_safetensors_writer *writer);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
