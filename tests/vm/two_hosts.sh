#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The bed itself, then the conformance suite's cases with a second process, which lives in the other machine.
# usage: two_hosts.sh CONFORMANCE
set -eu
conformance=$1
"${0%/*}/test_bed.sh"
if [ "$VM_HOST" = b ]; then
	exec "$conformance" verbs --serve "$VM_OWN_ADDR:7471"
fi
exec "$conformance" verbs --peer "$VM_PEER_ADDR:7471"
