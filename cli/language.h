/* What the commands about language models share: where a model's weights, settings and tokenizer are. */
#ifndef CAR_CLI_LANGUAGE_H
#define CAR_CLI_LANGUAGE_H

#include <stdbool.h>

#include "carousel/generate.h"
#include "carousel/tokenizer.h"

enum { CAR_LANGUAGE_PATH = 4096 };

/* ---- language.c: the tokenizer of data to train on ---------------------------------------------------------------- */

/* Where the tokenizer of a file of tokens is: NAME.tokenizer.json beside NAME.bin. */
car_status car_language_beside(car_context *context, const char *tokens, char path[CAR_LANGUAGE_PATH]);
/* The vocabulary of the tokenizer of a file of tokens; 0 if there is none. */
car_status car_language_find_vocabulary(car_context *context, const char *data, int *vocabulary);
/* Copies the data's tokenizer into a run directory, as tokenizer.json: of a text, where bytes are tokens, one that says
 * so. Without one there is none there. A resumed run keeps what it has. */
car_status car_language_keep(car_context *context, const char *data, const char *directory, bool resumed);

/* ---- language_model.c: a model to generate with -------------------------------------------------------------------- */

/* What is typed, and where it was found. */
typedef struct car_language_model {
    const char *place;          /* a run, a checkpoint, a folder of Hugging Face's, or a file of weights */
    const char *tokenizer_path; /* NULL: the place's own */
    int heads;                  /* 0: those of the place */
    int threads;
    int trained; /* found: tokens in a sequence of the run; 0: nothing says */
    car_context *context;
    car_generator *generator;
    car_tokenizer *tokenizer;
} car_language_model;

/* The number of cores. */
int car_language_default_threads(void);
/* `context` must be there. To be closed after a failure, too. A model without a tokenizer is an error unless its
 * vocabulary is that of bytes. */
car_status car_language_open(car_language_model *model);
void car_language_close(car_language_model *model); /* not the context */

#endif
