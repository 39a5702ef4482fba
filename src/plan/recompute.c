/* Chooses which tensors backward recomputes instead of holding them.
 *
 * Tensors are ranked, best first, and a choice is the first n of them. The best saves most for its price. It saves
 * bytes * (1 - phi), where phi is the share of the forwards before it, so a tensor that is made early and held long
 * counts most. Its price is that of the operations that must run again in addition. So the outputs of GELU and of
 * normalisations come first, then what feeds them, then the rest of the block.
 *
 * A tensor that would raise the peak of a micro-batch is left out: where too much depends on one tensor, recomputing
 * needs as much memory as holding. Prices are FLOPs and bytes moved, never measured times, so that every rank and
 * command makes the same choice. */
#include "base/base.h"
#include "plan/partition_internal.h"

/* About how many FLOPs reading or writing one byte costs on processors with vector units. */
static const double flops_per_byte = 8;

typedef struct chooser {
    const car_graph *graph;
    int *stage_first;     /* by operation */
    double *before;       /* by operation: share of the forwards before it */
    bool *dropped;        /* by tensor: it was chosen */
    bool *extra;          /* by tensor: held only for operations that run again */
    bool *again, *wanted; /* by operation */
    bool *open;           /* by tensor: it may still be chosen */
    int *order, count;    /* tensors, in the order of choosing */
    size_t *held;         /* bytes held after each of them */
    size_t all_held, peak;
    bool cheap_only;
} chooser;

/* ---- the price ------------------------------------------------------------------------------- */

static bool is_cheap(car_op_kind kind) {
    switch (kind) {
    case CAR_OP_BATCHNORM:
    case CAR_OP_LAYERNORM:
    case CAR_OP_RELU:
    case CAR_OP_GELU:
    case CAR_OP_DROPOUT:
    case CAR_OP_ADD:
    case CAR_OP_FLATTEN:
    case CAR_OP_SHORTCUT:
    case CAR_OP_MAXPOOL:
    case CAR_OP_AVGPOOL:
    case CAR_OP_SELECT_TOKEN:
        return true;
    default:
        return false;
    }
}

static double price_of(const car_graph *graph, const car_op *op) {
    double bytes = (double)car_graph_tensor(graph, op->output)->bytes;
    for (int q = 0; q < op->input_count; q++) {
        bytes += (double)car_graph_tensor(graph, op->inputs[q])->bytes;
    }
    return op->flops_forward + flops_per_byte * bytes;
}

/* The effect of dropping one more tensor. */
typedef struct offer {
    double price, spared; /* spared: bytes * (1 - phi) */
    size_t bytes, extra;  /* bytes: no longer held; extra: held in addition for operations that run again */
    bool cheap;
} offer;

static double weigh(const chooser *c, int tensor) {
    const car_tensor *t = car_graph_tensor(c->graph, tensor);
    return (double)t->bytes * (1 - (t->producer == CAR_NONE ? 0 : c->before[t->producer]));
}

/* True if a tensor need not be recomputed: it comes from below the stage, or its operation cannot run again. */
static bool is_given(const chooser *c, int tensor, int first) {
    int producer = car_graph_tensor(c->graph, tensor)->producer;
    return producer == CAR_NONE || producer < first || !car_recompute_may_run(car_graph_op(c->graph, producer));
}

/* Marks the producer of a tensor that must be recomputed. A tensor that need not be is held instead. */
static int want(chooser *c, int tensor, int first, offer *o) {
    const car_tensor *t = car_graph_tensor(c->graph, tensor);
    bool saved = t->last_backward != CAR_NONE;
    if (is_given(c, tensor, first)) {
        if (!saved && !c->extra[tensor]) {
            o->extra += t->bytes;
            o->spared -= weigh(c, tensor);
        }
        return 0;
    }
    if ((saved && !c->dropped[tensor]) || c->again[t->producer] || c->wanted[t->producer]) {
        return 0;
    }
    c->wanted[t->producer] = true;
    return 1;
}

/* `keep`: the tensor is chosen, so the marks stay. */
static offer offer_for(chooser *c, int tensor, bool keep) {
    const car_tensor *t = car_graph_tensor(c->graph, tensor);
    int first = c->stage_first[t->producer], open = 1;
    offer o = {.spared = weigh(c, tensor), .bytes = t->bytes, .cheap = true};
    c->wanted[t->producer] = true;
    for (int m = t->producer; open > 0; m--) {
        if (!c->wanted[m]) {
            continue;
        }
        const car_op *op = car_graph_op(c->graph, m);
        o.price += price_of(c->graph, op);
        o.cheap = o.cheap && is_cheap(op->kind);
        for (int q = 0; q < op->input_count; q++) {
            open += want(c, op->inputs[q], first, &o);
            c->extra[op->inputs[q]] = c->extra[op->inputs[q]] || (keep && is_given(c, op->inputs[q], first));
        }
        c->again[m] = c->again[m] || keep;
        c->wanted[m] = false;
        open--;
    }
    return o;
}

/* ---- ranking --------------------------------------------------------------------------------- */

/* The peak of a micro-batch with what is chosen so far. */
static car_status find_peak(const chooser *c, size_t *peak) {
    car_recompute *recompute = NULL;
    car_graph_range *all = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_recompute_create(c->graph, c->dropped, c->stage_first, &recompute));
    CAR_TRY(car_graph_range_create(c->graph, 0, car_graph_op_count(c->graph), recompute, &all));
    CAR_TRY(car_curve_find_peak(c->graph, all, peak));
done:
    car_graph_range_destroy(c->graph, all);
    car_recompute_destroy(recompute);
    return status;
}

/* The best open candidate, the first of equals; CAR_NONE if there is none. */
static int find_best(chooser *c) {
    double best = 0;
    int found = CAR_NONE;
    for (int v = 0; v < car_graph_tensor_count(c->graph); v++) {
        if (!c->open[v]) {
            continue;
        }
        offer o = offer_for(c, v, false);
        double worth = (c->cheap_only && !o.cheap) || o.bytes <= o.extra ? 0 : o.spared / o.price;
        if (worth > best) {
            best = worth;
            found = v;
        }
    }
    return found;
}

static car_status line_up(chooser *c) {
    size_t held = c->all_held;
    car_status status = CAR_OK;
    for (int v = find_best(c); v != CAR_NONE; v = find_best(c)) {
        size_t peak = 0;
        c->open[v] = false;
        c->dropped[v] = true;
        CAR_TRY(find_peak(c, &peak));
        if (peak > c->peak) {
            c->dropped[v] = false;
            continue;
        }
        offer o = offer_for(c, v, true);
        held = held + o.extra - o.bytes;
        c->peak = peak;
        c->held[c->count] = held;
        c->order[c->count++] = v;
    }
done:
    return status;
}

static void open_candidates(chooser *c, const car_partition *partition) {
    for (int v = 0; v < car_graph_tensor_count(c->graph); v++) {
        int producer = car_graph_tensor(c->graph, v)->producer;
        for (int j = 0; producer != CAR_NONE && j < partition->stage_count; j++) {
            const car_stage *stage = &partition->stages[j];
            if (producer >= stage->first && producer < stage->end) {
                c->open[v] = car_recompute_may_drop(c->graph, v, stage->end);
            }
        }
    }
}

static void release_chooser(chooser *c) {
    car_context *context = car_graph_context(c->graph);
    size_t ops = (size_t)car_graph_op_count(c->graph), tensors = (size_t)car_graph_tensor_count(c->graph);
    car_context_release(context, c->held, tensors, sizeof *c->held);
    car_context_release(context, c->order, tensors, sizeof *c->order);
    car_context_release(context, c->open, tensors, sizeof *c->open);
    car_context_release(context, c->wanted, ops, sizeof *c->wanted);
    car_context_release(context, c->again, ops, sizeof *c->again);
    car_context_release(context, c->extra, tensors, sizeof *c->extra);
    car_context_release(context, c->dropped, tensors, sizeof *c->dropped);
    car_context_release(context, c->before, ops, sizeof *c->before);
    car_context_release(context, c->stage_first, ops, sizeof *c->stage_first);
}

static car_status open_chooser(const car_partition *partition, const car_op_facts *facts, chooser *c) {
    car_context *context = partition->context;
    size_t ops = (size_t)car_graph_op_count(c->graph), tensors = (size_t)car_graph_tensor_count(c->graph);
    double forward = 0, before = 0;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(context, ops, sizeof *c->stage_first, &c->stage_first));
    CAR_TRY(car_context_allocate(context, ops, sizeof *c->before, &c->before));
    CAR_TRY(car_context_allocate(context, tensors, sizeof *c->dropped, &c->dropped));
    CAR_TRY(car_context_allocate(context, tensors, sizeof *c->extra, &c->extra));
    CAR_TRY(car_context_allocate(context, ops, sizeof *c->again, &c->again));
    CAR_TRY(car_context_allocate(context, ops, sizeof *c->wanted, &c->wanted));
    CAR_TRY(car_context_allocate(context, tensors, sizeof *c->open, &c->open));
    CAR_TRY(car_context_allocate(context, tensors, sizeof *c->order, &c->order));
    CAR_TRY(car_context_allocate(context, tensors, sizeof *c->held, &c->held));
    for (int j = 0; j < partition->stage_count; j++) {
        for (int l = partition->stages[j].first; l < partition->stages[j].end; l++) {
            c->stage_first[l] = partition->stages[j].first;
        }
    }
    for (size_t l = 0; l < ops; l++) {
        forward += facts[l].forward;
        c->all_held += facts[l].held_bytes;
    }
    for (size_t l = 0; l < ops; l++) {
        c->before[l] = before / forward;
        before += facts[l].forward;
    }
    open_candidates(c, partition);
    CAR_TRY(find_peak(c, &c->peak));
done:
    return status;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* How many of the ranked tensors are taken. */
static car_status count_chosen(const chooser *c, const car_recompute_config *config, int *out) {
    car_context *context = car_graph_context(c->graph);
    double most = config->share * (double)c->all_held;
    int n = 0;
    if (config->how != CAR_RECOMPUTE_SHARE) {
        *out = config->how == CAR_RECOMPUTE_FIRST && config->tensors < c->count ? config->tensors : c->count;
        return CAR_OK;
    }
    if (!(config->share > 0 && config->share <= 1)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "recomputation: the share of activations to hold is %g; use more than 0 and at most 1",
                                config->share);
    }
    while (n < c->count && (double)(n ? c->held[n - 1] : c->all_held) > most) {
        n++;
    }
    *out = n;
    double least = (double)(c->count ? c->held[c->count - 1] : c->all_held) / (double)c->all_held;
    if (c->count == 0 && config->share < 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "recomputation: no activation can be recomputed inside its stage; turn recomputation "
                                "off, or use fewer stages");
    }
    if ((double)(n ? c->held[n - 1] : c->all_held) > most) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "recomputation: holding only %.3g of the activations is not possible with these "
                                "stages; the minimum is %.3g",
                                config->share, least + 0.0005);
    }
    return CAR_OK;
}

static car_status fill(car_partition *partition, const chooser *c, int chosen) {
    car_recomputation *r = &partition->recomputation;
    bool *dropped = c->dropped;
    for (int n = chosen; n < c->count; n++) {
        dropped[c->order[n]] = false;
    }
    r->tensors = chosen;
    if (chosen == 0) {
        return CAR_OK;
    }
    car_status status = car_recompute_create(c->graph, dropped, c->stage_first, &partition->recompute);
    for (int i = 0; status == CAR_OK && i < partition->recompute->again_count; i++) {
        r->flops += car_graph_op(c->graph, partition->recompute->again[i])->flops_forward;
    }
    r->operations = status == CAR_OK ? partition->recompute->again_count : 0;
    return status;
}

car_status car_partition_choose_recompute(car_partition *partition, const car_op_facts *facts,
                                          const car_recompute_config *config) {
    chooser c = {.graph = partition->graph, .cheap_only = config->how == CAR_RECOMPUTE_AUTO};
    int chosen = 0;
    car_status status = CAR_OK;
    CAR_TRY(open_chooser(partition, facts, &c));
    partition->recomputation = (car_recomputation){
        .held_bytes = c.all_held, .peak = c.peak, .limit = car_curve_limit(facts, car_graph_op_count(c.graph))};
    CAR_TRY(line_up(&c));
    partition->recomputation.most_tensors = c.count;
    CAR_TRY(count_chosen(&c, config, &chosen));
    CAR_TRY(fill(partition, &c, chosen));
done:
    release_chooser(&c);
    return status;
}
