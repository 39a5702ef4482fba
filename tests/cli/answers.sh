#!/usr/bin/env bash
# Answers to a full device: the program says that they were lost, and fails; a run that is trained all the same does not.
# CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
cd "$directory" || exit 1
[ -c /dev/full ] || { echo "SKIPPED: there is no /dev/full"; exit 0; }

printf 'to be or not to be, that is the question\n' >text
"$CAROUSEL" train --model mlp --width 8 --depth 1 --steps 1 --workers 1 --batch 2 --out run >/dev/null || fail "no run to look at"

# full CODE ARGUMENTS...: with standard output on a full device.
full() {
    local code=$1 status
    shift
    "$CAROUSEL" "$@" >/dev/full 2>error </dev/null
    status=$?
    [ $status = "$code" ] || fail "carousel $* >/dev/full: exit $status where $code was expected"
    grep -q "could not write to standard output" error || fail "carousel $* >/dev/full says: $(cat error)"
    [ "$(grep -c . error)" = 1 ] || fail "carousel $* >/dev/full says more than once: $(cat error)"
}

full 1 data info tokens:text
full 1 data info tokens:text --json
full 1 data info --help
full 1 eval run
full 1 eval run --json
full 1 plan --model mlp
full 1 plan --model mlp --json
full 1 plan --model mlp --compare
full 1 plan --model mlp --dump
full 1 report run -o page.html
full 1 train --help
full 1 --help
full 1 --version
full 0 train --model mlp --width 8 --depth 1 --steps 2 --workers 1 --batch 2 --out logged
[ -s logged/weights.safetensors ] || fail "a run whose log is lost has no weights"

# What failed for another reason keeps its code.
"$CAROUSEL" data info tokens:absent >/dev/full 2>&1
[ $? = 1 ] || fail "a failure became something else"
"$CAROUSEL" plan --modle mlp >/dev/full 2>&1
[ $? = 2 ] || fail "a mistake became something else"

# A reader that leaves early is no failure of ours to report.
"$CAROUSEL" plan --model mlp --dump 2>error | head -n 1 >/dev/null
[ ! -s error ] || fail "a reader that left gave: $(cat error)"

finish
