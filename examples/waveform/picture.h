/* Models side by side in a PNG. */
#ifndef PICTURE_H
#define PICTURE_H

#include "wave.h"

enum { PICTURE_PANELS = 3 };

/* The part of each that is not absorbing, with its title, in one scale of colours. False with errno, or 0 if libpng failed. */
bool picture_write(const char *path, const wave *w, const real *const *models, const char *const *titles);

#endif
