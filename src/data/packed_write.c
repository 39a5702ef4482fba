/* Packing: reads all images of a dataset, resizes them, and writes them to one file.
 *
 * Threads decode and resize; the caller writes, in the order of samples. Threads stay at most a few images ahead of
 * the writer, so memory grows with the dataset only by the tables, 20 bytes per image. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/output.h"
#include "data/dataset.h"
#include "data/image.h"
#include "data/packed.h"

enum { MOST_THREADS = 8, ITEMS_PER_THREAD = 4, PROGRESS_EVERY = 64 };

/* One image on its way from a thread to the writer. */
typedef struct item {
    car_source_buffer pixels;
    int width, height; /* 0 if it is unreadable */
    int32_t label;
    bool ready;
} item;

typedef struct packing {
    car_context *context;
    car_dataset *dataset;
    car_packed_header header;
    int64_t samples;
    unsigned char *index, *labels; /* the tables in the file's format */
    bool alike;                    /* so far all images are readable and of equal size */
    car_output output;

    int item_count;
    item *items;
    pthread_mutex_t lock; /* guards the fields below, and `ready` of the items */
    pthread_cond_t changed;
    int64_t taken, written; /* samples that threads have started, and that are in the file */
    car_status status;      /* of the first failure, which stops all threads */
} packing;

/* ---- threads: one image ---------------------------------------------------------------------- */

/* The shorter side becomes `size`; the longer one is rounded down, as in torchvision. */
static void choose_size(int size, const car_image *image, int *width, int *height) {
    int shorter = image->width < image->height ? image->width : image->height;
    int64_t across = (int64_t)image->width * size / shorter, down = (int64_t)image->height * size / shorter;
    *width = across < CAR_PACKED_LARGEST ? (int)across : CAR_PACKED_LARGEST;
    *height = down < CAR_PACKED_LARGEST ? (int)down : CAR_PACKED_LARGEST;
}

static car_status fill_item(const packing *p, const car_image *image, car_source_buffer *work, item *item) {
    car_status status = CAR_OK;
    item->width = image->width;
    item->height = image->height;
    item->label = image->label;
    if (image->pixels == NULL) {
        return CAR_OK;
    }
    if (p->header.size > 0) {
        choose_size((int)p->header.size, image, &item->width, &item->height);
    }
    size_t bytes = (size_t)3 * (size_t)item->width * (size_t)item->height;
    CAR_TRY(car_source_reserve(&item->pixels, bytes));
    if (item->width == image->width && item->height == image->height) {
        memcpy(item->pixels.data, image->pixels, bytes);
    } else {
        car_image_box whole = {0, 0, image->width, image->height};
        CAR_TRY(car_image_resize(work, image, &whole, item->width, item->height, item->pixels.data));
    }
done:
    return status;
}

static car_split split_of(const packing *p, int64_t number, int64_t *sample) {
    int64_t train = (int64_t)p->header.samples[CAR_SPLIT_TRAIN];
    *sample = number < train ? number : number - train;
    return number < train ? CAR_SPLIT_TRAIN : CAR_SPLIT_EVALUATION;
}

/* The next sample to read, or -1 if none is left. Waits for a free item. */
static int64_t take_sample(packing *p) {
    int64_t number = -1;
    pthread_mutex_lock(&p->lock);
    while (p->status == CAR_OK && p->taken < p->samples && p->taken >= p->written + p->item_count) {
        pthread_cond_wait(&p->changed, &p->lock);
    }
    if (p->status == CAR_OK && p->taken < p->samples) {
        number = p->taken++;
    }
    pthread_mutex_unlock(&p->lock);
    return number;
}

static void hand_over(packing *p, item *item, car_status status) {
    pthread_mutex_lock(&p->lock);
    if (item != NULL) {
        item->ready = true;
    }
    p->status = p->status == CAR_OK ? status : p->status;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void *read_images(void *user) {
    packing *p = user;
    car_reader *reader = NULL;
    car_source_buffer work = {.context = p->context};
    car_status status = CAR_OK;
    CAR_TRY(car_reader_create(p->dataset, &reader));
    for (int64_t number = take_sample(p); number >= 0; number = take_sample(p)) {
        item *item = &p->items[number % p->item_count];
        int64_t sample = 0;
        car_split split = split_of(p, number, &sample);
        car_image image;
        CAR_TRY(car_reader_image(reader, split, sample, &image));
        CAR_TRY(fill_item(p, &image, &work, item));
        hand_over(p, item, CAR_OK);
    }
done:
    hand_over(p, NULL, status);
    car_source_free(&work);
    car_reader_destroy(reader);
    return NULL;
}

/* ---- the writer ------------------------------------------------------------------------------ */

static car_status check_size(packing *p, int64_t number, const item *item) {
    car_packed_header *h = &p->header;
    int64_t sample = 0;
    car_split split = split_of(p, number, &sample);
    if (item->width == 0) {
        p->alike = false;
        return CAR_OK;
    }
    if (h->width == 0) {
        h->width = (uint32_t)item->width;
        h->height = (uint32_t)item->height;
    }
    if (h->width != (uint32_t)item->width || h->height != (uint32_t)item->height) {
        p->alike = false;
        if (h->size == 0) {
            return car_context_fail(p->context, CAR_ERROR_SHAPE,
                                    "%s image %lld has %d x %d pixels, but others have %u x %u; resize images of "
                                    "different sizes, for example to a shorter side of 256 (size 256)",
                                    split == CAR_SPLIT_TRAIN ? "training" : "evaluation", (long long)sample,
                                    item->width, item->height, h->width, h->height);
        }
    }
    return CAR_OK;
}

static car_status write_image(packing *p, int64_t number, const item *item) {
    car_packed_entry entry = {p->output.bytes, (uint32_t)item->width, (uint32_t)item->height};
    unsigned char *at = p->index + number * CAR_PACKED_ENTRY;
    car_status status = CAR_OK;
    CAR_TRY(check_size(p, number, item));
    if (item->width > 0) {
        CAR_TRY(car_output_write(&p->output, item->pixels.data, (size_t)car_packed_image_bytes(&entry)));
    } else {
        entry.offset = 0;
    }
    car_bytes_put_u64(at, entry.offset);
    car_bytes_put_u32(at + 8, entry.width);
    car_bytes_put_u32(at + 12, entry.height);
    car_bytes_put_u32(p->labels + number * CAR_PACKED_LABEL, (uint32_t)item->label);
done:
    return status;
}

/* Writes samples in order, as they arrive. */
static car_status write_images(packing *p, car_pack_progress progress, void *user) {
    for (int64_t number = 0; number < p->samples; number++) {
        item *item = &p->items[number % p->item_count];
        pthread_mutex_lock(&p->lock);
        while (p->status == CAR_OK && !item->ready) {
            pthread_cond_wait(&p->changed, &p->lock);
        }
        car_status status = p->status;
        pthread_mutex_unlock(&p->lock);
        if (status == CAR_OK) {
            status = write_image(p, number, item);
        }
        pthread_mutex_lock(&p->lock);
        item->ready = false;
        p->written = number + 1;
        p->status = p->status == CAR_OK ? status : p->status;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        if (status != CAR_OK) {
            return status;
        }
        if (progress != NULL && (number % PROGRESS_EVERY == 0 || number + 1 == p->samples)) {
            progress(user, number + 1, p->samples);
        }
    }
    return CAR_OK;
}

static car_status run_threads(packing *p, int threads, car_pack_progress progress, void *user) {
    pthread_t ids[MOST_THREADS];
    int started = 0;
    car_status status = CAR_OK;
    while (started < threads && pthread_create(&ids[started], NULL, read_images, p) == 0) {
        started++;
    }
    if (started > 0) {
        status = write_images(p, progress, user);
    } else {
        status = car_context_fail(p->context, CAR_ERROR_MEMORY, "could not start a thread");
    }
    while (started > 0) {
        pthread_join(ids[--started], NULL);
    }
    return status;
}

/* ---- tables and header ----------------------------------------------------------------------- */

/* Joins index, labels and names in the file's format. The caller releases the result. */
static car_status join_tables(packing *p, unsigned char **out, size_t *out_bytes) {
    car_packed_header *h = &p->header;
    size_t index_bytes = p->alike ? 0 : (size_t)p->samples * CAR_PACKED_ENTRY;
    size_t labels_bytes = (size_t)p->samples * CAR_PACKED_LABEL;
    car_status status = CAR_OK;
    h->names_bytes = 0;
    for (int c = 0; c < (int)h->classes; c++) {
        const char *name = car_dataset_class_name(p->dataset, c);
        h->names_bytes += (name != NULL ? strlen(name) : 0) + 1;
    }
    *out_bytes = index_bytes + labels_bytes + (size_t)h->names_bytes;
    CAR_TRY(car_context_allocate(p->context, *out_bytes, 1, out));
    memcpy(*out, p->index, index_bytes);
    memcpy(*out + index_bytes, p->labels, labels_bytes);
    char *at = (char *)*out + index_bytes + labels_bytes;
    for (int c = 0; c < (int)h->classes; c++) {
        const char *name = car_dataset_class_name(p->dataset, c);
        size_t length = name != NULL ? strlen(name) : 0;
        memcpy(at, name != NULL ? name : "", length + 1);
        at += length + 1;
    }
done:
    return status;
}

static car_status write_tables(packing *p) {
    unsigned char header[CAR_PACKED_HEADER], *tables = NULL;
    char checksum[CAR_SHA256_TEXT];
    size_t bytes = 0;
    car_status status = CAR_OK;
    p->header.tables = p->output.bytes;
    if (!p->alike) {
        p->header.width = p->header.height = 0;
    }
    CAR_TRY(join_tables(p, &tables, &bytes));
    car_packed_put_header(&p->header, header);
    car_packed_checksum(header, tables, bytes, checksum);
    memcpy(header + CAR_PACKED_CHECKSUM, checksum, CAR_SHA256_TEXT - 1);
    CAR_TRY(car_output_write(&p->output, tables, bytes));
    CAR_TRY(car_output_write_at(&p->output, 0, header, sizeof header));
done:
    car_context_release(p->context, tables, bytes, 1);
    return status;
}

/* ---- packing --------------------------------------------------------------------------------- */

static car_status set_up(packing *p, car_dataset *dataset, int size, const char *path, int threads) {
    car_dataset_info info = car_dataset_get_info(dataset);
    unsigned char nothing[CAR_PACKED_HEADER] = {0}; /* an unfinished file has no magic number */
    car_status status = CAR_OK;
    if (info.domain != CAR_DOMAIN_IMAGES || info.samples[CAR_SPLIT_TRAIN] <= 0) { /* or endless */
        return car_context_fail(p->context, CAR_ERROR_UNSUPPORTED, "data %s: only stored images can be packed",
                                dataset->name);
    }
    if (size < 0 || size > CAR_PACKED_LARGEST) {
        return car_context_fail(p->context, CAR_ERROR_ARGUMENT, "the shorter side of packed images cannot be %d pixels",
                                size);
    }
    p->header.size = (uint32_t)size;
    p->header.classes = (uint32_t)info.classes;
    for (int s = 0; s < CAR_SPLITS; s++) {
        p->header.samples[s] = (uint64_t)info.samples[s];
        p->samples += info.samples[s];
    }
    CAR_TRY(car_context_allocate(p->context, (size_t)p->samples, CAR_PACKED_ENTRY, &p->index));
    CAR_TRY(car_context_allocate(p->context, (size_t)p->samples, CAR_PACKED_LABEL, &p->labels));
    p->item_count = threads * ITEMS_PER_THREAD;
    CAR_TRY(car_context_allocate(p->context, (size_t)p->item_count, sizeof *p->items, &p->items));
    for (int i = 0; i < p->item_count; i++) {
        p->items[i].pixels.context = p->context;
    }
    CAR_TRY(car_output_open(p->context, path, &p->output));
    CAR_TRY(car_output_write(&p->output, nothing, sizeof nothing));
done:
    return status;
}

static void tear_down(packing *p) {
    car_output_close(&p->output);
    for (int i = 0; p->items != NULL && i < p->item_count; i++) {
        car_source_free(&p->items[i].pixels);
    }
    car_context_release(p->context, p->items, (size_t)p->item_count, sizeof *p->items);
    car_context_release(p->context, p->labels, (size_t)p->samples, CAR_PACKED_LABEL);
    car_context_release(p->context, p->index, (size_t)p->samples, CAR_PACKED_ENTRY);
}

car_status car_dataset_pack(car_dataset *dataset, int size, const char *path, car_pack_progress progress, void *user) {
    CAR_REQUIRE(NULL, dataset);
    CAR_REQUIRE(NULL, path);
    packing p = {.context = dataset->context, .dataset = dataset, .alike = true};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = cores < 1 ? 1 : cores > MOST_THREADS ? MOST_THREADS : (int)cores;
    car_status status = CAR_OK;
    pthread_mutex_init(&p.lock, NULL); /* neither fails on Linux */
    pthread_cond_init(&p.changed, NULL);
    CAR_TRY(set_up(&p, dataset, size, path, threads));
    CAR_TRY(run_threads(&p, threads, progress, user));
    CAR_TRY(write_tables(&p));
    CAR_TRY(car_output_finish(&p.output, NULL));
done:
    tear_down(&p);
    pthread_cond_destroy(&p.changed);
    pthread_mutex_destroy(&p.lock);
    return status;
}
