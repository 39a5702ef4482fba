/* Shared by commands for language models: where a model's weights, settings and tokenizer are. */
#ifndef CAR_CLI_LANGUAGE_H
#define CAR_CLI_LANGUAGE_H

#include <stdbool.h>

#include "carousel/language.h"

enum { CAR_CLI_LANGUAGE_PATH = 4096 };

/* ---- language.c: the tokenizer of training data ------------------------------------------------------------------ */

/* Copies the data's tokenizer to the run directory as tokenizer.json. Text files get one that says that tokens are
 * bytes. If the data has no tokenizer, removes the file. A resumed run keeps what it has. */
car_status car_cli_keep_tokenizer(car_context *context, const char *data, const char *directory, bool resumed);

/* ---- models for text generation ---------------------------------------------------------------------------------- */

/* The options, and the model they name. */
typedef struct car_cli_language {
    const char *place; /* argument of car_language_open */
    car_language_config config;
    car_context *context;
    car_language *language;
} car_cli_language;

/* The number of cores. */
int car_cli_language_threads(void);
/* `context` must be set. A model without a tokenizer is an error. */
car_status car_cli_open_language(car_cli_language *model);

#endif
