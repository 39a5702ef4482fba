#!/bin/sh
# Renews the charting library in src/report/page/vendor/uplot from npm, as the registry that npm is set up with has it.
#
#   tools/vendor-uplot.sh 1.6.32
#
# The files are committed, so that building needs neither npm nor a network. Look at the pages afterwards.
set -eu

version=${1:?"which version? for instance: tools/vendor-uplot.sh 1.6.32"}
target=$(cd "$(dirname "$0")/.." && pwd)/src/report/page/vendor/uplot
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$work"
npm pack --silent "uplot@$version"
tar -xzf "uplot-$version.tgz"
cp package/dist/uPlot.iife.min.js package/dist/uPlot.min.css package/LICENSE "$target"
if grep -qi '</script' "$target/uPlot.iife.min.js"; then
    echo "the library contains </script, which would end the element that it is put into" >&2
    exit 1
fi
echo "uPlot $version is in src/report/page/vendor/uplot"
