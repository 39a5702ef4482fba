/* The card of a weights file: what you need to use the file without the run that made it.
 *
 * A card is a set of key and text pairs, stored in the safetensors metadata under "carousel.KEY": the model, its
 * sizes, the names of its classes, how images are prepared. docs/formats.md lists the keys. One thread at a time may
 * use a card. */
#ifndef CAROUSEL_CARD_H
#define CAROUSEL_CARD_H

#include "carousel/image.h"
#include "carousel/model.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_card car_card;

/* Creates an empty card. */
car_status car_card_create(car_context *context, car_card **out);
void car_card_destroy(car_card *card); /* NULL is allowed */

/* Reads the card of a safetensors file; the card is empty if the file has none. Fails as car_safetensors_open does. */
car_status car_card_read(car_context *context, const char *path, car_card **out);

/* Sets a value, replacing any older one. `key` has no "carousel." prefix. */
car_status car_card_set(car_card *card, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *car_card_get(const car_card *card, const char *key); /* NULL if absent, or if `card` is NULL */

/* Appends a text to a list, which is stored as a JSON array. A NULL text becomes "". */
car_status car_card_add_to_list(car_card *card, const char *key, const char *text);
/* Copies item `index` into `text`. False if there is no such item, or the value is not a list. */
bool car_card_list_item(const car_card *card, const char *key, int index, char *text, size_t capacity);
int car_card_list_count(const car_card *card, const char *key); /* 0 if absent */

/* Stores the model's name and every number of `config` that is not zero, except the batch size. */
car_status car_card_set_model(car_card *card, const char *name, const car_model_config *config);
/* Returns the model's name, or NULL if the card has none. Fills the fields of `config` that are zero from the card. */
const char *car_card_model(const car_card *card, car_model_config *config);

/* Stores how images are prepared. */
car_status car_card_set_recipe(car_card *card, const car_image_recipe *recipe);
/* Overwrites the fields of `recipe` that the card mentions. CAR_ERROR_FORMAT if their values are unusable. */
car_status car_card_recipe(const car_card *card, car_image_recipe *recipe);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
