/* The cost of operations: FLOPs, or seconds from a measured profile in a file.
 *
 *   {"format": "carousel-profile", "version": 1,
 *    "fingerprint": "91c0...",            hexadecimal; of the graph that was measured
 *    "operations": [{"name": "conv1", "forward": 0.00132, "backward": 0.00207}, ...]}      seconds
 *
 * A profile is valid for one graph only, because the same model at another batch or image size has other costs. The
 * fingerprint tells them apart. Files can come from anywhere, so everything in them is checked. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "plan/partition_internal.h"

static const char format_name[] = "carousel-profile";
enum { FORMAT_VERSION = 1, FINGERPRINT_DIGITS = 16, TEMPORARY_NAMES = 100, SUFFIX_CAPACITY = 48, NUMBER_CAPACITY = 32 };
static const off_t max_profile = 1 << 26; /* far more than any model needs; limits what is read into memory */

/* ---- costs ----------------------------------------------------------------------------------- */

static car_status allocate_costs(const car_graph *graph, car_costs *out) {
    car_context *context = car_graph_context(graph);
    car_status status = CAR_OK;
    *out = (car_costs){.count = car_graph_op_count(graph)};
    CAR_TRY(car_context_allocate(context, (size_t)out->count, sizeof *out->forward, &out->forward));
    CAR_TRY(car_context_allocate(context, (size_t)out->count, sizeof *out->backward, &out->backward));
done:
    if (status != CAR_OK) {
        car_costs_release(graph, out);
    }
    return status;
}

void car_costs_release(const car_graph *graph, car_costs *costs) {
    car_context *context = car_graph_context(graph);
    car_context_release(context, costs->backward, (size_t)costs->count, sizeof *costs->backward);
    car_context_release(context, costs->forward, (size_t)costs->count, sizeof *costs->forward);
    *costs = (car_costs){0};
}

car_status car_costs_from_flops(const car_graph *graph, car_costs *out) {
    CAR_REQUIRE(NULL, graph);
    CAR_REQUIRE(NULL, out);
    car_status status = allocate_costs(graph, out);
    for (int l = 0; status == CAR_OK && l < out->count; l++) {
        out->forward[l] = car_graph_op(graph, l)->flops_forward;
        out->backward[l] = car_graph_op(graph, l)->flops_backward;
    }
    return status;
}

car_status car_costs_check(const car_graph *graph, const car_costs *costs, car_status code, const char *origin) {
    car_context *context = car_graph_context(graph);
    double forward = 0, backward = 0;
    if (costs->count != car_graph_op_count(graph)) {
        return car_context_fail(context, code, "%s: there are costs of %d operations, but the graph has %d", origin,
                                costs->count, car_graph_op_count(graph));
    }
    for (int l = 0; l < costs->count; l++) {
        if (!(costs->forward[l] >= 0 && costs->backward[l] >= 0)) {
            return car_context_fail(context, code,
                                    "%s: operation %d, %s, has a negative or invalid cost: forward %g, backward %g",
                                    origin, l, car_graph_op(graph, l)->name, costs->forward[l], costs->backward[l]);
        }
        forward += costs->forward[l];
        backward += costs->backward[l];
    }
    if (!(forward > 0) || !isfinite(forward + backward)) {
        return car_context_fail(context, code, "%s: the total costs are invalid: forward %g, backward %g", origin,
                                forward, backward);
    }
    return CAR_OK;
}

/* ---- the fingerprint ------------------------------------------------------------------------- */

static uint64_t stir(uint64_t hash, int64_t value) {
    return car_random_u64(hash, (uint64_t)value);
}

static uint64_t stir_shape(uint64_t hash, car_shape shape) {
    hash = stir(hash, shape.rank);
    for (int d = 0; d < shape.rank; d++) {
        hash = stir(hash, shape.dim[d]);
    }
    return hash;
}

/* Only what changes the work: not the rate of a dropout, nor an epsilon. Sizes are in the shapes. */
static uint64_t stir_config(uint64_t hash, const car_op *op) {
    const car_op_config *config = &op->config;
    switch (op->kind) {
    case CAR_OP_CONV:
        return stir(stir(stir(hash, config->conv.kernel), config->conv.stride), config->conv.pad);
    case CAR_OP_MAXPOOL:
    case CAR_OP_AVGPOOL:
        return stir(stir(stir(hash, config->pool.kernel), config->pool.stride), config->pool.pad);
    case CAR_OP_BATCHNORM:
        return stir(hash, config->batchnorm.relu);
    case CAR_OP_LINEAR:
        return stir(hash, config->linear.in_by_out);
    case CAR_OP_GELU:
        return stir(hash, config->gelu.tanh);
    case CAR_OP_ATTENTION:
        return stir(stir(hash, config->attention.heads), config->attention.causal);
    case CAR_OP_SHORTCUT:
        return stir(hash, config->shortcut.stride);
    default:
        return hash;
    }
}

uint64_t car_graph_fingerprint(const car_graph *graph) {
    uint64_t hash = car_random_key(0, format_name);
    for (int v = 0; v < car_graph_tensor_count(graph); v++) {
        const car_tensor *tensor = car_graph_tensor(graph, v);
        hash = stir(stir(stir_shape(hash, tensor->shape), tensor->dtype), tensor->producer);
    }
    for (int p = 0; p < car_graph_param_count(graph); p++) {
        const car_param *param = car_graph_param(graph, p);
        hash = stir(stir_shape(car_random_key(hash, param->name), param->shape), param->role);
    }
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        const car_op *op = car_graph_op(graph, l);
        hash = stir_config(stir(car_random_key(hash, op->name), op->kind), op);
        for (int q = 0; q < op->input_count; q++) {
            hash = stir(hash, op->inputs[q]);
        }
        for (int p = 0; p < op->param_count; p++) {
            hash = stir(hash, op->params[p]);
        }
    }
    return hash;
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* Writes all digits. cJSON's own number format drops the last bit, and a plan from a profile would then differ from
 * the plan from the same costs in memory. */
static bool add_number(cJSON *object, const char *name, double value) {
    char text[NUMBER_CAPACITY];
    snprintf(text, sizeof text, "%.17g", value);
    char *comma = strchr(text, ','); /* some locales use a decimal comma */
    if (comma) {
        *comma = '.';
    }
    return cJSON_AddRawToObject(object, name, text) != NULL;
}

static cJSON *operation_to_json(const car_op *op, double forward, double backward) {
    cJSON *item = cJSON_CreateObject();
    if (!item || !cJSON_AddStringToObject(item, "name", op->name) || !add_number(item, "forward", forward) ||
        !add_number(item, "backward", backward)) {
        cJSON_Delete(item);
        return NULL;
    }
    return item;
}

/* NULL if memory runs out. */
static char *costs_to_text(const car_graph *graph, const car_costs *costs) {
    char hex[FINGERPRINT_DIGITS + 1], *text = NULL;
    cJSON *root = cJSON_CreateObject();
    snprintf(hex, sizeof hex, "%016" PRIx64, car_graph_fingerprint(graph));
    bool made = root && cJSON_AddStringToObject(root, "format", format_name) &&
                cJSON_AddNumberToObject(root, "version", FORMAT_VERSION) &&
                cJSON_AddStringToObject(root, "fingerprint", hex);
    cJSON *operations = made ? cJSON_AddArrayToObject(root, "operations") : NULL;
    made = operations != NULL;
    for (int l = 0; made && l < costs->count; l++) {
        cJSON *item = operation_to_json(car_graph_op(graph, l), costs->forward[l], costs->backward[l]);
        made = item && cJSON_AddItemToArray(operations, item);
        if (!made) {
            cJSON_Delete(item);
        }
    }
    if (made) {
        text = cJSON_Print(root);
    }
    cJSON_Delete(root);
    return text;
}

/* Creates a new file beside the final one, so that the rename stays inside one file system. Returns -1 with errno on
 * failure. */
static int open_temporary(const char *path, char *name, size_t capacity) {
    int descriptor = -1;
    errno = EEXIST;
    for (int i = 0; i < TEMPORARY_NAMES && descriptor < 0 && errno == EEXIST; i++) {
        snprintf(name, capacity, "%s.%ld.%d.tmp", path, (long)getpid(), i);
        descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    return descriptor;
}

static bool write_all(int descriptor, const char *text, size_t bytes) {
    while (bytes > 0) {
        ssize_t written = write(descriptor, text, bytes);
        if (written < 0 && errno != EINTR) {
            return false;
        }
        text += written > 0 ? written : 0;
        bytes -= written > 0 ? (size_t)written : 0;
    }
    return fsync(descriptor) == 0;
}

/* The file appears under its name completely or not at all; until then the old one stays. */
static car_status replace_file(car_context *context, const char *path, const char *text) {
    size_t capacity = strlen(path) + SUFFIX_CAPACITY;
    struct stat info;
    char *name = NULL;
    int descriptor = -1;
    car_status status = CAR_OK;
    /* A rename would replace a device by a file. */
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        return car_context_fail(context, CAR_ERROR_IO, "%s: not a regular file", path);
    }
    CAR_TRY(car_context_allocate(context, capacity, 1, &name));
    descriptor = open_temporary(path, name, capacity);
    bool written = descriptor >= 0 && write_all(descriptor, text, strlen(text));
    int cause = errno;
    if (descriptor >= 0 && close(descriptor) != 0 && written) {
        written = false;
        cause = errno;
    }
    if (written && rename(name, path) != 0) {
        written = false;
        cause = errno;
    }
    if (!written) {
        status = car_context_fail(context, CAR_ERROR_IO, "%s: cannot write: %s", path, strerror(cause));
        if (descriptor >= 0) {
            unlink(name);
        }
    }
done:
    car_context_release(context, name, capacity, 1);
    return status;
}

car_status car_costs_save(const car_graph *graph, const car_costs *costs, const char *path) {
    CAR_REQUIRE(NULL, graph);
    CAR_REQUIRE(NULL, costs);
    CAR_REQUIRE(NULL, path);
    car_context *context = car_graph_context(graph);
    char *text = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_costs_check(graph, costs, CAR_ERROR_ARGUMENT, "the costs"));
    text = costs_to_text(graph, costs);
    if (!text) {
        status = car_context_fail(context, CAR_ERROR_MEMORY, "%s: out of memory", path);
        goto done;
    }
    CAR_TRY(replace_file(context, path, text));
done:
    cJSON_free(text);
    return status;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Reads the whole file: *bytes bytes and a terminating zero; the allocation is *bytes + 1. */
static car_status read_file(car_context *context, const char *path, char **out, size_t *bytes) {
    car_status status = CAR_OK;
    struct stat info;
    char *text = NULL;
    size_t size = 0, got = 0;
    /* Non-blocking, so that a named pipe is refused below instead of waited for. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0 || fstat(descriptor, &info) != 0) {
        status = car_context_fail(context, CAR_ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(info.st_mode)) {
        status = car_context_fail(context, CAR_ERROR_IO, "%s: not a regular file", path);
        goto done;
    }
    if (info.st_size > max_profile) {
        status = car_context_fail(context, CAR_ERROR_FORMAT, "%s: too large for a profile, with %lld bytes", path,
                                  (long long)info.st_size);
        goto done;
    }
    size = (size_t)info.st_size;
    CAR_TRY(car_context_allocate(context, size + 1, 1, &text));
    while (got < size) {
        ssize_t part = read(descriptor, text + got, size - got);
        if (part == 0 || (part < 0 && errno != EINTR)) {
            status = car_context_fail(context, CAR_ERROR_IO, "%s: cannot read: %s", path,
                                      part == 0 ? "it became shorter" : strerror(errno));
            goto done;
        }
        got += part > 0 ? (size_t)part : 0;
    }
    *out = text;
    *bytes = size;
    text = NULL;
done:
    car_context_release(context, text, size + 1, 1);
    if (descriptor >= 0) {
        close(descriptor);
    }
    return status;
}

/* Checks that this is a profile, and of this graph. */
static car_status check_header(const car_graph *graph, const char *path, const cJSON *root) {
    car_context *context = car_graph_context(graph);
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(root, "format");
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(root, "version");
    const cJSON *fingerprint = cJSON_GetObjectItemCaseSensitive(root, "fingerprint");
    char own[FINGERPRINT_DIGITS + 1];
    if (!cJSON_IsString(format) || strcmp(format->valuestring, format_name) != 0) {
        return car_context_fail(context, CAR_ERROR_FORMAT, "%s: not a profile", path);
    }
    if (!cJSON_IsNumber(version) || version->valuedouble != FORMAT_VERSION) {
        return car_context_fail(context, CAR_ERROR_FORMAT, "%s: not a profile of version %d; measure it again", path,
                                FORMAT_VERSION);
    }
    if (!cJSON_IsString(fingerprint) || strlen(fingerprint->valuestring) != FINGERPRINT_DIGITS ||
        strspn(fingerprint->valuestring, "0123456789abcdef") != FINGERPRINT_DIGITS) {
        return car_context_fail(context, CAR_ERROR_FORMAT, "%s: its fingerprint is not %d hexadecimal digits", path,
                                FINGERPRINT_DIGITS);
    }
    snprintf(own, sizeof own, "%016" PRIx64, car_graph_fingerprint(graph));
    if (strcmp(fingerprint->valuestring, own) != 0) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "%s: measured with another model or other sizes (its fingerprint is %s, this model's "
                                "is %s); measure a profile of this model",
                                path, fingerprint->valuestring, own);
    }
    return CAR_OK;
}

static car_status read_operations(const car_graph *graph, const char *path, const cJSON *root, car_costs *costs) {
    car_context *context = car_graph_context(graph);
    const cJSON *operations = cJSON_GetObjectItemCaseSensitive(root, "operations"), *item = NULL;
    int l = 0;
    if (!cJSON_IsArray(operations) || cJSON_GetArraySize(operations) != costs->count) {
        return car_context_fail(context, CAR_ERROR_FORMAT, "%s: does not list the model's %d operations", path,
                                costs->count);
    }
    cJSON_ArrayForEach(item, operations) {
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name");
        const cJSON *forward = cJSON_GetObjectItemCaseSensitive(item, "forward");
        const cJSON *backward = cJSON_GetObjectItemCaseSensitive(item, "backward");
        const char *wanted = car_graph_op(graph, l)->name;
        if (!cJSON_IsString(name) || strcmp(name->valuestring, wanted) != 0 || !cJSON_IsNumber(forward) ||
            !cJSON_IsNumber(backward)) {
            return car_context_fail(context, CAR_ERROR_FORMAT,
                                    "%s: operation %d should be %s, with a forward and a backward", path, l, wanted);
        }
        costs->forward[l] = forward->valuedouble;
        costs->backward[l] = backward->valuedouble;
        l++;
    }
    return car_costs_check(graph, costs, CAR_ERROR_FORMAT, path);
}

car_status car_costs_load(const car_graph *graph, const char *path, car_costs *out) {
    CAR_REQUIRE(NULL, graph);
    CAR_REQUIRE(NULL, path);
    CAR_REQUIRE(NULL, out);
    car_context *context = car_graph_context(graph);
    car_costs costs = {0};
    cJSON *root = NULL;
    char *text = NULL;
    size_t bytes = 0;
    car_status status = CAR_OK;
    *out = (car_costs){0};
    CAR_TRY(read_file(context, path, &text, &bytes));
    root = cJSON_ParseWithLengthOpts(text, bytes + 1, NULL, true);
    if (!cJSON_IsObject(root)) {
        status = car_context_fail(context, CAR_ERROR_FORMAT, "%s: not a JSON object; is it cut short?", path);
        goto done;
    }
    CAR_TRY(check_header(graph, path, root));
    CAR_TRY(allocate_costs(graph, &costs));
    CAR_TRY(read_operations(graph, path, root, &costs));
    *out = costs;
    costs = (car_costs){0};
done:
    car_costs_release(graph, &costs);
    cJSON_Delete(root);
    car_context_release(context, text, bytes + 1, 1);
    return status;
}
