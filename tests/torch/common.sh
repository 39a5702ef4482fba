# What the scripts beside this one share: PyTorch, or exit 77, "skipped"; and a directory of their own. To be sourced.
# shellcheck shell=bash
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-/usr/bin/python3}
if ! "$python" -c 'import torch, torchvision' 2>/dev/null; then
    echo "SKIPPED: $python has no torch and torchvision" >&2
    exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
