/* PNG decoding with libpng. Errors arrive by longjmp, and warnings are not printed. Whatever a file contains, the
 * worst outcome is an unreadable sample.
 *
 * libpng only unpacks bits; conversion to RGB happens here, because libpng lacks Pillow's rules for palettes and 16
 * bits. */
#include "data/png.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <png.h>

/* Deflate expands one byte to at most 1032. Small files get some bytes for free, and no image has more than
 * MOST_PIXELS. So a forged header cannot request much memory. */
enum { MOST_BYTES_PER_BYTE = 1032, FREE_BYTES = 1 << 18, MOST_PIXELS = 1 << 28 };
enum { RGB = 3, PALETTE = 256 };

typedef struct decoder {
    png_structp png;
    png_infop info;
    jmp_buf escape;
    const uint8_t *file;
    size_t bytes, used;
    int width, height, depth, kind, channels, passes;
    uint8_t *pixels, *row;
    uint8_t palette[PALETTE][RGB];
    int rows; /* rows of the first pass decoded so far */
    int pass;
    char reason[128];
} decoder;

/* ---- callbacks of libpng --------------------------------------------------------------------- */

static void on_error(png_structp png, png_const_charp message) {
    decoder *d = png_get_error_ptr(png);
    snprintf(d->reason, sizeof d->reason, "%s", message);
    longjmp(d->escape, 1);
}

static void on_warning(png_structp png, png_const_charp message) {
    (void)png, (void)message; /* unusual ancillary chunks do not affect the image */
}

static void on_read(png_structp png, png_bytep to, size_t bytes) {
    decoder *d = png_get_io_ptr(png);
    if (bytes > d->bytes - d->used) {
        png_error(png, "it ends too early");
    }
    memcpy(to, d->file + d->used, bytes);
    d->used += bytes;
}

/* ---- the parts; each may end by longjmp, so all state is in the decoder --------------------- */

static void check_size(decoder *d) {
    uint64_t pixels = (uint64_t)d->width * (uint64_t)d->height;
    uint64_t stored = (uint64_t)d->height * png_get_rowbytes(d->png, d->info);
    if (pixels > MOST_PIXELS || stored > (uint64_t)MOST_BYTES_PER_BYTE * d->bytes + FREE_BYTES) {
        snprintf(d->reason, sizeof d->reason, "its %d x %d pixels are too many, or too many for its %zu bytes",
                 d->width, d->height, d->bytes);
        longjmp(d->escape, 1);
    }
}

/* Missing palette entries are grey, as in Pillow. */
static void read_palette(decoder *d) {
    png_colorp colours = NULL;
    int count = 0;
    for (int i = 0; i < PALETTE; i++) {
        memset(d->palette[i], i, RGB);
    }
    if (png_get_PLTE(d->png, d->info, &colours, &count)) {
        for (int i = 0; i < count && i < PALETTE; i++) {
            const uint8_t entry[RGB] = {colours[i].red, colours[i].green, colours[i].blue};
            memcpy(d->palette[i], entry, RGB);
        }
    }
}

static void read_header(decoder *d) {
    png_structp png = d->png;
    png_set_read_fn(png, d, on_read);
    png_set_user_limits(png, 1 << 24, 1 << 24); /* limits each side; pixels are counted below */
    png_set_chunk_malloc_max(png, 1 << 22);
    png_set_chunk_cache_max(png, 64);
    png_read_info(png, d->info);
    d->width = (int)png_get_image_width(png, d->info);
    d->height = (int)png_get_image_height(png, d->info);
    d->depth = png_get_bit_depth(png, d->info);
    d->kind = png_get_color_type(png, d->info);
    d->channels = png_get_channels(png, d->info);
    check_size(d);
    if (d->kind == PNG_COLOR_TYPE_PALETTE) {
        read_palette(d);
    }
    if (d->depth < 8) {
        png_set_packing(png);
    }
    d->passes = png_set_interlace_handling(png);
    png_read_update_info(png, d->info);
}

/* One value of a row, 0 to 255. As in Pillow, 16-bit grey is clamped, not scaled. */
static uint8_t level_of(const decoder *d, const uint8_t *row, size_t index) {
    if (d->depth == 16) {
        bool grey = d->kind == PNG_COLOR_TYPE_GRAY;
        return grey ? (row[2 * index] ? 255 : row[2 * index + 1]) : row[2 * index];
    }
    return d->depth == 8 ? row[index] : (uint8_t)(row[index] * (255 / ((1 << d->depth) - 1)));
}

static void convert_row(const decoder *d, const uint8_t *row, uint8_t *rgb) {
    bool grey = d->channels < RGB;
    for (int x = 0; x < d->width; x++) {
        size_t first = (size_t)x * (size_t)d->channels;
        for (int c = 0; c < RGB; c++) {
            rgb[RGB * x + c] = d->kind == PNG_COLOR_TYPE_PALETTE ? d->palette[row[x]][c]
                                                                 : level_of(d, row, first + (grey ? 0 : (size_t)c));
        }
    }
}

/* In an interlaced image, all passes write to the same stored rows, which are converted after the last pass or a
 * failure. Blocks of an earlier pass then stand in for pixels of missing later ones. */
static void decode_rows(decoder *d) {
    size_t stride = png_get_rowbytes(d->png, d->info);
    for (d->pass = 0; d->pass < d->passes; d->pass++) {
        for (int y = 0; y < d->height; y++) {
            uint8_t *row = d->passes > 1 ? d->row + (size_t)y * stride : d->row;
            png_read_row(d->png, d->passes > 1 ? NULL : row, d->passes > 1 ? row : NULL);
            if (d->passes == 1) {
                convert_row(d, row, d->pixels + RGB * (size_t)y * (size_t)d->width);
            }
            d->rows += d->pass == 0;
        }
    }
}

static bool carry_out(decoder *d, void (*part)(decoder *)) {
    if (setjmp(d->escape)) {
        return false;
    }
    part(d);
    return true;
}

/* Decodes the image after its header has been read. */
static car_status decode_image(decoder *d, car_source_buffer *pixels, bool *whole) {
    size_t size = RGB * (size_t)d->width * (size_t)d->height, stride = png_get_rowbytes(d->png, d->info);
    size_t stored = d->passes > 1 ? stride * (size_t)d->height : stride;
    car_status status = CAR_OK;
    CAR_TRY(car_source_reserve(pixels, size + stored));
    d->pixels = pixels->data;
    d->row = pixels->data + size;
    memset(pixels->data, 0, size + stored);
    *whole = carry_out(d, decode_rows);
    for (int y = 0; d->passes > 1 && y < d->height; y++) {
        convert_row(d, d->row + (size_t)y * stride, d->pixels + RGB * (size_t)y * (size_t)d->width);
    }
done:
    return status;
}

car_status car_png_decode(const char *name, const uint8_t *file, size_t bytes, car_source_buffer *pixels,
                          car_source_image *out) {
    decoder d = {.file = file, .bytes = bytes};
    bool whole = false;
    car_status status = CAR_OK;
    d.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &d, on_error, on_warning);
    d.info = d.png ? png_create_info_struct(d.png) : NULL;
    if (!d.info) {
        CAR_TRY(car_context_fail(pixels->context, CAR_ERROR_MEMORY, "%s: libpng ran out of memory", name));
    }
    if (carry_out(&d, read_header)) {
        CAR_TRY(decode_image(&d, pixels, &whole));
        out->image = (car_image){d.pixels, d.width, d.height, out->image.label};
        out->stored_width = d.width;
        out->stored_height = d.height;
    }
    if (!whole) {
        /* Usable if the first pass of an interlaced image is complete, or a row of another one. */
        bool some = d.passes > 1 ? d.pass > 0 : d.rows > 0;
        car_source_describe(out, some ? CAR_SOURCE_DAMAGED : CAR_SOURCE_UNREADABLE, name, d.reason);
    }
done:
    png_destroy_read_struct(&d.png, &d.info, NULL);
    return status;
}
