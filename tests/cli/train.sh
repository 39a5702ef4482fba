#!/usr/bin/env bash
# The program as its user runs it: help, training, and everything that can be typed wrongly.
# CAROUSEL names the program.
set -u
failures=0

fail() {
    echo "FAIL: $1" >&2
    failures=$((failures + 1))
}

# expect CODE TEXT ARGUMENTS...: the exit code, and a text that output or error must contain.
expect() {
    local code=$1 text=$2 output status
    shift 2
    output=$("$CAROUSEL" "$@" 2>&1 </dev/null)
    status=$?
    [ "$status" = "$code" ] || fail "carousel $*: exit $status where $code was expected: $output"
    grep -qF -- "$text" <<<"$output" || fail "carousel $*: '$text' is not in: $output"
}

expect 0 "usage: carousel COMMAND" --help
expect 0 "carousel 0." --version
expect 2 "usage: carousel COMMAND"
expect 2 "there is no command 'trian'" trian
expect 0 "usage: carousel train" train --help
expect 0 "resnet20" train --help
expect 0 "--weight-decay" train --help

expect 2 "--model NAME is missing" train
expect 2 "there is no option --modle" train --modle mlp
expect 2 "'mlp' is not an option" train mlp
expect 2 "--steps wants a value" train --model mlp --steps
expect 2 "--steps 0" train --model mlp --steps 0
expect 2 "--steps 1x" train --model mlp --steps 1x
expect 2 "--steps 99999999999999999999" train --model mlp --steps 99999999999999999999
expect 2 "--batch -3" train --model mlp --batch -3
expect 2 "--lr nan" train --model mlp --lr nan
expect 2 "--classes 0" train --model mlp --classes 0
expect 2 "--seed -1" train --model mlp --seed -1
expect 2 "--nesterov yes: takes no value" train --model mlp --nesterov=yes
expect 2 "knows only 'synthetic'" train --model mlp --data imagefolder:x
expect 1 "resnet20" train --model resnet21
expect 1 "vit-tiny" train --model vit-tiny --image-size 33
expect 1 "gpt2-nano" train --model gpt2-nano --seq-len 4000
expect 1 "not finite" train --model mlp --steps 50 --lr 1e6

# Training goes down, says so, and is the same again with the same seed.
losses() {
    "$CAROUSEL" train --model mlp --steps 80 --batch 16 --lr 0.05 "$@" | sed -n 's/^done after 80 steps: loss \([0-9.]*\) -> \([0-9.]*\) .*/\1 \2/p'
}
first=$(losses)
read -r before after <<<"$first"
awk -v a="${after:-9}" -v b="${before:-0}" 'BEGIN { exit !(a < 0.7 * b) }' || fail "the loss did not go down: '$first'"
[ "$first" = "$(losses --seed=1)" ] || fail "the same seed gave other losses"
[ "$first" != "$(losses --seed 2)" ] || fail "another seed gave the same losses"

# An interrupt ends the run with a summary.
"$CAROUSEL" train --model mlp --steps 1000000 >"${TMPDIR:-/tmp}/interrupt.$$" &
runner=$!
sleep 1
kill -INT $runner
wait $runner || fail "an interrupted run did not exit with 0"
grep -q '^interrupted after [0-9]* steps: loss' "${TMPDIR:-/tmp}/interrupt.$$" || fail "an interrupted run printed no summary"
rm -f "${TMPDIR:-/tmp}/interrupt.$$"

[ "$failures" = 0 ] && echo "all well"
exit $((failures > 0))
