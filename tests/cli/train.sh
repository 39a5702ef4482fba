#!/usr/bin/env bash
# The program as its user runs it: help, training, and everything that can be typed wrongly.
# CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

expect 0 "usage: carousel COMMAND" --help
expect 0 "carousel 0." --version
expect 2 "usage: carousel COMMAND"
expect 2 "there is no command 'trian'" trian
expect 0 "usage: carousel train" train --help
expect 0 "resnet20" train --help
expect 0 "--weight-decay" train --help

expect 2 "--model NAME is missing" train
expect 2 "there is no option --modle" train --modle mlp
expect 2 "'mlp' is not an option" train mlp
expect 2 "--steps requires a value" train --model mlp --steps
expect 2 "--steps 0" train --model mlp --steps 0
expect 2 "--steps 1x" train --model mlp --steps 1x
expect 2 "--steps 99999999999999999999" train --model mlp --steps 99999999999999999999
expect 2 "--batch -3" train --model mlp --batch -3
expect 2 "--lr nan" train --model mlp --lr nan
expect 2 "--classes 0" train --model mlp --classes 0
expect 2 "--seed -1" train --model mlp --seed -1
expect 2 "--threads 0" train --model mlp --threads 0
expect 2 "--workers 0" train --model mlp --workers 0
expect 2 "--nesterov yes: takes no value" train --model mlp --nesterov=yes
expect 2 "there is no data 'imagenet'" train --model mlp --data imagenet
expect 2 "imagefolder:DIR" train --model mlp --data imagefolder
expect 1 "/nonexistent" train --model mlp --data imagefolder:/nonexistent
expect 2 "--order random" train --model mlp --order random
expect 2 "is endless" train --model mlp --epochs 2
expect 1 "/nonexistent/w.safetensors" train --model mlp --init /nonexistent/w.safetensors
expect 2 "--resume requires --out" train --model mlp --resume
expect 2 "--resume requires --out" train --resume
expect 2 "--checkpoint-every requires --out" train --model mlp --checkpoint-every 1
expect 2 "--keep requires --out" train --model mlp --keep 3
expect 2 "--reset-head requires --init" train --model mlp --reset-head
expect 2 "--momentum requires --optimizer sgd or muon" train --model mlp --optimizer adamw --momentum 0.5
expect 2 "--betas requires --optimizer adamw or muon" train --model mlp --betas 0.9,0.9
expect 2 "--adamw-lr requires --optimizer muon" train --model mlp --adamw-lr 0.1
expect 2 "--mapping requires a --placement with ranks" train --model mlp --mapping contiguous
expect 2 "--piece-bytes requires a --placement with ranks" train --model mlp --piece-bytes 100
expect 2 "it is a directory" train --model mlp --steps 1 --trace "$directory"
expect 1 "could not read /nonexistent.json" train --config /nonexistent.json
expect 2 "--weights FILE is missing" eval --model mlp
expect 2 "there is no rule" train --model mlp --rule cdp
expect 2 "--lr-schedule step:0:1" train --model mlp --lr-schedule step:0:1
expect 2 "--betas 0.9" train --model mlp --optimizer adamw --betas 0.9
expect 2 "it must be auto, direct or winograd" train --model mlp --convolutions fast
expect 2 "--nesterov needs" train --model mlp --nesterov --momentum 0
expect 2 "must be a multiple" train --model mlp --workers 4 --stages 6
expect 2 "only rule cdp-v2" train --model mlp --rule dp --freshness-slack 1
expect 1 "cannot create the run directory" train --model mlp --steps 1 --out /nonexistent/run
expect 2 "resnet20" train --model resnet21
expect 2 "there is no model 'resnet21'" eval --model resnet21 --weights none --data synthetic
expect 2 "can only be planned" train --model gpt3-175b --workers 2 --steps 1
expect 2 "vit-tiny" train --model vit-tiny --image-size 33
expect 2 "gpt2-nano" train --model gpt2-nano --seq-len 4000
expect 1 "not finite" train --model mlp --steps 50 --lr 1e6

# Training goes down and says so; weights depend on the seed, not on the number of threads.
run() {
    rm -rf "$directory/run"
    "$CAROUSEL" train --model mlp --width 128 --steps 40 --batch 8 --lr 0.05 --out "$directory/run" "$@" >"$directory/log" 2>&1 ||
        fail "train $*: $(tail -n 1 "$directory/log")"
    sed -n 's/.*"weights_sha256":[^"]*"\([0-9a-f]*\)".*/\1/p' "$directory/run/summary.json"
}
for rule in dp accumulate cdp-v1 cdp-v2; do
    first=$(run --rule $rule --threads 1)
    [ ${#first} = 64 ] || fail "$rule: no digest in summary.json"
    losses=$(sed -n 's/^done after 40 steps: loss \([0-9.]*\) -> \([0-9.]*\) .*/\1 \2/p' "$directory/log")
    awk -v l="$losses" 'BEGIN { split(l, v, " "); exit !(v[2] < 0.9 * v[1]) }' || fail "$rule: the loss did not go down: '$losses'"
    [ "$first" = "$(run --rule $rule --threads 3)" ] || fail "$rule: 3 threads gave other weights"
    [ "$first" = "$(run --rule $rule --threads 2 --eval-every 7 --eval-batches 2)" ] || fail "$rule: evaluating changed the weights"
    [ "$first" != "$(run --rule $rule --threads 1 --seed 2)" ] || fail "$rule: another seed gave the same weights"
done
[ "$(run --rule dp)" = "$(run --rule accumulate)" ] || fail "accumulate is not dp to the bit"
[ "$(wc -l <"$directory/run/metrics.jsonl")" = 40 ] || fail "metrics.jsonl does not have a line for each step"
for field in loss_first samples_per_s step_ms_median activations_peak_bytes activations_mean_bytes rss_peak_bytes machine comm; do
    grep -q "\"$field\"" "$directory/run/summary.json" || fail "summary.json has no $field"
done
run --steps 10 --lr 1e6 --skip-nonfinite --delay-correction off >/dev/null
grep -q '"loss": null.*"skipped": true' "$directory/run/metrics.jsonl" || fail "a step that is not finite is not marked as skipped"
grep -qi 'nan\|inf' "$directory/run/metrics.jsonl" && fail "metrics.jsonl has what JSON does not know"
expect 1 "10 steps in a row were skipped" train --model mlp --steps 60 --batch 8 --lr 1e6 --skip-nonfinite --delay-correction off
run --steps 3 --lr 0 >/dev/null
[ "$(grep -c '"lr": 0,' "$directory/run/metrics.jsonl")" = 3 ] || fail "--lr 0 is not 0: $(head -n 1 "$directory/run/metrics.jsonl")"
run --eval-every 20 --eval-batches 4 >/dev/null
grep -q '"accuracy"' "$directory/run/summary.json" || fail "an evaluated run has no accuracy"
[ "$(grep -c '"accuracy"' "$directory/run/evaluations.jsonl")" = 2 ] || fail "evaluations.jsonl does not have two lines"
for evaluate in 20 0; do
    expect 0 "done after 40 steps" train --model mlp --width 128 --steps 40 --eval-every $evaluate --eval-batches 4 --keep 0 --out "$directory/fresh"
done
[ ! -e "$directory/fresh/evaluations.jsonl" ] || fail "a run keeps the evaluations of another one"

# The configuration of a run makes the same run; what is typed comes first; what is wrong in it is named.
first=$(run --rule cdp-v1 --seed 18446744073709551615 --nesterov --freshness-slack 0 --warmup 3 --lr-schedule cosine)
cp "$directory/run/config.json" "$directory/again.json"
[ "$first" = "$(run --config "$directory/again.json")" ] || fail "config.json does not make the same run"
[ "$first" != "$(run --config "$directory/again.json" --rule dp)" ] || fail "an option does not come before --config"
config() {
    printf '%s' "$1" >"$directory/config.json"
    expect "$2" "$3" train --config "$directory/config.json"
}
config '{"modle": "mlp"}' 2 '"modle" is not an option'
config '{"model": "resnet21"}' 2 "there is no model 'resnet21'"
config '{"model": 3}' 2 '"model" must be a string'
config '{"model": "mlp", "nesterov": 1}' 2 '"nesterov" must be true or false'
config '{"model": "mlp", "steps": 1.5}' 2 '--steps 1.5'
config '{"model": "mlp", "steps": [1]}' 2 '"steps" must be a number'
config '{"model": "mlp", "resume": true}' 2 '"resume" is not an option'
config '{"model": "mlp", "steps": 2, "steps": 3}' 2 '"steps" is given twice'
config '{"model": "mlp", "batch": null, "batch": null}' 2 '"batch" is given twice'
config '["mlp"]' 2 'is not a JSON object'
config '{"model": "mlp"' 2 'is not a JSON object'
config '{"model": "mlp", "steps": 2, "batch": null}' 0 'done after 2 steps'

mkfifo "$directory/pipe"
for path in "$directory/pipe" "$directory" /dev/null; do
    timeout 20 "$CAROUSEL" train --config "$path" >"$directory/refused" 2>&1 </dev/null
    [ $? = 1 ] || fail "--config $path did not end with 1"
    grep -qF "could not read $path: it is not a regular file" "$directory/refused" || fail "--config $path gave: $(cat "$directory/refused")"
done

# What is not a number is not right.
expect 0 "nan, top-1 0.00 %, top-5 0.00 %" train --model mlp --rule dp --workers 2 --steps 1 --lr 1e6 --weight-decay 1e6 --eval-every 1 --eval-batches 2

# Weights of a run: eval finds what the run found, another size of the head is refused, or replaced if asked to.
run --eval-every 40 --eval-batches 4 >/dev/null
"$CAROUSEL" eval --model mlp --width 128 --weights "$directory/run" --data synthetic --batch 8 --batches 4 >"$directory/eval" 2>&1 || fail "eval failed"
grep -qF "$(sed -n 's/^evaluation after step 40: //p' "$directory/log")" "$directory/eval" || fail "eval says otherwise than the run: $(cat "$directory/eval")"
expect 0 '"top1"' eval --model mlp --width 128 --weights "$directory/run/weights.safetensors" --data synthetic --json
expect 1 "[10, 128] in the file and [7, 128] in the model; --reset-head keeps" train --model mlp --width 128 --classes 7 --init "$directory/run/weights.safetensors" --steps 1
expect 0 "initialized anew" train --model mlp --width 128 --classes 7 --init "$directory/run/weights.safetensors" --reset-head --steps 1
expect 2 "precision 'fp16': it must be fp32 or bf16" train --model mlp --save-precision fp16 --steps 1
expect 0 "" train --model mlp --save-precision bf16 --steps 1 --batch 2 --keep 0 --out "$directory/halves"
grep -q '"dtype":"BF16"' "$directory/halves/weights.safetensors" || fail "--save-precision bf16 wrote no BF16"
expect 0 '"top1"' eval "$directory/halves" --json
expect 0 "parameters loaded" train --model mlp --width 128 --init "$directory/run/weights.safetensors" --steps 1

# A file of torch.save is answered with lines of Python that make a safetensors file of it, whatever its name has in it.
printf 'PK\003\004%22s\016\000\000\000model/data.pkl%64s' '' '' >"$directory/it's \"a\".pth"
expect 1 'safetensors.torch.save_file(' train --model mlp --init "$directory/it's \"a\".pth" --steps 1
expect 1 'was written by PyTorch' eval --model mlp --weights "$directory/it's \"a\".pth" --data synthetic
if command -v python3 >/dev/null; then
    "$CAROUSEL" train --model mlp --init "$directory/it's \"a\".pth" --steps 1 2>&1 | tail -n 2 |
        python3 -c 'import sys; compile(sys.stdin.read(), "lines", "exec")' || fail "the lines that convert a .pth are not Python"
fi

# An interrupt ends the run with a summary.
"$CAROUSEL" train --model mlp --steps 1000000 >"$directory/interrupt" &
runner=$!
until grep -q '^step' "$directory/interrupt" || ! kill -0 $runner 2>/dev/null; do sleep 0.05; done
kill -INT $runner
wait $runner
[ $? = 4 ] || fail "an interrupted run did not exit with 4"
grep -q '^interrupted after [0-9]* steps: loss' "$directory/interrupt" || fail "an interrupted run printed no summary"

finish
