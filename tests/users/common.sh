# What the scripts beside this one share: expectations, a directory of their own, and the data. To be sourced; no test
# itself. CAROUSEL names the program, SHARED_DATA the folder of the data if it is not ../shared/data of the checkout.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/cli/common.sh
. "$root/tests/cli/common.sh"
shared=${SHARED_DATA:-$root/../shared/data}
python=${PYTHON:-/usr/bin/python3}

# need FILE: skips the test without it.
need() {
    if [ ! -e "$shared/$1" ]; then
        echo "SKIPPED: $shared/$1 is not there" >&2
        exit 77
    fi
}

# has MODULE...: whether Python has them all.
has() {
    for module; do "$python" -c "import $module" 2>/dev/null || return 1; done
}

# run_page FILE: runs every command in the first block of a page of docs/ that holds some, with the program for `carousel`.
# What each prints is in LINE.log, counted from 1.
run_page() {
    local number=0 line
    while IFS= read -r line; do
        number=$((number + 1))
        eval "\"\$CAROUSEL\" ${line#carousel }" >"$number.log" 2>&1 </dev/null || fail "$line: exit $?: $(cat $number.log)"
    done < <(sed -n '/^```/,/^```/p' "$root/docs/$1" | sed -n 's/ *#.*//; /^carousel /p')
    [ "$number" -gt 0 ] || fail "docs/$1 has no commands"
}
