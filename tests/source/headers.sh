#!/usr/bin/env bash
# The program is a user of the library: cli/ and examples/ include its public headers and their own, and no others.
cd "$(dirname "$0")/../.." || exit 1

failures=0
for file in cli/*.[ch] examples/*.c examples/*/*.[ch]; do
    while read -r header; do
        case $header in
        carousel/*) found=include/$header ;;
        *) found=$(dirname "$file")/$header ;;
        esac
        [ -f "$found" ] || { echo "FAIL: $file includes $header, which is not public" >&2; failures=1; }
    done < <(sed -n 's/^#include "\(.*\)"$/\1/p' "$file")
done
exit "$failures"
