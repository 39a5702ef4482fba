#!/usr/bin/env bash
# Who names a placement in the sources: the placements, and the validator, which derives them for itself. Everybody else
# asks for a property (carousel/placement.h), so that a placement is added in one file.
cd "$(dirname "$0")/../.." || exit 1

allowed='^(src/plan/placements/[a-z]*\.c|src/plan/validate[a-z_]*\.[ch]|include/carousel/placement\.h)$'

others=$(grep -rlE 'CAR_PLACEMENT_[A-Z]+\b' --include='*.[ch]' src cli include |
    xargs grep -lE "CAR_PLACEMENT_($(sed -n 's/.*X(CAR_PLACEMENT_\([A-Z]*\),.*/\1/p' include/carousel/placement.h | paste -sd'|'))\b" |
    grep -vE "$allowed")
if [ -n "$others" ]; then
    echo "these name placements instead of asking for a property:" >&2
    echo "$others" >&2
    exit 1
fi
