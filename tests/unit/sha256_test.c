/* SHA-256 against known digests, for every way of cutting the data into pieces, with and without the machine's own
 * instructions. */
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { LONGEST = 300 };

static void digest(bool portable, const unsigned char *data, size_t bytes, size_t piece, char *text) {
    car_sha256 sha = car_sha256_begin();
    sha.absorb = car_sha256_find(portable);
    for (size_t done = 0; done < bytes; done += piece) {
        car_sha256_add(&sha, data + done, bytes - done < piece ? bytes - done : piece);
    }
    car_sha256_end(&sha, text);
}

/* The first three are examples of the standard; all were checked with sha256sum. */
static void test_known(void **state) {
    (void)state;
    static const struct {
        const char *text, *digest;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
         "a8ae6e6ee929abea3afcfc5258c8ccd6f85273e0d4626d26c7279f3250f77c8e"},
    };
    for (size_t k = 0; k < 2 * sizeof known / sizeof *known; k++) {
        char text[CAR_SHA256_TEXT];
        digest(k % 2, (const unsigned char *)known[k / 2].text, strlen(known[k / 2].text), 1000, text);
        assert_string_equal(text, known[k / 2].digest);
    }
}

static void test_pieces(void **state) {
    (void)state;
    unsigned char data[LONGEST];
    for (int i = 0; i < LONGEST; i++) {
        data[i] = (unsigned char)(i * 73 + i / 7);
    }
    for (size_t bytes = 0; bytes <= LONGEST; bytes++) {
        char wanted[CAR_SHA256_TEXT], found[CAR_SHA256_TEXT];
        digest(true, data, bytes, bytes + 1, wanted);
        for (size_t piece = 1; piece <= bytes + 1; piece += 1 + piece / 8) {
            digest(true, data, bytes, piece, found);
            assert_string_equal(found, wanted);
            digest(false, data, bytes, piece, found);
            assert_string_equal(found, wanted);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known), cmocka_unit_test(test_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
