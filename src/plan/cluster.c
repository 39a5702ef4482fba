/* Reads the description of a cluster from JSON. Whatever the file contains, the result is a valid cluster or an
 * error message that names the field. */
#include "carousel/cluster.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "base/mapped.h"

enum { MOST_BYTES = 1 << 20 }; /* the largest description that is read */

/* A number in the description, its bounds, and where to store it. */
typedef struct field {
    const char *name, *unit;
    double least, most;
    bool whole, required;
    double *target;
} field;

typedef struct reader {
    car_context *context;
    const char *origin;
} reader;

/* `group` is the object that contains the field, "" for the outermost. */
static car_status read_number(const reader *r, const char *group, const field *f, const cJSON *item) {
    const char *dot = *group ? "." : "";
    double value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    /* Written so that NaN fails too. */
    if (!(value >= f->least && value <= f->most) || (f->whole && floor(value) != value)) {
        return car_context_fail(r->context, CAR_ERROR_FORMAT, "%s: \"%s%s%s\" must be %s from %g to %g (%s)", r->origin,
                                group, dot, f->name, f->whole ? "a whole number" : "a number", f->least, f->most,
                                f->unit);
    }
    *f->target = value;
    return CAR_OK;
}

static const field *find_field(const field *fields, int count, const char *name) {
    for (int f = 0; f < count; f++) {
        if (strcmp(fields[f].name, name) == 0) {
            return &fields[f];
        }
    }
    return NULL;
}

/* True if the same name occurs twice: which one counts would depend on the reader. */
static bool is_repeated(const cJSON *item) {
    for (const cJSON *later = item->next; later; later = later->next) {
        if (strcmp(later->string, item->string) == 0) {
            return true;
        }
    }
    return false;
}

static car_status refuse(const reader *r, const char *group, const char *name, const char *why) {
    return car_context_fail(r->context, CAR_ERROR_FORMAT, "%s: \"%s%s%.64s\" %s", r->origin, group, *group ? "." : "",
                            name, why);
}

/* Reads the fields of an object. Fields that are not numbers go to `other`, which says whether it knows the name. */
typedef car_status (*other_function)(const reader *r, const cJSON *item, bool *known, car_cluster *out);

static car_status read_object(const reader *r, const char *group, const cJSON *object, const field *fields, int count,
                              other_function other, car_cluster *out) {
    car_status status = CAR_OK;
    for (const cJSON *item = object->child; item; item = item->next) {
        const field *f = find_field(fields, count, item->string);
        bool known = f != NULL;
        if (is_repeated(item)) {
            return refuse(r, group, item->string, "occurs twice");
        }
        if (f) {
            CAR_TRY(read_number(r, group, f, item));
        } else if (other) {
            CAR_TRY(other(r, item, &known, out));
        }
        if (!known) {
            return refuse(r, group, item->string, "is not a field of a cluster; docs/plan.md lists them");
        }
    }
    for (int f = 0; f < count; f++) {
        if (fields[f].required && !cJSON_GetObjectItemCaseSensitive(object, fields[f].name)) {
            return refuse(r, group, fields[f].name, "is missing");
        }
    }
done:
    return status;
}

static car_status read_link(const reader *r, const cJSON *item, car_link *out) {
    const field fields[] = {
        {"bandwidth", "bytes per second", 1, 1e18, false, true, &out->bandwidth},
        {"latency", "seconds", 0, 10, false, true, &out->latency},
    };
    if (!cJSON_IsObject(item)) {
        return refuse(r, "", item->string, "must be an object with \"bandwidth\" and \"latency\"");
    }
    return read_object(r, item->string, item, fields, 2, NULL, NULL);
}

static car_status read_other(const reader *r, const cJSON *item, bool *known, car_cluster *out) {
    *known = true;
    if (strcmp(item->string, "inside") == 0 || strcmp(item->string, "between") == 0) {
        return read_link(r, item, item->string[0] == 'i' ? &out->inside : &out->between);
    }
    if (strcmp(item->string, "name") == 0) {
        if (!cJSON_IsString(item) || strlen(item->valuestring) >= sizeof out->name) {
            return refuse(r, "", "name", "must be a string of less than 64 bytes");
        }
        memcpy(out->name, item->valuestring, strlen(item->valuestring) + 1);
        return CAR_OK;
    }
    *known = false;
    return CAR_OK;
}

/* Checks how the fields fit together. */
static car_status check(const reader *r, const car_cluster *cluster) {
    if (cluster->between.bandwidth <= 0) {
        return refuse(r, "", "between", "is missing: it describes the links between nodes");
    }
    if (cluster->devices_per_node > 1 && cluster->inside.bandwidth <= 0) {
        return refuse(
            r, "", "inside",
            "is missing: it describes the links inside a node, which are needed for several devices per node");
    }
    if (cluster->devices_per_node > 1 && cluster->between.latency < cluster->inside.latency) {
        return refuse(r, "between", "latency",
                      "is the latency from device to device, so it cannot be less than \"inside.latency\"");
    }
    return CAR_OK;
}

car_status car_cluster_parse(car_context *context, const char *origin, const char *text, size_t length,
                             car_cluster *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, text);
    CAR_REQUIRE(context, out);
    const reader r = {context, origin};
    car_cluster cluster = {0};
    double devices = 0, per_node = 1;
    const field fields[] = {
        {"devices", "the number of devices; if left out, as many as needed", 1, 1 << 30, true, false, &devices},
        {"devices_per_node", "if left out, 1", 1, 1 << 16, true, false, &per_node},
        {"flops", "per second, of one device", 1, 1e21, false, true, &cluster.flops},
        {"bf16_flops", "per second, of one device in bf16", 1, 1e21, false, false, &cluster.bf16_flops},
        {"memory", "bytes per device", 1, 1e18, false, false, &cluster.memory},
    };
    car_status status = CAR_OK;
    cJSON *root = cJSON_ParseWithLength(text, length);
    *out = (car_cluster){0};
    if (!cJSON_IsObject(root)) {
        status =
            car_context_fail(context, CAR_ERROR_FORMAT,
                             "%s: not a JSON object that describes a cluster; docs/plan.md has an example", origin);
        goto done;
    }
    CAR_TRY(read_object(&r, "", root, fields, (int)(sizeof fields / sizeof fields[0]), read_other, &cluster));
    cluster.devices = (int64_t)devices;
    cluster.devices_per_node = (int)per_node;
    CAR_TRY(check(&r, &cluster));
    *out = cluster;
done:
    cJSON_Delete(root);
    return status;
}

double car_cluster_flops(const car_cluster *cluster, car_precision precision) {
    return precision == CAR_PRECISION_BF16 && cluster->bf16_flops > 0 ? cluster->bf16_flops : cluster->flops;
}

car_status car_cluster_load(car_context *context, const char *path, car_cluster *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, path);
    CAR_REQUIRE(context, out);
    car_mapped file = {0};
    car_status status = CAR_OK;
    *out = (car_cluster){0};
    CAR_TRY(car_mapped_open(context, path, &file));
    if (file.size > MOST_BYTES) {
        status = car_context_fail(context, CAR_ERROR_FORMAT,
                                  "%s: too large for the description of a cluster, with %zu bytes", path, file.size);
        goto done;
    }
    CAR_TRY(car_cluster_parse(context, path, file.data ? (const char *)file.data : "", file.size, out));
done:
    car_mapped_close(&file);
    return status;
}
