/* Internals of a language model, for the files in this folder. */
#ifndef CAR_GENERATE_LANGUAGE_H
#define CAR_GENERATE_LANGUAGE_H

#include "base/base.h"
#include "carousel/language.h"

enum { CAR_LANGUAGE_PATH = 4096 };

struct car_language {
    car_context *context;
    car_generator *generator;
    car_tokenizer *tokenizer; /* NULL if none was found */
    char *folder;             /* where settings and tokenizer are looked for */
    char *path;               /* of the weights */
    int sequence;             /* 0: unknown */
};

#endif
