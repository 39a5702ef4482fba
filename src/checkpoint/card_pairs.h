/* A card as the metadata of a safetensors file. */
#ifndef CAR_CARD_PAIRS_H
#define CAR_CARD_PAIRS_H

#include "base/base.h"
#include "carousel/card.h"

/* Prefixed keys and values in turn, ending in NULL: what car_safetensors_writer_create takes. The first pair is
 * "format", "pt", which Hugging Face's libraries expect. */
typedef struct car_card_pairs {
    const char **texts;
    char **owned;
    int capacity; /* of both arrays */
} car_card_pairs;

/* `card` may be NULL. */
car_status car_card_list_pairs(car_context *context, const car_card *card, car_card_pairs *out);
void car_card_release_pairs(car_context *context, car_card_pairs *pairs);

#endif
