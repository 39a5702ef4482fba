/* What the fuzz targets share: a context whose allocator refuses to believe in large files, and a folder.
 *
 * mapped.c takes the place of src/base/mapped.c in these programs: files are read into blocks of exactly their size,
 * so that AddressSanitizer sees every byte that is read outside. */
#ifndef CAR_FUZZ_H
#define CAR_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "carousel/context.h"

/* What libFuzzer calls. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A context that aborts when a block of more than `most` bytes is asked for. */
car_context *car_fuzz_context(size_t most);
/* Aborts if blocks are left. */
void car_fuzz_end(car_context *context);

/* "FOLDER/NAME" in a folder of this process; good until the next call. The folder itself for "". */
const char *car_fuzz_path(const char *name);
void car_fuzz_write(const char *name, const void *data, size_t size);
void car_fuzz_remove(const char *name);

/* Reads every byte, so that one outside is found. */
void car_fuzz_touch(const void *data, size_t size);

#endif
