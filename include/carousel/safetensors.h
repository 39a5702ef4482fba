/* Safetensors files: named tensors behind a JSON header.
 *
 * A file that is read is mapped, not read: opening costs its header, and data are pages of the file. Everything
 * the header claims is checked when the file is opened, so that what is found in it can be used
 * without further care. A file must not be changed or cut while it is open. */
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

/* Name in the file, bytes of an element. */
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

/* As in the file's header: "F32"; never NULL. */
const char *car_safetensors_dtype_text(car_safetensors_dtype dtype);

typedef struct car_safetensors car_safetensors;

/* One tensor, valid as long as its file is open. */
typedef struct car_safetensors_tensor {
    const char *name;
    car_safetensors_dtype dtype;
    int rank; /* 0: a scalar */
    int64_t shape[CAR_SAFETENSORS_MAX_RANK];
    int64_t elements;
    const void *data; /* row-major, little-endian; the format does not align it, so copy out of it */
    size_t bytes;
} car_safetensors_tensor;

/* CAR_ERROR_IO if the file cannot be read, CAR_ERROR_FORMAT if it is not a sound safetensors file,
 * CAR_ERROR_UNSUPPORTED for element types and ranks other than the above. */
car_status car_safetensors_open(car_context *context, const char *path, car_safetensors **out);
void car_safetensors_close(car_safetensors *file); /* NULL is allowed */

int car_safetensors_count(const car_safetensors *file);
/* In the order of their data; NULL outside 0..count-1. */
const car_safetensors_tensor *car_safetensors_at(const car_safetensors *file, int index);
const car_safetensors_tensor *car_safetensors_find(const car_safetensors *file, const char *name); /* NULL if absent */
/* An entry of the header's free-form "__metadata__"; NULL if absent. */
const char *car_safetensors_metadata(const car_safetensors *file, const char *key);
/* The same by number, from 0; false behind the last one. */
bool car_safetensors_metadata_at(const car_safetensors *file, int index, const char **key, const char **value);

/* The same bytes as at tensor->data, by reading instead of through the mapping: a file that has become shorter is then
 * CAR_ERROR_IO, where touching the mapping would end the process. */
car_status car_safetensors_copy(const car_safetensors *file, const car_safetensors_tensor *tensor, void *to);
/* Likewise, as floats; CAR_ERROR_UNSUPPORTED unless the elements are F32, F16 or BF16. */
car_status car_safetensors_copy_floats(const car_safetensors *file, const car_safetensors_tensor *tensor, float *to);

/* ---- writing --------------------------------------------------------------------------------- */

/* A file is written tensor by tensor, in the order given to create, under another name beside `path`; finish flushes
 * and renames it. Destroying an unfinished writer removes what was written. */
typedef struct car_safetensors_writer car_safetensors_writer;

typedef struct car_safetensors_entry {
    const char *name;
    int rank;
    const int64_t *shape;
    bool bf16; /* floats that are rounded to BF16 when they are written; otherwise F32, or */
    bool f64;  /* doubles, F64 */
} car_safetensors_entry;

/* `metadata` is pairs of key and value, ended by NULL, or NULL. */
car_status car_safetensors_writer_create(car_context *context, const char *path, const car_safetensors_entry *entries,
                                         int count, const char *const *metadata, car_safetensors_writer **out);
/* The next tensor's elements, row-major: floats, or doubles if its entry says so. */
car_status car_safetensors_writer_add(car_safetensors_writer *writer, const void *data);
/* Flushes to the disk and renames. `digest` (may be NULL) gets the SHA-256 of the whole file, 65 characters. */
car_status car_safetensors_writer_finish(car_safetensors_writer *writer, char *digest);
uint64_t car_safetensors_writer_bytes(const car_safetensors_writer *writer); /* written so far */
void car_safetensors_writer_destroy(car_safetensors_writer *writer);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
