/* JPEG decoding with libjpeg. Errors arrive by longjmp, and warnings are kept as text; nothing is printed. Whatever
 * a file contains, the worst outcome is an unreadable sample. */
#include "data/jpeg.h"

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

#include <jerror.h>

/* A block of 64 pixels takes at least one bit of the file: at most 512 pixels per byte. Small files get some pixels
 * for free. So a forged header cannot request much memory. */
enum { MOST_PIXELS_PER_BYTE = 1024, FREE_PIXELS = 1 << 16, MOST_PIXELS = 1 << 28 };
/* Each scan of a progressive file passes over the whole image, but can be a few bytes long: limit the time. */
enum { MOST_SCANS = 200 };
enum { ROWS_AT_ONCE = 16 };

typedef struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    const uint8_t *file;
    size_t bytes;
    const car_source_wish *wish;
    int stored_width, stored_height, width, height;
    uint8_t *pixels, *cmyk;
    int rows; /* decoded so far */
    bool damaged, ended, out_of_memory;
    char reason[JMSG_LENGTH_MAX];
} decoder;

/* ---- callbacks of libjpeg -------------------------------------------------------------------- */

static decoder *decoder_of(j_common_ptr jpeg) {
    return jpeg->client_data;
}

static void on_error(j_common_ptr jpeg) {
    decoder *d = decoder_of(jpeg);
    d->out_of_memory = d->errors.msg_code == JERR_OUT_OF_MEMORY;
    d->errors.format_message(jpeg, d->reason);
    longjmp(d->escape, 1);
}

/* Level -1 is a warning; others are only informative. */
static void on_message(j_common_ptr jpeg, int level) {
    decoder *d = decoder_of(jpeg);
    int code = d->errors.msg_code;
    /* Unusual headers do not affect the image. */
    if (level >= 0 || code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM || code == JWRN_NOT_SEQUENTIAL) {
        return;
    }
    if (!d->damaged) {
        d->errors.format_message(jpeg, d->reason);
        d->damaged = true;
    }
    /* Once the end of the file is reached, it is reported repeatedly. Only the first time tells how far decoding
     * got. */
    if (code == JWRN_JPEG_EOF && !d->ended) {
        d->ended = true;
        if (d->jpeg.input_scan_number <= 1 && d->jpeg.input_iMCU_row == 0) {
            snprintf(d->reason, sizeof d->reason, "it ends before the first row is complete");
            longjmp(d->escape, 1);
        }
    }
}

static void on_print(j_common_ptr jpeg) {
    (void)jpeg;
}

static void on_progress(j_common_ptr jpeg) {
    decoder *d = decoder_of(jpeg);
    if (d->jpeg.input_scan_number > MOST_SCANS) {
        snprintf(d->reason, sizeof d->reason, "it has more than %d scans", MOST_SCANS);
        longjmp(d->escape, 1);
    }
}

/* ---- the parts; each may end by longjmp, so all state is in the decoder --------------------- */

static void refuse(decoder *d, const char *reason) {
    snprintf(d->reason, sizeof d->reason, "%s", reason);
    longjmp(d->escape, 1);
}

static void check_size(decoder *d) {
    uint64_t pixels = (uint64_t)d->jpeg.image_width * d->jpeg.image_height;
    if (pixels > MOST_PIXELS || pixels > (uint64_t)MOST_PIXELS_PER_BYTE * d->bytes + FREE_PIXELS) {
        snprintf(d->reason, sizeof d->reason, "its %u x %u pixels are too many, or too many for its %zu bytes",
                 d->jpeg.image_width, d->jpeg.image_height, d->bytes);
        longjmp(d->escape, 1);
    }
}

static void choose_colours(decoder *d) {
    switch (d->jpeg.jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_RGB:
    case JCS_YCbCr:
        d->jpeg.out_color_space = JCS_RGB;
        break;
    case JCS_CMYK:
    case JCS_YCCK:
        d->jpeg.out_color_space = JCS_CMYK;
        break;
    default:
        refuse(d, "it has an unknown colour space");
    }
}

static void read_header(decoder *d) {
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    jpeg->err = jpeg_std_error(&d->errors);
    d->errors.error_exit = on_error;
    d->errors.emit_message = on_message;
    d->errors.output_message = on_print;
    jpeg->client_data = d; /* jpeg_create_decompress preserves it */
    jpeg_create_decompress(jpeg);
    d->progress.progress_monitor = on_progress;
    jpeg->progress = &d->progress;
    jpeg_mem_src(jpeg, d->file, (unsigned long)d->bytes);
    jpeg_read_header(jpeg, TRUE);
    check_size(d);
    choose_colours(d);
    d->stored_width = (int)jpeg->image_width;
    d->stored_height = (int)jpeg->image_height;
    jpeg->scale_num = 1;
    if (d->wish->shrink) {
        jpeg->scale_denom = (unsigned)d->wish->shrink(d->wish->user, d->stored_width, d->stored_height);
    }
    jpeg_calc_output_dimensions(jpeg);
    d->width = (int)jpeg->output_width;
    d->height = (int)jpeg->output_height;
}

/* CMYK as Adobe's programs store it, and as everyone therefore reads it: inverted, 255 means no ink. Rounded as in
 * Pillow. */
static void convert_cmyk(const uint8_t *cmyk, int width, uint8_t *rgb) {
    for (int x = 0; x < width; x++) {
        int key = cmyk[4 * x + 3];
        for (int c = 0; c < 3; c++) {
            int ink = (255 - cmyk[4 * x + c]) * key + 128;
            rgb[3 * x + c] = (uint8_t)(key - (((ink >> 8) + ink) >> 8));
        }
    }
}

static void decode_rows(decoder *d) {
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    size_t stride = 3 * (size_t)d->width;
    jpeg_start_decompress(jpeg);
    while (d->rows < d->height) {
        JSAMPROW rows[ROWS_AT_ONCE];
        int count = 0;
        for (; count < ROWS_AT_ONCE && d->rows + count < d->height; count++) {
            rows[count] = d->pixels + (size_t)(d->rows + count) * stride;
        }
        if (d->cmyk) {
            rows[0] = d->cmyk;
            count = 1;
        }
        int got = (int)jpeg_read_scanlines(jpeg, rows, (JDIMENSION)count);
        if (d->cmyk && got > 0) {
            convert_cmyk(d->cmyk, d->width, d->pixels + (size_t)d->rows * stride);
        }
        d->rows += got;
    }
}

/* Runs a part; false if libjpeg gave up. */
static bool carry_out(decoder *d, void (*part)(decoder *)) {
    if (setjmp(d->escape)) {
        return false;
    }
    part(d);
    return true;
}

car_status car_jpeg_decode(const char *name, const uint8_t *file, size_t bytes, const car_source_wish *wish,
                           car_source_buffer *pixels, car_source_image *out) {
    decoder d = {.file = file, .bytes = bytes, .wish = wish};
    car_status status = CAR_OK;
    bool whole = false;
    if (carry_out(&d, read_header)) {
        size_t size = 3 * (size_t)d.width * (size_t)d.height;
        bool cmyk = d.jpeg.out_color_space == JCS_CMYK;
        CAR_TRY(car_source_reserve(pixels, size + (cmyk ? 4 * (size_t)d.width : 0)));
        d.pixels = pixels->data;
        d.cmyk = cmyk ? pixels->data + size : NULL;
        whole = carry_out(&d, decode_rows);
        out->image = (car_image){d.pixels, d.width, d.height, out->image.label};
        out->stored_width = d.stored_width;
        out->stored_height = d.stored_height;
    }
    if (d.out_of_memory) {
        CAR_TRY(car_context_fail(pixels->context, CAR_ERROR_MEMORY, "%s: libjpeg ran out of memory", name));
    }
    if (!whole || d.damaged) {
        car_source_describe(out, whole ? CAR_SOURCE_DAMAGED : CAR_SOURCE_UNREADABLE, name, d.reason);
    }
done:
    jpeg_destroy_decompress(&d.jpeg);
    return status;
}
