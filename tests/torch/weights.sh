#!/bin/bash
# Weights between Carousel and PyTorch, both ways: the same logits to 1e-4.
#
#     LOGITS=PROGRAM tests/torch/weights.sh [MODEL...]    default: resnet18 gpt2-nano
#
# By hand also with DTYPES="F32 F16 BF16", and with resnet50 vit-b16 gpt2, which take a minute. Ends with 77, "skipped",
# without PyTorch.
# shellcheck source=tests/torch/common.sh
. "$(dirname "$0")/common.sh"

models=("$@")
[ $# -gt 0 ] || models=(resnet18 gpt2-nano)

torch() {
    "$python" "$here/torch_weights.py" "$@"
}

for model in "${models[@]}"; do
    torch batch "$model" batch.safetensors
    for dtype in ${DTYPES:-F32}; do
        echo "== $model: written by PyTorch as $dtype"
        torch export "$model" theirs.safetensors --dtype "$dtype"
        "$LOGITS" load theirs.safetensors batch.safetensors logits.safetensors
        torch compare theirs.safetensors batch.safetensors logits.safetensors
    done
    echo "== $model: written by Carousel"
    "$LOGITS" save ours.safetensors batch.safetensors logits.safetensors
    torch compare ours.safetensors batch.safetensors logits.safetensors
done
