#!/usr/bin/env bash
# Two runs and one directory: the second is refused and told who has it, and the first does not notice.
# CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

run=$directory/run
mlp=(train --model mlp --batch 4 --lr 0.001 --workers 2 --threads 1 --keep 1 --checkpoint-every 20 --out "$run")

start() { # OPTIONS...: in the background, until its first steps are made
    "$CAROUSEL" "${mlp[@]}" "$@" >"$directory/log" 2>&1 &
    runner=$!
    for _ in $(seq 500); do
        [ -d "$run/checkpoints/step-00000020" ] && return
        sleep 0.02
    done
    fail "no run: $(cat "$directory/log")"
}

start --steps 1000000
for second in "" --resume --resume-step=20; do
    expect 1 "$run is in use by another run, process $runner on $(hostname)" "${mlp[@]}" --steps 3 $second
done
cp "$run/config.json" "$directory/before.json"
kill -0 $runner || fail "the first run is gone"
kill -INT $runner
wait $runner
steps=$(sed -n 's/^interrupted after \([0-9]*\) steps.*/\1/p' "$directory/log")
[ "$(wc -l <"$run/metrics.jsonl")" = "$steps" ] || fail "the first run lacks lines of metrics.jsonl"
cmp -s "$run/config.json" "$directory/before.json" || fail "the configuration of the first run was changed"
[ ! -e "$run/lock" ] || fail "a run that has ended leaves its lock"

# The lock of a killed run holds nobody up.
rm -r "$run"
start --steps 1000000
kill -KILL $runner
wait $runner 2>/dev/null
[ -e "$run/lock" ] || fail "there is no file to lock"
"$CAROUSEL" "${mlp[@]}" --resume --steps 60 >"$directory/log" 2>&1 || fail "after a kill: $(cat "$directory/log")"

# Of two that start at the same time, one runs.
for _ in 1 2; do
    rm -r "$run"
    "$CAROUSEL" "${mlp[@]}" --steps 60 >"$directory/one" 2>&1 &
    one=$!
    "$CAROUSEL" "${mlp[@]}" --steps 60 >"$directory/two" 2>&1 &
    two=$!
    wait $one
    first=$?
    wait $two
    second=$?
    [ $((first + second)) = 1 ] || fail "of two runs, $first and $second are the exit codes: $(cat "$directory/one" "$directory/two")"
    [ "$(wc -l <"$run/metrics.jsonl")" = 60 ] || fail "two runs in one directory mixed their metrics"
done

# Who is refused before he has written anything leaves no directory, and none that was there is removed.
expect 2 "must be a multiple" train --model mlp --workers 4 --stages 6 --out "$directory/new"
[ ! -e "$directory/new" ] || fail "a run that was refused left a directory"
mkdir "$directory/new"
expect 2 "must be a multiple" train --model mlp --workers 4 --stages 6 --out "$directory/new"
[ -d "$directory/new" ] && [ -z "$(ls -A "$directory/new")" ] || fail "a directory of the user's is not as it was"

finish
