#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# lanes.c over two machines, while the NIC of a hears nothing again and again. usage: silence.sh VM-LANES [TIMES]
# b serves. a ends well once it returned from tcp so often.
set -eu
program=$1
times=${2:-2}
export LANES_TRANSPORT=verbs,tcp
if [ "$VM_HOST" = b ]; then
	exec "$program" serve "$VM_OWN_ADDR:7474"
fi
exec "$program" silence "$times" "$VM_PEER_ADDR:7474"
