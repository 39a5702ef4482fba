/* Reads metrics.jsonl and evaluations.jsonl for the page: see page.h.
 *
 * A long run has more steps than a chart has pixels. So consecutive steps are combined into one point with the mean,
 * the minimum and the maximum of their losses: the curve shows the mean, and no outlier is lost. The step of a point
 * is the mean of its steps. The first and last step of the run are stored besides the points. */
#include <math.h>
#include <string.h>

#include "report/page.h"

enum { STEP, LOSS, LOSS_MIN, LOSS_MAX, LR, NORM, SECONDS, SERIES };
static const char *const series_names[SERIES] = {"step", "loss",          "loss_min", "loss_max",
                                                 "lr",   "gradient_norm", "seconds"};

/* A point while it is being accumulated. */
typedef struct bucket {
    int64_t lines, losses, norms;
    double steps, loss, least, most, norm, lr, seconds;
} bucket;

typedef struct metrics_reader {
    car_context *context;
    int64_t width, lines; /* width: lines per point; lines: lines read */
    double first_step, last_step;
    int64_t skipped, not_finite;
    bucket now;
    int points;
    double *values; /* SERIES rows of CAR_RUN_POINTS; values that are not finite become null */
} metrics_reader;

/* ---- metrics --------------------------------------------------------------------------------- */

static int64_t width_for(int64_t lines) {
    return lines > CAR_RUN_POINTS ? (lines + CAR_RUN_POINTS - 1) / CAR_RUN_POINTS : 1;
}

static void begin_metrics(void *user, int64_t lines) {
    metrics_reader *reader = user;
    reader->width = width_for(lines);
}

static double number_of(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static void end_bucket(metrics_reader *reader) {
    const bucket *b = &reader->now;
    if (b->lines == 0 || reader->points == CAR_RUN_POINTS) {
        return;
    }
    double *point = reader->values + reader->points++;
    point[STEP * CAR_RUN_POINTS] = b->steps / (double)b->lines;
    point[LOSS * CAR_RUN_POINTS] = b->losses ? b->loss / (double)b->losses : NAN;
    point[LOSS_MIN * CAR_RUN_POINTS] = b->losses ? b->least : NAN;
    point[LOSS_MAX * CAR_RUN_POINTS] = b->losses ? b->most : NAN;
    point[LR * CAR_RUN_POINTS] = b->lr;
    point[NORM * CAR_RUN_POINTS] = b->norms ? b->norm / (double)b->norms : NAN;
    point[SECONDS * CAR_RUN_POINTS] = b->seconds;
    reader->now = (bucket){0};
}

static void take_loss(metrics_reader *reader, double loss) {
    bucket *b = &reader->now;
    if (!isfinite(loss)) {
        reader->not_finite++;
        return;
    }
    b->least = b->losses == 0 ? loss : fmin(b->least, loss);
    b->most = b->losses == 0 ? loss : fmax(b->most, loss);
    b->loss += loss;
    b->losses++;
}

static car_status take_metrics(void *user, const cJSON *object, bool *sound) {
    metrics_reader *reader = user;
    bucket *b = &reader->now;
    double step = number_of(object, "step"), norm = number_of(object, "gradient_norm");
    if (!isfinite(step)) {
        *sound = false;
        return CAR_OK;
    }
    reader->first_step = reader->lines == 0 ? step : reader->first_step;
    reader->last_step = step;
    reader->lines++;
    reader->skipped += cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "skipped"));
    b->lines++;
    b->steps += step;
    b->lr = number_of(object, "lr");
    b->seconds = number_of(object, "seconds");
    take_loss(reader, number_of(object, "loss"));
    if (isfinite(norm)) {
        b->norm += norm;
        b->norms++;
    }
    if (b->lines == reader->width) {
        end_bucket(reader);
    }
    return CAR_OK;
}

static car_status add_number(car_context *context, cJSON *object, const char *name, double value) {
    return car_run_add(context, object, name, cJSON_CreateNumber(value));
}

static car_status describe(const metrics_reader *reader, cJSON **out) {
    car_context *context = reader->context;
    cJSON *object = cJSON_CreateObject();
    car_status status = CAR_OK;
    CAR_TRY(add_number(context, object, "lines", (double)reader->lines));
    CAR_TRY(add_number(context, object, "steps_in_a_point", (double)reader->width));
    CAR_TRY(add_number(context, object, "first_step", reader->first_step));
    CAR_TRY(add_number(context, object, "last_step", reader->last_step));
    CAR_TRY(add_number(context, object, "skipped", (double)reader->skipped));
    CAR_TRY(add_number(context, object, "not_finite", (double)reader->not_finite));
    for (int s = 0; s < SERIES; s++) {
        const double *values = reader->values + s * CAR_RUN_POINTS;
        CAR_TRY(car_run_add(context, object, series_names[s], cJSON_CreateDoubleArray(values, reader->points)));
    }
    *out = object;
    object = NULL;
done:
    cJSON_Delete(object);
    return status;
}

car_status car_run_read_metrics(car_context *context, const char *path, car_run_lines *lines, cJSON **out) {
    metrics_reader reader = {.context = context, .width = 1};
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_context_allocate(context, (size_t)SERIES * CAR_RUN_POINTS, sizeof(double), &reader.values));
    CAR_TRY(car_run_read_lines(context, path, begin_metrics, take_metrics, &reader, lines));
    end_bucket(&reader);
    if (reader.lines > 0) {
        CAR_TRY(describe(&reader, out));
    }
done:
    car_context_release(context, reader.values, (size_t)SERIES * CAR_RUN_POINTS, sizeof(double));
    return status;
}

/* ---- evaluations ----------------------------------------------------------------------------- */

typedef struct evaluations_reader {
    car_context *context;
    cJSON *array, *last; /* last: the newest one, if it is not in the array */
    int64_t lines, width;
} evaluations_reader;

static void begin_evaluations(void *user, int64_t lines) {
    evaluations_reader *reader = user;
    reader->width = width_for(lines);
}

/* Of very many evaluations, keeps every width-th and the last, which is the result. */
static car_status take_evaluation(void *user, const cJSON *object, bool *sound) {
    evaluations_reader *reader = user;
    if (!isfinite(number_of(object, "step"))) {
        *sound = false;
        return CAR_OK;
    }
    cJSON *copy = cJSON_Duplicate(object, true);
    cJSON_Delete(reader->last);
    reader->last = NULL;
    if (reader->lines++ % reader->width == 0 || !copy) {
        return car_run_append(reader->context, reader->array, copy);
    }
    reader->last = copy; /* only at the end is it known to be the last: damaged lines may follow */
    return CAR_OK;
}

car_status car_run_read_evaluations(car_context *context, const char *path, car_run_lines *lines, cJSON **out) {
    evaluations_reader reader = {.context = context, .array = cJSON_CreateArray(), .width = 1};
    car_status status = CAR_OK;
    *out = NULL;
    CAR_TRY(car_run_read_lines(context, path, begin_evaluations, take_evaluation, &reader, lines));
    if (reader.last) {
        cJSON *last = reader.last;
        reader.last = NULL;
        CAR_TRY(car_run_append(context, reader.array, last));
    }
    if (reader.lines > 0) {
        *out = reader.array;
        reader.array = NULL;
    }
done:
    cJSON_Delete(reader.last);
    cJSON_Delete(reader.array);
    return status;
}
