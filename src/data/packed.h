/* The file of packed:FILE, as its writer and its reader see it. docs/formats.md describes it for everybody else. */
#ifndef CAR_PACKED_H
#define CAR_PACKED_H

#include "data/source.h"

enum {
    CAR_PACKED_VERSION = 1,
    CAR_PACKED_BYTE_ORDER = 0x01020304,
    CAR_PACKED_HEADER = 128,   /* bytes; the pixels follow */
    CAR_PACKED_CHECKSUM = 64,  /* where in the header it stands, as 64 hexadecimal digits */
    CAR_PACKED_ENTRY = 16,     /* bytes of the index for an image: offset, width, height */
    CAR_PACKED_LABEL = 4,      /* bytes */
    CAR_PACKED_LARGEST = 65535 /* pixels on a side */
};

typedef struct car_packed_header {
    uint64_t samples[CAR_SPLITS];
    uint32_t classes;
    uint32_t width, height; /* 0: there is an index */
    uint32_t size;          /* that the shorter sides were made; 0: images are as they were */
    uint64_t tables;        /* where they begin: index, labels, names */
    uint64_t names_bytes;
} car_packed_header;

typedef struct car_packed_entry {
    uint64_t offset; /* from the beginning of the file */
    uint32_t width, height;
} car_packed_entry;

static inline uint64_t car_packed_image_bytes(const car_packed_entry *entry) {
    return (uint64_t)3 * entry->width * entry->height;
}

/* Writes the header but for its checksum. */
void car_packed_put_header(const car_packed_header *header, unsigned char *bytes);
/* Over what stands in front of it, and the tables. */
void car_packed_checksum(const unsigned char *header, const unsigned char *tables, size_t tables_bytes,
                         char text[CAR_SHA256_TEXT]);

#endif
