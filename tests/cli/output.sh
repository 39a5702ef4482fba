#!/usr/bin/env bash
# What a run leaves when it cannot write all of it: a disk that is full for checkpoints or metrics, a directory that is
# removed. And what it says to a log, and when. CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

mlp=(train --model mlp --batch 4 --lr 0.001 --workers 2 --threads 2)

wait_for() { # FILE TEXT: at most 20 s
    for _ in $(seq 1000); do
        grep -qF -- "$2" "$1" 2>/dev/null && return
        sleep 0.02
    done
    fail "'$2' is not in $1: $(cat "$1")"
}

# ---- room for the weights only: the state in a checkpoint is twice as large

(ulimit -f 12000 && exec "$CAROUSEL" "${mlp[@]}" --steps 40 --eval-every 20 --out "$directory/full") >"$directory/log" 2>&1
[ $? = 1 ] || fail "a checkpoint that could not be written at the end is no failure"
grep -q 'carousel: .*state.safetensors: cannot write: File too large' "$directory/log" || fail "the reason is missing: $(cat "$directory/log")"
grep -q '^done after 40 steps' "$directory/log" || fail "the run did not come to its end: $(cat "$directory/log")"
for file in weights.safetensors summary.json timeline.json; do
    [ -s "$directory/full/$file" ] || fail "a run without room for its checkpoint has no $file"
done
[ "$(wc -l <"$directory/full/evaluations.jsonl")" = 2 ] || fail "a run without room for its checkpoint was not evaluated"
"$CAROUSEL" eval --model mlp --weights "$directory/full" --data synthetic --batches 1 >/dev/null 2>&1 || fail "its weights are not sound"
# Neither fits: it is the weights that are named first, and there is no summary that would promise them.
(ulimit -f 6000 && exec "$CAROUSEL" "${mlp[@]}" --steps 3 --out "$directory/fuller") >"$directory/log" 2>&1
[ $? = 1 ] || fail "weights that could not be written are no failure"
[ ! -e "$directory/fuller/summary.json" ] || fail "there is a summary without weights"
grep -q 'carousel: .*fuller/weights.safetensors: cannot write' "$directory/log" || fail "the weights are not named: $(cat "$directory/log")"

# ---- metrics that cannot be written

mkdir "$directory/mute"
ln -s /dev/full "$directory/mute/metrics.jsonl"
"$CAROUSEL" "${mlp[@]}" --steps 30 --out "$directory/mute" >"$directory/log" 2>&1 || fail "metrics that cannot be written ended the run"
[ "$(grep -c 'could not write the line of step 0: No space left on device; the run goes on' "$directory/log")" = 1 ] ||
    fail "it is not said once: $(cat "$directory/log")"
[ "$(grep -c 'metrics.jsonl: 30 of 30 lines are missing; the first error was: No space left' "$directory/log")" = 1 ] ||
    fail "it is not said at the end: $(cat "$directory/log")"
[ "$(grep -c 'No space left' "$directory/log")" = 2 ] || fail "it is said too often: $(cat "$directory/log")"

# No half line stays, and a line that was damaged does not cost the ones behind it.
tiny=(train --model mlp --width 2 --depth 1 --image-size 4 --batch 2 --workers 2 --lr 0.001 --out "$directory/tiny")
(ulimit -f 8 && exec "$CAROUSEL" "${tiny[@]}" --steps 80) >"$directory/log" 2>&1
grep -q '[0-9]* of 80 lines are missing; the first error was: File too large' "$directory/log" || fail "lines that are too many: $(cat "$directory/log")"
python3 -c "import json, sys; [json.loads(line) for line in open(sys.argv[1])]" "$directory/tiny/metrics.jsonl" || fail "there is half a line"
rm -r "$directory/tiny"
"$CAROUSEL" "${tiny[@]}" --steps 20 >/dev/null 2>&1 || fail "a tiny run"
sed -i '5s/.*/{"step": 4, "lo/' "$directory/tiny/metrics.jsonl"
expect 0 "tiny/metrics.jsonl: 1 damaged line was not kept" "${tiny[@]}" --resume --steps 24
[ "$(wc -l <"$directory/tiny/metrics.jsonl")" = 23 ] || fail "a damaged line cost others: $(wc -l <"$directory/tiny/metrics.jsonl") of 23 are left"

# ---- the directory is removed, or another one is put in its place

for how in removed replaced; do
    timeout 60 "$CAROUSEL" "${mlp[@]}" --steps 1000000 --out "$directory/gone" >"$directory/log-$how" 2>&1 &
    runner=$!
    wait_for "$directory/log-$how" "step 1/1000000"
    rm -rf "$directory/gone"
    [ $how = removed ] || mkdir "$directory/gone"
    wait $runner
    [ $? = 1 ] || fail "$how: the run did not fail: $(cat "$directory/log-$how")"
    grep -q "the run directory $directory/gone was removed during the run" "$directory/log-$how" ||
        fail "$how: the reason is missing: $(cat "$directory/log-$how")"
    [ ! -e "$directory/gone/weights.safetensors" ] || fail "$how: the run wrote to another directory"
done

# ---- what is said where nobody watches

# The head comes before the first step is made, and how long it will take after the first steps.
"$CAROUSEL" train --model resnet20 --batch 64 --workers 4 --steps 100000 --lr 0.001 >"$directory/log" 2>&1 &
runner=$!
wait_for "$directory/log" "million parameters"
grep -q "step 1/" "$directory/log" && fail "the head came with the first step"
wait_for "$directory/log" "for 100000 steps at"
grep -qE '^about [0-9.]+ (minutes|hours|days) for 100000 steps at [0-9]+ samples/s$' "$directory/log" || fail "no duration: $(cat "$directory/log")"
kill -INT $runner
wait $runner

finish
