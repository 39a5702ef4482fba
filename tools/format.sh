#!/bin/bash
# Formats all C files in place; with --check only shows what would change, and fails if anything would.
set -euo pipefail

cd "$(dirname "$0")/.."
mapfile -t files < <(tools/sources.sh)
if [ "${1:-}" != --check ]; then
    clang-format -i "${files[@]}"
    exit
fi

result=0
for file in "${files[@]}"; do
    clang-format "$file" | diff -u --label "$file" --label "$file (formatted)" "$file" - || result=1
done
if [ $result -ne 0 ]; then
    echo "Not formatted as .clang-format says; \`make format\` does it." >&2
fi
exit $result
