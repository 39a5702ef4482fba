#!/bin/bash
# The soak: random training runs, in one process and over ranks in trouble, under ThreadSanitizer, then under
# AddressSanitizer with UBSan, half of the time each.
#
#     SOAK_SECONDS=1800 SOAK_SEED=... tests/soak/run.sh [BUILD_DIR_TSAN BUILD_DIR_ASAN]
#
# Ends with an error at the first report of a sanitizer, a hang, or any run that did not give the bits that it should.
# The line in front of it says which seed it was: `soak --seed X --once` does it again. No suppression covers code of
# ours; see tests/tsan.supp.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${SOAK_SECONDS:-1800}
seed=${SOAK_SEED:-$(date +%s)}
tsan=${1:-build/tsan}
asan=${2:-build/asan}

# The newest lines are enough to look at while it runs; all of them are in the file.
soak() {
    local name=$1 directory=$2 result=0
    shift 2
    printf 'soak under %s for %d s, seed %s; log: %s\n' "$name" $((seconds / 2)) "$seed" "$directory/soak.log"
    cmake --build "$directory" --parallel "${JOBS:-$(nproc)}" --target soak >/dev/null
    "$@" "$directory/tests/soak/soak" --seconds $((seconds / 2)) --seed "$seed" >"$directory/soak.log" 2>&1 || result=$?
    tail -n 1 "$directory/soak.log"
    if [ $result -ne 0 ]; then
        grep -v ': ok (' "$directory/soak.log" | tail -n 200
        printf 'soak under %s failed with status %d\n' "$name" $result
        exit 1
    fi
}

configure() {
    if [ ! -e "$2/CMakeCache.txt" ]; then
        cmake --preset "$1" -B "$2" -G "$(command -v ninja >/dev/null && echo Ninja || echo 'Unix Makefiles')" >/dev/null
    fi
}

configure tsan "$tsan"
configure asan "$asan"
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp:halt_on_error=1:second_deadlock_stack=1"
export ASAN_OPTIONS="detect_stack_use_after_return=1:strict_string_checks=1"
export LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"

# ThreadSanitizer's runtime wants its addresses free, which randomisation does not promise on every kernel.
if setarch -R true 2>/dev/null; then
    soak ThreadSanitizer "$tsan" setarch -R
else
    soak ThreadSanitizer "$tsan"
fi
soak "AddressSanitizer and UBSan" "$asan"
