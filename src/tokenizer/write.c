/* Writes tokenizers to files that Hugging Face's library reads. */

#include "base/text.h"
#include "tokenizer/internal.h"

/* Writes the bytes of a token in the alphabet; with `json`, escaped where necessary. */
static void add_in_alphabet(car_text *text, const car_tokenizer *t, int token, bool json) {
    for (int i = 0; i < t->tokens[token].length; i++) {
        unsigned char character[5] = "";
        uint32_t code = car_alphabet_character(t->bytes[t->tokens[token].first + i]);
        character[car_unicode_put(code, character)] = '\0';
        car_text_add(text, "%s%s", json && (code == '"' || code == '\\') ? "\\" : "", (const char *)character);
    }
}

/* Writes an added token literally. It came from cJSON, so it is UTF-8. */
static void add_raw(car_text *text, const car_tokenizer *t, int token) {
    for (int i = 0; i < t->tokens[token].length; i++) {
        unsigned char byte = t->bytes[t->tokens[token].first + i];
        if (byte < 0x20) {
            car_text_add(text, "\\u%04x", byte);
        } else {
            car_text_add(text, "%s%c", byte == '"' || byte == '\\' ? "\\" : "", byte);
        }
    }
}

/* Writes an object with all tokens and their numbers. */
static void add_vocabulary(car_text *text, const car_tokenizer *t) {
    car_text_add(text, "{");
    for (int i = 0; i < t->count; i++) {
        car_text_add(text, "%s\n\"", i ? "," : "");
        if (t->tokens[i].added) {
            add_raw(text, t, i);
        } else {
            add_in_alphabet(text, t, i, true);
        }
        car_text_add(text, "\": %d", i);
    }
    car_text_add(text, "\n}");
}

static void add_added_tokens(car_text *text, const car_tokenizer *t) {
    const char *comma = "";
    car_text_add(text, "[");
    for (int i = 0; i < t->count; i++) {
        if (t->tokens[i].added) {
            car_text_add(text, "%s\n{\"id\": %d, \"content\": \"", comma, i);
            add_raw(text, t, i);
            car_text_add(text, "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                               "\"normalized\": false, \"special\": true}");
            comma = ",";
        }
    }
    car_text_add(text, "]");
}

static void add_merge(car_text *text, const car_tokenizer *t, int merge, bool json) {
    add_in_alphabet(text, t, t->merges.pairs[merge].left, json);
    car_text_add(text, " ");
    add_in_alphabet(text, t, t->merges.pairs[merge].right, json);
}

static car_status write_text(car_text *text, const char *path) {
    char *whole = NULL;
    car_status status = car_text_finish(text, &whole);
    if (status == CAR_OK) {
        status = car_output_write_text(text->context, path, whole);
    }
    car_context_release_text(text->context, whole);
    return status;
}

car_status car_tokenizer_write(const car_tokenizer *t, const char *path) {
    CAR_REQUIRE(NULL, t);
    CAR_REQUIRE(t->context, path);
    static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                                     "\"use_regex\": true}";
    car_text text = {.context = t->context};
    car_text_add(&text, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n\"added_tokens\": ");
    add_added_tokens(&text, t);
    car_text_add(&text,
                 ",\n\"normalizer\": null,\n\"pre_tokenizer\": %s,\n\"post_processor\": %s,\n\"decoder\": %s,\n"
                 "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                 "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
                 "\"byte_fallback\": false,\n\"vocab\": ",
                 byte_level, byte_level, byte_level);
    add_vocabulary(&text, t);
    car_text_add(&text, ",\n\"merges\": [");
    for (int m = 0; m < t->merges.count; m++) {
        car_text_add(&text, "%s\n\"", m ? "," : "");
        add_merge(&text, t, m, true);
        car_text_add(&text, "\"");
    }
    car_text_add(&text, "]}}\n");
    return write_text(&text, path);
}

car_status car_tokenizer_write_gpt2(const car_tokenizer *t, const char *vocabulary, const char *merges) {
    CAR_REQUIRE(NULL, t);
    CAR_REQUIRE(t->context, vocabulary);
    CAR_REQUIRE(t->context, merges);
    car_text text = {.context = t->context};
    car_status status = CAR_OK;
    add_vocabulary(&text, t);
    CAR_TRY(write_text(&text, vocabulary));
    car_text_add(&text, "#version: 0.2\n");
    for (int m = 0; m < t->merges.count; m++) {
        add_merge(&text, t, m, false);
        car_text_add(&text, "\n");
    }
    CAR_TRY(write_text(&text, merges));
done:
    return status;
}
