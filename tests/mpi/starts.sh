#!/usr/bin/env bash
# How runs over ranks begin: from another placement's checkpoint, from a file, on several machines; what is said to
# ranks that do not fit together; and that a trace has what each did.
#
#   starts.sh CAROUSEL [ci|full]
carousel=$1
# shellcheck source=tests/mpi/common.sh
. "$(dirname "$0")/common.sh"

train=(--model mlp --workers 2 --batch 4 --rule cdp-v2 --seed 5)

# ---- one run, several placements ---------------------------------------------------------------

echo "== moving between placements"
succeeds "$carousel" train "${train[@]}" --steps 12 --out "$work/whole"
succeeds start 2 "$carousel" train "${train[@]}" --placement replica --steps 4 --pace-links on --piece-bytes 50000 \
    --step-seconds 0.2 --out "$work/moved"
grep -q '"held_messages":[^0-9]*[1-9]' "$work/moved/summary.json" || fail "no message was held back to pace its link"
succeeds start 3 "$carousel" train "${train[@]}" --placement grid --steps 7 --out "$work/moved" --resume
succeeds start 2 "$carousel" train "${train[@]}" --placement zero --steps 9 --out "$work/moved" --resume
succeeds "$carousel" train "${train[@]}" --placement shared --threads 2 --steps 10 --pace-links auto --out "$work/moved" --resume
succeeds start 2 "$carousel" train "${train[@]}" --placement pipeline --steps 12 --out "$work/moved" --resume
same_weights "$work/whole" "$work/moved" "a run that moved between placements"
python3 - "$work/moved/summary.json" <<'END' || fail "memory in summary.json is not that of the ranks"
import json, sys
summary = json.load(open(sys.argv[1]))
memory, peaks = summary["memory"], [rank["activations_peak_bytes"] for rank in summary["ranks"]]
assert min(peaks) > 0, peaks
assert memory["of"] == "largest rank" and memory["activations_peak_bytes"] == max(peaks), memory
assert memory["activations_ranks_sum_bytes"] == sum(peaks), memory
assert memory["rss_peak_bytes"] == max(rank["rss_peak_bytes"] for rank in summary["ranks"]), memory
END

echo "== weights from a file"
for placement in replica zero pipeline grid; do
    ranks=$([ $placement = grid ] && echo 3 || echo 2)
    succeeds start "$ranks" "$carousel" train "${train[@]}" --seed 8 --placement $placement --steps 3 \
        --init "$work/whole/weights.safetensors" --out "$work/init-$placement"
done
succeeds "$carousel" train "${train[@]}" --seed 8 --steps 3 --init "$work/whole/weights.safetensors" --out "$work/init"
for placement in replica zero pipeline grid; do
    same_weights "$work/init" "$work/init-$placement" "--init under $placement"
done
fails start 2 "$carousel" train "${train[@]}" --placement zero --steps 3 --init "$work/none.safetensors"
expect 'none.safetensors'

echo "== data, read ahead, and evaluations"
for i in $(seq 400); do echo "line $i of a text that is made up, $((i * i)) words long and not very good"; done >"$work/text"
text=(--model gpt2-nano --seq-len 16 --data "tokens:$work/text" --workers 2 --batch 2 --rule cdp-v1 --steps 6 --eval-every 4
    --eval-batches 3)
succeeds "$carousel" train "${text[@]}" --out "$work/text-shared"
for placement in replica pipeline grid; do
    ranks=$([ $placement = grid ] && echo 3 || echo 2)
    succeeds start "$ranks" "$carousel" train "${text[@]}" --placement $placement --data-threads 2 --out "$work/text-$placement"
    same_weights "$work/text-shared" "$work/text-$placement" "tokens under $placement"
    [ "$(value_of "$work/text-shared/summary.json" eval_loss)" = "$(value_of "$work/text-$placement/summary.json" eval_loss)" ] ||
        fail "an evaluation under $placement finds another loss"
    cut='s/, "lr".*//' # step and loss; over ranks they are added in the same order
    diff <(sed "$cut" "$work/text-shared/metrics.jsonl") <(sed "$cut" "$work/text-$placement/metrics.jsonl") ||
        fail "the losses under $placement are not those of the shared engine"
done

# ---- workers on ranks and machines -------------------------------------------------------------

echo "== mappings"
four=(--model resnet20 --image-size 8 --workers 4 --batch 2 --rule cdp-v2 --steps 5)
succeeds "$carousel" train "${four[@]}" --out "$work/four"
succeeds start 2 "$carousel" train "${four[@]}" --placement replica --out "$work/chosen"
expect '2 ranks on 1 machine.*workers interleaved (needs less memory'
expect 'peak of activations .* MB on the largest rank ([01]), .* MB summed over 2 ranks'
[ "$(value_of "$work/chosen/config.json" mapping)" = interleaved ] || fail "config.json does not say which mapping"
succeeds start 2 "$carousel" train "${four[@]}" --placement replica --mapping contiguous --steps 2 --out "$work/given"
succeeds start 2 "$carousel" train "${four[@]}" --placement replica --resume --out "$work/given"
[ "$(value_of "$work/given/config.json" mapping)" = contiguous ] || fail "a resumed run has another mapping"
same_weights "$work/four" "$work/chosen" "interleaved"
same_weights "$work/four" "$work/given" "contiguous"

# Two machines that are this one twice: Open MPI's daemons are started by what it takes for ssh.
if "$mpirun" --version 2>&1 | grep -q 'Open MPI'; then
    cat >"$work/agent" <<'AGENT'
#!/bin/sh
mkdir -p "$MACHINES/$1"
TMPDIR="$MACHINES/$1"
export TMPDIR
shift
exec sh -c "$*"
AGENT
    chmod +x "$work/agent"
    export MACHINES="$work/machines"
    # Both machines' shared memory would have the same names, so messages go over TCP.
    two=(timeout 120 "$mpirun" --mca plm rsh --mca plm_rsh_agent "$work/agent" --mca btl tcp,self --mca btl_tcp_if_include lo
        --host east:2,west:2 -n 4)
    succeeds "${two[@]}" --map-by slot "$carousel" train "${four[@]}" --placement replica --out "$work/slots"
    expect '4 ranks on 2 machines.*workers contiguous (.* per step between machines'
    succeeds "${two[@]}" --map-by node "$carousel" train "${four[@]}" --placement replica --out "$work/nodes"
    expect '4 ranks on 2 machines.*workers contiguous (.* per step between machines'
    succeeds "${two[@]}" --map-by slot "$carousel" train "${four[@]}" --placement zero --mapping interleaved --out "$work/spread"
    expect '4 ranks on 2 machines.*workers interleaved$'
    for run in slots nodes spread; do
        same_weights "$work/four" "$work/$run" "two machines, $run"
    done
fi

echo "== nothing left to do"
cp -r "$work/moved" "$work/over"
rm "$work/over/summary.json"
succeeds start 2 "$carousel" train --resume --placement pipeline --out "$work/over"
same_weights "$work/whole" "$work/over" "a run that was over"

# ---- bad starts --------------------------------------------------------------------------------

echo "== bad starts"
zero=(train "${train[@]}" --placement zero --steps 2)
fails env -u OMPI_COMM_WORLD_SIZE PMI_SIZE=2 PMI_RANK=0 SLURM_NTASKS=2 "$carousel" "${zero[@]}"
expect 'srun --mpi=pmix\|PMI_SIZE says\|needs 2 ranks'
fails start 2 "$carousel" train "${train[@]}" --placement grid --steps 2
expect 'needs 3 ranks, but there are 2'
succeeds "$carousel" "${zero[@]}"
expect '2 ranks on 1 machine, threads of one process'
fails start_unlike "$carousel" "${zero[@]}" -- "$carousel" "${zero[@]}" --lr 0.5 --nesterov
expect 'rank 1 differs from rank 0 in its configuration: --lr 0.5, not 0.05; --nesterov true, not false. It must be the same on all ranks'
fails start_unlike "$carousel" "${zero[@]}" -- "$carousel" "${zero[@]}" --convolutions direct
expect 'rank 1 differs from rank 0 in its configuration: --convolutions "direct", not "auto"'
fails start_unlike "$carousel" "${zero[@]}" -- "$carousel" "${zero[@]}" --optimizer adamw --betas 3
expect 'carousel: rank 1: --betas 3: it must be two numbers'
fails start 2 "$carousel" "${zero[@]}" --optimizer adamw --betas 3
expect 'carousel: --betas 3: it must be two numbers'
[ "$(grep -c 'two numbers' "$work/log")" = 1 ] || fail "what all ranks have typed wrong is said more than once"
cp "$carousel" "$work/other"
printf 'x' >>"$work/other"
fails start_unlike "$carousel" "${zero[@]}" -- "$work/other" "${zero[@]}"
expect 'rank 1 differs from rank 0 in its program'
# As on a cluster of unlike processors: oneDNN is told that this rank has an old one.
fails start_unlike "$carousel" "${zero[@]}" --model resnet20 -- \
    env DNNL_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=SSE41 "$carousel" "${zero[@]}" --model resnet20
expect 'rank 1 differs from rank 0 in its set of kernels'
mkdir "$work/here" "$work/there"
head -300 "$work/text" >"$work/here/text"
sed 's/line 7 /line 8 /' "$work/here/text" >"$work/there/text"
read_text=(train --model gpt2-nano --seq-len 16 --data tokens:text --workers 2 --batch 1 --steps 2 --placement replica)
fails start_unlike env -C "$work/here" "$carousel" "${read_text[@]}" -- env -C "$work/there" "$carousel" "${read_text[@]}"
expect 'rank 1 differs from rank 0 in its data'
fails start_unlike "$carousel" "${zero[@]}" -- "$carousel" "${zero[@]}" --data cifar10:/nowhere
expect 'rank 1: .*/nowhere'

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

finish
