#!/usr/bin/env bash
# --trace and timeline.json as the user gets them: a trace of three steps has exactly the tasks of the plan, in the rows
# of their workers. CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
here=$(dirname "$0")

# trace RULE THREADS: three steps, all of them recorded, against the plan's table.
trace() {
    local model=(--model mlp --workers 4 --stages 8 --rule "$1" --batch 2)
    "$CAROUSEL" train "${model[@]}" --steps 3 --threads "$2" --trace "$directory/trace.json" >"$directory/log" 2>&1 ||
        fail "train --rule $1 --trace: $(cat "$directory/log")"
    "$CAROUSEL" plan "${model[@]}" --threads "$2" --steps 3 --dump >"$directory/dump" || fail "plan --dump"
    python3 "$here/trace_tasks.py" "$directory/trace.json" "$directory/dump" || fail "the trace of $1 is not the plan"
}
trace dp 1
trace dp 3
trace cdp-v1 2
trace cdp-v2 1
trace cdp-v2 3

# Bad input is refused before anything runs; steps that the run does not have are named.
small=(train --model mlp --batch 2 --steps 6)
expect 2 "--trace-steps requires --trace" "${small[@]}" --trace-steps 1:2
for steps in 2 a:b 3:3 4:2 -1:2 1:2x; do
    expect 2 "--trace-steps $steps: it must be A:B" "${small[@]}" --trace "$directory/t.json" --trace-steps=$steps
done
expect 1 "cannot write to /nonexistent" "${small[@]}" --trace /nonexistent/t.json
[ -e "$directory/t.json" ] && fail "a trace was written in spite of an error"
expect 0 "the run has none of these steps" "${small[@]}" --trace "$directory/t.json" --trace-steps 6:9
expect 0 "--trace-steps A:B" train --help

# Some steps of a run, with a run directory; in it a timeline of at most four steps, the same with and without a trace.
run() {
    rm -rf "$directory/run"
    expect 0 "done after 12 steps" train --model resnet20 --image-size 8 --batch 2 --steps 12 --out "$directory/run" "$@"
}
# has FILE CODE: what python finds true of the object in FILE, called f.
has() {
    python3 -c "import json, sys; f = json.load(open(sys.argv[1])); sys.exit(not ($2))" "$1" || fail "$1: not $2"
}
timeline=$directory/run/timeline.json
run
has "$timeline" 'f["first_step"] == 4 and f["end_step"] == 8 and f["lost"] == 0'
has "$timeline" 'len([t for t in f["tasks"] if 4 <= t[6] < 8 and t[3] == 0]) >= 4 * 4 * 4'
has "$timeline" '{t[2] for t in f["tasks"]} <= set(range(len(f["lanes"])))'
has "$timeline" 'len(f["memory"]["workers"]) == 4 and all(0 < len(w) <= 2000 for w in f["memory"]["workers"])'
has "$timeline" 'max(b for _, b in f["memory"]["workers"][0]) * 4 == f["memory"]["dp_peak_bytes"]'
has "$timeline" 'f["memory"]["measured_peak_bytes"] < f["memory"]["dp_peak_bytes"]'
has "$timeline" 'sum(p["operations"] for p in f["partition"]) > 20 and f["messages"] == []'
[ -e "$directory/run/trace.json" ] && fail "a trace that nobody asked for"
run --trace "$directory/run/trace.json" --trace-steps 2:10
has "$timeline" 'f["first_step"] == 2 and f["end_step"] == 6'
has "$directory/run/trace.json" '{e["args"]["step"] for e in f["traceEvents"] if e.get("cat") == "backward"} >= set(range(2, 10))'
has "$directory/run/trace.json" '{e["name"] for e in f["traceEvents"] if e["ph"] == "C"} >= {"activations", "weights", "gradients", "workspace"}'

# A run that goes on records steps of its own.
expect 0 "done after 15 steps" train --out "$directory/run" --resume --steps 15
has "$timeline" 'f["first_step"] == 12 and f["end_step"] == 15'

finish
