#!/usr/bin/env bash
# All that is tested of ranks, one script after the other; `make test` has a slice of each.
#
#   full.sh PROGRAMS CAROUSEL
here=$(dirname "$0")
failed=0
"$here/run.sh" "$1" full || failed=1
"$here/starts.sh" "$2" full || failed=1
"$here/faults.sh" "$2" full || failed=1
exit $failed
