/* The writer of safetensors files; safetensors.c describes the format.
 *
 * Shapes determine all offsets, so the header is written first, and data follow as they arrive. */
#include <cjson/cJSON.h>
#include <string.h>

#include "base/base.h"
#include "base/bf16.h"
#include "base/output.h"
#include "carousel/safetensors.h"

/* The header is padded with spaces to this, as in the reference implementation, to align the data. */
enum { LENGTH_BYTES = 8, ALIGNMENT = 8 };
static const int64_t max_elements = 1LL << 50; /* in total; keeps offsets exact as JSON's doubles */

struct car_safetensors_writer {
    car_context *context;
    car_output output;
    int count, added;
    int64_t *elements;            /* per tensor */
    car_safetensors_dtype *types; /* per tensor, as stored in the file */
};

/* ---- the header ------------------------------------------------------------------------------ */

static car_status check_entry(car_context *context, const char *path, const car_safetensors_entry *entries, int index) {
    const car_safetensors_entry *entry = &entries[index];
    if (entry->rank < 0 || entry->rank > CAR_SAFETENSORS_MAX_RANK) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "%s: tensor '%.100s' has %d dimensions; at most %d are supported", path, entry->name,
                                entry->rank, CAR_SAFETENSORS_MAX_RANK);
    }
    for (int d = 0; d < entry->rank; d++) {
        if (entry->shape[d] < 0) {
            return car_context_fail(context, CAR_ERROR_ARGUMENT, "%s: dimension %d of tensor '%.100s' is negative",
                                    path, d, entry->name);
        }
    }
    for (int other = 0; other < index; other++) {
        if (strcmp(entries[other].name, entry->name) == 0) {
            return car_context_fail(context, CAR_ERROR_ARGUMENT, "%s: two tensors are called '%.100s'", path,
                                    entry->name);
        }
    }
    if (strcmp(entry->name, "__metadata__") == 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "%s: '%s' is not allowed as the name of a tensor", path,
                                entry->name);
    }
    return CAR_OK;
}

/* Elements of a shape, or more than max_elements if there are too many. */
static int64_t count_elements(const car_safetensors_entry *entry) {
    double elements = 1;
    for (int d = 0; d < entry->rank; d++) {
        elements *= (double)entry->shape[d];
    }
    return elements <= (double)max_elements ? (int64_t)elements : max_elements + 1;
}

static car_safetensors_dtype type_of(const car_safetensors_entry *entry) {
    return entry->f64 ? CAR_SAFETENSORS_F64 : entry->bf16 ? CAR_SAFETENSORS_BF16 : CAR_SAFETENSORS_F32;
}

static int64_t bytes_of(car_safetensors_dtype type, int64_t elements) {
    size_t size = type == CAR_SAFETENSORS_F64    ? sizeof(double)
                  : type == CAR_SAFETENSORS_BF16 ? sizeof(car_bf16)
                                                 : sizeof(float);
    return elements * (int64_t)size;
}

/* Adds an entry to the header. `begin` is in bytes. */
static bool describe(cJSON *header, const car_safetensors_entry *entry, int64_t begin, int64_t elements) {
    cJSON *item = cJSON_AddObjectToObject(header, entry->name);
    car_safetensors_dtype type = type_of(entry);
    cJSON *dtype = cJSON_AddStringToObject(item, "dtype", car_safetensors_dtype_text(type));
    cJSON *shape = cJSON_AddArrayToObject(item, "shape"), *offsets = cJSON_AddArrayToObject(item, "data_offsets");
    bool made = dtype != NULL && shape != NULL && offsets != NULL;
    for (int d = 0; made && d < entry->rank; d++) {
        made = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)entry->shape[d]));
    }
    int64_t end = begin + bytes_of(type, elements);
    return made && cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)begin)) &&
           cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)end));
}

static bool describe_metadata(cJSON *header, const char *const *metadata) {
    cJSON *item = cJSON_AddObjectToObject(header, "__metadata__");
    bool made = item != NULL;
    for (int i = 0; made && metadata[i] != NULL; i += 2) {
        made = cJSON_AddStringToObject(item, metadata[i], metadata[i + 1]) != NULL;
    }
    return made;
}

/* Checks the entries, stores their sizes, and formats the header as JSON. */
static car_status make_header(car_safetensors_writer *writer, const char *path, const car_safetensors_entry *entries,
                              const char *const *metadata, char **text) {
    cJSON *header = cJSON_CreateObject();
    car_status status = CAR_OK;
    bool made = header != NULL && (metadata == NULL || describe_metadata(header, metadata));
    int64_t begin = 0, bytes = 0;
    for (int i = 0; made && i < writer->count; i++) {
        CAR_TRY(check_entry(writer->context, path, entries, i));
        writer->elements[i] = count_elements(&entries[i]);
        if (writer->elements[i] > max_elements - begin) {
            status =
                car_context_fail(writer->context, CAR_ERROR_ARGUMENT,
                                 "%s: the file would become too large with tensor '%.100s'", path, entries[i].name);
            goto done;
        }
        writer->types[i] = type_of(&entries[i]);
        made = describe(header, &entries[i], bytes, writer->elements[i]);
        begin += writer->elements[i];
        bytes += bytes_of(writer->types[i], writer->elements[i]);
    }
    *text = made ? cJSON_PrintUnformatted(header) : NULL;
    if (*text == NULL) {
        status = car_context_fail(writer->context, CAR_ERROR_MEMORY, "%s: out of memory for the header of %d tensors",
                                  path, writer->count);
    }
done:
    cJSON_Delete(header);
    return status;
}

static car_status write_header(car_safetensors_writer *writer, const char *text) {
    static const char spaces[ALIGNMENT] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
    size_t length = strlen(text), padded = car_round_up(length, ALIGNMENT);
    unsigned char bytes[LENGTH_BYTES];
    car_status status = CAR_OK;
    for (int i = 0; i < LENGTH_BYTES; i++) {
        bytes[i] = (unsigned char)((uint64_t)padded >> 8 * i);
    }
    CAR_TRY(car_output_write(&writer->output, bytes, sizeof bytes));
    CAR_TRY(car_output_write(&writer->output, text, length));
    CAR_TRY(car_output_write(&writer->output, spaces, padded - length));
done:
    return status;
}

/* ---- the writer ------------------------------------------------------------------------------ */

car_status car_safetensors_writer_create(car_context *context, const char *path, const car_safetensors_entry *entries,
                                         int count, const char *const *metadata, car_safetensors_writer **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    CAR_REQUIRE(context, out);
    if (count > 0) {
        CAR_REQUIRE(context, entries);
    }
    car_safetensors_writer *writer = NULL;
    char *text = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *writer, &writer));
    writer->context = context;
    writer->count = count;
    CAR_TRY(car_context_allocate(context, (size_t)count, sizeof *writer->elements, &writer->elements));
    CAR_TRY(car_context_allocate(context, (size_t)count, sizeof *writer->types, &writer->types));
    CAR_TRY(make_header(writer, path, entries, metadata, &text));
    CAR_TRY(car_output_open(context, path, &writer->output));
    CAR_TRY(text != NULL ? write_header(writer, text) : CAR_ERROR_MEMORY);
    *out = writer;
    writer = NULL;
done:
    cJSON_free(text);
    car_safetensors_writer_destroy(writer);
    return status;
}

static car_status write_rounded(car_safetensors_writer *writer, const float *data, int64_t elements) {
    enum { CHUNK = 4096 };
    car_bf16 halves[CHUNK];
    car_status status = CAR_OK;
    for (int64_t at = 0; status == CAR_OK && at < elements; at += CHUNK) {
        int64_t count = elements - at < CHUNK ? elements - at : CHUNK;
        for (int64_t i = 0; i < count; i++) {
            halves[i] = car_bf16_round(data[at + i]);
        }
        status = car_output_write(&writer->output, halves, (size_t)count * sizeof *halves);
    }
    return status;
}

car_status car_safetensors_writer_add(car_safetensors_writer *writer, const void *data) {
    CAR_REQUIRE(NULL, writer);
    CAR_REQUIRE(writer->context, data);
    if (writer->added == writer->count) {
        return car_context_fail(writer->context, CAR_ERROR_ARGUMENT, "%s: all %d tensors have already been added",
                                writer->output.path, writer->count);
    }
    int64_t elements = writer->elements[writer->added];
    car_safetensors_dtype type = writer->types[writer->added];
    car_status status = type == CAR_SAFETENSORS_BF16
                            ? write_rounded(writer, data, elements)
                            : car_output_write(&writer->output, data, (size_t)bytes_of(type, elements));
    writer->added += status == CAR_OK;
    return status;
}

car_status car_safetensors_writer_finish(car_safetensors_writer *writer, char *digest) {
    CAR_REQUIRE(NULL, writer);
    if (writer->added < writer->count) {
        return car_context_fail(writer->context, CAR_ERROR_ARGUMENT, "%s: only %d of %d tensors were added",
                                writer->output.path, writer->added, writer->count);
    }
    return car_output_finish(&writer->output, digest);
}

uint64_t car_safetensors_writer_bytes(const car_safetensors_writer *writer) {
    return writer->output.bytes;
}

void car_safetensors_writer_destroy(car_safetensors_writer *writer) {
    if (writer == NULL) {
        return;
    }
    car_output_close(&writer->output);
    car_context_release(writer->context, writer->types, (size_t)writer->count, sizeof *writer->types);
    car_context_release(writer->context, writer->elements, (size_t)writer->count, sizeof *writer->elements);
    car_context_release(writer->context, writer, 1, sizeof *writer);
}
