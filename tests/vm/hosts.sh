#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Cases of hosts.c over two machines, one after the other in one boot. usage: hosts.sh VM-HOSTS [CASE...]
# b serves, with larger frames than a allows; a dials.
set -eu
program=$1
shift
if [ "$VM_HOST" = b ]; then
	vm-mtu 4200
	exec "$program" serve "$VM_OWN_ADDR:7472"
fi
[ $# -gt 0 ] || set -- plain loss link_short link_long moved killed
for name in "$@"; do
	echo "== $name"
	"$program" "$name" "$VM_PEER_ADDR:7472"
done
