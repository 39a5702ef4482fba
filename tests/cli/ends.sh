#!/usr/bin/env bash
# How runs end: the code that tells how, and the reason, whatever else went wrong beside it.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

steps_of() { # DIR: reported so far
    cat "$1/metrics.jsonl" 2>/dev/null | wc -l
}

# begin DIR OPTIONS...: a long run in the background, when it has made some steps; sets `runner`.
begin() {
    local out=$1
    shift
    "$CAROUSEL" train --workers 2 --threads 2 --steps 1000000 --out "$out" "$@" >"$directory/log" 2>&1 &
    runner=$!
    while [ "$(steps_of "$out")" -lt 3 ] && kill -0 $runner 2>/dev/null; do sleep 0.02; done
}

# ends_with CODE WHAT: the run that was begun.
ends_with() {
    wait $runner
    local code=$?
    [ $code = "$1" ] || fail "$2: exit $code where $1 was expected: $(tail -n 3 "$directory/log")"
}

# Every signal that asks for an end, an evaluation under way included.
for signal in TERM INT HUP USR1; do
    begin "$directory/$signal" --model mlp --eval-every 3 --eval-batches 100000
    kill -$signal $runner
    ends_with 4 "SIG$signal"
    grep -q "^carousel: SIG$signal: ending" "$directory/log" || fail "SIG$signal: nothing was said"
    grep -q '"interrupted":.*true' "$directory/$signal/summary.json" || fail "SIG$signal: the summary does not say it"
    steps=$(sed -n 's/.*"steps":[^0-9]*\([0-9]*\).*/\1/p' "$directory/$signal/summary.json")
    [ "$(steps_of "$directory/$signal")" = "$steps" ] || fail "SIG$signal: other metrics than $steps steps"
    [ -d "$directory/$signal/checkpoints/step-$(printf %08d "$steps")" ] || fail "SIG$signal: no checkpoint of step $steps"
done

# An evaluation that was cut short is made when the run goes on, once, in one process and over ranks.
for placement in shared replica; do
    out=$directory/owed-$placement
    options="--model mlp --workers 2 --placement $placement --steps 4 --eval-every 2 --out $out"
    expect 0 "done after 4 steps" train $options --checkpoint-every 2 --keep 2
    cp "$out/evaluations.jsonl" "$directory/evaluations"
    rm -r "$out/checkpoints/step-00000004" "$out/summary.json"
    sed -i '/"step": 2,/d' "$out/evaluations.jsonl"
    expect 0 "evaluation after step 2" train $options --resume
    cmp -s <(sed 's/, "seconds.*//' "$out/evaluations.jsonl") <(sed 's/, "seconds.*//' "$directory/evaluations") ||
        fail "$placement: other evaluations than without a break: $(cat "$out/evaluations.jsonl")"
    rm -r "$out/checkpoints/step-00000004" "$out/summary.json"
    "$CAROUSEL" train $options --resume 2>&1 | grep -q "evaluation after step 2" && fail "$placement: an evaluation was made twice"
done

# The second one ends it at once: here while a step of some seconds is finished.
begin "$directory/twice" --model mlp
kill -STOP $runner # so that both are there when it goes on
kill -TERM $runner
kill -INT $runner
kill -CONT $runner
wait $runner
code=$?
[ $code = 143 ] || [ $code = 130 ] || [ $code = 4 ] || fail "a second signal: exit $code"

# Two that come together, as from `timeout`, are one request.
begin "$directory/together" --model mlp
kill -TERM $runner
sleep 0.05
kill -TERM $runner
ends_with 4 "two signals at once"

# A reader of the log that leaves does not end the run.
"$CAROUSEL" train --model mlp --width 32 --batch 2 --workers 2 --lr 0.001 --steps 200 --out "$directory/unread" 2>/dev/null | head -n 1 >/dev/null
[ -s "$directory/unread/weights.safetensors" ] || fail "a run whose log nobody reads has no weights"

# A run that begins anew is not mistaken for the one before it.
small="--model mlp --width 16 --depth 2 --image-size 8 --workers 2 --batch 4 --keep 0 --out $directory/anew"
expect 0 "done after 4 steps" train $small --steps 4 --eval-every 2 --ema 0.9 --keep-best loss
[ -s "$directory/anew/best.safetensors" ] && [ -s "$directory/anew/average.safetensors" ] || fail "no best or average weights"
expect 0 "done after 2 steps" train $small --steps 2 --seed 7
for file in best.safetensors average.safetensors evaluations.jsonl confusion.json; do
    [ ! -e "$directory/anew/$file" ] || fail "a new run left $file of the one before"
done
expect 1 "there is no run to resume in $directory/nowhere" train --out "$directory/nowhere" --resume
expect 2 "must end in .html" report "$directory/anew" -o "$directory/anew/summary.json"
grep -q '"steps"' "$directory/anew/summary.json" || fail "a report was written over a summary"

# The best weights and the average: of snapshots, and with --patience of ranks that wait, they are those of one process.
for placement in shared replica zero "zero --patience 9"; do
    out="$directory/best-${placement// /}"
    expect 0 "done after 6 steps" train --model mlp --width 16 --depth 2 --image-size 8 --workers 2 --batch 4 --steps 6 \
        --eval-every 2 --keep-best loss --ema 0.9 --checkpoint-every 3 --placement $placement --out "$out"
    for file in weights best average; do
        cmp -s "$out/$file.safetensors" "$directory/best-shared/$file.safetensors" ||
            fail "$placement: other $file.safetensors than in one process"
    done
done

# Devices are not written over, links are followed.
if mknod "$directory/null" c 1 3 2>/dev/null; then
    expect 1 "not a regular file" plan --model mlp --svg "$directory/null"
    [ -c "$directory/null" ] || fail "a device was replaced"
fi
ln -s "$directory/real.svg" "$directory/link.svg"
touch "$directory/real.svg"
expect 0 "" plan --model mlp --svg "$directory/link.svg"
[ -L "$directory/link.svg" ] && [ -s "$directory/real.svg" ] || fail "a link was replaced by a file"

# Addresses that are few are shared out: no limit makes a run crash.
for megabytes in 320 398 436 650; do
    (ulimit -v $((megabytes * 1024)) && exec "$CAROUSEL" train --model resnet20 --image-size 8 --workers 3 --batch 4 --steps 2 \
        --threads 2 >"$directory/log" 2>&1)
    code=$?
    [ $code = 0 ] || [ $code = 1 ] || grep -q Sanitizer "$directory/log" || fail "ulimit -v of $megabytes MB: exit $code"
done

# What was typed wrong.
for option in rule optimizer placement order delay-correction lr-schedule convolutions memory data; do
    expect 2 "bogus" train --model mlp --steps 1 --$option bogus
done
expect 2 "bogus" train --model mlp --steps 1 --optimizer adamw --betas bogus
expect 2 "bogus" train --model mlp --steps 1 --placement replica --mapping bogus
expect 2 "must be a multiple" train --model mlp --steps 1 --workers 2 --stages 3
expect 2 "must be a multiple" plan --model mlp --workers 2 --stages 3
expect 2 "nan" train --model mlp --steps 1 --placement replica --workers 2 --delay-correction nan

# nohup: a closed terminal is none of its business.
(
    trap '' HUP
    exec "$CAROUSEL" train --model mlp --workers 2 --steps 300 --out "$directory/nohup" >"$directory/log" 2>&1
) &
runner=$!
while [ "$(steps_of "$directory/nohup")" -lt 3 ] && kill -0 $runner 2>/dev/null; do sleep 0.02; done
kill -HUP $runner
ends_with 0 "SIGHUP under nohup"

# Before there is anything to save, a signal kills.
mkfifo "$directory/fifo"
"$CAROUSEL" train --model mlp --data "tokens:$directory/fifo" >"$directory/log" 2>&1 &
runner=$!
sleep 0.3
kill -TERM $runner 2>/dev/null
wait $runner
[ $? != 0 ] || fail "a run that had not begun ended well"

# No room for checkpoints, and a loss that is not finite: each is said, and the second is why the run failed.
for try in 1 2 3 4 5 6; do
    rm -rf "$directory/full"
    (
        ulimit -f 4
        exec "$CAROUSEL" train --model mlp --lr 30 --checkpoint-every 1 --steps 60 --threads 2 --out "$directory/full" \
            >"$directory/log" 2>&1
    )
    code=$?
    [ $code = 1 ] || fail "no room and no finite loss: exit $code"
    grep -q "^carousel: .*is not finite: try a smaller learning rate" "$directory/log" ||
        fail "the reason was lost, try $try: $(tail -n 3 "$directory/log")"
    if grep "no checkpoint of step" "$directory/log" | grep -q "is not finite"; then
        fail "the reason was taken for a checkpoint's, try $try"
    fi
done

# A launcher that started several processes which do not find each other.
for variable in PMI_SIZE SLURM_NTASKS SLURM_STEP_NUM_TASKS OMPI_COMM_WORLD_SIZE; do
    (
        export "$variable=2"
        expect 1 "$variable says that 2" train --model mlp --steps 1
        exit "$failures"
    ) || fail "$variable=2 was not noticed"
done
(
    export SLURM_NTASKS=1 PMI_SIZE=1
    expect 0 "done after 1 steps" train --model mlp --steps 1
    exit "$failures"
) || fail "a job of one process was refused"

finish
