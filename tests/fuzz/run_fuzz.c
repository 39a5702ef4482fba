/* Files of run directories, as the report reads them: the first byte says which one the rest is. A timeline that was
 * accepted must be accepted again after it was written and read, because that is what the page gets. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "report/page.h"

/* The columns of metrics have a fixed size; everything else is as large as the input. */
static const size_t most = 1 << 20;

static void read_timeline(car_context *context, const char *path) {
    cJSON *timeline = NULL, *again = NULL;
    if (car_run_read_object(context, path, &timeline) == CAR_OK && !car_run_timeline_is_foreign(timeline) &&
        car_run_check_timeline(context, path, timeline) == CAR_OK) {
        char *text = cJSON_PrintUnformatted(timeline);
        again = text ? cJSON_Parse(text) : NULL;
        if (!again || car_run_check_timeline(context, path, again) != CAR_OK) {
            abort();
        }
        cJSON_free(text);
    }
    cJSON_Delete(again);
    cJSON_Delete(timeline);
}

static void read_lines(car_context *context, const char *path, bool metrics) {
    car_run_lines lines;
    cJSON *read = NULL;
    car_status status = metrics ? car_run_read_metrics(context, path, &lines, &read)
                                : car_run_read_evaluations(context, path, &lines, &read);
    const cJSON *points = metrics ? cJSON_GetObjectItemCaseSensitive(read, "step") : read;
    if (status == CAR_OK && (read != NULL) != (lines.count > 0)) {
        abort();
    }
    if (cJSON_GetArraySize(points) > CAR_RUN_POINTS + 1) {
        abort();
    }
    cJSON_Delete(read);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    car_context *context = car_fuzz_context(most);
    car_fuzz_write("file", data + 1, size - 1);
    char *path = strdup(car_fuzz_path("file"));
    if (data[0] % 3 == 0) {
        read_timeline(context, path);
    } else {
        read_lines(context, path, data[0] % 3 == 1);
    }
    free(path);
    car_fuzz_end(context);
    return 0;
}
