/* Loops of the optimizers. Part of vector.c. */

static void sgd_plain(float *w, const float *old, const float *sum, float lr, float scale, float decay, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        w[i] = old[i] - lr * (scale * sum[i] + decay * old[i]);
    }
}

static void sgd(float *w, const float *old, float *m, const float *sum, const car_vector_sgd *config, int64_t n) {
    const float lr = config->lr, scale = config->scale, decay = config->weight_decay, momentum = config->momentum;
    if (!m) {
        sgd_plain(w, old, sum, lr, scale, decay, n);
    } else if (config->nesterov) {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            float g = scale * sum[i] + decay * old[i];
            float moved = momentum * m[i] + g;
            m[i] = moved;
            w[i] = old[i] - lr * (g + momentum * moved);
        }
    } else {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            float moved = momentum * m[i] + (scale * sum[i] + decay * old[i]);
            m[i] = moved;
            w[i] = old[i] - lr * moved;
        }
    }
}

static void adamw(float *w, const float *old, float *m, float *v, const float *sum, const car_vector_adamw *config,
                  int64_t n) {
    const car_vector_adamw c = *config;
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float g = c.scale * sum[i];
        float first = c.beta1 * m[i] + c.rest1 * g;
        float second = c.beta2 * v[i] + c.rest2 * g * g;
        m[i] = first;
        v[i] = second;
        w[i] = c.shrink * old[i] - c.step_size * first / (sqrtf(second) * c.root + c.eps);
    }
}

static void sgd_corrected(float *w, const float *old, float *m, float *last, const float *sum,
                          const car_vector_sgd_corrected *config, int64_t n) {
    const car_vector_sgd_corrected k = *config;
    if (!last) {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            float before = m[i];
            float moved = k.momentum * before + (k.scale * sum[i] + k.weight_decay * old[i]);
            m[i] = moved;
            w[i] = old[i] - k.lr * (moved + k.c * (moved - before));
        }
        return;
    }
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float g = k.scale * sum[i], before = m[i];
        float moved = k.momentum * before + (g + k.weight_decay * old[i]);
        float change = g - last[i];
        m[i] = moved;
        last[i] = g;
        w[i] = old[i] - k.lr * (moved + k.c * (moved - before) + k.a * change);
    }
}

static void adamw_corrected(float *w, const float *old, float *m, float *v, float *last, const float *sum,
                            const car_vector_adamw_corrected *config, int64_t n) {
    const car_vector_adamw_corrected k = *config;
    const car_vector_adamw c = k.plain;
    if (!last) {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            float g = c.scale * sum[i], before = m[i];
            float first = c.beta1 * before + c.rest1 * g;
            float second = c.beta2 * v[i] + c.rest2 * g * g;
            m[i] = first;
            v[i] = second;
            w[i] = c.shrink * old[i] - (k.moved * first + k.before * before) / (sqrtf(second) * c.root + c.eps);
        }
        return;
    }
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float g = c.scale * sum[i], before = m[i];
        float first = c.beta1 * before + c.rest1 * g;
        float second = c.beta2 * v[i] + c.rest2 * g * g;
        float change = g - last[i];
        m[i] = first;
        v[i] = second;
        last[i] = g;
        w[i] =
            c.shrink * old[i] - (k.moved * first + k.before * before + k.a * change) / (sqrtf(second) * c.root + c.eps);
    }
}

static void muon_momentum(float *u, float *m, const float *sum, float scale, float momentum, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float g = scale * sum[i];
        float moved = momentum * m[i] + g;
        m[i] = moved;
        u[i] = g + momentum * moved;
    }
}

static void muon_step(float *w, const float *old, float *last, const float *u, const car_vector_muon *config,
                      int64_t n) {
    const car_vector_muon k = *config;
    if (!last) {
        INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            w[i] = k.shrink * old[i] - k.lr * u[i];
        }
        return;
    }
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float now = u[i], change = now - last[i];
        last[i] = now;
        w[i] = k.shrink * old[i] - k.lr * (now + k.c * change);
    }
}

static void blend(float *acc, const float *x, float keep, float move, int64_t n) {
    INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        acc[i] = keep * acc[i] + move * x[i];
    }
}

/* Adds chunks in double, for norms over millions of elements. */
static double square_sum(const float *x, int64_t n) {
    enum { CHUNK = 4096 };
    double total = 0;
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t count = n - i < CHUNK ? n - i : CHUNK;
        total += (double)row_square_sum(x + i, 0.0f, count);
    }
    return total;
}
