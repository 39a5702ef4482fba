/* Batch normalisation with optional residual and ReLU, fused, on blocked channels. Part of vector.c.
 *
 * Processes one block of channels at a time over all images: its data (images x pixels x block) mostly stay in the
 * second-level cache between passes. Sums are floats within an image and doubles across images, so that the
 * statistics are as good as two passes in double. The inner loops run over the channels of a block. Their number and
 * the type of the tensors are compile-time constants; bf16 is widened when loaded and rounded when stored. */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE float get(const void *x, int64_t i, const bool bf16) {
    return bf16 ? car_bf16_widen(((const car_bf16 *)x)[i]) : ((const float *)x)[i];
}

ALWAYS_INLINE void put(void *y, int64_t i, float value, const bool bf16) {
    if (bf16) {
        ((car_bf16 *)y)[i] = car_bf16_round(value);
    } else {
        ((float *)y)[i] = value;
    }
}

/* Element `at` of a tensor. */
ALWAYS_INLINE void *element_at(const void *x, size_t at, const bool bf16) {
    return (char *)(uintptr_t)x + at * (bf16 ? sizeof(car_bf16) : sizeof(float));
}

/* The constants of each channel in a block. Padding channels are all zero, so their outputs and gradients are zero,
 * too. */
typedef struct channel_block {
    float mean[16], rstd[16], scale[16], beta[16]; /* scale = gamma * rstd */
} channel_block;

/* What one pass needs to know about a block. */
typedef struct norm_view {
    const car_vector_norm *norm;
    channel_block constants;
    int64_t first; /* first channel */
    int count;     /* real channels in the block */
} norm_view;

static inline size_t plane_offset(const car_vector_norm *norm, int block, int64_t image, int64_t first) {
    int64_t blocks = (norm->channels + block - 1) / block;
    return (size_t)((image * blocks + first / block) * norm->pixels * block);
}

static inline norm_view view_block(const car_vector_norm *norm, int block, int64_t first) {
    norm_view view = {.norm = norm, .first = first};
    int64_t left = norm->channels - first;
    view.count = (int)(left < block ? left : block);
    for (int c = 0; c < view.count; c++) {
        channel_block *k = &view.constants;
        k->mean[c] = norm->mean[first + c];
        k->rstd[c] = 1.0f / sqrtf(norm->variance[first + c] + norm->eps);
        k->scale[c] = norm->gamma[first + c] * k->rstd[c];
        k->beta[c] = norm->beta[first + c];
    }
    return view;
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Sums x (centre NULL) or (x - centre)^2 over the pixels of one image, four pixels in flight. */
ALWAYS_INLINE void sum_plane(const void *x, int64_t pixels, const float *centre, double *total, const int block,
                             const bool bf16) {
    float sum[4][16] = {{0}};
    int64_t p = 0;
    for (; p + 4 <= pixels; p += 4) {
        for (int u = 0; u < 4; u++) {
            for (int c = 0; c < block; c++) {
                float v = get(x, (p + u) * block + c, bf16) - centre[c];
                sum[u][c] += v * v;
            }
        }
    }
    for (; p < pixels; p++) {
        for (int c = 0; c < block; c++) {
            float v = get(x, p * block + c, bf16) - centre[c];
            sum[0][c] += v * v;
        }
    }
    for (int c = 0; c < block; c++) {
        total[c] += (double)sum[0][c] + sum[1][c] + sum[2][c] + sum[3][c];
    }
}

ALWAYS_INLINE void sum_plane_plain(const void *x, int64_t pixels, double *total, const int block, const bool bf16) {
    float sum[4][16] = {{0}};
    int64_t p = 0;
    for (; p + 4 <= pixels; p += 4) {
        for (int u = 0; u < 4; u++) {
            for (int c = 0; c < block; c++) {
                sum[u][c] += get(x, (p + u) * block + c, bf16);
            }
        }
    }
    for (; p < pixels; p++) {
        for (int c = 0; c < block; c++) {
            sum[0][c] += get(x, p * block + c, bf16);
        }
    }
    for (int c = 0; c < block; c++) {
        total[c] += (double)sum[0][c] + sum[1][c] + sum[2][c] + sum[3][c];
    }
}

ALWAYS_INLINE void statistics_of_blocks(const car_vector_norm *norm, float *mean, float *variance, const int block,
                                        const bool bf16) {
    double count = (double)norm->images * (double)norm->pixels;
    for (int64_t first = 0; first < norm->channels; first += block) {
        double sum[16] = {0}, square[16] = {0};
        float centre[16] = {0};
        int64_t left = norm->channels - first;
        for (int64_t n = 0; n < norm->images; n++) {
            const void *x = element_at(norm->x, plane_offset(norm, block, n, first), bf16);
            sum_plane_plain(x, norm->pixels, sum, block, bf16);
        }
        for (int c = 0; c < block; c++) {
            centre[c] = (float)(sum[c] / count);
        }
        for (int64_t n = 0; n < norm->images; n++) {
            const void *x = element_at(norm->x, plane_offset(norm, block, n, first), bf16);
            sum_plane(x, norm->pixels, centre, square, block, bf16);
        }
        for (int c = 0; c < block && c < left; c++) {
            mean[first + c] = centre[c];
            variance[first + c] = (float)(square[c] / count);
        }
    }
}

static void batch_statistics(const car_vector_norm *norm, float *mean, float *variance) {
    if (norm->bf16 && norm->block == 16) {
        statistics_of_blocks(norm, mean, variance, 16, true);
    } else if (norm->bf16) {
        statistics_of_blocks(norm, mean, variance, 8, true);
    } else if (norm->block == 16) {
        statistics_of_blocks(norm, mean, variance, 16, false);
    } else {
        statistics_of_blocks(norm, mean, variance, 8, false);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

ALWAYS_INLINE void normalize_plane(void *y, const void *x, const void *residual, int64_t pixels,
                                   const channel_block *constants, const bool relu, const int block, const bool bf16) {
    channel_block k = *constants; /* a local copy cannot alias y */
    for (int64_t p = 0; p < pixels; p++) {
        INDEPENDENT
        for (int c = 0; c < block; c++) {
            int64_t i = p * block + c;
            float v = (get(x, i, bf16) - k.mean[c]) * k.scale[c] + k.beta[c];
            v += residual ? get(residual, i, bf16) : 0.0f;
            put(y, i, relu && v < 0 ? 0.0f : v, bf16); /* keeps NaNs */
        }
    }
}

ALWAYS_INLINE void normalize_blocks(const car_vector_norm *norm, const int block, const bool bf16) {
    for (int64_t first = 0; first < norm->channels; first += block) {
        norm_view view = view_block(norm, block, first);
        for (int64_t n = 0; n < norm->images; n++) {
            size_t at = plane_offset(norm, block, n, first);
            const void *x = element_at(norm->x, at, bf16);
            const void *residual = norm->residual ? element_at(norm->residual, at, bf16) : NULL;
            void *y = element_at(norm->y, at, bf16);
            /* The constant arguments make four loops without branches. */
            if (residual && norm->relu) {
                normalize_plane(y, x, residual, norm->pixels, &view.constants, true, block, bf16);
            } else if (residual) {
                normalize_plane(y, x, residual, norm->pixels, &view.constants, false, block, bf16);
            } else if (norm->relu) {
                normalize_plane(y, x, NULL, norm->pixels, &view.constants, true, block, bf16);
            } else {
                normalize_plane(y, x, NULL, norm->pixels, &view.constants, false, block, bf16);
            }
        }
    }
}

static void batchnorm(const car_vector_norm *norm) {
    if (norm->bf16 && norm->block == 16) {
        normalize_blocks(norm, 16, true);
    } else if (norm->bf16) {
        normalize_blocks(norm, 8, true);
    } else if (norm->block == 16) {
        normalize_blocks(norm, 16, false);
    } else {
        normalize_blocks(norm, 8, false);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* How to find the gradient before the ReLU: all of grad_y, where x implies that y was positive, or where the saved y
 * is positive. */
typedef enum mask_kind { MASK_NONE, MASK_FROM_X, MASK_FROM_Y } mask_kind;

ALWAYS_INLINE float masked(float gradient, float centred, float y, float scale, float beta, const mask_kind mask) {
    if (mask == MASK_FROM_X) {
        return centred * scale + beta > 0 ? gradient : 0.0f;
    }
    if (mask == MASK_FROM_Y) {
        return y > 0 ? gradient : 0.0f;
    }
    return gradient;
}

/* First pass: sums of g and g * xhat. Stores g in grad_residual, if wanted. */
ALWAYS_INLINE void gradient_sums(const norm_view *view, size_t at, double *sum, double *dot_sum, const mask_kind mask,
                                 const int block, const bool bf16) {
    const car_vector_norm *norm = view->norm;
    const void *x = element_at(norm->x, at, bf16), *g = element_at(norm->grad_y, at, bf16);
    const void *y = mask == MASK_FROM_Y ? element_at(norm->saved_y, at, bf16) : x;
    void *residual = norm->grad_residual ? element_at(norm->grad_residual, at, bf16) : NULL;
    channel_block k = view->constants;
    float a[2][16] = {{0}}, b[2][16] = {{0}};
    for (int64_t p = 0; p + 2 <= norm->pixels; p += 2) {
        for (int u = 0; u < 2; u++) {
            for (int c = 0; c < block; c++) {
                int64_t i = (p + u) * block + c;
                float centred = get(x, i, bf16) - k.mean[c];
                float v = masked(get(g, i, bf16), centred, get(y, i, bf16), k.scale[c], k.beta[c], mask);
                a[u][c] += v;
                b[u][c] += v * centred;
            }
        }
    }
    if (norm->pixels % 2) {
        for (int c = 0; c < block; c++) {
            int64_t i = (norm->pixels - 1) * block + c;
            float centred = get(x, i, bf16) - k.mean[c];
            float v = masked(get(g, i, bf16), centred, get(y, i, bf16), k.scale[c], k.beta[c], mask);
            a[0][c] += v;
            b[0][c] += v * centred;
        }
    }
    if (residual) {
        for (int64_t p = 0; p < norm->pixels; p++) {
            INDEPENDENT
            for (int c = 0; c < block; c++) {
                int64_t i = p * block + c;
                float centred = get(x, i, bf16) - k.mean[c];
                float v = masked(get(g, i, bf16), centred, get(y, i, bf16), k.scale[c], k.beta[c], mask);
                put(residual, i, v, bf16);
            }
        }
    }
    for (int c = 0; c < block; c++) {
        sum[c] += (double)a[0][c] + a[1][c];
        dot_sum[c] += ((double)b[0][c] + b[1][c]) * k.rstd[c];
    }
}

/* Second pass: dx = gamma * rstd * (g - mean(g) - xhat * mean(g * xhat)), as g * scale + (x - mean) * b + d. */
ALWAYS_INLINE void gradient_plane(const norm_view *view, size_t at, const double *sum, const double *dot_sum,
                                  const mask_kind mask, const int block, const bool bf16) {
    const car_vector_norm *norm = view->norm;
    const void *x = element_at(norm->x, at, bf16), *g = element_at(norm->grad_y, at, bf16);
    const void *y = mask == MASK_FROM_Y ? element_at(norm->saved_y, at, bf16) : x;
    void *grad_x = element_at(norm->grad_x, at, bf16);
    channel_block k = view->constants;
    double count = (double)norm->images * (double)norm->pixels;
    float b[16], d[16];
    for (int c = 0; c < block; c++) {
        double mean_g = sum[c] / count, mean_gx = dot_sum[c] / count;
        b[c] = (float)(-(double)k.scale[c] * k.rstd[c] * mean_gx);
        d[c] = (float)(-(double)k.scale[c] * mean_g);
    }
    for (int64_t p = 0; p < norm->pixels; p++) {
        INDEPENDENT
        for (int c = 0; c < block; c++) {
            int64_t i = p * block + c;
            float centred = get(x, i, bf16) - k.mean[c];
            float v = masked(get(g, i, bf16), centred, get(y, i, bf16), k.scale[c], k.beta[c], mask);
            put(grad_x, i, v * k.scale[c] + (centred * b[c] + d[c]), bf16);
        }
    }
}

ALWAYS_INLINE void gradient_block(const car_vector_norm *norm, int64_t first, const mask_kind mask, const int block,
                                  const bool bf16) {
    norm_view view = view_block(norm, block, first);
    double sum[16] = {0}, dot_sum[16] = {0};
    for (int64_t n = 0; n < norm->images; n++) {
        gradient_sums(&view, plane_offset(norm, block, n, first), sum, dot_sum, mask, block, bf16);
    }
    for (int c = 0; c < view.count; c++) {
        norm->grad_beta[first + c] = (float)sum[c];
        norm->grad_gamma[first + c] = (float)dot_sum[c];
    }
    for (int64_t n = 0; norm->grad_x && n < norm->images; n++) {
        gradient_plane(&view, plane_offset(norm, block, n, first), sum, dot_sum, mask, block, bf16);
    }
}

ALWAYS_INLINE void gradient_blocks(const car_vector_norm *norm, const int block, const bool bf16) {
    for (int64_t first = 0; first < norm->channels; first += block) {
        if (!norm->relu) {
            gradient_block(norm, first, MASK_NONE, block, bf16);
        } else if (norm->saved_y) {
            gradient_block(norm, first, MASK_FROM_Y, block, bf16);
        } else {
            gradient_block(norm, first, MASK_FROM_X, block, bf16);
        }
    }
}

static void batchnorm_backward(const car_vector_norm *norm) {
    if (norm->bf16 && norm->block == 16) {
        gradient_blocks(norm, 16, true);
    } else if (norm->bf16) {
        gradient_blocks(norm, 8, true);
    } else if (norm->block == 16) {
        gradient_blocks(norm, 16, false);
    } else {
        gradient_blocks(norm, 8, false);
    }
}
