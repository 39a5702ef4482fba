/* packed:FILE: decoded images in one mapped file.
 *
 * The file is not trusted. Opening it checks all sizes and offsets against its length, and its tables against their
 * checksum. Pixels need no check: any byte is a valid one. */
#include "data/packed.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mapped.h"

/* As in PNG, the magic number contains bytes that a transfer in text mode would change. */
static const unsigned char magic[] = {0x89, 'C', 'A', 'R', 'P', '\r', '\n', 0x1a};

typedef struct packed {
    car_context *context;
    car_mapped file;
    car_packed_header header;
    const unsigned char *index, *labels, *names; /* pointers into the file; `index` may be NULL */
    const char **class_names;                    /* pointers into the file; NULL if there are none */
} packed;

/* ---- the header ------------------------------------------------------------------------------ */

void car_packed_put_header(const car_packed_header *header, unsigned char *bytes) {
    memset(bytes, 0, CAR_PACKED_HEADER);
    memcpy(bytes, magic, sizeof magic);
    car_bytes_put_u32(bytes + 8, CAR_PACKED_VERSION);
    car_bytes_put_u32(bytes + 12, CAR_PACKED_BYTE_ORDER);
    car_bytes_put_u64(bytes + 16, header->samples[CAR_SPLIT_TRAIN]);
    car_bytes_put_u64(bytes + 24, header->samples[CAR_SPLIT_EVALUATION]);
    car_bytes_put_u32(bytes + 32, header->classes);
    car_bytes_put_u32(bytes + 36, header->width);
    car_bytes_put_u32(bytes + 40, header->height);
    car_bytes_put_u32(bytes + 44, header->size);
    car_bytes_put_u64(bytes + 48, header->tables);
    car_bytes_put_u64(bytes + 56, header->names_bytes);
}

static car_packed_header get_header(const unsigned char *bytes) {
    return (car_packed_header){
        .samples =
            {[CAR_SPLIT_TRAIN] = car_bytes_get_u64(bytes + 16), [CAR_SPLIT_EVALUATION] = car_bytes_get_u64(bytes + 24)},
        .classes = car_bytes_get_u32(bytes + 32),
        .width = car_bytes_get_u32(bytes + 36),
        .height = car_bytes_get_u32(bytes + 40),
        .size = car_bytes_get_u32(bytes + 44),
        .tables = car_bytes_get_u64(bytes + 48),
        .names_bytes = car_bytes_get_u64(bytes + 56),
    };
}

void car_packed_checksum(const unsigned char *header, const unsigned char *tables, size_t tables_bytes,
                         char text[CAR_SHA256_TEXT]) {
    car_sha256 sha = car_sha256_begin();
    car_sha256_add(&sha, header, CAR_PACKED_CHECKSUM);
    car_sha256_add(&sha, tables, tables_bytes);
    car_sha256_end(&sha, text);
}

static car_status fail(const packed *p, const char *what) {
    return car_context_fail(p->context, CAR_ERROR_FORMAT,
                            "%s: %s; the file is cut short or damaged, pack the images again", p->file.path, what);
}

static car_status check_kind(const packed *p) {
    const unsigned char *bytes = p->file.data;
    if (p->file.size < CAR_PACKED_HEADER || memcmp(bytes, magic, sizeof magic) != 0) {
        return car_context_fail(p->context, CAR_ERROR_FORMAT,
                                "%s: not a file of packed images; 'carousel data pack' writes one", p->file.path);
    }
    if (car_bytes_get_u32(bytes + 8) != CAR_PACKED_VERSION || car_bytes_get_u32(bytes + 12) != CAR_PACKED_BYTE_ORDER) {
        return car_context_fail(p->context, CAR_ERROR_UNSUPPORTED,
                                "%s: has format version %u, but this program reads version %d; pack the images again",
                                p->file.path, car_bytes_get_u32(bytes + 8), CAR_PACKED_VERSION);
    }
    return CAR_OK;
}

/* Checks that the parts described by the header fill the file exactly. */
static car_status check_layout(packed *p) {
    const car_packed_header *h = &p->header;
    uint64_t size = p->file.size, pixels = 0;
    bool indexed = h->width == 0 && h->height == 0;
    uint64_t each = CAR_PACKED_LABEL + (indexed ? CAR_PACKED_ENTRY : 0);
    if (h->tables < CAR_PACKED_HEADER || h->tables > size || h->names_bytes > size - h->tables) {
        return fail(p, "its tables are outside the file");
    }
    /* So that no sum below can overflow: each is at most the file's size. */
    uint64_t rows = (size - h->tables - h->names_bytes) / each;
    if (h->samples[0] > rows || h->samples[1] > rows - h->samples[0] ||
        (h->samples[0] + h->samples[1]) * each != size - h->tables - h->names_bytes) {
        return fail(p, "its length differs from what its header says");
    }
    if (h->samples[CAR_SPLIT_TRAIN] == 0 || h->classes == 0) {
        return fail(p, "it has no images to train on, or no classes");
    }
    if (h->classes > CAR_MODEL_MOST_CLASSES) {
        return fail(p, "it has more classes than a model can have");
    }
    uint64_t samples = h->samples[0] + h->samples[1];
    car_packed_entry all = {.width = h->width, .height = h->height};
    if (!indexed &&
        (h->width == 0 || h->height == 0 || h->width > CAR_PACKED_LARGEST || h->height > CAR_PACKED_LARGEST ||
         __builtin_mul_overflow(samples, car_packed_image_bytes(&all), &pixels) ||
         pixels != h->tables - CAR_PACKED_HEADER)) {
        return fail(p, "its images are not where its header says");
    }
    const unsigned char *tables = p->file.data + h->tables;
    p->index = indexed ? tables : NULL;
    p->labels = tables + (indexed ? samples * CAR_PACKED_ENTRY : 0);
    p->names = p->labels + samples * CAR_PACKED_LABEL;
    return CAR_OK;
}

static car_status check_checksum(const packed *p) {
    char text[CAR_SHA256_TEXT];
    car_packed_checksum(p->file.data, p->file.data + p->header.tables, p->file.size - (size_t)p->header.tables, text);
    return memcmp(text, p->file.data + CAR_PACKED_CHECKSUM, CAR_SHA256_TEXT - 1) == 0
               ? CAR_OK
               : fail(p, "its checksum is wrong");
}

/* ---- the tables ------------------------------------------------------------------------------ */

/* Finds an image and its class. Size zero and label -1 mean that it was unreadable when packed. False if the tables
 * are invalid. */
static bool find_image(const packed *p, uint64_t number, car_packed_entry *out, int32_t *label) {
    const car_packed_header *h = &p->header;
    *label = (int32_t)car_bytes_get_u32(p->labels + number * CAR_PACKED_LABEL);
    if (p->index == NULL) {
        *out = (car_packed_entry){.width = h->width, .height = h->height};
        out->offset = CAR_PACKED_HEADER + number * car_packed_image_bytes(out);
    } else {
        const unsigned char *at = p->index + number * CAR_PACKED_ENTRY;
        *out = (car_packed_entry){car_bytes_get_u64(at), car_bytes_get_u32(at + 8), car_bytes_get_u32(at + 12)};
        if (*label == -1) {
            return out->offset == 0 && out->width == 0 && out->height == 0;
        }
    }
    return *label >= 0 && (uint32_t)*label < h->classes && out->width > 0 && out->height > 0 &&
           out->width <= CAR_PACKED_LARGEST && out->height <= CAR_PACKED_LARGEST && out->offset >= CAR_PACKED_HEADER &&
           out->offset <= h->tables && car_packed_image_bytes(out) <= h->tables - out->offset;
}

static car_status check_tables(const packed *p) {
    uint64_t samples = p->header.samples[0] + p->header.samples[1];
    car_packed_entry entry;
    int32_t label = 0;
    for (uint64_t n = 0; n < samples; n++) {
        if (!find_image(p, n, &entry, &label)) {
            return fail(p, "an image is outside the file, or has a class that does not exist");
        }
    }
    return CAR_OK;
}

/* Names are consecutive texts, each ending in a zero. */
static car_status find_names(packed *p) {
    const char *name = (const char *)p->names, *end = name + p->header.names_bytes;
    car_status status = CAR_OK;
    if (p->header.names_bytes == 0) {
        return CAR_OK;
    }
    if (p->header.classes > p->header.names_bytes) {
        return fail(p, "not every class has a name"); /* checked before memory for them is allocated */
    }
    CAR_TRY(car_context_allocate(p->context, p->header.classes, sizeof *p->class_names, &p->class_names));
    for (uint32_t c = 0; c < p->header.classes; c++) {
        const char *zero = name < end ? memchr(name, 0, (size_t)(end - name)) : NULL;
        if (zero == NULL) {
            return fail(p, "not every class has a name");
        }
        p->class_names[c] = name;
        name = zero + 1;
    }
    if (name != end) {
        status = fail(p, "not every class has a name");
    }
done:
    return status;
}

/* ---- the dataset ----------------------------------------------------------------------------- */

static void close_packed(void *state) {
    packed *p = state;
    car_context_release(p->context, p->class_names, p->header.classes, sizeof *p->class_names);
    car_mapped_close(&p->file);
    car_context_release(p->context, p, 1, sizeof *p);
}

static car_status open_packed(car_context *context, const char *path, const car_dataset_config *config,
                              car_dataset_info *info, void **state) {
    car_status status = CAR_OK;
    packed *p = NULL;
    (void)config; /* any model can use images of any size */
    *state = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *p, &p));
    p->context = context;
    CAR_TRY(car_mapped_open(context, path, &p->file));
    CAR_TRY(check_kind(p));
    p->header = get_header(p->file.data);
    CAR_TRY(check_layout(p));
    CAR_TRY(check_checksum(p));
    CAR_TRY(check_tables(p));
    CAR_TRY(find_names(p));
    info->domain = CAR_DOMAIN_IMAGES;
    for (int s = 0; s < CAR_SPLITS; s++) {
        info->samples[s] = (int64_t)p->header.samples[s];
    }
    info->classes = (int)p->header.classes;
    info->width = (int)p->header.width;
    info->height = (int)p->header.height;
    *state = p;
    p = NULL;
done:
    if (p != NULL) {
        close_packed(p);
    }
    return status;
}

static const char *class_name(const void *state, int index) {
    const packed *p = state;
    return p->class_names != NULL && p->class_names[index][0] != '\0' ? p->class_names[index] : NULL;
}

/* The header contains the checksum of the tables, and so covers all labels and sizes. */
static car_status digest_packed(const void *state, car_sha256 *sha) {
    const packed *p = state;
    car_status status = car_mapped_check(&p->file);
    if (status == CAR_OK) {
        car_sha256_add(sha, p->file.data, CAR_PACKED_HEADER);
    }
    return status;
}

static car_status read_packed(void *state, car_source_scratch *scratch, car_split split, int64_t sample,
                              const car_source_wish *wish, car_source_image *out) {
    const packed *p = state;
    uint64_t number = (uint64_t)sample + (split == CAR_SPLIT_TRAIN ? 0 : p->header.samples[CAR_SPLIT_TRAIN]);
    car_packed_entry entry;
    car_status status = car_mapped_check(&p->file);
    (void)scratch;
    (void)wish;
    if (status != CAR_OK) {
        return status;
    }
    if (!find_image(p, number, &entry, &out->image.label)) { /* it was valid when the file was opened */
        return car_context_fail(p->context, CAR_ERROR_IO, "%s was overwritten while it was in use", p->file.path);
    }
    if (entry.width == 0) {
        char name[64];
        snprintf(name, sizeof name, "%s image %lld", split == CAR_SPLIT_TRAIN ? "training" : "evaluation",
                 (long long)sample);
        car_source_describe(out, CAR_SOURCE_UNREADABLE, name, "could not be read when it was packed");
        return CAR_OK;
    }
    out->image.pixels = p->file.data + entry.offset;
    out->image.width = out->stored_width = (int)entry.width;
    out->image.height = out->stored_height = (int)entry.height;
    return CAR_OK;
}

const car_source_methods car_source_packed = {
    .open = open_packed,
    .close = close_packed,
    .class_name = class_name,
    .digest = digest_packed,
    .image = read_packed,
};
