/* Configurations: applies one to options of every kind. What was accepted must come back when it is written and read
 * again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "fuzz.h"

typedef struct values {
    bool flag;
    int count;
    double rate;
    uint64_t seed;
    const char *name, *config;
} values;

enum { OPTIONS = 6 };

/* What is refused is said on standard error, millions of times. Sanitizers do not write by way of this stream. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    stderr = fopen("/dev/null", "w");
    return stderr == NULL;
}

static int apply(values *v, const char *text, size_t length, car_cli_config **config, char **written) {
    const car_cli_command command = {"fuzz", "", "", NULL};
    const car_cli_option options[OPTIONS] = {
        {"flag", NULL, "", CAR_CLI_FLAG, &v->flag, 0, 0},   {"count", "N", "", CAR_CLI_INT, &v->count, 1, 1000},
        {"rate", "X", "", CAR_CLI_REAL, &v->rate, 0, 1e6},  {"seed", "N", "", CAR_CLI_SEED, &v->seed, 0, 0},
        {"name", "TEXT", "", CAR_CLI_TEXT, &v->name, 0, 0}, {"config", "FILE", "", CAR_CLI_TEXT, &v->config, 0, 0},
    };
    int code = car_cli_apply_config(&command, options, OPTIONS, "input", text, length, config);
    *written = NULL;
    if (code == CAR_CLI_GO_ON) {
        cJSON *object = car_cli_config_of(options, OPTIONS);
        *written = cJSON_PrintUnformatted(object);
        cJSON_Delete(object);
    }
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    values first = {.count = 1}, second = {.count = 1};
    car_cli_config *config = NULL, *again = NULL;
    char *written = NULL, *rewritten = NULL;
    /* Of exactly this size, without a zero at its end. */
    char *text = malloc(size + (size == 0));
    memcpy(text, data, size);
    int code = apply(&first, text, size, &config, &written);
    free(text); /* what options point to must not be in it */
    if (code == CAR_CLI_GO_ON) {
        if (first.config != NULL || first.count < 1 || first.count > 1000 || !(first.rate >= 0 && first.rate <= 1e6)) {
            abort();
        }
        if (written == NULL || apply(&second, written, strlen(written), &again, &rewritten) != CAR_CLI_GO_ON ||
            rewritten == NULL || strcmp(written, rewritten) != 0) {
            abort();
        }
    } else if (config != NULL) {
        abort();
    }
    cJSON_free(rewritten);
    car_cli_release_config(again);
    cJSON_free(written);
    car_cli_release_config(config);
    return 0;
}
