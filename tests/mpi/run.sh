#!/usr/bin/env bash
# Real ranks, more than there are cores, against the shared engine.
#
#   run.sh PROGRAMS [ci|full]     PROGRAMS: the folder of ranks
programs=$1 extent=${2:-ci}
# shellcheck source=tests/mpi/common.sh
. "$(dirname "$0")/common.sh"

succeeds start 1 "$programs/trust"
tail -1 "$work/log"
for failing in $(seq 12); do
    succeeds start 1 "$programs/trust" "$failing"
done

succeeds start 2 "$programs/trust" run
for why in data graph clip; do
    succeeds start_unlike "$programs/trust" run "$why" -- "$programs/trust" run "$why" bad
done

succeeds start 2 "$programs/runs" "$work/runs"
fails timeout 25 "$mpirun" -n 2 "$programs/runs"
expect '1: sample [0-9]* is gone'
expect 'second: 1, another run over MPI has failed in this process'

for ranks in 2 3 4 6 9 10; do
    echo "== $ranks ranks"
    succeeds start "$ranks" "$programs/ranks" "$extent"
    tail -1 "$work/log"
done

finish
