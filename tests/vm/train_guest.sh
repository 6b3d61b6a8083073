#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# One machine's part of train_two_hosts.py: a trains with its own servers over shared memory, then its workers
# train with the servers of b over verbs, three times: the second time lanes are killed at random, the third time one
# is, and verbs does not work for a while. Then each of the small models, in both ways. Arguments: the command, the
# schedule of kills, the steps under them, the models and their steps, then options of the jobs. Results and the
# device's counters go to $VM_SHARED.
set -eu
tern=$1
kills=$2
steps=$3
models=$4
model_steps=$5
shift 5
patience=$((70 + steps)) # seconds, for whatever a process waits for
export TERN_CTX_SECRET=of-this-test
counters=/sys/class/infiniband/$VM_RDMA/ports/1/hw_counters

note() { # WHEN
	for file in "$counters"/*; do
		echo "${file##*/} $(cat "$file")"
	done >"$VM_SHARED/device-$VM_HOST-$1"
}
part() { # ROLE INDEX OPTIONS...; $job goes into the names of results
	role=$1 index=$2
	shift 2
	"$tern" train --role "$role" --index "$index" --cluster $cluster --transport $transports --json --quiet --timeout $patience "$@" \
		>"$VM_SHARED/$job$role$index.json" 2>"$VM_SHARED/$job$role$index.err" || : >"$VM_SHARED/$job$role$index.failed"
}
parts() { # OPTIONS...
	for i in 0 1; do
		if [ "$VM_HOST" = a ]; then
			part worker $i --data "$data" --losses "$VM_SHARED/${job}worker$i" "$@" &
		else
			part server $i $geometry "$@" &
		fi
	done
	wait
}

note before
if [ "$VM_HOST" = a ]; then
	"$tern" train --transport shm --timeout $patience --data "$VM_SHARED" --losses "$VM_SHARED/shm" --quiet --json "$@" >"$VM_SHARED/shm.json"
	"$tern" train --transport shm --timeout $patience --data "$VM_SHARED" --losses "$VM_SHARED/killed-shm" --quiet --json "$@" \
		--steps "$steps" >"$VM_SHARED/killed-shm.json"
fi
data=$VM_SHARED geometry='--features 64 --classes 4'
job='' transports=verbs cluster=10.77.0.2:7001,10.77.0.2:7002
parts "$@"
note after
export TERN_BASE_FAULT="$kills:$(($$ % 1000))"
job=killed- cluster=10.77.0.2:7003,10.77.0.2:7004
parts "$@" --steps "$steps"
# a worker's two links come up over verbs, for shm does not reach; then verbs does not either for a while
export TERN_BASE_FAULT=channel.lane.break:60,channel.reach:5:4 TERN_LINK_PROBE=10ms
job=moved- transports=auto cluster=10.77.0.2:7005,10.77.0.2:7006
parts "$@" --steps "$steps"
unset TERN_BASE_FAULT TERN_LINK_PROBE
# tensors of many packets, by a processor that is emulated: the device waits 1 s for an answer, not 67 ms
export TERN_VERBS_TIMEOUT=18
transports=verbs data=synthetic geometry='' port=7007
for model in $models; do
	set -- --model "$model" --steps "$model_steps" --batch 4 --sync --no-eval --servers 2 --workers 2
	if [ "$VM_HOST" = a ]; then
		"$tern" train --transport shm --timeout $patience --data synthetic --losses "$VM_SHARED/$model-shm" --quiet --json "$@" \
			>"$VM_SHARED/$model-shm.json"
	fi
	job=$model- cluster=10.77.0.2:$port,10.77.0.2:$((port + 1)) port=$((port + 2))
	parts "$@"
	note "$model"
done
grep -m 1 flags /proc/cpuinfo >"$VM_SHARED/flags-$VM_HOST"
for failed in "$VM_SHARED"/*.failed; do
	[ ! -e "$failed" ] || { cat "${failed%.failed}.err"; exit 1; }
done
