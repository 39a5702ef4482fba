/* Peaks of memory at the end of a run: whose they are, in the closing line and in summary.json. */
#include "train.h"

static const double megabyte = 1e6;

void car_train_print_peak(const car_train_run *run) {
    car_train_peaks peaks = car_train_get_peaks(run);
    double largest = peaks.largest[CAR_MEMORY_ACTIVATIONS] / megabyte;
    if (peaks.ranks == 1) {
        printf("peak of activations %.1f MB, all workers together", largest);
    } else {
        printf("peak of activations %.1f MB on the largest rank (%d), %.1f MB summed over %d ranks", largest,
               peaks.rank, peaks.activations_sum / megabyte, peaks.ranks);
    }
}

void car_train_add_memory(const car_train_run *run, cJSON *json) {
    car_train_peaks peaks = car_train_get_peaks(run);
    cJSON *memory = cJSON_AddObjectToObject(json, "memory");
    cJSON_AddStringToObject(memory, "of", peaks.ranks == 1 ? "process" : "largest rank");
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        char name[64];
        snprintf(name, sizeof name, c == CAR_MEMORY_ACTIVATIONS ? "%s_peak_bytes" : "%s_bytes", car_memory_text(c));
        cJSON_AddNumberToObject(memory, name, peaks.largest[c]);
    }
    cJSON_AddNumberToObject(memory, "activations_mean_bytes", peaks.activations_mean);
    cJSON_AddNumberToObject(memory, "arena_extent_bytes", peaks.extent);
    cJSON_AddNumberToObject(memory, "rss_peak_bytes", peaks.rss);
    if (peaks.ranks > 1) {
        cJSON_AddNumberToObject(memory, "activations_ranks_sum_bytes", peaks.activations_sum);
        cJSON_AddNumberToObject(memory, "rss_ranks_sum_bytes", peaks.rss_sum);
    }
}
