/* Batch normalisation with optional residual and ReLU, fused, on blocked channels. Part of vector.c.
 *
 * A block of channels is worked on at once over all images: its data (images x pixels x block) mostly
 * stays in the second-level cache between the passes. Sums are kept in floats along one image and in
 * doubles across images, so that the statistics are as good as two passes in double. The inner loops
 * run over the channels of a block, whose number is a constant to the compiler. */

/* The per-channel constants of a block; channels that only fill up the block are all zero, so their
 * outputs and gradients are zero too. */
typedef struct channel_block {
    float mean[16], rstd[16], scale[16], beta[16]; /* scale = gamma * rstd */
} channel_block;

/* What one pass needs of a block. */
typedef struct norm_view {
    const car_vector_norm *norm;
    channel_block constants;
    int64_t first; /* channel */
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

/* Adds up x (centre NULL) or (x - centre)^2 over the pixels of one image, four pixels in flight. */
static inline void sum_plane(const float *x, int64_t pixels, const float *centre, double *total, const int block) {
    float sum[4][16] = {{0}};
    int64_t p = 0;
    for (; p + 4 <= pixels; p += 4) {
        for (int u = 0; u < 4; u++) {
            for (int c = 0; c < block; c++) {
                float v = x[(p + u) * block + c] - centre[c];
                sum[u][c] += v * v;
            }
        }
    }
    for (; p < pixels; p++) {
        for (int c = 0; c < block; c++) {
            float v = x[p * block + c] - centre[c];
            sum[0][c] += v * v;
        }
    }
    for (int c = 0; c < block; c++) {
        total[c] += (double)sum[0][c] + sum[1][c] + sum[2][c] + sum[3][c];
    }
}

static inline void sum_plane_plain(const float *x, int64_t pixels, double *total, const int block) {
    float sum[4][16] = {{0}};
    int64_t p = 0;
    for (; p + 4 <= pixels; p += 4) {
        for (int u = 0; u < 4; u++) {
            for (int c = 0; c < block; c++) {
                sum[u][c] += x[(p + u) * block + c];
            }
        }
    }
    for (; p < pixels; p++) {
        for (int c = 0; c < block; c++) {
            sum[0][c] += x[p * block + c];
        }
    }
    for (int c = 0; c < block; c++) {
        total[c] += (double)sum[0][c] + sum[1][c] + sum[2][c] + sum[3][c];
    }
}

static inline void statistics_of_blocks(const car_vector_norm *norm, float *mean, float *variance, const int block) {
    double count = (double)norm->images * (double)norm->pixels;
    for (int64_t first = 0; first < norm->channels; first += block) {
        double sum[16] = {0}, square[16] = {0};
        float centre[16] = {0};
        int64_t left = norm->channels - first;
        for (int64_t n = 0; n < norm->images; n++) {
            sum_plane_plain(norm->x + plane_offset(norm, block, n, first), norm->pixels, sum, block);
        }
        for (int c = 0; c < block; c++) {
            centre[c] = (float)(sum[c] / count);
        }
        for (int64_t n = 0; n < norm->images; n++) {
            sum_plane(norm->x + plane_offset(norm, block, n, first), norm->pixels, centre, square, block);
        }
        for (int c = 0; c < block && c < left; c++) {
            mean[first + c] = centre[c];
            variance[first + c] = (float)(square[c] / count);
        }
    }
}

static void batch_statistics(const car_vector_norm *norm, float *mean, float *variance) {
    if (norm->block == 16) {
        statistics_of_blocks(norm, mean, variance, 16);
    } else {
        statistics_of_blocks(norm, mean, variance, 8);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

static inline void normalize_plane(float *y, const float *x, const float *residual, int64_t pixels,
                                   const channel_block *constants, bool relu, const int block) {
    channel_block k = *constants; /* a local copy is known not to overlap y */
    for (int64_t p = 0; p < pixels; p++) {
        INDEPENDENT
        for (int c = 0; c < block; c++) {
            float v = (x[p * block + c] - k.mean[c]) * k.scale[c] + k.beta[c];
            v += residual ? residual[p * block + c] : 0.0f;
            y[p * block + c] = relu && v < 0 ? 0.0f : v; /* a NaN must stay one */
        }
    }
}

static inline void normalize_blocks(const car_vector_norm *norm, const int block) {
    for (int64_t first = 0; first < norm->channels; first += block) {
        norm_view view = view_block(norm, block, first);
        for (int64_t n = 0; n < norm->images; n++) {
            size_t at = plane_offset(norm, block, n, first);
            const float *x = norm->x + at;
            float *y = norm->y + at;
            /* The constants make four loops without a branch inside. */
            if (norm->residual && norm->relu) {
                normalize_plane(y, x, norm->residual + at, norm->pixels, &view.constants, true, block);
            } else if (norm->residual) {
                normalize_plane(y, x, norm->residual + at, norm->pixels, &view.constants, false, block);
            } else if (norm->relu) {
                normalize_plane(y, x, NULL, norm->pixels, &view.constants, true, block);
            } else {
                normalize_plane(y, x, NULL, norm->pixels, &view.constants, false, block);
            }
        }
    }
}

static void batchnorm(const car_vector_norm *norm) {
    if (norm->block == 16) {
        normalize_blocks(norm, 16);
    } else {
        normalize_blocks(norm, 8);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* How the gradient before the ReLU is found: all of grad_y; where x says that y was positive; or
 * where the saved y is positive. */
typedef enum mask_kind { MASK_NONE, MASK_FROM_X, MASK_FROM_Y } mask_kind;

static inline float masked(float gradient, float centred, float y, float scale, float beta, mask_kind mask) {
    if (mask == MASK_FROM_X) {
        return centred * scale + beta > 0 ? gradient : 0.0f;
    }
    if (mask == MASK_FROM_Y) {
        return y > 0 ? gradient : 0.0f;
    }
    return gradient;
}

/* First pass: sums of g and g * xhat; g itself goes to grad_residual if that is wanted. */
static inline void gradient_sums(const norm_view *view, size_t at, double *sum, double *dot_sum, mask_kind mask,
                                 const int block) {
    const car_vector_norm *norm = view->norm;
    const float *x = norm->x + at, *g = norm->grad_y + at;
    const float *y = mask == MASK_FROM_Y ? norm->saved_y + at : x;
    float *residual = norm->grad_residual ? norm->grad_residual + at : NULL;
    channel_block k = view->constants;
    float a[2][16] = {{0}}, b[2][16] = {{0}};
    for (int64_t p = 0; p + 2 <= norm->pixels; p += 2) {
        for (int u = 0; u < 2; u++) {
            for (int c = 0; c < block; c++) {
                int64_t i = (p + u) * block + c;
                float centred = x[i] - k.mean[c];
                float v = masked(g[i], centred, y[i], k.scale[c], k.beta[c], mask);
                a[u][c] += v;
                b[u][c] += v * centred;
            }
        }
    }
    if (norm->pixels % 2) {
        for (int c = 0; c < block; c++) {
            int64_t i = (norm->pixels - 1) * block + c;
            float centred = x[i] - k.mean[c];
            float v = masked(g[i], centred, y[i], k.scale[c], k.beta[c], mask);
            a[0][c] += v;
            b[0][c] += v * centred;
        }
    }
    if (residual) {
        for (int64_t p = 0; p < norm->pixels; p++) {
            INDEPENDENT
            for (int c = 0; c < block; c++) {
                int64_t i = p * block + c;
                residual[i] = masked(g[i], x[i] - k.mean[c], y[i], k.scale[c], k.beta[c], mask);
            }
        }
    }
    for (int c = 0; c < block; c++) {
        sum[c] += (double)a[0][c] + a[1][c];
        dot_sum[c] += ((double)b[0][c] + b[1][c]) * k.rstd[c];
    }
}

/* Second pass: dx = gamma * rstd * (g - mean(g) - xhat * mean(g * xhat)), as g * scale + (x - mean) * b + d. */
static inline void gradient_plane(const norm_view *view, size_t at, const double *sum, const double *dot_sum,
                                  mask_kind mask, const int block) {
    const car_vector_norm *norm = view->norm;
    const float *x = norm->x + at, *g = norm->grad_y + at;
    const float *y = mask == MASK_FROM_Y ? norm->saved_y + at : x;
    float *grad_x = norm->grad_x + at;
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
            float centred = x[i] - k.mean[c];
            float v = masked(g[i], centred, y[i], k.scale[c], k.beta[c], mask);
            grad_x[i] = v * k.scale[c] + (centred * b[c] + d[c]);
        }
    }
}

static inline void gradient_block(const car_vector_norm *norm, int64_t first, mask_kind mask, const int block) {
    norm_view view = view_block(norm, block, first);
    double sum[16] = {0}, dot_sum[16] = {0};
    for (int64_t n = 0; n < norm->images; n++) {
        gradient_sums(&view, plane_offset(norm, block, n, first), sum, dot_sum, mask, block);
    }
    for (int c = 0; c < view.count; c++) {
        norm->grad_beta[first + c] = (float)sum[c];
        norm->grad_gamma[first + c] = (float)dot_sum[c];
    }
    for (int64_t n = 0; norm->grad_x && n < norm->images; n++) {
        gradient_plane(&view, plane_offset(norm, block, n, first), sum, dot_sum, mask, block);
    }
}

static inline void gradient_blocks(const car_vector_norm *norm, const int block) {
    for (int64_t first = 0; first < norm->channels; first += block) {
        if (!norm->relu) {
            gradient_block(norm, first, MASK_NONE, block);
        } else if (norm->saved_y) {
            gradient_block(norm, first, MASK_FROM_Y, block);
        } else {
            gradient_block(norm, first, MASK_FROM_X, block);
        }
    }
}

static void batchnorm_backward(const car_vector_norm *norm) {
    if (norm->block == 16) {
        gradient_blocks(norm, 16);
    } else {
        gradient_blocks(norm, 8);
    }
}
