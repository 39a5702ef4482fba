# What the scripts beside this one share: how ranks are started, more of them than there are cores, and what is expected
# of them. To be sourced with the program carousel as $carousel; no test itself.
# shellcheck shell=bash
set -euo pipefail

mpirun=${MPIRUN:-mpirun}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0

fail() {
    echo "FAILED: $*"
    failed=1
}

start() { # RANKS PROGRAM...
    local ranks=$1
    shift
    timeout 300 "$mpirun" -n "$ranks" "$@"
}

# Two ranks that are not started alike: `-- SECOND` separates the commands.
start_unlike() { # FIRST... -- SECOND...
    local first=()
    while [ "$1" != -- ]; do
        first+=("$1")
        shift
    done
    shift
    timeout 120 "$mpirun" -n 1 "${first[@]}" : -n 1 "$@"
}

show_log() { # its end; progress is written over and over
    tr '\r' '\n' <"$work/log" | grep -v '% *step [0-9]*/\|^.\[Kstep' | tail -40
}

expect() { # TEXT: somewhere in the log
    grep -q -- "$1" "$work/log" || {
        show_log
        fail "no message '$1'"
    }
}

# The program must succeed, or must fail; what it says goes to the log.
succeeds() {
    "$@" >"$work/log" 2>&1 || {
        show_log
        fail "$*"
    }
}
fails() {
    if "$@" >"$work/log" 2>&1; then fail "this should not have worked: $*"; fi
}

sum_of() { # DIR: of the weights that a run ended with
    sed -n 's/.*"weights_sha256":[^"]*"\([0-9a-f]*\)".*/\1/p' "$1/summary.json" 2>/dev/null || true
}

same_weights() { # DIR DIR WHY
    local one other
    one=$(sum_of "$1")
    other=$(sum_of "$2")
    [ -n "$one" ] && [ "$one" = "$other" ] || fail "$3: the weights are not the same"
    [ -s "$2/weights.safetensors" ] || fail "$3: there is no file of weights"
}

value_of() { # FILE NAME: a number or a word in a JSON file
    sed -n "s/.*\"$2\":[^0-9a-z.-]*\\([0-9a-zA-Z.+-]*\\).*/\\1/p" "$1" | head -1
}

find_rank() { # RANK DIR: the process of that rank in the run with that directory
    local process
    for process in /proc/[0-9]*; do
        if tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -qE "^(OMPI_COMM_WORLD_RANK|PMI_RANK)=$1\$" &&
            tr '\0' '\n' 2>/dev/null <"$process/cmdline" | grep -qx -- "$2"; then
            basename "$process"
            return
        fi
    done 2>/dev/null
}

finish() {
    [ "$failed" = 0 ] && echo "all is well"
    exit "$failed"
}
