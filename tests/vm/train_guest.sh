#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# One machine's part of train_two_hosts.py: a trains with its own servers over shared memory, then its workers
# train with the servers of b over verbs. Arguments: the command, then options of both jobs. Results and the
# device's counters go to $VM_SHARED.
set -eu
tern=$1
shift
export TERN_CTX_SECRET=of-this-test
cluster=10.77.0.2:7001,10.77.0.2:7002
counters=/sys/class/infiniband/$VM_RDMA/ports/1/hw_counters

note() { # WHEN
	for file in "$counters"/*; do
		echo "${file##*/} $(cat "$file")"
	done >"$VM_SHARED/device-$VM_HOST-$1"
}
part() { # ROLE INDEX OPTIONS...
	role=$1 index=$2
	shift 2
	"$tern" train --role "$role" --index "$index" --cluster $cluster --transport verbs --json --quiet --timeout 80 "$@" \
		>"$VM_SHARED/$role$index.json" || : >"$VM_SHARED/$role$index.failed"
}

note before
if [ "$VM_HOST" = a ]; then
	"$tern" train --transport shm --data "$VM_SHARED" --losses "$VM_SHARED/shm" --quiet --json "$@" >"$VM_SHARED/shm.json"
	for i in 0 1; do
		part worker $i --data "$VM_SHARED" --losses "$VM_SHARED/worker$i" "$@" &
	done
else
	for i in 0 1; do
		part server $i --features 64 --classes 4 "$@" &
	done
fi
wait
note after
for failed in "$VM_SHARED"/*.failed; do
	[ ! -e "$failed" ] || exit 1
done
