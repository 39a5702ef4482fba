#!/usr/bin/env bash
# Every step of a run over ranks is reported, however fast steps are and however slow rank 0 is.
#
#   reports.sh CAROUSEL
carousel=$1
# shellcheck source=tests/mpi/common.sh
. "$(dirname "$0")/common.sh"

whole() { # DIR STEPS: metrics.jsonl has a line for each step, in order
    [ "$(sed -n 's/^{"step": \([0-9]*\),.*}$/\1/p' "$1/metrics.jsonl" | cmp - <(seq 0 $(($2 - 1))) && echo same)" = same ] ||
        fail "$1: $(wc -l <"$1/metrics.jsonl") of $2 steps were reported, or not in order"
}

echo "== more steps a second than statuses can carry"
succeeds start 2 "$carousel" train --model mlp --width 4 --depth 6 --image-size 8 --batch 1 --workers 8 --placement replica \
    --rule dp --steps 8000 --out "$work/fast"
whole "$work/fast" 8000

echo "== rank 0 is slow to listen"
start 3 "$carousel" train --model mlp --width 64 --lr 0.002 --workers 3 --placement replica --steps 120 \
    --checkpoint-every 5 --out "$work/slow" >"$work/log" 2>&1 &
job=$!
while kill -0 "$job" 2>/dev/null; do
    rank=$(find_rank 0 "$work/slow")
    [ -z "$rank" ] || kill -STOP "$rank" 2>/dev/null || true
    sleep 0.6
    [ -z "$rank" ] || kill -CONT "$rank" 2>/dev/null || true
    sleep 0.2
done
wait "$job" || { show_log; fail "a run whose rank 0 was stopped now and then"; }
whole "$work/slow" 120
[ "$(value_of "$work/slow/summary.json" loss_last)" != "" ] || fail "the summary has no last loss"

finish
