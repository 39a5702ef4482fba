/* Splits a text into words before merges apply. */
#ifndef CAR_SPLIT_H
#define CAR_SPLIT_H

#include <stddef.h>

/* Length of the first word of a text of at least one byte, as defined by GPT-2's regular expression:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Words have at most INT32_MAX / 16 bytes: a longer run of one class is cut there. */
size_t car_split_next(const unsigned char *text, size_t bytes);

#endif
