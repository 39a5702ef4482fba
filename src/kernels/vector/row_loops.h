/* Loops along rows: layer normalisation, softmax, sums. Part of vector.c. */

/* exp(x) as 2^n * p(r) with r in [-ln2/2, ln2/2] and a polynomial of degree 6: exact to 2 units in the last place,
 * and vectorisable, unlike expf. */
static inline float exponential(float x) {
    const float log2e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    x = x < -87.0f ? -87.0f : x; /* below, the result is practically zero */
    x = x > 88.0f ? 88.0f : x;
    float n = x * log2e;
    /* Rounds to nearest: adding 1.5 * 2^23 shifts the fraction out. */
    float shifted = n + 12582912.0f;
    uint32_t bits; /* unsigned: for a NaN the arithmetic below wraps, and the product is a NaN anyway */
    memcpy(&bits, &shifted, sizeof bits);
    n = shifted - 12582912.0f;
    float r = (x - n * ln2_high) - n * ln2_low;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t exponent = (bits - 0x4b400000u + 127u) << 23;
    float power;
    memcpy(&power, &exponent, sizeof power);
    return p * power;
}

/* Sums use LANES parallel chains, which are then added pairwise. So the source fixes the order, not the compiler,
 * and rounding errors grow slowly. */
enum { LANES = 64 };

static inline float fold_lanes(float *lanes) {
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int c = 0; c < half; c++) {
            lanes[c] += lanes[c + half];
        }
    }
    return lanes[0];
}

static float dot(const float *a, const float *b, int64_t n) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int c = 0; c < LANES; c++) {
            lanes[c] += a[i + c] * b[i + c];
        }
    }
    for (int c = 0; i + c < n; c++) {
        lanes[c] += a[i + c] * b[i + c];
    }
    return fold_lanes(lanes);
}

static float row_sum(const float *x, int64_t n) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int c = 0; c < LANES; c++) {
            lanes[c] += x[i + c];
        }
    }
    for (int c = 0; i + c < n; c++) {
        lanes[c] += x[i + c];
    }
    return fold_lanes(lanes);
}

static float row_square_sum(const float *x, float centre, int64_t n) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int c = 0; c < LANES; c++) {
            float v = x[i + c] - centre;
            lanes[c] += v * v;
        }
    }
    for (int c = 0; i + c < n; c++) {
        float v = x[i + c] - centre;
        lanes[c] += v * v;
    }
    return fold_lanes(lanes);
}

static float row_max(const float *x, int64_t n) {
    float lanes[LANES];
    for (int c = 0; c < LANES; c++) {
        lanes[c] = x[0];
    }
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int c = 0; c < LANES; c++) {
            lanes[c] = x[i + c] > lanes[c] ? x[i + c] : lanes[c];
        }
    }
    for (int c = 0; i + c < n; c++) {
        lanes[c] = x[i + c] > lanes[c] ? x[i + c] : lanes[c];
    }
    float largest = lanes[0];
    for (int c = 1; c < LANES; c++) {
        largest = lanes[c] > largest ? lanes[c] : largest;
    }
    return largest;
}

/* Writes exp(x * scale - shift) to y and returns the sum. */
static float row_exponentials(float *y, const float *x, float scale, float shift, int64_t n) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        INDEPENDENT
        for (int c = 0; c < LANES; c++) {
            float e = exponential(x[i + c] * scale - shift);
            y[i + c] = e;
            lanes[c] += e;
        }
    }
    for (int c = 0; i + c < n; c++) {
        float e = exponential(x[i + c] * scale - shift);
        y[i + c] = e;
        lanes[c] += e;
    }
    return fold_lanes(lanes);
}

static float row_exponential_sum(const float *x, float shift, int64_t n) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int c = 0; c < LANES; c++) {
            lanes[c] += exponential(x[i + c] - shift);
        }
    }
    for (int c = 0; i + c < n; c++) {
        lanes[c] += exponential(x[i + c] - shift);
    }
    return fold_lanes(lanes);
}

/* ---- layer normalisation --------------------------------------------------------------------- */

static void layernorm(float *y, float *statistics, const float *x, const float *gamma, const float *beta, int64_t rows,
                      int64_t width, float eps) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * width;
        float *out = y + r * width;
        float mean = row_sum(in, width) / (float)width;
        float rstd = 1.0f / sqrtf(row_square_sum(in, mean, width) / (float)width + eps);
        INDEPENDENT
        for (int64_t i = 0; i < width; i++) {
            out[i] = (in[i] - mean) * rstd * gamma[i] + beta[i];
        }
        if (statistics) {
            statistics[2 * r] = mean;
            statistics[2 * r + 1] = rstd;
        }
    }
}

/* Adds one row's share to the gradients of scale and shift, and computes the two sums that grad_x needs: of g *
 * gamma and of g * gamma * xhat. */
static void layernorm_row_sums(const float *g, const float *x, const float *gamma, float mean, float rstd,
                               int64_t width, float *restrict grad_gamma, float *restrict grad_beta, float *sum,
                               float *dot_sum) {
    float a[LANES] = {0}, b[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        for (int c = 0; c < LANES; c++) {
            float xhat = (x[i + c] - mean) * rstd, v = g[i + c] * gamma[i + c];
            grad_beta[i + c] += g[i + c];
            grad_gamma[i + c] += g[i + c] * xhat;
            a[c] += v;
            b[c] += v * xhat;
        }
    }
    for (int c = 0; i + c < width; c++) {
        float xhat = (x[i + c] - mean) * rstd, v = g[i + c] * gamma[i + c];
        grad_beta[i + c] += g[i + c];
        grad_gamma[i + c] += g[i + c] * xhat;
        a[c] += v;
        b[c] += v * xhat;
    }
    *sum = fold_lanes(a) / (float)width;
    *dot_sum = fold_lanes(b) / (float)width;
}

static void layernorm_backward(float *grad_x, float *grad_gamma, float *grad_beta, const float *grad_y, const float *x,
                               const float *statistics, const float *gamma, int64_t rows, int64_t width, bool add) {
    memset(grad_gamma, 0, (size_t)width * sizeof *grad_gamma);
    memset(grad_beta, 0, (size_t)width * sizeof *grad_beta);
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * width, *g = grad_y + r * width;
        float mean = statistics[2 * r], rstd = statistics[2 * r + 1], sum = 0, dot_sum = 0;
        layernorm_row_sums(g, in, gamma, mean, rstd, width, grad_gamma, grad_beta, &sum, &dot_sum);
        if (!grad_x) {
            continue;
        }
        float *out = grad_x + r * width;
        if (add) {
            INDEPENDENT
            for (int64_t i = 0; i < width; i++) {
                out[i] += rstd * (g[i] * gamma[i] - sum - (in[i] - mean) * rstd * dot_sum);
            }
        } else {
            INDEPENDENT
            for (int64_t i = 0; i < width; i++) {
                out[i] = rstd * (g[i] * gamma[i] - sum - (in[i] - mean) * rstd * dot_sum);
            }
        }
    }
}

/* ---- rows of a matrix ------------------------------------------------------------------------ */

static void fill_rows(float *y, const float *row, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++) {
        memcpy(y + r * width, row, (size_t)width * sizeof *y);
    }
}

static void sum_rows(float *restrict sum, const float *restrict x, int64_t rows, int64_t width) {
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < width; i++) {
            sum[i] += x[r * width + i];
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

static float log_sum_exp(const float *x, int64_t n, float *sum) {
    float largest = row_max(x, n);
    if (sum) {
        *sum = row_sum(x, n);
    }
    return largest + logf(row_exponential_sum(x, largest, n));
}

static void softmax_gradient(float *y, const float *x, float lse, float shift, float scale, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        y[i] = (exponential(x[i] - lse) - shift) * scale;
    }
}

static float attention_softmax(float *s, int64_t n, float scale) {
    float largest = row_max(s, n) * scale; /* scale is positive */
    float sum = row_exponentials(s, s, scale, largest, n);
    float inverse = 1.0f / sum;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        s[i] *= inverse;
    }
    return largest + logf(sum);
}

static void attention_restore(float *s, int64_t n, float scale, float lse) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        s[i] = exponential(s[i] * scale - lse);
    }
}

static void attention_gradient(float *restrict dp, const float *restrict p, float delta, float scale, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        dp[i] = p[i] * (dp[i] - delta) * scale;
    }
}

/* ---- one row at a time: generating text ------------------------------------------------------ */

static void gelu_tanh(float *y, const float *x, int64_t n) {
    const float root = 0.797884561f, cubic = 0.044715f; /* sqrt(2 / pi) */
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        /* x / 2 * (1 + tanh(u)) = x / (1 + exp(-2 u)) */
        float u = root * (x[i] + cubic * x[i] * x[i] * x[i]);
        y[i] = x[i] / (1.0f + exponential(-2.0f * u));
    }
}

/* Eight rows at a time, so that y is read and written only once for them. */
static void combine_rows(float *restrict y, const float *restrict x, const float *restrict w, int64_t rows,
                         int64_t width, int64_t stride) {
    enum { TOGETHER = 8 };
    int64_t r = 0;
    for (; r + TOGETHER <= rows; r += TOGETHER) {
        const float *a = w + r * stride, *b = a + stride, *c = b + stride, *d = c + stride;
        const float *e = d + stride, *f = e + stride, *g = f + stride, *h = g + stride;
        for (int64_t i = 0; i < width; i++) {
            y[i] += x[r] * a[i] + x[r + 1] * b[i] + x[r + 2] * c[i] + x[r + 3] * d[i] + x[r + 4] * e[i] +
                    x[r + 5] * f[i] + x[r + 6] * g[i] + x[r + 7] * h[i];
        }
    }
    for (; r < rows; r++) {
        for (int64_t i = 0; i < width; i++) {
            y[i] += x[r] * w[r * stride + i];
        }
    }
}
