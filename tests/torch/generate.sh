#!/bin/bash
# Greedy generation is that of a PyTorch model with the same weights: of a run of ours, exported, and of a folder that
# PyTorch wrote, with and without Hugging Face's prefix. Ends with 77, "skipped", without PyTorch.
#
#     CAROUSEL=PROGRAM tests/torch/generate.sh
# shellcheck source=tests/torch/common.sh
. "$(dirname "$0")/common.sh"

torch() {
    "$python" "$here/torch_generate.py" "$@"
}

# generate SOURCE PROMPT TOKENS FILE
generate() {
    "$CAROUSEL" generate "$1" --prompt "$2" --tokens "$3" --temperature 0 --json >"$4"
}

for i in $(seq 60); do echo "line $i of a text that is made up, $((i * i)) words long and not very good"; done >text
"$CAROUSEL" tokenize text -o text.bin --vocabulary 320
"$CAROUSEL" train --model gpt2-nano --data tokens:text.bin --width 48 --depth 2 --heads 3 --seq-len 32 --workers 2 \
    --batch 4 --steps 30 --optimizer adamw --lr 3e-3 --eval-batches 1 --out run >train.log || { cat train.log; exit 1; }
"$CAROUSEL" export run -o exported
echo "== a run, and its export"
generate run "line 7" 60 run.json
generate exported "words " 30 exported.json
torch check exported run.json exported.json

for bare in "" --bare; do
    echo "== written by PyTorch${bare:+ without the prefix}: as it is, and through --init"
    rm -rf theirs tuned
    torch make theirs $bare
    "$CAROUSEL" train --model gpt2-nano --data tokens:text --width 48 --depth 3 --heads 4 --seq-len 16 --workers 2 \
        --batch 1 --steps 1 --lr 0 --eval-batches 1 --init theirs/model.safetensors --out tuned >init.log 2>&1 ||
        { cat init.log; exit 1; }
    generate theirs "The quick brown fox" 90 theirs.json
    generate tuned "The quick" 40 tuned.json
    torch check theirs theirs.json tuned.json
done
