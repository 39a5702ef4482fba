#!/usr/bin/env bash
# Slurm as its users meet it: a cluster of one node in a temporary folder, srun, and the sbatch files of examples/slurm with
# the signal before the time limit and the requeue after it. Wants root and Debian's slurm-wlm and munge, and skips without.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/../cli/common.sh"

examples=$(cd "$(dirname "$0")/../../examples/slurm" && pwd)
for program in munged slurmctld slurmd srun sbatch; do
    if ! command -v $program >/dev/null || [ "$(id -u)" != 0 ]; then
        echo "SKIPPED: Slurm was not tried: it wants root and $program (Debian: slurm-wlm, munge)" >&2
        exit 77
    fi
done

# ---- a cluster of one node ----

chmod 755 "$directory"
mkdir "$directory/munge" "$directory/state" "$directory/spool"
dd if=/dev/urandom of="$directory/munge/key" bs=128 count=1 2>/dev/null
chmod 600 "$directory/munge/key"
chown -R munge: "$directory/munge"
node=$(hostname -s)
port=$((20000 + $$ % 10000))
cat >"$directory/slurm.conf" <<END
ClusterName=trial
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$directory/munge/socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
StateSaveLocation=$directory/state
SlurmdSpoolDir=$directory/spool
SlurmctldPidFile=$directory/slurmctld.pid
SlurmdPidFile=$directory/slurmd.pid
SlurmctldLogFile=$directory/slurmctld.log
SlurmdLogFile=$directory/slurmd.log
ReturnToService=2
JobRequeue=1
KillWait=5
SchedulerParameters=sched_interval=2,bf_interval=2
MpiDefault=none
NodeName=$node NodeAddr=127.0.0.1 CPUs=2
PartitionName=trial Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
END
export SLURM_CONF=$directory/slurm.conf
daemons=()

stop_cluster() {
    scancel --user=root 2>/dev/null
    local daemon
    for ((daemon = ${#daemons[@]} - 1; daemon >= 0; daemon--)); do
        kill "${daemons[daemon]}" 2>/dev/null
    done
    wait
    # The processes of a step outlive slurmd; they have this folder in their environment or command line.
    local left
    for left in $(pgrep -f "slurmstepd: \[|$directory" | grep -vx $$); do
        grep -qs "$directory" "/proc/$left/environ" "/proc/$left/cmdline" && kill -KILL "$left" 2>/dev/null
    done
    rm -rf "$directory"
}
trap stop_cluster EXIT

setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --key-file="$directory/munge/key" --socket="$directory/munge/socket" \
    --pid-file="$directory/munge/pid" --seed-file="$directory/munge/seed" --log-file="$directory/munge/log" \
    >/dev/null 2>&1 &
daemons+=($!)
for _ in $(seq 50); do [ -S "$directory/munge/socket" ] && break; sleep 0.1; done
slurmctld -D -f "$SLURM_CONF" 2>/dev/null &
daemons+=($!)
slurmd -D -f "$SLURM_CONF" -N "$node" 2>/dev/null &
daemons+=($!)
for _ in $(seq 150); do sinfo -h -o %t 2>/dev/null | grep -q idle && break; sleep 0.2; done
if ! sinfo -h -o %t 2>/dev/null | grep -q idle; then
    fail "the cluster did not start: $(tail -n 3 "$directory"/*.log)"
    finish
fi

# ---- srun: two tasks are two ranks, with the weights of one process ----

digest() { sed -n 's/.*"weights_sha256":[^"]*"\([0-9a-f]*\)".*/\1/p' "$1/summary.json"; }
small=(--model mlp --width 64 --batch 4 --lr 0.01 --seed 3 --workers 2 --threads 1)
cd "$directory" || exit 1
# On a busy machine Slurm itself sometimes gives up on starting a step, before anything of ours has run. That is no finding
# about us: it is tried again.
unlaunched() { grep -q 'task . launch failed' "$1" && echo "Slurm did not launch a step: $(tail -n 3 slurmd.log)" >&2; }
for _ in 1 2 3; do
    timeout 60 srun --mpi=pmix -n2 --overcommit "$CAROUSEL" train "${small[@]}" --steps 20 --placement replica --out ranks >srun.log 2>&1
    code=$?
    unlaunched srun.log || break
done
[ $code = 0 ] || fail "srun: $(tail -n 3 srun.log)"
"$CAROUSEL" train "${small[@]}" --steps 20 --out one >/dev/null 2>&1
[ "$(digest ranks)" = "$(digest one)" ] || fail "srun gave other weights than one process"
timeout 60 srun -n2 --overcommit "$CAROUSEL" train "${small[@]}" --steps 5 --placement replica >alone.log 2>&1 &&
    fail "two tasks without --mpi=pmix were not refused"
grep -q -- "--mpi=pmix" alone.log || fail "srun without --mpi=pmix: nobody said what is missing: $(tail -n 2 alone.log)"

# ---- sbatch: signalled, queued again, to the bit as if it had never been stopped ----

# By default the signal is sent by hand, as Slurm would send it to the job's step. CAR_SLURM_FULL=1 waits for the time limit
# instead, a minute or two: Slurm looks every 30 seconds, and here signals from 5 seconds after the start on.
steps=300 limit=(--time=10)
[ -n "${CAR_SLURM_FULL:-}" ] && steps=1600 limit=(--time=2 --signal=USR1@85)

wait_for() { # SECONDS COMMAND...
    local tries=$(($1 * 5))
    shift
    while ! "$@" 2>/dev/null && [ $((tries -= 1)) -gt 0 ]; do sleep 0.2; done
}
begun() { [ "$(wc -l <"$RUN/metrics.jsonl")" -gt 30 ]; }
gone() { [ -z "$(squeue -h -j "$job")" ]; }
begun_or_gone() { begun || gone; }
ended() { grep -q '^done after' "$directory/carousel.log"; }
ended_or_gone() { ended || gone; }
export CAROUSEL RUN=$directory/requeued
for _ in 1 2 3; do
    rm -rf "$RUN" carousel.log
    job=$(sbatch --parsable --ntasks=2 --overcommit "${limit[@]}" --output="$directory/carousel.log" \
        "$examples/ranks.sbatch" "${small[@]}" --steps $steps --step-seconds 0.03) || fail "sbatch: $job"
    wait_for 60 begun_or_gone
    unlaunched carousel.log || break
done
[ -n "${CAR_SLURM_FULL:-}" ] || scancel --signal=USR1 "$job"
wait_for 240 ended_or_gone
ended || fail "the requeued job did not come to its end: $(tail -n 5 "$directory/carousel.log") $(squeue -h) $(tail -n 5 slurmd.log)"
grep -q '^carousel: SIGUSR1: ending' carousel.log || fail "the signal did not reach the run: $(cat carousel.log)"
grep -q '^resuming after step' carousel.log || fail "the job did not go on from its checkpoint: $(cat carousel.log)"
"$CAROUSEL" train "${small[@]}" --steps $steps --out whole >/dev/null 2>&1
[ "$(digest "$RUN")" = "$(digest whole)" ] || fail "the requeued run has other weights than one without a stop"

# ---- sbatch: one task ----

RUN=$directory/single sbatch --quiet --wait --cpus-per-task=1 --output="$directory/single.log" "$examples/one-process.sbatch" \
    --model mlp --width 64 --batch 4 --steps 20 || fail "one-process.sbatch: $(tail -n 3 single.log)"
grep -q '^done after 20 steps' single.log || fail "one-process.sbatch did not come to its end: $(cat single.log)"

finish
