#!/usr/bin/env bash
# Removes what `make install` put under a prefix, and the folders of ours that this leaves empty. What that is the build
# tree says, by installing into a folder of its own: so it does not matter when, or from where, the other was installed.
#
#   tools/uninstall.sh BUILD_DIR PREFIX [DESTDIR]
set -euo pipefail

build=$1
prefix=$(realpath -sm "$2")
root=${3:-}

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
DESTDIR=$stage "${CMAKE:-cmake}" --install "$build" --prefix "$prefix" >/dev/null

removed=0
while IFS= read -r -d '' file; do
    target=$root$prefix/$file
    if [ -e "$target" ] || [ -L "$target" ]; then
        rm -f -- "$target"
        removed=$((removed + 1))
    fi
done < <(cd "$stage$prefix" && find . ! -type d -printf '%P\0')

# The deepest first. Folders that others use, too, such as lib and bin, stay.
while IFS= read -r -d '' folder; do
    [ ! -d "$root$prefix/$folder" ] || rmdir --ignore-fail-on-non-empty -- "$root$prefix/$folder"
done < <(cd "$stage$prefix" && find . -depth -type d -path '*[cC]arousel*' -printf '%P\0')

echo "removed $removed files from $root$prefix"
