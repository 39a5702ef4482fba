#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_tables.h: the letters and the numbers of Unicode, as ranges.

    tools/make_unicode.py | clang-format --assume-filename=x.h >src/tokenizer/unicode_tables.h

Wants the module `regex` (Debian: python3-regex), which is what GPT-2's own encoder cuts words with. The version of
Unicode is the module's; the file says by which module it was made.
"""

import regex


def ranges(pattern):
    """[first, last] of every run of code points that match."""
    matcher, runs = regex.compile(pattern), []
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000 or not matcher.match(chr(code)):
            continue
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return runs


def main():
    print(f"/* Made by tools/make_unicode.py with regex {regex.__version__}: do not edit. */")
    print("#ifndef CAR_UNICODE_TABLES_H\n#define CAR_UNICODE_TABLES_H\n")
    for name, pattern in (("letters", r"\p{L}"), ("numbers", r"\p{N}"), ("spaces", r"\s")):
        rows = ", ".join(f"{{0x{first:x}, 0x{last:x}}}" for first, last in ranges(pattern))
        print(f"static const car_unicode_range {name}[] = {{{rows}}};\n")
    print("#endif")


main()
