#!/usr/bin/env bash
# carousel train --plan: a dumped plan, one's own, a period, going on, and what does not go together. CAROUSEL names the
# program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
examples=$(cd "$(dirname "$0")/../../examples" && pwd)
example=$examples/two_shifts.plan
cd "$directory" || exit 1
command=(train --batch 4 --delay-correction off --data-threads 0)

sha() { python3 -c "import json, sys; print(json.load(open(sys.argv[1] + '/summary.json'))['weights_sha256'])" "$1"; }
same() { [ "$(sha "$1")" = "$(sha "$2")" ] || fail "$1 and $2 end with different weights"; }

# ---- what a rule makes --------------------------------------------------------------------------

"$CAROUSEL" plan --model mlp --workers 3 --dump --steps 6 >cycle.plan || fail "no plan"
expect 0 "done after 7 steps" --model mlp --workers 3 --steps 7 --out rule
expect 0 "done after 7 steps" --model mlp --plan cycle.plan --steps 7 --out file
same rule file
sed 's/F1.1@1/F1.1@0/' cycle.plan >wrong.plan
expect 1 "rule cdp-v2 has F1.1@1" --model mlp --plan wrong.plan
expect 1 "[ ] marks F1.1@0" --model mlp --plan wrong.plan

# ---- one's own ----------------------------------------------------------------------------------

# The cycle's table as a schedule of one's own: the same weights, with one thread or two, drained on the way or not.
sed '1s/rule=cdp-v2/rule=custom/; 1s/$/ period=12:18/' cycle.plan >own.plan
expect 0 "custom, 3 workers" --model mlp --plan own.plan --steps 7 --threads 1 --out own1
expect 0 "done after 7 steps" --model mlp --plan own.plan --steps 7 --threads 2 --eval-every 3 --out own2
same rule own1
same rule own2
# The plan stays with the run, so that it goes on when the file is gone.
cmp -s own.plan own1/plan.txt || fail "the run directory has another plan"
mv own.plan gone.plan
expect 0 "done after 10 steps" --out own1 --resume --steps 10
expect 0 "done after 10 steps" --model mlp --workers 3 --steps 10 --out rule10
same rule10 own1
# Over ranks, a pipeline with its messages.
"$CAROUSEL" plan --model mlp --workers 3 --placement pipeline --dump --steps 6 |
    sed '1s/rule=cdp-v2/rule=custom/; 1s/$/ period=12:18/' >line.plan
expect 0 "done after 7 steps" --model mlp --plan line.plan --steps 7 --out line
same rule line
# The same in every placement, and with two micro-batches for each worker.
for placement in replica zero grid; do
    "$CAROUSEL" plan --model mlp --workers 3 --placement $placement --dump --custom >$placement.plan || fail "no plan"
    expect 0 "done after 7 steps" --model mlp --plan $placement.plan --steps 7 --out own-$placement
    same rule own-$placement
done
"$CAROUSEL" plan --model mlp --workers 2 --accumulate 2 --placement replica --dump --custom >twice.plan
expect 0 "done after 5 steps" --model mlp --workers 2 --accumulate 2 --placement replica --steps 5 --out by-twice
expect 0 "done after 5 steps" --model mlp --plan twice.plan --steps 5 --out twice
same by-twice twice
# A rank of a pipeline may hold all micro-batches of a step: eight of its stage.
"$CAROUSEL" plan --model mlp --workers 2 --accumulate 4 --rule gpipe --placement pipeline --dump --custom >flush.plan
expect 0 "(plan: 0.4 MB)" --model mlp --plan flush.plan --steps 1
# Without a period it has an end, which is where a run ends that does not say how long it is.
sed '1s/ period=12:18//' gone.plan >short.plan
expect 2 "has 6 steps and no period" --model mlp --plan short.plan --steps 7
expect 0 "done after 6 steps" --model mlp --plan short.plan

# ---- a schedule that none of the rules makes ------------------------------------------------------

expect 0 "done after 9 steps" --model mlp --depth 8 --plan "$example" --steps 9 --threads 1 --out shifts1
expect 0 "done after 9 steps" --model mlp --depth 8 --plan "$example" --steps 9 --threads 3 --eval-every 4 --out shifts3
same shifts1 shifts3
for rule in dp cdp-v1 cdp-v2; do
    expect 0 "done after 9 steps" --model mlp --depth 8 --workers 4 --rule $rule --steps 9 --out "by-$rule"
    [ "$(sha shifts1)" != "$(sha "by-$rule")" ] || fail "two shifts are what $rule does"
done

# Over ranks: gradients are added in another order than any rule's, with the same weights for any number of threads.
expect 0 "done after 9 steps" --model mlp --depth 2 --plan "$examples/back_to_front.plan" --steps 9 --threads 1 --out back1
expect 0 "done after 9 steps" --model mlp --depth 2 --plan "$examples/back_to_front.plan" --steps 9 --threads 2 --out back2
same back1 back2

# ---- mistakes -----------------------------------------------------------------------------------

expect 2 "already sets --rule" --model mlp --plan gone.plan --rule dp
expect 2 "already sets --workers" --model mlp --plan gone.plan --workers 3
expect 2 "already sets --stages" --model mlp --plan gone.plan --stages=3
expect 1 "nothing.plan" --model mlp --plan nothing.plan
expect 1 "a plan must begin with 'carousel-plan 2'" --model mlp --plan own1/config.json
expect 1 "is for 3 stages, 3 bundles" --model gpt2-nano --seq-len 8 --plan gone.plan
sed 's/B0.0@0/B0.0@1/' gone.plan >early.plan
expect 1 "[0']" --model mlp --plan early.plan
sed '1s/plan 2/plan 1/; s/B0.0@0/B0.0@0-a/' gone.plan >older.plan
expect 1 "change 'carousel-plan 1' to 'carousel-plan 2', and remove" --model mlp --plan older.plan
sed '1s/placement=shared/placement=replica/' gone.plan >replica.plan
expect 1 "[ ] marks U2.2@1" --model mlp --plan replica.plan

finish
