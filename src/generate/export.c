/* Writes a GPT-2 as a folder that Hugging Face's library can open. */
#include <cjson/cJSON.h>
#include <stdio.h>

#include "base/output.h"
#include "generate/internal.h"

enum { PATH = 4096 };

static cJSON *describe(const car_generator *g, int end_of_text) {
    const car_gpt2_sizes *s = &g->model.sizes;
    cJSON *json = cJSON_CreateObject();
    const char *const architecture = "GPT2LMHeadModel";
    cJSON_AddItemToObject(json, "architectures", cJSON_CreateStringArray(&architecture, 1));
    cJSON_AddStringToObject(json, "model_type", "gpt2");
    cJSON_AddStringToObject(json, "activation_function", "gelu_new");
    cJSON_AddNumberToObject(json, "vocab_size", s->vocabulary);
    cJSON_AddNumberToObject(json, "n_positions", s->positions);
    cJSON_AddNumberToObject(json, "n_ctx", s->positions);
    cJSON_AddNumberToObject(json, "n_embd", s->width);
    cJSON_AddNumberToObject(json, "n_layer", s->depth);
    cJSON_AddNumberToObject(json, "n_head", s->heads);
    cJSON_AddNumberToObject(json, "n_inner", s->inner);
    cJSON_AddNumberToObject(json, "layer_norm_epsilon", g->eps);
    cJSON_AddNumberToObject(json, "initializer_range", 0.02);
    cJSON_AddBoolToObject(json, "tie_word_embeddings", true);
    cJSON_AddStringToObject(json, "torch_dtype", "float32");
    /* Without an entry the library would assume GPT-2's 50256. */
    cJSON_AddItemToObject(json, "bos_token_id",
                          end_of_text >= 0 ? cJSON_CreateNumber(end_of_text) : cJSON_CreateNull());
    cJSON_AddItemToObject(json, "eos_token_id",
                          end_of_text >= 0 ? cJSON_CreateNumber(end_of_text) : cJSON_CreateNull());
    return json;
}

static car_status write_config(const car_generator *g, const char *path, int end_of_text) {
    cJSON *json = describe(g, end_of_text);
    char *text = cJSON_Print(json);
    car_status status = text ? car_output_write_text(g->context, path, text)
                             : car_context_fail(g->context, CAR_ERROR_MEMORY, "out of memory for %s", path);
    cJSON_free(text);
    cJSON_Delete(json);
    return status;
}

car_status car_generator_export(const car_generator *g, const char *directory, int end_of_text) {
    CAR_REQUIRE(NULL, g);
    CAR_REQUIRE(g->context, directory);
    char config[PATH], weights[PATH];
    car_status status = CAR_OK;
    if (snprintf(weights, sizeof weights, "%s/model.safetensors", directory) >= (int)sizeof weights) {
        return car_context_fail(g->context, CAR_ERROR_IO, "the path %s is too long", directory);
    }
    snprintf(config, sizeof config, "%s/config.json", directory); /* shorter than the other path, so it fits */
    CAR_TRY(car_gpt2_write(&g->model, weights));
    CAR_TRY(write_config(g, config, end_of_text));
done:
    return status;
}
