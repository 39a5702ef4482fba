/* What the commands about language models share: where a model's weights, settings and tokenizer are. */
#ifndef CAR_CLI_LANGUAGE_H
#define CAR_CLI_LANGUAGE_H

#include <stdbool.h>

#include "carousel/language.h"

enum { CAR_CLI_LANGUAGE_PATH = 4096 };

/* ---- language.c: the tokenizer of data to train on ---------------------------------------------------------------- */

/* Copies the data's tokenizer into a run directory, as tokenizer.json: of a text, where bytes are tokens, one that says
 * so. Without one there is none there. A resumed run keeps what it has. */
car_status car_cli_keep_tokenizer(car_context *context, const char *data, const char *directory, bool resumed);

/* ---- a model to generate with --------------------------------------------------------------------------------------- */

/* What is typed, and where it was found. */
typedef struct car_cli_language {
    const char *place; /* what car_language_open takes */
    car_language_config config;
    car_context *context;
    car_language *language;
} car_cli_language;

/* The number of cores. */
int car_cli_language_threads(void);
/* `context` must be there. A model without a tokenizer is an error. */
car_status car_cli_open_language(car_cli_language *model);

#endif
