/* Chooses the next token: temperature first, then top-k, then top-p, in the order of Hugging Face's library. */
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "carousel/generate.h"

typedef struct choice {
    double weight; /* exp((logit - largest) / temperature) */
    int token;
} choice;

struct car_sampler {
    car_context *context;
    car_sampling sampling;
    int vocabulary;
    uint64_t key;
    choice *choices;
};

car_status car_sampler_create(car_context *context, int vocabulary, const car_sampling *sampling, car_sampler **out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, sampling);
    CAR_REQUIRE(context, out);
    car_sampler *sampler = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    /* Written so that NaN fails, too. */
    if (!(sampling->temperature >= 0) || !isfinite(sampling->temperature) || sampling->top_k < 0 ||
        !(sampling->top_p > 0 && sampling->top_p <= 1) || vocabulary < 1) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "invalid sampling: temperature %g, top-k %d, top-p %g; use a temperature of at least "
                                "0, top-k of at least 0, and top-p above 0 and at most 1",
                                sampling->temperature, sampling->top_k, sampling->top_p);
    }
    CAR_TRY(car_context_allocate(context, 1, sizeof *sampler, &sampler));
    *sampler = (car_sampler){.context = context,
                             .sampling = *sampling,
                             .vocabulary = vocabulary,
                             .key = car_random_key(sampling->seed, "next token")};
    CAR_TRY(car_context_allocate(context, (size_t)vocabulary, sizeof *sampler->choices, &sampler->choices));
    *out = sampler;
    sampler = NULL;
done:
    car_sampler_destroy(sampler);
    return status;
}

void car_sampler_destroy(car_sampler *sampler) {
    if (!sampler) {
        return;
    }
    car_context_release(sampler->context, sampler->choices, sampler->choices ? (size_t)sampler->vocabulary : 0,
                        sizeof *sampler->choices);
    car_context_release(sampler->context, sampler, 1, sizeof *sampler);
}

/* More probable first; among equals the smaller token. */
static int compare_choices(const void *left, const void *right) {
    const choice *a = left, *b = right;
    return a->weight != b->weight ? (a->weight < b->weight) - (a->weight > b->weight)
                                  : (a->token > b->token) - (a->token < b->token);
}

/* The first of the largest logits; -1 if a logit is NaN, or none is finite. */
static int find_best(const float *logits, int count) {
    int best = 0;
    for (int i = 0; i < count; i++) {
        if (isnan(logits[i])) {
            return -1;
        }
        best = logits[i] > logits[best] ? i : best;
    }
    return isfinite(logits[best]) ? best : -1;
}

static void swap(choice *a, choice *b) {
    choice kept = *a;
    *a = *b;
    *b = kept;
}

/* Moves the best `wanted` of `count` choices to the front, in any order (Hoare's selection). */
static void select_best(choice *choices, int count, int wanted) {
    int low = 0, high = count - 1;
    while (low < high) {
        choice pivot = choices[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (compare_choices(&choices[i], &pivot) < 0) {
                i++;
            }
            while (compare_choices(&choices[j], &pivot) > 0) {
                j--;
            }
            if (i <= j) {
                swap(&choices[i++], &choices[j--]);
            }
        }
        if (wanted <= j) {
            high = j;
        } else if (wanted > i) {
            low = i;
        } else {
            return;
        }
    }
}

static double add_weights(const choice *choices, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) {
        sum += choices[i].weight;
    }
    return sum;
}

/* Keeps the fewest most probable choices that reach the share `p`. Sorting a large vocabulary would take longer than
 * the model, so unlikely choices are dropped first: those below (1 - p) / count of the sum have less than 1 - p in
 * total, so none of them is needed. */
static int keep_likely(choice *choices, int count, double p) {
    double all = add_weights(choices, count), least = (1 - p) * all / count, sum = 0;
    int left = 0, kept = 0;
    for (int i = 0; i < count; i++) {
        if (choices[i].weight >= least) {
            choices[left++] = choices[i];
        }
    }
    car_sort(choices, (size_t)left, sizeof *choices, compare_choices);
    while (kept < left && (kept == 0 || sum < p * all)) {
        sum += choices[kept++].weight;
    }
    return kept;
}

car_status car_sampler_choose(car_sampler *sampler, const float *logits, int64_t draw, int *token) {
    CAR_REQUIRE(NULL, sampler);
    CAR_REQUIRE(sampler->context, logits);
    CAR_REQUIRE(sampler->context, token);
    int count = sampler->vocabulary, best = find_best(logits, count);
    double temperature = sampler->sampling.temperature;
    if (best < 0) {
        return car_context_fail(sampler->context, CAR_ERROR_NOT_FINITE,
                                "the model's logits are not finite; check its weights");
    }
    *token = best;
    if (temperature == 0) {
        return CAR_OK;
    }
    for (int i = 0; i < count; i++) {
        sampler->choices[i] = (choice){exp(((double)logits[i] - logits[best]) / temperature), i};
    }
    if (sampler->sampling.top_k > 0 && sampler->sampling.top_k < count) {
        select_best(sampler->choices, count, sampler->sampling.top_k);
        count = sampler->sampling.top_k;
        car_sort(sampler->choices, (size_t)count, sizeof *sampler->choices, compare_choices);
    }
    count = sampler->sampling.top_p < 1 ? keep_likely(sampler->choices, count, sampler->sampling.top_p) : count;
    double uniform = (double)(car_random_u64(sampler->key, (uint64_t)draw) >> 11) * 0x1p-53;
    double left = uniform * add_weights(sampler->choices, count);
    int at = 0;
    while (at + 1 < count && left >= sampler->choices[at].weight) {
        left -= sampler->choices[at++].weight;
    }
    *token = sampler->choices[at].token;
    return CAR_OK;
}
