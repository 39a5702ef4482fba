/* Memory and traffic of a run's ranks, in the closing line and in summary.json. Peaks name the rank that had them. */
#include "train.h"

static const double megabyte = 1e6;

/* Peak bytes of the process or, over ranks, of the largest rank of each category, during training. */
typedef struct peaks {
    int ranks; /* 1 in one process */
    int rank;  /* the one with the most activations */
    double largest[CAR_MEMORY_CATEGORIES], activations_mean, extent, rss;
    double activations_sum, rss_sum; /* sums of all ranks' peaks, which may occur at different times */
} peaks;

static double larger(double a, double b) {
    return a > b ? a : b;
}

static peaks find_peaks(const car_train_run *t) {
    peaks p = {.ranks = car_run_ranks(t->run)};
    for (int r = 0; r < p.ranks; r++) {
        const car_rank_account *a = &t->accounts[r];
        double held = a->memory[CAR_MEMORY_ACTIVATIONS];
        p.rank = held > p.largest[CAR_MEMORY_ACTIVATIONS] ? r : p.rank;
        for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
            p.largest[c] = larger(p.largest[c], a->memory[c]);
        }
        p.activations_mean = larger(p.activations_mean, a->activations_mean);
        p.extent = larger(p.extent, a->extent);
        p.rss = larger(p.rss, a->rss);
        p.activations_sum += held;
        p.rss_sum += a->rss;
    }
    if (!t->launched) {
        p.rss_sum = p.rss; /* the ranks are threads of one process, and each has that process's size */
    }
    return p;
}

void car_train_print_peak(const car_train_run *t) {
    peaks p = find_peaks(t);
    double largest = p.largest[CAR_MEMORY_ACTIVATIONS] / megabyte;
    if (p.ranks == 1) {
        printf("peak of activations %.1f MB, all workers together", largest);
    } else {
        printf("peak of activations %.1f MB on the largest rank (%d), %.1f MB summed over %d ranks", largest, p.rank,
               p.activations_sum / megabyte, p.ranks);
    }
}

void car_train_add_memory(const car_train_run *t, cJSON *json) {
    peaks p = find_peaks(t);
    cJSON *memory = cJSON_AddObjectToObject(json, "memory");
    cJSON_AddStringToObject(memory, "of", p.ranks == 1 ? "process" : "largest rank");
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        char name[64];
        snprintf(name, sizeof name, c == CAR_MEMORY_ACTIVATIONS ? "%s_peak_bytes" : "%s_bytes",
                 car_memory_text((car_memory)c));
        cJSON_AddNumberToObject(memory, name, p.largest[c]);
    }
    cJSON_AddNumberToObject(memory, "activations_mean_bytes", p.activations_mean);
    cJSON_AddNumberToObject(memory, "arena_extent_bytes", p.extent);
    cJSON_AddNumberToObject(memory, "rss_peak_bytes", p.rss);
    if (p.ranks > 1) {
        cJSON_AddNumberToObject(memory, "activations_ranks_sum_bytes", p.activations_sum);
        cJSON_AddNumberToObject(memory, "rss_ranks_sum_bytes", p.rss_sum);
    }
}

/* ---- traffic --------------------------------------------------------------------------------- */

static void add_account(cJSON *list, const car_rank_account *a, double steps) {
    cJSON *object = cJSON_CreateObject();
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        char name[64];
        snprintf(name, sizeof name, "%s_peak_bytes", car_memory_text((car_memory)c));
        cJSON_AddNumberToObject(object, name, a->memory[c]);
    }
    cJSON_AddNumberToObject(object, "activations_mean_bytes", a->activations_mean);
    cJSON_AddNumberToObject(object, "rss_peak_bytes", a->rss);
    cJSON_AddNumberToObject(object, "rss_bytes", a->rss_end);
    cJSON_AddNumberToObject(object, "bytes_sent", (double)a->traffic.bytes_sent);
    cJSON_AddNumberToObject(object, "messages", (double)a->traffic.messages);
    cJSON_AddNumberToObject(object, "statuses", (double)a->traffic.statuses);
    cJSON_AddNumberToObject(object, "held_messages", (double)a->traffic.held);
    cJSON_AddNumberToObject(object, "snapshot_bytes_sent", (double)a->traffic.snapshot_bytes);
    cJSON_AddNumberToObject(object, "exposed_ms_per_step", a->traffic.exposed_s / steps * 1e3);
    cJSON_AddNumberToObject(object, "compute_s", a->tasks);
    cJSON_AddNumberToObject(object, "data_waited_s", a->data_waited);
    cJSON_AddItemToArray(list, object);
}

/* In one process nothing is sent: all numbers are 0. */
static void add_comm(cJSON *json, const car_train_run *t, double steps) {
    double bytes = 0, messages = 0, collectives = 0, most = 0, exposed = 0;
    int count = t->has_ranks ? car_run_ranks(t->run) : 0;
    for (int r = 0; r < count; r++) {
        const car_rank_traffic *traffic = &t->accounts[r].traffic;
        bytes += (double)traffic->bytes_sent;
        messages += (double)traffic->messages;
        collectives = larger(collectives, (double)traffic->collectives);
        most = larger(most, traffic->max_messages_per_slot);
        exposed += traffic->exposed_s / count;
    }
    cJSON *comm = cJSON_AddObjectToObject(json, "comm");
    cJSON_AddNumberToObject(comm, "bytes_sent", bytes);
    cJSON_AddNumberToObject(comm, "messages", messages);
    cJSON_AddNumberToObject(comm, "max_messages_per_slot", most);
    cJSON_AddNumberToObject(comm, "collectives", collectives);
    cJSON_AddNumberToObject(comm, "exposed_ms_per_step", exposed / steps * 1e3);
}

void car_train_add_traffic(const car_train_run *t, cJSON *json) {
    double steps = larger((double)(car_run_steps(t->run) - car_run_first_step(t->run)), 1);
    add_comm(json, t, steps);
    if (!t->has_ranks) {
        return;
    }
    cJSON_AddStringToObject(json, "transport", car_transport_name(car_run_transport(t->run)));
    cJSON *ranks = cJSON_AddArrayToObject(json, "ranks");
    for (int r = 0; r < car_run_ranks(t->run); r++) {
        add_account(ranks, &t->accounts[r], steps);
    }
}
