#!/bin/sh
# Installs the Debian packages that are missing, out of packages.txt.
#
#   tools/deps.sh                all sections
#   tools/deps.sh build test     these sections
#   tools/deps.sh --list build   only prints the names
#
# Silent when nothing is missing. Fails with the list where there is no apt-get.
set -eu

here=$(dirname "$0")
list=false
if [ "${1:-}" = --list ]; then
    list=true
    shift
fi

wanted=$(awk -v sections=" $* " '
    { sub(/#.*/, "") }
    NF == 0 { next }
    sections ~ /^ *$/ { print $1; next }
    { for (i = 2; i <= NF; i++) if (index(sections, " " $i " ")) { print $1; next } }
' "$here/../packages.txt")

if $list; then
    printf '%s\n' "$wanted"
    exit 0
fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    {
        echo "There is no apt-get here, so the libraries and tools must be installed another way."
        echo "Wanted, by their Debian names:"
        printf '%s\n' "$wanted" | sed 's/^/    /'
        echo "(libdnnl-dev is oneDNN 2.x with its C headers, libcjson-dev is cJSON, libjpeg62-turbo-dev is libjpeg-turbo.)"
        echo "Once they are there, add DEPS=no:  make build DEPS=no"
    } >&2
    exit 1
fi

# A package also counts as there when another one provides it.
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Provides}\n' 2>/dev/null |
    awk '$1 == "installed" { for (i = 2; i <= NF; i++) { sub(/,$/, "", $i); print $i } }')
missing=$(printf '%s\n' "$wanted" | awk -v installed="$installed" '
    BEGIN { n = split(installed, names, "\n"); for (i = 1; i <= n; i++) have[names[i]] = 1 }
    !($1 in have)')
if [ -z "$missing" ]; then
    exit 0
fi

missing=$(printf '%s' "$missing" | tr '\n' ' ')
as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "These packages are missing, and installing them needs root:" >&2
        echo "    apt-get install --no-install-recommends $missing" >&2
        exit 1
    fi
    as_root=sudo
fi

echo "Installing the missing packages: $missing"
$as_root apt-get update -qq
# shellcheck disable=SC2086 # one word for each package
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
