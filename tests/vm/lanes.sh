#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# lanes.c over two machines. usage: lanes.sh VM-LANES [KILLS]
# b serves; on both sides lanes are killed at random. a prints how long its link stood each time.
set -eu
program=$1
kills=${2:-10}
export TERN_BASE_FAULT="channel.lane.break:p=0.05:$(($(od -An -N2 -tu2 /dev/urandom)))"
if [ "$VM_HOST" = b ]; then
	exec "$program" serve "$VM_OWN_ADDR:7473"
fi
"$program" "$kills" "$VM_PEER_ADDR:7473" 2>"$VM_SHARED/lanes.err" || { tail -50 "$VM_SHARED/lanes.err" >&2; exit 1; }
# the distribution, ms
sed -n 's/.*the lanes are rebuilt, after \([0-9.]*\) ms/\1/p' "$VM_SHARED/lanes.err" | sort -n |
	awk '{ t[NR] = $1 } END { n = NR
		printf "%d resumed: p50 %s ms, p90 %s, p99 %s, max %s; bound 10000\n", n, t[int((n + 1) / 2)],
		       t[int(n * 0.9 + 0.999)], t[int(n * 0.99 + 0.999)], t[n] }'
