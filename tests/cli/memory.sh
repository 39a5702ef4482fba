#!/usr/bin/env bash
# A run that does not fit is refused before it takes anything, and told what would; and how full the disk will be.
# CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"

# Far too large for any machine, and refused at once.
SECONDS=0
expect 1 "--force runs it anyway" train --model gpt2 --workers 16 --batch 4096 --steps 1 --out "$directory/large"
expect 1 "TB of memory (activations" train --model gpt2 --workers 16 --batch 4096 --steps 1
expect 1 "the plan for 65536 workers and 65536 stages alone needs " train --model mlp --workers 65536
expect 1 "the plan for 512 workers and 1048576 stages alone needs" train --model mlp --workers 512 --stages 1048576 --batch 1
[ $SECONDS -le 20 ] || fail "it took $SECONDS s to refuse"
[ ! -e "$directory/large" ] || fail "a run that was refused left a directory"

# limited ARGUMENTS...: with 600 MB of addresses, of which the arena takes half of what is left. Its output is in the log.
limited() {
    (ulimit -v 600000 && exec "$CAROUSEL" train --model vit-tiny --steps 1 --threads 2 "$@") >"$directory/log" 2>&1
}
# Sanitizers want terabytes of addresses.
if (ulimit -v 600000 && "$CAROUSEL" --version >/dev/null 2>&1); then
    limited --batch 16 && fail "a run that does not fit began"
    grep -qE 'the run needs about 4[0-9.]+ MB of memory \(activations 3.*weights 42.9 MB.*, but only 2[0-9][0-9] MB are available as address space \(see ulimit -v\); what would fit: ' \
        "$directory/log" || fail "the numbers: $(cat "$directory/log")"
    ways=$(sed -n 's/.*what would fit: \(.*\); --force.*/\1/p' "$directory/log")
    tries=0
    while read -r way; do
        # shellcheck disable=SC2086
        limited --batch 16 $way || fail "$way does not fit, though it was offered: $(cat "$directory/log")"
        tries=$((tries + 1))
    done < <(sed 's/, or /\n/g' <<<"$ways")
    [ $tries = 4 ] || fail "not four ways out: $ways"
    limited --batch 16 --force && fail "the limit is none"
    grep -q 'warning: the run needs about' "$directory/log" || fail "--force says nothing: $(cat "$directory/log")"
    grep -q 'carousel: out of memory' "$directory/log" || fail "--force did not go on: $(cat "$directory/log")"
fi
# It is for one start, not for a configuration.
echo '{"model": "mlp", "force": true}' >"$directory/config.json"
expect 2 '"force" is not an option' train --config "$directory/config.json"

# A disk without room for weights and checkpoints.
mkdir "$directory/disk"
if mount -t tmpfs -o size=30m tmpfs "$directory/disk" 2>/dev/null; then
    trap 'umount "$directory/disk"; rm -rf "$directory"' EXIT
    mlp=(train --model mlp --batch 4 --lr 0.001 --workers 2 --steps 4)
    expect 1 "disk/run has 31." "${mlp[@]}" --out "$directory/disk/run"
    [ -s "$directory/disk/run/weights.safetensors" ] || fail "the weights that there was room for are not there"
    grep -q steps "$directory/disk/run/summary.json" || fail "there is no summary"
    rm -r "$directory/disk/run"
    "$CAROUSEL" "${mlp[@]}" --keep 0 --out "$directory/disk/run" >"$directory/log" 2>&1 || fail "a run that fits: $(cat "$directory/log")"
    grep -q warning "$directory/log" && fail "a warning without need: $(cat "$directory/log")"
fi

finish
