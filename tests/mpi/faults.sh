#!/usr/bin/env bash
# Ranks in trouble. Killed, at any time: the launcher starts them again, and the weights come out as if nothing had
# been. Stopped or out of memory: the job ends soon, and says who, where and who waited.
#
#   faults.sh CAROUSEL [ci|full]     full: ten kills under each placement; FAULTS_SEED repeats a series
carousel=$1 extent=${2:-ci}
# shellcheck source=tests/mpi/common.sh
. "$(dirname "$0")/common.sh"

small=(--model resnet20 --image-size 8 --workers 2 --batch 2 --rule cdp-v2 --steps 240)
long=("${small[@]}" --placement replica --checkpoint-every 30)
RANDOM=${FAULTS_SEED:-$(date +%s)}

ranks_of() { # PLACEMENT, of two workers
    [ "$1" = grid ] && echo 3 || echo 2
}

# ---- killed ------------------------------------------------------------------------------------

launch() { # PLACEMENT DIR OPTIONS...
    local placement=$1 directory=$2
    shift 2
    "$carousel" launch --mpirun "$mpirun" -n "$(ranks_of "$placement")" --restarts 5 -- train "${small[@]}" \
        --placement "$placement" --checkpoint-every 30 --out "$directory" "$@" >"$work/log" 2>&1
}

# A random rank, after some milliseconds: while it starts, trains, saves or ends.
kill_one() { # PLACEMENT DELAY; sets `killed` if there was a rank to kill
    local job victim rank
    rm -rf "$work/disturbed"
    rank=$((RANDOM % $(ranks_of "$1")))
    launch "$1" "$work/disturbed" &
    job=$!
    sleep "$(printf '%d.%03d' $(($2 / 1000)) $(($2 % 1000)))"
    victim=$(find_rank $rank "$work/disturbed")
    killed=no
    if [ -n "$victim" ] && kill -9 "$victim" 2>/dev/null; then killed=yes; fi
    wait "$job" || {
        show_log
        fail "$1: rank $rank was killed after $2 ms, and the launcher did not go on"
        return 0
    }
    same_weights "$work/undisturbed" "$work/disturbed" "$1: rank $rank was killed after $2 ms"
}

succeeds "$carousel" train "${small[@]}" --out "$work/undisturbed"
for placement in replica zero pipeline grid; do
    count=$([ "$extent" = full ] && echo 10 || { [ $placement = zero ] && echo 1 || echo 0; })
    [ "$count" -gt 0 ] || continue
    echo "== killed $count times: $placement"
    from=$(date +%s%N)
    launch $placement "$work/whole" || fail "$placement without trouble"
    length=$((($(date +%s%N) - from) / 1000000))
    same_weights "$work/undisturbed" "$work/whole" "$placement"
    rm -rf "$work/whole"
    for ((n = 0, tries = 0; n < count && tries < 3 * count + 7; tries++)); do
        kill_one $placement $(((RANDOM * 32768 + RANDOM) % length))
        [ $killed = yes ] && n=$((n + 1))
    done
    [ "$n" = "$count" ] || fail "$placement: only $n of $count kills met a rank"
done

echo "== killed after a checkpoint"
# Slow steps: a fast machine makes 240 in half a second, and then there is nobody left to kill.
launch replica "$work/late" --step-seconds 0.02 &
job=$!
for _ in $(seq 1200); do
    [ -d "$work/late/checkpoints/step-00000060" ] && break
    sleep 0.05
done
kill -9 "$(find_rank 1 "$work/late")" || fail "there was no rank to kill"
wait "$job" || { show_log; fail "launch did not go on"; }
expect 'restart 1 of 5, from step'
same_weights "$work/undisturbed" "$work/late" "killed after a checkpoint"

# ---- told to end -------------------------------------------------------------------------------

# Each in a process group of its own, as a terminal would start it.
end_one() { # WHAT RANKS CHECKPOINT-EVERY HOW: a function that tells the process
    local job what=$1 ranks=$2 every=$3 how=$4
    echo "== the launcher is told to end: $what"
    rm -rf "$work/ended"
    setsid "$carousel" launch --mpirun "$mpirun" -n "$ranks" -- train "${small[@]}" --placement replica \
        --checkpoint-every "$every" --steps 1000000 --out "$work/ended" >"$work/log" 2>&1 &
    job=$!
    for _ in $(seq 1200); do
        # The first one may be gone again before it is seen: only the newest are kept.
        ls "$work"/ended/checkpoints/step-* >/dev/null 2>&1 && break
        sleep 0.05
    done
    "$how" "$job"
    for _ in $(seq 600); do
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    if kill -KILL -- "-$job" 2>/dev/null; then fail "$what: it goes on"; fi
    code=0
    wait "$job" || code=$?
    [ $code = 4 ] || { show_log; fail "$what: launch ended with $code"; }
    expect 'interrupted after'
    ls "$work"/ended/checkpoints/step-* >/dev/null || fail "$what: no checkpoint at the end"
    [ -s "$work/ended/weights.safetensors" ] || fail "$what: no weights at the end"
}
tell() { kill -TERM "$1"; }
type_ctrl_c() { kill -INT -- "-$1"; }
end_one "SIGTERM" 2 30 tell
end_one "Ctrl-C, with drains that are close to each other" 2 3 type_ctrl_c
end_one "SIGTERM, one rank" 1 30 tell

# Forwards so long that none ends in 10 s.
echo "== the launcher is told to end, and steps are long"
SECONDS=0
"$carousel" launch --mpirun "$mpirun" -n 2 --restarts 2 -- train "${small[@]}" --placement replica --checkpoint-every 1 \
    --steps 2 --out "$work/patient" >"$work/log" 2>&1 || fail "two steps"
"$carousel" launch --mpirun "$mpirun" -n 2 --restarts 2 -- train "${small[@]}" --placement replica --checkpoint-every 1000 \
    --steps 3000 --step-seconds 200 --out "$work/patient" --resume >"$work/log" 2>&1 &
job=$!
until grep -q 'resuming after step 2' "$work/log"; do sleep 0.1; done
sleep 2
SECONDS=0
kill -TERM "$job"
code=0
wait "$job" || code=$?
[ $code = 4 ] || { show_log; fail "launch ended with $code where steps are long"; }
[ "$SECONDS" -le 15 ] || fail "it took $SECONDS s to end"
expect 'its newest checkpoint is of step 2; continue from it with --resume'
if grep -q 'start 1 of 2' "$work/log"; then fail "a run that was told to end was started again"; fi

echo "== killed, without a restart"
"$carousel" launch --mpirun "$mpirun" -n 2 -- train "${long[@]}" --steps 1000000 --out "$work/lost" >"$work/log" 2>&1 &
job=$!
for _ in $(seq 1200); do
    [ -d "$work/lost/checkpoints/step-00000030" ] && break
    sleep 0.05
done
kill -9 "$(find_rank 1 "$work/lost")" || fail "there was no rank to kill"
code=0
wait "$job" || code=$?
[ $code = 3 ] || fail "launch ended with $code after a rank was killed"
tail -1 "$work/log" | grep -q '^carousel: \(rank 1 died (signal 9)\|a rank was lost\).*newest checkpoint .* is of step' ||
    { show_log; fail "the closing line does not say who was lost"; }

fails "$carousel" launch -n 2 --restarts 1 -- train "${long[@]}" --out "$work/ended" --resume --resume-step 30
expect 'so --resume-step cannot be used with it'

# ---- out of memory -----------------------------------------------------------------------------

# One rank may not have as much address space as its activations want. That is foreseen, and met with --force.
starve_one() {
    local hungry=(train --model resnet20 --workers 2 --batch 256 --rule cdp-v1 --placement zero --steps 3)
    fails start_unlike "$carousel" "${hungry[@]}" -- sh -c 'ulimit -v 650000; exec "$@"' sh "$carousel" "${hungry[@]}"
    expect 'carousel: rank 1 needs about .* of memory .*, but only [0-9]* MB are available as address space (see ulimit -v)'
    hungry+=(--force)
    SECONDS=0
    fails start_unlike "$carousel" "${hungry[@]}" -- sh -c 'ulimit -v 650000; exec "$@"' sh "$carousel" "${hungry[@]}"
    [ "$SECONDS" -le 60 ] || fail "it took $SECONDS s to end"
    expect 'carousel: rank 1: out of memory: .* bytes of activations requested'
    expect 'rank 1 is at F'
    expect 'rank 0 waits for .* from rank 1\|rank 0 was last heard from' # MPICH leaves the others no time
}
# One may not even have as much as its weights want, before there is anything that ranks hear of each other by.
starve_early() {
    local hungry=(train --model mlp --width 8192 --depth 3 --workers 2 --placement replica --steps 3 --force)
    SECONDS=0
    fails start_unlike "$carousel" "${hungry[@]}" -- sh -c 'ulimit -v 1200000; exec "$@"' sh "$carousel" "${hungry[@]}"
    [ "$SECONDS" -le 60 ] || fail "it took $SECONDS s to end"
    expect 'rank 1: out of memory'
}
echo "== a rank runs out of memory"
starve_one
starve_early

# ---- stopped -----------------------------------------------------------------------------------

stop_one() { # RANK CHECKPOINT-EVERY DELAY
    local job victim
    rm -rf "$work/stopped"
    start 2 "$carousel" train "${long[@]}" --steps 1000000 --checkpoint-every "$2" --out "$work/stopped" >"$work/log" 2>&1 &
    job=$!
    sleep "$3"
    victim=$(find_rank "$1" "$work/stopped")
    kill -STOP "$victim" || fail "there was no rank to stop"
    SECONDS=0
    if wait "$job"; then fail "a stopped rank was not noticed"; fi
    [ "$SECONDS" -le 60 ] || fail "it took $SECONDS s to notice"
    expect "rank $1 does not respond"
    expect "rank $1 was last heard from .* in step"
    expect "rank $((1 - $1)) waits for"
}

if [ "$extent" = full ]; then
    echo "== a rank is stopped"
    stop_one 1 0 4
    stop_one 0 0 5
    echo "== a rank is stopped between evaluations, checkpoints and steps"
    stop_one 1 1 4.2
    stop_one 0 1 5.3
fi

finish
