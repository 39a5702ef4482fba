/* Files in a dataset's folder that are not used. Printed by `data` and at the start of a run. */
#include "data.h"

int64_t car_cli_count_unused(const car_dataset *dataset) {
    car_dataset_unused unused;
    int64_t sum = 0;
    car_dataset_get_unused(dataset, &unused);
    for (int r = 0; r < CAR_UNUSED_REASONS; r++) {
        sum += unused.count[r];
    }
    return sum;
}

/* Prints "TEXT: COUNT, first NAME" for each reason that occurs. The list is enclosed by `before` and `behind`. */
static void print_reasons(const car_dataset *dataset, const char *before, const char *between, const char *behind) {
    car_dataset_unused unused;
    const char *separator = before;
    car_dataset_get_unused(dataset, &unused);
    for (int r = 0; r < CAR_UNUSED_REASONS; r++) {
        if (unused.count[r] > 0) {
            printf("%s%s: %lld, first %s", separator, car_unused_text((car_unused)r), (long long)unused.count[r],
                   unused.first[r]);
            separator = between;
        }
    }
    fputs(separator == before ? "" : behind, stdout);
}

void car_cli_print_unused(const car_dataset *dataset) {
    printf("not used    %lld\n", (long long)car_cli_count_unused(dataset));
    print_reasons(dataset, "  ", "\n  ", "\n");
}

void car_cli_print_unused_line(const car_dataset *dataset) {
    print_reasons(dataset, "not used in the data: ", "; ", "\n");
}

bool car_cli_add_unused(cJSON *root, const car_dataset *dataset) {
    car_dataset_unused unused;
    cJSON *list = cJSON_AddArrayToObject(root, "unused");
    bool ok = list != NULL;
    car_dataset_get_unused(dataset, &unused);
    for (int r = 0; r < CAR_UNUSED_REASONS; r++) {
        if (unused.count[r] > 0) {
            cJSON *entry = cJSON_CreateObject();
            ok = cJSON_AddStringToObject(entry, "reason", car_unused_name((car_unused)r)) &&
                 cJSON_AddNumberToObject(entry, "count", (double)unused.count[r]) &&
                 cJSON_AddStringToObject(entry, "first", unused.first[r]) && cJSON_AddItemToArray(list, entry) && ok;
        }
    }
    return ok;
}
