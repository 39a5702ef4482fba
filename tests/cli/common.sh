# What the scripts beside this one share: a directory of their own and what is expected of the program, which CAROUSEL
# names. To be sourced; no test itself.
# shellcheck shell=bash
set -u
failures=0
command=() # what expect puts in front of all arguments
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

fail() {
    echo "FAIL: $1" >&2
    failures=$((failures + 1))
}

# expect CODE TEXT ARGUMENTS...: the exit code, and a text that output or error must contain.
expect() {
    local code=$1 text=$2 output status
    shift 2
    set -- "${command[@]}" "$@"
    output=$("$CAROUSEL" "$@" 2>&1 </dev/null)
    status=$?
    [ "$status" = "$code" ] || fail "carousel $*: exit $status where $code was expected: $output"
    grep -qF -- "$text" <<<"$output" || fail "carousel $*: '$text' is not in: $output"
}

# The end of a script.
finish() {
    [ "$failures" = 0 ] && echo "all well"
    exit $((failures > 0))
}
