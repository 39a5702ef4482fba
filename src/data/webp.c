/* WebP decoding with libwebp, row by row as far as the file goes. Whatever a file contains, the worst outcome is an
 * unreadable sample. */
#include "data/webp.h"

#include <stdio.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

/* A picture of one colour takes a few bytes at any size, so only large pictures are checked against their file size. */
enum { MOST_PIXELS_PER_BYTE = 1 << 12, FREE_PIXELS = 1 << 22, MOST_PIXELS = 1 << 28, RGB = 3 };

/* What the file shows: the whole picture, or the first frame of an animation on its canvas. */
typedef struct picture {
    WebPData data; /* of the frame */
    int width, height, left, top;
    bool moves;
} picture;

static bool refuse(car_source_image *out, const char *name, const char *reason) {
    car_source_describe(out, CAR_SOURCE_UNREADABLE, name, reason);
    return false;
}

static const char *reason_of(VP8StatusCode code) {
    switch (code) {
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
        return "it ends too early";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
        return "it uses a feature that libwebp does not support";
    case VP8_STATUS_BITSTREAM_ERROR:
        return "its data is corrupt";
    default:
        return "it is not a valid WebP file";
    }
}

/* ---- the file --------------------------------------------------------------------------------- */

static bool find_frame(const char *name, WebPDemuxer *demuxer, picture *p, car_source_image *out) {
    WebPIterator frame;
    if (!demuxer || !WebPDemuxGetFrame(demuxer, 1, &frame)) {
        return refuse(out, name, "the first frame of its animation is incomplete");
    }
    p->data = frame.fragment; /* points into the file */
    p->left = frame.x_offset;
    p->top = frame.y_offset;
    bool inside =
        p->left >= 0 && p->top >= 0 && frame.width <= p->width - p->left && frame.height <= p->height - p->top;
    WebPDemuxReleaseIterator(&frame);
    return inside || refuse(out, name, "its first frame is not inside the canvas");
}

static bool find_picture(const char *name, const uint8_t *file, size_t bytes, picture *p, car_source_image *out) {
    WebPBitstreamFeatures features;
    if (bytes >= 4 && memcmp(file, "RIFF", 4) != 0) {
        return refuse(out, name, "Not a WebP file");
    }
    VP8StatusCode code = WebPGetFeatures(file, bytes, &features);
    if (code != VP8_STATUS_OK) {
        return refuse(out, name, reason_of(code));
    }
    *p = (picture){.data = {file, bytes}, .width = features.width, .height = features.height};
    p->moves = features.has_animation != 0;
    uint64_t pixels = (uint64_t)p->width * (uint64_t)p->height;
    if (pixels > MOST_PIXELS || pixels > (uint64_t)MOST_PIXELS_PER_BYTE * bytes + FREE_PIXELS) {
        char reason[128];
        snprintf(reason, sizeof reason, "its %d x %d pixels are too many, or too many for its %zu bytes", p->width,
                 p->height, bytes);
        return refuse(out, name, reason);
    }
    if (!p->moves) {
        return true;
    }
    WebPDemuxState state;
    WebPDemuxer *demuxer = WebPDemuxPartial(&p->data, &state);
    bool found = find_frame(name, demuxer, p, out);
    WebPDemuxDelete(demuxer);
    return found;
}

/* ---- pixels ----------------------------------------------------------------------------------- */

/* Decodes what is there. Returns the number of decoded rows; *code says whether they are complete. */
static int decode(const picture *p, WebPDecoderConfig *config, VP8StatusCode *code) {
    int rows = 0;
    WebPIDecoder *decoder = WebPIDecode(NULL, 0, config);
    if (!decoder) {
        *code = VP8_STATUS_OUT_OF_MEMORY;
        return 0;
    }
    *code = WebPIAppend(decoder, p->data.bytes, p->data.size);
    WebPIDecGetRGB(decoder, &rows, NULL, NULL, NULL);
    WebPIDelete(decoder);
    return rows;
}

car_status car_webp_decode(const char *name, const uint8_t *file, size_t bytes, car_source_buffer *pixels,
                           car_source_image *out) {
    WebPDecoderConfig config;
    VP8StatusCode code = VP8_STATUS_OK;
    picture p;
    car_status status = CAR_OK;
    if (!WebPInitDecoderConfig(&config)) {
        return car_context_fail(pixels->context, CAR_ERROR_UNSUPPORTED,
                                "this libwebp is not compatible with the one that this program was built for");
    }
    if (!find_picture(name, file, bytes, &p, out)) {
        return CAR_OK;
    }
    size_t stride = RGB * (size_t)p.width, size = stride * (size_t)p.height;
    CAR_TRY(car_source_reserve(pixels, size));
    memset(pixels->data, 0, size);
    size_t before = (size_t)p.top * stride + RGB * (size_t)p.left;
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = pixels->data + before;
    config.output.u.RGBA.stride = (int)stride;
    config.output.u.RGBA.size = size - before;
    int rows = decode(&p, &config, &code);
    if (code == VP8_STATUS_OUT_OF_MEMORY) {
        CAR_TRY(car_context_fail(pixels->context, CAR_ERROR_MEMORY, "%s: libwebp ran out of memory", name));
    }
    out->image = (car_image){pixels->data, p.width, p.height, out->image.label};
    out->stored_width = p.width;
    out->stored_height = p.height;
    if (code != VP8_STATUS_OK) {
        car_source_describe(out, rows > 0 ? CAR_SOURCE_DAMAGED : CAR_SOURCE_UNREADABLE, name, reason_of(code));
    }
done:
    return status;
}
