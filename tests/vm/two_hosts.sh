#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The conformance suite's cases with a second process, which lives in the other machine. usage: two_hosts.sh CONFORMANCE
set -eu
conformance=$1
if [ "$VM_HOST" = b ]; then
	exec "$conformance" verbs --serve "$VM_OWN_ADDR:7471"
fi
exec "$conformance" verbs --peer "$VM_PEER_ADDR:7471"
