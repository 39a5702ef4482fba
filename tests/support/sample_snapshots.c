/* Snapshots with values derived from a key: see sample_snapshots.h. */
#include "support/sample_snapshots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

float *car_sample_snapshot_values(const car_rig *rig, car_snapshot_part part, int param, uint64_t key, size_t *bytes) {
    static const uint32_t odd[] = {0x80000000u, 1u, 0x007fffffu, 0x7f800000u, 0x7fc00001u, 0xff7fffffu};
    size_t count = (size_t)car_shape_elements(car_graph_param(rig->graph, param)->shape);
    uint64_t own_key = car_random_mix(key * CAR_SNAPSHOT_PARTS + part) + (uint64_t)param;
    uint32_t *values = malloc(count * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        uint64_t drawn = car_random_u64(own_key, i);
        values[i] = drawn % 3 ? (uint32_t)(drawn >> 32) : odd[drawn / 3 % (sizeof odd / sizeof *odd)];
    }
    *bytes = count * sizeof *values;
    return (float *)values;
}

void car_sample_snapshot_fill(const car_rig *rig, car_snapshot *snapshot, uint64_t key) {
    for (int part = 0; part < CAR_SNAPSHOT_PARTS; part++) {
        for (int p = 0; p < car_graph_param_count(rig->graph); p++) {
            if (car_snapshot_has(snapshot, (car_snapshot_part)part, p)) {
                size_t bytes = 0;
                float *values = car_sample_snapshot_values(rig, (car_snapshot_part)part, p, key, &bytes);
                car_rig_expect_ok(rig, car_snapshot_set(snapshot, (car_snapshot_part)part, p, values));
                free(values);
            }
        }
    }
}

car_snapshot *car_sample_snapshot_make(const car_rig *rig, bool previous, int states, uint64_t key) {
    car_snapshot *snapshot = NULL;
    car_rig_expect_ok(rig, car_snapshot_create(rig->program, rig->arena, previous, states, &snapshot));
    car_sample_snapshot_fill(rig, snapshot, key);
    return snapshot;
}

bool car_sample_snapshot_part_is(const car_rig *rig, const car_snapshot *snapshot, car_snapshot_part part,
                                 uint64_t key) {
    bool same = true;
    for (int p = 0; p < car_graph_param_count(rig->graph); p++) {
        if (car_snapshot_has(snapshot, part, p)) {
            size_t bytes = 0;
            float *values = car_sample_snapshot_values(rig, part, p, key, &bytes), *found = malloc(bytes);
            assert_non_null(found);
            car_rig_expect_ok(rig, car_snapshot_get(snapshot, part, p, found));
            same = same && memcmp(found, values, bytes) == 0;
            free(found);
            free(values);
        }
    }
    return same;
}

bool car_sample_snapshot_is(const car_rig *rig, const car_snapshot *snapshot, uint64_t key) {
    bool same = true;
    for (int part = 0; part < CAR_SNAPSHOT_PARTS; part++) {
        same = same && car_sample_snapshot_part_is(rig, snapshot, (car_snapshot_part)part, key);
    }
    return same;
}
