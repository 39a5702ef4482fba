/* Plan files: what is read can be printed and proven or is refused with a message, whatever it says. */
#include "carousel/plan.h"

#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

/* A long table may take long to be proven; what matters is that reading it is safe. */
enum { MOST_BYTES = 1 << 24, MOST_STEPS = 12 };

static void use(car_plan *plan, const car_plan_header *header) {
    car_proof proof;
    char *text = NULL;
    if (header->steps > MOST_STEPS || car_plan_prove(plan, &proof) != CAR_OK) {
        return;
    }
    if (car_plan_print(plan, header->steps, &text) != CAR_OK || !car_plan_is_proven(plan)) {
        abort();
    }
    car_plan_release_text(plan, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    car_context *context = car_fuzz_context(MOST_BYTES);
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_plan_header header;
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    car_status status = car_plan_read_header(context, "input", text, &header);
    if (status == CAR_OK && header.stages <= 4 && header.config.workers <= 4) {
        status = car_partition_create_uniform(context, header.stages, 2.0, &partition);
        status = status == CAR_OK ? car_plan_read(context, partition, "input", text, &plan) : status;
        if (status == CAR_OK) {
            use(plan, &header);
        } else if (car_context_error(context)[0] == '\0') {
            abort();
        }
    } else if (status != CAR_OK && strstr(car_context_error(context), "input") == NULL) {
        abort();
    }
    free(text);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    car_fuzz_end(context);
    return 0;
}
