#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The bed holds what README.md says. Runs in a machine, or in both of two.
set -eu

is() { # WHAT EXPECTED GOT
	[ "$2" = "$3" ] || {
		echo "test_bed: $1 is '$3', not '$2'"
		exit 1
	}
}
meet() { # NAME: both are here
	[ "$VM_HOSTS" = 2 ] || return 0
	: >"$VM_SHARED/$1-$VM_HOST"
	while [ ! -e "$VM_SHARED/$1-a" ] || [ ! -e "$VM_SHARED/$1-b" ]; do sleep 0.05; done
}

is user 0 "$(id -u)"
is "locked memory" unlimited "$(ulimit -l)"
is address "$VM_OWN_ADDR" "$(ip -4 -o addr show dev "$VM_NETDEV" | sed 's/.*inet \([0-9.]*\).*/\1/')"
is port "4: ACTIVE" "$(cat "/sys/class/infiniband/$VM_RDMA/ports/1/state")"
[ -c /dev/infiniband/uverbs0 ]
for folder in /dev/shm /tmp /run "$VM_SHARED"; do
	: >"$folder/written-$VM_HOST"
done
grep -q "$(printf '%02x%02x:%02x%02x' $(echo "$VM_OWN_ADDR" | tr . ' '))" "/sys/class/infiniband/$VM_RDMA/ports/1/gids/1"

# Data over the device: perftest's server and client, in one machine or across two.
meet start
if [ "$VM_HOST" = a ]; then
	ib_write_bw -d "$VM_RDMA" -n 50 -s 4096 -F >/tmp/server.log 2>&1 &
	server=$!
	# until it listens on 18515
	for _ in $(seq 100); do
		! grep -qs ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 || break
		sleep 0.1
	done
fi
meet listening
if [ "$VM_HOST" = b ] || [ "$VM_HOSTS" = 1 ]; then
	ib_write_bw -d "$VM_RDMA" -n 50 -s 4096 -F "$VM_PEER_ADDR"
fi
[ "$VM_HOST" = b ] || wait $server

# Faults.
vm-mtu 4200
is "path MTU" "active_mtu: 4096 (5)" "$(ibv_devinfo -d "$VM_RDMA" | sed -n 's/.*\(active_mtu\):[[:space:]]*/\1: /p')"
vm-loss 1
vm-delay 5
tc qdisc show dev "$VM_NETDEV" | grep -q 'delay 5.*loss 1%'
vm-delay 0
vm-loss 0
meet faults
if [ "$VM_HOST" = a ]; then
	vm-link down
	is carrier DOWN "$(cat "/sys/class/infiniband/$VM_RDMA/ports/1/state" | sed 's/.*: //')"
	vm-link up
	is carrier ACTIVE "$(cat "/sys/class/infiniband/$VM_RDMA/ports/1/state" | sed 's/.*: //')"
fi
vm-addr "10.77.0.5${VM_OWN_ADDR##*.}"
grep -q "0a4d:0005\|0a4d:003[0-9]" "/sys/class/infiniband/$VM_RDMA/ports/1/gids/1"
vm-addr "$VM_OWN_ADDR"
meet end
echo "test_bed: $VM_HOST is good"
