/* The state that a run continues from. It can be initialized, gathered on rank 0, and spread from there; between runs,
 * ranks exchange it.
 *
 * After a run, the rank that made a bundle's newest version has it. Other ranks may have older versions. */
#include <string.h>

#include "engine/rank_internal.h"
#include "engine/snapshot_internal.h"

/* ---- finding the state ------------------------------------------------------------------------ */

int car_rank_keeper_of(const car_rank *rank, int bundle) {
    int64_t last = rank->newest > 0 ? rank->newest - 1 : 0;
    return car_rank_owner(rank, last, rank->partition->bundles[bundle].home);
}

/* The version before the newest, if this rank still has it. */
static car_block *find_previous(car_rank *rank, int bundle) {
    const car_holding_of_bundle *h = &rank->holding[bundle];
    int64_t version = rank->newest > 0 ? rank->newest - 1 : CAR_VERSION_BEFORE;
    return h->places == 2 ? car_rank_find_weights(rank, bundle, version) : h->older;
}

/* A state of the optimizer on this rank; NULL if there is none. */
static float *find_state(const car_rank *rank, int param, car_snapshot_part which) {
    int state = (int)which - CAR_SNAPSHOT_STATE_0;
    bool has = state < car_optimizer_states(rank->optimizer);
    return has ? car_optimizer_state(rank->optimizer, state, param) : NULL;
}

/* On the keeper of a bundle: finds one part of the state of a parameter; NULL if there is none. In bf16 the previous
 * version exists in bf16 only, so it is converted into `room`. */
static float *find_part(car_rank *rank, int bundle, const car_part *part, car_snapshot_part which, float *room) {
    car_holding_of_bundle *h = &rank->holding[bundle];
    if (which >= CAR_SNAPSHOT_STATE_0) {
        return find_state(rank, part->param, which);
    }
    const car_block *block = which == CAR_SNAPSHOT_WEIGHTS ? car_rank_find_weights(rank, bundle, rank->newest)
                             : h->kept                     ? h->kept
                                                           : find_previous(rank, bundle);
    if (which == CAR_SNAPSHOT_WEIGHTS && h->master) {
        return (float *)(h->master->data + part->home_offset);
    }
    if (block && h->master) {
        car_engine_unround(rank->program, part->param, block->data + part->offset, room);
        return room;
    }
    return block ? (float *)(block->data + part->offset) : NULL;
}

/* True if this rank needs the version before the first one: for a stale micro-batch of the first step after a restart,
 * or because it is the keeper, which has to provide that version for a snapshot before the first update. */
static bool wants_older(const car_rank *rank, int bundle) {
    const car_bundle *b = &rank->partition->bundles[bundle];
    if (bundle < rank->stages && car_rank_owner(rank, 0, b->home) == rank->device) {
        return true;
    }
    for (int i = 0; i < rank->batches; i++) {
        for (int c = 0; c < rank->bundles; c++) { /* the bundles whose weights lie in this bundle's block */
            const car_bundle *user = &rank->partition->bundles[c];
            if (car_usage_holding(rank->usage, c)->block == bundle && car_plan_delay(rank->plan, i, b->home) > 0 &&
                car_rank_has(rank, 0, i, user->stage)) {
                return true;
            }
        }
    }
    return false;
}

/* ---- initializing ----------------------------------------------------------------------------- */

/* The block for version 0 of the next run; NULL if it is not on this rank. */
static car_block *first_place(const car_rank *rank, const car_holding_of_bundle *h) {
    return h->places > 0 ? h->held[0].block : h->owned ? h->held[rank->newest % 2].block : NULL;
}

/* zero: drops the versions that the last run left on this rank, except the newest one on its owner. */
static void drop_passing(car_rank *rank, car_holding_of_bundle *h) {
    car_held *stays = &h->held[rank->newest % 2], *goes = &h->held[(rank->newest + 1) % 2];
    car_block *block = h->owned ? stays->block : NULL;
    car_block_drop(rank, goes->block);
    car_block_drop(rank, h->owned ? NULL : stays->block);
    h->held[0].block = block;
    h->held[1].block = NULL;
}

/* Turns the weights in the first places into version 0 of the next run. */
static void settle(car_rank *rank) {
    for (int b = 0; b < rank->bundles; b++) {
        car_holding_of_bundle *h = &rank->holding[b];
        car_block_clear(rank, &h->kept);
        if (h->places == 0) {
            drop_passing(rank, h);
            car_held_clear(rank, &h->copies[0]);
            car_held_clear(rank, &h->copies[1]);
        }
        h->held[0].version = h->places > 0 || h->owned ? 0 : CAR_NONE;
        h->held[1].version = rank->goes_on && h->places == 2 ? CAR_VERSION_BEFORE : CAR_NONE;
        h->made = 0;
    }
    rank->newest = 0;
}

/* On a rank with all workers the weights stay where they are. Only their version numbers change. */
static void rename_versions(car_rank *rank) {
    for (int b = 0; b < rank->bundles; b++) {
        car_holding_of_bundle *h = &rank->holding[b];
        if (h->places == 2 && rank->newest % 2 == 1) {
            car_held newest = h->held[1];
            h->held[1] = h->held[0];
            h->held[0] = newest;
        }
    }
    settle(rank);
}

/* Computes the derived weights of all versions that are kept. */
static car_status refresh(car_rank *rank) {
    const car_rank_thread *thread = &rank->thread[0];
    car_status status = CAR_OK;
    for (int b = 0; rank->alone && b < rank->stages; b++) {
        const car_stage *stage = &rank->partition->stages[b];
        car_weights view = thread->view;
        for (int v = 0; v < rank->holding[b].places; v++) {
            const car_held *held = &rank->holding[b].held[v];
            if (held->version != CAR_NONE) {
                car_rank_bind(&view, &rank->holding[b].layout, held);
                CAR_TRY(car_weights_refresh(&view, thread->lane, stage->first, stage->end));
            }
        }
    }
done:
    return status;
}

static size_t room_bytes(const car_rank *rank) {
    size_t most = 0;
    for (int p = 0; p < car_graph_param_count(rank->graph); p++) {
        size_t bytes = car_program_param_bytes(rank->program, p);
        most = bytes > most ? bytes : most;
    }
    return most;
}

car_status car_rank_create_room(const car_rank *rank, float **out) {
    return car_context_allocate(rank->context, room_bytes(rank), 1, out);
}

void car_rank_release_room(const car_rank *rank, float *room) {
    car_context_release(rank->context, room, room_bytes(rank), 1);
}

car_status car_rank_settle_versions(car_rank *rank, bool goes_on) {
    rank->goes_on = goes_on;
    settle(rank);
    return refresh(rank);
}

car_status car_rank_initialize(car_rank *rank, uint64_t seed) {
    CAR_REQUIRE(NULL, rank);
    float *room = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_rank_create_room(rank, &room));
    for (int b = 0; b < rank->bundles; b++) {
        const car_holding_of_bundle *h = &rank->holding[b];
        const car_block *block = first_place(rank, h);
        for (const car_part *part = NULL; block && (part = car_layout_next(&h->layout, part));) {
            float *floats = h->master ? (float *)(h->master->data + part->home_offset) : room;
            CAR_TRY(car_weights_draw(rank->program, part->param, seed, floats));
            car_engine_round(rank->program, part->param, floats, block->data + part->offset);
        }
    }
    status = car_rank_settle_versions(rank, false);
done:
    car_rank_release_room(rank, room);
    return status;
}

/* ---- shared by all ranks ---------------------------------------------------------------------- */

car_status car_rank_all_succeed(car_rank *rank, car_status own) {
    car_status status = own;
    for (int r = 0; r < rank->devices; r++) {
        int32_t theirs = (int32_t)own;
        car_status told = car_transport_broadcast(rank->transport, r, &theirs, sizeof theirs);
        if (status == CAR_OK && (told != CAR_OK || theirs != CAR_OK)) {
            status = told != CAR_OK ? told
                                    : car_context_fail(rank->context, (car_status)theirs, "rank %d: %s", r,
                                                       car_status_text((car_status)theirs));
        }
    }
    return status;
}

bool car_rank_next_segment(const car_rank *rank, int stage, int32_t parts, car_segment *s) {
    s->begin += s->part ? s->part->bytes : 0;
    for (; s->which < CAR_SNAPSHOT_PARTS; s->which++) {
        int state = s->which - CAR_SNAPSHOT_STATE_0;
        while ((s->part = car_layout_next(&rank->holding[stage].layout, s->part))) {
            bool kept = state < 0 || car_optimizer_keeps(&rank->config.optimizer, rank->graph, s->part->param, state);
            if (kept && (parts & 1 << s->which)) {
                return true;
            }
        }
    }
    return false;
}

/* ---- gathering ------------------------------------------------------------------------------- */

car_status car_rank_get_part(car_rank *rank, int bundle, const car_part *part, car_snapshot_part which, float *room,
                             float **out) {
    *out = find_part(rank, bundle, part, which, room);
    if (!*out && which == CAR_SNAPSHOT_PREVIOUS) { /* before the first step, or if no micro-batch is ever stale */
        *out = find_part(rank, bundle, part, CAR_SNAPSHOT_WEIGHTS, room);
    }
    return *out ? CAR_OK
                : car_context_fail(rank->context, CAR_ERROR_INTERNAL, "rank %d lacks data of %s that it should keep",
                                   rank->device, car_graph_param(rank->graph, part->param)->name);
}

static car_status gather_part(car_rank *rank, car_snapshot *snapshot, int bundle, const car_segment *s, float *room) {
    int keeper = car_rank_keeper_of(rank, bundle);
    car_snapshot_part which = (car_snapshot_part)s->which;
    float *to = rank->device == 0 ? car_snapshot_data(snapshot, which, s->part->param) : NULL, *from = NULL;
    car_status status = CAR_OK;
    if (keeper == rank->device) {
        CAR_TRY(car_rank_get_part(rank, bundle, s->part, which, room, &from));
    }
    if (to && from) {
        memcpy(to, from, s->part->bytes);
    }
    status = car_transport_hand_over(rank->transport, keeper, 0, rank->device == 0 ? to : from, s->part->bytes);
done:
    return status;
}

/* Tells all ranks which parts the snapshot of rank 0 has. */
static car_status agree_on_parts(car_rank *rank, car_snapshot *snapshot, int32_t *parts) {
    int32_t mask = 0;
    for (int which = 0; rank->device == 0 && which < CAR_SNAPSHOT_PARTS; which++) {
        for (int p = 0; p < car_graph_param_count(rank->graph); p++) {
            mask |= car_snapshot_has(snapshot, (car_snapshot_part)which, p) ? 1 << which : 0;
        }
    }
    *parts = mask;
    return car_transport_broadcast(rank->transport, 0, parts, sizeof *parts);
}

car_status car_rank_gather(car_rank *rank, car_snapshot *snapshot) {
    CAR_REQUIRE(NULL, rank);
    if (rank->device == 0) {
        CAR_REQUIRE(rank->context, snapshot);
    }
    int32_t parts = 0;
    float *room = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_rank_all_succeed(rank, car_rank_create_room(rank, &room)));
    CAR_TRY(agree_on_parts(rank, snapshot, &parts));
    for (int b = 0; b < rank->stages; b++) {
        for (car_segment s = {0}; car_rank_next_segment(rank, b, parts, &s);) {
            CAR_TRY(gather_part(rank, snapshot, b, &s, room));
        }
    }
    if (rank->device == 0) {
        car_snapshot_numbers numbers = {.step = rank->first_step, .updates = rank->updates, .norm = rank->last_norm};
        car_optimizer_get_since(rank->optimizer, &numbers);
        car_snapshot_set_numbers(snapshot, &numbers);
    }
done:
    car_rank_release_room(rank, room);
    return status;
}

/* ---- spreading ------------------------------------------------------------------------------- */

/* The block for a bundle's weights, or for its previous weights; NULL if they are not on this rank. */
static car_status find_target(car_rank *rank, int bundle, car_snapshot_part which, car_block **out) {
    car_holding_of_bundle *h = &rank->holding[bundle];
    bool previous = which == CAR_SNAPSHOT_PREVIOUS, older = previous && h->places < 2 && wants_older(rank, bundle);
    car_status status = CAR_OK;
    if (older && !h->older) {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_WEIGHTS, h->layout.bytes, &h->older));
        rank->holds_older = true;
    }
    *out = !previous ? first_place(rank, h) : h->places == 2 ? h->held[1].block : older ? h->older : NULL;
done:
    return status;
}

car_status car_rank_put_part(car_rank *rank, int param, car_snapshot_part which, const float *data) {
    float *state = which >= CAR_SNAPSHOT_STATE_0 ? find_state(rank, param, which) : NULL;
    car_status status = CAR_OK;
    if (state) {
        memcpy(state, data, car_program_param_bytes(rank->program, param));
    }
    for (int b = 0; which < CAR_SNAPSHOT_STATE_0 && b < rank->bundles; b++) {
        const car_holding_of_bundle *h = &rank->holding[b];
        const car_part *part = car_layout_find(&h->layout, param);
        car_block *block = NULL;
        if (!part) {
            continue;
        }
        CAR_TRY(find_target(rank, b, which, &block));
        if (block) {
            car_engine_round(rank->program, param, data, block->data + part->offset);
        }
        if (h->master && which == CAR_SNAPSHOT_WEIGHTS) {
            memcpy(h->master->data + part->home_offset, data, part->bytes);
        }
    }
done:
    return status;
}

/* Sends the snapshot of rank 0 to all ranks. A rank that runs out of memory keeps taking part until all ranks know
 * about it. */
static car_status share(car_rank *rank, car_snapshot *snapshot, int32_t parts) {
    float *room = NULL;
    car_status status = CAR_OK, own = CAR_OK;
    CAR_TRY(car_rank_all_succeed(rank, car_rank_create_room(rank, &room)));
    for (int b = 0; b < rank->stages; b++) {
        for (car_segment s = {0}; car_rank_next_segment(rank, b, parts, &s);) {
            car_snapshot_part which = (car_snapshot_part)s.which;
            if (rank->device == 0) {
                memcpy(room, car_snapshot_data(snapshot, which, s.part->param), s.part->bytes);
            }
            CAR_TRY(car_transport_broadcast(rank->transport, 0, room, s.part->bytes));
            own = own == CAR_OK ? car_rank_put_part(rank, s.part->param, which, room) : own;
        }
    }
    CAR_TRY(car_rank_all_succeed(rank, own));
    status = car_rank_settle_versions(rank, (parts & 1 << CAR_SNAPSHOT_PREVIOUS) != 0);
done:
    car_rank_release_room(rank, room);
    return status;
}

car_status car_rank_spread(car_rank *rank, car_snapshot *snapshot) {
    CAR_REQUIRE(NULL, rank);
    if (rank->device == 0) {
        CAR_REQUIRE(rank->context, snapshot);
    }
    car_snapshot_numbers numbers = {0};
    int32_t parts = 0;
    car_status status = CAR_OK;
    CAR_TRY(agree_on_parts(rank, snapshot, &parts));
    if (rank->device == 0) {
        numbers = car_snapshot_get_numbers(snapshot);
    }
    CAR_TRY(car_transport_broadcast(rank->transport, 0, &numbers, sizeof numbers));
    if (numbers.step == 0) {
        parts &= ~(1 << CAR_SNAPSHOT_PREVIOUS); /* the same as the weights */
    }
    rank->first_step = numbers.step;
    rank->updates = numbers.updates;
    rank->last_norm = numbers.norm;
    car_optimizer_set_since(rank->optimizer, &numbers);
    CAR_TRY(share(rank, snapshot, parts));
done:
    return status;
}

/* Before a further run: gives all ranks the state that the keepers have. */
car_status car_rank_go_on(car_rank *rank) {
    car_snapshot *snapshot = NULL;
    car_status status = CAR_OK;
    if (rank->newest == 0) {
        return CAR_OK;
    }
    if (rank->alone) {
        rank->goes_on = car_rank_has_previous(rank);
        rename_versions(rank);
        return CAR_OK;
    }
    CAR_TRY(car_rank_all_succeed(rank, rank->device == 0 ? car_rank_create_snapshot(rank, &snapshot) : CAR_OK));
    CAR_TRY(car_rank_gather(rank, snapshot));
    CAR_TRY(car_rank_spread(rank, snapshot));
done:
    car_snapshot_destroy(snapshot);
    return status;
}

/* ---- views ----------------------------------------------------------------------------------- */

/* Makes a view of the newest or the previous version. If a stage has no previous version, the view has the newest
 * one. */
static car_weights *view_of(car_rank *rank, car_weights *view, bool previous) {
    for (int b = 0; b < rank->stages; b++) {
        car_holding_of_bundle *h = &rank->holding[b];
        car_held *held = &h->held[car_holding_place(h->places, rank->newest)];
        car_held *other = &h->held[h->places > 0 ? h->places - 1 - car_holding_place(h->places, rank->newest) : 0];
        bool has = previous && find_previous(rank, b) != NULL;
        if (held->block) {
            car_rank_bind(view, &h->layout, has ? other : held);
        }
        for (int c = 0; c < h->layout.count; c++) {
            const car_part *part = &h->layout.parts[c];
            view->master[part->param] = h->master && !has ? h->master->data + part->home_offset : NULL;
        }
    }
    return view;
}

car_weights *car_rank_weights(car_rank *rank) {
    return rank ? view_of(rank, &rank->newest_weights, false) : NULL;
}

car_weights *car_rank_previous_weights(car_rank *rank) {
    return rank ? view_of(rank, &rank->previous_weights, true) : NULL;
}

/* ---- agreement ------------------------------------------------------------------------------- */

car_status car_rank_agree(car_context *context, car_transport *transport, const char *what, const char *text) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, transport);
    CAR_REQUIRE(context, what);
    CAR_REQUIRE(context, text);
    enum { LENGTH = 160 };
    char first[LENGTH] = "";
    car_status status = CAR_OK;
    for (int r = 0; r < car_transport_size(transport);
         r++) { /* one rank at a time, so that no rank needs memory for all texts */
        char other[LENGTH] = "";
        strncpy(other, text, sizeof other - 1);
        CAR_TRY(car_transport_broadcast(transport, r, other, sizeof other));
        if (r == 0) {
            memcpy(first, other, sizeof first);
        }
        if (status == CAR_OK && strcmp(first, other) != 0) {
            status = car_context_fail(
                context, CAR_ERROR_ARGUMENT,
                "rank %d differs from rank 0 in its %s: %s%s%s. It must be the same on all ranks%s", r, what, other,
                first[0] ? ", not " : "", first, car_transport_rank(transport) == r ? " (this is that rank)" : "");
        }
    }
done:
    return status;
}
