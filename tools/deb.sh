#!/bin/sh
# Builds the Debian packages out of a copy of the sources, so that these stay as they are.
#
#   tools/deb.sh DIRECTORY
#
# The packages are in DIRECTORY afterwards; lintian has looked at them, and its errors fail.
set -eu

cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(cd "$1" && pwd)
version=$(dpkg-parsechangelog -S Version)
tree=$out/carousel-$version

# The package must ask for what the build asks for.
missing=$(tools/deps.sh --list build | while read -r package; do
    case $package in gcc | libc6-dev | make) continue ;; esac # part of what every Debian package is built with
    sed -n '/^Build-Depends/,/^Standards/p' debian/control | grep -qw -- "$package" || echo "$package"
done)
if [ -n "$missing" ]; then
    echo "tools/deb.sh: debian/control lacks these packages of packages.txt: $missing" >&2
    exit 1
fi
project=$(sed -n 's/^#define CAR_VERSION "\(.*\)"/\1/p' include/carousel/version.h)
if [ "$project" != "$version" ]; then
    echo "tools/deb.sh: debian/changelog is of version $version, version.h of $project" >&2
    exit 1
fi

rm -rf "$tree" "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
mkdir "$tree"
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard | tar -c --null --files-from=- --ignore-failed-read | tar -x -C "$tree"
else
    tar -c --exclude=./build --exclude=./.git . | tar -x -C "$tree"
fi
(cd "$tree" && dpkg-buildpackage -b -us -uc)
lintian --fail-on error "$out"/*.changes
rm -rf "$tree"
ls -l "$out"/*.deb
