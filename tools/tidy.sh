#!/bin/bash
# Runs clang-tidy over the sources that the given build directory compiles; fails on any finding.
#
#   tools/tidy.sh BUILD_DIR [JOBS [PATH...]]     default: 1 job, src and cli
set -euo pipefail

cd "$(dirname "$0")/.."
export build=${1:?usage: tools/tidy.sh BUILD_DIR [JOBS [PATH...]]}
jobs=${2:-1}
paths=("${@:3}")
if [ ${#paths[@]} -eq 0 ]; then
    paths=(src cli)
fi

if [ ! -f "$build/compile_commands.json" ]; then
    echo "$build has no compile_commands.json; configure it with \`cmake --preset clang\`." >&2
    exit 1
fi

# One file's findings are printed in one piece, also with several jobs. What clang-tidy says of the
# number of warnings counts those that it dropped, in system headers for instance: left out.
check() {
    local output result=0
    output=$(clang-tidy -p "$build" --quiet "$1" 2>&1) || result=$?
    if [ $result -ne 0 ]; then
        printf '%s\n' "$output" | grep -Ev '^[0-9]+ warnings?( and [0-9]+ errors?)? generated\.$'
    fi
    return $result
}
export -f check

# shellcheck disable=SC2016 # for the inner bash to expand
tools/sources.sh "${paths[@]}" | grep '\.c$' | xargs -P "$jobs" -n 1 bash -c 'check "$1"' check
