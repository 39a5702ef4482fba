/* Writes models side by side to a PNG. */
#ifndef PICTURE_H
#define PICTURE_H

#include "wave.h"

enum { PICTURE_PANELS = 3 };

/* Draws each model without its absorbing layer, with its title, in one colour scale. Returns false with errno set,
 * or 0 if libpng failed. */
bool picture_write(const char *path, const wave *w, const real *const *models, const char *const *titles);

#endif
