/* The loader: threads that read micro-batches ahead of their consumers.
 *
 * Micro-batches are numbered n = step * MN + m, where m is the number in the step; this is roughly the order in
 * which they are taken. Each one in memory has a buffer. While a buffer is free, threads read the lowest number in a
 * range that is neither taken nor being read. The range starts at the first number not yet taken, so it moves on as
 * numbers are taken.
 *
 * A consumer whose micro-batch is neither in memory nor being read reads it itself, into a free buffer or into the
 * one that was read furthest ahead. So consumers only ever wait for a read in progress. Threads may be slow, few or
 * none: that costs time, but never changes what is read. */
#include "carousel/loader.h"

#include <pthread.h>
#include <string.h>

#include "data/dataset.h"
#include "data/loader_internal.h"

enum { MOST_THREADS = 1024, MOST_DEPTH = 1 << 20, MOST_MICRO_BATCHES = 1 << 20 };

typedef enum buffer_state { FREE, READING, READY, TAKEN } buffer_state;

/* A micro-batch in memory. */
typedef struct buffer {
    buffer_state state;
    int64_t number;
    int holders; /* consumers that have not given it back yet */
    char *inputs;
    int32_t *labels;
    struct buffer *next;
} buffer;

typedef struct reading_thread {
    car_loader *loader;
    car_batch_reader *reader;
    pthread_t handle;
} reading_thread;

struct car_loader {
    car_batches batches;
    car_loader_config config; /* with depth set */
    car_context *context;
    int64_t begin, end;      /* numbers that may be read ahead */
    reading_thread *threads; /* config.threads of them */
    int started;
    bool has_locks;
    /* `ready` wakes consumers: a read has finished, or a buffer is free. `room` wakes threads: there is work. */
    pthread_cond_t ready, room;
    pthread_mutex_t lock; /* guards the fields below */
    buffer *buffers;      /* config.depth of them, plus temporary ones if all are taken */
    int buffer_count;
    car_batch_reader *idle; /* for consumers that read themselves */
    int64_t low;            /* start of the range */
    bool *given;            /* [range]: whether number n was taken, or no thread should read it; at index n % range */
    int range;              /* length of the range */
    double waited;          /* seconds */
};

car_loader_config car_loader_config_default(void) {
    return (car_loader_config){
        .split = CAR_SPLIT_TRAIN, .micro_batches = 1, .batch = 1, .threads = 1, .steps = INT64_MAX};
}

/* ---- the range; the lock is held ------------------------------------------------------------- */

static bool in_range(const car_loader *loader, int64_t number) {
    return number >= loader->low && number - loader->low < loader->range;
}

/* Whether threads should read it at all. */
static bool is_wanted(const car_loader *loader, int64_t number) {
    return !loader->config.wanted || loader->config.wanted[number % loader->config.micro_batches];
}

/* Marks a number as one that threads need not read any more, and moves the range. */
static void mark_given(car_loader *loader, int64_t number) {
    if (in_range(loader, number)) {
        loader->given[number % loader->range] = true;
    }
    /* At most once around, since nothing may be wanted. */
    for (int n = 0; n < loader->range; n++) {
        bool *given = &loader->given[loader->low % loader->range];
        if (!*given && is_wanted(loader, loader->low)) {
            break;
        }
        *given = false;
        loader->low++;
    }
}

/* Notes that a number is being taken. If it is far from the range, a new series begins and the range moves there. A
 * number a little before the range is merely taken a second time. */
static void note_taken(car_loader *loader, int64_t number) {
    int64_t ahead = number - loader->low;
    if (ahead >= loader->range || ahead < -(int64_t)loader->range) {
        memset(loader->given, 0, (size_t)loader->range * sizeof *loader->given);
        loader->low = number;
        pthread_cond_broadcast(&loader->room);
    }
    mark_given(loader, number);
}

/* ---- buffers; the lock is held ------------------------------------------------------------------ */

static buffer *find_buffer(const car_loader *loader, int64_t number) {
    for (buffer *s = loader->buffers; s; s = s->next) {
        if (s->state != FREE && s->number == number) {
            return s;
        }
    }
    return NULL;
}

/* A buffer that is free, or whose number is before the range. If there is none and `seize` is set, the buffer that
 * was read furthest ahead, which a thread will read again. */
static buffer *find_room(car_loader *loader, bool seize) {
    buffer *furthest = NULL;
    for (buffer *s = loader->buffers; s; s = s->next) {
        if (s->state == FREE || (s->state == READY && !in_range(loader, s->number))) {
            return s;
        }
        if (s->state == READY && (!furthest || s->number > furthest->number)) {
            furthest = s;
        }
    }
    return seize ? furthest : NULL;
}

static bool any_reading(const car_loader *loader) {
    for (const buffer *s = loader->buffers; s; s = s->next) {
        if (s->state == READING) {
            return true;
        }
    }
    return false;
}

static void destroy_buffer(car_loader *loader, buffer *s) {
    size_t batch = (size_t)loader->config.batch;
    car_context_release(loader->context, s->inputs, batch, loader->batches.source.input_bytes);
    car_context_release(loader->context, s->labels, batch, (size_t)loader->batches.source.labels * sizeof *s->labels);
    car_context_release(loader->context, s, 1, sizeof *s);
}

static car_status add_buffer(car_loader *loader, buffer **out) {
    size_t batch = (size_t)loader->config.batch;
    buffer *s = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(loader->context, 1, sizeof *s, &s));
    CAR_TRY(car_context_allocate(loader->context, batch, loader->batches.source.input_bytes, &s->inputs));
    CAR_TRY(car_context_allocate(loader->context, batch, (size_t)loader->batches.source.labels * sizeof *s->labels,
                                 &s->labels));
    s->next = loader->buffers;
    loader->buffers = s;
    loader->buffer_count++;
    *out = s;
    s = NULL;
done:
    if (s) {
        destroy_buffer(loader, s);
    }
    return status;
}

/* Frees a buffer that is no longer needed; temporary ones are released. */
static void free_buffer(car_loader *loader, buffer *s) {
    s->state = FREE;
    if (loader->buffer_count > loader->config.depth) {
        buffer **link = &loader->buffers;
        while (*link != s) {
            link = &(*link)->next;
        }
        *link = s->next;
        loader->buffer_count--;
        destroy_buffer(loader, s);
    }
    pthread_cond_signal(&loader->room);
    pthread_cond_broadcast(&loader->ready);
}

/* ---- the threads ------------------------------------------------------------------------------ */

/* The lowest number to read ahead, or -1. The lock is held. */
static int64_t find_work(const car_loader *loader) {
    int64_t first = loader->low > loader->begin ? loader->low : loader->begin;
    for (int64_t n = first; in_range(loader, n) && n < loader->end; n++) {
        if (is_wanted(loader, n) && !loader->given[n % loader->range] && !find_buffer(loader, n)) {
            return n;
        }
    }
    return -1;
}

static void *read_ahead(void *argument) {
    reading_thread *thread = argument;
    car_loader *loader = thread->loader;
    car_error_scope scope;
    car_context_open_scope(loader->context, &scope);
    pthread_mutex_lock(&loader->lock);
    while (!atomic_load(&loader->batches.stop)) {
        int64_t number = find_work(loader);
        buffer *s = number >= 0 ? find_room(loader, false) : NULL;
        if (!s) {
            pthread_cond_wait(&loader->room, &loader->lock);
            continue;
        }
        s->number = number;
        s->state = READING;
        pthread_mutex_unlock(&loader->lock);
        car_status status = car_batches_read(&loader->batches, thread->reader, number, s->inputs, s->labels);
        pthread_mutex_lock(&loader->lock);
        if (status == CAR_OK) {
            s->state = READY;
            pthread_cond_broadcast(&loader->ready);
        } else {
            /* The consumer will read it again, and so gets the failure and its message. */
            car_context_clear_error(loader->context);
            mark_given(loader, number);
            free_buffer(loader, s);
        }
    }
    pthread_mutex_unlock(&loader->lock);
    car_context_close_scope(loader->context, &scope);
    return NULL;
}

/* ---- taking ----------------------------------------------------------------------------------- */

/* Lends a reader to a consumer that reads itself. The lock is held. */
static car_status borrow_reader(car_loader *loader, car_batch_reader **out) {
    *out = loader->idle;
    if (loader->idle) {
        loader->idle = loader->idle->next;
        return CAR_OK;
    }
    return car_batches_create_reader(&loader->batches, out);
}

/* Reads a micro-batch into a buffer that nobody else uses. The lock is held on entry and exit, but not while
 * reading. */
static car_status read_myself(car_loader *loader, int64_t number, buffer *s) {
    car_batch_reader *reader = NULL;
    s->number = number;
    s->state = READING;
    car_status status = borrow_reader(loader, &reader);
    if (status == CAR_OK) {
        pthread_mutex_unlock(&loader->lock);
        status = car_batches_read(&loader->batches, reader, number, s->inputs, s->labels);
        pthread_mutex_lock(&loader->lock);
        reader->next = loader->idle;
        loader->idle = reader;
    }
    if (status == CAR_OK) {
        s->state = READY;
        pthread_cond_broadcast(&loader->ready);
    } else {
        free_buffer(loader, s);
    }
    return status;
}

/* Waits for the micro-batch, or reads it. The lock is held on entry and exit, but not throughout. */
static car_status obtain(car_loader *loader, int64_t number, buffer **out) {
    car_status status = CAR_OK;
    for (;;) {
        buffer *s = find_buffer(loader, number);
        if (s && s->state != READING) {
            *out = s;
            return CAR_OK;
        }
        buffer *room = s ? NULL : find_room(loader, true);
        if (!s && !room && !any_reading(loader)) {
            /* All buffers are taken, perhaps by the caller itself: waiting could take forever. */
            CAR_TRY(add_buffer(loader, &room));
        }
        if (room) {
            CAR_TRY(read_myself(loader, number, room));
            *out = room;
            return CAR_OK;
        }
        pthread_cond_wait(&loader->ready, &loader->lock);
    }
done:
    return status;
}

car_status car_loader_take(car_loader *loader, int64_t step, int micro_batch, const void **inputs,
                           const int32_t **labels) {
    CAR_REQUIRE(NULL, loader);
    buffer *s = NULL;
    car_status status = CAR_OK;
    if (step < 0 || step >= loader->batches.most_steps || micro_batch < 0 ||
        micro_batch >= loader->config.micro_batches) {
        return car_context_fail(loader->context, CAR_ERROR_ARGUMENT,
                                "there is no micro-batch %d of step %lld; a step has micro-batches 0 to %d",
                                micro_batch, (long long)step, loader->config.micro_batches - 1);
    }
    int64_t number = step * loader->config.micro_batches + micro_batch;
    pthread_mutex_lock(&loader->lock);
    s = find_buffer(loader, number);
    if (!s || s->state == READING) {
        double start = car_clock_seconds();
        status = obtain(loader, number, &s);
        loader->waited += car_clock_seconds() - start;
    }
    if (status == CAR_OK) {
        s->state = TAKEN;
        s->holders++;
        *inputs = s->inputs;
        *labels = s->labels;
    }
    /* Not earlier: numbers before the range may be evicted by anyone. */
    note_taken(loader, number);
    pthread_mutex_unlock(&loader->lock);
    return status;
}

void car_loader_give_back(car_loader *loader, int64_t step, int micro_batch) {
    pthread_mutex_lock(&loader->lock);
    buffer *s = find_buffer(loader, step * loader->config.micro_batches + micro_batch);
    if (s && s->state == TAKEN && --s->holders == 0) {
        free_buffer(loader, s);
    }
    pthread_mutex_unlock(&loader->lock);
}

double car_loader_waited(const car_loader *loader) {
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&loader->lock;
    pthread_mutex_lock(lock);
    double seconds = loader->waited;
    pthread_mutex_unlock(lock);
    return seconds;
}

size_t car_loader_bytes(const car_loader *loader) {
    size_t sample = loader->batches.source.input_bytes + (size_t)loader->batches.source.labels * sizeof(int32_t);
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&loader->lock;
    pthread_mutex_lock(lock);
    size_t buffers = (size_t)loader->buffer_count;
    pthread_mutex_unlock(lock);
    return buffers * (size_t)loader->config.batch * sample;
}

int64_t car_loader_epoch_steps(const car_loader *loader) {
    return loader->batches.epoch_steps;
}

/* ---- creating and destroying ------------------------------------------------------------------ */

static car_status check(const car_loader_source *source, const car_loader_config *config) {
    if (config->threads < 0 || config->threads > MOST_THREADS || config->depth < 0 || config->depth > MOST_DEPTH ||
        config->micro_batches > MOST_MICRO_BATCHES || config->first_step < 0) {
        return car_context_fail(source->context, CAR_ERROR_ARGUMENT,
                                "a loader has at most %d threads, %d micro-batches in memory and %d in a step, and "
                                "starts at step 0 or later; given were %d, %d, %d and %lld",
                                MOST_THREADS, MOST_DEPTH, MOST_MICRO_BATCHES, config->threads, config->depth,
                                config->micro_batches, (long long)config->first_step);
    }
    return CAR_OK;
}

static int64_t first_number_of(const car_loader *loader, int64_t step) {
    int64_t most = loader->batches.most_steps;
    return (step < most ? step : most) * loader->config.micro_batches;
}

static void set_range(car_loader *loader) {
    car_loader_config *config = &loader->config;
    config->depth = config->depth > 0 ? config->depth : config->micro_batches + config->threads;
    loader->begin = loader->low = first_number_of(loader, config->first_step);
    loader->end = first_number_of(loader, config->steps);
    /* Threads must find work for all buffers, even if some workers are a step or two ahead of others. */
    loader->range = config->depth + 2 * config->micro_batches;
}

static car_status create_locks(car_loader *loader) {
    bool mutex = pthread_mutex_init(&loader->lock, NULL) == 0;
    bool ready = mutex && pthread_cond_init(&loader->ready, NULL) == 0;
    loader->has_locks = ready && pthread_cond_init(&loader->room, NULL) == 0;
    if (loader->has_locks) {
        return CAR_OK;
    }
    if (ready) {
        pthread_cond_destroy(&loader->ready);
    }
    if (mutex) {
        pthread_mutex_destroy(&loader->lock);
    }
    return car_context_fail(loader->context, CAR_ERROR_MEMORY, "could not create a mutex and conditions");
}

/* If the system cannot start as many threads as requested, consumers read the rest. */
static car_status start_threads(car_loader *loader) {
    car_status status = CAR_OK;
    for (int i = 0; i < loader->config.threads; i++) {
        loader->threads[i].loader = loader;
        CAR_TRY(car_batches_create_reader(&loader->batches, &loader->threads[i].reader));
    }
    while (loader->started < loader->config.threads) {
        reading_thread *thread = &loader->threads[loader->started];
        if (pthread_create(&thread->handle, NULL, read_ahead, thread) != 0) {
            car_context_log(loader->context, CAR_LOG_WARNING, "only %d of %d data threads could be started",
                            loader->started, loader->config.threads);
            break;
        }
        loader->started++;
    }
done:
    return status;
}

car_status car_loader_create_from(const car_loader_source *source, const car_loader_config *config, car_loader **out) {
    car_loader *loader = NULL;
    car_context *context = source->context;
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(check(source, config));
    CAR_TRY(car_context_allocate(context, 1, sizeof *loader, &loader));
    loader->config = *config;
    loader->context = context;
    CAR_TRY(car_batches_begin(&loader->batches, source, config));
    set_range(loader);
    CAR_TRY(create_locks(loader));
    CAR_TRY(car_context_allocate(context, (size_t)loader->range, sizeof *loader->given, &loader->given));
    CAR_TRY(car_context_allocate(context, (size_t)config->threads, sizeof *loader->threads, &loader->threads));
    while (loader->buffer_count < loader->config.depth) {
        buffer *s = NULL;
        CAR_TRY(add_buffer(loader, &s));
    }
    CAR_TRY(start_threads(loader));
    *out = loader;
    loader = NULL;
done:
    car_loader_destroy(loader);
    return status;
}

car_status car_loader_create(car_dataset *dataset, const car_loader_config *config, car_loader **out) {
    CAR_REQUIRE(NULL, dataset);
    CAR_REQUIRE(dataset->context, config);
    CAR_REQUIRE(dataset->context, out);
    *out = NULL;
    if (!dataset->readable) {
        return car_context_fail(dataset->context, CAR_ERROR_ARGUMENT,
                                "data %s: opened without a model's sizes, so it cannot be loaded", dataset->name);
    }
    car_loader_source source = {.context = dataset->context,
                                .samples = dataset->info.samples[config->split],
                                .input_bytes = dataset->input_bytes,
                                .labels = dataset->label_count,
                                .dataset = dataset,
                                .create_reader = car_reader_create,
                                .destroy_reader = car_reader_destroy,
                                .read = car_reader_sample};
    return car_loader_create_from(&source, config, out);
}

static void stop_threads(car_loader *loader) {
    if (loader->has_locks) {
        pthread_mutex_lock(&loader->lock);
        atomic_store(&loader->batches.stop, true);
        pthread_cond_broadcast(&loader->room);
        pthread_mutex_unlock(&loader->lock);
    }
    while (loader->started > 0) {
        pthread_join(loader->threads[--loader->started].handle, NULL);
    }
}

void car_loader_destroy(car_loader *loader) {
    if (!loader) {
        return;
    }
    car_context *context = loader->context;
    stop_threads(loader);
    for (int i = 0; loader->threads && i < loader->config.threads; i++) {
        car_batches_destroy_reader(&loader->batches, loader->threads[i].reader);
    }
    for (car_batch_reader *reader = loader->idle, *next; reader; reader = next) {
        next = reader->next;
        car_batches_destroy_reader(&loader->batches, reader);
    }
    for (buffer *s = loader->buffers, *next; s; s = next) {
        next = s->next;
        destroy_buffer(loader, s);
    }
    car_context_release(context, loader->threads, (size_t)loader->config.threads, sizeof *loader->threads);
    car_context_release(context, loader->given, (size_t)loader->range, sizeof *loader->given);
    car_batches_end(&loader->batches);
    if (loader->has_locks) {
        pthread_cond_destroy(&loader->room);
        pthread_cond_destroy(&loader->ready);
        pthread_mutex_destroy(&loader->lock);
    }
    car_context_release(context, loader, 1, sizeof *loader);
}
