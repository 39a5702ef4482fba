/* Splits text into words: see split.h. */
#include "tokenizer/split.h"

#include <string.h>

#include "tokenizer/unicode.h"

static const size_t longest = INT32_MAX / 16;

/* Length of an English ending after an apostrophe, or 0. */
static size_t contraction(const unsigned char *text, size_t bytes) {
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t e = 0; e < sizeof endings / sizeof *endings; e++) {
        size_t length = strlen(endings[e]);
        if (bytes >= length && memcmp(text, endings[e], length) == 0) {
            return length;
        }
    }
    return 0;
}

/* Length of the run of one class at the start; *last is the length of its last character. */
static size_t run_of(car_unicode_class wanted, const unsigned char *text, size_t bytes, size_t *last) {
    size_t end = 0, length = 0;
    *last = 0;
    while (end < bytes && end < longest && car_unicode_next(text + end, bytes - end, &length) == wanted) {
        end += length;
        *last = length;
    }
    return end;
}

size_t car_split_next(const unsigned char *text, size_t bytes) {
    size_t found = text[0] == '\'' ? contraction(text, bytes) : 0, length = 0, last = 0;
    if (found > 0) {
        return found;
    }
    size_t space = text[0] == ' ' && bytes > 1 ? 1 : 0;
    car_unicode_class first = car_unicode_next(text + space, bytes - space, &length);
    if (first != CAR_UNICODE_SPACE) {
        return space + run_of(first, text + space, bytes - space, &last);
    }
    /* White space. If a word follows, leave out the last character: if that is a space, it belongs to the word. */
    size_t run = run_of(CAR_UNICODE_SPACE, text, bytes, &last);
    return run < bytes && run > last ? run - last : run;
}
