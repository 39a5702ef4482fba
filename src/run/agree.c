/* Before the first step of a run over MPI, all ranks check that they have the same program, options, graph and data. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "base/sha256.h"
#include "carousel/file.h"
#include "run/internal.h"

/* What must be equal on all ranks, with a text to compare. The most helpful message for the user comes first. */
enum { FACTS = 4 };
typedef struct fact {
    const char *what;
    char text[160];
} fact;

/* ---- the program and its configuration ------------------------------------------------------- */

/* Lists the settings of this rank that differ from rank 0's: "--lr 0.5, not 0.05". */
static void list_differences(const car_run *run, const cJSON *own, const cJSON *first, char *text, size_t capacity) {
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
            used += (size_t)snprintf(text + used, capacity - used, "%s%s%s %s, not %s", used ? "; " : "",
                                     run->options.dashes ? "--" : "", item->string, mine ? mine : "left out",
                                     theirs ? theirs : "left out");
            cJSON_free(theirs);
            cJSON_free(mine);
        }
    }
}

/* Sends rank 0's configuration to all ranks. The caller releases it as `*bytes` bytes. */
static car_status share_configuration(const car_member *member, char **out, size_t *bytes) {
    const car_run *run = member->run;
    const char *own = run->options.configuration;
    int64_t length = (int64_t)strlen(own) + 1;
    car_status status = CAR_OK;
    CAR_TRY(car_transport_broadcast(member->transport, 0, &length, sizeof length));
    *bytes = (size_t)length;
    CAR_TRY(car_context_allocate(run->context, *bytes, 1, out));
    if (car_member_is_first(member)) {
        memcpy(*out, own, *bytes);
    }
    CAR_TRY(car_transport_broadcast(member->transport, 0, *out, *bytes));
done:
    return status;
}

static car_status compare_configurations(const car_member *member) {
    const car_run *run = member->run;
    char text[160] = "", *shared = NULL;
    size_t bytes = 0;
    cJSON *own = NULL, *first = NULL;
    car_status status = CAR_OK;
    CAR_TRY(share_configuration(member, &shared, &bytes));
    own = cJSON_Parse(run->options.configuration);
    first = cJSON_Parse(shared);
    if (own && first) {
        list_differences(run, own, first, text, sizeof text);
    }
    CAR_TRY(car_rank_agree(run->context, member->transport, "configuration", text));
done:
    cJSON_Delete(first);
    cJSON_Delete(own);
    car_context_release(run->context, shared, shared ? bytes : 0, 1);
    return status;
}

static car_status compare_programs(const car_member *member) {
    const car_run *run = member->run;
    char text[CAR_FILE_DIGEST] = "unknown";
    if (car_file_digest(run->context, "/proc/self/exe", text) == CAR_OK) {
        text[16] = '\0'; /* enough to tell two programs apart */
    } else {
        car_context_clear_error(run->context);
    }
    return car_rank_agree(run->context, member->transport, "program", text);
}

/* ---- options, graph and data ----------------------------------------------------------------- */

static void add_text(car_sha256 *sha, const char *text) {
    car_sha256_add(sha, text ? text : "", text ? strlen(text) + 1 : 1);
}

static void add_optimizer(car_sha256 *sha, const car_optimizer_config *c) {
    const int64_t counts[] = {c->decay_weights_only, c->nesterov, c->rule_count};
    const double numbers[] = {c->weight_decay, c->momentum,     c->beta1,        c->beta2,  c->eps,
                              c->adamw_ratio,  c->correction.c, c->correction.a, c->average};
    add_text(sha, car_optimizer_config_name(c));
    car_sha256_add(sha, counts, sizeof counts);
    car_sha256_add(sha, numbers, sizeof numbers);
    for (int r = 0; r < c->rule_count; r++) {
        const double rule[] = {c->rules[r].frozen, c->rules[r].lr_scale};
        add_text(sha, c->rules[r].pattern);
        car_sha256_add(sha, rule, sizeof rule);
    }
}

/* All options except the number of threads and those that only rank 0 uses: where checkpoints go, how many are kept,
 * callbacks. */
static void digest_options(const car_run *run, char text[CAR_SHA256_TEXT]) {
    const car_run_options *o = &run->options;
    const car_schedule *s = &run->training.schedule;
    const car_plan_config *p = &run->plan_config;
    const int64_t counts[] = {o->workers,
                              o->stages,
                              o->accumulate,
                              run->steps,
                              (int64_t)o->seed,
                              o->skip_nonfinite,
                              o->no_augment,
                              o->eval_every,
                              o->eval_batches,
                              o->metric != NULL,
                              o->feed != NULL,
                              o->evaluation_feed != NULL,
                              o->resume,
                              o->directory != NULL,
                              o->checkpoint_every,
                              o->run_directory,
                              o->no_checkpoints,
                              o->eval_at_end,
                              o->eval_beside,
                              o->record,
                              s->kind,
                              s->warmup,
                              s->every,
                              s->total,
                              s->own != NULL,
                              o->sequential,
                              o->augmentation,
                              o->best != NULL,
                              o->patience,
                              o->by_accuracy,
                              o->recompute.how,
                              o->recompute.tensors,
                              p->sum_order,
                              p->freshness_slack,
                              p->zero_copies,
                              p->zero_ahead,
                              p->piece_bytes};
    const double numbers[] = {s->lr, s->gamma, o->clip_norm, o->recompute.share, o->memory_limit};
    car_sha256 sha = car_sha256_begin();
    add_text(&sha, o->plan);
    add_text(&sha, o->rule);
    add_text(&sha, o->placement);
    car_sha256_add(&sha, counts, sizeof counts);
    car_sha256_add(&sha, numbers, sizeof numbers);
    add_optimizer(&sha, &run->training.optimizer);
    car_sha256_end(&sha, text);
}

/* Fingerprints come first in a text, because long texts are cut off. */
static void describe(const car_run *run, fact facts[FACTS]) {
    const car_run_options *o = &run->options;
    const car_trainer_config *t = &run->training;
    char several[48] = "", data[CAR_SHA256_TEXT] = "none", options[CAR_SHA256_TEXT];
    facts[0] = (fact){.what = "graph"};
    snprintf(facts[0].text, sizeof facts[0].text, "%016llx (%d operations, %d parameters)",
             (unsigned long long)car_graph_fingerprint(run->graph), car_graph_op_count(run->graph),
             car_graph_param_count(run->graph));
    if (run->dataset && car_dataset_digest(run->dataset, data) != CAR_OK) {
        snprintf(data, sizeof data, "unreadable");
    }
    facts[1] = (fact){.what = "data"};
    snprintf(facts[1].text, sizeof facts[1].text, "%.16s", data);
    facts[2] = (fact){.what = "set of kernels (type of processor)"};
    snprintf(facts[2].text, sizeof facts[2].text, "%016llx", (unsigned long long)car_program_fingerprint(run->program));
    if (o->accumulate > 1) {
        snprintf(several, sizeof several, " M=%d", o->accumulate);
    }
    digest_options(run, options);
    facts[3] = (fact){.what = "set of options"};
    snprintf(facts[3].text, sizeof facts[3].text, "%.16s (%s/%s N=%d%s S=%d %s lr=%g steps=%lld seed=%llu)", options,
             o->rule, o->placement, o->workers, several, o->stages, car_optimizer_config_name(&t->optimizer),
             t->schedule.lr, (long long)run->steps, (unsigned long long)o->seed);
}

/* Other options may give another graph, other data and another plan. Only the first difference is reported. */
car_status car_member_agree(car_member *member) {
    const car_run *run = member->run;
    fact facts[FACTS];
    car_status status = CAR_OK;
    if (!run->launched) {
        return CAR_OK;
    }
    if (run->options.configuration) {
        CAR_TRY(compare_programs(member));
        CAR_TRY(compare_configurations(member));
    }
    describe(run, facts);
    for (int f = 0; f < FACTS; f++) {
        CAR_TRY(car_rank_agree(run->context, member->transport, facts[f].what, facts[f].text));
    }
done:
    return status;
}
