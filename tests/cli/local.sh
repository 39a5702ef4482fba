#!/usr/bin/env bash
# Ranks as threads of one process: every placement without a launcher, with the weights of the shared engine; stopped,
# resumed elsewhere, and failing. CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

small=(train --model resnet20 --image-size 8 --workers 3 --batch 2 --seed 3)

sum_of() { # DIR
    sed -n 's/.*"weights_sha256":[^"]*"\([0-9a-f]*\)".*/\1/p' "$directory/$1/summary.json" 2>/dev/null
}
same() { # DIR DIR WHY
    [ -n "$(sum_of "$1")" ] && [ "$(sum_of "$1")" = "$(sum_of "$2")" ] || fail "$3: the weights are not the same"
}

for rule in cdp-v1 cdp-v2 dp; do
    expect 0 "done after 8 steps" "${small[@]}" --rule $rule --steps 8 --out "$directory/shared-$rule"
    for placement in replica zero pipeline grid; do
        pace=$([ $rule = cdp-v1 ] && echo on || echo off)
        expect 0 "threads of one process" "${small[@]}" --rule $rule --steps 8 --placement $placement --pace-links "$pace" \
            --out "$directory/$placement-$rule"
        [ "$(wc -l <"$directory/$placement-$rule/metrics.jsonl")" = 8 ] || fail "$placement $rule: not every step was reported"
        # Under dp a pipeline and a grid add in ring order or in that of ranks, a shared engine in that of workers.
        [ $rule = dp ] || same shared-$rule $placement-$rule "$placement under $rule"
    done
done

# Links that are paced hold messages back, and change nothing else.
expect 0 "done after 8 steps" "${small[@]}" --rule cdp-v2 --steps 8 --placement replica --piece-bytes 5000 --pace-links on \
    --step-seconds 0.04 --out "$directory/paced"
same shared-cdp-v2 paced "paced links"
grep -q '"held_messages":[^0-9]*[1-9]' "$directory/paced/summary.json" || fail "no message was held back"
grep -q '"held_messages":[^0-9]*[1-9]' "$directory/replica-cdp-v2/summary.json" && fail "messages were held back though links are not paced"
expect 2 "there is no pacing of links 'perhaps'" "${small[@]}" --placement replica --pace-links perhaps
expect 2 "placement shared has no ranks that send to each other" "${small[@]}" --pace-links on
expect 2 "use it with the cyclic rules" "${small[@]}" --placement replica --rule dp --pace-links on

# The schedules of pipelines: flushes have dp's weights in the order of workers, 2bw is cdp-v1.
expect 0 "done after 8 steps" "${small[@]}" --rule accumulate --steps 8 --out "$directory/in-turn"
for rule in gpipe 1f1b 2bw; do
    expect 0 "done after 8 steps" "${small[@]}" --rule $rule --delay-correction off --steps 8 --placement pipeline \
        --out "$directory/$rule"
done
same in-turn gpipe "gpipe"
same in-turn 1f1b "1f1b"
expect 0 "done after 8 steps" "${small[@]}" --rule cdp-v1 --delay-correction off --steps 8 --out "$directory/uncorrected"
same uncorrected 2bw "2bw"

# Several micro-batches a worker: the bits are those of the order of addition, which a run keeps when it moves.
several=("${small[@]}" --accumulate 2)
expect 0 "summed by micro-batch" "${several[@]}" --rule stagger --steps 6 --out "$directory/several"
expect 0 "done after 3 steps" "${several[@]}" --rule stagger --steps 3 --placement zero --out "$directory/several-moved"
expect 0 "done after 6 steps" "${several[@]}" --rule stagger --steps 6 --placement grid --resume --out "$directory/several-moved"
same several several-moved "stagger that moved between placements"
expect 0 "summed by worker" "${several[@]}" --rule cdp-v2 --steps 3 --placement replica --out "$directory/by-worker"
expect 2 "use --sum-order micro-batch" "${several[@]}" --rule cdp-v2 --steps 6 --placement grid --resume --out "$directory/by-worker"
expect 0 "done after 6 steps" "${several[@]}" --rule cdp-v2 --steps 6 --placement shared --resume --out "$directory/by-worker"
expect 0 "done after 6 steps" "${several[@]}" --rule cdp-v2 --steps 6 --sum-order worker --out "$directory/by-worker-whole"
same by-worker by-worker-whole "a run by worker that moved"
# By micro-batch there is one sum, by worker one for each: as much as the plan says, whatever M is.
for run in "several stagger micro-batch" "by-worker-whole cdp-v2 worker"; do
    read -r name rule order <<<"$run"
    held=$(sed -n 's/.*"gradients_bytes":\s*\([0-9]*\).*/\1/p' "$directory/$name/summary.json")
    planned=$("$CAROUSEL" plan "${several[@]:1:8}" --accumulate 2 --rule "$rule" --sum-order "$order" --threads 1 --json |
        sed -n 's/.*"gradients_total_bytes":\s*\([0-9]*\).*/\1/p')
    [ -n "$held" ] && [ "$held" = "$planned" ] || fail "sums of $name: $held bytes, the plan says $planned"
done
expect 2 "--accumulate 0: must be a whole number from 1 to 65536" "${small[@]}" --accumulate 0
expect 2 "--accumulate two: must be a whole number" "${small[@]}" --accumulate two
expect 2 "there is no sum order 'nobody'" "${several[@]}" --sum-order nobody
expect 2 "so each first adds up its own; use --sum-order worker" "${several[@]}" --rule dp --sum-order micro-batch

# As many ranks as there may be.
expect 0 "64 ranks on 1 machine" train --model mlp --width 16 --depth 8 --placement grid --rule dp --workers 8 --stages 8 \
    --steps 1 --batch 1 --threads 1

# Checkpoints and evaluations on the way, and from one placement to another.
rest=("${small[@]}" --rule cdp-v2 --steps 12 --checkpoint-every 3 --eval-every 4 --eval-batches 1)
expect 0 "done after 12 steps" "${rest[@]}" --keep 9 --out "$directory/whole"
for placement in replica zero pipeline grid; do # to the byte those of one process, whose state has another way to its file
    expect 0 "evaluation after step 8" "${rest[@]}" --keep 9 --placement $placement --out "$directory/on-the-way"
    for file in "$directory"/whole/checkpoints/*/*.safetensors; do
        cmp "$file" "$directory/on-the-way/${file#"$directory/whole/"}" || fail "$placement: a checkpoint differs"
    done
    [ "$(ls "$directory/on-the-way/checkpoints")" = "$(ls "$directory/whole/checkpoints")" ] || fail "$placement: other checkpoints"
    cmp <(sed 's/, "seconds".*//' "$directory/whole/evaluations.jsonl") \
        <(sed 's/, "seconds".*//' "$directory/on-the-way/evaluations.jsonl") || fail "$placement: other evaluations"
    rm -r "$directory/on-the-way"
done
expect 0 "done after 5 steps" "${rest[@]}" --steps 5 --placement zero --out "$directory/moved"
expect 0 "done after 8 steps" "${rest[@]}" --steps 8 --placement grid --resume --out "$directory/moved"
expect 0 "done after 12 steps" "${rest[@]}" --placement replica --resume --out "$directory/moved"
same whole moved "a run that moved between placements"

# Told to end, it ends in order and goes on.
"$CAROUSEL" "${small[@]}" --rule cdp-v1 --steps 100000 --placement replica --out "$directory/stopped" >"$directory/log" 2>&1 &
runner=$!
while [ "$(cat "$directory/stopped/metrics.jsonl" 2>/dev/null | wc -l)" -lt 3 ]; do sleep 0.05; done
kill -TERM $runner
wait $runner
[ $? = 4 ] || fail "SIGTERM: not exit code 4: $(tail -n 3 "$directory/log")"
steps=$(sed -n 's/.*"steps":[^0-9]*\([0-9]*\).*/\1/p' "$directory/stopped/summary.json")
expect 0 "done after $((steps + 2)) steps" "${small[@]}" --rule cdp-v1 --steps $((steps + 2)) --placement pipeline --resume \
    --out "$directory/stopped"

# One rank fails: all end, and the reason is said once, with the rank.
wild=(train --model mlp --workers 3 --batch 2 --rule cdp-v1 --lr 1e6 --steps 30 --placement zero)
expect 1 "is not finite" "${wild[@]}"
timeout 60 "$CAROUSEL" "${wild[@]}" >"$directory/log" 2>&1
[ "$(grep -c 'carousel: ' "$directory/log")" = 1 ] || fail "a failure is not said once: $(cat "$directory/log")"
expect 1 "No such file" "${small[@]}" --steps 2 --placement pipeline --init "$directory/none.safetensors"
expect 2 "more than 64 ranks, which is too many for one process" "${small[@]}" --workers 20 --stages 20 --steps 2 --placement grid

finish
