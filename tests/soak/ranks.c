/* Random placements, their ranks as threads, in random trouble.
 *
 * Messages are late and overtake each other, and one rank may be slow: the run gives the bits and the reports of the shared
 * engine all the same, also if it is told to stop, and so do its snapshots. Or a rank's transport fails, a rank falls silent, a worker gets no sample:
 * then all ranks end with an error, and nothing is left in their arenas. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/thread_ranks.h"
#include "soak/soak.h"

typedef enum fate { FATE_ENDS, FATE_STOPS, FATE_FAILS, FATE_SILENT, FATE_STARVES } fate;

typedef struct ranks_case {
    car_placement_setting setting;
    car_thread_rank like;
    car_trouble trouble;
    fate fate;
} ranks_case;

static car_placement_setting choose_setting(dice *d) {
    car_placement_setting setting;
    do {
        setting = car_placement_settings[roll(d, 0, car_placement_setting_count - 1)];
    } while (setting.placement == CAR_PLACEMENT_SHARED); /* of which there are whole sessions */
    setting.threads = roll(d, 1, 3);
    setting.snapshot_every = one_in(d, 2) ? roll(d, 1, 4) : 0;
    setting.weights_every = one_in(d, 3) ? roll(d, 1, 3) : 0;
    return setting;
}

static car_trouble choose_trouble(dice *d, uint64_t seed, fate fate, int ranks) {
    static const double lateness[] = {0, 0.0002, 0.001, 0.003};
    car_trouble trouble = {.seed = seed, .slow = CAR_NONE, .fails = CAR_NONE, .silent = CAR_NONE};
    trouble.late = lateness[roll(d, 0, 3)];
    trouble.very_late = one_in(d, 4) ? 0.05 : 10 * trouble.late;
    trouble.slow = one_in(d, 3) ? roll(d, 0, ranks - 1) : CAR_NONE;
    trouble.after = roll(d, 0, one_in(d, 2) ? 120 : 20);
    if (fate == FATE_FAILS) {
        trouble.fails = roll(d, 0, ranks - 1);
    } else if (fate == FATE_SILENT) {
        trouble.silent = roll(d, 0, ranks - 1);
    }
    return trouble;
}

static void choose_case(uint64_t seed, ranks_case *c) {
    static const char *const models[] = {"mlp", "mlp",       "mlp",       "mlp",     "mlp",
                                         "mlp", "gpt2-nano", "gpt2-nano", "resnet20"};
    static const fate fates[] = {FATE_ENDS,  FATE_ENDS,  FATE_ENDS,  FATE_ENDS,    FATE_STOPS, FATE_STOPS,
                                 FATE_STOPS, FATE_FAILS, FATE_FAILS, FATE_STARVES, FATE_SILENT};
    dice d = {.key = car_random_key(seed, "soak of ranks")};
    *c = (ranks_case){.setting = choose_setting(&d)};
    c->fate = fates[roll(&d, 0, (int)(sizeof fates / sizeof *fates) - 1)];
    c->like.model = models[roll(&d, 0, (int)(sizeof models / sizeof *models) - 1)];
    c->like.rule = car_placement_rules[roll(&d, 0, 2)];
    c->like.guarded = one_in(&d, 2);
    c->like.stop_step = c->fate == FATE_STOPS ? roll(&d, 0, 6) : CAR_NONE;
    c->like.stopper = roll(&d, 0, c->setting.workers - 1);
    c->like.feed_fails = c->fate == FATE_STARVES;
    c->like.patience = c->fate == FATE_SILENT ? 2 : 60;
    c->trouble = choose_trouble(&d, seed, c->fate, car_placement_ranks(&c->setting, c->like.rule));
}

static void print_case(uint64_t seed, const ranks_case *c) {
    static const char *const fates[] = {"", ", stopped", ", a rank fails", ", a rank falls silent", ", a feed fails"};
    const car_placement_setting *s = &c->setting;
    printf("seed %" PRIu64
           ": %s %s over %s, N %d k %d R %d P %d%s%s, snapshots %d %d, late %g very %g slow %d lost %d after %lld\n",
           seed, c->like.model, car_rule_text(c->like.rule), car_placement_text(s->placement), s->workers,
           s->per_worker, car_placement_ranks(s, c->like.rule), s->threads, c->like.guarded ? " guarded" : "",
           fates[c->fate], s->snapshot_every, s->weights_every, c->trouble.late, c->trouble.very_late, c->trouble.slow,
           c->trouble.fails != CAR_NONE ? c->trouble.fails : c->trouble.silent, (long long)c->trouble.after);
    fflush(stdout);
}

bool soak_ranks(uint64_t seed) {
    ranks_case c;
    choose_case(seed, &c);
    c.like.setting = &c.setting;
    print_case(seed, &c);
    bool lost = c.fate == FATE_FAILS || c.fate == FATE_SILENT || c.fate == FATE_STARVES;
    bool good = lost ? car_thread_ranks_lose(&c.like, &c.trouble, NULL) : car_thread_ranks_train(&c.like, &c.trouble);
    printf("seed %" PRIu64 ": %s (ranks)\n", seed, good ? "ok" : "a run over ranks did not end as it should");
    fflush(stdout);
    return good;
}
