/* Who waits for whom: edges against a comparison of all pairs of tasks, in every placement; and what a device holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "plan/internal.h"
#include "plan/validate.h"
#include "support/common.h"
#include "support/plans.h"

enum { STEPS = 4, MOST_TASKS = 4096 };

/* All tasks of a rank with their uses. */
typedef struct rank_tasks {
    car_task tasks[MOST_TASKS];
    car_use_list uses[MOST_TASKS];
    int count, first_of_window[64];
} rank_tasks;

static void must(car_status status) {
    if (status != CAR_OK) {
        fail_msg("%s", car_context_error(car_common_context));
    }
}

static rank_tasks *list_tasks(const car_plan *plan, const car_usage *usage, int rank) {
    rank_tasks *all = calloc(1, sizeof *all);
    car_task_list list = {0};
    assert_non_null(all);
    for (int64_t window = 0; window < car_plan_windows(plan, STEPS); window++) {
        must(car_plan_expand_rank(plan, rank, window, STEPS, &list));
        all->first_of_window[window] = all->count;
        assert_true(all->count + list.count <= MOST_TASKS);
        for (int k = 0; k < list.count; k++) {
            all->tasks[all->count] = list.tasks[k];
            must(car_usage_list(usage, &list.tasks[k], &all->uses[all->count++]));
        }
    }
    car_task_list_release(plan, &list);
    return all;
}

static void free_tasks(const car_plan *plan, rank_tasks *all) {
    for (int t = 0; t < all->count; t++) {
        car_use_list_release(plan, &all->uses[t]);
    }
    free(all);
}

static bool conflict(const car_use_list *a, const car_use_list *b) {
    for (int x = 0; x < a->count; x++) {
        for (int y = 0; y < b->count; y++) {
            if (a->uses[x].resource == b->uses[y].resource && car_use_conflicts(a->uses[x].mode, b->uses[y].mode)) {
                return true;
            }
        }
    }
    return false;
}

/* Every edge joins two tasks that must keep their order, and all such pairs are joined, directly or over others. Returns
 * which task waits for which, [later][earlier], directly or over others; to be freed. */
static unsigned char *check_edges(const rank_tasks *all) {
    unsigned char *reaches = calloc((size_t)all->count * (size_t)all->count, 1);
    car_edges *edges = NULL;
    must(car_edges_create(car_common_context, &edges));
    assert_non_null(reaches);
    for (int t = 0; t < all->count; t++) {
        unsigned char *row = reaches + (size_t)t * (size_t)all->count;
        const int64_t *before = NULL;
        int count = 0;
        must(car_edges_add(edges, &all->uses[t], &before, &count));
        for (int b = 0; b < count; b++) {
            assert_in_range(before[b], 0, t - 1);
            assert_true(conflict(&all->uses[before[b]], &all->uses[t]));
            for (int c = 0; c < b; c++) {
                assert_int_not_equal(before[b], before[c]); /* each once */
            }
            const unsigned char *other = reaches + (size_t)before[b] * (size_t)all->count;
            for (int e = 0; e < before[b]; e++) {
                row[e] |= other[e];
            }
            row[before[b]] = 1;
        }
        for (int e = 0; e < t; e++) {
            assert_true(row[e] || !conflict(&all->uses[e], &all->uses[t]));
        }
    }
    car_edges_destroy(edges);
    return reaches;
}

/* What a process with threads must keep to, whatever its tasks use: dp's backwards come after all forwards of their step,
 * accumulation has no more micro-batches under way than threads, and sums are made in the order of workers: by dp's update, by
 * all other rules' backwards. */
static void check_shared(const car_plan *plan, const rank_tasks *all, const unsigned char *reaches) {
    const car_plan_config *config = car_plan_config_of(plan);
    int last = car_plan_partition(plan)->stage_count - 1;
    for (int t = 0; t < all->count; t++) {
        const car_task *b = &all->tasks[t];
        for (int e = 0; e < all->count; e++) {
            const car_task *a = &all->tasks[e];
            bool waits = e < t && reaches[(size_t)t * (size_t)all->count + (size_t)e];
            bool gated = config->rule == CAR_RULE_DP && a->kind == CAR_TASK_FORWARD && b->kind == CAR_TASK_BACKWARD &&
                         a->step == b->step && a->stage == last;
            bool in_turn = config->rule == CAR_RULE_ACCUMULATE && a->kind == CAR_TASK_BACKWARD && a->stage == 0 &&
                           b->kind == CAR_TASK_FORWARD && a->step == b->step &&
                           a->micro_batch + config->threads == b->micro_batch;
            bool adds = a->kind == CAR_TASK_BACKWARD && a->stage == b->stage && a->step == b->step &&
                        car_plan_partition(plan)->bundles[a->stage].bytes > 0;
            bool ring =
                adds && b->kind == CAR_TASK_BACKWARD && a->micro_batch < b->micro_batch && config->rule != CAR_RULE_DP;
            bool whole = adds && b->kind == CAR_TASK_UPDATE;
            assert_true(waits || !(gated || in_turn || ring || whole));
        }
    }
}

static bool ends_weights(const car_use_list *uses, const car_task *task) {
    for (int u = 0; u < uses->count; u++) {
        const car_use *use = &uses->uses[u];
        if (car_use_kind(use) == CAR_RESOURCE_WEIGHTS && use->bundle == task->bundle && use->last) {
            return true;
        }
    }
    return false;
}

/* Where weights move, an owner makes the next version of one before the last who uses that drops it here. */
static void check_owners(const rank_tasks *all, const unsigned char *reaches) {
    for (int t = 0; t < all->count; t++) {
        const car_task *last = &all->tasks[t];
        for (int e = 0; car_task_computes(last) && ends_weights(&all->uses[t], last) && e < t; e++) {
            const car_task *update = &all->tasks[e];
            bool made_of_it = update->kind == CAR_TASK_UPDATE && update->bundle == last->bundle &&
                              update->version == last->version + 1;
            assert_true(!made_of_it || reaches[(size_t)t * (size_t)all->count + (size_t)e]);
        }
    }
}

/* When everything before a window is over, nobody waits for it, and the rest is as it was. */
static void check_forgetting(const rank_tasks *all, int64_t windows) {
    car_edges *whole = NULL, *short_lived = NULL;
    must(car_edges_create(car_common_context, &whole));
    must(car_edges_create(car_common_context, &short_lived));
    for (int t = 0; t < all->count; t++) {
        const int64_t *expected = NULL, *before = NULL;
        int expected_count = 0, count = 0, below = 0, kept = 0;
        for (int64_t w = 0; w < windows; w++) {
            below = all->first_of_window[w] <= t ? all->first_of_window[w] : below;
        }
        car_edges_forget(short_lived, below);
        must(car_edges_add(whole, &all->uses[t], &expected, &expected_count));
        must(car_edges_add(short_lived, &all->uses[t], &before, &count));
        for (int b = 0; b < expected_count; b++) {
            kept += expected[b] >= below;
        }
        assert_int_equal(count, kept);
        for (int b = 0; b < count; b++) {
            assert_true(before[b] >= below);
        }
    }
    car_edges_destroy(short_lived);
    car_edges_destroy(whole);
}

static void check_plan(const car_partition *partition, car_plan_config config) {
    car_plan *plan = car_plans_make(partition, config);
    for (int rank = 0; rank < car_plan_ranks(plan); rank++) {
        car_usage *usage = NULL;
        must(car_usage_create(plan, rank, &usage));
        car_usage_set_steps(usage, STEPS);
        rank_tasks *all = list_tasks(plan, usage, rank);
        unsigned char *reaches = check_edges(all);
        if (config.placement == CAR_PLACEMENT_SHARED) {
            check_shared(plan, all, reaches);
        }
        if (car_plan_config_of(plan)->zero_copies == 1) {
            check_owners(all, reaches);
        }
        free(reaches);
        check_forgetting(all, car_plan_windows(plan, STEPS));
        free_tasks(plan, all);
        car_usage_destroy(usage);
    }
    car_plan_destroy(plan);
}

static void edges_join_what_must_keep_its_order(void **state) {
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    (void)state;
    for (int workers = 2; workers <= 4; workers++) {
        car_plans_model tied = car_plans_open_model("gpt2-nano", workers); /* with a tied parameter */
        for (car_placement placement = CAR_PLACEMENT_SHARED; placement < CAR_PLACEMENTS; placement++) {
            for (int r = 0; r < 3; r++) {
                check_plan(tied.partition,
                           (car_plan_config){.workers = workers, .rule = rules[r], .placement = placement});
            }
        }
        check_plan(tied.partition,
                   (car_plan_config){
                       .workers = workers, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_REPLICA, .ranks = 1});
        for (int slack = 0; slack <= workers; slack++) {
            for (int copies = 1; copies <= 2; copies++) {
                check_plan(tied.partition, (car_plan_config){.workers = workers,
                                                             .rule = CAR_RULE_CDP_V2,
                                                             .placement = CAR_PLACEMENT_ZERO,
                                                             .freshness_slack = slack,
                                                             .zero_copies = copies});
            }
        }
        for (int ahead = 1; ahead <= 2 * workers; ahead += 2) {
            check_plan(tied.partition, (car_plan_config){.workers = workers,
                                                         .rule = rules[1 + ahead / 2 % 2],
                                                         .placement = CAR_PLACEMENT_ZERO,
                                                         .zero_ahead = ahead});
        }
        car_plans_close_model(&tied);
    }
}

/* ---- mistakes -------------------------------------------------------------------------------- */

typedef enum mistake {
    USE_MISSING,
    USE_ONLY_READS,
    USES_SWAPPED, /* of two tasks that follow each other */
    EDGE_MISSING,
    EDGE_FORWARD, /* to the task itself */
    EDGE_TWICE,
    MISTAKES
} mistake;

/* One mistake in the uses or edges of a task of a rank; of two tasks, if uses are swapped. */
typedef struct mutation {
    mistake kind;
    int rank, number, which;
    bool done;
    car_use kept[64];
    int kept_count;
} mutation;

static void change_uses(void *user, int rank, int number, const car_task *task, struct car_use_list *uses) {
    mutation *m = user;
    (void)task;
    if (rank != m->rank || uses->count == 0) {
        return;
    }
    if (m->kind == USES_SWAPPED && (number == m->number || number == m->number + 1) && uses->count <= 64 &&
        m->which == 0) {
        car_use own[64];
        int count = uses->count;
        memcpy(own, uses->uses, (size_t)count * sizeof *own);
        if (number == m->number + 1 && m->kept_count <= uses->capacity) {
            memcpy(uses->uses, m->kept, (size_t)m->kept_count * sizeof *own);
            uses->count = m->kept_count;
            m->done = true;
        }
        memcpy(m->kept, own, (size_t)count * sizeof *own);
        m->kept_count = count;
    }
    int u = m->which % uses->count;
    if (number == m->number && m->kind == USE_MISSING) {
        uses->uses[u] = uses->uses[--uses->count];
        m->done = true;
    }
    if (number == m->number && m->kind == USE_ONLY_READS && uses->uses[u].mode == CAR_USE_WRITE) {
        uses->uses[u].mode = CAR_USE_READ;
        m->done = true;
    }
}

static void change_edges(void *user, int rank, int number, int *edges, int first, int *count) {
    mutation *m = user;
    if (rank != m->rank || number != m->number || *count == 0) {
        return;
    }
    int e = m->which % *count;
    if (m->kind == EDGE_MISSING) {
        edges[e] = edges[--*count];
    } else if (m->kind == EDGE_FORWARD) {
        edges[e] = first + number;
    } else if (m->kind == EDGE_TWICE) {
        edges[*count] = edges[e];
        ++*count;
    }
    m->done = m->done || m->kind == EDGE_MISSING || m->kind == EDGE_FORWARD || m->kind == EDGE_TWICE;
}

/* Tasks of a rank that must keep their order, whatever the uses say: those of one micro-batch, messages of one channel, an
 * update and the backwards and forwards that it is made of and for, unless they use a copy that comes from another rank. Not
 * all there are. */
static bool must_follow(const car_plan *plan, const car_task *a, const car_task *b) {
    bool tape_a = car_task_computes(a) || a->cargo == CAR_CARGO_ACTIVATION || a->cargo == CAR_CARGO_GRADIENT;
    bool tape_b = car_task_computes(b) || b->cargo == CAR_CARGO_ACTIVATION || b->cargo == CAR_CARGO_GRADIENT;
    bool batch = tape_a && tape_b && a->micro_batch == b->micro_batch && a->step == b->step;
    bool channel = a->kind == CAR_TASK_SEND && b->kind == CAR_TASK_SEND && a->peer == b->peer && a->tag == b->tag;
    bool bytes = a->bundle >= 0 && a->bundle == b->bundle && car_plan_partition(plan)->bundles[a->bundle].bytes > 0;
    bool copied = car_plan_config_of(plan)->zero_copies == 2 && car_plan_config_of(plan)->rule == CAR_RULE_CDP_V1;
    bool made_for = bytes && !copied && a->kind == CAR_TASK_UPDATE && car_task_computes(b) && b->version == a->version;
    bool made_of = bytes && a->kind == CAR_TASK_BACKWARD && b->kind == CAR_TASK_UPDATE && a->step == b->step;
    return batch || channel || made_for || made_of;
}

/* Whether the edges of a rank, with the mistake, let two tasks meet that must not, or wait forever. */
static bool is_mistake(const car_plan *plan, const rank_tasks *all, mutation *m) {
    unsigned char *reaches = calloc((size_t)all->count * (size_t)all->count, 1);
    int *own = calloc((size_t)all->count + 1, sizeof *own), wrong = m->kind == EDGE_FORWARD || m->kind == EDGE_TWICE;
    car_edges *edges = NULL;
    car_use_list uses = {0};
    must(car_edges_create(car_common_context, &edges));
    assert_true(reaches && own);
    for (int t = 0; t < all->count && !(wrong && m->done); t++) {
        const int64_t *before = NULL;
        int count = 0;
        uses.count = 0;
        must(car_context_grow(car_common_context, &uses.uses, &uses.capacity, 64, sizeof *uses.uses));
        memcpy(uses.uses, all->uses[t].uses, (size_t)all->uses[t].count * sizeof *uses.uses);
        uses.count = all->uses[t].count;
        change_uses(m, m->rank, t, &all->tasks[t], &uses);
        must(car_edges_add(edges, &uses, &before, &count));
        for (int e = 0; e < count; e++) {
            own[e] = (int)before[e];
        }
        change_edges(m, m->rank, t, own, 0, &count);
        unsigned char *row = reaches + (size_t)t * (size_t)all->count;
        for (int e = 0; e < count && own[e] < t; e++) {
            const unsigned char *other = reaches + (size_t)own[e] * (size_t)all->count;
            for (int x = 0; x < own[e]; x++) {
                row[x] |= other[x];
            }
            row[own[e]] = 1;
        }
        for (int e = 0; e < t; e++) {
            wrong = wrong || (!row[e] && must_follow(plan, &all->tasks[e], &all->tasks[t]));
        }
    }
    car_use_list_release(plan, &uses);
    car_edges_destroy(edges);
    free(own);
    free(reaches);
    return wrong && m->done;
}

/* Makes mistakes of all kinds in a plan's edges, and counts those that were mistakes: all of them must be found. */
static void make_mistakes(const car_partition *partition, car_plan_config config, bool own, uint64_t seed,
                          int caught[MISTAKES]) {
    enum { TRIES = 12 };
    car_plan *plan = car_plans_make(partition, config);
    if (own) {
        char *text = NULL;
        car_plan *custom = NULL;
        must(car_plan_print_custom(plan, &text));
        must(car_plan_read(car_common_context, partition, "plan", text, &custom));
        car_plan_release_text(plan, text);
        car_plan_destroy(plan);
        plan = custom;
    }
    for (int try = 0; try < TRIES; try++) {
        uint64_t chance = car_random_u64(seed, (uint64_t)try);
        mutation m = {.kind = (mistake)(try % MISTAKES), .rank = (int)(chance % (uint64_t)car_plan_ranks(plan))};
        car_usage *usage = NULL;
        must(car_usage_create(plan, m.rank, &usage));
        car_usage_set_steps(usage, STEPS);
        rank_tasks *all = list_tasks(plan, usage, m.rank);
        m.number = (int)((chance >> 20) % (uint64_t)(all->count - 1));
        m.which = m.kind == USES_SWAPPED ? 0 : (int)(chance >> 50);
        if (m.kind == USE_ONLY_READS) { /* between two that write it matters nothing; what an update writes is read */
            while (m.number + 1 < all->count && all->tasks[m.number].kind != CAR_TASK_UPDATE) {
                m.number++;
            }
            m.which = all->uses[m.number].count - 1;
        }
        mutation first = m;
        if (is_mistake(plan, all, &first)) {
            const car_task_source source = {.user = &m, .change_uses = change_uses, .change_edges = change_edges};
            car_status status = car_plan_validate_tasks(plan, STEPS, &source);
            if (status != CAR_ERROR_INTERNAL) {
                fail_msg("mistake %d of task %d on rank %d survives under %s over %s with %d workers", m.kind, m.number,
                         m.rank, car_rule_text(config.rule), car_placement_text(config.placement), config.workers);
            }
            car_context_clear_error(car_common_context);
            caught[m.kind]++;
        }
        free_tasks(plan, all);
        car_usage_destroy(usage);
    }
    car_plan_destroy(plan);
}

static void mistakes_in_edges_are_found(void **state) {
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    (void)state;
    for (car_placement placement = CAR_PLACEMENT_SHARED; placement < CAR_PLACEMENTS; placement++) {
        int caught[MISTAKES] = {0};
        bool moves = placement == CAR_PLACEMENT_ZERO;
        for (int workers = 2; workers <= 4; workers++) {
            car_plans_model tied = car_plans_open_model("gpt2-nano", workers);
            for (int n = 0; n < 30; n++) {
                bool own = n % 3 > 0 && n >= 24; /* as a schedule of one's own */
                make_mistakes(tied.partition,
                              (car_plan_config){.workers = workers,
                                                .rule = rules[n % 3],
                                                .placement = placement,
                                                .zero_copies = moves && n % 3 > 0 ? 1 + n / 3 % 2 : 0},
                              own, car_random_key((uint64_t)(placement * 100 + workers * 1000 + n), "mistakes"),
                              caught);
            }
            car_plans_close_model(&tied);
        }
        print_message("%s:", car_placement_text(placement));
        for (int kind = 0; kind < MISTAKES; kind++) {
            print_message(" %d", caught[kind]);
            assert_true(caught[kind] > 0);
        }
        print_message("\n");
    }
}

/* A window taken in pieces is the window. */
static void check_pieces(const car_plan *plan, int device, int64_t window, int64_t length) {
    int64_t period = car_plan_period(plan), end = (window + 1) * period;
    car_task_list whole = {0}, piece = {0};
    int seen = 0;
    must(car_plan_expand(plan, device, window, STEPS, &whole));
    for (int64_t slot = window * period; slot < end; slot += length) {
        must(car_plan_expand_slots(plan, device, slot, slot + length < end ? slot + length : end, STEPS, &piece));
        for (int k = 0; k < piece.count; k++, seen++) {
            assert_true(seen < whole.count);
            const car_task *a = &whole.tasks[seen], *b = &piece.tasks[k];
            assert_true(a->kind == b->kind && a->cargo == b->cargo && a->slot == b->slot &&
                        a->micro_batch == b->micro_batch && a->stage == b->stage && a->bundle == b->bundle &&
                        a->step == b->step && a->version == b->version && a->peer == b->peer && a->tag == b->tag);
        }
    }
    assert_int_equal(seen, whole.count);
    car_task_list_release(plan, &piece);
    car_task_list_release(plan, &whole);
}

static void pieces_make_a_window(void **state) {
    static const car_rule rules[] = {CAR_RULE_DP, CAR_RULE_CDP_V1, CAR_RULE_CDP_V2};
    (void)state;
    car_plans_model tied = car_plans_open_model("gpt2-nano", 6);
    for (int c = 0; c < 3 * (CAR_PLACEMENTS + 1); c++) {
        bool again = c / 3 == CAR_PLACEMENTS; /* zero with what is sent long before its use */
        car_plan_config config = {.workers = 3, .rule = rules[c % 3], .placement = again ? CAR_PLACEMENT_ZERO : c / 3};
        config.zero_ahead = again && c % 3 > 0 ? 9 : 0;
        car_plan *plan = car_plans_make(tied.partition, config);
        for (int device = 0; device < car_plan_devices(plan); device++) {
            for (int64_t window = 0; window < car_plan_windows(plan, STEPS); window++) {
                check_pieces(plan, device, window, 1);
                check_pieces(plan, device, window, 5);
            }
        }
        car_plan_destroy(plan);
    }
    car_plans_close_model(&tied);
}

/* Under cdp-v1 a replica with one worker needs one version, and one with all of them two; zero's owners hold none. */
static void holdings_are_the_rules(void **state) {
    const struct {
        car_plan_config config;
        int places;
    } cases[] = {
        {{.workers = 3, .rule = CAR_RULE_CDP_V2, .placement = CAR_PLACEMENT_SHARED}, 2},
        {{.workers = 3, .rule = CAR_RULE_DP, .placement = CAR_PLACEMENT_SHARED}, 1},
        {{.workers = 3, .rule = CAR_RULE_CDP_V1, .placement = CAR_PLACEMENT_REPLICA}, 1},
        {{.workers = 3, .rule = CAR_RULE_CDP_V1, .placement = CAR_PLACEMENT_REPLICA, .ranks = 1}, 2},
        {{.workers = 3, .rule = CAR_RULE_DP, .placement = CAR_PLACEMENT_REPLICA, .ranks = 1}, 1},
        {{.workers = 3, .rule = CAR_RULE_CDP_V1, .placement = CAR_PLACEMENT_PIPELINE}, 2},
        {{.workers = 3, .rule = CAR_RULE_CDP_V1, .placement = CAR_PLACEMENT_ZERO}, 0},
        {{.workers = 3, .rule = CAR_RULE_DP, .placement = CAR_PLACEMENT_ZERO}, 1},
    };
    car_partition *partition = car_plans_uniform(3, 1.0);
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        car_plan *plan = car_plans_make(partition, cases[c].config);
        for (int rank = 0; rank < car_plan_ranks(plan); rank++) {
            car_usage *usage = NULL;
            must(car_usage_create(plan, rank, &usage));
            int most = 0;
            for (int b = 0; b < partition->bundle_count; b++) {
                int places = car_usage_holding(usage, b)->places;
                most = places > most ? places : most;
            }
            assert_int_equal(most, cases[c].places);
            car_usage_destroy(usage);
        }
        car_plan_destroy(plan);
    }
    car_partition_destroy(partition);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_join_what_must_keep_its_order),
        cmocka_unit_test(mistakes_in_edges_are_found),
        cmocka_unit_test(pieces_make_a_window),
        cmocka_unit_test(holdings_are_the_rules),
    };
    return cmocka_run_group_tests(tests, car_common_set_up, car_common_tear_down);
}
