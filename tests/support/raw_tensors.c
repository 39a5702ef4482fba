/* Hand-made safetensors files: see raw_tensors.h. */
#include "support/raw_tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void car_raw_add(car_raw_tensors *raw, const char *name, const char *dtype, int rank, const int64_t *shape,
                 const void *data, size_t bytes) {
    enum { ROOM = 1024 };
    raw->header = realloc(raw->header, raw->header_bytes + ROOM);
    raw->data = realloc(raw->data, raw->bytes + bytes + 1);
    assert_true(raw->header && raw->data);
    char *end = raw->header + raw->header_bytes;
    int length =
        snprintf(end, ROOM, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", raw->header_bytes ? "," : "{", name, dtype);
    for (int d = 0; d < rank; d++) {
        length += snprintf(end + length, ROOM - (size_t)length, "%s%lld", d ? "," : "", (long long)shape[d]);
    }
    length +=
        snprintf(end + length, ROOM - (size_t)length, "],\"data_offsets\":[%zu,%zu]}", raw->bytes, raw->bytes + bytes);
    assert_true(length < ROOM);
    raw->header_bytes += (size_t)length;
    memcpy(raw->data + raw->bytes, data, bytes);
    raw->bytes += bytes;
}

void car_raw_copy(car_raw_tensors *raw, const char *name, const car_safetensors_tensor *tensor) {
    car_raw_add(raw, name, car_safetensors_dtype_text(tensor->dtype), tensor->rank, tensor->shape, tensor->data,
                tensor->bytes);
}

void car_raw_finish(car_raw_tensors *raw, const char *path) {
    FILE *file = fopen(path, "wb");
    unsigned char length[8];
    assert_non_null(file);
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)((uint64_t)(raw->header_bytes + 1) >> 8 * i);
    }
    assert_int_equal(fwrite(length, 1, sizeof length, file), sizeof length);
    assert_int_equal(fwrite(raw->header, 1, raw->header_bytes, file), raw->header_bytes);
    assert_int_equal(fputc('}', file), '}');
    assert_int_equal(fwrite(raw->data, 1, raw->bytes, file), raw->bytes);
    assert_int_equal(fclose(file), 0);
    free(raw->header);
    free(raw->data);
    *raw = (car_raw_tensors){0};
}
