/* The public file functions: see carousel/file.h. */
#include "carousel/file.h"

#include <assert.h>
#include <string.h>

#include "base/mapped.h"
#include "base/output.h"

static_assert((int)CAR_FILE_DIGEST == (int)CAR_SHA256_TEXT, "the public size of a digest");

struct car_file {
    car_context *context;
    car_output output;
    bool finished;
};

car_status car_file_create(car_context *context, const char *path, car_file **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    CAR_REQUIRE(context, out);
    car_file *file = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, 1, sizeof *file, &file));
    file->context = context;
    CAR_TRY(car_output_open(context, path, &file->output));
    *out = file;
    file = NULL;
done:
    car_file_close(file);
    return status;
}

static car_status check_open(const car_file *file) {
    return file->finished ? car_context_fail(file->context, CAR_ERROR_ARGUMENT,
                                             "%s is already finished and cannot be written to", file->output.path)
                          : CAR_OK;
}

car_status car_file_write(car_file *file, const void *data, size_t bytes) {
    CAR_REQUIRE(NULL, file);
    car_status status = check_open(file);
    return status == CAR_OK ? car_output_write(&file->output, data, bytes) : status;
}

car_status car_file_finish(car_file *file) {
    CAR_REQUIRE(NULL, file);
    car_status status = CAR_OK;
    CAR_TRY(check_open(file));
    CAR_TRY(car_output_finish(&file->output, NULL));
    file->finished = true;
done:
    return status;
}

void car_file_close(car_file *file) {
    if (file) {
        car_output_close(&file->output);
        car_context_release(file->context, file, 1, sizeof *file);
    }
}

car_status car_file_write_text(car_context *context, const char *path, const char *text) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    CAR_REQUIRE(context, text);
    return car_output_write_text(context, path, text);
}

car_status car_file_read_text(car_context *context, const char *path, size_t most, char **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    CAR_REQUIRE(context, out);
    car_mapped file = {0};
    char *text = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_mapped_open(context, path, &file));
    if (file.size > most || (file.size > 0 && memchr(file.data, 0, file.size))) {
        status =
            car_context_fail(context, CAR_ERROR_FORMAT, "%s: not a text file, or longer than %zu bytes", path, most);
        goto done;
    }
    /* Allocated like text, whose release finds the size from the length. */
    CAR_TRY(car_context_allocate(context, file.size + 1, 1, &text));
    if (file.size > 0) {
        memcpy(text, file.data, file.size);
    }
    *out = text;
done:
    car_mapped_close(&file);
    return status;
}

car_status car_file_digest(car_context *context, const char *path, char text[CAR_FILE_DIGEST]) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    car_mapped file = {0};
    car_sha256 sha = car_sha256_begin();
    car_status status = CAR_OK;
    CAR_TRY(car_mapped_open(context, path, &file));
    car_sha256_add(&sha, file.data, file.size);
    car_sha256_end(&sha, text);
done:
    car_mapped_close(&file);
    return status;
}
