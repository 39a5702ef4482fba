/* Compares what ranks sent, as counter.c saw it, with the plan.
 *
 *   traffic DIR MODEL WORKERS STAGES RULE PLACEMENT STEPS BATCH [RANKS]
 *
 * For every rank: the same messages for each peer and tag, and the same bytes, to the byte; collectives only as the
 * plan has them, under the cyclic rules none; statuses, which are no part of the plan, are few and small. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carousel/model.h"
#include "carousel/plan.h"

typedef struct row {
    int peer, tag;
    long long messages, bytes;
} row;

typedef struct table {
    row rows[4096];
    int count;
    long long collectives, statuses, status_bytes;
    int ended;
} table;

static row *find(table *t, int peer, int tag) {
    for (int r = 0; r < t->count; r++) {
        if (t->rows[r].peer == peer && t->rows[r].tag == tag) {
            return &t->rows[r];
        }
    }
    t->rows[t->count] = (row){.peer = peer, .tag = tag};
    return &t->rows[t->count++];
}

static int read_counts(const char *directory, int rank, table *t) {
    char path[4096], line[256], comm[32], name[32];
    *t = (table){0};
    snprintf(path, sizeof path, "%s/rank-%d", directory, rank);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        row r;
        long long count = 0;
        if (sscanf(line, "send %31s %d %d %lld %lld", comm, &r.peer, &r.tag, &r.messages, &r.bytes) == 5) {
            if (strcmp(comm, "data") == 0) {
                *find(t, r.peer, r.tag) = r;
            } else {
                t->statuses += r.messages;
                t->status_bytes += r.bytes;
            }
        } else if (sscanf(line, "collective %31s %lld", name, &count) == 2) {
            t->collectives += count;
        } else {
            t->ended |= strcmp(line, "end\n") == 0;
        }
    }
    if (file) {
        fclose(file);
    }
    return file && t->ended;
}

static car_status expect(const car_plan *plan, int rank, int64_t steps, table *t) {
    car_task_list list = {0};
    car_status status = CAR_OK;
    *t = (table){0};
    for (int64_t w = 0; status == CAR_OK && w < car_plan_windows(plan, steps); w++) {
        status = car_plan_expand(plan, rank, w, steps, &list);
        for (int k = 0; status == CAR_OK && k < list.count; k++) {
            const car_task *task = &list.tasks[k];
            if (task->kind == CAR_TASK_SEND) {
                row *r = find(t, task->peer, task->tag);
                r->messages++;
                r->bytes += (long long)car_plan_task_bytes(plan, task);
            }
            t->collectives += task->kind == CAR_TASK_REDUCE || task->kind == CAR_TASK_BROADCAST;
        }
    }
    car_task_list_release(plan, &list);
    return status;
}

static int compare(int rank, table *seen, table *expected) {
    int wrong = 0;
    for (int r = 0; r < expected->count; r++) {
        const row *e = &expected->rows[r], *s = find(seen, e->peer, e->tag);
        if (s->messages != e->messages || s->bytes != e->bytes) {
            printf("rank %d to %d, tag %d: %lld messages of %lld bytes, and the plan has %lld of %lld\n", rank, e->peer,
                   e->tag, s->messages, s->bytes, e->messages, e->bytes);
            wrong++;
        }
    }
    if (seen->count != expected->count) {
        printf("rank %d: messages that the plan does not have\n", rank);
        wrong++;
    }
    if (seen->collectives != expected->collectives) {
        printf("rank %d: %lld collectives in the loop, and the plan has %lld\n", rank, seen->collectives,
               expected->collectives);
        wrong++;
    }
    if (seen->status_bytes > 3072 * seen->statuses) {
        printf("rank %d: statuses are too long\n", rank);
        wrong++;
    }
    return wrong;
}

int main(int argc, char **argv) {
    car_context *context = NULL;
    car_graph *graph = NULL;
    car_partition *partition = NULL;
    car_plan *plan = NULL;
    car_model_config model = car_model_config_default();
    car_plan_config config = car_plan_config_default();
    static table seen, expected;
    int wrong = 0;
    long long bytes = 0, messages = 0;
    if (argc < 9) {
        fprintf(stderr, "usage: traffic DIR MODEL WORKERS STAGES RULE PLACEMENT STEPS BATCH [RANKS]\n");
        return 2;
    }
    config.workers = atoi(argv[3]);
    config.ranks = argc > 9 ? atoi(argv[9]) : 0;
    model.batch = atoi(argv[8]);
    const car_partition_config cuts = {.stages = atoi(argv[4])};
    bool created = car_context_create(NULL, &context) == CAR_OK &&
                   car_rule_find(context, argv[5], &config.rule) == CAR_OK &&
                   car_placement_find(context, argv[6], &config.placement) == CAR_OK &&
                   car_model_build(context, argv[2], &model, &graph) == CAR_OK &&
                   car_partition_create(graph, &cuts, &partition) == CAR_OK &&
                   car_plan_create(context, partition, &config, &plan) == CAR_OK;
    if (!created) {
        fprintf(stderr, "%s\n", car_context_error(context));
        return 1;
    }
    for (int r = 0; r < car_plan_devices(plan); r++) {
        if (expect(plan, r, atoll(argv[7]), &expected) != CAR_OK || !read_counts(argv[1], r, &seen)) {
            printf("rank %d: no counts\n", r);
            return 1;
        }
        wrong += compare(r, &seen, &expected);
        for (int k = 0; k < expected.count; k++) {
            messages += expected.rows[k].messages;
            bytes += expected.rows[k].bytes;
        }
    }
    printf("%s %s %s %s N=%s: %lld messages, %lld bytes\n", wrong ? "FAILED" : "ok", argv[2], argv[5], argv[6], argv[3],
           messages, bytes);
    car_plan_destroy(plan);
    car_partition_destroy(partition);
    car_graph_destroy(graph);
    car_context_destroy(context);
    return wrong > 0;
}
