#!/usr/bin/env bash
# Real ranks, more than there are cores: against the shared engine, and in trouble.
#
#   run.sh PROGRAMS CAROUSEL [ci|full]     PROGRAMS: the folder of ranks
set -euo pipefail

programs=$1 carousel=$2 extent=${3:-ci}
mpirun=${MPIRUN:-mpirun}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0

fail() {
    echo "FAILED: $*"
    failed=1
}

start() { # RANKS PROGRAM...
    local ranks=$1
    shift
    timeout 300 "$mpirun" -n "$ranks" "$@"
}

# ---- the same weights as the shared engine -----------------------------------------------------

for ranks in 2 3 4 6 9 10; do
    echo "== $ranks ranks"
    if ! start "$ranks" "$programs/ranks" "$extent" >"$work/log" 2>&1; then
        cat "$work/log"
        fail "ranks: $ranks"
    fi
    tail -1 "$work/log"
done

# ---- a trace has the tasks of the plan, in the rows of those who did them -----------------------

trace() { # RANKS RULE PLACEMENT
    local model=(--model mlp --workers 3 --stages 3 --rule "$2" --placement "$3" --batch 2)
    start "$1" "$carousel" train "${model[@]}" --steps 3 --trace "$work/trace.json" >"$work/log" 2>&1 &&
        "$carousel" plan "${model[@]}" --steps 3 --dump >"$work/dump" &&
        python3 "$(dirname "$0")/../cli/trace_tasks.py" "$work/trace.json" "$work/dump" || fail "trace of $*"
}

echo "== traces"
trace 3 cdp-v2 replica
trace 3 cdp-v1 zero
trace 3 cdp-v2 pipeline
trace 3 dp replica
trace 6 cdp-v2 grid

# ---- one run, several placements ---------------------------------------------------------------

sum_of() {
    sed -n 's/.*"weights_sha256":[^"]*"\([0-9a-f]*\)".*/\1/p' "$1/summary.json"
}
train=(--model mlp --workers 2 --batch 4 --rule cdp-v2 --seed 5)

echo "== moving between placements"
"$carousel" train "${train[@]}" --steps 12 --out "$work/whole" >/dev/null
start 2 "$carousel" train "${train[@]}" --placement replica --steps 4 --out "$work/moved" >"$work/log" 2>&1 || fail "replica"
start 3 "$carousel" train "${train[@]}" --placement grid --steps 7 --out "$work/moved" --resume >"$work/log" 2>&1 || fail "grid"
start 2 "$carousel" train "${train[@]}" --placement zero --steps 9 --out "$work/moved" --resume >"$work/log" 2>&1 || fail "zero"
"$carousel" train "${train[@]}" --placement shared --threads 2 --steps 10 --out "$work/moved" --resume >"$work/log" 2>&1 || fail "shared"
start 2 "$carousel" train "${train[@]}" --placement pipeline --steps 12 --out "$work/moved" --resume \
    >"$work/log" 2>&1 || fail "pipeline"
[ "$(sum_of "$work/whole")" = "$(sum_of "$work/moved")" ] || fail "a run that moved between placements ends elsewhere"

# ---- bad starts --------------------------------------------------------------------------------

expect() { # TEXT: somewhere in the log
    grep -q -- "$1" "$work/log" || { cat "$work/log"; fail "no message '$1'"; }
}

echo "== bad starts"
if start 2 "$carousel" train "${train[@]}" --placement grid --steps 2 >"$work/log" 2>&1; then fail "wrong number of ranks"; fi
expect 'needs 3 ranks, and there are 2'
if "$carousel" train "${train[@]}" --placement zero --steps 2 >"$work/log" 2>&1; then fail "without mpirun"; fi
expect 'mpirun -n'
if timeout 60 "$mpirun" -n 1 "$carousel" train "${train[@]}" --placement zero --steps 2 : \
    -n 1 "$carousel" train "${train[@]}" --placement zero --steps 2 --lr 0.5 >"$work/log" 2>&1; then fail "other options"; fi
expect 'rank 1 has another configuration'
cp "$carousel" "$work/other"
printf 'x' >>"$work/other"
if timeout 60 "$mpirun" -n 1 "$carousel" train "${train[@]}" --placement zero --steps 2 : \
    -n 1 "$work/other" train "${train[@]}" --placement zero --steps 2 >"$work/log" 2>&1; then fail "another program"; fi
expect 'rank 1 has another program'

# ---- trouble -----------------------------------------------------------------------------------

small=(--model resnet20 --image-size 8 --workers 2 --batch 2 --rule cdp-v2 --steps 300)
long=("${small[@]}" --placement replica --checkpoint-every 40)

find_rank() { # RANK DIR: the process of that rank in the run with that directory
    local process
    for process in /proc/[0-9]*; do
        if tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -qE "^(OMPI_COMM_WORLD_RANK|PMI_RANK)=$1\$" &&
            tr '\0' '\n' 2>/dev/null <"$process/cmdline" | grep -qx -- "$2"; then
            basename "$process"
            return
        fi
    done 2>/dev/null
}

echo "== a rank dies"
"$carousel" train "${small[@]}" --out "$work/undisturbed" >/dev/null
"$carousel" launch --mpirun "$mpirun" -n 2 --restarts 3 -- train "${long[@]}" --out "$work/disturbed" >"$work/log" 2>&1 &
job=$!
for _ in $(seq 600); do
    [ -d "$work/disturbed/checkpoints/step-00000080" ] && break
    sleep 0.05
done
victim=$(find_rank 1 "$work/disturbed")
kill -9 "$victim" || fail "there was no rank to kill"
wait "$job" || { cat "$work/log"; fail "launch did not go on"; }
expect 'start 1 of 3 again, from step'
[ "$(sum_of "$work/undisturbed")" = "$(sum_of "$work/disturbed")" ] || fail "a killed rank changed the weights"

echo "== the launcher is told to end"
"$carousel" launch --mpirun "$mpirun" -n 2 -- train "${long[@]}" --steps 1000000 --out "$work/ended" >"$work/log" 2>&1 &
job=$!
sleep 4
kill -TERM "$job"
wait "$job" || { cat "$work/log"; fail "launch did not end well"; }
expect 'interrupted after'
ls "$work"/ended/checkpoints/step-* >/dev/null || fail "no checkpoint at the end"

if [ "$extent" = full ]; then
    echo "== a rank is stopped"
    start 2 "$carousel" train "${long[@]}" --steps 1000000 --out "$work/stopped" >"$work/log" 2>&1 &
    job=$!
    sleep 4
    victim=$(find_rank 1 "$work/stopped")
    kill -STOP "$victim"
    SECONDS=0
    if wait "$job"; then fail "a stopped rank was not noticed"; fi
    [ "$SECONDS" -le 60 ] || fail "it took $SECONDS s to notice"
    expect 'rank 1 gives no sign of life'
fi

[ "$failed" = 0 ] && echo "all is well"
exit "$failed"
