/* What a rank holds: blocks with the versions of weights that the plan wants here, and sums. */
#include <string.h>

#include "engine/rank_internal.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

car_status car_block_create(car_rank *rank, car_memory category, size_t bytes, car_block **out) {
    car_block *block = NULL;
    void *data = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(rank->context, 1, sizeof *block, &block));
    CAR_TRY(car_arena_allocate(rank->arena, category, bytes, &data));
    block->data = data;
    block->references = 1;
    *out = block;
    block = NULL;
done:
    car_context_release(rank->context, block, 1, sizeof *block);
    return status;
}

void car_block_drop(car_rank *rank, car_block *block) {
    if (block && --block->references == 0) {
        car_arena_release(rank->arena, block->data);
        car_context_release(rank->context, block, 1, sizeof *block);
    }
}

void car_block_clear(car_rank *rank, car_block **block) {
    car_block_drop(rank, *block);
    *block = NULL;
}

/* Drops the reference of a table of this rank. */
static void let_go(car_rank *rank, car_block *block) {
    if (block && block->references > 1) {
        car_arena_assign(rank->arena, block->data, CAR_MEMORY_MESSAGES);
    }
    car_block_drop(rank, block);
}

void car_held_clear(car_rank *rank, car_held *held) {
    let_go(rank, held->block);
    *held = (car_held){.version = CAR_NONE};
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* True if a parameter's size keeps the next parameter aligned. Such parameters come first in a block, odd ones last. */
static bool is_even(const car_rank *rank, int param) {
    return car_program_copy_bytes(rank->program, param) % 64 == 0;
}

static bool belongs(const car_rank *rank, int bundle, int param) {
    const car_bundle *b = &rank->partition->bundles[bundle];
    if (b->param != CAR_NONE) {
        return param == b->param;
    }
    for (int t = rank->stages; t < rank->bundles; t++) { /* a tied parameter belongs to its home */
        if (rank->partition->bundles[t].stage == b->stage && rank->partition->bundles[t].param == param) {
            return false;
        }
    }
    return true;
}

static bool is_first_in_stage(const car_rank *rank, const car_stage *stage, int l, int slot) {
    const car_op *op = car_graph_op(rank->graph, l);
    for (int u = car_graph_op(rank->graph, stage->first)->first_use; u < op->first_use + slot; u++) {
        if (car_graph_use_param(rank->graph, u) == op->params[slot]) {
            return false;
        }
    }
    return true;
}

const car_part *car_layout_next(const car_layout *layout, const car_part *after) {
    const car_part *part = after ? after + 1 : layout->parts, *end = layout->parts + layout->count;
    while (part < end && !part->first) {
        part++;
    }
    return part < end ? part : NULL;
}

const car_part *car_layout_find(const car_layout *layout, int param) {
    const car_part *part = car_layout_next(layout, NULL);
    while (part && part->param != param) {
        part = car_layout_next(layout, part);
    }
    return part;
}

/* Weights and sums have different offsets, because weights may be rounded. The sums of further uses come last. */
static void add_part(const car_rank *rank, car_layout *layout, int l, int index, bool first) {
    int param = car_graph_op(rank->graph, l)->params[index];
    size_t bytes = car_program_param_bytes(rank->program, param);
    size_t derived = index == 0 ? car_program_derived_bytes(rank->program, l) : 0;
    layout->parts[layout->count] =
        (car_part){.op = l,
                   .index = index,
                   .param = param,
                   .first = first,
                   .offset = first ? layout->bytes : car_layout_find(layout, param)->offset,
                   .sum_offset = layout->sum_bytes,
                   .home_offset = first ? layout->sum_bytes : car_layout_find(layout, param)->sum_offset,
                   .bytes = bytes,
                   .derived_offset = layout->derived_bytes,
                   .derived_bytes = derived};
    layout->count++;
    layout->bytes += first ? car_program_copy_bytes(rank->program, param) : 0;
    layout->master_bytes += first ? bytes : 0;
    layout->rounded = layout->rounded || car_engine_is_rounded(rank->program, param);
    layout->sum_bytes += bytes;
    layout->derived_bytes += car_round_up(derived, 64);
}

/* Adds the parts of a bundle: those that are a parameter's first use in the stage, or the others. */
static void add_parts(const car_rank *rank, int bundle, bool first) {
    const car_stage *stage = &rank->partition->stages[rank->partition->bundles[bundle].stage];
    for (int even = 1; even >= 0; even--) {
        for (int n = 0; n < stage->end - stage->first; n++) {
            int l = first ? stage->end - 1 - n : stage->first + n; /* further uses are added up in ascending order */
            const car_op *op = car_graph_op(rank->graph, l);
            for (int p = 0; p < op->param_count; p++) {
                bool fits = is_even(rank, op->params[p]) == (even == 1);
                if (fits && belongs(rank, bundle, op->params[p]) && is_first_in_stage(rank, stage, l, p) == first) {
                    add_part(rank, &rank->holding[bundle].layout, l, p, first);
                }
            }
        }
    }
}

/* Blocks that are sent must have the size that the plan assumes. */
static car_status check_layout(const car_rank *rank, int bundle) {
    const car_layout *layout = &rank->holding[bundle].layout;
    const car_bundle *b = &rank->partition->bundles[bundle];
    if (!rank->alone && layout->sum_bytes != layout->master_bytes) {
        return car_context_fail(rank->context, CAR_ERROR_UNSUPPORTED,
                                "%s is used twice in one stage, which is not supported over ranks: use more stages",
                                car_graph_param(rank->graph, layout->parts[layout->count - 1].param)->name);
    }
    if (!rank->alone && (layout->bytes != b->copy_bytes || layout->master_bytes != b->bytes)) {
        return car_context_fail(rank->context, CAR_ERROR_UNSUPPORTED,
                                "the weights of stage %d take %zu bytes in this machine's layout, but %zu in the plan: "
                                "over ranks, numbers of channels must be multiples of 16",
                                b->stage, layout->bytes, b->copy_bytes);
    }
    for (int c = 1; !rank->alone && car_plan_reduces(rank->plan) && c < layout->count; c++) {
        if (car_program_is_double(rank->program, layout->parts[c].param) !=
            car_program_is_double(rank->program, layout->parts[0].param)) {
            return car_context_fail(rank->context, CAR_ERROR_UNSUPPORTED,
                                    "stage %d has both floats and doubles as parameters, but this rule adds them over "
                                    "ranks in one message: use parameters of one type, or a cyclic rule",
                                    b->stage);
        }
    }
    if (bundle >= rank->stages && layout->derived_bytes > 0) {
        return car_context_fail(rank->context, CAR_ERROR_UNSUPPORTED,
                                "%s: a tied weight cannot be used over ranks if its kernel needs a derived form of it",
                                car_graph_param(rank->graph, b->param)->name);
    }
    return CAR_OK;
}

static car_status lay_out(car_rank *rank, int bundle) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(rank->context, (size_t)car_graph_use_count(rank->graph), sizeof(car_part),
                                 &rank->holding[bundle].layout.parts));
    CAR_TRY(car_context_allocate(rank->context, (size_t)rank->sums_held, sizeof(car_sum), &rank->holding[bundle].sums));
    add_parts(rank, bundle, true);
    add_parts(rank, bundle, false);
    CAR_TRY(check_layout(rank, bundle));
done:
    return status;
}

const car_part *car_rank_home_part(const car_rank *rank, int bundle) {
    const car_bundle *b = &rank->partition->bundles[bundle];
    return car_layout_find(&rank->holding[b->home].layout, b->param);
}

/* ---- versions -------------------------------------------------------------------------------- */

car_block *car_rank_find_weights(car_rank *rank, int bundle, int64_t version) {
    const car_holding_of_bundle *h = &rank->holding[bundle];
    const car_held *held = &h->held[car_holding_place(h->places, version)];
    return held->block && held->version == version ? held->block : NULL;
}

car_status car_rank_fail_to_find(const car_rank *rank, int bundle, int64_t version) {
    return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "rank %d has no version %lld of bundle %d", rank->device,
                            (long long)version, bundle);
}

void car_rank_put_weights(car_rank *rank, int bundle, int64_t version, car_block *block) {
    car_holding_of_bundle *h = &rank->holding[bundle];
    car_held *held = &h->held[car_holding_place(h->places, version)];
    if (held->block != block) {
        car_block_drop(rank, held->block);
    }
    held->block = block;
    held->version = version;
}

/* ---- copies that are passed on --------------------------------------------------------------- */

car_held *car_rank_find_copy(car_rank *rank, const car_task *task, int bundle) {
    car_copy copy = car_usage_copy(rank->usage, task, bundle);
    return copy == CAR_COPY_KEPT ? NULL : &rank->holding[bundle].copies[copy == CAR_COPY_BACKWARD];
}

void car_rank_read_copy(car_rank *rank, car_held *copy) {
    if (--copy->reads <= 0) {
        car_held_clear(rank, copy);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

car_sum *car_rank_find_sum(car_rank *rank, int bundle, int64_t step, int worker, int leg) {
    car_sum *sums = rank->holding[bundle].sums, *found = NULL;
    for (int s = 0; s < rank->sums_held; s++) {
        bool same = sums[s].block && sums[s].step == step && sums[s].worker == worker;
        bool fits = same && (leg == CAR_NONE || sums[s].leg == leg);
        found = fits && (!found || sums[s].leg > found->leg) ? &sums[s] : found;
    }
    return found;
}

car_status car_rank_get_sum(car_rank *rank, int bundle, int64_t step, int leg, car_sum **out) {
    *out = car_rank_find_sum(rank, bundle, step, 0, leg);
    return *out ? CAR_OK
                : car_context_fail(rank->context, CAR_ERROR_INTERNAL, "rank %d has no sum of bundle %d in step %lld",
                                   rank->device, bundle, (long long)(rank->first_step + step) + 1);
}

car_status car_rank_open_sum(car_rank *rank, int bundle, const car_sum *sum, car_sum **out) {
    car_sum *sums = rank->holding[bundle].sums, *found = NULL;
    for (int s = 0; s < rank->sums_held; s++) {
        bool used = sums[s].block || sums[s].own;
        bool same = sums[s].step == sum->step && sums[s].leg == sum->leg && sums[s].worker == sum->worker;
        if (used && same) {
            *out = &sums[s];
            return CAR_OK;
        }
        found = used ? found : &sums[s];
    }
    if (!found) {
        return car_context_fail(rank->context, CAR_ERROR_INTERNAL, "rank %d holds too many sums of bundle %d",
                                rank->device, bundle);
    }
    *found = (car_sum){.step = sum->step, .leg = sum->leg, .worker = sum->worker};
    *out = found;
    return CAR_OK;
}

static void clear_sum(car_rank *rank, car_sum *sum) {
    let_go(rank, sum->block);
    car_block_drop(rank, sum->own);
    *sum = (car_sum){.step = CAR_NONE};
}

void car_rank_drop_sum(car_rank *rank, int bundle, const car_sum *sum) {
    car_sum *sums = rank->holding[bundle].sums;
    bool all =
        car_usage_keeps_apart(rank->usage); /* otherwise a worker's own sum ends when it joins the sum over all */
    int64_t step = sum->step;
    int leg = sum->leg;
    for (int s = 0; s < rank->sums_held; s++) {
        if (sums[s].block && sums[s].step == step && sums[s].leg == leg && (all || sums[s].worker == 0)) {
            clear_sum(rank, &sums[s]);
        }
    }
}

void car_rank_drop_sums(car_rank *rank, int bundle) {
    car_holding_of_bundle *h = &rank->holding[bundle];
    for (int s = 0; h->sums && s < rank->sums_held; s++) {
        clear_sum(rank, &h->sums[s]);
    }
}

/* ---- allocating what the plan wants here ------------------------------------------------------ */

static car_status allocate_bundle(car_rank *rank, int bundle) {
    car_holding_of_bundle *h = &rank->holding[bundle];
    size_t bytes = h->layout.bytes;
    car_status status = CAR_OK;
    for (int v = 0; v < (h->places > 0 ? h->places : h->owned); v++) {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_WEIGHTS, bytes, &h->held[v].block));
        if (rank->alone) {
            CAR_TRY(car_arena_allocate(rank->arena, CAR_MEMORY_WEIGHTS, h->layout.derived_bytes, &h->held[v].derived));
        }
        h->held[v].version = v == 0 ? 0 : CAR_NONE;
    }
    if (bundle < rank->stages && (h->places > 0 || h->owned) && h->layout.rounded) {
        CAR_TRY(car_block_create(rank, CAR_MEMORY_WEIGHTS, h->layout.master_bytes, &h->master));
    }
done:
    return status;
}

/* Creates optimizer state for the bundles that this rank updates: those of stages that it keeps or owns. */
static car_status create_optimizer(car_rank *rank) {
    size_t params = (size_t)car_graph_param_count(rank->graph);
    bool *wanted = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(rank->context, params, sizeof *wanted, &wanted));
    for (int b = 0; b < rank->stages; b++) {
        const car_holding_of_bundle *h = &rank->holding[b];
        for (int c = 0; (h->places > 0 || h->owned) && c < h->layout.count; c++) {
            wanted[h->layout.parts[c].param] = true;
        }
    }
    CAR_TRY(car_optimizer_create_for(rank->program, rank->arena, &rank->config.optimizer, wanted, rank->config.threads,
                                     &rank->optimizer));
done:
    car_context_release(rank->context, wanted, params, sizeof *wanted);
    return status;
}

car_status car_rank_create_store(car_rank *rank) {
    car_status status = CAR_OK;
    rank->sums_held = CAR_SUMS_HELD;
    if (car_usage_keeps_apart(rank->usage) && rank->workers > rank->sums_held) {
        rank->sums_held = rank->workers;
    } else if (car_usage_adds_by_worker(rank->usage)) { /* each worker also has a sum of its own */
        rank->sums_held += rank->workers;
    }
    rank->sums_held += rank->alone ? 0 : rank->batches; /* for receives that are posted, and for legs */
    CAR_TRY(car_context_allocate(rank->context, (size_t)rank->bundles, sizeof *rank->holding, &rank->holding));
    for (int b = 0; b < rank->bundles; b++) {
        CAR_TRY(lay_out(rank, b));
    }
    for (int b = 0; b < rank->bundles; b++) {
        rank->holding[b].places = car_usage_holding(rank->usage, b)->places;
        rank->holding[b].owned = car_usage_holding(rank->usage, b)->owned;
        CAR_TRY(allocate_bundle(rank, b));
    }
    CAR_TRY(create_optimizer(rank));
done:
    return status;
}

void car_rank_destroy_store(car_rank *rank) {
    for (int b = 0; rank->holding && b < rank->bundles; b++) {
        car_holding_of_bundle *h = &rank->holding[b];
        car_rank_drop_sums(rank, b);
        for (int v = 0; v < 2; v++) {
            car_arena_release(rank->arena, h->held[v].derived);
            car_held_clear(rank, &h->held[v]);
            car_held_clear(rank, &h->copies[v]);
        }
        car_held_clear(rank, &h->source);
        car_block_drop(rank, h->master);
        car_block_drop(rank, h->older);
        car_block_drop(rank, h->kept);
        car_block_drop(rank, h->mean);
        car_context_release(rank->context, h->layout.parts, (size_t)car_graph_use_count(rank->graph),
                            sizeof *h->layout.parts);
        car_context_release(rank->context, h->sums, (size_t)rank->sums_held, sizeof *h->sums);
    }
    car_context_release(rank->context, rank->holding, (size_t)rank->bundles, sizeof *rank->holding);
    car_optimizer_destroy(rank->optimizer);
}
