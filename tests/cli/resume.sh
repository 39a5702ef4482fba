#!/usr/bin/env bash
# Runs that end and go on: after a signal, after a kill, in another place, with another number of threads.
# CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

# A small CIFAR-10: 240 images to train on, 60 to evaluate on, noise with the class in one corner.
python3 - "$directory" <<'PYTHON'
import random, sys
random.seed(1)
def images(count):
    data = bytearray()
    for n in range(count):
        label = n % 10
        pixels = bytearray(random.randrange(256) for _ in range(3072))
        pixels[:64] = bytes([25 * label]) * 64
        data += bytes([label]) + pixels
    return data
for name, count in (("data_batch_1", 240), ("test_batch", 60)):
    with open(f"{sys.argv[1]}/{name}.bin", "wb") as file:
        file.write(images(count))
PYTHON

digest() {
    sed -n 's/.*"weights_sha256":[^"]*"\([0-9a-f]*\)".*/\1/p' "$directory/$1/summary.json"
}
# train RUN OPTIONS...: into the run directory RUN.
train() {
    local run=$1
    shift
    "$CAROUSEL" train --out "$directory/$run" "$@" >"$directory/log" 2>&1 ||
        fail "train $run $*: $(tail -n 1 "$directory/log")"
}
same() {
    [ "$(digest "$1")" = "$(digest "$2")" ] && [ -n "$(digest "$1")" ] || fail "$3"
    cmp -s "$directory/$1/weights.safetensors" "$directory/$2/weights.safetensors" || fail "$3: other weights.safetensors"
}

# How long cdp-v1's warm-up is would depend on --steps, so it is not left to the rule; delay.sh has runs with a correction.
images=(--model resnet20 --data "cifar10:$directory" --batch 4 --workers 3 --lr 0.02 --eval-batches 1 --delay-correction off)

# 2 x 10 steps are 20 steps, for every rule, over the end of an epoch (20 steps), with crops and flips; the second half
# with another number of threads. The configuration comes from the run.
for rule in dp cdp-v1 cdp-v2 accumulate; do
    train "whole-$rule" "${images[@]}" --rule $rule --steps 24 --threads 2
    train "half-$rule" "${images[@]}" --rule $rule --steps 12 --threads 2
    train "half-$rule" --resume --steps 24 --threads 1
    grep -q "not exactly" "$directory/log" && fail "$rule: the second half claims not to be exact"
    same "whole-$rule" "half-$rule" "$rule: 12 + 12 steps are not 24"
    [ "$(wc -l <"$directory/half-$rule/metrics.jsonl")" = 24 ] || fail "$rule: metrics.jsonl lacks steps"
    [ "$(sed -n 's/{"step": \([0-9]*\),.*/\1/p' "$directory/half-$rule/evaluations.jsonl" | xargs)" = "12 24" ] ||
        fail "$rule: evaluations.jsonl does not have the evaluations after 12 and 24 steps"
done
# A run that is over stays as it is.
cp "$directory/half-dp/summary.json" "$directory/half-dp/timeline.json" "$directory"
train half-dp --resume
grep -q "nothing to do: the run in .* has already finished its 24 steps" "$directory/log" || fail "a run that is over: $(cat "$directory/log")"
for name in summary.json timeline.json; do
    cmp -s "$directory/$name" "$directory/half-dp/$name" || fail "--resume of a run that is over changed $name"
done
rm "$directory/half-dp/summary.json" # as if it had been killed before that was written
train half-dp --resume
same whole-dp half-dp "a run that is over was not summarized again"
grep -q '"accuracy":' "$directory/half-dp/summary.json" || fail "the evaluation at the end was not made up for"
grep -q '"loss_last":' "$directory/half-dp/summary.json" && fail "a run that made no step has a loss"
[ "$(grep -c '"step": 24,' "$directory/half-dp/evaluations.jsonl")" = 1 ] || fail "an evaluation is there twice"

# What is typed about the length counts, whatever the run was begun with. Half a line, as of a full disk, is dropped.
train epochs "${images[@]}" --rule cdp-v1 --epochs 1
printf '{"step": 19, "loss": 2.1' >>"$directory/epochs/metrics.jsonl"
train epochs --resume --epochs 1.2
same epochs whole-cdp-v1 "an epoch and then 1.2 epochs are not 24 steps"
[ "$(wc -l <"$directory/epochs/metrics.jsonl")" = 24 ] || fail "metrics.jsonl has half a line, or lacks one"
train epochs --resume --steps 26
[ "$(digest epochs)" != "$(digest whole-cdp-v1)" ] || fail "--steps were not made, because of --epochs of the run before"

train adam "${images[@]}" --rule cdp-v2 --optimizer adamw --lr 1e-3 --clip-norm 0.5 --steps 12 --lr-schedule cosine --warmup 3
train adam2 "${images[@]}" --rule cdp-v2 --optimizer adamw --lr 1e-3 --clip-norm 0.5 --steps 12 --lr-schedule cosine --warmup 3 --checkpoint-every 5 --keep 5
rm -r "$directory/adam2/checkpoints/step-00000012" "$directory/adam2/checkpoints/step-00000010"
train adam2 --resume
same adam adam2 "adamw with clipping did not go on exactly"

# A cosine depends on the last step; another optimizer cannot go on from the state.
train adam2 --resume --steps 14
grep -q "not exactly.*--steps" "$directory/log" || fail "another end of a cosine: not said to be inexact"
train adam2 --resume --steps 15 --optimizer sgd
grep -q "this optimizer starts with a new state" "$directory/log" || fail "another optimizer: $(cat "$directory/log")"

# Without samples to evaluate on a run ends well, and who wants evaluations hears so before it begins.
head -c 1200 "$directory/data_batch_1.bin" >"$directory/short.txt" # a tenth of it is no sample
untested=(--model gpt2-nano --data "tokens:$directory/short.txt" --batch 1 --workers 2 --steps 2)
train untested "${untested[@]}"
grep -q "no samples to evaluate on" "$directory/log" || fail "nothing is said about the missing samples: $(cat "$directory/log")"
expect 2 "leave --eval-every out" train "${untested[@]}" --eval-every 1

# Evaluation and checkpoints on the way change nothing; neither does the number of reading threads.
train noisy "${images[@]}" --rule cdp-v2 --steps 24 --threads 2 --eval-every 5 --checkpoint-every 3 --data-threads 3
same whole-cdp-v2 noisy "evaluations or checkpoints changed the weights"
[ "$(ls "$directory/noisy/checkpoints" | wc -l)" = 2 ] || fail "not two checkpoints are kept"

# Without --resume a directory that holds a run is left alone; --resume wants one.
"$CAROUSEL" train "${images[@]}" --out "$directory/noisy" --steps 1 >"$directory/log" 2>&1 && fail "a run was written over"
grep -q -- "--resume" "$directory/log" || fail "the message does not say how to go on"
"$CAROUSEL" train "${images[@]}" --out "$directory/none" --resume >"$directory/log" 2>&1 && fail "resumed from nothing"
grep -q "no checkpoint" "$directory/log" || fail "the message does not say that there is no checkpoint"

# Another rule, another N: from the weights, and said so.
cp -r "$directory/half-cdp-v1" "$directory/other"
train other --resume --rule cdp-v2 --workers 2 --stages 2 --steps 26
grep -q "not exactly.*--rule, --workers, --stages" "$directory/log" || fail "another rule and N: not said to be inexact: $(cat "$directory/log")"

# A damaged checkpoint is refused, and the one before is offered.
cp -r "$directory/noisy" "$directory/damaged"
newest=$(ls -d "$directory"/damaged/checkpoints/step-* | tail -n 1)
printf 'x' | dd of="$newest/weights.safetensors" bs=1 seek=2000 conv=notrunc status=none
"$CAROUSEL" train --out "$directory/damaged" --resume --steps 25 >"$directory/log" 2>&1 && fail "a damaged checkpoint was used"
grep -q "weights.safetensors" "$directory/log" || fail "the damaged file is not named: $(cat "$directory/log")"
grep -q -- "(--resume-step 21)" "$directory/log" || fail "the checkpoint before is not offered: $(cat "$directory/log")"
train damaged --resume-step 21 --steps 24
train damaged --resume --steps 24 # the damaged one was replaced
same whole-cdp-v2 damaged "the checkpoint before the damaged one did not go on exactly"

# A signal writes a checkpoint and ends in order; the run goes on to the same end.
mlp=(--model mlp --width 192 --batch 4 --workers 4 --threads 2 --lr 0.02 --rule cdp-v2 --steps 240)
train straight "${mlp[@]}"
for signal in INT TERM HUP; do
    "$CAROUSEL" train "${mlp[@]}" --out "$directory/stopped-$signal" >"$directory/log" 2>&1 &
    runner=$!
    while [ "$(cat "$directory/stopped-$signal/metrics.jsonl" 2>/dev/null | wc -l)" -lt 20 ]; do sleep 0.02; done
    kill -$signal $runner
    wait $runner
    [ $? = 4 ] || fail "SIG$signal: the run did not end with 4"
    grep -q "^interrupted after" "$directory/log" || fail "SIG$signal came too late"
    train "stopped-$signal" --resume
    same straight "stopped-$signal" "SIG$signal: the run did not go on exactly"
done

# Killed ten times, after a random number of steps and then some, and resumed each time: the end is the same.
lines() {
    cat "$directory/killed/metrics.jsonl" 2>/dev/null | wc -l
}
options=("${mlp[@]}" --checkpoint-every 4)
kills=0
for try in $(seq 30); do
    wanted=$(($(lines) + RANDOM % 12 + 5))
    [ $kills = 10 ] && wanted=100000 # to the end
    "$CAROUSEL" train --out "$directory/killed" "${options[@]}" >"$directory/log" 2>&1 &
    runner=$!
    while [ "$(lines)" -lt $wanted ] && kill -0 $runner 2>/dev/null; do sleep 0.01; done
    sleep "0.$(printf '%03d' $((RANDOM % 20)))"
    kill -KILL $runner 2>/dev/null
    wait $runner 2>/dev/null
    case $? in
    137) kills=$((kills + 1)) ;;
    0) break ;;
    *) fail "a resumed run failed: $(tail -n 1 "$directory/log")" && break ;;
    esac
    [ -n "$(ls "$directory/killed/checkpoints" 2>/dev/null)" ] && options=(--resume)
done
[ $kills = 10 ] || fail "$kills of 10 kills hit the run"
[ "$(lines)" = 240 ] || fail "a killed run lost lines of metrics.jsonl"
same straight killed "a run that was killed and resumed ended otherwise"

# In bf16 the floats go on, in another placement, too.
halves=(--model gpt2-nano --width 16 --depth 2 --heads 2 --seq-len 8 --batch 1 --workers 2 --optimizer adamw --lr 1e-3
    --precision bf16)
train whole "${halves[@]}" --steps 4
train parts "${halves[@]}" --steps 2
train parts --resume --steps 4 --placement zero
same whole parts "a run in bf16 that was resumed ended otherwise"
[ "$(grep -c '"dtype":"F32"' "$directory/whole/weights.safetensors")" = 1 ] || fail "weights of bf16 are not saved as floats"

finish
