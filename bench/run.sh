#!/bin/bash
# Measures: each kernel on its own, then whole models beside OpenBLAS and PyTorch. `make bench-models` builds what this runs.
# Arguments go to models.py, for instance --models resnet18 --rounds 7; with --no-kernels first, only models are run.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
export BUILD_DIR="${BUILD_DIR:-$here/../build}"

if [ "${1:-}" = --no-kernels ]; then
    shift
else
    "$BUILD_DIR/bench/sgemm"
    "$BUILD_DIR/bench/muon"
    echo
    "$BUILD_DIR/bench/kernels"
    echo
fi
exec python3 "$here/models.py" "$@"
