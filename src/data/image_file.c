/* Image files: reading, detecting the type, decoding, and preparing one file for a model. */
#include "data/image_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carousel/image.h"
#include "data/image.h"
#include "data/jpeg.h"
#include "data/png.h"
#include "data/webp.h"

/* ---- types ----------------------------------------------------------------------------------- */

typedef enum file_type { TYPE_JPEG, TYPE_PNG, TYPE_WEBP, TYPE_NONE } file_type;

static file_type type_by_name(const char *name) {
    static const struct {
        const char *ending;
        file_type type;
    } endings[] = {{".jpg", TYPE_JPEG}, {".jpeg", TYPE_JPEG}, {".png", TYPE_PNG}, {".webp", TYPE_WEBP}};
    const char *dot = strrchr(name, '.');
    for (size_t e = 0; dot && e < sizeof endings / sizeof *endings; e++) {
        if (strcasecmp(dot, endings[e].ending) == 0) {
            return endings[e].type;
        }
    }
    return TYPE_NONE;
}

bool car_image_has_known_ending(const char *name) {
    return type_by_name(name) != TYPE_NONE;
}

/* By the first bytes. If they are unknown, the decoder for the file's ending gets it, and will refuse it. */
static file_type find_type(const char *name, const uint8_t *file, size_t bytes) {
    if (bytes >= 3 && memcmp(file, "\xff\xd8\xff", 3) == 0) {
        return TYPE_JPEG;
    }
    if (bytes >= 8 && memcmp(file, "\x89PNG\r\n\x1a\n", 8) == 0) {
        return TYPE_PNG;
    }
    if (bytes >= 12 && memcmp(file, "RIFF", 4) == 0 && memcmp(file + 8, "WEBP", 4) == 0) {
        return TYPE_WEBP;
    }
    file_type named = type_by_name(name);
    return named == TYPE_NONE ? TYPE_JPEG : named;
}

car_status car_image_file_decode(const char *name, const uint8_t *file, size_t bytes, const car_source_wish *wish,
                                 car_source_buffer *pixels, car_source_image *out) {
    switch (find_type(name, file, bytes)) {
    case TYPE_PNG:
        return car_png_decode(name, file, bytes, pixels, out);
    case TYPE_WEBP:
        return car_webp_decode(name, file, bytes, pixels, out);
    default:
        return car_jpeg_decode(name, file, bytes, wish, pixels, out);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool read_all(int handle, int64_t size, uint8_t *to, int64_t *bytes) {
    int64_t have = 0;
    while (have < size) {
        ssize_t got = read(handle, to + have, (size_t)(size - have));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return false;
        }
        if (got == 0) {
            break; /* it was truncated meanwhile: decode what is there */
        }
        have += got;
    }
    *bytes = have;
    return true;
}

car_status car_image_file_read(car_context *context, int root, const char *path, car_source_buffer *buffer,
                               int64_t *bytes) {
    car_status status = CAR_OK;
    struct stat found;
    int handle = openat(root, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    *bytes = -1;
    if (handle < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
        CAR_TRY(car_context_fail(context, CAR_ERROR_IO, "%s: %s", path, strerror(errno)));
    }
    if (handle >= 0 && fstat(handle, &found) == 0) {
        CAR_TRY(car_source_reserve(buffer, (size_t)found.st_size));
        read_all(handle, found.st_size, buffer->data, bytes);
    }
done:
    if (handle >= 0) {
        int why = errno;
        close(handle);
        errno = why;
    }
    return status;
}

/* ---- one file for a model -------------------------------------------------------------------- */

struct car_image_opener {
    car_context *context;
    car_source_scratch scratch;
    car_image_pipeline pipeline;
};

car_status car_image_opener_create(car_context *context, const car_image_recipe *recipe, car_image_opener **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, recipe);
    CAR_REQUIRE(context, out);
    car_image_opener *opener = NULL;
    car_status status = car_context_allocate(context, 1, sizeof *opener, &opener);
    *out = opener;
    if (status == CAR_OK) {
        opener->context = context;
        opener->scratch.file.context = opener->scratch.pixels.context = context;
        car_image_pipeline_begin_with(&opener->pipeline, context, recipe);
    }
    return status;
}

void car_image_opener_destroy(car_image_opener *opener) {
    if (opener) {
        car_image_pipeline_end(&opener->pipeline);
        car_source_free(&opener->scratch.pixels);
        car_source_free(&opener->scratch.file);
        car_context_release(opener->context, opener, 1, sizeof *opener);
    }
}

car_status car_image_open(car_image_opener *opener, const char *path, float *sample, car_image_file *out) {
    CAR_REQUIRE(NULL, opener);
    CAR_REQUIRE(opener->context, path);
    CAR_REQUIRE(opener->context, sample);
    CAR_REQUIRE(opener->context, out);
    car_source_image image = {0};
    int64_t bytes = 0;
    car_status status = CAR_OK;
    *out = (car_image_file){0};
    CAR_TRY(car_image_file_read(opener->context, AT_FDCWD, path, &opener->scratch.file, &bytes));
    if (bytes < 0) {
        car_source_describe(&image, CAR_SOURCE_UNREADABLE, path, strerror(errno));
    } else {
        car_source_wish wish = car_image_pipeline_aim(&opener->pipeline, CAR_SPLIT_EVALUATION, 0, 0);
        CAR_TRY(car_image_file_decode(path, opener->scratch.file.data, (size_t)bytes, &wish, &opener->scratch.pixels,
                                      &image));
    }
    out->readable = image.state != CAR_SOURCE_UNREADABLE;
    memcpy(out->problem, image.problem, sizeof out->problem);
    if (out->readable) {
        CAR_TRY(car_image_pipeline_run(&opener->pipeline, &image, sample));
    }
done:
    return status;
}
