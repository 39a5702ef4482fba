/* See picture.h. */
#include "picture.h"

#include <errno.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PANEL = 240, GAP = 24, TITLE = 30, BAR = 16, GLYPH_ROWS = 7, GLYPH_COLUMNS = 5, ZOOM = 2 };

typedef struct canvas {
    int width, height;
    unsigned char *pixels; /* RGB */
} canvas;

/* ---- text ------------------------------------------------------------------------------------- */

/* Bitmaps of the characters used here: rows of five bits, from the top. */
static const struct glyph {
    char code;
    unsigned char rows[GLYPH_ROWS];
} glyphs[] = {
    {'a', {0, 0, 14, 1, 15, 17, 15}},  {'c', {0, 0, 14, 17, 16, 17, 14}},   {'d', {1, 1, 13, 19, 17, 17, 15}},
    {'e', {0, 0, 14, 17, 31, 16, 14}}, {'k', {16, 16, 18, 20, 24, 20, 18}}, {'m', {0, 0, 26, 21, 21, 21, 21}},
    {'o', {0, 0, 14, 17, 17, 17, 14}}, {'r', {0, 0, 22, 25, 16, 16, 16}},   {'s', {0, 0, 15, 16, 14, 1, 30}},
    {'t', {8, 8, 28, 8, 8, 9, 6}},     {'u', {0, 0, 17, 17, 17, 19, 13}},   {'v', {0, 0, 17, 17, 17, 10, 4}},
    {'/', {1, 1, 2, 4, 8, 16, 16}},    {'.', {0, 0, 0, 0, 0, 12, 12}},      {'0', {14, 17, 19, 21, 25, 17, 14}},
    {'1', {4, 12, 4, 4, 4, 4, 14}},    {'2', {14, 17, 1, 2, 4, 8, 31}},     {'3', {14, 17, 1, 6, 1, 17, 14}},
    {'4', {2, 6, 10, 18, 31, 2, 2}},   {'5', {31, 16, 30, 1, 1, 17, 14}},   {'6', {14, 16, 16, 30, 17, 17, 14}},
    {'7', {31, 1, 2, 4, 8, 8, 8}},     {'8', {14, 17, 17, 14, 17, 17, 14}}, {'9', {14, 17, 17, 15, 1, 1, 14}},
};

static void dot(const canvas *c, int x, int y, const unsigned char *colour) {
    if (x >= 0 && y >= 0 && x < c->width && y < c->height) {
        memcpy(c->pixels + 3 * ((size_t)y * (size_t)c->width + (size_t)x), colour, 3);
    }
}

static void write_glyph(const canvas *c, const struct glyph *g, int left, int top) {
    static const unsigned char ink[] = {40, 40, 40};
    for (int y = 0; y < GLYPH_ROWS * ZOOM; y++) {
        for (int x = 0; x < GLYPH_COLUMNS * ZOOM; x++) {
            if (g->rows[y / ZOOM] >> (GLYPH_COLUMNS - 1 - x / ZOOM) & 1) {
                dot(c, left + x, top + y, ink);
            }
        }
    }
}

static void write_text(const canvas *c, const char *text, int left, int top) {
    for (; *text; text++, left += (GLYPH_COLUMNS + 1) * ZOOM) {
        for (size_t g = 0; g < sizeof glyphs / sizeof *glyphs; g++) {
            if (glyphs[g].code == *text) {
                write_glyph(c, &glyphs[g], left, top);
            }
        }
    }
}

/* ---- panels ------------------------------------------------------------------------------------- */

/* A colour from blue over white to red, for a share from 0 to 1. */
static void shade(double share, unsigned char *colour) {
    static const double ends[3][3] = {{33, 80, 160}, {245, 245, 240}, {178, 34, 40}};
    double at = 2 * fmin(fmax(share, 0), 1);
    int k = at < 1 ? 0 : 1;
    for (int i = 0; i < 3; i++) {
        colour[i] = (unsigned char)(ends[k][i] + (at - k) * (ends[k + 1][i] - ends[k][i]));
    }
}

static double value(const wave *w, const real *model, int x, int y) {
    int layer = (w->width - w->size) / 2;
    size_t row = (size_t)(layer + y * w->size / PANEL), column = (size_t)(layer + x * w->size / PANEL);
    return (double)model[row * (size_t)w->width + column];
}

static void paint(const canvas *c, const wave *w, const real *model, double low, double high, int left) {
    unsigned char colour[3];
    for (int y = 0; y < PANEL; y++) {
        for (int x = 0; x < PANEL; x++) {
            shade((value(w, model, x, y) - low) / (high - low), colour);
            dot(c, left + x, TITLE + y, colour);
        }
    }
}

static void paint_scale(const canvas *c, double low, double high, int left) {
    unsigned char colour[3];
    char text[32];
    for (int y = 0; y < PANEL; y++) {
        shade(1 - (double)y / (PANEL - 1), colour);
        for (int x = 0; x < BAR; x++) {
            dot(c, left + x, TITLE + y, colour);
        }
    }
    snprintf(text, sizeof text, "%.2f", high);
    write_text(c, text, left + BAR + 6, TITLE);
    snprintf(text, sizeof text, "%.2f", low);
    write_text(c, text, left + BAR + 6, TITLE + PANEL - GLYPH_ROWS * ZOOM);
    write_text(c, "km/s", left, (TITLE - GLYPH_ROWS * ZOOM) / 2);
}

/* ---- the file ----------------------------------------------------------------------------------- */

static bool save(const char *path, const canvas *c) {
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)c->width,
                       .height = (png_uint_32)c->height,
                       .format = PNG_FORMAT_RGB};
    errno = 0;
    return png_image_write_to_file(&image, path, 0, c->pixels, 0, NULL) != 0;
}

bool picture_write(const char *path, const wave *w, const real *const *models, const char *const *titles) {
    canvas c = {.width = PICTURE_PANELS * (PANEL + GAP) + GAP + BAR + 64, .height = TITLE + PANEL + GAP};
    double low = INFINITY, high = -INFINITY;
    size_t bytes = 3 * (size_t)c.width * (size_t)c.height;
    c.pixels = malloc(bytes);
    if (!c.pixels) {
        return false;
    }
    memset(c.pixels, 255, bytes);
    for (int y = 0; y < PANEL; y++) {
        for (int x = 0; x < PANEL; x++) {
            low = fmin(low, value(w, models[0], x, y));
            high = fmax(high, value(w, models[0], x, y));
        }
    }
    for (int p = 0; p < PICTURE_PANELS; p++) {
        int left = GAP + p * (PANEL + GAP);
        paint(&c, w, models[p], low, high, left);
        write_text(&c, titles[p], left, (TITLE - GLYPH_ROWS * ZOOM) / 2);
    }
    paint_scale(&c, low, high, GAP + PICTURE_PANELS * (PANEL + GAP));
    bool good = save(path, &c);
    free(c.pixels);
    return good;
}
