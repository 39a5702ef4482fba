/* `carousel plan --cluster`: predicts how long a step takes on a described cluster. */
#include <cjson/cJSON.h>
#include <math.h>

#include "carousel/convention.h"
#include "plan.h"

car_status car_cli_plan_read_cluster(car_plan_subject *s) {
    double cost = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_cluster_load(s->context, s->options->cluster, &s->cluster));
    for (int l = 0; l < s->costs.count; l++) {
        cost += s->costs.forward[l] + s->costs.backward[l];
    }
    cost *= 1 + s->partition->recomputation.cost;
    /* A profile is already in seconds. */
    s->compute = s->measured ? cost : cost / car_cluster_flops(&s->cluster, s->options->shape.precision);
done:
    return status;
}

double car_cli_plan_memory(const car_prediction *p) {
    return (double)car_prediction_memory(p);
}

bool car_cli_plan_fits_memory(const car_plan_subject *s, const car_prediction *p) {
    return s->cluster.memory <= 0 || car_cli_plan_memory(p) <= s->cluster.memory;
}

bool car_cli_plan_fits_devices(const car_plan_subject *s, const car_prediction *p) {
    return s->cluster.devices == 0 || p->devices <= s->cluster.devices;
}

/* ---- for people ------------------------------------------------------------------------------ */

car_size_text car_cli_seconds(double seconds) {
    static const char *const units[] = {"s", "ms", "us"};
    car_size_text out;
    int unit = 0;
    while (unit < 2 && seconds < 0.9995) {
        seconds *= 1000;
        unit++;
    }
    snprintf(out.text, sizeof out.text,
             seconds >= 100  ? "%.0f %s"
             : seconds >= 10 ? "%.1f %s"
                             : "%.2f %s",
             seconds, units[unit]);
    return out;
}

void car_cli_plan_describe_cluster(const car_plan_subject *s, FILE *stream) {
    const car_cluster *c = &s->cluster;
    fprintf(stream, "On %s: ", c->name[0] ? c->name : s->options->cluster);
    if (s->measured) {
        fputs("devices as fast as in the profile", stream);
    } else {
        fprintf(stream, "devices of %g TFLOP/s", c->flops / 1e12);
    }
    if (!s->measured && c->bf16_flops > 0) {
        fprintf(stream, " (%g in bf16)", c->bf16_flops / 1e12);
    }
    if (c->memory > 0) {
        fprintf(stream, " and %s", car_size_shown(c->memory).text);
    }
    if (c->devices_per_node > 1) {
        fprintf(stream, ", %d per node with %s/s and %s inside", c->devices_per_node,
                car_size_shown(c->inside.bandwidth).text, car_cli_seconds(c->inside.latency).text);
    }
    fprintf(stream, ", %s/s and %s between nodes\n", car_size_shown(c->between.bandwidth).text,
            car_cli_seconds(c->between.latency).text);
}

void car_cli_plan_print_timing(const car_plan_subject *s, const car_prediction *p, const car_timing *t, FILE *stream) {
    const car_cluster *c = &s->cluster;
    double memory = car_cli_plan_memory(p);
    fputc('\n', stream);
    car_cli_plan_describe_cluster(s, stream);
    fprintf(stream, "  one %-44s  %10s\n",
            s->options->accumulate > 1 ? "micro-batch's forwards and backwards" : "worker's forwards and backwards",
            car_cli_seconds(t->compute).text);
    if (s->options->shape.precision == CAR_PRECISION_BF16 && !s->measured && c->bf16_flops <= 0) {
        fputs("    (as fast as fp32: the description has no \"bf16_flops\")\n", stream);
    }
    fprintf(stream, "  a step if messages took no time                   %10s\n", car_cli_seconds(t->free_step).text);
    fprintf(stream, "  a step                                            %10s   exposed communication %s, %.1f %%\n",
            car_cli_seconds(t->step).text, car_cli_seconds(t->exposed).text, 100 * t->exposed / t->step);
    fprintf(stream, "  sent a second, all devices together: mean         %10s   peak %s, %.1f x the mean\n",
            car_size_shown(t->mean_rate).text, car_size_shown(t->peak_rate).text,
            t->mean_rate > 0 ? t->peak_rate / t->mean_rate : 0);
    fprintf(stream, "  memory of the device that needs most              %10s", car_size_shown(memory).text);
    if (c->memory > 0) {
        fprintf(stream, "   %s", car_cli_plan_fits_memory(s, p) ? "fits" : "does NOT fit: a device has less memory");
    }
    if (!car_cli_plan_fits_devices(s, p)) {
        fprintf(stream, "   too few devices: needs %d devices, there are %lld", p->devices, (long long)c->devices);
    }
    fputc('\n', stream);
}

/* ---- for machines ---------------------------------------------------------------------------- */

static void add_link(cJSON *object, const char *name, const car_link *link, bool *ok) {
    cJSON *item = cJSON_AddObjectToObject(object, name);
    car_cli_plan_json_number(item, "bandwidth", link->bandwidth, ok);
    car_cli_plan_json_number(item, "latency", link->latency, ok);
}

/* In the format that can be read back. */
cJSON *car_cli_plan_json_cluster(const car_plan_subject *s) {
    const car_cluster *c = &s->cluster;
    cJSON *object = cJSON_CreateObject();
    bool ok = object && cJSON_AddStringToObject(object, "name", c->name);
    if (c->devices > 0) {
        car_cli_plan_json_number(object, "devices", (double)c->devices, &ok);
    }
    car_cli_plan_json_number(object, "devices_per_node", c->devices_per_node, &ok);
    car_cli_plan_json_number(object, "flops", c->flops, &ok);
    if (c->bf16_flops > 0) {
        car_cli_plan_json_number(object, "bf16_flops", c->bf16_flops, &ok);
    }
    if (c->memory > 0) {
        car_cli_plan_json_number(object, "memory", c->memory, &ok);
    }
    if (c->devices_per_node > 1) {
        add_link(object, "inside", &c->inside, &ok);
    }
    add_link(object, "between", &c->between, &ok);
    if (!ok) {
        cJSON_Delete(object);
    }
    return ok ? object : NULL;
}

cJSON *car_cli_plan_json_timing(const car_plan_subject *s, const car_prediction *p, const car_timing *t) {
    cJSON *object = cJSON_CreateObject();
    bool ok = object != NULL;
    car_cli_plan_json_number(object, "compute_s", t->compute, &ok);
    car_cli_plan_json_number(object, "step_s", t->step, &ok);
    car_cli_plan_json_number(object, "step_without_network_s", t->free_step, &ok);
    car_cli_plan_json_number(object, "exposed_s", t->exposed, &ok);
    car_cli_plan_json_number(object, "bytes", t->bytes, &ok);
    car_cli_plan_json_number(object, "mean_bytes_per_s", t->mean_rate, &ok);
    car_cli_plan_json_number(object, "peak_bytes_per_s", t->peak_rate, &ok);
    car_cli_plan_json_number(object, "busiest_link", t->busiest, &ok);
    car_cli_plan_json_number(object, "steps", t->steps, &ok);
    car_cli_plan_json_number(object, "bucket_bytes", t->bucket, &ok);
    car_cli_plan_json_number(object, "memory_device_bytes", car_cli_plan_memory(p), &ok);
    bool memory = car_cli_plan_fits_memory(s, p), devices = car_cli_plan_fits_devices(s, p);
    ok = ok && cJSON_AddBoolToObject(object, "fits", memory && devices) &&
         cJSON_AddBoolToObject(object, "fits_memory", memory) && cJSON_AddBoolToObject(object, "fits_devices", devices);
    if (!ok) {
        cJSON_Delete(object);
    }
    return ok ? object : NULL;
}
