/* Updates in chunks. The update of a large stage, such as an embedding, takes long, and other tasks may wait for it. So
 * idle threads compute chunks of it. Updates are elementwise, so the bits do not depend on who computes a chunk. (Muon
 * updates a matrix as a whole, so a matrix is one chunk.)
 *
 *   thread 0   U [chunk][chunk][chunk] waits for the last
 *   thread 1     [chunk][chunk]
 *   thread 2   F        [chunk] [chunk]
 */
#include "engine/rank_internal.h"

/* Updates of at least LARGE bytes of weights are shared, unless the config says otherwise. A chunk is 1/PARTS of
 * that size. */
enum { LARGE = 4 << 20, PARTS = 4 };

struct car_chunks {
    const car_renewal *renewal;
    const car_layout *layout;
    const char *from, *sum;
    char *to;
    char *copy;     /* bf16: where the rounded weights go, and `to` is the master block; else NULL */
    int64_t length; /* elements of a chunk, a multiple of 64 */
    /* The next chunk begins in this part, at element `first`. */
    int part;
    int64_t first;
    int running; /* number of threads that are computing a chunk */
    car_status status;
    struct car_chunks *next;
};

typedef struct chunk {
    const car_part *part;
    int64_t first, count;
} chunk;

/* Takes the next chunk. Returns false if none is left. Hold the lock. */
static bool take_chunk(const car_rank *rank, car_chunks *c, chunk *out) {
    while (c->part < c->layout->count && !c->layout->parts[c->part].first) {
        c->part++;
    }
    if (c->status != CAR_OK || c->part == c->layout->count) {
        return false;
    }
    const car_part *part = &c->layout->parts[c->part];
    int64_t left = car_engine_count(rank->program, part->param) - c->first;
    bool rest = left <= c->length || car_optimizer_is_whole(rank->optimizer, part->param);
    *out = (chunk){.part = part, .first = c->first, .count = rest ? left : c->length};
    c->part += rest;
    c->first = rest ? 0 : c->first + c->length;
    c->running++;
    return true;
}

/* Computes a chunk. Hold the lock; it is released meanwhile. */
static void run_chunk(car_rank *rank, car_chunks *c, const chunk *k) {
    const car_part *part = k->part;
    pthread_mutex_unlock(&rank->lock);
    car_kernel_mode mode = car_kernels_enter(car_program_threads(rank->program));
    size_t offset = c->copy ? part->home_offset : part->offset;
    car_status status =
        car_engine_renew(rank->program, car_graph_op(rank->graph, part->op), part->index, k->first, k->count,
                         c->renewal, c->from + offset, c->to + offset, c->sum + part->sum_offset);
    if (c->copy) {
        car_engine_round_range(rank->program, part->param, k->first, k->count, (const float *)(c->to + offset),
                               c->copy + part->offset);
    }
    car_kernels_leave(mode);
    pthread_mutex_lock(&rank->lock);
    if (status != CAR_OK) { /* a helper's error would be lost otherwise */
        c->status = status;
        car_rank_fail(rank, status);
    }
    if (--c->running == 0) {
        pthread_cond_broadcast(&rank->changed);
    }
}

static void withdraw(car_rank *rank, const car_chunks *c) {
    for (car_chunks **place = &rank->chunks; *place; place = &(*place)->next) {
        if (*place == c) {
            *place = c->next;
            return;
        }
    }
}

car_status car_rank_renew(car_rank *rank, int bundle, const car_renewal *renewal, const car_block *from,
                          const car_block *to, const car_block *sum) {
    const car_layout *layout = &rank->holding[bundle].layout;
    const car_block *master = rank->holding[bundle].master;
    size_t large = rank->config.shared_update_bytes > 0 ? rank->config.shared_update_bytes : LARGE;
    car_chunks c = {.renewal = renewal,
                    .layout = layout,
                    .from = master ? master->data : from->data,
                    .sum = sum->data,
                    .to = master ? master->data : to->data,
                    .copy = master ? to->data : NULL,
                    .length = (int64_t)car_round_up(large / PARTS / sizeof(float), 64)};
    chunk k;
    pthread_mutex_lock(&rank->lock);
    if (layout->master_bytes >= large && rank->config.threads > 1) {
        c.next = rank->chunks;
        rank->chunks = &c;
        pthread_cond_broadcast(&rank->changed);
    }
    while (take_chunk(rank, &c, &k)) {
        run_chunk(rank, &c, &k);
    }
    withdraw(rank, &c);
    while (c.running > 0) {
        pthread_cond_wait(&rank->changed, &rank->lock);
    }
    pthread_mutex_unlock(&rank->lock);
    return c.status;
}

bool car_rank_help(car_rank *rank) {
    chunk k;
    for (car_chunks *c = rank->chunks; c; c = c->next) {
        if (take_chunk(rank, c, &k)) {
            rank->times.helped++;
            run_chunk(rank, c, &k);
            return true;
        }
    }
    return false;
}
