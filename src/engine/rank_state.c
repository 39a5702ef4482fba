/* The state that training goes on from: drawn, gathered to rank 0, spread from there, or passed around between runs.
 *
 * After a run the newest version of a bundle is with the rank that made it; others may be left with older ones. */
#include <string.h>

#include "engine/cut_internal.h"
#include "engine/rank_internal.h"

/* ---- where things are ------------------------------------------------------------------------ */

int car_rank_keeper_of(const car_rank *rank, int bundle) {
    int64_t last = rank->newest > 0 ? rank->newest - 1 : 0;
    return car_plan_rank_of(rank->plan, car_plan_owner(rank->plan, last, rank->partition->bundles[bundle].home));
}

/* The version before the newest, if it is here still. */
static car_block *find_previous(car_rank *rank, int bundle) {
    const car_holding_of_bundle *h = &rank->holding[bundle];
    int64_t version = rank->newest > 0 ? rank->newest - 1 : CAR_VERSION_BEFORE;
    return h->places == 2 ? car_rank_find_weights(rank, bundle, version) : h->older;
}

/* A part of a parameter of a home on its keeper; NULL if there is none. Of bf16's previous version there are only rounded
 * weights: `room` takes them as floats. */
static float *find_part(car_rank *rank, int bundle, const car_part *part, car_cut_part which, float *room) {
    car_holding_of_bundle *h = &rank->holding[bundle];
    const car_block *block = NULL;
    if (which >= CAR_CUT_STATE_0) {
        int state = (int)which - CAR_CUT_STATE_0;
        bool has = state < car_optimizer_states(rank->optimizer);
        return has ? car_optimizer_state(rank->optimizer, state, part->param) : NULL;
    }
    block = which == CAR_CUT_WEIGHTS ? car_rank_find_weights(rank, bundle, rank->newest)
            : h->kept                ? h->kept
                                     : find_previous(rank, bundle);
    if (which == CAR_CUT_WEIGHTS && h->master) {
        return (float *)(h->master->data + part->home_offset);
    }
    if (block && h->master) {
        car_engine_unround(rank->program, part->param, block->data + part->offset, room);
        return room;
    }
    return block ? (float *)(block->data + part->offset) : NULL;
}

/* Whether a worker is stale for a bundle here in the first step after a restart; or whoever asks for the state before that
 * step gets it from here. */
static bool wants_older(const car_rank *rank, int bundle) {
    const car_bundle *b = &rank->partition->bundles[bundle];
    if (bundle < rank->stages && car_plan_rank_of(rank->plan, car_plan_owner(rank->plan, 0, b->home)) == rank->device) {
        return true;
    }
    for (int i = 0; i < rank->batches; i++) {
        for (int c = 0; c < rank->bundles; c++) { /* those that find their weights in this bundle's block */
            const car_bundle *user = &rank->partition->bundles[c];
            if (car_usage_holding(rank->usage, c)->block == bundle && car_plan_delay(rank->plan, i, b->home) > 0 &&
                car_rank_has(rank, 0, i, user->stage)) {
                return true;
            }
        }
    }
    return false;
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* Where version 0 of what follows is put; NULL: not here. */
static car_block *first_place(const car_rank *rank, const car_holding_of_bundle *h) {
    return h->places > 0 ? h->held[0].block : h->owned ? h->held[rank->newest % 2].block : NULL;
}

/* zero: of what came by the last run only the newest version stays, with its owner. */
static void drop_passing(car_rank *rank, car_holding_of_bundle *h) {
    car_held *stays = &h->held[rank->newest % 2], *goes = &h->held[(rank->newest + 1) % 2];
    car_block *block = h->owned ? stays->block : NULL;
    car_block_drop(rank, goes->block);
    car_block_drop(rank, h->owned ? NULL : stays->block);
    h->held[0].block = block;
    h->held[1].block = NULL;
}

/* What is in the first places is version 0 of what follows. */
static void settle(car_rank *rank) {
    for (int b = 0; b < rank->bundles; b++) {
        car_holding_of_bundle *h = &rank->holding[b];
        car_block_drop(rank, h->kept);
        h->kept = NULL;
        if (h->places == 0) {
            drop_passing(rank, h);
            car_rank_drop_copies(rank, b);
        }
        h->held[0].version = h->places > 0 || h->owned ? 0 : CAR_NONE;
        h->held[1].version = rank->goes_on && h->places == 2 ? CAR_VERSION_BEFORE : CAR_NONE;
        h->made = 0;
    }
    rank->newest = 0;
}

/* One rank with all workers: the two newest versions change their names. */
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

/* What kernels derive of all that is held. */
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

/* Room for the floats of any parameter. */
static car_status allocate_room(const car_rank *rank, float **out, size_t *bytes) {
    *bytes = 0;
    for (int p = 0; p < car_graph_param_count(rank->graph); p++) {
        size_t own = car_program_param_bytes(rank->program, p);
        *bytes = own > *bytes ? own : *bytes;
    }
    return car_context_allocate(rank->context, *bytes, 1, out);
}

car_status car_rank_settle_versions(car_rank *rank, bool goes_on) {
    rank->goes_on = goes_on;
    settle(rank);
    return refresh(rank);
}

car_status car_rank_initialize(car_rank *rank, uint64_t seed) {
    float *room = NULL;
    size_t most = 0;
    car_status status = CAR_OK;
    CAR_TRY(allocate_room(rank, &room, &most));
    for (int b = 0; b < rank->bundles; b++) {
        const car_holding_of_bundle *h = &rank->holding[b];
        const car_block *block = first_place(rank, h);
        for (int c = 0; block && c < h->layout.count; c++) {
            const car_part *part = &h->layout.parts[c];
            if (!part->first) {
                continue;
            }
            float *floats = h->master ? (float *)(h->master->data + part->home_offset) : room;
            CAR_TRY(car_weights_draw(rank->program, part->param, seed, floats));
            car_engine_round(rank->program, part->param, floats, block->data + part->offset);
        }
    }
    status = car_rank_settle_versions(rank, false);
done:
    car_context_release(rank->context, room, room ? most : 0, 1);
    return status;
}

/* ---- gathering ------------------------------------------------------------------------------- */

static car_status gather_part(car_rank *rank, car_cut *cut, int bundle, const car_part *part, car_cut_part which,
                              float *room) {
    int keeper = car_rank_keeper_of(rank, bundle);
    float *to = cut ? car_cut_data(cut, which, part->param) : NULL;
    float *from = keeper == rank->device ? find_part(rank, bundle, part, which, room) : NULL;
    if (keeper == rank->device && !from && which == CAR_CUT_PREVIOUS) {
        /* Before the first step, or where nobody is ever stale. */
        from = find_part(rank, bundle, part, CAR_CUT_WEIGHTS, room);
    }
    if (keeper == rank->device && !from) {
        return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "rank %d has not got what it should keep of %s",
                                rank->device, car_graph_param(rank->graph, part->param)->name);
    }
    if (to && from && keeper == 0 && rank->device == 0) {
        memcpy(to, from, part->bytes);
        return CAR_OK;
    }
    return car_transport_hand_over(rank->transport, keeper, 0, rank->device == 0 ? to : from, part->bytes);
}

/* What rank 0's cut has: told to all. */
static car_status agree_on_parts(car_rank *rank, car_cut *cut, int32_t *parts) {
    int32_t mask = 0;
    for (int which = 0; rank->device == 0 && which < CAR_CUT_PARTS; which++) {
        for (int p = 0; p < car_graph_param_count(rank->graph); p++) {
            mask |= car_cut_has(cut, (car_cut_part)which, p) ? 1 << which : 0;
        }
    }
    *parts = mask;
    return car_transport_broadcast(rank->transport, 0, parts, sizeof *parts);
}

/* Of what ranks agreed on, what there is of a parameter. */
static bool is_exchanged(const car_rank *rank, int32_t parts, int which, const car_part *part) {
    int state = which - CAR_CUT_STATE_0;
    return (parts & 1 << which) &&
           (state < 0 || car_optimizer_keeps(&rank->config.optimizer, rank->graph, part->param, state));
}

car_status car_rank_gather(car_rank *rank, car_cut *cut) {
    int32_t parts = 0;
    float *room = NULL;
    size_t most = 0;
    car_status status = CAR_OK;
    CAR_TRY(allocate_room(rank, &room, &most));
    CAR_TRY(agree_on_parts(rank, cut, &parts));
    for (int b = 0; b < rank->stages; b++) {
        const car_layout *layout = &rank->holding[b].layout;
        for (int c = 0; c < layout->count; c++) {
            const car_part *part = &layout->parts[c];
            for (int which = 0; part->first && which < CAR_CUT_PARTS; which++) {
                if (is_exchanged(rank, parts, which, part)) {
                    CAR_TRY(gather_part(rank, rank->device == 0 ? cut : NULL, b, part, (car_cut_part)which, room));
                }
            }
        }
    }
    if (rank->device == 0) {
        const car_cut_numbers numbers = {.step = rank->first_step,
                                         .updates = rank->updates,
                                         .norm = rank->last_norm,
                                         .since = car_optimizer_since(rank->optimizer)};
        car_cut_set_numbers(cut, &numbers);
    }
done:
    car_context_release(rank->context, room, room ? most : 0, 1);
    return status;
}

/* ---- spreading ------------------------------------------------------------------------------- */

car_status car_rank_put_part(car_rank *rank, int param, car_cut_part which, const float *data) {
    size_t bytes = car_program_param_bytes(rank->program, param);
    car_status status = CAR_OK;
    if (which >= CAR_CUT_STATE_0) {
        int state = (int)which - CAR_CUT_STATE_0;
        float *to =
            state < car_optimizer_states(rank->optimizer) ? car_optimizer_state(rank->optimizer, state, param) : NULL;
        if (to) {
            memcpy(to, data, bytes);
        }
        return CAR_OK;
    }
    for (int b = 0; b < rank->bundles; b++) {
        car_holding_of_bundle *h = &rank->holding[b];
        for (int c = 0; c < h->layout.count; c++) {
            if (h->layout.parts[c].param != param || !h->layout.parts[c].first) {
                continue;
            }
            car_block *block = first_place(rank, h);
            if (which == CAR_CUT_PREVIOUS && h->places == 2) {
                block = h->held[1].block;
            } else if (which == CAR_CUT_PREVIOUS && wants_older(rank, b)) {
                if (!h->older) {
                    CAR_TRY(car_block_create(rank, CAR_MEMORY_WEIGHTS, h->layout.bytes, &h->older));
                }
                block = h->older;
            } else if (which == CAR_CUT_PREVIOUS) {
                block = NULL;
            }
            const car_part *part = &h->layout.parts[c];
            if (block) {
                car_engine_round(rank->program, param, data, block->data + part->offset);
            }
            if (h->master && which == CAR_CUT_WEIGHTS) {
                memcpy(h->master->data + part->home_offset, data, bytes);
            }
        }
    }
done:
    return status;
}

/* From rank 0's cut to all. */
static car_status share_parts(car_rank *rank, car_cut *cut, int32_t parts, const car_part *part, float *room) {
    car_status status = CAR_OK;
    for (int which = 0; which < CAR_CUT_PARTS; which++) {
        if (is_exchanged(rank, parts, which, part)) {
            if (rank->device == 0) {
                memcpy(room, car_cut_data(cut, (car_cut_part)which, part->param), part->bytes);
            }
            CAR_TRY(car_transport_broadcast(rank->transport, 0, room, part->bytes));
            CAR_TRY(car_rank_put_part(rank, part->param, (car_cut_part)which, room));
        }
    }
done:
    return status;
}

static car_status share(car_rank *rank, car_cut *cut, int32_t parts) {
    float *room = NULL;
    size_t most = 0;
    car_status status = CAR_OK;
    CAR_TRY(allocate_room(rank, &room, &most));
    for (int b = 0; b < rank->stages; b++) {
        const car_layout *layout = &rank->holding[b].layout;
        for (int c = 0; c < layout->count; c++) {
            if (layout->parts[c].first) {
                CAR_TRY(share_parts(rank, cut, parts, &layout->parts[c], room));
            }
        }
    }
    status = car_rank_settle_versions(rank, (parts & 1 << CAR_CUT_PREVIOUS) != 0);
done:
    car_context_release(rank->context, room, room ? most : 0, 1);
    return status;
}

car_status car_rank_spread(car_rank *rank, car_cut *cut) {
    car_cut_numbers numbers = {0};
    int32_t parts = 0;
    car_status status = CAR_OK;
    CAR_TRY(agree_on_parts(rank, cut, &parts));
    if (rank->device == 0) {
        numbers = car_cut_get_numbers(cut);
    }
    CAR_TRY(car_transport_broadcast(rank->transport, 0, &numbers, sizeof numbers));
    if (numbers.step == 0) {
        parts &= ~(1 << CAR_CUT_PREVIOUS); /* the same as the weights */
    }
    rank->first_step = numbers.step;
    if (rank->device == 0) {
        car_rank_report_from(rank, rank->first_step);
    }
    rank->updates = numbers.updates;
    rank->last_norm = numbers.norm;
    car_optimizer_set_since(rank->optimizer, numbers.since);
    CAR_TRY(share(rank, cut, parts));
done:
    return status;
}

/* Before a further run: everybody gets what the keepers have. */
car_status car_rank_go_on(car_rank *rank) {
    car_cut *cut = NULL;
    car_status status = CAR_OK;
    if (rank->newest == 0) {
        return CAR_OK;
    }
    if (rank->alone) {
        rank->goes_on = car_plan_delay(rank->plan, 0, 0) > 0;
        rename_versions(rank);
        return CAR_OK;
    }
    if (rank->device == 0) {
        CAR_TRY(car_rank_create_cut(rank, &cut));
    }
    CAR_TRY(car_rank_gather(rank, cut));
    CAR_TRY(car_rank_spread(rank, cut));
done:
    car_cut_destroy(cut);
    return status;
}

/* ---- views ----------------------------------------------------------------------------------- */

/* Where a home has no second version, there is only the newest. */
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
    return view_of(rank, &rank->newest_weights, false);
}

car_weights *car_rank_previous_weights(car_rank *rank) {
    return view_of(rank, &rank->previous_weights, true);
}

/* ---- agreement ------------------------------------------------------------------------------- */

car_status car_rank_agree(car_context *context, car_transport *transport, const char *what, const char *text) {
    enum { LENGTH = 160 };
    int size = car_transport_size(transport), rank = car_transport_rank(transport);
    char mine[LENGTH] = "", *all = NULL;
    car_status status = CAR_OK;
    strncpy(mine, text, sizeof mine - 1);
    CAR_TRY(car_context_allocate(context, (size_t)size, LENGTH, &all));
    CAR_TRY(car_transport_all_gather(transport, mine, LENGTH, all));
    for (int r = 1; r < size && status == CAR_OK; r++) {
        const char *other = all + (size_t)r * LENGTH;
        if (strcmp(all, other) != 0) {
            status = car_context_fail(context, CAR_ERROR_ARGUMENT,
                                      "rank %d has another %s than rank 0: %s%s%s. Start all ranks alike%s", r, what,
                                      other, all[0] ? ", not " : "", all, rank == r ? " (this is that rank)" : "");
        }
    }
done:
    car_context_release(context, all, all ? (size_t)size : 0, LENGTH);
    return status;
}
