/* The card of a weights file: what somebody who has the file alone must know to use it.
 *
 * Pairs of a key and a text, stored in the safetensors metadata under "carousel.KEY": which model, its sizes, the names
 * of its classes, how images are prepared. The keys are listed in docs/formats.md. */
#ifndef CAROUSEL_CARD_H
#define CAROUSEL_CARD_H

#include "carousel/image.h"
#include "carousel/model.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_card car_card;

car_status car_card_create(car_context *context, car_card **out);
void car_card_destroy(car_card *card); /* NULL is allowed */

/* The card of a safetensors file; empty if it has none. Fails as car_safetensors_open does. */
car_status car_card_read(car_context *context, const char *path, car_card **out);

/* A key without its prefix. A value that is there is replaced. */
car_status car_card_set(car_card *card, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *car_card_get(const car_card *card, const char *key); /* NULL if absent; a NULL card has nothing */

/* A list of texts, kept as a JSON array. A NULL text becomes "". */
car_status car_card_add_to_list(car_card *card, const char *key, const char *text);
/* Copies item `index` into `text`; false if there is none, or the value is no list. */
bool car_card_list_item(const car_card *card, const char *key, int index, char *text, size_t capacity);
int car_card_list_count(const car_card *card, const char *key); /* 0 if absent */

/* Model settings: the name, and every number of `config` that is not zero, but for the batch. */
car_status car_card_set_model(car_card *card, const char *name, const car_model_config *config);
/* The model's name, NULL if the card has none; numbers of the card go where `config` has zero. */
const char *car_card_model(const car_card *card, car_model_config *config);

car_status car_card_set_recipe(car_card *card, const car_image_recipe *recipe);
/* Replaces what the card says something about. CAR_ERROR_FORMAT if that cannot be used. */
car_status car_card_recipe(const car_card *card, car_image_recipe *recipe);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
