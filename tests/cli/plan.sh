#!/usr/bin/env bash
# carousel plan as its user runs it: the page, the table, JSON, the text form, the figure, a profile, and mistakes.
# CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
command=(plan)
here=$(cd "$(dirname "$0")" && pwd)
cd "$directory" || exit 1

# json EXPRESSION ARGUMENTS...: a truth about the answer d, in Python.
json() {
    local expression=$1
    shift
    "$CAROUSEL" plan "$@" --json >answer.json || fail "carousel plan $* --json: exit $?"
    python3 -c "import json, sys; d = json.load(open('answer.json')); sys.exit(not ($expression))" ||
        fail "carousel plan $*: not so: $expression"
}

# ---- the page -----------------------------------------------------------------------------------

expect 0 "usage: carousel plan" --help
expect 0 "--freshness-slack M" --help
expect 0 "gpt2-nano" --help
expect 0 "  cdp-v2       the cycle; fresh weights where timing allows" --help
expect 0 "  zero         weights go from user to user" --help
expect 0 "worker 1  1' 0' 0  1  2  2'" --model mlp --workers 3
expect 0 "Proven on the table" --model mlp --workers 3
expect 0 "rank 2  2.2  2.2' 2.0  2.0' 2.1  2.1'" --model mlp --workers 3 --placement pipeline
expect 0 "rank 0, worker 2" --model mlp --workers 4 --ranks 2 --placement replica --mapping interleaved
expect 0 "interleaved (needs less memory" --model resnet20 --workers 4 --ranks 2 --placement replica
expect 0 "transformer.wte.weight belongs to stage 0 and is used again in stage 3" --model gpt2-nano --workers 4
expect 0 "stages between are not shown" --model resnet50 --workers 4 --stages 64
expect 0 "optimizer" --model mlp --workers 2 --optimizer adamw

# Which algorithm computes a convolution.
expect 0 "--convolutions HOW" --help
expect 0 "Convolutions (direct): 0 of 20 by Winograd" --model resnet18 --workers 4 --convolutions direct
expect 0 "Convolutions (auto, tight memory): 0 of 19 by Winograd" --model resnet20 --workers 4 --memory tight
expect 0 "Convolutions (auto): " --model resnet18 --workers 4
"$CAROUSEL" plan --model mlp --workers 3 | grep -q "Convolutions" && fail "mlp was said to have convolutions"

# Recomputation: what it spares and costs; a limit finds the least that fits.
tiny=(--model gpt2-nano --workers 4 --batch 1)
expect 0 "Recomputation: a micro-batch holds" "${tiny[@]}" --recompute auto
expect 0 "dp without recomputation" "${tiny[@]}" --recompute 0.4
expect 0 "Recomputation: none" --model mlp --workers 8 --recompute auto
json 'd["held_bytes"] <= 0.4 * d["recomputation"]["held_bytes_without"] and d["recomputation"]["flops"] > 0 and "again_bytes" in d["stages"][0]' \
    "${tiny[@]}" --recompute 0.4
json '"recomputation" not in d' "${tiny[@]}" --memory-limit 4GB
whole='d["predictions"]["activations_device_peak_bytes"] + sum(d["predictions"][k + "_device_bytes"] for k in ("weights", "gradients", "optimizer"))'
json "$whole <= 70e6 and d['recomputation']['tensors'] > 0" "${tiny[@]}" --memory-limit 70MB
expect 2 "--recompute 1.5: it must be off, auto, or the share" "${tiny[@]}" --recompute 1.5
expect 2 "the minimum is 0." "${tiny[@]}" --recompute 0.01
expect 2 "no activation can be recomputed inside its stage" --model mlp --workers 1 --partition cuts:1,2,3,4,5,6,7,8,9,10 --recompute 0.5
expect 1 "--memory-limit 1.00 MB: the run needs at least " "${tiny[@]}" --memory-limit 1MB
expect 2 "--memory-limit much: it must be a number of bytes" "${tiny[@]}" --memory-limit much
expect 2 "leave out --recompute" "${tiny[@]}" --memory-limit 1GB --recompute auto
"$CAROUSEL" plan "${tiny[@]}" --recompute 0.4 --svg recompute.svg >/dev/null || fail "no figure with recomputation"
grep -q "limit without recomputation" recompute.svg || fail "the figure has no limit without recomputation"
rm -f recompute.svg

# What is off is said.
expect 0 "This model cannot halve" --model resnet50 --workers 4 --batch 1
expect 0 "are empty" --model mlp --workers 4 --stages 32
expect 0 "--freshness-slack 1" --model mlp --workers 16 --placement replica
"$CAROUSEL" plan --model mlp --workers 3 --placement replica | grep -q -e --freshness-slack && fail "a slack is advised that does not help"
expect 0 "--partition params" --model resnet18 --workers 4 --placement zero
expect 0 "--rule accumulate" --model resnet18 --workers 4 --threads 2 --batch 1
expect 0 "PipeDream-2BW" --model mlp --workers 3 --placement pipeline --rule cdp-v1
expect 2 "--steps requires --dump" --model mlp --steps 3
expect 2 "gpt3-175b" --model nope
expect 0 "--batch 8 --accumulate 2 trains on the same samples" --model mlp --workers 4 --batch 16
for none in "--rule stagger" "--batch 15" "--accumulate 2"; do # nothing is late, or it cannot be halved, or it is
    # shellcheck disable=SC2086
    "$CAROUSEL" plan --model mlp --workers 4 --batch 16 $none | grep -q "Late gradients" && fail "$none: half as many late gradients"
done
expect 0 "nothing to cycle" --model mlp --workers 1
output=$("$CAROUSEL" plan --model vit-b16 --workers 4 --batch 1)
grep -q "cannot halve" <<<"$output" && fail "vit-b16 was said not to halve"

# ---- a described cluster ------------------------------------------------------------------------

cat >cluster.json <<'END'
{"name": "two by two", "devices": 4, "devices_per_node": 2, "flops": 1e12, "memory": 1e9,
 "inside": {"bandwidth": 1e11, "latency": 1e-6}, "between": {"bandwidth": 1e10, "latency": 1e-5}}
END
expect 0 "--cluster FILE" --help
expect 0 "On two by two: devices of 1 TFLOP/s and 1.00 GB, 2 per node" --model mlp --workers 4 --placement replica --cluster cluster.json
expect 0 "exposed communication" --model gpt2-nano --workers 4 --placement zero --cluster cluster.json
expect 0 "does NOT fit: a device has less memory" --model gpt2 --workers 4 --placement replica --cluster cluster.json
expect 0 "needs 10 devices, there are 4" --model mlp --workers 4 --placement grid --cluster cluster.json
expect 0 "busiest" --model mlp --workers 4 --compare --cluster cluster.json
# Too little memory, or too few devices: each has a mark of its own.
sed 's/"memory": 1e9/"memory": 2e9/' cluster.json >roomy.json
table=$("$CAROUSEL" plan --model gpt2 --batch 1 --workers 4 --delay-correction off --compare --cluster roomy.json)
grep -qE '^replica +cdp-v2 +4 +[0-9.]+ GB\* ' <<<"$table" || fail "too little memory has not its mark: $table"
grep -qE '^grid +cdp-v2 +10\+ ' <<<"$table" || fail "too few devices have not their mark: $table"
grep -qE '^replica .*\+|^grid +cdp-v2 .*\*' <<<"$table" && fail "a mark stands where it does not belong: $table"
json "[(p['timing']['fits'], p['timing']['fits_memory'], p['timing']['fits_devices']) for p in d['plans'] \
    if p['rule'] == 'cdp-v2' and p['placement'] in ('replica', 'grid')] == [(False, False, True), (False, True, False)]" \
    --model gpt2 --batch 1 --workers 4 --delay-correction off --compare --cluster roomy.json
# A slack that is advised makes a step shorter on that cluster, as much as is said.
echo '{"flops": 1e13, "between": {"bandwidth": 4e9, "latency": 2e-5}}' >slow.json
echo '{"flops": 1e12, "between": {"bandwidth": 1e9, "latency": 2e-5}}' >slower.json
step() { "$CAROUSEL" plan --batch 8 --workers 16 "$@" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["timing"]["step_s"])'; }
helped="--model resnet18 --placement replica --cluster slower.json" # several arguments
# shellcheck disable=SC2086
page=$("$CAROUSEL" plan --batch 8 --workers 16 $helped | tr -s '\n ' ' ')
slack=$(sed -n 's/.*--freshness-slack \([0-9]*\) .*/\1/p' <<<"$page")
# shellcheck disable=SC2086
awk -v a="$(step $helped --freshness-slack "${slack:-0}")" -v b="$(step $helped)" 'BEGIN { exit !(a < 0.99 * b) }' ||
    fail "the slack that is advised, '$slack', does not help"
for slack in 1 2 4 8; do # under zero none does here
    awk -v a="$(step --model gpt2 --placement zero --zero-ahead 2 --cluster slow.json --freshness-slack $slack)" \
        -v b="$(step --model gpt2 --placement zero --zero-ahead 2 --cluster slow.json)" 'BEGIN { exit !(a > 0.99 * b) }' || fail "slack $slack helps zero"
done
"$CAROUSEL" plan --model gpt2 --batch 8 --workers 16 --placement zero --cluster slow.json | grep -q -e --freshness-slack &&
    fail "a slack is advised on a cluster where it does not help"
json "d['timing']['step_s'] >= d['timing']['step_without_network_s'] >= 0.999 * d['timing']['compute_s'] > 0 and \
    abs(d['timing']['bytes'] / d['predictions']['bytes_sent'] - 1) < 0.1 and d['timing']['fits'] and \
    d['cluster']['inside'] == {'bandwidth': 1e11, 'latency': 1e-6}" \
    --model gpt2-nano --workers 4 --placement replica --batch 1 --cluster cluster.json
json "all(('timing' in p) == (p['placement'] != 'shared') for p in d['plans']) and d['cluster']['devices'] == 4" \
    --model mlp --workers 4 --compare --cluster cluster.json
expect 2 "--placement shared has none" --model mlp --workers 4 --cluster cluster.json
expect 2 "zero-copies and zero-ahead can only be used with placement zero and rule cdp-v1, cdp-v2 or stagger" --model mlp --workers 4 --placement replica --zero-copies 2
expect 2 "a single copy of the weights can only be sent on after its use" --model mlp --workers 4 --placement zero --zero-copies 1 --zero-ahead 2
expect 2 "it must be 1 to 8, the number of slots in a step" --model mlp --workers 4 --placement zero --zero-ahead 9
expect 2 "--zero-copies" --model mlp --workers 4 --placement zero --zero-copies 3
expect 2 "must be auto or a whole number" --model mlp --workers 4 --placement zero --zero-ahead soon
# Weights that go round, in both forms; how early two copies go is chosen by time, and said.
json "not d['zero']['ahead_chosen'] and d['zero_ahead'] == 2 and [f['copies'] for f in d['zero']['forms']] == [1, 2] and \
    d['zero']['forms'][1]['weights_left_bytes'] <= 4 * d['zero']['parameters_bytes'] and \
    d['zero']['forms'][1]['weights_lasting_bytes'] <= 5 * d['zero']['parameters_bytes'] and \
    d['zero']['forms'][1]['bytes_sent_device'] <= d['zero']['bytes_sent_bound'] and d['zero']['tied_bytes'] > 0" \
    --model gpt2-nano --workers 4 --placement zero --zero-ahead auto
json "d['zero']['ahead_chosen'] and [t['step_s'] for t in d['zero']['tried'] if t['ahead'] == d['zero_ahead']] == [d['timing']['step_s']] and \
    0.98 * d['timing']['step_s'] < min(t['step_s'] for t in d['zero']['tried']) and d['zero_ahead'] > 2 and d['zero']['tried'][-1]['ahead'] == 16 and \
    d['zero']['forms'][0]['step_s'] > d['timing']['step_s'] and not d['zero']['copies_leave_in_time']" \
    --model gpt2 --batch 8 --workers 8 --placement zero --cluster slow.json
expect 0 "was chosen; step times with L = 1:" --model gpt2-nano --workers 4 --placement zero --rule stagger --cluster cluster.json
json "'zero' not in d" --model mlp --workers 4 --placement zero --rule dp
expect 2 "--cluster and --dump" --model mlp --workers 4 --placement zero --dump --cluster cluster.json
expect 1 "none.json" --model mlp --workers 4 --placement zero --cluster none.json
echo '{"flops": 0}' >bad.json
expect 1 'bad.json: "flops" must be a number' --model mlp --workers 4 --placement zero --cluster bad.json


# ---- a recommendation ---------------------------------------------------------------------------

# Searches are long under sanitizers, where unit.recommend makes them.
check_recommendations() {
    expect 0 "--recommend" --help
    four="--model mlp --cluster cluster.json --recommend --global-batch 8" # several arguments
    # shellcheck disable=SC2086
    {
        expect 0 "The fastest plan that fits, for mlp in steps of 8 samples" $four
        expect 0 "why not" $four
        # Its step is what plan says of it, and nobody else's that fits is shorter; what is typed stays, and --exact is.
        json "d['recommended']['reason'] == 'best' and d['recommended']['workers'] * d['recommended']['accumulate'] * d['recommended']['batch'] == 8 and \
            all(p['step_s'] > 0.98 * d['recommended']['step_s'] for p in d['others'] if p['reason'] != 'memory') and \
            d['searched']['skipped'] == 0 and all(p['why'] for p in d['others'])" $four
        json "all(p['gradient_delay'] == 0 for p in d['others'] + [d['recommended']])" $four --exact
        json "all((p['rule'], p['batch']) == ('cdp-v1', 2) for p in d['others'] + [d['recommended']])" $four --rule cdp-v1 --batch 2
        read -r seconds plan < <("$CAROUSEL" plan $four --rule cdp-v1 --json | python3 -c "import json, sys
p = json.load(sys.stdin)['recommended']
print(p['step_s'], *(f'--{k} {p[k]}' for k in ('rule', 'placement', 'workers', 'accumulate', 'sum_order', 'stages', 'batch', 'freshness_slack')))")
        json "abs(d['timing']['step_s'] / $seconds - 1) < 1e-9" --model mlp --cluster cluster.json ${plan//_/-}
        # It can be trained as it is written.
        expect 0 "mpirun -n" $four --placement zero --workers 4 --accumulate 2 --sum-order worker --rule cdp-v2 --out take.json
        grep -q '"accumulate":.*2' take.json && grep -q '"sum-order":.*"worker"' take.json || fail "no micro-batches: $(cat take.json)"
        # Stagger takes part, and is explained; micro-batches of a fixed size make up the rest of the step.
        json "any(p['rule'] == 'stagger' and p['why'] for p in d['others'] + [d['recommended']]) and \
            all(p['workers'] * p['accumulate'] == 8 for p in d['others'] + [d['recommended']])" $four --batch 1
        expect 2 "make 8 samples, with this --accumulate, not --global-batch 16" $four --global-batch 16 --workers 4 --batch 1 --accumulate 2
        expect 2 "--workers 4 with --batch 4 make 16 samples" $four --workers 4 --batch 4
        expect 2 "cannot be used together" $four --compare
        # Weights that go round, as they are typed. bf16 takes part where it is known how fast it is.
        json "all((p['placement'], p['zero_copies']) == ('zero', 1) for p in d['others'] + [d['recommended']] if p['rule'] != 'dp' and p['workers'] > 1) and \
            d['searched']['bf16_not_timed']" $four --placement zero --zero-copies 1
        sed 's/"flops": 1e12/"flops": 1e12, "bf16_flops": 3e12/' cluster.json >halves.json
        json "d['recommended']['precision'] == d['config']['precision'] == 'bf16' and not d['searched']['bf16_not_timed']" \
            $four --cluster halves.json
        json "d['recommended']['precision'] == 'fp32'" $four --cluster halves.json --precision fp32
        rm halves.json
        expect 2 "cdp-v1 has a delay" $four --rule cdp-v1 --exact
        expect 2 "gpt3-175b can only be planned" $four --model gpt3-175b --out take.json
    }
    "$CAROUSEL" train --config take.json --steps 1 >trained.txt 2>&1 || fail "what was recommended cannot be trained: $(cat trained.txt)"
    expect 0 "On this machine: 3 threads" --model mlp --recommend --threads 3
    json "d['recommended']['placement'] == 'shared' and d['recommended']['gradient_delay'] == 0 and d['config']['threads'] == 3" \
        --model mlp --recommend --threads 3
    sed 's/"memory": 1e9/"memory": 1e6/' cluster.json >tiny.json
    expect 1 "no plan fits: of" --model mlp --recommend --cluster tiny.json
    expect 1 "more than the available 1.00 MB" --model mlp --recommend --cluster tiny.json
    expect 2 'add "devices"' --model mlp --recommend --cluster slow.json
    expect 2 "--exact requires --recommend" --model mlp --exact
    rm tiny.json take.json trained.txt
}
[ -n "${CAR_SANITIZED:-}" ] || check_recommendations

# What SimGrid's SMPI finds for these tables (bench/simgrid, SimGrid 3.32), where messages are what steps wait for.
cat >cluster.json <<'END'
{"name": "slow", "flops": 1e13, "memory": 2.4e10, "between": {"bandwidth": 2e9, "latency": 2e-5}}
END
sed 's/2e9/5e8/' cluster.json >slower.json
while read -r rule placement cluster step more; do
    # shellcheck disable=SC2086 # options
    json "abs(d['timing']['step_s'] / $step - 1) < 0.04" \
        --model gpt2 --batch 16 --workers 8 --rule "$rule" --placement "$placement" --cluster "$cluster.json" $more
done <<'END'
cdp-v1 replica slower 2.50914
cdp-v2 replica slower 2.60522
cdp-v1 zero cluster 1.60495 --zero-ahead 2
cdp-v2 zero cluster 1.69341 --zero-ahead 2
cdp-v1 zero cluster 4.65653 --zero-copies 1
cdp-v2 zero cluster 5.92994 --zero-copies 1
END
# An owner sends the weights of a chain's first backward long before their slot, if nothing holds it up: so does SMPI.
sed 's/2e9/3.125e9/' cluster.json >ethernet.json
json "abs(d['timing']['step_s'] / 5.22953 - 1) < 0.01" \
    --model gpt2 --batch 16 --workers 64 --rule cdp-v1 --placement zero --cluster ethernet.json --zero-ahead 2
rm ethernet.json
# Sums that travel in pieces do not hold each other up: with one for each sum the ring takes as many hops of the embedding as
# there are workers.
json "d['timing']['step_s'] < 1.15 * d['timing']['compute_s'] and d['piece_bytes'] < 2.5e7" \
    --model gpt2 --batch 16 --workers 32 --rule cdp-v1 --placement replica --cluster cluster.json
json "d['timing']['step_s'] > 1.5 * d['timing']['compute_s']" \
    --model gpt2 --batch 16 --workers 32 --rule cdp-v1 --placement replica --cluster cluster.json --piece-bytes 1e9
rm bad.json roomy.json

# Models that are larger than anything that is trained here, and any other transformer.
expect 0 "models that can only be planned" --help
expect 0 "529600.82 million parameters" --model mt-nlg-530b --workers 8 --placement zero --batch 1
expect 0 "GB" --model gpt2 --depth 24 --width 1024 --heads 16 --workers 8 --batch 1
json "354e6 < sum(p['bytes'] for p in d['parameters']) / 4 < 356e6" --model gpt2-medium --workers 4 --batch 1
json "354e6 < sum(p['bytes'] for p in d['parameters']) / 4 < 356e6" --model gpt2 --depth 24 --width 1024 --heads 16 --batch 1
expect 2 "precision 'fp16': it must be fp32 or bf16" --model gpt2 --precision fp16
expect 0 "In bf16 a weight takes 2 bytes in each version and 4 where it is updated" --model gpt2-nano --precision bf16
expect 2 "is not a multiple of the number of heads, 7" --model gpt2 --heads 7
expect 2 "heads cannot be set" --model mlp --heads 2

# ---- JSON ---------------------------------------------------------------------------------------

json "d['model'] == 'vit-b16' and d['rule'] == 'cdp-v2' and d['workers'] == 4 and len(d['stages']) == 4 and d['validated']" \
    --model vit-b16 --workers 4 --batch 2
json "d['parameters'][0].keys() == {'name', 'stage', 'bytes'} and sum(p['bytes'] for p in d['parameters']) == \
    sum(s['weight_bytes'] for s in d['stages'])" --model gpt2-nano --workers 4
json "{'peak_ratio_to_dp', 'limit', 'activations_peak_bytes', 'bytes_sent', 'messages'} <= d['predictions'].keys()" \
    --model resnet20 --workers 4 --placement replica
json "0.5 < d['predictions']['peak_ratio_to_dp'] < 0.6 and d['predictions']['messages'] == 0" --model vit-b16 --workers 4
json "d['predictions']['peak_ratio_to_dp'] == 1 and d['predictions']['gradient_delay'] == 0" \
    --model vit-b16 --workers 4 --rule dp
json "[p['stage'] for p in d['parameters']] == sorted(p['stage'] for p in d['parameters'])" --model resnet20 --workers 5
json "len(d['stages']) == 1024 and not d['validated']" --model gpt2 --workers 1024 --stages 1024
json "[(s['first'], s['end']) for s in d['stages']] == [(0, 2), (2, 5), (5, 11)]" --model mlp --workers 3 --partition cuts:2,5
json "d['stages'][0]['weight_bytes'] > 0 and d['partition'] == 'params'" --model resnet18 --workers 4 --partition params
json "d['partition'] == 'memory'" --model resnet18 --workers 4 --partition memory
json "len(d['convolutions']) == 19 and d['convolutions'][0] == {'operation': 'conv1', 'algorithm': 'direct'}" \
    --model resnet20 --workers 4
json "d['convolutions_mode'] == 'direct' and all(c['algorithm'] == 'direct' for c in d['convolutions'])" \
    --model resnet20 --workers 4 --convolutions direct
json "sum(c['algorithm'] == 'winograd' for c in d['convolutions']) in (0, 16)" --model resnet20 --workers 4 --batch 32
json "d['freshness_slack'] == 2" --model mlp --workers 3 --freshness-slack 2

# ---- the table ----------------------------------------------------------------------------------

table=$("$CAROUSEL" plan --model vit-tiny --workers 4 --batch 1 --compare) || fail "--compare failed"
[ "$(grep -cE '^(shared|replica|zero|pipeline|grid) ' <<<"$table")" = 24 ] || fail "--compare has not 24 rows: $table"
for row in "shared    accumulate" "pipeline  gpipe" "pipeline  1f1b" "pipeline  2bw" "grid      cdp-v2"; do
    grep -q "^$row" <<<"$table" || fail "--compare has no row $row"
done
grep -q "not the best choice" <<<"$table" || fail "--compare praises without end"
# Wherever the tables show the cycle slower or hungrier than dp, that is said.
judgement=$here/plan_judgement.py
python3 "$judgement" <<<"$table" || fail "--compare does not say all that it shows"
for arguments in "--model gpt2 --batch 8 --workers 16 --cluster slow.json" "--model mlp --workers 4 --threads 2" \
    "--model resnet18 --batch 2 --workers 8 --cluster cluster.json" "--model gpt2-nano --workers 2 --optimizer adamw"; do
    # shellcheck disable=SC2086 # several arguments
    "$CAROUSEL" plan $arguments --compare | python3 "$judgement" || fail "--compare $arguments does not say all that it shows"
done
rm cluster.json slow.json slower.json
expect 0 "in one process with 2 threads, accumulate holds" --model mlp --workers 4 --threads 2 --compare
# What an option refuses is named, with the reason.
expect 0 "Left out: zero stagger, zero cdp-v1, zero cdp-v2: zero-ahead 9: it must be 1 to 8" --model mlp --workers 4 --compare --zero-ahead 9
json "len(d['plans']) == 21 and len(d['left_out']) == 3 and d['left_out'][0]['why']" --model mlp --workers 4 --compare --zero-ahead 9
json "len(d['plans']) == 24 and all('activations_peak_bytes' in p['predictions'] for p in d['plans'])" \
    --model vit-tiny --workers 4 --batch 1 --compare
json "[p['devices'] for p in d['plans'] if p['placement'] == 'grid'] == [16, 10, 10, 10]" \
    --model vit-tiny --workers 4 --batch 1 --compare

# ---- the text form and the figure ---------------------------------------------------------------

expect 0 "carousel-plan 2 rule=cdp-v2 placement=zero workers=3" --model mlp --workers 3 --placement zero --dump
"$CAROUSEL" plan --model mlp --workers 3 --placement replica --dump --steps 2 | grep -qx "5: Rp2.0<0 B2.1@0 Sp2.1>2" ||
    fail "--dump lacks the second hop of stage 2's sum"

# Edges: which tasks wait for which, in remarks behind the table.
"$CAROUSEL" plan --model mlp --workers 3 --placement replica --dump --edges --steps 2 >edges.txt || fail "--edges failed"
diff <(grep -v '^#' edges.txt) <("$CAROUSEL" plan --model mlp --workers 3 --placement replica --dump --steps 2) >/dev/null ||
    fail "--edges changes the table"
grep -qx "# ahead a 2, g 2, p 2, s 4, w 2, b 2, C 2, P 2, S 4" edges.txt || fail "--edges does not say how early receives are posted"
python3 - edges.txt <<'END' || fail "--edges does not say that a task waits for what it needs"
import sys
lines = open(sys.argv[1]).read().splitlines()
device = lines[lines.index("device 1") + 1 : lines.index("device 2")]
tasks = [task for line in device for task in line.split(": ")[1].split()]
edges = {}
for line in lines[lines.index("# rank 1") + 1 : lines.index("# rank 2")]:
    number, before = line[2:].split(": ")
    edges[tasks[int(number)]] = [tasks[int(b)] for b in before.split()]
assert edges["B2.1@0"] == ["F2.1@0"], edges["B2.1@0"]
assert "Rp2.0<0" in edges["Sp2.1>2"], edges
assert "Rs1.2/0<2" in edges["U1@1"] and "U1@1" in edges["F1.1@1"], edges
END
rm edges.txt
expect 2 "--edges requires --dump" --model mlp --edges
expect 0 "The figure is in out.svg" --model resnet18 --workers 4 --batch 1 --svg out.svg
python3 -c "import xml.dom.minidom as x; d = x.parse('out.svg'); assert len(d.getElementsByTagName('rect')) > 128" ||
    fail "out.svg is not an SVG with 128 cells"
grep -q "limit of any schedule" out.svg || fail "out.svg does not show the limit"
grep -q "Cyclic data parallelism, cdp-v2" out.svg || fail "out.svg does not name the rule"
[ "$(ls)" = "$(printf 'answer.json\nout.svg')" ] || fail "left behind: $(ls)"
expect 0 "The figure is in out.svg" --model mlp --workers 3 --accumulate 2 --svg out.svg
grep -q "2 micro-batches of each in a step" out.svg || fail "out.svg does not name the micro-batches of a step"
expect 2 "gpipe is not cyclic" --model mlp --workers 2 --placement pipeline --rule gpipe --svg x.svg
expect 2 "would not be readable" --model mlp --workers 64 --svg x.svg
expect 1 "missing/x.svg: cannot create" --model mlp --workers 2 --svg missing/x.svg
[ -e x.svg ] && fail "a refused figure was written"

# ---- a profile ----------------------------------------------------------------------------------

expect 1 "there is no profile mlp.profile.json; create it with --profile" --model mlp --workers 2 --partition time
expect 0 "cut by measured time" --model mlp --workers 2 --batch 4 --profile
[ -s mlp.profile.json ] || fail "--profile saved nothing"
json "d['costs'] == 'seconds' and d['partition'] == 'time'" --model mlp --workers 2 --batch 4 --partition time
expect 2 "profile" --model mlp --workers 2 --batch 8 --partition time
expect 2 "profile" --model resnet20 --workers 2 --partition time --profile-file mlp.profile.json
json "d['costs'] == 'seconds' and d['partition'] == 'params'" --model mlp --workers 2 --batch 4 --partition params \
    --profile-file mlp.profile.json

# ---- mistakes -----------------------------------------------------------------------------------

expect 2 "--model NAME is missing"
expect 2 "there is no option --worker" --model mlp --worker 3
expect 2 "--workers 0" --model mlp --workers 0
expect 2 "--freshness-slack -1" --model mlp --freshness-slack -1
expect 2 "--compare and --dump cannot be used together" --model mlp --compare --dump
expect 2 "--dump and --json cannot be used together" --model mlp --dump --json
expect 2 "--compare and --svg cannot be used together" --model mlp --compare --svg x.svg
expect 2 "the optimizers are sgd, adamw and muon" --model mlp --optimizer adam
expect 2 "leave out --ranks" --model mlp --compare --ranks 2
expect 2 "--threads is for --placement shared" --model mlp --placement zero --threads 2
expect 2 "there is no rule 'cdp'; use one of dp, cdp-v1, cdp-v2" --model mlp --rule cdp
expect 2 "there is no placement 'zeros'" --model mlp --placement zeros
expect 2 "there is no mapping 'random'" --model mlp --placement replica --ranks 2 --mapping random
expect 2 "it must be auto, direct or winograd" --model mlp --convolutions fast
expect 2 "it must be normal or tight" --model mlp --memory small
expect 2 "it must be flops, time, params, memory or cuts" --model mlp --partition fair
expect 2 "cuts:12,30,47" --model mlp --workers 3 --partition cuts:2,x
expect 2 "cuts:12,30,47" --model mlp --workers 3 --partition cuts:
expect 2 "needs 5 cuts" --model mlp --workers 3 --stages 6 --partition cuts:2,5
expect 2 "cut" --model mlp --workers 3 --partition cuts:5,2
expect 2 "cut" --model mlp --workers 3 --partition cuts:2,99
expect 2 "5 stages for 3 workers" --model mlp --workers 3 --stages 5
expect 2 "3 ranks for 4 workers" --model mlp --workers 4 --ranks 3 --placement replica
expect 2 "use --placement pipeline" --model mlp --rule 1f1b
expect 2 "only rule cdp-v2" --model mlp --rule cdp-v1 --freshness-slack 1
expect 2 "resnet20" --model resnet21
[ "$("$CAROUSEL" plan --model mlp --workers 3 --stages 5 2>/dev/null)" = "" ] || fail "an error left something on standard output"

finish
