/* Tokenizers: cutting words, learning merges, encoding and decoding, and the files. The same against another
 * implementation is in tests/cli/tokenize.sh. */
#include "carousel/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/expect.h"
#include "support/scratch.h"
#include "tokenizer/split.h"

enum { MOST = 1 << 16 };

typedef struct list {
    int32_t tokens[MOST];
    int count;
} list;

static car_status collect(void *user, const int32_t *tokens, int count) {
    list *l = user;
    assert_true(l->count + count <= MOST);
    memcpy(l->tokens + l->count, tokens, (size_t)count * sizeof *tokens);
    l->count += count;
    return CAR_OK;
}

static void encode(const car_scratch *s, const car_tokenizer *t, const void *text, size_t bytes, list *out) {
    out->count = 0;
    car_expect_ok(s->context, car_tokenizer_encode(t, text, bytes, collect, out));
}

/* Encoding and decoding gives back the same bytes. */
static void expect_round_trip(const car_scratch *s, const car_tokenizer *t, const unsigned char *text, size_t bytes) {
    static list l;
    size_t at = 0;
    encode(s, t, text, bytes, &l);
    for (int i = 0; i < l.count; i++) {
        int length = 0;
        const unsigned char *piece = car_tokenizer_decode(t, l.tokens[i], &length);
        assert_non_null(piece);
        assert_true(at + (size_t)length <= bytes);
        assert_memory_equal(piece, text + at, (size_t)length);
        at += (size_t)length;
    }
    assert_int_equal(at, bytes);
}

/* ---- words ----------------------------------------------------------------------------------- */

/* The words of a text with bars between them. */
static void expect_words(const char *text, const char *expected) {
    char found[256] = "";
    size_t bytes = strlen(text), used = 0;
    for (size_t at = 0, length = 0; at < bytes; at += length) {
        length = car_split_next((const unsigned char *)text + at, bytes - at);
        used += (size_t)snprintf(found + used, sizeof found - used, "%s%.*s", at ? "|" : "", (int)length, text + at);
    }
    assert_string_equal(found, expected);
}

static void words_are_cut_as_gpt2_does(void **state) {
    (void)state;
    expect_words("Hello world", "Hello| world");
    expect_words("don't we've I'll'd 'S", "don|'t| we|'ve| I|'ll|'d| '|S");
    expect_words("a  b", "a| | b");
    expect_words("a \n b\n", "a| \n| b|\n");
    expect_words("x\n\n\ny", "x|\n\n|\n|y");
    expect_words("end   ", "end|   ");
    expect_words("abc123!? 4.5", "abc|123|!?| 4|.|5");
    expect_words("\xC3\xA9t\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87",
                 "\xC3\xA9t\xC3\xA9| \xE4\xB8\xAD\xE6\x96\x87");                     /* letters */
    expect_words("\xD9\xA3\xC2\xBD\xE2\x85\xA7x", "\xD9\xA3\xC2\xBD\xE2\x85\xA7|x"); /* numbers */
    expect_words("a\xC2\xA0\xE3\x80\x80z", "a|\xC2\xA0|\xE3\x80\x80|z");             /* spaces */
    expect_words("a\xFF\xC3(\xED\xA0\x80", "a|\xFF\xC3(\xED\xA0\x80"); /* what is no UTF-8 is of no class */
}

/* ---- learning -------------------------------------------------------------------------------- */

static car_tokenizer *learn(const car_scratch *s, const char *text, int vocabulary) {
    car_tokenizer *t = NULL;
    car_expect_ok(s->context, car_tokenizer_train(s->context, text, strlen(text), vocabulary, &t));
    return t;
}

static void expect_token(const car_tokenizer *t, int token, const char *text) {
    int length = 0;
    const unsigned char *bytes = car_tokenizer_decode(t, token, &length);
    assert_int_equal(length, strlen(text));
    assert_memory_equal(bytes, text, (size_t)length);
}

static void the_most_frequent_pair_is_merged_first(void **state) {
    const car_scratch *s = *state;
    /* "ab" 5 times; then "abc" and "cd" 3 times each: the token "c" is smaller than the token "ab". */
    car_tokenizer *t = learn(s, "abc\tabc\tabc\tab\tab\tcd\tcd\tcd\t", 300);
    expect_token(t, 256, "ab");
    expect_token(t, 257, "cd");
    expect_token(t, 258, "abc");
    assert_int_equal(car_tokenizer_size(t), 259);
    car_tokenizer_destroy(t);
    t = learn(s, "aaaa\taaaa\t", 300);
    expect_token(t, 256, "aa");
    expect_token(t, 257, "aaaa");
    assert_int_equal(car_tokenizer_size(t), 258);
    car_tokenizer_destroy(t);
}

static void bytes_have_the_numbers_of_gpt2(void **state) {
    const car_scratch *s = *state;
    static list l;
    car_tokenizer *t = learn(s, "x", 256), *bytes = NULL;
    encode(s, t, "!~ \n", 4, &l);
    assert_int_equal(l.tokens[0], 0);
    assert_int_equal(l.tokens[1], 93);
    assert_int_equal(l.tokens[2], 220);
    assert_int_equal(l.tokens[3], 198);
    car_tokenizer_destroy(t);
    car_expect_ok(s->context, car_tokenizer_create_bytes(s->context, &bytes));
    encode(s, bytes, "a\n\xFF", 3, &l);
    assert_int_equal(l.tokens[0], 'a');
    assert_int_equal(l.tokens[1], '\n');
    assert_int_equal(l.tokens[2], 0xFF);
    car_tokenizer_destroy(bytes);
    car_expect_failure(s->context, car_tokenizer_train(s->context, "x", 1, 255, &t), CAR_ERROR_ARGUMENT, "255 tokens");
}

/* ---- files ----------------------------------------------------------------------------------- */

static void files_give_the_same_tokenizer(void **state) {
    const car_scratch *s = *state;
    static list ours, theirs;
    const char *text =
        "the cat \"sat\" on the \\mat\\, the rat \xC3\xA9t\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87 that the cat ate";
    car_tokenizer *t = learn(s, text, 280), *again = NULL;
    car_scratch_path json = car_scratch_in(s, "tokenizer.json"), vocabulary = car_scratch_in(s, "vocab.json"),
                     merges = car_scratch_in(s, "merges.txt");
    car_expect_ok(s->context, car_tokenizer_write(t, json.text));
    car_expect_ok(s->context, car_tokenizer_write_gpt2(t, vocabulary.text, merges.text));
    encode(s, t, text, strlen(text), &ours);
    for (int way = 0; way < 2; way++) {
        car_expect_ok(s->context, car_tokenizer_find(s->context, s->directory, &again));
        assert_non_null(again);
        assert_int_equal(car_tokenizer_size(again), car_tokenizer_size(t));
        encode(s, again, text, strlen(text), &theirs);
        assert_int_equal(theirs.count, ours.count);
        assert_memory_equal(theirs.tokens, ours.tokens, (size_t)ours.count * sizeof *ours.tokens);
        expect_round_trip(s, again, (const unsigned char *)text, strlen(text));
        car_tokenizer_destroy(again);
        remove(json.text); /* then the other two are found */
    }
    remove(merges.text);
    car_expect_ok(s->context, car_tokenizer_find(s->context, s->directory, &again));
    assert_null(again);
    car_tokenizer_destroy(t);
}

static void any_bytes_come_back(void **state) {
    const car_scratch *s = *state;
    static unsigned char noise[20000];
    unsigned seed = 7;
    car_tokenizer *t = learn(s, "the then they them there hello hello yellow aaaaaaaa    \n\n\n\n", 300);
    for (size_t i = 0; i < sizeof noise; i++) {
        seed = seed * 1103515245U + 12345U;
        noise[i] = i < 10000 ? (unsigned char)(seed >> 16) : (unsigned char)"the lo\n a"[(seed >> 16) % 9];
    }
    expect_round_trip(s, t, noise, sizeof noise);
    memset(noise, 'a', sizeof noise); /* one long word */
    expect_round_trip(s, t, noise, sizeof noise);
    car_tokenizer_destroy(t);
}

/* A tokenizer.json of all bytes and one merge, with something in the place of a part of it. */
static void put_file(const car_scratch *s, const char *model, const char *added, const char *splits) {
    car_tokenizer *t = NULL;
    size_t bytes = 0;
    static char text[MOST];
    car_scratch_path path = car_scratch_in(s, "made.json");
    car_expect_ok(s->context, car_tokenizer_create_bytes(s->context, &t));
    car_expect_ok(s->context, car_tokenizer_write_gpt2(t, path.text, car_scratch_in(s, "merges").text));
    car_tokenizer_destroy(t);
    char *vocabulary = car_scratch_read(path.text, &bytes);
    int length = snprintf(text, sizeof text,
                          "{\"added_tokens\": [%s], \"pre_tokenizer\": {\"type\": \"ByteLevel\"%s}, \"model\": {%s, "
                          "\"vocab\": %.*s}}",
                          added, splits, model, (int)bytes, vocabulary);
    car_scratch_write(path.text, text, (size_t)length);
    free(vocabulary);
}

static void expect_refusal(const car_scratch *s, const char *model, const char *added, const char *splits,
                           car_status expected, const char *part) {
    car_tokenizer *t = NULL;
    put_file(s, model, added, splits);
    car_expect_failure(s->context, car_tokenizer_read(s->context, car_scratch_in(s, "made.json").text, &t), expected,
                       part);
    assert_null(t);
}

static void other_tokenizers_are_refused(void **state) {
    const car_scratch *s = *state;
    static const char sound[] = "\"type\": \"BPE\", \"merges\": []";
    static list l;
    car_tokenizer *t = NULL;
    put_file(s, sound, "{\"id\": 256, \"content\": \"<|endoftext|>\", \"special\": true}", "");
    car_expect_ok(s->context, car_tokenizer_read(s->context, car_scratch_in(s, "made.json").text, &t));
    assert_int_equal(car_tokenizer_end_of_text(t), 256);
    encode(s, t, "a<|endoftext|>b<|endof", 21, &l);
    assert_int_equal(l.count, 1 + 1 + 7);
    assert_int_equal(l.tokens[1], 256);
    car_tokenizer_destroy(t);
    expect_refusal(s, "\"type\": \"Unigram\", \"merges\": []", "", "", CAR_ERROR_UNSUPPORTED, "not a BPE");
    expect_refusal(s, sound, "", ", \"add_prefix_space\": true", CAR_ERROR_UNSUPPORTED, "adds a space");
    expect_refusal(s, sound, "", ", \"use_regex\": false", CAR_ERROR_UNSUPPORTED, "pre_tokenizer");
    expect_refusal(s, sound, "{\"id\": 400, \"content\": \"x\"}", "", CAR_ERROR_FORMAT, "from 0 to 255");
    expect_refusal(s, sound, "{\"id\": 256}", "", CAR_ERROR_FORMAT, "no \"content\"");
    expect_refusal(s, sound, "{\"id\": 256, \"content\": \"x\", \"lstrip\": true}", "", CAR_ERROR_UNSUPPORTED,
                   "lstrip");
    expect_refusal(s, "\"merges\": [\"a b\"]", "", "", CAR_ERROR_FORMAT, "'ab', which is not in the vocabulary");
    expect_refusal(s, "\"merges\": [\"a\"]", "", "", CAR_ERROR_FORMAT, "merge 1 is not two tokens");
    expect_refusal(s, "\"merges\": [[\"a\"]]", "", "", CAR_ERROR_FORMAT, "merge 1 is neither a string nor two strings");
    expect_refusal(s, "\"x\": 1", "", "", CAR_ERROR_FORMAT, "no list of merges");
    car_scratch_write(car_scratch_in(s, "half.json").text, "{\"mod", 5);
    car_expect_failure(s->context, car_tokenizer_read(s->context, car_scratch_in(s, "half.json").text, &t),
                       CAR_ERROR_FORMAT, "not a JSON object");
    car_expect_failure(s->context, car_tokenizer_read(s->context, car_scratch_in(s, "absent").text, &t), CAR_ERROR_IO,
                       "absent");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_cut_as_gpt2_does),
        cmocka_unit_test_setup_teardown(the_most_frequent_pair_is_merged_first, car_scratch_set_up,
                                        car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(bytes_have_the_numbers_of_gpt2, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(files_give_the_same_tokenizer, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(any_bytes_come_back, car_scratch_set_up, car_scratch_tear_down),
        cmocka_unit_test_setup_teardown(other_tokenizers_are_refused, car_scratch_set_up, car_scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
