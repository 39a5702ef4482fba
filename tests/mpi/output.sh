#!/usr/bin/env bash
# What the first rank writes for all: one run at a time in a directory, what is left where not all of it can be written,
# and a log that can be read.
#
#   output.sh CAROUSEL
carousel=$1
# shellcheck source=tests/mpi/common.sh
. "$(dirname "$0")/common.sh"

train=(--model mlp --workers 2 --batch 4 --lr 0.001 --rule cdp-v2 --placement replica)

# Both ranks, of which the first must not write files larger than 12 MB: a checkpoint's state.
start_limited() {
    start 2 sh -c 'ulimit -f 24000; exec "$@"' sh "$carousel" train "${train[@]}" "$@"
}

echo "== room for the weights only"
status=0
start_limited --steps 12 --eval-every 6 --out "$work/full" >"$work/log" 2>&1 || status=$?
[ "$status" = 1 ] || fail "exit $status where 1 was expected"
expect 'state.safetensors: cannot write: File too large'
expect 'done after 12 steps'
[ -s "$work/full/weights.safetensors" ] || fail "there is no file of weights"
[ "$(wc -l <"$work/full/evaluations.jsonl")" = 2 ] || fail "it was not evaluated"
succeeds "$carousel" train "${train[@]}" --placement shared --steps 12 --out "$work/whole"
same_weights "$work/whole" "$work/full" "a run without room for its checkpoint"
rm -r "$work/full"
status=0
start_limited --steps 12 --checkpoint-every 6 --out "$work/full" >"$work/log" 2>&1 || status=$?
[ "$status" = 1 ] || fail "exit $status where 1 was expected"
expect 'warning: could not write the checkpoint of step 6: .*File too large; training continues'
same_weights "$work/whole" "$work/full" "a run without room for checkpoints on the way"

echo "== the log"
if grep -q "$(printf '\r')\|$(printf '\033')" "$work/log"; then fail "the log has sequences for a terminal: $(cat -v "$work/log")"; fi
expect '^step 1/12 '
expect '^2 ranks on 1 machine'
# Somebody watches where mpirun itself writes to a terminal.
if command -v script >/dev/null && "$mpirun" --version 2>&1 | grep -q 'Open MPI'; then
    script -qec "$mpirun -n 2 $carousel train ${train[*]} --steps 3" /dev/null >"$work/log" 2>&1 </dev/null || fail "a run on a terminal"
    grep -q "$(printf '\033')" "$work/log" || fail "on a terminal the line is not renewed"
fi

echo "== more than the machine has"
status=0
start 2 "$carousel" train --model vit-tiny --workers 2 --batch 100000 --placement zero --steps 1 >"$work/log" 2>&1 || status=$?
[ "$status" = 1 ] || fail "exit $status where 1 was expected"
expect "carousel: the 2 ranks on rank 0's machine need about .* TB of memory (activations .*are free there; what would fit: --batch [0-9]*"
[ "$(grep -c 'need about' "$work/log")" = 1 ] || fail "it is said more than once"

echo "== one run in a directory"
start 2 "$carousel" train "${train[@]}" --steps 1000000 --out "$work/one" >"$work/first" 2>&1 &
job=$!
for _ in $(seq 1200); do
    [ -s "$work/one/metrics.jsonl" ] && break
    sleep 0.05
done
fails start 2 "$carousel" train "${train[@]}" --steps 3 --out "$work/one"
expect "$work/one is in use by another run, process $(find_rank 0 "$work/one") on "
fails "$carousel" train "${train[@]}" --placement shared --steps 3 --out "$work/one"
expect "is in use by another run"

echo "== the directory is removed"
rm -r "$work/one"
status=0
wait "$job" || status=$?
cp "$work/first" "$work/log"
[ "$status" = 1 ] || fail "exit $status where 1 was expected"
expect "the run directory $work/one was removed during the run"
if grep -q 'MPI_ABORT' "$work/log"; then fail "ranks did not end together"; fi

finish
