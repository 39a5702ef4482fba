/* Before the first step of a run over MPI: that all ranks have the same of everything, and which workers they host. */
#include <stdlib.h>
#include <string.h>

#include "carousel/convention.h"
#include "carousel/file.h"
#include "mapping.h"
#include "train.h"

/* ---- workers on machines ---------------------------------------------------------------------- */

car_status car_train_choose_mapping(car_train_run *run, car_plan_config *plan, int optimizer_states) {
    car_train_options *o = &run->options;
    car_status status = CAR_OK;
    if (!run->transport || !car_placement_maps_workers(plan->placement)) {
        return CAR_OK;
    }
    run->machines.optimizer_states = optimizer_states;
    if (!o->mapping) {
        CAR_TRY(car_plan_choose_mapping_over(run->context, run->partition, run->transport, &run->machines, plan,
                                             &run->choice, &run->chosen));
    }
    o->mapping = car_mapping_text(plan->mapping);
done:
    return status;
}

void car_train_show_ranks(const car_train_run *run) {
    int ranks = car_transport_size(run->transport), machines = car_transport_machines(run->transport);
    printf("%d %s on %d %s, %s", ranks, ranks == 1 ? "rank" : "ranks", machines, machines == 1 ? "machine" : "machines",
           car_transport_name(run->transport));
    if (run->options.mapping && (run->machines.count > 1 || ranks < run->options.workers)) {
        printf("; workers %s", run->options.mapping);
    }
    if (run->chosen) {
        char reason[160];
        car_cli_explain_mapping(&run->choice, &run->machines, reason, sizeof reason);
        printf(" (%s)", reason);
    }
    putchar('\n');
    fflush(stdout);
}

/* ---- agreement ------------------------------------------------------------------------------- */

static car_status compare_program(car_train_run *run) {
    char text[CAR_FILE_DIGEST] = "unknown";
    if (car_file_digest(run->context, "/proc/self/exe", text) == CAR_OK) {
        text[16] = '\0'; /* enough to tell two apart */
    } else {
        car_context_clear_error(run->context);
    }
    return car_rank_agree(run->context, run->transport, "program (carousel)", text);
}

/* The options of one rank that are not as on the first: "--lr 0.5, not 0.05". */
static void list_differences(const cJSON *own, const cJSON *first, char *text, size_t capacity) {
    size_t used = 0;
    const cJSON *objects[] = {own, first};
    for (int o = 0; o < 2; o++) {
        for (const cJSON *item = objects[o]->child; item && used < capacity; item = item->next) {
            const cJSON *a = cJSON_GetObjectItemCaseSensitive(own, item->string);
            const cJSON *b = cJSON_GetObjectItemCaseSensitive(first, item->string);
            if ((o == 1 && a) || (a && b && cJSON_Compare(a, b, true))) {
                continue;
            }
            char *mine = a ? cJSON_PrintUnformatted(a) : NULL, *theirs = b ? cJSON_PrintUnformatted(b) : NULL;
            used += (size_t)snprintf(text + used, capacity - used, "%s--%s %s, not %s", used ? "; " : "", item->string,
                                     mine ? mine : "left out", theirs ? theirs : "left out");
            cJSON_free(theirs);
            cJSON_free(mine);
        }
    }
}

/* The first rank's options, for everybody. To be freed with free(). */
static car_status share_options(car_train_run *run, const cJSON *own, char **out) {
    char *printed = car_train_is_first(run) ? cJSON_PrintUnformatted(own) : NULL;
    int64_t length = printed ? (int64_t)strlen(printed) + 1 : 1;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_transport_broadcast(run->transport, 0, &length, sizeof length));
    *out = calloc(1, (size_t)length);
    if (!*out) {
        status = car_context_fail(run->context, CAR_ERROR_MEMORY, "out of memory for the options of the first rank");
        goto done;
    }
    if (printed) {
        memcpy(*out, printed, (size_t)length);
    }
    CAR_TRY(car_transport_broadcast(run->transport, 0, *out, (size_t)length));
done:
    cJSON_free(printed);
    return status;
}

static car_status compare_options(car_train_run *run) {
    char text[160] = "", *shared = NULL;
    cJSON *own = car_train_config_of(&run->options), *first = NULL;
    car_status status = CAR_OK;
    cJSON_DeleteItemFromObjectCaseSensitive(own, "out"); /* only the first one writes; but all stop for it */
    cJSON_AddBoolToObject(own, "out", run->options.out != NULL);
    cJSON_DeleteItemFromObjectCaseSensitive(own, "threads");
    CAR_TRY(share_options(run, own, &shared));
    first = cJSON_Parse(shared);
    if (own && first) {
        list_differences(own, first, text, sizeof text);
    }
    CAR_TRY(car_rank_agree(run->context, run->transport, "configuration", text));
done:
    free(shared);
    cJSON_Delete(first);
    cJSON_Delete(own);
    return status;
}

/* FNV-1a, by whole numbers. */
static uint64_t mix(uint64_t hash, uint64_t value) {
    return (hash ^ value) * 0x100000001b3u;
}

/* Stages and versions are a function of these. */
static car_status compare_plan(car_train_run *run) {
    const car_plan_config *config = car_plan_config_of(run->plan);
    char text[160], several[48] = "";
    uint64_t cuts = car_graph_fingerprint(run->graph);
    for (int j = 0; j < run->partition->stage_count; j++) {
        cuts = mix(cuts, (uint64_t)run->partition->stages[j].first);
    }
    for (const char *c = run->options.plan_text; c && *c; c++) {
        cuts = mix(cuts, (uint64_t)*c);
    }
    if (config->accumulate > 1) {
        snprintf(several, sizeof several, " M=%d by %s", config->accumulate, car_sum_order_text(config->sum_order));
    }
    snprintf(text, sizeof text, "%s/%s N=%d%s S=%d R=%d slack=%d pieces=%lld zero=%d:%d %016llx",
             car_rule_text(config->rule), car_placement_text(config->placement), config->workers, several,
             run->partition->stage_count, car_plan_devices(run->plan), config->freshness_slack,
             (long long)config->piece_bytes, config->zero_copies, config->zero_ahead, (unsigned long long)cuts);
    return car_rank_agree(run->context, run->transport, "plan", text);
}

/* Machines of different kinds choose different kernels and layouts: messages would be misread. */
static car_status compare_kernels(car_train_run *run) {
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)car_program_fingerprint(run->program));
    return car_rank_agree(run->context, run->transport, "set of kernels (kind of processor)", text);
}

/* Those who failed say why, but not all the same thing. Where some failed, all end. */
car_status car_train_settle(car_train_run *run, car_status own) {
    int size = car_transport_size(run->transport), rank = car_transport_rank(run->transport);
    int32_t mine = own, *all = NULL;
    car_status status = CAR_OK, worst = own;
    bool first_to_fail = own != CAR_OK, all_failed = true;
    CAR_TRY(car_context_allocate(run->context, (size_t)size, sizeof *all, &all));
    CAR_TRY(car_transport_all_gather(run->transport, &mine, sizeof mine, all));
    for (int r = 0; r < size; r++) {
        worst = worst == CAR_OK ? (car_status)all[r] : worst;
        first_to_fail = first_to_fail && !(r < rank && all[r] == mine);
        all_failed = all_failed && all[r] == mine;
    }
    if (first_to_fail && !all_failed) {
        fprintf(stderr, "carousel: rank %d: %s\n", rank, car_context_error(run->context));
    } else if (first_to_fail) {
        car_cli_report(run->context, own);
    }
    status = worst;
    run->settled = worst != CAR_OK;
done:
    car_context_release(run->context, all, all ? (size_t)size : 0, sizeof *all);
    return status;
}

/* Ranks are numbered so that the plan's neighbours are where the mapping wants them. */
static car_status number_ranks(car_train_run *run) {
    const car_plan_config *plan = car_plan_config_of(run->plan);
    bool mapped = car_placement_maps_workers(plan->placement);
    return car_transport_renumber(run->transport, mapped && plan->mapping == CAR_MAPPING_INTERLEAVED);
}

car_status car_train_agree(car_train_run *run, car_status own) {
    char digest[CAR_FILE_DIGEST] = "";
    car_status status = own;
    if (!run->transport) {
        return own;
    }
    CAR_TRY(car_train_settle(run, own));
    status = compare_program(run);
    status = status == CAR_OK ? compare_options(run) : status;
    status = status == CAR_OK ? compare_plan(run) : status;
    status = status == CAR_OK ? compare_kernels(run) : status;
    if (status == CAR_OK) {
        status = car_dataset_digest(run->data.set, digest);
        digest[16] = '\0';
        CAR_TRY(car_train_settle(run, status));
        status = car_rank_agree(run->context, run->transport, "data", digest);
    }
    CAR_TRY(car_train_settle(run, status));
    CAR_TRY(number_ranks(run));
done:
    return status;
}
