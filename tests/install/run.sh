#!/bin/bash
# Installs Carousel under a temporary prefix and uses it from there as a stranger would: the program, and
# one small example built through pkg-config and through find_package, with either library.
#
#   tests/install/run.sh BUILD_DIR EXAMPLE VERSION       with MPIRUN, examples run over ranks too
set -euo pipefail

build=$1
program=$2
version=$3
here=$(cd "$(dirname "$0")" && pwd)
cc=${CC:-cc}
cmake=${CMAKE:-cmake}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "install: $*" >&2
    exit 1
}

# Runs an example and fails with its output if it fails, or if it takes the wrong kind of library.
run_example() {
    local program=$1 kind=$2 needed=absent
    if readelf -d "$program" | grep -q 'NEEDED.*libcarousel\.so'; then
        needed=present
    fi
    case $kind-$needed in
    shared-present | static-absent) ;;
    *) fail "$program should be linked with the $kind library" ;;
    esac
    "$program" >"$scratch/output" 2>&1 || { cat "$scratch/output"; fail "$program failed"; }
}

# The prefix is moved once after installing: packages are built in one place and used in another.
"$cmake" --install "$build" --prefix "$scratch/elsewhere" >/dev/null
mv "$scratch/elsewhere" "$scratch/prefix"
prefix=$scratch/prefix
libdir=$(dirname "$(find "$prefix" -name libcarousel.a)")
doc=$(dirname "$(find "$prefix/share/doc" -name LICENSE)")
examples=$doc/examples
example=$examples/$program.c

# Pages and examples, with all that they name.
for file in "$here"/../../examples/* "$here"/../../examples/*/* "$here"/../../docs/*.md "$here"/../../docs/figures/*; do
    installed=$doc/${file#"$here"/../../}
    [ -e "$installed" ] || fail "$installed is missing"
done

"$prefix/bin/carousel" --help >/dev/null || fail "the installed program does not run"
[ -s "$prefix/share/bash-completion/completions/carousel" ] || fail "the completion of bash is missing"
if command -v scdoc >/dev/null; then
    for page in carousel $("$prefix/bin/carousel" --help=list | sed 's/\t.*//; s/^/carousel-/'); do
        [ -s "$prefix/share/man/man1/$page.1" ] || fail "the manual page $page(1) is missing"
    done
fi

export PKG_CONFIG_PATH=$libdir/pkgconfig
found=$(pkg-config --modversion carousel)
[ "$found" = "$version" ] || fail "pkg-config says version $found, not $version"
read -r -a cflags <<<"$(pkg-config --cflags carousel)"
read -r -a shared <<<"$(pkg-config --libs carousel)"
read -r -a static <<<"$(pkg-config --static --libs carousel)"
# Where both libraries lie side by side a linker takes the shared one, unless told.
static=("${static[@]/#-lcarousel/-l:libcarousel.a}")

strict=(-std=c17 -Wall -Wextra -Wpedantic -Werror)
"$cc" "${strict[@]}" "${cflags[@]}" "$example" -o "$scratch/pc_shared" "${shared[@]}" "-Wl,-rpath,$libdir"
run_example "$scratch/pc_shared" shared
"$cc" "${strict[@]}" "${cflags[@]}" "$example" -o "$scratch/pc_static" "${static[@]}"
run_example "$scratch/pc_static" static

# The first program of the page about the library.
awk '/^```c$/ { on = 1; next } /^```$/ { if (on) exit } on' "$examples/../docs/library.md" >"$scratch/twenty.c"
"$cc" "${strict[@]}" "${cflags[@]}" "$scratch/twenty.c" -o "$scratch/twenty" "${shared[@]}" "-Wl,-rpath,$libdir"
(cd "$scratch" && run_example "$scratch/twenty" shared && [ -s weights.safetensors ])

# A network, data and an optimizer of one's own; this one with checkpoints, to the bit.
for program in own-graph own-data own-optimizer over-ranks; do
    "$cc" "${strict[@]}" "${cflags[@]}" "$examples/$program.c" -o "$scratch/$program" "${shared[@]}" -lm "-Wl,-rpath,$libdir"
    run_example "$scratch/$program" shared
    cp "$scratch/output" "$scratch/$program.out"
done
"$scratch/own-optimizer" "$scratch/checkpoints" >"$scratch/output" 2>&1 || { cat "$scratch/output"; fail "lion failed"; }
cmp -s "$scratch/output" "$scratch/own-optimizer.out" || fail "own-optimizer ends elsewhere after a checkpoint"
grep -aq 'optimizer\.momentum\.' "$scratch"/checkpoints/step-*/state.safetensors ||
    fail "the state of own-optimizer has no name in its checkpoint"

# The same weights in one process, over its threads and over processes.
weights() {
    "$@" >"$scratch/output" 2>&1 || { cat "$scratch/output"; fail "$* failed"; }
    sed 's/.*weights //' "$scratch/output"
}
expected=$(weights "$scratch/over-ranks" shared)
[ "$(weights "$scratch/over-ranks" pipeline)" = "$expected" ] || fail "over-ranks: a pipeline has other weights"
if [ -n "${MPIRUN:-}" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    [ "$(weights "$MPIRUN" -n 4 "$scratch/over-ranks" pipeline)" = "$expected" ] ||
        fail "over-ranks: a pipeline over MPI has other weights"
fi

# Stages of one's own, in one process and over ranks.
"$cc" "${strict[@]}" "${cflags[@]}" "$examples/own-stage.c" -o "$scratch/own_stage" "${shared[@]}" -lm "-Wl,-rpath,$libdir"
run_example "$scratch/own_stage" shared
alone=$(cat "$scratch/output")
if [ -n "${MPIRUN:-}" ]; then
    "$MPIRUN" -n 4 "$scratch/own_stage" >"$scratch/output" 2>&1 ||
        { cat "$scratch/output"; fail "own-stage failed over 4 ranks"; }
    [ "$(cat "$scratch/output")" = "${alone/1 rank/4 ranks}" ] ||
        fail "own-stage says '$alone', and over ranks '$(cat "$scratch/output")'"
fi

# Full waveform inversion: its gradient is a serial program's to the bit, for any number of threads and over ranks; it is
# the derivative of the misfit; and the inversion comes closer to the truth.
read -r -a png <<<"$(pkg-config --cflags --libs libpng)"
"$cc" "${strict[@]}" -D_GNU_SOURCE -O2 "${cflags[@]}" "$examples"/waveform/*.c -o "$scratch/waveform" "${shared[@]}" \
    "${png[@]}" -lm "-Wl,-rpath,$libdir"
small=(--size 32 --steps 48 --stages 12 --workers 3 --accumulate 2)
waveform() {
    "$@" >"$scratch/output" 2>&1 || { cat "$scratch/output"; fail "$* failed"; }
}
waveform "$scratch/waveform" "${small[@]}" --threads 1 --check --taylor
waveform "$scratch/waveform" "${small[@]}" --threads 3 --check --checkpoints 2
waveform "$scratch/waveform" "${small[@]}" --threads 2 --check --rule cdp-v2
waveform "$scratch/waveform" "${small[@]}" --steps 96 --iterations 2 --out "$scratch/models.png"
[ -s "$scratch/models.png" ] || fail "waveform wrote no picture"
waveform "$scratch/waveform" "${small[@]}" --steps 96 --iterations 2 --method descent
for ranks in 2 3; do
    [ -z "${MPIRUN:-}" ] ||
        waveform "$MPIRUN" -n $ranks "$scratch/waveform" "${small[@]}" --workers 6 --accumulate 1 --threads 1 --check
done
! "$scratch/waveform" "${small[@]}" --checkpoints 3 >"$scratch/output" 2>&1 || fail "waveform took 3 checkpoints of 4 steps"

# Each public header must stand on its own.
for header in "$prefix"/include/carousel/*.h; do
    echo "#include \"carousel/$(basename "$header")\"" | "$cc" "${strict[@]}" "${cflags[@]}" -fsyntax-only -x c - ||
        fail "$(basename "$header") needs something that it does not include"
done

"$cmake" -S "$here" -B "$scratch/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF -DPROGRAM="$example" -DCAROUSEL_VERSION="$version" >/dev/null
"$cmake" --build "$scratch/consumer" >/dev/null
run_example "$scratch/consumer/with_shared" shared
run_example "$scratch/consumer/with_static" static

# All that was installed goes again, and nothing else.
echo "/* a neighbour's */" >"$prefix/include/neighbour.h"
CMAKE=$cmake "$here/../../tools/uninstall.sh" "$build" "$prefix" >/dev/null
left=$(cd "$prefix" && find . ! -type d -o -name '*arousel*')
[ "$left" = ./include/neighbour.h ] || fail "after uninstalling there is still: $left"
