#!/bin/sh
# What mpirun calls in place of ssh: agent.sh ADDRESS COMMAND... runs the command in the namespace of that address.
# The namespace gets a host name of its own, or Open MPI would take all ranks for neighbours on one host.
# The environment says the namespaces' common beginning, CAROUSEL_NETWORK; the address's last number is the rank's
# plus one.
set -eu

address=$1
shift
name=$CAROUSEL_NETWORK-$((${address##*.} - 1))
exec ip netns exec "$name" unshare --uts sh -c "hostname $name; $*"
