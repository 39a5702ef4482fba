#!/bin/sh
# Prints the C files of the project that match the given paths (default: all), one to a line: those
# that git tracks or would track, so that a new file is formatted and checked before it is committed.
set -eu

cd "$(dirname "$0")/.."
if [ $# -eq 0 ]; then
    set -- .
fi
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- "$@"
else
    find "$@" -path ./build -prune -o -type f -print
fi | grep '\.[ch]$' | sed 's|^\./||' | sort -u | while IFS= read -r file; do
    # git still lists what was deleted but not yet committed.
    if [ -f "$file" ]; then
        printf '%s\n' "$file"
    fi
done
