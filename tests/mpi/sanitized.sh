#!/usr/bin/env bash
# Ranks under a sanitizer: the smallest model in every placement, with several threads in a rank.
#
#   sanitized.sh PROGRAMS     the folder of ranks, which was built with -fsanitize=...
programs=$1
# shellcheck source=tests/mpi/common.sh
. "$(dirname "$0")/common.sh"

# Open MPI leaks, out of modules that are gone when leaks are looked for, so that no suppression can name them.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0

succeeds start 1 "$programs/trust"
for ranks in 2 3; do
    echo "== $ranks ranks"
    succeeds start "$ranks" "$programs/ranks" quick
    tail -1 "$work/log"
done

finish
