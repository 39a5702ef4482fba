#!/usr/bin/env bash
# The shared library exports what the public headers declare: no less, and nothing else.
#
#   tests/source/symbols.sh LIBCAROUSEL.SO LIBCAROUSEL.A
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# Comments out; then every name in front of a parenthesis, and every `extern` object.
cat "$root"/include/carousel/*.h | perl -0pe 's{/\*.*?\*/}{}gs' |
    grep -oE '\bcar_[a-z0-9_]+ ?\(|extern const [a-z_ ]+\bcar_[a-z0-9_]+' | grep -oE 'car_[a-z0-9_]+ ?\(?$' | tr -d '( ' |
    sort -u >"$scratch/declared"
nm -D --defined-only "$1" | awk '$2 ~ /[A-Z]/ { print $3 }' | sort -u >"$scratch/exported"
nm --defined-only "$2" 2>/dev/null | awk '$2 ~ /[TRDB]/ { print $3 }' | sort -u >"$scratch/defined"
[ -s "$scratch/exported" ] && [ -s "$scratch/declared" ] || { echo "FAIL: nothing to compare"; exit 1; }

while read -r name; do
    echo "FAIL: $name is exported, but no header in include/carousel declares it" >&2
    failures=$((failures + 1))
done < <(comm -23 "$scratch/exported" "$scratch/declared" | grep -vE '^__(asan|ubsan|tsan|odr_asan|sanitizer|start|stop)')
while read -r name; do
    echo "FAIL: $name is declared in include/carousel, but not exported: is the header's visibility pragma missing?" >&2
    failures=$((failures + 1))
done < <(comm -12 "$scratch/declared" "$scratch/defined" | comm -23 - "$scratch/exported")

for header in "$root"/include/carousel/*.h; do
    name=$(basename "$header")
    [ "$name" = carousel.h ] || grep -q "\"carousel/$name\"" "$root/include/carousel/carousel.h" || {
        echo "FAIL: carousel.h does not include $name" >&2
        failures=$((failures + 1))
    }
done

[ $failures = 0 ] && echo "all well: $(wc -l <"$scratch/exported") symbols"
exit $((failures > 0))
