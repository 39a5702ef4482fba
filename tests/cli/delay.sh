#!/usr/bin/env bash
# --delay-correction: what it takes, what a run says about it, and that runs with it go on exactly. CAROUSEL names the
# program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

# What is wrong is said.
for value in "0.9" "0.9,x" "-1,0" "0.9,-1" "nan,0" "0.9,nan" "inf,1" "0.9,11" "0.9,1,2" "often" ""; do
    expect 2 "--delay-correction $value: it must be auto, off or C,A" train --model mlp --steps 1 --delay-correction "$value"
    expect 2 "--delay-correction $value: it must be auto, off or C,A" plan --model mlp --delay-correction "$value"
done
expect 2 "--nesterov is the same as --delay-correction 0.8,0" train --model mlp --steps 1 --nesterov --momentum 0.8 --delay-correction 0.9,1
expect 2 "sgd without --momentum cannot be corrected" train --model mlp --steps 1 --momentum 0 --delay-correction 0.9,0
expect 2 "--nesterov is only for sgd" train --model mlp --steps 1 --nesterov --optimizer adamw

# The first line says what is on.
first() { # TEXT OPTIONS...: in the first line
    local text=$1 line
    shift
    line=$("$CAROUSEL" train --model mlp --batch 4 --workers 2 --threads 1 "$@" 2>&1 | head -n 1)
    grep -qF -- "$text" <<<"$line" || fail "train $*: '$text' is not in the first line: $line"
}
first "delay corrected by c 0.9, a 1 (auto)" --rule cdp-v2 --steps 1
first "delay corrected by c 0.45, a 0.5 (auto)" --rule cdp-v2 --steps 1 --accumulate 2
first "(auto)" --rule cdp-v2 --steps 1 --optimizer adamw
first "delay corrected by c 1.71, a 1 (auto)" --rule cdp-v1 --steps 1
first "delay corrected by c 1.305, a 0.5 (auto)" --rule cdp-v1 --steps 1 --accumulate 2
first "steps (auto)" --rule cdp-v1 --steps 20
first "delay corrected by c 0.5, a 2" --rule cdp-v2 --steps 1 --delay-correction 0.5,2
first "delay not corrected" --rule cdp-v2 --steps 1 --delay-correction off
first "delay not corrected" --rule cdp-v1 --steps 20 --momentum 0
first "Nesterov momentum" --rule cdp-v2 --steps 1 --nesterov
for rule in dp accumulate; do
    "$CAROUSEL" train --model mlp --batch 4 --workers 2 --rule $rule --steps 1 | grep -q "delay" && fail "$rule speaks of a delay"
done
"$CAROUSEL" train --model mlp --batch 4 --workers 2 --rule cdp-v1 --steps 20 --warmup 3 | head -n 1 | grep -q "warm-up" &&
    fail "a warm-up that was given is said to be by the rule"

# Weights depend on the correction, not on the number of threads; Nesterov's momentum is one.
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
other() {
    [ "$(digest "$1")" != "$(digest "$2")" ] || fail "$3"
}
net=(--model resnet20 --image-size 8 --width 4 --batch 2 --workers 3 --lr 0.02)
for optimizer in sgd adamw; do
    for rule in cdp-v1 cdp-v2; do
        run="$optimizer-$rule"
        options=("${net[@]}" --optimizer $optimizer --rule $rule --warmup 2)
        train "$run" "${options[@]}" --steps 12 --threads 1
        train "$run-3" "${options[@]}" --steps 12 --threads 3
        same "$run" "$run-3" "$run: 3 threads gave other weights"
        train "$run-off" "${options[@]}" --steps 12 --delay-correction off
        other "$run" "$run-off" "$run: auto corrects nothing"
        train "$run-half" "${options[@]}" --steps 5 --threads 2
        train "$run-half" --resume --steps 12 --threads 1
        grep -q "not exactly" "$directory/log" && fail "$run: the second half claims not to be exact"
        same "$run" "$run-half" "$run: 5 + 7 steps are not 12"
    done
done
grep -q '"delay_correction":[^"]*"c 0.9' "$directory/sgd-cdp-v2/summary.json" || fail "summary.json does not say what was on"
train nesterov "${net[@]}" --rule cdp-v2 --steps 6 --nesterov
train named "${net[@]}" --rule cdp-v2 --steps 6 --delay-correction 0.9,0
same nesterov named "--nesterov is not --delay-correction 0.9,0"
train dp "${net[@]}" --rule dp --steps 6
train dp-off "${net[@]}" --rule dp --steps 6 --delay-correction off
same dp dp-off "auto changes dp"

# A run from before the option was there goes on without a correction, and exactly.
train old "${net[@]}" --rule cdp-v1 --steps 12 --delay-correction off
train resumed "${net[@]}" --rule cdp-v1 --steps 6 --delay-correction off
sed -i '/"delay-correction"/d' "$directory/resumed/config.json"
cp -r "$directory/resumed" "$directory/changed"
train resumed --resume --steps 12
same old resumed "a run without --delay-correction in its configuration did not go on as it was"
grep -q "not exactly" "$directory/log" && fail "it claims not to be exact"

# Another correction is said to be one, and where it begins.
train changed --resume --steps 8 --delay-correction 0.9,1
grep -q "not exactly.*--delay-correction" "$directory/log" || fail "another correction: not said to be inexact"
grep -q "the delay correction was off; from here on it is c 0.9, a 1; the change of the gradient counts from the second step on" \
    "$directory/log" || fail "another correction: $(cat "$directory/log")"
train changed --resume --steps 9
grep -q "not exactly" "$directory/log" && fail "the last gradient was not kept"
train changed --resume --steps 10 --delay-correction 0.5,0
grep -q "the delay correction was c 0.9, a 1; from here on it is c 0.5, a 0" "$directory/log" || fail "yet another: $(cat "$directory/log")"

# What auto chose is kept with the checkpoint: a change of it is not silent, and the same choice needs no words.
train auto "${net[@]}" --rule cdp-v1 --steps 4
train auto --resume --steps 6
grep -q "delay correction was" "$directory/log" && fail "the same choice of auto: $(cat "$directory/log")"
train auto --resume --steps 8 --momentum 0.6
grep -q "the delay correction was c 1.71, a 1; from here on it is c 0.96, a 1" "$directory/log" ||
    fail "another choice of auto: $(cat "$directory/log")"

# The same correction is no difference, whether it was chosen or given.
train auto --resume --steps 9 --momentum 0.6 --delay-correction 0.96,1
grep -q "not exactly" "$directory/log" && fail "what auto had chosen was given: $(cat "$directory/log")"

# Nesterov's momentum is kept, but not beside another correction or optimizer, which has a momentum of its own.
train nesterov --resume --steps 7
grep -q "Nesterov momentum" "$directory/log" || fail "--nesterov was not kept: $(cat "$directory/log")"
train nesterov --resume --steps 8 --delay-correction 0.5,1
grep -q "the delay correction was Nesterov momentum; from here on it is c 0.5, a 1" "$directory/log" ||
    fail "another correction than Nesterov's: $(cat "$directory/log")"
train nesterov --resume --steps 9 --nesterov
grep -q "the delay correction was c 0.5, a 1; from here on it is Nesterov momentum" "$directory/log" ||
    fail "Nesterov's again: $(cat "$directory/log")"
train momentum "${net[@]}" --rule dp --steps 2 --nesterov --momentum 0.8
train momentum --resume --steps 4 --optimizer muon
grep -q '"momentum":[^0-9]*0.95' "$directory/momentum/config.json" || fail "muon with SGD's momentum: $(cat "$directory/momentum/config.json")"

# A moving average outlives a change of the correction or the optimizer, and to begin one changes no weights.
averaged=(--model mlp --width 8 --depth 2 --batch 4 --workers 2 --threads 1 --rule dp)
last() { # RUN: the average's distance from the weights, as the program evaluates both
    tail -n 1 "$directory/$1/evaluations.jsonl" | python3 -c "import json,sys; r = json.load(sys.stdin); print(r['loss'] == r['average_loss'])"
}
train mean "${averaged[@]}" --steps 30 --lr 0.1 --ema 0.999 --eval-every 30
for change in "--delay-correction 0.9,1" "--optimizer adamw" "--rule cdp-v2"; do
    cp -r "$directory/mean" "$directory/mean${change// /}"
    # shellcheck disable=SC2086 # words
    train "mean${change// /}" --resume --steps 31 --eval-every 31 --lr 0 $change
    [ "$(last "mean${change// /}")" = False ] || fail "$change: the moving average began anew"
done
train plain "${averaged[@]}" --rule cdp-v2 --steps 5
cp -r "$directory/plain" "$directory/begun"
train plain --resume --steps 8
train begun --resume --steps 8 --ema 0.9
same plain begun "to begin a moving average changed the weights"

# One worker is never late under cdp-v2.
train alone "${averaged[@]}" --workers 1 --rule cdp-v2 --steps 5
train alone-dp "${averaged[@]}" --workers 1 --steps 5
same alone alone-dp "cdp-v2 with one worker is not dp"
first "delay corrected by c 0.9, a 1 (auto)" --workers 1 --rule cdp-v2 --freshness-slack 1 --steps 1

# A momentum that is too short to gain from a correction.
first "delay not corrected" --rule cdp-v2 --momentum 0.5 --steps 1
first "delay corrected by c 0.6, a 1 (auto)" --rule cdp-v2 --momentum 0.6 --steps 1

# A warm-up that was chosen for fewer steps is kept, but not silently.
train longer "${averaged[@]}" --rule cdp-v1 --steps 12
train longer --resume --steps 24
grep -q "the warm-up was chosen for 12 steps and stays at 2; a new run of 24 steps would begin with 4" "$directory/log" ||
    fail "the warm-up of a longer run: $(cat "$directory/log")"
train longer --resume --steps 26
grep -q "warm-up was chosen" "$directory/log" && fail "the warm-up is spoken of twice"

# The plan counts what a run keeps.
bytes() { # FIELD OPTIONS...
    local field=$1
    shift
    "$CAROUSEL" plan --model mlp --workers 2 --json "$@" | sed -n "s/.*\"$field\":[^0-9]*\\([0-9]*\\).*/\\1/p" | head -n 1
}
one=$(bytes optimizer_total_bytes --rule dp)
[ "$one" -gt 0 ] || fail "the plan has no optimizer"
for expected in "1 --delay-correction off" "1 --delay-correction 0.9,0" "2 --delay-correction 0.9,1" "2 --optimizer adamw --rule dp" \
    "3 --optimizer adamw --delay-correction 1,1" "2 --delay-correction auto" "3 --optimizer adamw"; do
    # shellcheck disable=SC2086 # words
    set -- $expected
    states=$1
    shift
    [ "$(bytes optimizer_total_bytes "$@")" = $((states * one)) ] || fail "plan $*: not $states states"
done
train kept --model mlp --workers 2 --steps 2 --delay-correction 0.9,1
[ "$(sed -n 's/.*"optimizer_bytes":[^0-9]*\([0-9]*\).*/\1/p' "$directory/kept/summary.json")" = $((2 * one)) ] ||
    fail "a run keeps other than the plan says"

finish
