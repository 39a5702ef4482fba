/* Transforms between images and Winograd tiles. Part of loops.c. */
#ifndef CAR_WINOGRAD_TILES_H
#define CAR_WINOGRAD_TILES_H

#include "kernels/winograd/transforms.h"

/* The tiles of all images, numbered image by image and row by row. */
typedef struct tile_grid {
    int64_t rows, columns; /* tiles per image */
    int64_t tiles;         /* in all images */
    int64_t height, width; /* pixels per image */
    int64_t blocks;        /* of channels */
    bool bf16;             /* type of the images */
} tile_grid;

static tile_grid grid_of(const car_winograd_shape *shape, int64_t blocks) {
    tile_grid grid = {.height = shape->height, .width = shape->width, .blocks = blocks, .bf16 = shape->bf16};
    grid.rows = (shape->height + TILE - 1) / TILE;
    grid.columns = (shape->width + TILE - 1) / TILE;
    grid.tiles = shape->images * grid.rows * grid.columns;
    return grid;
}

/* Where a tile's outputs begin: the plane of its image and channel block, and its pixel. */
typedef struct tile_place {
    int64_t plane, top, left;
} tile_place;

static inline tile_place place_of(const tile_grid *grid, int64_t tile, int64_t block) {
    int64_t per_image = grid->rows * grid->columns, within = tile % per_image;
    return (tile_place){.plane = (tile / per_image * grid->blocks + block) * grid->height * grid->width * V,
                        .top = within / grid->columns * TILE,
                        .left = within % grid->columns * TILE};
}

/* Loads a square of `side` pixels as columns of vectors; pixels outside of the image are zero. */
ALWAYS_INLINE void load_square(const tile_grid *grid, const void *image, int64_t plane, int64_t top, int64_t left,
                               const int side, const bool bf16, vec columns[SIDE][SIDE]) {
    const vec zero = {0};
    bool inside = top >= 0 && left >= 0 && top + side <= grid->height && left + side <= grid->width;
    if (inside) {
        for (int j = 0; j < side; j++) {
            for (int i = 0; i < side; i++) {
                columns[j][i] = load_pixel(image, plane + ((top + i) * grid->width + left + j) * V, bf16);
            }
        }
        return;
    }
    for (int j = 0; j < side; j++) {
        for (int i = 0; i < side; i++) {
            int64_t y = top + i, x = left + j;
            bool real = y >= 0 && y < grid->height && x >= 0 && x < grid->width;
            columns[j][i] = real ? load_pixel(image, plane + (y * grid->width + x) * V, bf16) : zero;
        }
    }
}

/* Tiles first..first+count-1 of blocks first_block..first_block+blocks-1, as [36][blocks][padded][V]. */
typedef struct tile_panels {
    float *data;
    int64_t first, count, padded;
    int64_t first_block, blocks;
    int64_t plane; /* floats from one of the 36 planes to the next */
} tile_panels;

ALWAYS_INLINE void transform_input_tiles_of(const tile_grid *grid, const void *x, const tile_panels *panels,
                                            const bool bf16) {
    for (int64_t b = 0; b < panels->blocks; b++) {
        float *to = panels->data + b * panels->padded * V;
        for (int64_t t = 0; t < panels->count; t++, to += V) {
            vec columns[SIDE][SIDE], rows[SIDE][SIDE], out[SIDE];
            tile_place place = place_of(grid, panels->first + t, panels->first_block + b);
            load_square(grid, x, place.plane, place.top - 1, place.left - 1, SIDE, bf16, columns);
            for (int j = 0; j < SIDE; j++) {
                transform_inputs(columns[j], &rows[0][j], SIDE);
            }
            for (int i = 0; i < SIDE; i++) {
                transform_inputs(rows[i], out, 1);
                for (int j = 0; j < SIDE; j++) {
                    store(to + (i * SIDE + j) * panels->plane, out[j]);
                }
            }
        }
        for (int64_t t = panels->count; t < panels->padded; t++, to += V) {
            for (int p = 0; p < POSITIONS; p++) {
                store(to + p * panels->plane, (vec){0});
            }
        }
    }
}

static void transform_input_tiles(const tile_grid *grid, const void *x, const tile_panels *panels) {
    if (grid->bf16) {
        transform_input_tiles_of(grid, x, panels, true);
    } else {
        transform_input_tiles_of(grid, x, panels, false);
    }
}

ALWAYS_INLINE void transform_gradient_tiles_of(const tile_grid *grid, const void *y, const tile_panels *panels,
                                               const bool bf16) {
    for (int64_t b = 0; b < panels->blocks; b++) {
        float *to = panels->data + b * panels->padded * V;
        for (int64_t t = 0; t < panels->count; t++, to += V) {
            vec columns[SIDE][SIDE], rows[SIDE][SIDE], out[SIDE];
            tile_place place = place_of(grid, panels->first + t, panels->first_block + b);
            load_square(grid, y, place.plane, place.top, place.left, TILE, bf16, columns);
            for (int j = 0; j < TILE; j++) {
                transform_gradients(columns[j], &rows[0][j], SIDE);
            }
            for (int i = 0; i < SIDE; i++) {
                transform_gradients(rows[i], out, 1);
                for (int j = 0; j < SIDE; j++) {
                    store(to + (i * SIDE + j) * panels->plane, out[j]);
                }
            }
        }
    }
}

static void transform_gradient_tiles(const tile_grid *grid, const void *y, const tile_panels *panels) {
    if (grid->bf16) {
        transform_gradient_tiles_of(grid, y, panels, true);
    } else {
        transform_gradient_tiles_of(grid, y, panels, false);
    }
}

ALWAYS_INLINE void transform_output_tiles_of(const tile_grid *grid, const tile_panels *panels, void *y, bool add,
                                             const bool bf16) {
    for (int64_t b = 0; b < panels->blocks; b++) {
        const float *from = panels->data + b * panels->padded * V;
        for (int64_t t = 0; t < panels->count; t++, from += V) {
            vec row[SIDE], columns[TILE][SIDE], out[TILE];
            tile_place place = place_of(grid, panels->first + t, panels->first_block + b);
            for (int i = 0; i < SIDE; i++) {
                for (int j = 0; j < SIDE; j++) {
                    row[j] = load(from + (i * SIDE + j) * panels->plane);
                }
                transform_outputs(row, &columns[0][i], SIDE);
            }
            int64_t height = least(TILE, grid->height - place.top), width = least(TILE, grid->width - place.left);
            for (int64_t j = 0; j < width; j++) {
                transform_outputs(columns[j], out, 1);
                for (int64_t i = 0; i < height; i++) {
                    int64_t at = place.plane + ((place.top + i) * grid->width + place.left + j) * V;
                    store_pixel(y, at, add ? load_pixel(y, at, bf16) + out[i] : out[i], bf16);
                }
            }
        }
    }
}

static void transform_output_tiles(const tile_grid *grid, const tile_panels *panels, void *y, bool add) {
    if (grid->bf16) {
        transform_output_tiles_of(grid, panels, y, add, true);
    } else {
        transform_output_tiles_of(grid, panels, y, add, false);
    }
}

#endif
