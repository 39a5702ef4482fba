/* Snapshots of runs over ranks, over any transport: taken on the way they must be, to the bit, what a drained run has after the
 * same step, and training must go on while one is held. */
#ifndef CAR_TESTS_SNAPSHOTS_H
#define CAR_TESTS_SNAPSHOTS_H

#include <pthread.h>

#include "engine/placements.h"

enum { CAR_SNAPSHOTS_MOST = 48 };

/* What rank 0 does with snapshots: keeps a copy of each, and gives it back at once or, to show that nobody waits for it,
 * when a step after it has been reported. */
typedef struct car_snapshot_keeper {
    car_rank *rank;
    const car_placement_setting *setting;
    bool holds;
    car_snapshot *snapshots[CAR_SNAPSHOTS_MOST];
    int count, held_while_reported;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int64_t held;     /* version of the snapshot that is to be given back; 0: none */
    int64_t reported; /* steps */
    bool ending;
} car_snapshot_keeper;

/* Sets what the training config says of snapshots, by the setting. */
void car_snapshots_open(car_snapshot_keeper *keeper, const car_placement_setting *setting, bool holds,
                        car_trainer_config *training);
void car_snapshots_note_report(car_snapshot_keeper *keeper, int64_t step); /* of those that hold */
void car_snapshots_close(car_snapshot_keeper *keeper);
/* How many there must be of a run of so many steps. */
int car_snapshots_expected(const car_placement_setting *setting, int64_t steps);
/* Whether two snapshots have the same bits, in all parts or in the weights. */
bool car_snapshots_are_equal(const car_graph *graph, const car_snapshot *a, const car_snapshot *b, bool whole);
bool car_snapshots_is_whole(const car_placement_setting *setting, const car_snapshot *snapshot);

/* One rank's share of two runs, the first with snapshots on the way, the second drained at each of these steps. Called by all
 * ranks; the first compares and prints a line. */
bool car_placement_snapshots(car_transport *transport, const car_placement_setting *setting, const char *model,
                             car_rule rule, bool guarded);

#endif
