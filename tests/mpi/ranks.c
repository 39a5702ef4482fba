/* Ranks that are processes against the shared engine.
 *
 *   mpirun -n R ranks [ci|full|quick|PLACEMENT]
 *
 * runs the cases of engine/placements.h that need R ranks: those of CI, all of them, the smallest model's, or one
 * placement's. */
#include <stdio.h>
#include <string.h>

#include "engine/snapshots.h"

static void log_line(void *user, car_log_level level, const char *line) {
    (void)user;
    (void)level;
    fprintf(stderr, "  %s\n", line);
}

static bool is_chosen(const car_placement_setting *s, const char *model, const char *only) {
    bool quick = strcmp(only, "quick") == 0 && strcmp(model, "mlp") == 0;
    return strcmp(only, "full") == 0 || strcmp(only, car_placement_text(s->placement)) == 0 ||
           ((quick || strcmp(only, "ci") == 0) && !s->full);
}

/* Snapshots, held for a while or of two kinds, once for each placement. */
static int count_failed_snapshots(car_transport *transport, const car_placement_setting *s, car_rule rule) {
    int failed = 0;
    for (int weights_every = 0; weights_every <= 3; weights_every += 3) {
        car_placement_setting setting = *s;
        setting.snapshot_every = weights_every ? 2 : 3;
        setting.weights_every = weights_every;
        failed += !car_placement_snapshots(transport, &setting, "mlp", rule, weights_every != 0);
    }
    return failed;
}

int main(int argc, char **argv) {
    car_context_config config = car_context_config_default();
    car_context *context = NULL;
    car_transport *transport = NULL;
    const char *only = argc > 1 ? argv[1] : "ci";
    int failed = 0, run = 0;
    config.log = log_line;
    if (car_context_create(&config, &context) != CAR_OK || car_transport_open(context, &transport) != CAR_OK) {
        fprintf(stderr, "%s\n", context ? car_context_error(context) : "no context");
        return 1;
    }
    for (size_t s = 0; s < (size_t)car_placement_setting_count; s++) {
        for (size_t m = 0; m < 3; m++) {
            for (size_t r = 0; r < 3; r++) {
                if (is_chosen(&car_placement_settings[s], car_placement_models[m], only) &&
                    car_placement_ranks(&car_placement_settings[s], car_placement_rules[r]) ==
                        car_transport_size(transport)) {
                    bool guarded =
                        m == 0 && car_placement_settings[s].workers == 3; /* besides, once for each placement */
                    for (int g = 0; g <= guarded; g++) {
                        failed += !car_placement_run(transport, &car_placement_settings[s], car_placement_models[m],
                                                     car_placement_rules[r], g == 1);
                        run++;
                    }
                    if (guarded) {
                        failed += count_failed_snapshots(transport, &car_placement_settings[s], car_placement_rules[r]);
                        run += 2;
                    }
                }
            }
        }
    }
    if (car_transport_rank(transport) == 0) {
        printf("%d cases, %d failed\n", run, failed);
    }
    if (run == 0) {
        fprintf(stderr, "no case for this number of ranks\n");
        failed++;
    }
    car_transport_close(transport);
    car_context_destroy(context);
    return failed > 0;
}
