#!/bin/bash
# Weights between Carousel and PyTorch, both ways: the same logits to 1e-4. And what bf16 changes of the gradients of a
# transformer: each is within 2e-2 of PyTorch's in fp32.
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
    case $model in
    gpt2* | vit*)
        echo "== $model: gradients in bf16"
        "$LOGITS" gradients ours.safetensors batch.safetensors gradients.safetensors
        torch gradients ours.safetensors batch.safetensors gradients.safetensors
        ;;
    esac
done
