/* The files that `carousel predict` classifies. */
#include <errno.h>
#include <fts.h>
#include <string.h>

#include "carousel/convention.h"
#include "predict.h"

static car_status add_file(car_predict_run *run, const char *path) {
    car_status status = CAR_OK;
    CAR_TRY(car_context_grow(run->context, &run->files, &run->file_capacity, run->file_count + 1, sizeof *run->files));
    CAR_TRY(car_context_copy_text(run->context, path, &run->files[run->file_count]));
    run->file_count++;
done:
    return status;
}

static int compare(const FTSENT **a, const FTSENT **b) {
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* A file given by name is always used. In folders only images are, and hidden files are skipped. */
static car_status take_entry(car_predict_run *run, FTS *walk, FTSENT *entry) {
    bool named = entry->fts_level == 0;
    if (entry->fts_info == FTS_D) {
        if (!named && entry->fts_name[0] == '.') {
            fts_set(walk, entry, FTS_SKIP);
        }
        return CAR_OK;
    }
    if (entry->fts_info == FTS_DP || entry->fts_info == FTS_DC) { /* leaving a folder; a cyclic link */
        return CAR_OK;
    }
    if (named || entry->fts_info == FTS_DNR ||
        (entry->fts_name[0] != '.' && car_image_has_known_ending(entry->fts_name))) {
        return add_file(run, entry->fts_path);
    }
    run->others += entry->fts_name[0] != '.';
    return CAR_OK;
}

car_status car_predict_add(car_predict_run *run, const char *path) {
    char *const paths[] = {(char *)(uintptr_t)path, NULL};
    car_status status = CAR_OK;
    FTS *walk = fts_open(paths, FTS_LOGICAL | FTS_NOCHDIR, compare);
    if (!walk) {
        return car_context_fail(run->context, CAR_ERROR_IO, "%s: %s", path, strerror(errno));
    }
    for (FTSENT *entry = fts_read(walk); entry && status == CAR_OK; entry = fts_read(walk)) {
        status = take_entry(run, walk, entry);
    }
    fts_close(walk);
    return status;
}

void car_predict_release_files(car_predict_run *run) {
    for (int f = 0; f < run->file_count; f++) {
        car_context_release_text(run->context, run->files[f]);
    }
    car_context_release(run->context, run->files, (size_t)run->file_capacity, sizeof *run->files);
}
