/* The reader of safetensors files.
 *
 *   8 bytes   length n of the header, little-endian
 *   n bytes   JSON: {"NAME": {"dtype": "F32", "shape": [2,3], "data_offsets": [begin, end]}, ...}
 *   the rest  data; offsets count from here
 *
 * Files come from anywhere and are not trusted: each size is checked against the file before it is used. As the
 * format demands, the data of the tensors must cover the rest of the file exactly, without gaps or overlaps. */
#include "carousel/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/mapped.h"
#include "checkpoint/safetensors_internal.h"

enum { LENGTH_BYTES = 8 };
static const uint64_t max_header = 100000000; /* the format's own limit, which also bounds the parsed tree */
static const double max_integer = 0x1p53;     /* JSON's numbers are doubles: larger integers are not exact */

struct car_safetensors {
    car_context *context;
    car_mapped map;
    cJSON *header;    /* owns all names */
    cJSON *metadata;  /* inside header, or NULL */
    const char *data; /* where offsets start */
    size_t data_bytes;
    int count, capacity;                    /* tensors, and capacity of the arrays */
    car_safetensors_tensor *tensors;        /* in the order of their data */
    const car_safetensors_tensor **by_name; /* sorted, for searching */
};

static const struct {
    const char *text;
    size_t bytes;
} dtypes[] = {
#define DTYPE_ROW(name, bytes) {#name, bytes},
    CAR_SAFETENSORS_DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

const char *car_safetensors_dtype_text(car_safetensors_dtype dtype) {
    return dtype < CAR_SAFETENSORS_DTYPES ? dtypes[dtype].text : "unknown";
}

/* ---- the file -------------------------------------------------------------------------------- */

static car_status map_file(car_safetensors *file, const char *path) {
    car_status status = car_mapped_open(file->context, path, &file->map);
    if (status == CAR_OK && file->map.size < LENGTH_BYTES + 2) {
        status = car_context_fail(file->context, CAR_ERROR_FORMAT,
                                  "%s: too short for a safetensors file, with %zu bytes", path, file->map.size);
    }
    return status;
}

/* A zero character would silently shorten names. */
static bool has_zero_character(const char *text, size_t length) {
    const char *end = text + length;
    if (memchr(text, 0, length) != NULL) {
        return true;
    }
    for (const char *p = text; (p = memchr(p, '\\', (size_t)(end - p))) != NULL && end - p >= 6; p += 2) {
        if (memcmp(p, "\\u0000", 6) == 0) {
            return true;
        }
    }
    return false;
}

static car_status parse_header(car_safetensors *file, const char *path) {
    const unsigned char *bytes = file->map.data;
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) {
        length = length << 8 | bytes[i];
    }
    if (car_torch_file_recognize(bytes, file->map.size)) {
        return car_torch_file_refuse(file->context, path);
    }
    if (length > file->map.size - LENGTH_BYTES || length > max_header) {
        return car_context_fail(
            file->context, CAR_ERROR_FORMAT,
            "%s: the header claims %llu bytes, but the file has %zu; it is cut short or not a safetensors file", path,
            (unsigned long long)length, file->map.size);
    }
    const char *text = (const char *)bytes + LENGTH_BYTES, *end = NULL;
    file->data = text + length;
    file->data_bytes = file->map.size - LENGTH_BYTES - (size_t)length;
    if (length < 2 || text[0] != '{' || has_zero_character(text, (size_t)length)) {
        return car_context_fail(file->context, CAR_ERROR_FORMAT, "%s: the header is not a JSON object", path);
    }
    file->header = cJSON_ParseWithLengthOpts(text, (size_t)length, &end, false);
    while (file->header != NULL && end < file->data && (*end == ' ' || *end == '\n' || *end == '\t' || *end == '\r')) {
        end++;
    }
    if (file->header == NULL || end != file->data) {
        long long place = end != NULL ? (long long)(end - text) : 0;
        return car_context_fail(file->context, CAR_ERROR_FORMAT, "%s: the header is not valid JSON near byte %lld",
                                path, place);
    }
    return CAR_OK;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

/* Reads a non-negative integer from JSON. */
static bool read_integer(const cJSON *item, int64_t *out) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= max_integer) ||
        item->valuedouble != floor(item->valuedouble)) {
        return false;
    }
    *out = (int64_t)item->valuedouble;
    return true;
}

static car_status read_dtype(car_context *context, const char *path, const cJSON *item,
                             car_safetensors_tensor *tensor) {
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    if (!cJSON_IsString(dtype)) {
        return car_context_fail(context, CAR_ERROR_FORMAT, "%s: tensor '%.100s' has no dtype", path, tensor->name);
    }
    for (int i = 0; i < CAR_SAFETENSORS_DTYPES; i++) {
        if (strcmp(dtype->valuestring, dtypes[i].text) == 0) {
            tensor->dtype = (car_safetensors_dtype)i;
            return CAR_OK;
        }
    }
    return car_context_fail(context, CAR_ERROR_UNSUPPORTED,
                            "%s: tensor '%.100s' has elements of the unknown type '%.20s'", path, tensor->name,
                            dtype->valuestring);
}

/* Reads the shape and computes elements and bytes. Nothing can overflow, as all products stay below max_integer. */
static car_status read_shape(car_context *context, const char *path, const cJSON *item,
                             car_safetensors_tensor *tensor) {
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape"), *side = NULL;
    if (!cJSON_IsArray(shape)) {
        return car_context_fail(context, CAR_ERROR_FORMAT, "%s: tensor '%.100s' has no shape", path, tensor->name);
    }
    double elements = 1;
    cJSON_ArrayForEach(side, shape) {
        if (tensor->rank == CAR_SAFETENSORS_MAX_RANK) {
            return car_context_fail(context, CAR_ERROR_UNSUPPORTED, "%s: tensor '%.100s' has more than %d dimensions",
                                    path, tensor->name, CAR_SAFETENSORS_MAX_RANK);
        }
        if (!read_integer(side, &tensor->shape[tensor->rank])) {
            return car_context_fail(context, CAR_ERROR_FORMAT,
                                    "%s: dimension %d of tensor '%.100s' is not a valid size", path, tensor->rank,
                                    tensor->name);
        }
        elements *= (double)tensor->shape[tensor->rank];
        tensor->rank++;
    }
    double bytes = elements * (double)dtypes[tensor->dtype].bytes;
    if (!(bytes <= max_integer)) {
        return car_context_fail(context, CAR_ERROR_FORMAT, "%s: tensor '%.100s' is too large", path, tensor->name);
    }
    tensor->elements = (int64_t)elements;
    tensor->bytes = (size_t)bytes;
    return CAR_OK;
}

static car_status read_offsets(const car_safetensors *file, const char *path, const cJSON *item,
                               car_safetensors_tensor *tensor) {
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    int64_t begin = 0, end = 0;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !read_integer(cJSON_GetArrayItem(offsets, 0), &begin) || !read_integer(cJSON_GetArrayItem(offsets, 1), &end)) {
        return car_context_fail(file->context, CAR_ERROR_FORMAT, "%s: tensor '%.100s' has no data_offsets", path,
                                tensor->name);
    }
    if (begin > end || (uint64_t)end > file->data_bytes) {
        return car_context_fail(
            file->context, CAR_ERROR_FORMAT,
            "%s: tensor '%.100s' lies at bytes %lld to %lld of %zu; the file is cut short or damaged", path,
            tensor->name, (long long)begin, (long long)end, file->data_bytes);
    }
    if ((uint64_t)(end - begin) != tensor->bytes) {
        return car_context_fail(file->context, CAR_ERROR_FORMAT,
                                "%s: tensor '%.100s' has %lld bytes, but its shape and type need %zu", path,
                                tensor->name, (long long)(end - begin), tensor->bytes);
    }
    tensor->data = file->data + begin;
    return CAR_OK;
}

/* ---- all tensors ----------------------------------------------------------------------------- */

/* An empty tensor comes before one that starts at the same offset; ties are broken by name. */
static int compare_places(const void *a, const void *b) {
    const car_safetensors_tensor *left = a, *right = b;
    const char *left_data = left->data, *right_data = right->data;
    if (left_data != right_data) {
        return left_data < right_data ? -1 : 1;
    }
    if (left->bytes != right->bytes) {
        return left->bytes < right->bytes ? -1 : 1;
    }
    return strcmp(left->name, right->name);
}

static int compare_names(const void *a, const void *b) {
    const car_safetensors_tensor *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static car_status check_layout(const car_safetensors *file, const char *path) {
    const char *expected = file->data;
    for (int i = 0; i < file->count; i++) {
        const car_safetensors_tensor *tensor = &file->tensors[i];
        const char *data = tensor->data;
        if (data != expected) {
            return car_context_fail(file->context, CAR_ERROR_FORMAT, "%s: tensor '%.100s' %s", path, tensor->name,
                                    data < expected ? "overlaps another tensor" : "comes after a gap");
        }
        expected = data + tensor->bytes;
    }
    if (expected != file->data + file->data_bytes) {
        return car_context_fail(file->context, CAR_ERROR_FORMAT, "%s: the last %lld bytes belong to no tensor", path,
                                (long long)(file->data + file->data_bytes - expected));
    }
    return CAR_OK;
}

static car_status read_metadata(car_safetensors *file, const char *path, cJSON *item) {
    const cJSON *entry = NULL;
    if (!cJSON_IsObject(item) || file->metadata != NULL) {
        return car_context_fail(file->context, CAR_ERROR_FORMAT, "%s: __metadata__ is not one JSON object", path);
    }
    cJSON_ArrayForEach(entry, item) {
        if (!cJSON_IsString(entry)) {
            return car_context_fail(file->context, CAR_ERROR_FORMAT, "%s: entry '%.100s' of __metadata__ is not text",
                                    path, entry->string);
        }
    }
    file->metadata = item;
    return CAR_OK;
}

static car_status read_tensors(car_safetensors *file, const char *path) {
    car_status status = CAR_OK;
    cJSON *item = NULL;
    file->capacity = cJSON_GetArraySize(file->header) + 1; /* at least one, so that there is an array to sort */
    CAR_TRY(car_context_allocate(file->context, (size_t)file->capacity, sizeof *file->tensors, &file->tensors));
    CAR_TRY(car_context_allocate(file->context, (size_t)file->capacity, sizeof(void *), &file->by_name));
    cJSON_ArrayForEach(item, file->header) {
        if (strcmp(item->string, "__metadata__") == 0) {
            CAR_TRY(read_metadata(file, path, item));
            continue;
        }
        car_safetensors_tensor *tensor = &file->tensors[file->count++];
        tensor->name = item->string;
        CAR_TRY(read_dtype(file->context, path, item, tensor));
        CAR_TRY(read_shape(file->context, path, item, tensor));
        CAR_TRY(read_offsets(file, path, item, tensor));
    }
    car_sort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_places);
    CAR_TRY(check_layout(file, path));
    for (int i = 0; i < file->count; i++) {
        file->by_name[i] = &file->tensors[i];
    }
    car_sort(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names);
    for (int i = 1; i < file->count; i++) {
        if (compare_names(&file->by_name[i - 1], &file->by_name[i]) == 0) {
            status = car_context_fail(file->context, CAR_ERROR_FORMAT, "%s: tensor '%.100s' occurs twice", path,
                                      file->by_name[i]->name);
            goto done;
        }
    }
done:
    return status;
}

car_status car_safetensors_open(car_context *context, const char *path, car_safetensors **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    CAR_REQUIRE(context, out);
    car_status status = CAR_OK;
    car_safetensors *file = NULL;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *file, &file));
    file->context = context;
    CAR_TRY(map_file(file, path));
    CAR_TRY(parse_header(file, path));
    CAR_TRY(read_tensors(file, path));
    *out = file;
    file = NULL;
done:
    car_safetensors_close(file);
    return status;
}

void car_safetensors_close(car_safetensors *file) {
    if (file == NULL) {
        return;
    }
    car_context_release(file->context, file->by_name, (size_t)file->capacity, sizeof(void *));
    car_context_release(file->context, file->tensors, (size_t)file->capacity, sizeof *file->tensors);
    cJSON_Delete(file->header);
    car_mapped_close(&file->map);
    car_context_release(file->context, file, 1, sizeof *file);
}

/* ---- reading --------------------------------------------------------------------------------- */

car_context *car_safetensors_context(const car_safetensors *file) {
    return file->context;
}

const char *car_safetensors_path(const car_safetensors *file) {
    return file->map.path;
}

int car_safetensors_count(const car_safetensors *file) {
    return file ? file->count : 0;
}

const car_safetensors_tensor *car_safetensors_at(const car_safetensors *file, int index) {
    return file && index >= 0 && index < file->count ? &file->tensors[index] : NULL;
}

const car_safetensors_tensor *car_safetensors_find(const car_safetensors *file, const char *name) {
    const car_safetensors_tensor key = {.name = name}, *wanted = &key;
    if (!file || !name) {
        return NULL;
    }
    const car_safetensors_tensor **found =
        bsearch(&wanted, file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names);
    return found != NULL ? *found : NULL;
}

const char *car_safetensors_metadata(const car_safetensors *file, const char *key) {
    const cJSON *item = file ? cJSON_GetObjectItemCaseSensitive(file->metadata, key) : NULL;
    return item != NULL ? item->valuestring : NULL;
}

bool car_safetensors_metadata_at(const car_safetensors *file, int index, const char **key, const char **value) {
    const cJSON *item = file && file->metadata ? file->metadata->child : NULL;
    for (int i = 0; item != NULL && i < index; i++) {
        item = item->next;
    }
    *key = item != NULL ? item->string : NULL;
    *value = item != NULL ? item->valuestring : NULL;
    return item != NULL;
}

car_status car_safetensors_copy(const car_safetensors *file, const car_safetensors_tensor *tensor, void *to) {
    CAR_REQUIRE(NULL, file);
    CAR_REQUIRE(file->context, tensor);
    CAR_REQUIRE(file->context, to);
    size_t offset = (size_t)((const unsigned char *)tensor->data - file->map.data);
    for (size_t done = 0; done < tensor->bytes;) {
        ssize_t count = pread(file->map.descriptor, (char *)to + done, tensor->bytes - done, (off_t)(offset + done));
        if (count < 0 && errno != EINTR) {
            return car_context_fail(file->context, CAR_ERROR_IO, "%s: cannot read: %s", file->map.path,
                                    strerror(errno));
        }
        if (count == 0) {
            car_status status = car_mapped_check(&file->map);
            return status != CAR_OK
                       ? status
                       : car_context_fail(file->context, CAR_ERROR_IO, "%s: changed while it was read", file->map.path);
        }
        done += count > 0 ? (size_t)count : 0;
    }
    return CAR_OK;
}
