/* Reads plans from files: the user's own schedule (rule=custom), or a table that must equal what its rule generates. */
#include "plan/script.h"

/* A task as text; NULL: there is none. */
static const char *text_of(const car_plan *plan, const car_task *task, char text[CAR_TASK_TEXT]) {
    if (!task) {
        return "nothing more";
    }
    car_task_format(plan, task, text, CAR_TASK_TEXT);
    return text;
}

/* Refuses a file that differs from what its rule generates, and shows where: at `cell`, one of the two tasks. */
static car_status refuse(const car_plan *plan, const char *name, int device, int64_t steps, const car_task *cell,
                         const car_task *file, const car_task *made) {
    char has[CAR_TASK_TEXT], wants[CAR_TASK_TEXT];
    return car_plan_fail_at(
        plan, steps, cell,
        "%s: device %d has %s in slot %lld, but rule %s has %s in slot %lld; for your own schedule use rule=custom",
        name, device, text_of(plan, file, has), (long long)(file ? file->slot : cell->slot),
        car_rule_text(plan->config.rule), text_of(plan, made, wants), (long long)(made ? made->slot : cell->slot));
}

static car_status compare_device(const car_plan *plan, const char *name, int device, int64_t steps,
                                 const car_task_list *file) {
    car_task_list list = {0};
    int at = 0;
    car_status status = CAR_OK;
    for (int64_t window = 0; window < car_plan_windows(plan, steps); window++) {
        CAR_TRY(car_plan_expand(plan, device, window, steps, &list));
        for (int n = 0; list.tasks && n < list.count; n++, at++) {
            const car_task *has = file->tasks && at < file->count ? &file->tasks[at] : NULL;
            if (!has || !car_task_equals(has, &list.tasks[n])) {
                CAR_TRY(refuse(plan, name, device, steps, has ? has : &list.tasks[n], has, &list.tasks[n]));
            }
        }
    }
    if (file->tasks && at < file->count) {
        status = refuse(plan, name, device, steps, &file->tasks[at], &file->tasks[at], NULL);
    }
done:
    car_task_list_release(plan, &list);
    return status;
}

/* The numbers in the header must be those of this plan. */
static car_status check_header(const car_plan *plan, const char *name, const car_plan_header *header) {
    if (header->stages != plan->stages || header->bundles != plan->partition->bundle_count ||
        header->devices != plan->devices) {
        return car_context_fail(
            plan->context, CAR_ERROR_FORMAT,
            "%s is for %d stages, %d bundles of parameters and %d devices, but this model has %d, %d and %d", name,
            header->stages, header->bundles, header->devices, plan->stages, plan->partition->bundle_count,
            plan->devices);
    }
    return CAR_OK;
}

car_status car_plan_read(car_context *context, const car_partition *partition, const char *name, const char *text,
                         car_plan **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, partition);
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, text);
    CAR_REQUIRE(context, out);
    car_plan_header header;
    car_plan *plan = NULL;
    car_task_list *devices = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_plan_read_header(context, name, text, &header));
    CAR_TRY(car_plan_create_any(context, partition, &header.config, &plan));
    CAR_TRY(check_header(plan, name, &header));
    CAR_TRY(car_context_allocate(context, (size_t)plan->devices, sizeof *devices, &devices));
    CAR_TRY(car_plan_parse_named(plan, name, text, devices, plan->devices));
    if (header.config.rule == CAR_RULE_CUSTOM) {
        CAR_TRY(car_script_create(plan, &header, devices));
    } else {
        for (int d = 0; d < plan->devices; d++) {
            CAR_TRY(compare_device(plan, name, d, header.steps, &devices[d]));
        }
    }
done:
    for (int d = 0; devices && d < plan->devices; d++) {
        car_task_list_release(plan, &devices[d]);
    }
    car_context_release(context, devices, devices ? (size_t)plan->devices : 0, sizeof *devices);
    if (status != CAR_OK) {
        car_plan_destroy(plan);
        plan = NULL;
    }
    *out = plan;
    return status;
}
