#!/bin/bash
# Runs the fuzz targets, two at once at most, each for FUZZ_SECONDS (default 20), from the inputs in corpus/NAME.
#
#     FUZZ_SECONDS=600 tests/fuzz/run.sh [BUILD_DIR [NAME...]]
#
# FUZZ_SEED repeats a sequence of random inputs; without it each run has another one.
#
# Ends with an error if one of them crashed, leaked, hung, or asked for more memory than its input justifies; the input
# is kept in BUILD_DIR/fuzz. What new inputs were found stays in BUILD_DIR/fuzz/NAME, for the next run to begin with.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${1:-build/fuzz}
seconds=${FUZZ_SECONDS:-20}
names=("${@:2}")
if [ ${#names[@]} -eq 0 ]; then
    for source in tests/fuzz/*_fuzz.c; do
        name=${source##*/}
        names+=("${name%_fuzz.c}")
    done
fi

# Short inputs find as much as long ones here, and faster.
fuzz() {
    local name=$1 result=0
    local found=$build/fuzz/$name words=()
    mkdir -p "$found"
    if [ -f "tests/fuzz/$name.dict" ]; then
        words=(-dict="tests/fuzz/$name.dict")
    fi
    UBSAN_OPTIONS=print_stacktrace=1 "$build/tests/fuzz/$name" "$found" "tests/fuzz/corpus/$name" \
        -seed="${FUZZ_SEED:-0}" -max_total_time="$seconds" -max_len=8192 -timeout=60 -malloc_limit_mb=64 -rss_limit_mb=1024 -verbosity=1 \
        "${words[@]}" \
        -artifact_prefix="$build/fuzz/$name-" -print_final_stats=1 >"$build/fuzz/$name.log" 2>&1 || result=$?
    if [ $result -ne 0 ]; then
        tail -n 60 "$build/fuzz/$name.log"
        printf '%s: failed; the input is in %s\n' "$name" "$build/fuzz"
        return 1
    fi
    printf '%-12s %9d runs, %5d inputs, %s\n' "$name" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/fuzz/$name.log")" \
        "$(find "$found" -type f | wc -l)" \
        "$(grep -o 'cov: [0-9]* ft: [0-9]*' "$build/fuzz/$name.log" | tail -n 1)"
}

mkdir -p "$build/fuzz"
running=0
for name in "${names[@]}"; do
    if [ $running -eq 2 ]; then
        wait -n
        running=$((running - 1))
    fi
    fuzz "$name" &
    running=$((running + 1))
done
while [ $running -gt 0 ]; do
    wait -n
    running=$((running - 1))
done
