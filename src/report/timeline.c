/* Writes timeline.json of a run directory: what was executed in a few steps, for the report (docs/formats.md). */
#include <inttypes.h>
#include <stdio.h>

#include "carousel/predict.h"
#include "carousel/report.h"
#include "report/json.h"
#include "report/memory_curve.h"
#include "report/record.h"
#include "report/slot_bytes.h"

enum { MOST_LEVELS = 2000, MOST_MESSAGES = 20000 };

static const int64_t few_enough = 20000; /* workers times stages: larger plans are not simulated for a prediction */

static double microseconds(const car_record *record, double when) {
    return (double)car_record_ns(record, when) / 1e3;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void add_lanes(car_json *json, const car_record *record) {
    char text[64];
    bool begun = false;
    car_json_add(json, ",\n\"lanes\":[");
    for (int r = 0; r < record->recorder->journal_count; r++) {
        const car_journal *journal = &record->recorder->journals[r];
        for (int p = 0; p < journal->track_count; p++) {
            car_record_lane(record, journal, p, text, sizeof text);
            car_json_add(json, "%s\"%s\"", begun ? "," : "", text);
            begun = true;
        }
    }
    car_json_add(json, "]");
}

/* Indices of car_task_kind in the file's "kinds". */
static const int kind_index[CAR_TASK_KINDS] = {
    [CAR_TASK_FORWARD] = 0, [CAR_TASK_BACKWARD] = 1, [CAR_TASK_UPDATE] = 2,   [CAR_TASK_SEND] = 3,
    [CAR_TASK_RECEIVE] = 4, [CAR_TASK_REDUCE] = 5,   [CAR_TASK_BROADCAST] = 6};

static void add_tasks(car_json *json, const car_record *record) {
    int lane = 0;
    bool begun = false;
    car_json_add(json, ",\n\"kinds\":[\"forward\",\"backward\",\"update\",\"send\",\"receive\",\"reduce\","
                       "\"broadcast\"],\n\"tasks\":[");
    for (int r = 0; r < record->recorder->journal_count; r++) {
        const car_journal *journal = &record->recorder->journals[r];
        for (int p = 0; p < journal->track_count; p++, lane++) {
            for (int s = 0; s < journal->tracks[p].span_count; s++) {
                const car_span *span = &journal->tracks[p].spans[s];
                const car_task *task = &span->task;
                if (!car_record_shows(record, span)) {
                    continue;
                }
                int worker = span->row != CAR_NONE ? span->row : car_plan_worker(record->plan, task->micro_batch);
                car_json_add(json, "%s\n[%.1f,%.1f,%d,%d,%d,%d,%" PRId64 ",%" PRId64 ",%.1f]", begun ? "," : "",
                             microseconds(record, span->start), microseconds(record, span->end), lane,
                             kind_index[task->kind], worker, car_record_stage(record, task), task->step, task->version,
                             span->waited * 1e6);
                begun = true;
            }
        }
    }
    car_json_add(json, "]");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static car_status add_levels(car_json *json, const car_record *record, const car_samples *samples, int worker,
                             int rank) {
    car_levels levels = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_levels_create(record, samples, worker, rank, MOST_LEVELS, &levels));
    car_json_add(json, "[");
    for (int k = 0; k < levels.count; k++) {
        car_json_add(json, "%s[%.1f,%zu]", k ? "," : "", microseconds(record, levels.levels[k].when),
                     levels.levels[k].bytes);
    }
    car_json_add(json, "]");
done:
    car_levels_release(record, &levels);
    return status;
}

static car_status add_bounds(car_json *json, const car_record *record, const car_samples *samples) {
    const car_plan *plan = record->plan;
    const car_partition *partition = car_plan_partition(plan);
    double workers = car_plan_config_of(plan)->workers;
    car_simulation predicted = {0};
    car_levels all = {0};
    car_status status = CAR_OK;
    if (car_plan_micro_batches(plan) * (double)partition->stage_count <= (double)few_enough) {
        CAR_TRY(car_plan_predict_timed(plan, 0, &predicted));
        car_json_add(json, ",\n\"predicted_peak_bytes\":%zu", predicted.peak);
    }
    CAR_TRY(car_levels_create(record, samples, CAR_NONE, CAR_NONE, MOST_LEVELS, &all));
    car_json_add(json, ",\n\"measured_peak_bytes\":%zu,\"dp_peak_bytes\":%.0f,\"limit_bytes\":%.0f", all.peak,
                 workers * (double)partition->curve.peak, workers * (double)partition->held_bytes * partition->limit);
    if (partition->recompute) {
        const car_recomputation *r = &partition->recomputation;
        car_json_add(json, ",\"limit_without_recomputation_bytes\":%.0f", workers * (double)r->held_bytes * r->limit);
    }
done:
    car_levels_release(record, &all);
    return status;
}

static car_status add_memory(car_json *json, const car_record *record) {
    int workers = car_plan_config_of(record->plan)->workers, ranks = record->recorder->journal_count;
    car_samples samples = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_samples_create(record, &samples));
    car_json_add(json, ",\n\"memory\":{\"workers\":[");
    for (int i = 0; i < workers; i++) {
        car_json_add(json, "%s\n", i ? "," : "");
        CAR_TRY(add_levels(json, record, &samples, i, CAR_NONE));
    }
    car_json_add(json, "]");
    if (ranks > 1) {
        car_json_add(json, ",\n\"ranks\":[");
        for (int r = 0; r < ranks; r++) {
            car_json_add(json, "%s\n", r ? "," : "");
            CAR_TRY(add_levels(json, record, &samples, CAR_NONE, r));
        }
        car_json_add(json, "]");
    }
    CAR_TRY(add_bounds(json, record, &samples));
    car_json_add(json, "}");
done:
    car_samples_release(record, &samples);
    return status;
}

/* ---- messages -------------------------------------------------------------------------------- */

static void add_messages(car_json *json, const car_record *record) {
    int count = record->flight_count < MOST_MESSAGES ? record->flight_count : MOST_MESSAGES;
    car_json_add(json, ",\n\"cargos\":[\"none\",\"activation\",\"gradient\",\"partial sum\",\"finished sum\","
                       "\"weights\"],\n\"messages\":[");
    for (int f = 0; f < count; f++) {
        const car_flight *flight = &record->flights[f];
        car_json_add(json, "%s\n[%.1f,%.1f,%d,%d,%d,%zu,%" PRId64 "]", f ? "," : "", microseconds(record, flight->sent),
                     flight->receive ? microseconds(record, flight->arrived) : -1.0, flight->from, flight->to,
                     (int)flight->send->task.cargo, car_plan_task_bytes(record->plan, &flight->send->task),
                     flight->send->task.slot);
    }
    car_json_add(json, "]");
}

static void add_numbers(car_json *json, const char *name, const double *numbers, int count) {
    car_json_add(json, "\"%s\":", name);
    if (!numbers) {
        car_json_add(json, "null");
        return;
    }
    for (int k = 0; k < count; k++) {
        car_json_add(json, "%s%.0f", k ? "," : "[", numbers[k]);
    }
    car_json_add(json, "]");
}

static car_status add_slot_bytes(car_json *json, const car_record *record) {
    car_slot_bytes bytes = {0};
    car_status status = CAR_OK;
    CAR_TRY(car_slot_bytes_create(record, &bytes));
    car_json_add(json, ",\n\"bytes_per_slot\":{");
    add_numbers(json, "plan", bytes.plan, bytes.slots);
    car_json_add(json, ",\n");
    add_numbers(json, "measured", bytes.measured, bytes.slots);
    car_json_add(json, "}");
done:
    car_slot_bytes_release(record, &bytes);
    return status;
}

/* ---- the partition, and the whole ------------------------------------------------------------- */

static void add_partition(car_json *json, const car_record *record) {
    const car_partition *partition = car_plan_partition(record->plan);
    car_json_add(json, ",\n\"partition\":[");
    for (int j = 0; j < partition->stage_count; j++) {
        const car_stage *stage = &partition->stages[j];
        double flops = 0;
        for (int l = stage->first; l < stage->end; l++) {
            const car_op *op = car_graph_op(partition->graph, l);
            flops += op->flops_forward + op->flops_backward;
        }
        bool empty = stage->first == stage->end;
        car_json_add(json, "%s\n{\"stage\":%d,\"first\":", j ? "," : "", j);
        car_json_add_text(json, empty ? "" : car_graph_op(partition->graph, stage->first)->name);
        car_json_add(json, ",\"last\":");
        car_json_add_text(json, empty ? "" : car_graph_op(partition->graph, stage->end - 1)->name);
        car_json_add(json, ",\"operations\":%d,\"flops\":%.0f,\"parameter_bytes\":%zu,\"activation_bytes\":%zu}",
                     stage->end - stage->first, flops, stage->weight_bytes, stage->held_bytes);
    }
    car_json_add(json, "]");
}

static void add_head(car_json *json, const car_record *record, const char *model) {
    const car_plan_config *plan = car_plan_config_of(record->plan);
    car_json_add(json, "{\"carousel_timeline\":1,\n\"model\":");
    car_json_add_text(json, model);
    car_json_add(json, ",\"rule\":\"%s\",\"placement\":\"%s\",\"workers\":%d,\"stages\":%d,\"threads\":%d,\"ranks\":%d",
                 car_rule_text(plan->rule), car_placement_text(plan->placement), plan->workers,
                 car_plan_partition(record->plan)->stage_count, record->recorder->config.threads,
                 record->recorder->journal_count);
    car_json_add(json, ",\n\"first_step\":%" PRId64 ",\"end_step\":%" PRId64 ",\"lost\":%" PRId64, record->first_step,
                 record->end_step, car_recorder_lost(record->recorder));
}

static car_status write_all(car_json *json, const car_record *record, const char *model) {
    car_status status = CAR_OK;
    add_head(json, record, model);
    add_lanes(json, record);
    add_tasks(json, record);
    CAR_TRY(add_memory(json, record));
    add_messages(json, record);
    CAR_TRY(add_slot_bytes(json, record));
    add_partition(json, record);
    car_json_add(json, "}\n");
done:
    return status;
}

car_status car_report_timeline(const car_recorder *recorder, const car_plan *plan, const car_timeline_config *config,
                               const char *path) {
    CAR_REQUIRE(NULL, recorder);
    CAR_REQUIRE(recorder->context, plan);
    CAR_REQUIRE(recorder->context, config);
    CAR_REQUIRE(recorder->context, path);
    int64_t first = recorder->first_step, end = recorder->end_step;
    car_record record = {0};
    car_json *json = NULL;
    car_status status = CAR_OK;
    end = end - first > config->steps ? first + config->steps : end;
    CAR_TRY(car_record_open(recorder, plan, first, end, &record));
    CAR_TRY(car_json_open(recorder->context, path, &json));
    status = write_all(json, &record, config->model);
    json->status = json->status == CAR_OK ? status : json->status;
    status = car_json_close(json);
done:
    car_record_close(&record);
    return status;
}
