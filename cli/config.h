/* Options in a file: a JSON object with option names as keys. */
#ifndef CAR_CLI_CONFIG_H
#define CAR_CLI_CONFIG_H

#include <cjson/cJSON.h>

#include "cli.h"

/* Owns the texts that options point to. Release it with car_cli_release_config, which accepts NULL. */
typedef struct cJSON car_cli_config;

/* Sets the options that `text` contains. Returns CAR_CLI_GO_ON, or the exit code after a message, which calls the text
 * `source`. A configuration has no --config and no --resume. */
int car_cli_apply_config(const car_cli_command *command, const car_cli_option *options, int count, const char *source,
                         const char *text, size_t length, car_cli_config **out);
/* The same from a file. */
int car_cli_read_config(const car_cli_command *command, const car_cli_option *options, int count, const char *path,
                        car_cli_config **out);
void car_cli_release_config(car_cli_config *config);

/* All options that have a value, as an object that can be read back; NULL if memory is short. */
cJSON *car_cli_config_of(const car_cli_option *options, int count);

#endif
