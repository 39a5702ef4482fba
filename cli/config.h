/* Options in a file: a JSON object whose keys are the names of options. */
#ifndef CAR_CLI_CONFIG_H
#define CAR_CLI_CONFIG_H

#include <cjson/cJSON.h>

#include "cli.h"

/* Owns the texts that options point to; released with car_cli_release_config (NULL is allowed). */
typedef struct cJSON car_cli_config;

/* Sets the options that `text` has. Returns CAR_CLI_GO_ON, or the code to exit with after a message; `source` names
 * the text in it. --config and --resume are no part of a configuration. */
int car_cli_apply_config(const car_cli_command *command, const car_cli_option *options, int count, const char *source,
                         const char *text, size_t length, car_cli_config **out);
/* The same from a file. */
int car_cli_read_config(const car_cli_command *command, const car_cli_option *options, int count, const char *path,
                        car_cli_config **out);
void car_cli_release_config(car_cli_config *config);

/* All options that have a value, as an object that can be read back; NULL without memory. */
cJSON *car_cli_config_of(const car_cli_option *options, int count);

#endif
