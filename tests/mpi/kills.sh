#!/usr/bin/env bash
# Runs that are killed again and again at random times, by SIGKILL: in one process, as replicas and under zero. Each is
# resumed until it has come to its end, with the weights of a run that nobody disturbed and every line of its metrics.
#
#   kills.sh CAROUSEL [KILLS]     KILLS in all (30); KILLS_SEED repeats a series
carousel=$1 wanted=${2:-30}
# shellcheck source=tests/mpi/common.sh
. "$(dirname "$0")/common.sh"
RANDOM=${KILLS_SEED:-$(date +%s)}

steps=300
train=(--model resnet20 --image-size 8 --workers 3 --batch 2 --rule cdp-v2 --steps $steps --checkpoint-every 10)

run() { # PLACEMENT DIR OPTIONS...
    local placement=$1 out=$2
    shift 2
    if [ "$placement" = shared ]; then
        exec "$carousel" train "${train[@]}" --out "$out" "$@"
    else
        exec "$mpirun" -n 3 "$carousel" train "${train[@]}" --placement "$placement" --out "$out" "$@"
    fi
}

victim_of() { # PLACEMENT DIR JOB
    if [ "$1" = shared ]; then
        echo "$3"
    else
        find_rank $((RANDOM % 3)) "$2"
    fi
}

# Kills one run up to KILLS times; prints how often it was hit.
disturb() { # PLACEMENT KILLS DIR LENGTH
    local placement=$1 left=$2 out=$3 length=$4 hits=0 options=() job victim delay
    while :; do
        [ -n "$(ls "$out/checkpoints" 2>/dev/null)" ] && options=(--resume)
        run "$placement" "$out" "${options[@]}" >"$work/log" 2>&1 &
        job=$!
        if [ "$hits" -lt "$left" ]; then
            delay=$((RANDOM % length))
            sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
            victim=$(victim_of "$placement" "$out" "$job")
            [ -n "$victim" ] && kill -9 "$victim" 2>/dev/null
        fi
        if wait "$job" 2>/dev/null; then break; fi
        hits=$((hits + 1))
        [ "$hits" -le $((left + 5)) ] || { show_log >&2; echo "it does not come to an end" >&2; break; }
    done
    echo "$hits"
}

succeeds "$carousel" train "${train[@]}" --out "$work/undisturbed"
kills=0 round=0
while [ "$kills" -lt "$wanted" ] && [ "$failed" = 0 ]; do
    for placement in shared replica zero; do
        [ "$kills" -lt "$wanted" ] || break
        rm -rf "$work/killed"
        most=$((wanted - kills < 6 ? wanted - kills : 6))
        hits=$(disturb $placement $most "$work/killed" 2500)
        kills=$((kills + hits))
        same_weights "$work/undisturbed" "$work/killed" "$placement, killed $hits times"
        [ "$(sed -n 's/^{"step": \([0-9]*\),.*}$/\1/p' "$work/killed/metrics.jsonl" | cmp - <(seq 0 $((steps - 1))) && echo same)" = same ] ||
            fail "$placement, killed $hits times: metrics.jsonl is not complete"
        echo "$placement: killed $hits times, $kills in all"
    done
    round=$((round + 1))
    [ "$round" -lt $((wanted + 3)) ] || fail "only $kills of $wanted kills hit a run"
done

finish
