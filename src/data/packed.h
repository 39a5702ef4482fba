/* The format of packed:FILE, for its writer and its reader. docs/formats.md describes it. */
#ifndef CAR_PACKED_H
#define CAR_PACKED_H

#include "data/source.h"

enum {
    CAR_PACKED_VERSION = 1,
    CAR_PACKED_BYTE_ORDER = 0x01020304,
    CAR_PACKED_HEADER = 128,   /* bytes of the header; pixels follow */
    CAR_PACKED_CHECKSUM = 64,  /* its offset in the header; 64 hexadecimal digits */
    CAR_PACKED_ENTRY = 16,     /* bytes per image in the index: offset, width, height */
    CAR_PACKED_LABEL = 4,      /* bytes per label */
    CAR_PACKED_LARGEST = 65535 /* pixels per side */
};

typedef struct car_packed_header {
    uint64_t samples[CAR_SPLITS];
    uint32_t classes;
    uint32_t width, height; /* 0 if there is an index */
    uint32_t size;          /* pixels of the shorter sides; 0: images keep their size */
    uint64_t tables;        /* offset of index, labels and names */
    uint64_t names_bytes;
} car_packed_header;

typedef struct car_packed_entry {
    uint64_t offset; /* from the start of the file */
    uint32_t width, height;
} car_packed_entry;

static inline uint64_t car_packed_image_bytes(const car_packed_entry *entry) {
    return (uint64_t)3 * entry->width * entry->height;
}

/* Writes the header without its checksum. */
void car_packed_put_header(const car_packed_header *header, unsigned char *bytes);
/* Computes the checksum of the header before it, and of the tables. */
void car_packed_checksum(const unsigned char *header, const unsigned char *tables, size_t tables_bytes,
                         char text[CAR_SHA256_TEXT]);

#endif
