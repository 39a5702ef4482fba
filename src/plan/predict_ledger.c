/* The ledger of what is alive on a device: versions of weights, or sums of gradients.
 *
 *   moments      0 ............................. end of the observed time
 *   version 1    =======u====x                     used, freed: it moved on
 *   version 1                     r===u=x          received again
 *   version 2              U=========u===========  made by an update, which used version 1
 *
 * Each entry lives from when it is made or arrives until its last use. What an update is made from lives until the
 * update. */
#include <stdlib.h>

#include "plan/predict_internal.h"

car_status car_ledger_open(const car_plan *plan, int64_t begin, int64_t window, int windows, int parts, bool merges,
                           car_ledger *out) {
    size_t bundles = (size_t)plan->partition->bundle_count;
    car_status status = CAR_OK;
    *out = (car_ledger){.plan = plan,
                        .begin = begin,
                        .from = begin + windows / 2 * window,
                        .to = begin + (windows / 2 + 1) * window,
                        .depth = CAR_LEDGER_DEPTH * parts,
                        .merges = merges};
    CAR_TRY(car_context_allocate(plan->context, bundles * (size_t)out->depth, sizeof *out->spans, &out->spans));
    CAR_TRY(car_context_allocate(plan->context, bundles, sizeof *out->alive, &out->alive));
    CAR_TRY(car_context_allocate(plan->context, bundles, sizeof *out->most, &out->most));
done:
    return status;
}

void car_ledger_release(car_ledger *ledger) {
    if (!ledger->plan) {
        return;
    }
    car_context *context = ledger->plan->context;
    size_t bundles = (size_t)ledger->plan->partition->bundle_count;
    car_context_release(context, ledger->changes, (size_t)ledger->capacity, sizeof *ledger->changes);
    car_context_release(context, ledger->most, bundles, sizeof *ledger->most);
    car_context_release(context, ledger->alive, bundles, sizeof *ledger->alive);
    car_context_release(context, ledger->spans, bundles * (size_t)ledger->depth, sizeof *ledger->spans);
}

static car_life_span *find(const car_ledger *ledger, int bundle, int64_t id) {
    return &ledger->spans[(int64_t)bundle * ledger->depth + id % ledger->depth];
}

static double bytes_of(const car_ledger *ledger, int bundle) {
    const car_bundle *b = &ledger->plan->partition->bundles[bundle];
    return (double)(ledger->copies ? b->copy_bytes : b->bytes);
}

/* Writes a finished span into the list of changes. */
static car_status settle(car_ledger *ledger, int bundle, car_life_span *span) {
    double bytes = bytes_of(ledger, bundle);
    car_status status = CAR_OK;
    if (span->known && span->end >= span->begin) {
        CAR_TRY(car_context_grow(ledger->plan->context, &ledger->changes, &ledger->capacity, ledger->count + 2,
                                 sizeof *ledger->changes));
        ledger->changes[ledger->count++] = (car_change){span->begin, bytes, bundle, 1};
        ledger->changes[ledger->count++] = (car_change){span->end + 1, -bytes, bundle, -1};
    }
    *span = (car_life_span){0};
done:
    return status;
}

/* Returns the span of this id. Begins a new one at `begin` if there was none, or if it was freed and comes `again`. */
static car_status require(car_ledger *ledger, int bundle, int64_t id, int64_t begin, bool again, car_life_span **out) {
    car_life_span *span = find(ledger, bundle, id);
    bool gone = again && !span->held;
    car_status status = CAR_OK;
    *out = span;
    if (!span->known || span->id != id || gone) {
        CAR_TRY(settle(ledger, bundle, span));
        *span = (car_life_span){.id = id, .begin = begin, .end = begin - 1, .known = true};
    }
done:
    return status;
}

static void extend(car_life_span *span, int64_t moment) {
    span->end = moment > span->end ? moment : span->end;
}

car_status car_ledger_begin(car_ledger *ledger, int bundle, int64_t id, int64_t moment) {
    car_life_span *span = NULL;
    car_status status = CAR_OK;
    CAR_TRY(require(ledger, bundle, id, moment, true, &span));
    span->held = true;
    span->begin = moment < span->begin ? moment : span->begin;
    extend(span, moment);
done:
    return status;
}

car_status car_ledger_use(car_ledger *ledger, int bundle, int64_t id, int64_t moment) {
    car_life_span *span = NULL;
    car_status status = CAR_OK;
    CAR_TRY(require(ledger, bundle, id, ledger->begin, false, &span));
    span->held = true;
    extend(span, moment);
done:
    return status;
}

void car_ledger_touch(car_ledger *ledger, int bundle, int64_t id, int64_t moment, bool last) {
    car_life_span *span = find(ledger, bundle, id);
    if (span->known && span->id == id && span->held) {
        extend(span, moment);
        span->held = ledger->merges || !last;
    }
}

car_status car_ledger_renew(car_ledger *ledger, int bundle, int64_t id, int64_t moment) {
    car_life_span *from = NULL;
    car_status status = CAR_OK;
    CAR_TRY(require(ledger, bundle, id, ledger->begin, false, &from));
    extend(from, moment - 1);
    if (from->begin == moment) { /* two updates in one moment, at the end of a run: nobody sees the first version */
        from->end = moment - 1;
    }
done:
    return status;
}

car_status car_ledger_account_weights(car_ledger *ledger, const car_task *task, const car_use *use, int64_t begin,
                                      int64_t end) {
    bool comes = task->kind == CAR_TASK_RECEIVE || task->kind == CAR_TASK_BROADCAST;
    bool update = task->kind == CAR_TASK_UPDATE, made = update && use->id == task->version;
    int64_t span = car_ledger_span(ledger->plan, use);
    car_status status = CAR_OK;
    if (comes || made) {
        return car_ledger_begin(ledger, use->bundle, span, begin);
    }
    if (update) {
        CAR_TRY(car_ledger_renew(ledger, use->bundle, span, begin));
    } else if (car_task_computes(task) || use->id == 0) { /* initial weights exist in order to be sent */
        CAR_TRY(car_ledger_use(ledger, use->bundle, span, end));
    }
    car_ledger_touch(ledger, use->bundle, span, update ? begin - 1 : end, use->last);
done:
    return status;
}

/* In one moment, what ends comes before what begins, so that it makes room. */
static int compare_changes(const void *left, const void *right) {
    const car_change *a = left, *b = right;
    int order = (a->moment > b->moment) - (a->moment < b->moment);
    return order ? order : a->count - b->count;
}

/* How many of the moments a .. b - 1 count for the averages. */
static double overlap(const car_ledger *ledger, int64_t a, int64_t b) {
    a = a > ledger->from ? a : ledger->from;
    b = b < ledger->to ? b : ledger->to;
    return a < b ? (double)(b - a) : 0;
}

car_status car_ledger_close(car_ledger *ledger, double weight, double *changes, car_balance *out) {
    car_status status = CAR_OK;
    double bytes = 0, area = 0;
    *out = (car_balance){0};
    for (int h = 0; h < ledger->plan->partition->bundle_count * ledger->depth; h++) {
        if (ledger->spans[h].known) {
            CAR_TRY(settle(ledger, h / ledger->depth, &ledger->spans[h]));
        }
    }
    car_sort(ledger->changes, (size_t)ledger->count, sizeof *ledger->changes, compare_changes);
    for (int c = 0; c < ledger->count; c++) {
        const car_change *change = &ledger->changes[c];
        area += c > 0 ? bytes * overlap(ledger, ledger->changes[c - 1].moment, change->moment) : 0;
        bytes += change->bytes;
        ledger->alive[change->bundle] += change->count;
        out->peak = bytes > out->peak ? bytes : out->peak;
        if (ledger->alive[change->bundle] > ledger->most[change->bundle]) {
            ledger->most[change->bundle]++;
        }
        if (changes) {
            changes[change->moment - ledger->begin] += weight * change->bytes;
        }
    }
    for (int b = 0; b < ledger->plan->partition->bundle_count; b++) {
        out->places += ledger->most[b] * bytes_of(ledger, b);
        out->most = ledger->most[b] > out->most ? ledger->most[b] : out->most;
        ledger->most[b] = 0;
    }
    out->mean = area / (double)(ledger->to - ledger->from);
    ledger->count = 0;
done:
    return status;
}
