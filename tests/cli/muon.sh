#!/usr/bin/env bash
# --optimizer muon: what it takes, that runs do not depend on threads and go on exactly, and what the plan says of it.
# CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

expect 2 "--adamw-lr 0.001 needs an --lr above 0" train --model mlp --steps 1 --optimizer muon --lr 0
expect 2 "--nesterov is only for sgd" train --model mlp --steps 1 --optimizer muon --nesterov
expect 2 "--adamw-lr -1" train --model mlp --steps 1 --optimizer muon --adamw-lr -1

digest() {
    sed -n 's/.*"weights_sha256":[^"]*"\([0-9a-f]*\)".*/\1/p' "$directory/$1/summary.json"
}
train() { # RUN OPTIONS...
    local run=$1
    shift
    "$CAROUSEL" train --out "$directory/$run" "$@" >"$directory/log" 2>&1 || fail "train $run $*: $(tail -n 1 "$directory/log")"
}
same() {
    [ "$(digest "$1")" = "$(digest "$2")" ] && [ -n "$(digest "$1")" ] || fail "$3"
}

# The loss goes down; threads change nothing; half and half are the whole, with the correction's state and without.
losses() {
    sed -n 's/^done after [0-9]* steps: loss \([0-9.]*\) -> \([0-9.]*\) .*/\1 \2/p' "$directory/log"
}
net=(--model gpt2-nano --width 24 --depth 2 --seq-len 16 --batch 2 --workers 2 --optimizer muon --lr 0.02 --warmup 2)
for correction in auto off; do
    options=("${net[@]}" --rule cdp-v2 --delay-correction $correction)
    train "$correction" "${options[@]}" --steps 12 --threads 1
    train "$correction-3" "${options[@]}" --steps 12 --threads 3
    same "$correction" "$correction-3" "muon, $correction: 3 threads gave other weights"
    train "$correction-half" "${options[@]}" --steps 5 --threads 2
    train "$correction-half" --resume --steps 12
    grep -q "not exactly" "$directory/log" && fail "muon, $correction: the second half claims not to be exact"
    same "$correction" "$correction-half" "muon, $correction: 5 + 7 steps are not 12"
done
[ "$(digest auto)" != "$(digest off)" ] || fail "muon: auto corrects nothing"
grep -q '"momentum":[^0-9]*0.95' "$directory/auto/config.json" || fail "muon's momentum is not 0.95"
train longer "${net[@]}" --rule cdp-v1 --steps 60
awk -v l="$(losses)" 'BEGIN { split(l, v, " "); exit !(v[2] < 0.95 * v[1]) }' || fail "muon: the loss did not go down: '$(losses)'"
train rate "${net[@]}" --rule cdp-v2 --steps 12 --adamw-lr 3e-3
[ "$(digest auto)" != "$(digest rate)" ] || fail "--adamw-lr changes nothing"
train auto --resume --steps 13 --adamw-lr 3e-3
grep -q "not exactly.*--adamw-lr" "$directory/log" || fail "another --adamw-lr: not said to be inexact"

# The plan: matrices keep one state, or two with a correction; scratch of each thread; what it computes.
value() { # FIELD OPTIONS...
    local field=$1
    shift
    "$CAROUSEL" plan --model mlp --workers 2 --threads 2 --optimizer muon --json "$@" |
        sed -n "s/.*\"$field\":[^0-9]*\\([0-9.e+-]*\\).*/\\1/p" | head -n 1
}
for correction in off 0.9,0; do
    train kept --model mlp --workers 2 --threads 2 --steps 2 --optimizer muon --lr 0.01 --delay-correction $correction --keep 0
    [ "$(sed -n 's/.*"optimizer_bytes":[^0-9]*\([0-9]*\).*/\1/p' "$directory/kept/summary.json")" = \
        "$(value optimizer_total_bytes --delay-correction $correction)" ] || fail "muon, $correction: a run keeps other than the plan says"
done
[ "$(value optimizer_total_bytes --delay-correction off)" -lt "$(value optimizer_total_bytes --delay-correction 0.9,0)" ] ||
    fail "the last update is not counted"
command=(plan --optimizer muon --workers 4)
expect 0 "an update takes 1.20 TFLOP of matrix products (1.52 TFLOP without using symmetry)" --model gpt2 --seq-len 256 --batch 8
expect 0 "Muon's matrix products are 16 % of a step" --model gpt2 --seq-len 256 --batch 8
expect 0 "every rank repeats it: 4.78 TFLOP in all" --model gpt2 --seq-len 256 --batch 8 --placement replica
for placement in zero pipeline grid; do
    expect 0 "on the device with the largest share" --model gpt2-nano --batch 8 --placement $placement
done
output=$("$CAROUSEL" plan --model resnet20 --workers 4 --optimizer muon)
grep -q "Muon's matrix products are" <<<"$output" && fail "a small share is warned of"

finish
