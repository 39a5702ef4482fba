#!/usr/bin/env bash
# Each public header compiles alone, as C and as C++: a program in C++ may include any of them. Without a compiler of C++
# (CXX, g++) the test says so and is skipped after the part in C.
cd "$(dirname "$0")/../.." || exit 1

cc=${CC:-cc}
cxx=${CXX:-g++}
failures=0

# Usage: compiles COMPILER LANGUAGE STANDARD HEADER
compiles() {
    echo "#include \"carousel/$4\"" | "$1" -fsyntax-only -std="$3" -Wall -Wextra -Wpedantic -Werror -Iinclude -x "$2" - ||
        { echo "FAIL: carousel/$4 does not compile alone as $3" >&2; failures=1; }
}

for header in include/carousel/*.h; do
    compiles "$cc" c c11 "$(basename "$header")"
done
if ! command -v "$cxx" >/dev/null; then
    echo "SKIPPED: there is no $cxx, so nobody looked whether the headers compile as C++" >&2
    [ "$failures" -eq 0 ] && exit 77
    exit 1
fi
for header in include/carousel/*.h; do
    compiles "$cxx" c++ c++17 "$(basename "$header")"
done
exit "$failures"
