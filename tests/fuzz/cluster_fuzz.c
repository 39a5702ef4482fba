/* Descriptions of clusters: what is understood is sound, and everything else is refused with a message. */
#include "carousel/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

static bool is_sound(const car_link *link) {
    return link->bandwidth >= 1 && link->bandwidth <= 1e18 && link->latency >= 0 && link->latency <= 10;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    car_context *context = car_fuzz_context(65536);
    car_cluster c;
    /* Of exactly this size, without a zero at its end. */
    char *text = malloc(size + (size == 0));
    memcpy(text, data, size);
    car_status status = car_cluster_parse(context, "input", text, size, &c);
    free(text);
    if (status == CAR_OK) {
        if (!(c.flops >= 1) || !isfinite(c.flops) || c.devices < 0 || c.devices_per_node < 1 || !is_sound(&c.between) ||
            (c.devices_per_node > 1 && !is_sound(&c.inside)) || !memchr(c.name, 0, sizeof c.name)) {
            abort();
        }
    } else if (strstr(car_context_error(context), "input") == NULL) {
        abort();
    }
    car_fuzz_end(context);
    return 0;
}
