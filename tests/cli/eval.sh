#!/usr/bin/env bash
# carousel eval of a run's directory: its model, data and settings, what is typed over them, and what a run calls its
# results. CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
cd "$directory" || exit 1

for i in $(seq 300); do echo "line $i of a text that is made up, $((i * i)) words long and not very good"; done >text

# result_of LOG: what the last evaluation of a run printed.
result_of() { sed -n 's/^evaluation after step [0-9]*: //p' "$1" | tail -n 1; }

# ---- a run evaluates as it did itself, with settings that are not the defaults

"$CAROUSEL" train --model gpt2-nano --data tokens:text --seq-len 16 --width 24 --depth 2 --workers 2 --batch 3 --steps 4 \
    --eval-batches 5 --out tokens >tokens.log 2>&1 || fail "train: $(cat tokens.log)"
"$CAROUSEL" train --model resnet20 --image-size 8 --classes 7 --seed 9 --workers 2 --batch 5 --steps 3 --eval-every 3 \
    --convolutions direct --eval-batches 3 --out images >images.log 2>&1 || fail "train: $(cat images.log)"
for run in tokens images; do
    [ -n "$(result_of $run.log)" ] || fail "$run: there was no evaluation"
    expect 0 "$(result_of $run.log)" eval $run
    expect 0 "$(result_of $run.log)" eval --threads 1 $run --data-threads 0
done
cp -r tokens moved
expect 0 "$(result_of tokens.log)" eval moved/
expect 0 "$(result_of images.log)" eval images --weights images/checkpoints/step-00000003

# ---- what is typed comes first; everything may be typed

expect 0 "over 96 tokens" eval tokens --batches 2
expect 0 "of 20 samples" eval images --batch 10 --batches 2
expect 0 '"samples":	15' eval images --json
expect 0 "$(result_of images.log)" eval --model resnet20 --weights images --data synthetic --image-size 8 --classes 7 \
    --seed 9 --batch 5 --batches 3
expect 1 "No such file" eval tokens --data tokens:absent
expect 1 "is it the file of another model?" eval images --model mlp

# ---- what is no run

expect 1 "absent is not the directory of a run" eval absent
expect 1 "text is not the directory of a run" eval text
expect 2 "'images' is not an option" eval tokens images
mkdir empty unfinished
expect 1 "empty is not the directory of a run: it has no config.json" eval empty
cp images/config.json unfinished
expect 1 "a run that has not ended has no weights yet" eval unfinished
echo '{"model": 3}' >empty/config.json
expect 2 '"model" must be a string' eval empty

# ---- a language model's accuracy is of next tokens; a peak says of what it is

[[ "$(result_of tokens.log)" == *", next-token accuracy "* ]] || fail "an evaluation of tokens says: $(result_of tokens.log)"
expect 0 '"next_token_accuracy":' eval tokens --json
for file in tokens/summary.json tokens/evaluations.jsonl; do
    grep -q '"next_token_accuracy"' $file || fail "$file has no next-token accuracy"
    grep -q '"accuracy' $file && fail "$file calls the next-token accuracy just accuracy"
done
grep -q '"accuracy"' images/summary.json || fail "images/summary.json has no accuracy"
grep -q '^done .* peak of activations [0-9.]* MB, all workers together$' images.log || fail "the end does not say of what the peak is: $(tail -n 1 images.log)"
grep -q '"of":	"process"' images/summary.json || fail "summary.json does not say of what its memory is"

finish
