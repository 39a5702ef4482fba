/* A card as the metadata of a safetensors file. */
#ifndef CAR_CARD_PAIRS_H
#define CAR_CARD_PAIRS_H

#include "base/base.h"
#include "carousel/card.h"

/* Keys with their prefix and values, one behind the other, ended by NULL: what car_safetensors_writer_create takes. The
 * first pair is "format", "pt", which Hugging Face's libraries look for. */
typedef struct car_card_pairs {
    const char **texts;
    char **owned;
    int capacity; /* of both arrays */
} car_card_pairs;

car_status car_card_list_pairs(car_context *context, const car_card *card, car_card_pairs *out); /* NULL: no card */
void car_card_release_pairs(car_context *context, car_card_pairs *pairs);

#endif
